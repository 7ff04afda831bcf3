//! One HTTP/1 request and its response on a connection to a backend.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use h2o_exchange::{Trace, Worker};
use h2o_http::{ClientResponse, StatusCode};
use h2o_http1::{AwaitedPart, ClientConnection, ClientReceived, UpstreamError};
use tokio::io::AsyncReadExt;

use super::upload::{HoldReason, Upload, UploadProgress};
use super::{Connection, Connections};
use crate::failure::text_of;
use crate::{Failure, FailureCause, OnInformational};

/// Limit in bytes of a read of the body, and of the body bytes that are kept in memory.
const PIECE: usize = 64 * 1024;

/// One request to a backend and its response, with the connection.
pub(super) struct UpstreamExchange {
    pub(super) connection: Box<Connection>,
    pub(super) upload: Upload,
    pub(super) pool: Rc<Connections>,
    pub(super) worker: Rc<Worker>,
    /// The bytes received so far of the head of the response.
    input: Vec<u8>,
    /// Whether the first byte of the response has arrived.
    has_begun: bool,
    /// Whether the backend may have responded without the whole request: the head of the response arrived before the whole request
    /// was sent, and the backend has not paused since.
    is_early: bool,
    /// Whether the backend has answered with an error.
    is_refused: bool,
    /// What the current timeout is for; `None` if no timeout runs.
    awaits: Option<WaitReason>,
    trace: Option<Rc<Trace>>,
}

/// What an exchange waits for, which decides on its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The exchange waits for the backend to read or send bytes.
    Progress,
    /// The exchange waits for the first byte of the response.
    FirstByte,
    /// The exchange waits for the client, which has timeouts of its own.
    Client,
}

/// Bytes of the response's body that arrived together, for example with the head.
pub(super) struct ReceivedBody {
    pub(super) content: Bytes,
    pub(super) rest: BodyRemainder,
}

/// What follows the bytes of a [`ReceivedBody`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyRemainder {
    /// The end of the response. `is_clean`: no byte arrived after it.
    Nothing { is_clean: bool },
    /// More bytes of the body, or of a tunnel.
    More,
    /// Invalid bytes follow; the text says why they are invalid.
    Broken(&'static str),
}

impl UpstreamExchange {
    pub(super) const fn new(
        connection: Box<Connection>,
        upload: Upload,
        pool: Rc<Connections>,
        worker: Rc<Worker>,
        trace: Option<Rc<Trace>>,
    ) -> Self {
        Self {
            connection,
            upload,
            pool,
            worker,
            input: Vec::new(),
            has_begun: false,
            is_early: false,
            is_refused: false,
            awaits: None,
            trace,
        }
    }

