//! Takes a request to its response: runs handlers and filters, follows internal redirects, writes the log lines.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{
    Continuation, Exchange, ExchangeRef, FilterResult, LinkHeaderUse, LocalBoxFuture, Outcome,
    RequestBody, Reroute, Response, SubRequestStart, Worker,
};
use h2o_handlers::push;
use h2o_http::{BodyLength, Known, StatusCode};

use crate::request::error_page;
use crate::request::reroute::{RerouteTarget, reroute};

/// Result of running the handlers of a request.
pub(crate) enum Progress {
    /// The final response, after all filters.
    Response(Response),
    /// The handler answered 425 to a request from TLS early data. If the request can be rerun after the handshake, this
    /// response is dropped; its filters have not run.
    TooEarly(Response),
    /// A handler has not answered yet.
    Waiting(WaitingHandler),
}

/// A handler that has not answered yet, with the work that follows its answer.
pub(crate) struct WaitingHandler {
    future: LocalBoxFuture<Outcome>,
    /// Index of the handler to run next if this one declines the request.
    next: usize,
    /// Functions of the handlers that asked to see the response of the handlers after them. They run once that response is there,
    /// the last one first.
    continuations: Vec<Continuation>,
}

/// Whether the client accepts interim responses: it does not if it has sent `no-early-hints: 1`.
pub(crate) fn wants_informational(exchange: &Exchange) -> bool {
    exchange.request.headers.get(Known::NoEarlyHints) != Some(b"1")
}

/// Runs the handlers of the request's path, except the guards that have already let the request through.
#[inline]
pub(crate) fn start(worker: &Worker, exchange: &ExchangeRef) -> Progress {
    let first = {
        let exchange = exchange.borrow();
        match exchange.has_passed_guards {
            true => exchange.site.path(exchange.route).guards as usize,
            false => 0,
        }
    };
    start_at(worker, exchange, first)
}

/// Runs the handlers of the request's path, beginning with the one of index `first`.
#[inline]
pub(super) fn start_at(worker: &Worker, exchange: &ExchangeRef, first: usize) -> Progress {
    let outcome = {
        let exchange = &mut *exchange.borrow_mut();
        let outcome = run_handlers(exchange, first);
        if let (Outcome::Done(mut response), _) = outcome {
            // The path has no filters and nothing was redirected, so the response needs no further steps.
            if is_final(exchange, &response) {
                if !exchange.request.is_tunnel_opened_by(response.status) {
                    add_alt_svc(exchange, &mut response);
                }
                error_page::apply(exchange, &mut response);
                exchange.sent.first_status.get_or_insert(response.status);
                return Progress::Response(response);
            }
            (Outcome::Done(response), outcome.1)
        } else {
            outcome
        }
    };
    run_to_response(worker, exchange, outcome, Vec::new())
}

/// Adds the `alt-svc` header of a host that has a QUIC listener, unless the response has one of its own.
#[inline]
fn add_alt_svc(exchange: &Exchange, response: &mut Response) {
    if let Some(alt_svc) = &exchange.site.host(exchange.route).alt_svc
        && response.headers.get(Known::AltSvc).is_none()
    {
        response.headers.push(Known::AltSvc, alt_svc);
    }
}

/// Whether [`run_to_response`] and [`filter`] would do nothing with the response except to note its status.
fn is_final(exchange: &Exchange, response: &Response) -> bool {
    let path = exchange.site.path(exchange.route);
    path.filters.is_empty()
        && !path.keep_unfiltered
        && !exchange.is_early
        && exchange.restore.is_none()
        && exchange.saved_headers.is_none()
        && response.links == h2o_exchange::LinkHeaderUse::Plain
}

/// Answers a request without running its handlers; the filters of its path run.
pub(crate) fn answer(worker: &Worker, exchange: &ExchangeRef, response: Response) -> Progress {
    run_to_response(
        worker,
        exchange,
        (Outcome::Done(response), usize::MAX),
        Vec::new(),
    )
}

