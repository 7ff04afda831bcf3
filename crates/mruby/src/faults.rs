//! Panics on demand, for tests: each Rust function that Ruby can call panics once.

use std::cell::Cell;

use crate::Vm;
use crate::ffi::Op;

thread_local! {
    static NEXT: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Panics if the function with this number is the one that the test wants to panic now.
pub(crate) fn strike(number: i64) {
    if NEXT.get() == Some(number) {
        NEXT.set(None);
        panic!("on purpose");
    }
}

/// Number of Rust functions that Ruby can call in the VM.
#[must_use]
pub fn count(vm: &Vm) -> usize {
    vm.functions.borrow().len()
}

/// Makes every Rust function of the VM panic in turn. A script calls the function by the name `probe`; a function that every script calls
/// panics when it is called for that script. `run` evaluates a Ruby text, and returns its value or its exception as text. Returns the
/// number of functions.
///
/// # Errors
/// Descriptions of the functions whose panic was not reported as an exception, or after which the VM did not work.
pub fn panic_in_each_function(
    vm: &Vm,
    mut run: impl FnMut(&str) -> String,
) -> Result<usize, Vec<String>> {
    const CALL: &str = "$ran = 0; begin; probe; rescue => e; $ran = 1; e.message; end";
    const AFTER: &str = "[1].map { |x| x.to_s + JSON.generate([x]) }.join";
    let mut wrong = Vec::new();
    let count = count(vm);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    for number in 0..count {
        let defined = vm.scope(|| {
            let kernel = vm.constant(None, "Kernel")?;
            vm.run(Op::Define, |work| {
                (work.text, work.len) = ("probe".as_ptr(), 5);
                (work.a, work.count) = (kernel.0, number);
            })
        });
        NEXT.set(i64::try_from(number).ok());
        let got = run(CALL);
        if defined.is_err() || NEXT.take().is_some() {
            wrong.push(format!(
                "the Ruby method did not call the Rust function {number}"
            ));
        }
        if !got.contains("panic: on purpose") {
            wrong.push(format!(
                "the panic of the Rust function {number} is not the exception in Ruby: {got}"
            ));
        }
        // Several scripts run after the panic, because one script can leave something broken for the next.
        for _ in 0..3 {
            let after = run(AFTER);
            if !after.contains("1[1]") {
                wrong.push(format!(
                    "a script fails after the panic of the Rust function {number}: {after}"
                ));
            }
        }
    }
    std::panic::set_hook(hook);
    if wrong.is_empty() {
        Ok(count)
    } else {
        Err(wrong)
    }
}
