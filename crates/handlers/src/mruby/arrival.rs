//! Results that arrive later, and the script or Rust code that waits for them.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use h2o_mruby::{Leave, Ticket, Value, Vm};

/// A function that turns a result into the value that the method `join` returns in Ruby.
pub(super) type ToRuby<T> = fn(&Vm, T) -> Result<Value, Value>;

/// A result that arrives later. It is taken only once: Ruby keeps the value that `join` has returned.
pub(super) struct Arrival<T>(Rc<RefCell<State<T>>>);

enum State<T> {
    Awaited(Option<Waiter<T>>),
    Arrived(T),
    Taken,
}

enum Waiter<T> {
    Strand(Ticket, ToRuby<T>),
    Other(Box<dyn FnOnce(T)>),
}

impl<T> Clone for Arrival<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Default for Arrival<T> {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(State::Awaited(None))))
    }
}

impl<T> Arrival<T> {
    /// Stores the result, or passes it to the script or Rust code that waits for it. Calls after the first one have no
    /// effect.
    pub(super) fn settle(&self, vm: &Weak<Vm>, result: T) {
        let before = self.0.replace(State::Taken);
        match before {
            State::Awaited(None) => drop(self.0.replace(State::Arrived(result))),
            State::Awaited(Some(Waiter::Strand(ticket, to_ruby))) => {
                if let Some(vm) = vm.upgrade() {
                    vm.resume(ticket, |vm| {
                        to_ruby(vm, result).unwrap_or_else(|exception| exception)
                    });
                }
            }
            State::Awaited(Some(Waiter::Other(take))) => take(result),
            settled @ (State::Arrived(_) | State::Taken) => drop(self.0.replace(settled)),
        }
    }

    /// Whether the result was taken: Ruby has it, or the function that waited for it.
    pub(super) fn is_taken(&self) -> bool {
        matches!(*self.0.borrow(), State::Taken)
    }

    /// Whether a strand (fiber) waits for the result.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(*self.0.borrow(), State::Awaited(Some(_)))
    }

    /// Passes the result to the function `take`, now or when it arrives. Nobody may wait for the result yet.
    pub(super) fn pass_to(&self, take: impl FnOnce(T) + 'static) {
        let before = self.0.replace(State::Taken);
        match before {
            State::Arrived(result) => take(result),
            State::Awaited(_) => {
                let waiter = Waiter::Other(Box::new(take));
                self.0.replace(State::Awaited(Some(waiter)));
            }
            State::Taken => {}
        }
    }

    /// Returns the result to Ruby. The strand (fiber) waits until the result is there.
    ///
    /// # Errors
    /// The exception `RuntimeError`, if another strand waits for the result.
    pub(super) fn join(&self, vm: &Vm, to_ruby: ToRuby<T>) -> Result<Value, Leave> {
        let before = self.0.replace(State::Taken);
        match before {
            State::Arrived(result) => to_ruby(vm, result).map_err(Leave::Raise),
            State::Awaited(None) => {
                let suspended = vm.suspend();
                let (waiter, left) = match suspended {
                    Ok(ticket) => (Some(Waiter::Strand(ticket, to_ruby)), Leave::Wait),
                    Err(refused) => (None, refused),
                };
                self.0.replace(State::Awaited(waiter));
                Err(left)
            }
            awaited @ State::Awaited(Some(_)) => {
                self.0.replace(awaited);
                Err(Leave::runtime("another fiber waits for this response"))
            }
            State::Taken => Err(Leave::runtime(
                "the response to this request has been read already",
            )),
        }
    }
}