/// Polls the handler that a request waits for.
pub(crate) fn resume(
    worker: &Worker,
    exchange: &ExchangeRef,
    mut waiting: WaitingHandler,
    task: &mut TaskContext<'_>,
) -> Progress {
    loop {
        let polled = fenced(worker, || waiting.future.as_mut().poll(task));
        let outcome = match polled {
            Ok(Poll::Pending) => {
                add_early_hints(&mut exchange.borrow_mut(), waiting.next);
                return Progress::Waiting(waiting);
            }
            Ok(Poll::Ready(Outcome::Declined)) => {
                run_handlers(&mut exchange.borrow_mut(), waiting.next)
            }
            Ok(Poll::Ready(outcome)) => (outcome, waiting.next),
            Err(response) => (Outcome::Done(*response), waiting.next),
        };
        let continuations = std::mem::take(&mut waiting.continuations);
        match run_to_response(worker, exchange, outcome, continuations) {
            // The next handler has no answer yet, either. Its future must be polled once: otherwise it would have no waker, and the request
            // would wait for ever.
            Progress::Waiting(next) => waiting = next,
            progress @ (Progress::Response(_) | Progress::TooEarly(_)) => return progress,
        }
    }
}

/// Waits for the response to a request that belongs to no connection; for other requests, the connection polls the handler.
pub(crate) async fn finished(
    worker: &Worker,
    exchange: &ExchangeRef,
    mut progress: Progress,
) -> Response {
    loop {
        let mut waiting = match progress {
            Progress::Response(response) | Progress::TooEarly(response) => return response,
            Progress::Waiting(waiting) => Some(waiting),
        };
        let resumed = poll_fn(|task| {
            let Some(handler) = waiting.take() else {
                return Poll::Pending;
            };
            match resume(worker, exchange, handler, task) {
                Progress::Waiting(handler) => {
                    waiting = Some(handler);
                    Poll::Pending
                }
                done @ (Progress::Response(_) | Progress::TooEarly(_)) => Poll::Ready(done),
            }
        });
        progress = resumed.await;
    }
}

/// Sends the early hints (103) of the path, once per request, because the client has to wait for the handler before index `next`.
fn add_early_hints(exchange: &mut Exchange, next: usize) {
    let path = exchange.site.path(exchange.route);
    let Some(fields) = path.early_hints.as_ref().filter(|_| !exchange.is_hinted) else {
        return;
    };
    // Without a handler at this index, the request waits for an upstream server that an internal redirect has named.
    let handler = path.handlers.get(next.wrapping_sub(1));
    let waits = handler.is_none_or(|handler| handler.waits_for_backend());
    if waits && exchange.request.body != BodyLength::Tunnel {
        let hints = (StatusCode::EARLY_HINTS, fields.clone());
        exchange.informational.push(hints);
        exchange.is_hinted = true;
    }
}

/// Runs the handlers, beginning with the one of index `first`, until one of them answers.
fn run_handlers(exchange: &mut Exchange, first: usize) -> (Outcome, usize) {
    let site = Rc::clone(&exchange.site);
    if let Some(response) = refuse_misdirected(exchange) {
        return (Outcome::Done(response), usize::MAX);
    }
    let handlers = &site.path(exchange.route).handlers;
    for (number, handler) in handlers.iter().enumerate().skip(first) {
        exchange.handler = number;
        let asked = catch_unwind(AssertUnwindSafe(|| handler.on_request(exchange)));
        match asked {
            Ok(Outcome::Declined) => {}
            Ok(outcome) => return (outcome, number + 1),
            Err(_) => return (Outcome::Done(on_panic(&exchange.worker)), number + 1),
        }
    }
    exchange.worker.counters.count_status(StatusCode::NOT_FOUND);
    (Outcome::Done(Response::not_found()), handlers.len())
}

