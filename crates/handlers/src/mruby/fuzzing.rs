//! Entry points for fuzzing: responses that are made from the values that scripts return.

use std::rc::Rc;

use h2o_exchange::{Exchange, Outcome};
use h2o_mruby::{Leave, Options, Value, Vm};

use super::answer::{self, Answer};
use super::machine::{PARTS, PRELUDE};
use super::objects::RequestState;

/// Opens a Ruby VM with the same functions and Ruby library as the VMs of handlers.
///
/// # Panics
/// If the VM cannot be opened.
#[must_use]
pub fn script_vm() -> Rc<Vm> {
    let options = Options {
        parts: PARTS,
        prelude: PRELUDE,
        ..Options::default()
    };
    Vm::open(options).expect("the Ruby library can be used")
}

/// The outcome of a request whose script returns `value`.
pub fn script_outcome(vm: &Vm, exchange: &mut Exchange, value: Value) -> Outcome {
    let request = RequestState::new(exchange);
    let answer = answer::read(vm, value, &Rc::downgrade(&request)).unwrap_or_else(|left| {
        Answer::Raised(match left {
            Leave::Raise(exception) => vm.describe(exception),
            Leave::New(class, message) => format!("{message} ({class})"),
            Leave::Wait => "the answer waits".to_owned(),
        })
    });
    answer::deliver(exchange, &request, answer)
}
