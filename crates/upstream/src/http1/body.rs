//! The body of an HTTP/1 response, pulled from its connection.

use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use h2o_exchange::{BodyError, BodySource, SpliceSource};
use h2o_http::ClientResponse;
use h2o_http1::ClientReceived;

use super::exchange::{BodyRemainder, UpstreamExchange, WaitReason, collect};
use super::upload::UploadProgress;
use crate::Failure;
use crate::failure::{broken_off, text_of};
use crate::read_ahead::Origin;
use crate::stream::UpstreamStream;

/// Least number of remaining body bytes for which `splice` is used. H2O compatibility: H2O has the same threshold.
const SPLICED: u64 = 64 * 1024;

/// The body of a response. This owns the connection, and reads from it when polled.
pub(super) struct ContentSource {
    exchange: Option<UpstreamExchange>,
    /// Body bytes that were received and decoded, but that the client has not taken.
    ready: Bytes,
    /// Bytes that were received but not decoded.
    raw: BytesMut,
    rest: BodyRemainder,
}

type Next = Poll<Option<Result<Bytes, BodyError>>>;

impl ContentSource {
    pub(super) fn new(exchange: UpstreamExchange, ready: Bytes, rest: BodyRemainder) -> Self {
        Self {
            exchange: Some(exchange),
            ready,
            raw: BytesMut::new(),
            rest,
        }
    }

    /// Fails because of an invalid or truncated response; `text` is the message.
    fn fail(&mut self, text: &str) -> Next {
        self.report(text);
        self.give_up(text)
    }

    fn give_up(&mut self, text: &str) -> Next {
        self.exchange = None;
        Poll::Ready(Some(Err(broken_off(text))))
    }

    fn report(&self, text: &str) {
        if let Some(exchange) = &self.exchange {
            let upstream = &exchange.pool.upstream;
            upstream.report_failure(exchange.connection.backend, None, text);
        }
    }

    fn end(&mut self) -> Next {
        if let Some(exchange) = self.exchange.take() {
            exchange.note_end();
        }
        Poll::Ready(None)
    }

    /// If the last byte of the body has arrived, returns the connection to the pool at once. The client may be slow, and a reader
    /// that counts bytes never asks for the end.
    fn finish_if_complete(&mut self) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let engine = &mut exchange.connection.engine;
        if self.rest == BodyRemainder::More && engine.content_left() == Some(0) {
            self.rest = collect(engine, &self.raw, Vec::new()).rest;
        }
        let BodyRemainder::Nothing { is_clean } = self.rest else {
            return;
        };
        exchange.note_end();
        if exchange.ends_with_response()
            && let Some(exchange) = self.exchange.take()
        {
            exchange.finish(is_clean);
        }
    }

    fn take_ready(&mut self, max: usize) -> Next {
        let piece = self.ready.split_to(max.min(self.ready.len()));
        Poll::Ready(Some(Ok(piece)))
    }

    /// Waits, after the end of the response, until the request has been sent, or cannot be any more because the backend has closed the
    /// connection; only then does the body end. H2O compatibility: H2O does not stop a request because of an early response.
    fn poll_request_end(
        &mut self,
        context: &mut Context<'_>,
        is_clean: bool,
        went: UploadProgress,
    ) -> Next {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(None);
        };
        let awaits = match went {
            UploadProgress::Done | UploadProgress::Held => None,
            UploadProgress::Blocked => Some(WaitReason::Progress),
            UploadProgress::Starved => Some(WaitReason::Client),
        };
        if let Some(awaits) = awaits
            && !exchange.ends_with_response()
            && exchange.poll_closed(context).is_pending()
            && exchange.poll_timeout(context, awaits).is_pending()
        {
            return Poll::Pending;
        }
        if let Some(exchange) = self.exchange.take() {
            exchange.finish(is_clean);
        }
        Poll::Ready(None)
    }

    /// Returns the next bytes of the body: first those received already, then those from the socket.
    fn poll_content(&mut self, context: &mut Context<'_>, max: usize) -> Next {
        loop {
            let Some(exchange) = &mut self.exchange else {
                return Poll::Ready(None);
            };
            let engine = &mut exchange.connection.engine;
            match engine.receive(&self.raw, &mut ClientResponse::new()) {
                Ok(ClientReceived::Data { taken, data }) if taken == self.raw.len() => {
                    // The memory is passed on with the data, so that no buffer is kept for a slow client.
                    self.ready = std::mem::take(&mut self.raw).freeze().slice(data);
                    self.finish_if_complete();
                    return self.take_ready(max);
                }
                Ok(ClientReceived::Data { taken, data }) => {
                    let first = self.raw[data].to_vec();
                    let arrived = collect(engine, &self.raw[taken..], first);
                    self.raw.clear();
                    (self.ready, self.rest) = (arrived.content, arrived.rest);
                    self.finish_if_complete();
                    return self.take_ready(max);
                }
                Ok(ClientReceived::BodyEnd { taken }) => {
                    self.raw.advance(taken);
                    let is_clean = self.raw.is_empty();
                    self.rest = BodyRemainder::Nothing { is_clean };
                    let went = exchange.poll_upload(context);
                    return self.poll_request_end(context, is_clean, went);
                }
                Ok(ClientReceived::NeedMore { taken }) => self.raw.advance(taken),
                Ok(ClientReceived::Interim { .. } | ClientReceived::Response { .. }) => {
                    debug_assert!(false, "a second head within one response");
                    return self.fail(Failure::IO);
                }
                Err(error) => return self.fail(text_of(error)),
            }
            match self.poll_read(context, max) {
                Poll::Ready(Some(Ok(()))) => {}
                Poll::Ready(Some(Err(text))) => return self.fail(text),
                Poll::Ready(None) => return self.end(),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads from the socket into `raw`, which is empty; `None` at the end of the body.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<(), &'static str>>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(None);
        };
        match exchange.poll_piece(context, max, &mut self.raw) {
            Poll::Pending => exchange
                .poll_timeout(context, WaitReason::Progress)
                .map(|text| Some(Err(text))),
            Poll::Ready(Ok(1..)) => {
                exchange.restart_timeout();
                Poll::Ready(Some(Ok(())))
            }
            Poll::Ready(Ok(0)) if exchange.connection.engine.is_between_chunks() => {
                // H2O compatibility: as in H2O, a clean close counts as the end of the body although the last chunk is missing,
                // which RFC 9112 §8 calls incomplete.
                Poll::Ready(None)
            }
            Poll::Ready(Ok(0) | Err(_)) => {
                let ended = exchange.connection.engine.on_closed();
                Poll::Ready(ended.err().map(|error| Err(text_of(error))))
            }
        }
    }
}

