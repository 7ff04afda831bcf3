//! Refuses malformed requests. The protocol engine writes most of the error responses by itself.

use h2o_exchange::{ExchangeRef, Protocol, Response, Timings};
use h2o_http::StatusCode;
use h2o_http1::{Answer, PeerError};

use super::Http1;
use crate::flow::{Flow, Turn};
use crate::request::routing;
use crate::request::{SlotId, StopReason};

/// The response to a request in clear text on a TLS listener.
const CLEAR_TEXT: Answer = Answer::Respond {
    status: StatusCode::BAD_REQUEST,
    reason: "Bad Request",
    body: "this port speaks HTTPS, and the request came in plain HTTP: use https:// in the URL\n",
};

impl Http1 {
    /// Answers a client that sent clear text where TLS is expected.
    pub(crate) fn refuse_clear_text(&mut self, turn: &mut Turn<'_>) {
        let exchange = turn.context.worker.spare_exchange();
        self.begin_unparsed(turn, &exchange);
        self.requests.enter(SlotId::ONLY, exchange);
        // The result is ignored: if the response cannot be sent, the next step of the connection finds it closed.
        let _ = self.refuse_with(turn, CLEAR_TEXT);
    }

    /// Answers a malformed request, and closes the connection.
    pub(super) fn refuse(&mut self, turn: &mut Turn<'_>, error: PeerError) -> Flow {
        match error.answer() {
            Answer::Respond {
                status,
                reason,
                body,
            } if error.is_of_content() && self.streams.engine.awaits_response() => {
                turn.context.worker.counters.count_status(status);
                let response = Response::error(status, reason, body);
                let reason = StopReason::Refused;
                self.requests
                    .refuse(&mut self.streams, turn, SlotId::ONLY, response, reason);
                self.send_output(turn)
            }
            answer => self.refuse_with(turn, answer),
        }
    }

    /// Answers a request that cannot be parsed, without handlers and filters, and closes the connection.
    fn refuse_with(&mut self, turn: &mut Turn<'_>, answer: Answer) -> Flow {
        self.streams.engine.error_response(
            answer,
            turn.connection.listener.setup.site.server_field.as_deref(),
            Some(&turn.context.worker.clock.date()),
            &mut turn.out,
        );
        self.streams.is_closing = true;
        self.streams.lingers = true;
        let Answer::Respond { status, body, .. } = answer else {
            self.requests.abandon(&self.streams);
            return Flow::Continue;
        };
        if turn.out.is_empty() {
            // Nothing was written: the response had begun before, and its output only has to be completed.
            return Flow::Continue;
        }
        turn.context.worker.counters.count_status(status);
        if let Some(exchange) = self.requests.exchange(SlotId::ONLY) {
            let exchange = &mut *exchange.borrow_mut();
            // The response to a HEAD request has no body.
            let body_len = if turn.out.ends_with(body.as_bytes()) {
                body.len()
            } else {
                0
            };
            exchange.sent.status = Some(status);
            exchange.sent.first_status = Some(status);
            exchange.sent.body_bytes = body_len as u64;
            exchange.sent.header_bytes += (turn.out.len() - body_len) as u64;
            exchange.timings.response_start = Some(turn.now);
        }
        self.requests.answered_by_engine(SlotId::ONLY);
        self.send_output(turn)
    }

    /// Begins the exchange of a request that could not be parsed, so that a log line can be written for it.
    pub(super) fn begin_unparsed(&self, turn: &mut Turn<'_>, exchange: &ExchangeRef) {
        let info = turn.connection.info();
        let context = turn.context;
        context
            .worker
            .begin(exchange, &turn.connection.listener.setup.site, &info);
        let exchange = &mut *exchange.borrow_mut();
        let engine = &self.streams.engine;
        exchange.timings = Timings::starting(engine.first_byte_at().unwrap_or(turn.now));
        exchange.timings.processed = Some(turn.now);
        exchange.timings.processed_at = context.worker.clock.unix();
        exchange.protocol = Protocol::Http1 {
            index: engine.request_index() + 1,
        };
        let listener = &turn.connection.listener;
        exchange.request.scheme = listener.scheme();
        routing::route_unparsed(exchange, &listener.hosts);
    }
}