/// Returns the response 421 (RFC 9110 §15.5.20) if the request may not be served over this connection: its scheme differs from the
/// connection's, or its host requires a client certificate that this connection's handshake did not ask for. The client may retry
/// over a new connection.
#[inline]
pub(crate) fn refuse_misdirected(exchange: &mut Exchange) -> Option<Response> {
    let host = exchange.site.host(exchange.route);
    if !exchange.is_misdirected && !host.is_closed_to(&exchange.connection) {
        return None;
    }
    // A sub-request of a handler is not refused: the client's request behind it was checked before its handlers ran.
    if let Some(SubRequestStart::Handler(_)) = sub_request_start(exchange) {
        return None;
    }
    Some(misdirected(exchange))
}

fn sub_request_start(exchange: &Exchange) -> Option<SubRequestStart> {
    exchange.sub_request.as_ref().map(|request| request.start)
}

#[cold]
fn misdirected(exchange: &mut Exchange) -> Response {
    // `is_misdirected` is cleared, so that an error document can be served: the internal request for it has the refused scheme, too.
    let (note, text) = if std::mem::take(&mut exchange.is_misdirected) {
        (
            "the request names another scheme (http or https) than the connection has",
            "the request names another scheme (http or https) than the connection has",
        )
    } else {
        (
            "the host requires a client certificate (client-ca-file), which the TLS handshake of this connection did not request",
            "this host requires a client certificate: open a new connection to it by its name",
        )
    };
    let status = StatusCode::MISDIRECTED_REQUEST;
    exchange.worker.counters.count_status(status);
    exchange.note_error("core", note);
    Response::error(status, "Misdirected Request", text)
}

/// Runs handlers and filters until there is a response or something to wait for.
fn run_to_response(
    worker: &Worker,
    exchange: &ExchangeRef,
    outcome: (Outcome, usize),
    mut continuations: Vec<Continuation>,
) -> Progress {
    let (mut outcome, mut next) = outcome;
    loop {
        let order = match outcome {
            // The handler has not answered: the connection polls its future later, with the waker of the request.
            Outcome::Later(future) => {
                return Progress::Waiting(WaitingHandler {
                    future,
                    next,
                    continuations,
                });
            }
            Outcome::Next(continuation) => {
                continuations.push(continuation);
                (outcome, next) = run_handlers(&mut exchange.borrow_mut(), next);
                continue;
            }
            Outcome::Done(response) if response.is_refusal => {
                return Progress::Response(response);
            }
            Outcome::Done(response) => {
                let exchange = &mut exchange.borrow_mut();
                if response.status == StatusCode::TOO_EARLY && is_too_early(exchange) {
                    return Progress::TooEarly(response);
                }
                if let Some(continuation) = continuations.pop() {
                    let run = || continuation(exchange, response);
                    outcome = fenced(worker, run).unwrap_or_else(|answer| Outcome::Done(*answer));
                    // If this continuation (the function of a handler that has asked to see the response) does not answer, no handler is
                    // left to run.
                    next = usize::MAX;
                    continue;
                }
                match filter(worker, exchange, response) {
                    Ok(response) => return Progress::Response(response),
                    Err(order) => order,
                }
            }
            Outcome::Reroute(order) => order,
            // A handler saw the response of the handlers after it and then declined the request. Those have run already, so that no
            // handler is left.
            Outcome::Declined => {
                (outcome, next) = run_handlers(&mut exchange.borrow_mut(), usize::MAX);
                continue;
            }
        };
        let exchange = &mut exchange.borrow_mut();
        (outcome, next) = match reroute(exchange, order) {
            Ok(RerouteTarget::Handlers) => run_handlers(exchange, 0),
            Ok(RerouteTarget::Successor(successor)) => {
                let asked = fenced(worker, || successor(exchange));
                let outcome = asked.unwrap_or_else(|response| Outcome::Done(*response));
                (outcome, usize::MAX)
            }
            Err(response) => (Outcome::Done(*response), usize::MAX),
        };
    }
}

/// Whether the handler answered 425 because this server told it that the request came in early data. Only then may the request
/// be rerun (RFC 8470 §5.2).
fn is_too_early(exchange: &Exchange) -> bool {
    exchange.is_early
        && exchange.protocol.is_multiplexed()
        // The 425 may come from another server, to which an internal redirect has sent the request.
        && !exchange.is_delegated
        && exchange.request.headers.get(Known::EarlyData).is_none()
}

