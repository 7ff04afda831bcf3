//! Decides what the server does with a request whose head is complete (run its handlers, collect its body first, refuse it), by the
//! same rules for every protocol version.

use h2o_exchange::{BodyUse, Exchange, Response};
use h2o_http::{BodyLength, StatusCode, Version};
use h2o_log::LineLimit;

use super::collect::Collector;
use super::guards::{self, Guarded, WaitingStep};
use super::{answers, routing, serve};
use crate::context::Context;
use crate::setup::Setup;

/// What the server does next with a request whose head is complete.
pub(crate) enum Admission {
    /// Send this response without running the handlers. The server does not read the rest of the request.
    Refuse(Response),
    /// A guard has answered the request. Its body is not read.
    Answered(Response),
    /// Run the handlers now: the body has come completely, or there is none.
    Start,
    /// Run the handlers now. None of them reads the request's body, which has not come completely.
    StartUnwanted,
    /// Run the handlers now. The bytes that the client sends after the head of the request belong to the tunnel that one of the
    /// handlers may open.
    Tunnel,
    /// Run the handlers once the whole body of the request has come.
    Collect(Collector),
    /// Like [`Admission::Collect`], but only after this step (such as a guard) has let the request through.
    CollectOnceGuarded(Collector, WaitingStep),
    /// Run the handlers once the first bytes of the body have come; the handlers pull the rest.
    Stream,
    /// Like [`Admission::Stream`], but only after this step has let the request through.
    StreamOnceGuarded(WaitingStep),
    /// Like [`Admission::Stream`], but run the handlers now: one of them decides whether the client may send the body (100
    /// Continue).
    StreamOnceAsked,
}

/// What the request table knows of a request body that has not come completely.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    /// Whether the client waits for 100 (Continue) before it sends the body.
    pub(crate) expects_continue: bool,
    /// Whether some of the body has come although the client announced that it would wait for 100 (Continue).
    pub(crate) has_begun: bool,
}

static REFUSED_FOR_MEMORY: LineLimit = LineLimit::per_minute(6);

/// Decides, from the head and the route of a request alone, what the server does with it.
pub(crate) fn admit(
    context: &Context,
    setup: &Setup,
    exchange: &mut Exchange,
    pending: Option<Pending>,
) -> Admission {
    if context.memory.is_tight() {
        if let Some(held_back) = REFUSED_FOR_MEMORY.admit() {
            h2o_log::report!(
                warning,
                "requests get 503, because the buffers of a worker hold more than 7/8 of its share of max-memory{held_back}"
            );
        }
        return Admission::Refuse(answers::no_room(context));
    }
    if pending.is_some()
        && let Some(response) = serve::refuse_misdirected(exchange)
    {
        return Admission::Refuse(response);
    }
    let asks_for_tunnel = exchange.request.asks_for_tunnel();
    if !asks_for_tunnel && pending.is_none() {
        return Admission::Start;
    }
    let mut waiting = None;
    if !asks_for_tunnel {
        match guards::settle_path(exchange) {
            Guarded::Passed => {}
            Guarded::Answered(response) => return Admission::Answered(response),
            Guarded::Waiting(step) => waiting = Some(step),
        }
    }
    // Handlers that want a whole body, such as scripts, see none here: they only decide whether the request gets to the one that opens
    // the tunnel.
    if asks_for_tunnel && routing::may_open_tunnel(exchange) {
        return Admission::Tunnel;
    }
    let body_use = routing::body_use(exchange);
    if exchange.request.body == BodyLength::Tunnel {
        let text = "Method Not Allowed";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        return Admission::Refuse(answers::error(context, status, text, text));
    }
    let Some(pending) = pending else {
        return Admission::Start;
    };
    let is_collected =
        !pending.expects_continue && is_kept_for_second_run(exchange, setup.temp_buffer_max_size);
    let body_use = match body_use {
        BodyUse::Stream if is_collected => BodyUse::Whole,
        other => other,
    };
    match body_use {
        // The response tells a client that waits for 100 (Continue) at once that it need not send the body.
        BodyUse::None if pending.expects_continue && !pending.has_begun => Admission::StartUnwanted,
        BodyUse::None => {
            let collector = Collector::unwanted(exchange.request.body);
            collector.map_or(Admission::StartUnwanted, Admission::Collect)
        }
        BodyUse::Stream | BodyUse::Whole => {
            let step = match waiting.map_or_else(|| guards::run(exchange, 0), Guarded::Waiting) {
                Guarded::Passed => None,
                Guarded::Answered(response) => return Admission::Answered(response),
                Guarded::Waiting(step) => Some(step),
            };
            match body_use {
                BodyUse::Whole => collect(context, setup, exchange.request.body, step),
                // An HTTP/1.0 client gets no interim response of a backend.
                _ if pending.expects_continue
                    && exchange.request.version != Version::Http10
                    && routing::handles_expect(exchange) =>
                {
                    Admission::StreamOnceAsked
                }
                _ => step.map_or(Admission::Stream, Admission::StreamOnceGuarded),
            }
        }
    }
}

/// Has a request's body collected, whose length is `announced`, once `step` has let the request through.
fn collect(
    context: &Context,
    setup: &Setup,
    announced: BodyLength,
    step: Option<WaitingStep>,
) -> Admission {
    if matches!(announced, BodyLength::Known(len) if len > setup.temp_buffer_max_size) {
        return Admission::Refuse(answers::too_large(context));
    }
    let collector = Collector::new(context, setup, announced);
    match step {
        None => Admission::Collect(collector),
        Some(step) => Admission::CollectOnceGuarded(collector, step),
    }
}

/// Largest number of bytes of a request body from TLS early data that is collected although its handler would pull it.
const KEPT_FOR_SECOND_RUN: u64 = 64 * 1024;

/// Whether the request may have to run again after the TLS handshake, and its body is short enough to be kept for that. A body of
/// unknown length is not: the client may wait for the response before it sends the rest. `max` is the largest body that may be
/// collected.
fn is_kept_for_second_run(exchange: &Exchange, max: u64) -> bool {
    exchange.is_early
        && matches!(exchange.request.body, BodyLength::Known(len) if len <= KEPT_FOR_SECOND_RUN.min(max))
}
