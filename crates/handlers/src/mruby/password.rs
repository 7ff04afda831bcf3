//! Passwords whose hashes take long on purpose: checked by other threads, while the script waits.

use std::rc::Rc;

use h2o_mruby::{Call, Leave, Value, Vm};
use tokio::sync::Semaphore;

use super::machine::Host;

/// Passwords that a worker has checked at a time: each takes a processor for that long. More wait in turn.
const AT_ONCE: usize = 2;

struct Turns(Rc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Rc::new(Semaphore::new(AT_ONCE)))
    }
}

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
    let check = move || bcrypt::verify(password, &hash).unwrap_or(false);
    let worker = Host::worker(vm)?;
    let ticket = vm.suspend()?;
    let turns = Rc::clone(&vm.local::<Turns>().0);
    let vm = vm.reference();
    worker.spawn(async move {
        let turn = turns.acquire().await;
        let fits = tokio::task::spawn_blocking(check).await.unwrap_or(false);
        drop(turn);
        if let Some(vm) = vm.upgrade() {
            vm.resume(ticket, |_| Value::boolean(fits));
        }
    });
    Err(Leave::Wait)
}
