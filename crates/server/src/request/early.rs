//! Requests that came in TLS early data: run at once, and held until the handshake is complete if a handler answers 425
//! to them (RFC 8470 §5.2).

use h2o_exchange::{ExchangeRef, RequestBody, Response};
use h2o_http::BodyLength;

use super::slots::{Mark, Phase};
use super::{Requests, SlotId, Streams};
use crate::flow::Turn;

/// What is kept of early requests. Early data is a few thousand bytes, so this is small.
#[derive(Default)]
pub(super) struct Early {
    /// Bodies of requests that were handed to handlers, which may take them.
    bodies: Vec<(SlotId, RequestBody)>,
    /// Requests to be run again, in the order in which they were answered 425.
    held: Vec<SlotId>,
    /// Whether the handshake has been completed.
    is_complete: bool,
}

impl Early {
    /// The request is over.
    pub(super) fn forget(&mut self, id: SlotId) {
        self.bodies.retain(|(other, _)| *other != id);
        self.held.retain(|other| *other != id);
    }
}

impl Requests {
    /// Whether the handshake has been completed, and [`Requests::end_early`] is to be called.
    #[inline]
    pub(crate) fn is_early_over(&self, turn: &Turn<'_>) -> bool {
        let early = self.early.as_ref();
        early.is_some_and(|early| !early.is_complete) && !turn.connection.is_early()
    }

    /// Keeps the body of an early request that is about to be run.
    #[cold]
    pub(super) fn keep_body(&mut self, id: SlotId, body: &RequestBody) {
        let Some(early) = &mut self.early else {
            return;
        };
        // An earlier request of the slot may have left its body behind.
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

    /// A handler does not answer a request before the handshake is complete. The request waits for that, and the client does
    /// not get the handler's response.
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
            // An internal redirect may have taken the body away.
            if exchange.request.body != BodyLength::None {
                exchange.body = body;
            }
        }
        if matches!(exchange.borrow().body, RequestBody::Stream(_)) {
            // The part that was pulled out of it is gone: the client has to send the request again.
            self.answer(streams, turn, id, exchange, response);
            return;
        }
        self.slots.mark(id, Mark::Running, false);
        if !turn.connection.is_early() {
            // The handshake was completed before the handler answered.
            self.queue_or_start(streams, turn, id, exchange);
            return;
        }
        self.enqueue(id, exchange);
        if let Some(early) = &mut self.early {
            early.held.push(id);
        }
    }

    /// The handshake is complete: the held requests join the queue.
    #[cold]
    pub(crate) fn end_early(&mut self) {
        let Some(early) = &mut self.early else {
            return;
        };
        self.queue.extend(early.held.drain(..));
        // A handler that is still running may yet answer 425.
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
