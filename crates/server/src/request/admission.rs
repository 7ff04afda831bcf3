//! Decides what happens to a request whose head is complete, by rules for every protocol version.

use h2o_exchange::{BodyUse, Exchange, Response};
use h2o_http::{BodyLength, StatusCode};

use super::collect::Collector;
use super::guards::{self, Guarded, WaitingGuard};
use super::{answers, routing, serve};
use crate::context::Context;
use crate::setup::Setup;

/// What happens next to a request.
pub(crate) enum Admission {
    /// Send this response without running the handlers. The server does not read the rest of the request.
    Refuse(Response),
    /// Run the handlers now.
    Start,
    /// Run the handlers now. None of them reads the body that is still to come.
    StartUnwanted,
    /// Run the handlers now. What the client sends behind the head of the request is for the tunnel that one of the handlers
    /// may open.
    Tunnel,
    /// Run the handlers once the whole body of the request has come.
    Collect(Collector),
    /// Like [`Admission::Collect`], once this guard of the path has let the request through.
    CollectOnceGuarded(Collector, WaitingGuard),
    /// Run the handlers once the first bytes of the body have come; they pull the rest.
    Stream,
    /// Like [`Admission::Stream`], but run the handlers now: one of them decides whether the client may send the body (100
    /// Continue).
    StreamOnceAsked,
}

/// A body that has not been received completely.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    /// Whether the client waits for 100 (Continue) before it sends the body.
    pub(crate) expects_continue: bool,
    /// Whether some of the body has come although the client said that it would wait.
    pub(crate) has_begun: bool,
}

/// Decides by head and route alone.
pub(crate) fn admit(
    context: &Context,
    setup: &Setup,
    exchange: &mut Exchange,
    pending: Option<Pending>,
) -> Admission {
    if context.memory.is_tight() {
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
    let body_use = routing::body_use(exchange);
    if asks_for_tunnel && body_use == BodyUse::Stream {
        return Admission::Tunnel;
    }
    if exchange.request.body == BodyLength::Tunnel {
        let text = "Method Not Allowed";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        return Admission::Refuse(answers::error(context, status, text, text));
    }
    let Some(pending) = pending else {
        return Admission::Start;
    };
    match body_use {
        // The client is told at once that it need not send the body.
        BodyUse::None if pending.expects_continue && !pending.has_begun => Admission::StartUnwanted,
        BodyUse::None => {
            let collector = Collector::unwanted(exchange.request.body);
            collector.map_or(Admission::StartUnwanted, Admission::Collect)
        }
        BodyUse::Stream if pending.expects_continue && routing::handles_expect(exchange) => {
            Admission::StreamOnceAsked
        }
        BodyUse::Stream => Admission::Stream,
        BodyUse::Whole => {
            let guard = match guards::run(exchange, 0) {
                Guarded::Passed => None,
                Guarded::Answered(response) => return Admission::Refuse(response),
                Guarded::Waiting(guard) => Some(guard),
            };
            let announced = exchange.request.body;
            if matches!(announced, BodyLength::Known(len) if len > setup.temp_buffer_max_size) {
                return Admission::Refuse(answers::too_large(context));
            }
            let collector = Collector::new(context, setup, announced);
            match guard {
                None => Admission::Collect(collector),
                Some(guard) => Admission::CollectOnceGuarded(collector, guard),
            }
        }
    }
}
