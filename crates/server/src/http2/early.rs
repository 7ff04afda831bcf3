//! Requests that came in TLS early data: run at once, and held until the handshake is complete if a handler answers 425
//! to them (RFC 8470 §5.2).

use std::time::Instant;

use h2o_exchange::{ExchangeRef, RequestBody, Response};
use h2o_http::BodyLength;
use h2o_http2::StreamKey;

use super::{Http2, Step};
use crate::flow::Turn;

/// What is kept of early requests. Early data is a few thousand octets, so this is small.
#[derive(Default)]
pub(super) struct Early {
    /// Content of requests that were handed to handlers, which may take it.
    contents: Vec<(StreamKey, RequestBody)>,
    /// Requests to be run again, in the order in which they were refused.
    held: Vec<StreamKey>,
    /// The handshake has been completed.
    is_complete: bool,
}

impl Early {
    /// The stream is over.
    pub(super) fn forget(&mut self, stream: StreamKey) {
        self.contents.retain(|(other, _)| *other != stream);
        self.held.retain(|other| *other != stream);
    }
}

impl Http2 {
    /// True if the handshake has been completed and nobody has looked after what was held.
    #[inline]
    pub(super) fn is_early_over(&self, turn: &Turn<'_>) -> bool {
        let early = self.early.as_ref();
        early.is_some_and(|early| !early.is_complete) && !turn.connection.io.is_early()
    }

    /// Notes the content of an early request that is about to be run.
    #[cold]
    pub(super) fn keep_content(&mut self, stream: StreamKey, content: &RequestBody) {
        let Some(early) = &mut self.early else {
            return;
        };
        // What was answered at once has left its content behind.
        early.forget(stream);
        if !matches!(content, RequestBody::None) {
            early.contents.push((stream, content.clone()));
        }
    }

    fn kept_content(&mut self, stream: StreamKey) -> RequestBody {
        let contents = self.early.iter_mut().flat_map(|early| &mut early.contents);
        let mut found = contents.filter(|(other, _)| *other == stream);
        found
            .next()
            .map_or(RequestBody::None, |(_, content)| std::mem::take(content))
    }

    /// A handler does not answer a request before the handshake is complete. The request waits for that, and the client
    /// sees nothing of it.
    #[cold]
    pub(super) fn on_too_early(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: ExchangeRef,
        response: Response,
    ) {
        let content = self.kept_content(stream);
        {
            let exchange = &mut *exchange.borrow_mut();
            exchange.is_early = false;
            // An internal redirect may have taken the content away.
            if exchange.request.body != BodyLength::None {
                exchange.body = content;
            }
        }
        if matches!(exchange.borrow().body, RequestBody::Stream(_)) {
            // What was pulled out of it is gone: the client has to ask again.
            self.answer(turn, stream, exchange, response);
            return;
        }
        let work = self.work(stream);
        if std::mem::take(&mut work.is_at_work) {
            self.at_work -= 1;
        }
        if !turn.connection.io.is_early() {
            // The handler took its time.
            self.admit(turn, stream, exchange);
            return;
        }
        let work = self.work(stream);
        work.exchange = Some(exchange);
        work.step = Step::Queued;
        if let Some(early) = &mut self.early {
            early.held.push(stream);
        }
    }

    /// The handshake is complete: what was held takes its turn.
    #[cold]
    pub(super) fn end_early(&mut self, now: Instant) {
        let Some(early) = &mut self.early else {
            return;
        };
        // What has come with the end of the handshake was received ahead of us.
        self.engine.on_activity(now);
        self.queue.extend(early.held.drain(..));
        // A handler that is still at it may say that it was asked too early.
        early.contents.retain(|(stream, _)| {
            let work = self.works.get(stream.index());
            work.is_some_and(|work| matches!(work.step, Step::Waiting(_)))
        });
        early.is_complete = true;
        if early.contents.is_empty() {
            self.early = None;
        }
    }
}
