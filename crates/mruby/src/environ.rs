//! Ruby's `ENV`: a copy of the variables that the process was started with, with the changes that scripts of all workers
//! have made. A copy is used since the environment of the process must not be changed while other threads read it.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::function::text_argument;
use crate::{Value, Vm};

type Variables = BTreeMap<Vec<u8>, Vec<u8>>;

static VARIABLES: LazyLock<Mutex<Variables>> = LazyLock::new(|| {
    let variables = std::env::vars_os();
    let variables = variables.map(|(name, value)| (name.into_vec(), value.into_vec()));
    Mutex::new(variables.collect())
});

fn variables() -> MutexGuard<'static, Variables> {
    VARIABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__env_get", |vm, call| {
        let [name] = call.arguments.exactly()?;
        let name = text_argument(vm, name)?;
        let value = variables().get(&name).cloned();
        value.map_or(Ok(Value::nil()), |value| Ok(vm.string(value)?))
    })?;
    vm.define_singleton(module, "__env_set", |vm, call| {
        let [name, value] = call.arguments.exactly()?;
        let name = text_argument(vm, name)?;
        if value.is_nil() {
            variables().remove(&name);
        } else {
            let new = text_argument(vm, value)?;
            variables().insert(name, new);
        }
        Ok(value)
    })?;
    vm.define_singleton(module, "__env_keys", |vm, _| {
        let names: Vec<_> = variables().keys().cloned().collect();
        let array = vm.array(&[])?;
        for name in names {
            vm.push(array, vm.string(name)?)?;
        }
        Ok(array)
    })
}