impl BodySource for ContentSource {
    fn poll_next(&mut self, context: &mut Context<'_>, max: usize) -> Next {
        let Some(exchange) = &mut self.exchange else {
            return if self.ready.is_empty() {
                Poll::Ready(None)
            } else {
                self.take_ready(max)
            };
        };
        let went = exchange.poll_upload(context);
        if let Some(text) = exchange.upload.broken {
            return self.give_up(text);
        }
        if !self.ready.is_empty() {
            exchange.restart_timeout();
            return self.take_ready(max);
        }
        match self.rest {
            BodyRemainder::Broken(text) => self.fail(text),
            BodyRemainder::Nothing { is_clean } => self.poll_request_end(context, is_clean, went),
            BodyRemainder::More => self.poll_content(context, max),
        }
    }

    fn is_complete(&self) -> bool {
        self.ready.is_empty() && matches!(self.rest, BodyRemainder::Nothing { .. })
    }

    fn retained(&self) -> usize {
        let upload = self
            .exchange
            .as_ref()
            .map_or(0, |exchange| exchange.upload.retained());
        self.ready.len() + self.raw.capacity() + upload
    }

    fn splice(&mut self) -> Option<&mut dyn SpliceSource> {
        let exchange = self.exchange.as_ref()?;
        let is_next =
            self.ready.is_empty() && self.raw.is_empty() && self.rest == BodyRemainder::More;
        let left = exchange.connection.engine.content_left();
        let can = is_next
            && exchange.pool.upstream.settings.zerocopy
            && exchange.upload.is_done()
            && matches!(exchange.connection.stream, UpstreamStream::Plain(_))
            && left.is_some_and(|left| left >= SPLICED);
        can.then_some(self)
    }
}

impl Origin for ContentSource {
    fn remaining(&self) -> Option<u64> {
        let ready = self.ready.len() as u64;
        match (&self.exchange, self.rest) {
            (Some(exchange), BodyRemainder::More) => {
                let left = exchange.connection.engine.content_left();
                left.map(|left| left + ready)
            }
            (None, _) | (_, BodyRemainder::Nothing { .. } | BodyRemainder::Broken(_)) => {
                Some(ready)
            }
        }
    }
}

impl SpliceSource for ContentSource {
    fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> Poll<Result<usize, BodyError>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(Err(broken_off(Failure::IO)));
        };
        let connection = &mut exchange.connection;
        let (UpstreamStream::Plain(socket), Some(left)) =
            (&connection.stream, connection.engine.content_left())
        else {
            return Poll::Ready(Err(broken_off(Failure::IO)));
        };
        // Bytes after the body must stay in the socket: spliced, they would reach the client as a part of the body. The pool finds
        // them in the socket, and closes the connection instead of giving it to another request.
        let most = [
            left,
            exchange
                .pool
                .upstream
                .settings
                .max_buffer_size
                .unwrap_or(left),
        ];
        let max = most.into_iter().fold(max, |max, most| {
            max.min(usize::try_from(most).unwrap_or(max))
        });
        let text = match socket.poll_splice(context, pipe, max) {
            Poll::Ready(Ok(moved @ 1..)) => {
                connection.engine.skip_content(moved as u64);
                exchange.note_received(moved);
                exchange.restart_timeout();
                return Poll::Ready(Ok(moved));
            }
            Poll::Ready(Ok(0) | Err(_)) => match connection.engine.on_closed() {
                Ok(_) => Failure::IO,
                Err(error) => text_of(error),
            },
            Poll::Pending => {
                exchange.note_silence();
                std::task::ready!(exchange.poll_timeout(context, WaitReason::Progress))
            }
        };
        self.report(text);
        self.exchange = None;
        Poll::Ready(Err(broken_off(text)))
    }
}
