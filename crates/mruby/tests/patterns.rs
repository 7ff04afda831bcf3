//! The memory of compiled regular expressions counts towards a VM's memory limit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;
use std::cell::RefCell;
use std::rc::Rc;

use h2o_mruby::{Finish, Leave, Metered, Options, Value, Vm};

#[global_allocator]
static ALLOCATOR: Metered<System> = Metered(System);

const LIMIT: usize = 32 * 1024 * 1024;

#[derive(Default)]
struct Seen(RefCell<String>);

impl Finish for Seen {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        *self.0.borrow_mut() = match result {
            Ok(value) => String::from_utf8_lossy(&vm.text_of(value).unwrap()).into_owned(),
            Err(exception) => vm.describe(exception),
        };
        Ok(())
    }
}

/// The value or exception with which a script ends, as text.
fn evaluate(vm: &Vm, text: &str) -> String {
    let seen = Rc::new(Seen::default());
    vm.scope(|| {
        let script = vm.compile(text, "test.rb", 1).unwrap();
        vm.evaluate(script, 1, Rc::clone(&seen) as Rc<dyn Finish>);
    });
    seen.0.take()
}

fn open() -> Rc<Vm> {
    let options = Options {
        memory_limit: LIMIT,
        ..Options::default()
    };
    Vm::open(options).unwrap()
}

#[test]
fn a_script_that_keeps_patterns_reaches_the_limit_of_memory() {
    let vm = open();
    let before = vm.memory();
    let text = "a = []; 20_000.times { |i| a << Regexp.new(\"x#{i}(a|b)*[c-z]+\") }; 'no limit'";
    let ended = evaluate(&vm, text);
    assert!(ended.contains("(NoMemoryError) at test.rb:1"), "{ended}");
    assert_eq!(evaluate(&vm, "/a+b/.match?('xaab').to_s"), "true");
    let after = vm.memory();
    assert!(after < before + LIMIT / 8, "{before} -> {after}");
}

#[test]
fn patterns_that_nobody_keeps_are_no_reason_to_stop_a_script() {
    let vm = open();
    let text = "20_000.times { |i| Regexp.new(\"x#{i}(a|b)*[c-z]+\") }; 'done'";
    assert_eq!(evaluate(&vm, text), "done");
    // The VM keeps the compiled regular expressions of literals, within a share of its limit.
    let text = "20_000.times { |i| /x#{i}(a|b)*[c-z]+/.match?('xab') }; 'done'";
    assert_eq!(evaluate(&vm, text), "done");
}

#[test]
fn what_searches_add_to_a_pattern_counts() {
    let vm = open();
    evaluate(&vm, "$pattern = /(x|y|[a-f]+)*z(a|b|c){1,20}$/; 'made'");
    let before = vm.memory();
    let text = "$pattern.match?('xyabc' * 100 + 'zabcabc'); $pattern.match('axyz'); 'done'";
    assert_eq!(evaluate(&vm, text), "done");
    let after = vm.memory();
    assert!(after > before + 1000, "{before} -> {after}");
    evaluate(&vm, "$pattern = nil; 'gone'");
    let total = Rc::new(std::cell::Cell::new(0));
    vm.report_memory_to(Rc::clone(&total));
    assert_eq!(total.get(), vm.memory());
    evaluate(&vm, "$text = 'x' * 1_000_000");
    assert_eq!(total.get(), vm.memory());
    drop(vm);
    assert_eq!(total.get(), 0);
}
