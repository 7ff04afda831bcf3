//! Panics on demand, for tests: each function of Rust that Ruby can call panics once.

use std::cell::Cell;

use crate::Vm;
use crate::ffi::Op;

thread_local! {
    static NEXT: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Panics if the function is the one that is to panic now.
pub(crate) fn strike(number: i64) {
    if NEXT.get() == Some(number) {
        NEXT.set(None);
        panic!("on purpose");
    }
}

/// How many functions of Rust the VM has.
#[must_use]
pub fn count(vm: &Vm) -> usize {
    vm.functions.borrow().len()
}

/// Lets every function of the VM panic in turn, where a script calls it; those that every script calls panic there. `run` evaluates a
/// text and returns its value or its exception as text. Returns the number of functions.
///
/// # Errors
/// The functions whose panic was not reported as an exception, or after which the VM did not work.
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
            wrong.push(format!("{number} was not called"));
        }
        if !got.contains("panic: on purpose") {
            wrong.push(format!("{number} gave {got}"));
        }
        // More than once: what is kept for the next script may be broken.
        for _ in 0..3 {
            let after = run(AFTER);
            if !after.contains("1[1]") {
                wrong.push(format!("after {number}: {after}"));
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
