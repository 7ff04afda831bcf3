//! Checks of bcrypt passwords for scripts. A check takes long on purpose, so another thread does it while the script
//! waits.

use h2o_mruby::{Call, Leave, Value, Vm};
use h2o_password::PasswordHash;

use super::machine::Host;
use crate::turns::Turns;

/// Defines the method `H2O.__fits_bcrypt`.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__fits_bcrypt", fits_bcrypt)
}

/// The method `__fits_bcrypt(password, hash)` returns whether `hash` is a bcrypt hash (as of crypt(3)) of the password.
/// No password fits a malformed hash.
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