    /// Waits for the head of the final response, and stores it in `response`. Sends the request meanwhile.
    pub(super) fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        response: &mut ClientResponse,
        on_informational: &mut Option<OnInformational<'_>>,
    ) -> Poll<Result<ReceivedBody, Failure>> {
        loop {
            let went = self.poll_upload(context);
            if let Some(text) = self.upload.broken {
                return Poll::Ready(Err(Failure::sent(text).with_cause(FailureCause::Client)));
            }
            let scratch = Rc::clone(&self.pool.scratch);
            let mut input = scratch.take_input();
            let read = self.connection.stream.poll_receive(context, &mut input);
            let arrived = match read {
                Poll::Pending => None,
                Poll::Ready(Ok(0) | Err(_)) => Some(Err(self.on_closed())),
                Poll::Ready(Ok(read)) => {
                    self.note_received(read);
                    self.on_bytes(&input[..read], response, on_informational)
                }
            };
            scratch.put_input(input);
            if let Some(arrived) = arrived {
                return Poll::Ready(arrived);
            }
            if read.is_pending() {
                let awaits = self.wait_reason(went);
                return self
                    .poll_timeout(context, awaits)
                    .map(|text| Err(Failure::sent(text).with_cause(FailureCause::TimedOut)));
            }
        }
    }

    /// Sends more of the request, as far as the socket and the client allow.
    pub(super) fn poll_upload(&mut self, context: &mut Context<'_>) -> UploadProgress {
        if self.upload.is_done() {
            return UploadProgress::Done;
        }
        let connection = &mut *self.connection;
        let (stream, engine) = (&mut connection.stream, &mut connection.engine);
        let went = (self.upload).poll(context, stream, engine, &self.pool.scratch);
        connection.is_truncated |= self.upload.broken.is_some();
        if std::mem::take(&mut self.upload.has_moved) {
            // The request made progress, so the timeout starts anew.
            self.awaits = None;
            self.note_sent();
        }
        went
    }

    const fn wait_reason(&self, went: UploadProgress) -> WaitReason {
        match went {
            _ if !self.input.is_empty() => WaitReason::Progress,
            UploadProgress::Blocked => WaitReason::Progress,
            UploadProgress::Starved => WaitReason::Client,
            UploadProgress::Done | UploadProgress::Held if self.has_begun => WaitReason::Progress,
            UploadProgress::Done | UploadProgress::Held => WaitReason::FirstByte,
        }
    }

    /// Checks the timeout for what the exchange waits for. The timeout starts anew after progress, or when the exchange waits for
    /// something else. Ready with the message when it has expired.
    pub(super) fn poll_timeout(
        &mut self,
        context: &Context<'_>,
        awaits: WaitReason,
    ) -> Poll<&'static str> {
        let settings = &self.pool.upstream.settings;
        let (limit, text) = match awaits {
            WaitReason::Progress => (settings.io_timeout, Failure::IO_TIMEOUT),
            WaitReason::FirstByte => (settings.first_byte_timeout, Failure::FIRST_BYTE_TIMEOUT),
            WaitReason::Client => {
                self.restart_timeout();
                return Poll::Pending;
            }
        };
        let timer = &self.connection.timer;
        if self.awaits.replace(awaits) != Some(awaits) {
            timer.set_after(limit);
        }
        timer.poll_fired(context).map(|()| text)
    }

    /// Records that the exchange has made progress: the timeout starts anew with the next wait.
    pub(super) fn restart_timeout(&mut self) {
        if self.awaits.take().is_some() {
            self.connection.timer.clear();
        }
    }

    /// Whether the exchange ends with the response. A backend that has refused the request, or that closes the connection after the
    /// response, gets no more of the request (RFC 9112 §9.5, §9.6).
    pub(super) fn ends_with_response(&self) -> bool {
        self.upload.is_done() || self.is_refused || !self.connection.engine.is_persistent()
    }

    /// Waits, after the complete response, until the backend closes the connection. Bytes that it sends instead answer no request, so
    /// that the connection is of no more use then either.
    pub(super) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut input = self.pool.scratch.take_input();
        let read = self.connection.stream.poll_receive(context, &mut input);
        self.pool.scratch.put_input(input);
        read.map(drop)
    }

    fn on_closed(&mut self) -> Failure {
        let cause = match self.connection.engine.on_closed() {
            Err(UpstreamError::ClosedBeforeResponse) if self.upload.written == 0 => {
                FailureCause::NotSent
            }
            Err(UpstreamError::ClosedBeforeResponse) => FailureCause::Silent,
            Err(UpstreamError::HeadTruncated) if self.input.is_empty() => FailureCause::NotAnswered,
            _ => FailureCause::Other,
        };
        Failure::sent(Failure::IO).with_cause(cause)
    }

    fn on_bytes(
        &mut self,
        bytes: &[u8],
        response: &mut ClientResponse,
        on_informational: &mut Option<OnInformational<'_>>,
    ) -> Option<Result<ReceivedBody, Failure>> {
        self.has_begun = true;
        self.awaits = None;
        let mut own = std::mem::take(&mut self.input);
        let mut input = bytes;
        if !own.is_empty() {
            own.extend_from_slice(bytes);
            input = &own;
        }
        loop {
            match self.connection.engine.receive(input, response) {
                Err(error) => {
                    return Some(Err(Failure::from_http1(error)));
                }
                Ok(ClientReceived::NeedMore { taken }) => {
                    let left = input.len() - taken;
                    if own.is_empty() {
                        self.input = input[taken..].to_vec();
                    } else {
                        own.drain(..own.len() - left);
                        self.input = own;
                    }
                    return None;
                }
                Ok(ClientReceived::Interim { taken }) => {
                    input = &input[taken..];
                    self.note_head(taken);
                    self.on_interim(response, on_informational);
                }
                Ok(ClientReceived::Response { taken }) => {
                    self.note_head(taken);
                    if let Some(trace) = &self.trace {
                        trace.response_begun.set(Some(self.worker.clock.now()));
                    }
                    if self.upload.hold() == HoldReason::Continue
                        || self.connection.engine.awaited() == AwaitedPart::Tunnel
                    {
                        self.upload.release();
                    }
                    self.is_early = !self.upload.is_done();
                    self.is_refused = response.status.as_u16() >= 400;
                    let engine = &mut self.connection.engine;
                    return Some(Ok(collect(engine, &input[taken..], Vec::new())));
                }
                Ok(ClientReceived::Data { .. } | ClientReceived::BodyEnd { .. }) => {
                    debug_assert!(false, "content before the head of the response");
                    return Some(Err(Failure::sent(Failure::IO)));
                }
            }
        }
    }

    fn on_interim(
        &mut self,
        response: &ClientResponse,
        on_informational: &mut Option<OnInformational<'_>>,
    ) {
        if response.status == StatusCode::CONTINUE && self.upload.hold() == HoldReason::Continue {
            self.upload.release();
        } else if let Some(tell) = on_informational {
            tell(response.status, &response.headers);
        }
    }

    /// Reads at most `max` body bytes into `piece`, which is empty. Returns their number; 0 at the end of the input.
    pub(super) fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
        piece: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        let limit = self.pool.upstream.settings.max_buffer_size;
        let limit = limit.map_or(PIECE, |limit| usize::try_from(limit).unwrap_or(PIECE));
        let room = max.min(PIECE).min(limit).max(1);
        let stream = &mut self.connection.stream;
        let read = if stream.poll_readable(context).is_pending() {
            Poll::Pending
        } else {
            piece.reserve(room);
            let mut room = piece.limit(room);
            pin!(stream.read_buf(&mut room)).poll(context)
        };
        match &read {
            Poll::Pending => {
                // No memory is held while the connection waits.
                *piece = BytesMut::new();
                self.note_silence();
            }
            Poll::Ready(Ok(read)) => self.note_received(*read),
            Poll::Ready(Err(_)) => {}
        }
        read
    }

    /// Records that the backend has paused before the end of its response. If the backend has received the whole request by then,
    /// the response may depend on the whole request.
    pub(super) const fn note_silence(&mut self) {
        self.is_early &= !self.upload.is_done();
    }

    /// Records that a tunnel has moved bytes, or was opened: restarts the tunnel's timeout.
    pub(super) fn note_transfer(&self) {
        let limit = self.pool.upstream.settings.io_timeout;
        self.connection.timer.set_after(limit);
    }

    /// Records in the trace that bytes of the request were written.
    fn note_sent(&self) {
        let Some(trace) = &self.trace else {
            return;
        };
        trace.sent.set(self.upload.written);
        if self.upload.is_done() {
            trace.request_ended.set(Some(self.worker.clock.now()));
        }
    }

    pub(super) fn note_received(&self, bytes: usize) {
        if let Some(trace) = &self.trace {
            trace.received.set(trace.received.get() + bytes as u64);
        }
    }

    fn note_head(&self, bytes: usize) {
        if let Some(trace) = &self.trace {
            let heads = &trace.received_head;
            heads.set(heads.get() + bytes as u64);
        }
    }

    /// Records in the trace that the response is complete. Only the first call counts.
    pub(super) fn note_end(&self) {
        if let Some(trace) = &self.trace
            && trace.response_ended.get().is_none()
        {
            trace.response_ended.set(Some(self.worker.clock.now()));
        }
    }

    /// Ends the exchange after the complete response, and returns the connection to the pool if it can be reused.
    ///
    /// The connection cannot be reused if the backend responded without reading the request body: the backend might take the body
    /// for the next request.
    pub(super) fn finish(self, is_clean: bool) {
        self.note_end();
        let Self {
            mut connection,
            upload,
            pool,
            worker,
            is_early,
            ..
        } = self;
        let leftover: &[u8] = if is_clean { b"" } else { b"?" };
        let keeps = !pool.upstream.settings.keepalive.is_zero();
        if keeps
            && upload.is_done()
            && !is_early
            && connection.engine.is_reusable(leftover)
            && !pool.upstream.is_down(connection.backend)
        {
            connection.in_use = None;
            connection.timer.clear();
            pool.put(connection, &worker);
        }
    }
}

/// Decodes all body bytes in `input` and appends them to `content`. They are passed on together, because chunks may be many and
/// small, and each piece costs the client's side a write.
pub(super) fn collect(
    engine: &mut ClientConnection,
    mut input: &[u8],
    mut content: Vec<u8>,
) -> ReceivedBody {
    let rest = loop {
        if engine.awaited() == AwaitedPart::Nothing {
            break BodyRemainder::Nothing {
                is_clean: input.is_empty(),
            };
        }
        match engine.receive(input, &mut ClientResponse::new()) {
            Ok(ClientReceived::Data { taken, data }) => {
                content.reserve(input.len());
                content.extend_from_slice(&input[data]);
                input = &input[taken..];
            }
            Ok(ClientReceived::BodyEnd { taken }) => input = &input[taken..],
            Ok(ClientReceived::NeedMore { .. }) => break BodyRemainder::More,
            Ok(ClientReceived::Interim { .. } | ClientReceived::Response { .. }) => {
                debug_assert!(false, "a second head within one response");
                break BodyRemainder::Broken(Failure::IO);
            }
            Err(error) => break BodyRemainder::Broken(text_of(error)),
        }
    };
    ReceivedBody {
        content: content.into(),
        rest,
    }
}
