//! What becomes of a request whose head is complete: the rules that hold for every protocol version.

use h2o_exchange::{BodyUse, Exchange, Response};
use h2o_http::{BodyLength, StatusCode};

use super::collect::Collector;
use super::{answers, routing, serve};
use crate::context::Context;
use crate::setup::Setup;

/// What a driver does next with a request.
pub(crate) enum Admission {
    /// No handler is asked: the client gets this response. What it may still send of the request is not wanted.
    Refuse(Response),
    /// Handlers are asked at once.
    Start,
    /// Handlers are asked at once, none of which has a use for the content that is still to come.
    StartUnwanted,
    /// Handlers are asked at once; what the client sends from now on is for the tunnel that one of them may open.
    Tunnel,
    /// Handlers are asked when the whole of the content has come.
    Collect(Collector),
    /// Handlers are asked when the first of the content has come; the rest streams.
    Stream,
    /// As [`Admission::Stream`], but the handler is asked at once: it will say whether the client may send its content.
    StreamOnceAsked,
}

/// Content that is still to come.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    /// Whether the client wants to be told to go on before it sends it.
    pub(crate) expects_continue: bool,
    /// Whether some of it has come all the same.
    pub(crate) has_begun: bool,
}

/// Decides by head, route and method alone.
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
        // The client is to hear at once that it need not send it.
        BodyUse::None if pending.expects_continue && !pending.has_begun => Admission::StartUnwanted,
        BodyUse::None => {
            let collector = Collector::unwanted(exchange.request.body);
            collector.map_or(Admission::StartUnwanted, Admission::Collect)
        }
        BodyUse::Stream if pending.expects_continue && routing::handles_expect(exchange) => {
            Admission::StreamOnceAsked
        }
        BodyUse::Stream => Admission::Stream,
        BodyUse::Whole => match exchange.request.body {
            BodyLength::Known(len) if len > setup.temp_buffer_max_size => {
                Admission::Refuse(answers::too_large(context))
            }
            announced => Admission::Collect(Collector::new(context, setup, announced)),
        },
    }
}
