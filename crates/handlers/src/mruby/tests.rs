//! Tests of a Ruby VM with the functions and the Ruby library of handlers.

use std::cell::RefCell;
use std::rc::Rc;

use h2o_mruby::{Finish, Leave, Options, Value, Vm, faults};

use super::machine::{PARTS, PRELUDE};

/// The value or exception with which a script ended, as text.
#[derive(Default)]
struct Ended(RefCell<String>);

impl Finish for Ended {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        *self.0.borrow_mut() = match result {
            Ok(value) => String::from_utf8_lossy(&vm.text_of(value)?).into_owned(),
            Err(exception) => vm.describe(exception),
        };
        Ok(())
    }
}

#[test]
fn a_panic_in_any_function_that_scripts_call_costs_its_call() {
    let options = Options {
        parts: PARTS,
        prelude: PRELUDE,
        ..Options::default()
    };
    let vm = Vm::open(options).unwrap();
    let run = |text: &str| {
        let ended = Rc::new(Ended::default());
        // A script must evaluate to an object that can be called like a Rack application.
        let text = format!("$got = ({text}); lambda {{ |env| $got }}");
        vm.scope(|| match vm.compile(&text, "test.rb", 1) {
            Ok(code) => vm.evaluate(code, 1, Rc::clone(&ended) as Rc<dyn Finish>),
            Err(fault) => panic!("{fault:?}"),
        });
        let ended = ended.0.take();
        let got = vm.scope(|| vm.global("$got").and_then(|got| vm.text_of(got)));
        format!(
            "{ended} {}",
            String::from_utf8_lossy(&got.unwrap_or_default())
        )
    };
    let base = Vm::open(Options::default()).unwrap();
    let of_base = faults::count(&base);
    let count = faults::panic_in_each_function(&vm, run);
    let count = count.unwrap_or_else(|wrong| panic!("{}", wrong.join("\n")));
    assert!(
        count > of_base + 25,
        "{count} functions, {of_base} without handlers"
    );
}
