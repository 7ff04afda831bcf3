//! Decides, before the server collects the body of a request or a handler pulls it, whether it may: runs the guards of the request's path
//! (handlers that only refuse or let through), so that a refused client need not send the body and cannot fill the disk. Internal
//! redirects that the head of the request alone decides, such as those of `rewrite` and `file.try-files`, are carried out before, so
//! that the guards of their target run, too.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{EarlyReroute, Exchange, ExchangeRef, LocalBoxFuture, Outcome, Response};

use super::reroute::reroute_early;
use super::serve::fenced;

/// What the guards of a path decide about a request.
pub(super) enum Guarded {
    /// All guards have let the request through: its body may be collected.
    Passed,
    /// A guard has answered the request with this response.
    Answered(Response),
    /// The decision is not there yet.
    Waiting(WaitingStep),
}

/// What a request waits for before its body may be collected.
pub(crate) enum WaitingStep {
    /// A guard that has not decided yet.
    Guard {
        future: LocalBoxFuture<Outcome>,
        /// Index of the guard to run next if this one lets the request through.
        next: usize,
    },
    /// A handler behind the guards, which have let the request through, looks at the disk to know whether it redirects the request.
    LookUp {
        future: LocalBoxFuture<EarlyReroute>,
        /// Index of the handler.
        handler: usize,
    },
}

/// Carries out the internal redirects that the head of the request alone decides, each after the guards of its path have let the request
/// through. Does not run the guards of the path where the redirects end.
pub(super) fn settle_path(exchange: &mut Exchange) -> Guarded {
    settle_from(exchange, 0)
}

/// As [`settle_path`]; the handlers of the path behind the guards, up to that of index `from`, decline the request.
fn settle_from(exchange: &mut Exchange, mut from: usize) -> Guarded {
    loop {
        let site = Rc::clone(&exchange.site);
        let path = site.path(exchange.route);
        let handler = from.max(path.guards as usize);
        let Some(next) = path.handlers.get(handler) else {
            return Guarded::Passed;
        };
        match next.early_reroute(exchange) {
            EarlyReroute::None => return Guarded::Passed,
            EarlyReroute::Declines => from = handler + 1,
            order @ (EarlyReroute::Now(_) | EarlyReroute::Later(_)) => {
                if !exchange.has_passed_guards {
                    match run(exchange, 0) {
                        Guarded::Passed if exchange.has_passed_guards => {}
                        decided => return decided,
                    }
                }
                match order {
                    EarlyReroute::None | EarlyReroute::Declines => return Guarded::Passed,
                    EarlyReroute::Later(future) => {
                        return Guarded::Waiting(WaitingStep::LookUp { future, handler });
                    }
                    EarlyReroute::Now(order) => {
                        if let Err(response) = reroute_early(exchange, order) {
                            return Guarded::Answered(*response);
                        }
                        from = 0;
                    }
                }
            }
        }
    }
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
                return Guarded::Waiting(WaitingStep::Guard { future, next });
            }
            // The guard wants to see the response of the later handlers: it counts as passed here, and runs again together with
            // those handlers.
            Ok(Outcome::Next(_) | Outcome::Reroute(_)) => return Guarded::Passed,
        }
    }
    exchange.has_passed_guards = true;
    Guarded::Passed
}

/// Carries out the redirects that are due from the handler of index `from` on, and runs the guards of the path where they end.
fn settle_and_run(exchange: &mut Exchange, from: usize) -> Guarded {
    match settle_from(exchange, from) {
        Guarded::Passed if !exchange.has_passed_guards => run(exchange, 0),
        decided => decided,
    }
}

impl WaitingStep {
    /// Polls the guard or the handler that the request waits for. If it lets the request through, the next guards and redirects follow.
    pub(super) fn poll(mut self, exchange: &ExchangeRef, task: &mut TaskContext<'_>) -> Guarded {
        let worker = Rc::clone(&exchange.borrow().worker);
        loop {
            let decided = match &mut self {
                Self::Guard { future, next } => {
                    match fenced(&worker, || future.as_mut().poll(task)) {
                        Ok(Poll::Pending) => return Guarded::Waiting(self),
                        Ok(Poll::Ready(Outcome::Declined)) => {
                            let exchange = &mut *exchange.borrow_mut();
                            match run(exchange, *next) {
                                Guarded::Passed if exchange.has_passed_guards => {
                                    settle_and_run(exchange, 0)
                                }
                                decided => decided,
                            }
                        }
                        Ok(Poll::Ready(Outcome::Done(response))) => Guarded::Answered(response),
                        Err(response) => Guarded::Answered(*response),
                        Ok(Poll::Ready(
                            Outcome::Later(_) | Outcome::Next(_) | Outcome::Reroute(_),
                        )) => Guarded::Passed,
                    }
                }
                Self::LookUp { future, handler } => {
                    match fenced(&worker, || future.as_mut().poll(task)) {
                        Ok(Poll::Pending) => return Guarded::Waiting(self),
                        Ok(Poll::Ready(EarlyReroute::None)) => Guarded::Passed,
                        Ok(Poll::Ready(EarlyReroute::Declines)) => {
                            settle_and_run(&mut exchange.borrow_mut(), *handler + 1)
                        }
                        Ok(Poll::Ready(EarlyReroute::Now(order))) => {
                            let exchange = &mut *exchange.borrow_mut();
                            match reroute_early(exchange, order) {
                                Ok(()) => settle_and_run(exchange, 0),
                                Err(response) => Guarded::Answered(*response),
                            }
                        }
                        Ok(Poll::Ready(EarlyReroute::Later(look_up))) => {
                            *future = look_up;
                            continue;
                        }
                        Err(response) => Guarded::Answered(*response),
                    }
                }
            };
            match decided {
                // The next step that has not decided is polled at once: otherwise it would have no waker, and the request would wait for
                // ever.
                Guarded::Waiting(next) => self = next,
                Guarded::Passed | Guarded::Answered(_) => return decided,
            }
        }
    }
}
