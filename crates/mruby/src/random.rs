//! Seeds for Ruby's generators of random numbers.

use std::hash::{BuildHasher, RandomState};

use crate::{Value, Vm};

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    // A number of 31 bits, which is an Integer in every build of mruby.
    vm.define_singleton(module, "__seed", |vm, call| {
        call.arguments.exactly::<0>()?;
        // The standard library keys this hash with random octets of the system.
        let random = RandomState::new().hash_one(0u8) >> 33;
        Ok(vm.integer(i64::try_from(random).unwrap_or_default())?)
    })
}
