//! Requests that repeat: calls of one kind on one connection, polls, checks. What made the response is asked again only if
//! it may have another answer.

use bytes::Bytes;
use h2o_exchange::{Exchange, ExchangeRef, Http2Stream, Timings};
use h2o_http2::{ResponseHead, StreamKey};

use super::Http2;
use crate::context::Context;
use crate::link::Link;
use crate::serve;

impl Http2 {
    /// Keeps a response that was sent at once, together with its exchange, for the same request. The exchange is logged.
    pub(super) fn keep_answer(&mut self, exchange: ExchangeRef, body: Bytes) {
        {
            let exchange = &mut *exchange.borrow_mut();
            exchange.timings.response_end = Some(exchange.worker.clock.now());
            serve::log(exchange);
        }
        self.again = Some(body);
        self.again_head = self.engine.head_serial();
        self.spare = Some(exchange);
        self.engine.keep_head();
    }

    /// Answers a request that is the same as the one before, whose exchange has been left as it was. False if that cannot
    /// be: the exchange is then ready for the handlers.
    pub(super) fn answer_again(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        exchange: &ExchangeRef,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(body) = self.again.take() else {
            return false;
        };
        let this = &mut *exchange.borrow_mut();
        if context.memory.is_tight()
            || !self.queue.is_empty()
            || self.resets.delay_until.is_some()
            || !self.may_send_at_once(stream, body.len(), out.len())
        {
            this.rewind();
            return false;
        }
        let Some(status) = this.sent.status else {
            this.rewind();
            return false;
        };
        self.requests += 1;
        let is_logged = !this.site.path(this.route).loggers.is_empty();
        if is_logged {
            let now = context.worker.clock.now();
            this.timings = Timings {
                begun: now,
                head: Some(now),
                processed: Some(now),
                processed_at: context.worker.clock.unix(),
                response_start: Some(now),
                response_end: Some(now),
            };
            this.http2 = Some(Http2Stream {
                id: self.engine.stream_id(stream).get(),
                ..Http2Stream::default()
            });
        }
        let is_empty = body.is_empty();
        let header_bytes = match self
            .engine
            .respond_again(stream, self.again_head, is_empty, out)
        {
            Some(len) => len,
            None => {
                let head = ResponseHead {
                    status,
                    headers: &this.sent.headers,
                    length: Some(body.len() as u64),
                    server: context.server_field.as_deref().map(str::as_bytes),
                };
                let len = self.engine.respond(stream, &head, is_empty, out);
                self.again_head = self.engine.head_serial();
                len
            }
        };
        this.sent.header_bytes = header_bytes as u64;
        if !body.is_empty() {
            self.engine.send_data(stream, &body, true, out);
            self.unearned += body.len();
        }
        if is_logged {
            self.note_priorities_of(stream, this);
            serve::log(this);
        }
        self.served(context, link, stream, out);
        self.again = Some(body);
        self.engine.keep_head();
        true
    }

    /// The exchange that was kept is wanted for something else.
    pub(super) fn forget_answer(&mut self, exchange: &mut Exchange) {
        if self.again.take().is_some() {
            self.engine.forget_head();
            exchange.rewind();
            exchange.request.clear();
        }
    }
}

/// True if the response was made from the head of the request and the site alone, so that the exchange, left as it is,
/// tells all about the next one like it.
pub(super) fn is_repeatable(exchange: &Exchange, is_repeatable: bool) -> bool {
    let path = exchange.site.path(exchange.route);
    is_repeatable
        && path.filters.is_empty()
        && !path.keep_unfiltered
        && !exchange.is_early
        && exchange.original.is_none()
        && exchange.errors.is_empty()
        && exchange.mime.is_none()
        && matches!(exchange.body, h2o_exchange::RequestBody::None)
}
