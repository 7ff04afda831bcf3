//! Runs the guards of a path (handlers that only refuse or let through) before the server collects the body of a request, so that a
//! refused client cannot fill the disk.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{Exchange, ExchangeRef, LocalBoxFuture, Outcome, Response};

use super::serve::fenced;

/// What the guards of a path decide about a request.
pub(super) enum Guarded {
    /// All guards have let the request through: its body may be collected.
    Passed,
    /// A guard has answered the request with this response.
    Answered(Response),
    /// A guard has not decided yet.
    Waiting(WaitingGuard),
}

/// A guard that has not decided about its request yet.
pub(crate) struct WaitingGuard {
    future: LocalBoxFuture<Outcome>,
    /// Index of the guard to run next if this one lets the request through.
    next: usize,
}

/// Runs the guards of the request's path, beginning with the one of index `first`.
pub(super) fn run(exchange: &mut Exchange, first: usize) -> Guarded {
    let site = Rc::clone(&exchange.site);
    let path = site.path(exchange.route);
    let worker = Rc::clone(&exchange.worker);
    let guards = path.handlers.iter().take(path.guards as usize).enumerate();
    for (number, guard) in guards.skip(first) {
        exchange.handler = number;
        match fenced(&worker, || guard.on_request(exchange)) {
            Ok(Outcome::Declined) => {}
            Ok(Outcome::Done(response)) => return Guarded::Answered(response),
            Err(response) => return Guarded::Answered(*response),
            Ok(Outcome::Later(future)) => {
                let next = number + 1;
                return Guarded::Waiting(WaitingGuard { future, next });
            }
            // The guard wants to see the response of the later handlers: it counts as passed here, and runs again together with
            // those handlers.
            Ok(Outcome::Next(_) | Outcome::Reroute(_)) => return Guarded::Passed,
        }
    }
    exchange.has_passed_guards = true;
    Guarded::Passed
}

impl WaitingGuard {
    /// Polls the waiting guard, and the guards after it once it has let the request through.
    pub(super) fn poll(mut self, exchange: &ExchangeRef, task: &mut TaskContext<'_>) -> Guarded {
        let worker = Rc::clone(&exchange.borrow().worker);
        loop {
            match fenced(&worker, || self.future.as_mut().poll(task)) {
                Ok(Poll::Pending) => return Guarded::Waiting(self),
                Ok(Poll::Ready(Outcome::Declined)) => {
                    match run(&mut exchange.borrow_mut(), self.next) {
                        // The next guard has to wait, too: its future must be polled once, so that it has a waker.
                        Guarded::Waiting(next) => self = next,
                        decided @ (Guarded::Passed | Guarded::Answered(_)) => return decided,
                    }
                }
                Ok(Poll::Ready(Outcome::Done(response))) => return Guarded::Answered(response),
                Err(response) => return Guarded::Answered(*response),
                Ok(Poll::Ready(Outcome::Later(_) | Outcome::Next(_) | Outcome::Reroute(_))) => {
                    return Guarded::Passed;
                }
            }
        }
    }
}
