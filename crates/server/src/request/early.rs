//! Requests from TLS early data. The server runs their handlers at once; if a handler answers 425, the server runs the request
//! again after the TLS handshake (RFC 8470 §5.2).

use h2o_exchange::{ExchangeRef, RequestBody, Response};
use h2o_http::BodyLength;

use super::slots::{Mark, Phase};
use super::{Requests, SlotId, Streams};
use crate::flow::Turn;

/// State of the requests from TLS early data. Early data is limited to a few thousand bytes, so these lists are small.
#[derive(Default)]
pub(super) struct EarlyRequests {
    /// Copies of the bodies of running requests, for a second run, since handlers may take the bodies.
    bodies: Vec<(SlotId, RequestBody)>,
    /// Requests to run again after the TLS handshake, in the order in which handlers answered them with 425.
    held: Vec<SlotId>,
    /// Whether the TLS handshake is complete.
    is_complete: bool,
}

impl EarlyRequests {
    /// Drops what is kept for a second run of the request `id`, because the request is over.
    pub(super) fn forget(&mut self, id: SlotId) {
        self.bodies.retain(|(other, _)| *other != id);
        self.held.retain(|other| *other != id);
    }
}

impl Requests {
    /// Whether the TLS handshake is complete while early requests may be held, so that [`Requests::end_early`] must be called.
    #[inline]
    pub(crate) fn is_early_over(&self, turn: &Turn<'_>) -> bool {
        let early = self.early.as_ref();
        early.is_some_and(|early| !early.is_complete) && !turn.connection.is_early()
    }

    /// Keeps a copy of the body of a request from TLS early data before its handlers run.
    #[cold]
    pub(super) fn keep_body(&mut self, id: SlotId, body: &RequestBody) {
        let Some(early) = &mut self.early else {
            return;
        };
        // If an earlier request in the same slot has left a copy of its body, that copy is dropped.
        early.forget(id);
        if !matches!(body, RequestBody::None) {
            early.bodies.push((id, body.clone()));
        }
    }

    fn take_kept_body(&mut self, id: SlotId) -> RequestBody {
        let mut bodies = self.early.iter_mut().flat_map(|early| &mut early.bodies);
        let found = bodies.find(|(other, _)| *other == id);
        found.map_or(RequestBody::None, |(_, body)| std::mem::take(body))
    }

    /// Called when a handler has answered 425 to a request from TLS early data. Drops that response, and has the request wait for
    /// the end of the handshake.
    #[cold]
    pub(super) fn on_too_early<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        response: Response,
    ) {
        let body = self.take_kept_body(id);
        {
            let exchange = &mut *exchange.borrow_mut();
            exchange.is_early = false;
            // The body is restored only if the request still has one: an internal redirect may have removed it.
            if exchange.request.body != BodyLength::None {
                exchange.body = body;
            }
        }
        if matches!(exchange.borrow().body, RequestBody::Stream(_)) {
            // The handler may have pulled a part of the body, so the request cannot run again. The client gets the 425 and must
            // send the request again.
            self.answer(streams, turn, id, exchange, response);
            return;
        }
        self.slots.mark(id, Mark::Running, false);
        if !turn.connection.is_early() {
            // The TLS handshake ended before the handler answered 425: the request runs again at once.
            self.queue_or_start(streams, turn, id, exchange);
            return;
        }
        self.hold(id, exchange);
        if let Some(early) = &mut self.early {
            early.held.push(id);
        }
    }

    /// Queues the requests that were answered 425, once the TLS handshake is complete.
    #[cold]
    pub(crate) fn end_early(&mut self) {
        let Some(early) = &mut self.early else {
            return;
        };
        self.queue.extend(early.held.drain(..));
        // The copy of a body is kept while the handler of its request still runs: it may answer 425 later.
        let slots = &self.slots;
        early.bodies.retain(|(id, _)| {
            let slot = slots.get(*id);
            slot.is_some_and(|slot| matches!(slot.phase, Phase::Running(_)))
        });
        early.is_complete = true;
        if early.bodies.is_empty() {
            self.early = None;
        }
    }
}
