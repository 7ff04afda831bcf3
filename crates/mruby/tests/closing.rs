//! Test that a closed VM returns its memory to the system. It is alone in its process, since it measures the memory of the
//! whole process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::rc::Rc;

use h2o_mruby::{Finish, Leave, Options, Value, Vm};

struct Ignored;

impl Finish for Ignored {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        if let Err(exception) = result {
            panic!("the script has raised: {}", vm.describe(exception));
        }
        Ok(())
    }
}

/// A VM with a script that keeps `count` strings of up to 600 octets.
fn vm_with_strings(count: usize) -> Rc<Vm> {
    let vm = Vm::open(Options::default()).unwrap();
    vm.scope(|| {
        let text = format!("$kept = Array.new({count}) {{ |i| i.to_s * 100 }}");
        let Ok(script) = vm.compile(&text, "test.rb", 1) else {
            panic!("the script is well-formed");
        };
        vm.evaluate(script, 1, Rc::new(Ignored));
    });
    vm
}

/// Resident memory of the process in MB.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() / 1_000_000
}

#[test]
fn the_memory_of_a_closed_vm_goes_back_to_the_system() {
    let before = resident();
    let old = vm_with_strings(100_000);
    // The second VM allocates behind the first, so that the C library cannot return the first VM's memory by merely
    // shortening its heap.
    let new = vm_with_strings(100);
    let full = resident();
    assert!(
        full > before + 30,
        "memory grows by more than 30 MB: {before} -> {full} MB"
    );
    drop(old);
    let after = resident();
    assert!(
        after < before + 10,
        "closing the VM frees its memory: {before} -> {full} -> {after} MB"
    );
    drop(new);
}