/// Runs the filters of the request's path on the response. The error is an internal redirect that a filter asks for.
fn filter(
    worker: &Worker,
    exchange: &mut Exchange,
    mut response: Response,
) -> Result<Response, Reroute> {
    exchange.premise = None;
    if let Some(restore) = exchange.restore.take() {
        // For the access log, the first status of the request is that of the error document.
        exchange.sent.first_status = Some(response.status);
        if fenced(worker, || restore(exchange, &mut response)).is_err() {
            response = panicked();
        }
    } else {
        exchange.sent.first_status.get_or_insert(response.status);
    }
    let site = Rc::clone(&exchange.site);
    let path = site.path(exchange.route);
    if path.keep_unfiltered {
        exchange.sent.unfiltered = Some(response.headers.clone());
    }
    // H2O compatibility: H2O runs no filters on a response that opens a tunnel.
    if exchange.request.is_tunnel_opened_by(response.status) {
        return Ok(response);
    }
    // `alt-svc` is added before the filters run, so that the `header.*` directives can replace it.
    add_alt_svc(exchange, &mut response);
    if response.links != LinkHeaderUse::Plain
        // Only a response to the client's own request, not one to a sub-request, can carry its pushes.
        && exchange.sub_request.is_none()
        && let Err(answer) = fenced(worker, || push::collect(exchange, &mut response))
    {
        response = *answer;
    }
    let skips_filters = matches!(
        sub_request_start(exchange),
        Some(SubRequestStart::Handler(_))
    );
    for filter in path.filters.iter().filter(|_| !skips_filters) {
        match fenced(worker, || filter.on_response(exchange, &mut response)) {
            Ok(FilterResult::Continue) => {}
            Ok(FilterResult::Reroute(order)) => return Err(order),
            Err(answer) => {
                response = *answer;
                break;
            }
        }
    }
    // No handler will read the request body any more, so it is dropped, or no longer kept for another handler.
    match &exchange.body {
        RequestBody::Stream(pipe) => pipe.stop_keeping(),
        RequestBody::Bytes(_) | RequestBody::File(_) => exchange.body = RequestBody::None,
        RequestBody::None => {}
    }
    if let Some(fields) = exchange.saved_headers.take() {
        exchange.request = exchange.request.rebuilt(
            &fields,
            exchange.request.authority(),
            exchange.request.target(),
        );
    }
    error_page::apply(exchange, &mut response);
    Ok(response)
}

/// Calls `run`, which is code of a handler or filter. If it panics, the result is a response 500, and no other request is affected.
pub(super) fn fenced<T>(worker: &Worker, run: impl FnOnce() -> T) -> Result<T, Box<Response>> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| Box::new(on_panic(worker)))
}

fn on_panic(worker: &h2o_exchange::Worker) -> Response {
    worker.counters.count(h2o_exchange::Counter::Panics);
    worker
        .counters
        .count_status(StatusCode::INTERNAL_SERVER_ERROR);
    panicked()
}

fn panicked() -> Response {
    Response::error(
        StatusCode::INTERNAL_SERVER_ERROR,
        "Internal Server Error",
        "internal server error",
    )
}

/// Adds the `date` field that final responses must have (RFC 9110 §6.6.1), unless it is present. Handlers with prepared fields put
/// `date` first, where the lookup finds it at once.
#[inline]
pub(crate) fn add_date(worker: &Worker, response: &mut Response) {
    let is_due = !response.is_undated && !response.status.is_informational();
    if is_due && response.headers.get(Known::Date).is_none() {
        response.headers.push(Known::Date, &worker.clock.date());
    }
}

/// Counts a request that is over, and writes its log lines.
pub(crate) fn log(exchange: &Exchange) {
    exchange.worker.counters.count_request(exchange.sent.status);
    for logger in &exchange.site.path(exchange.route).loggers {
        // A logger that panics loses only its own log line.
        let _ = catch_unwind(AssertUnwindSafe(|| logger.log(exchange)));
    }
}
