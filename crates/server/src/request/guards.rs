//! Runs the guards of a path before the body of its request is collected, so that a client they refuse cannot fill the disk.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{Exchange, ExchangeRef, LocalBoxFuture, Outcome, Response};

use super::run::send_continue;
use super::serve::fenced;
use super::slots::{Mark, Phase};
use super::{Requests, SlotId, Streams};
use crate::flow::Turn;

/// What the guards of a path say of a request.
pub(super) enum Guarded {
    /// Its body may be collected.
    Passed,
    /// A guard has answered it.
    Answered(Response),
    /// A guard decides later.
    Waiting(WaitingGuard),
}

/// A guard that decides later.
pub(crate) struct WaitingGuard {
    future: LocalBoxFuture<Outcome>,
    /// Number of the guard to run next if this one declines.
    next: usize,
}

/// Runs the guards of the request's path from number `first` on.
pub(super) fn run(exchange: &mut Exchange, first: usize) -> Guarded {
    let site = Rc::clone(&exchange.site);
    let path = site.path(exchange.route);
    let worker = Rc::clone(&exchange.worker);
    let guards = path.handlers.iter().take(path.guards).enumerate();
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
            // What it wants needs the handlers behind it: it runs again with them.
            Ok(Outcome::Next(_) | Outcome::Reroute(_)) => return Guarded::Passed,
        }
    }
    exchange.has_passed_guards = true;
    Guarded::Passed
}

impl WaitingGuard {
    fn poll(mut self, exchange: &ExchangeRef, task: &mut TaskContext<'_>) -> Guarded {
        let worker = Rc::clone(&exchange.borrow().worker);
        loop {
            match fenced(&worker, || self.future.as_mut().poll(task)) {
                Ok(Poll::Pending) => return Guarded::Waiting(self),
                Ok(Poll::Ready(Outcome::Declined)) => {
                    match run(&mut exchange.borrow_mut(), self.next) {
                        // The next guard decides later, too: poll its future for the first time.
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

impl Requests {
    /// Polls the guard that a request waits for, if any, before more of its body is collected. Whether all guards have let the
    /// request through.
    pub(super) fn pass_guards<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id) else {
            return false;
        };
        let Phase::Collecting(collecting) = &mut slot.phase else {
            return false;
        };
        let Some(guard) = collecting.guard.take() else {
            return true;
        };
        let waker = slot.waker(turn, id);
        let Some(exchange) = slot.exchange.clone() else {
            return false;
        };
        match guard.poll(&exchange, &mut TaskContext::from_waker(&waker)) {
            Guarded::Waiting(guard) => {
                if let Phase::Collecting(collecting) = &mut slot.phase {
                    collecting.guard = Some(guard);
                }
                // The client gets no window meanwhile.
                self.slots.mark(id, Mark::Waiting, true);
                false
            }
            Guarded::Answered(response) => {
                self.refuse(streams, turn, id, response);
                false
            }
            Guarded::Passed => {
                if std::mem::take(&mut slot.awaits_continue) {
                    send_continue(streams, turn, id, &exchange);
                }
                self.slots.mark(id, Mark::Waiting, false);
                true
            }
        }
    }
}
