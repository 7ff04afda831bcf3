//! Methods by which scripts wait: for some time, or for another strand (fiber).

use std::cell::RefCell;
use std::time::Duration;

use h2o_mruby::{Leave, Ticket, Value, Vm};

use super::machine::Host;

/// A strand (fiber) that waits until another strand resumes it.
#[derive(Default)]
struct Parked(RefCell<Option<Ticket>>);

/// Defines the method `sleep`, and the Ruby base of `H2O::Channel`.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let kernel = vm.constant(None, "Kernel")?;
    vm.define(kernel, "sleep", sleep)?;

    let module = vm.module(None, "H2O")?;
    let parked = vm.object_class(Some(module), "Parked")?;
    vm.define_singleton(parked, "new", |vm, call| {
        vm.object(call.receiver, Parked::default())
            .map_err(Leave::Raise)
    })?;
    // The entry comes into the list only if the strand may wait: nobody removes the entry of one that goes on at once with an exception.
    vm.define(parked, "wait_in", |vm, call| {
        let [list] = call.arguments.exactly()?;
        let ticket = vm.suspend_for(call.receiver)?;
        vm.with_object(call.receiver, |parked: &Parked| {
            *parked.0.borrow_mut() = Some(ticket);
        })?;
        vm.call(list, "push", &[call.receiver])
            .map_err(Leave::Raise)?;
        Err(Leave::Wait)
    })?;
    vm.define(parked, "resume", |vm, call| {
        let ticket = vm.with_object(call.receiver, |parked: &Parked| {
            parked.0.borrow_mut().take()
        })?;
        if let Some(ticket) = ticket {
            vm.resume(ticket, |_| Value::nil());
        }
        Ok(Value::nil())
    })
}

fn sleep(vm: &Vm, call: &h2o_mruby::Call<'_>) -> Result<Value, Leave> {
    let arguments = call.arguments.between(0, 1)?;
    if arguments.all().is_empty() {
        // Without an argument, `sleep` makes the strand (fiber) wait for ever, because no code resumes it.
        drop(vm.suspend()?);
        return Err(Leave::Wait);
    }
    let value = arguments.get(0);
    let seconds = match value.as_float() {
        Some(seconds) => seconds,
        None if vm.responds_to(value, "to_f") => {
            let converted = vm.call(value, "to_f", &[]).map_err(Leave::Raise)?;
            converted.as_float().unwrap_or(0.0)
        }
        None => {
            return Err(Leave::argument(
                "the argument of the sleep function must respond to 'to_f' method",
            ));
        }
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is not negative, and the cast saturates"
    )]
    let time = Duration::from_millis((seconds.max(0.0) * 1000.0) as u64);
    // A longer time is reduced to one year, which timers can count.
    let time = time.min(Duration::from_secs(86_400 * 365));
    let worker = Host::worker(vm)?;
    let ticket = vm.suspend()?;
    let vm = vm.reference();
    let host = std::rc::Rc::clone(&worker);
    worker.spawn(async move {
        let begun = host.clock.now();
        host.sleep(time).await;
        let passed = host.clock.now().saturating_duration_since(begun).as_secs();
        if let Some(vm) = vm.upgrade() {
            vm.resume(ticket, |vm| {
                let passed = i64::try_from(passed).unwrap_or(i64::MAX);
                vm.integer(passed).unwrap_or_else(|exception| exception)
            });
        }
    });
    Err(Leave::Wait)
}
