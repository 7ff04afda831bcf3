//! Passwords whose hashes take long on purpose: checked by other threads, while the script waits.

use h2o_mruby::{Call, Leave, Value, Vm};
use h2o_password::PasswordHash;

use super::machine::Host;
use crate::turns::Turns;

/// Defines `H2O.__fits_bcrypt`.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__fits_bcrypt", fits_bcrypt)
}

/// `__fits_bcrypt(password, hash)`: whether the hash is one of the password, as bcrypt of crypt(3) makes them. Hashes that are
/// not well-formed fit nothing.
fn fits_bcrypt(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [password, hash] = call.arguments.exactly()?;
    let password = vm.text_of(password)?;
    let hash = String::from_utf8_lossy(&vm.text_of(hash)?).into_owned();
    let check = move || PasswordHash::parse(&hash).is_some_and(|hash| hash.fits(&password));
    let worker = Host::worker(vm)?;
    let ticket = vm.suspend()?;
    let turns = worker.local::<Turns>();
    let vm = vm.reference();
    worker.spawn(async move {
        let fits = turns.take(check).await.unwrap_or(false);
        if let Some(vm) = vm.upgrade() {
            vm.resume(ticket, |_| Value::boolean(fits));
        }
    });
    Err(Leave::Wait)
}
