//! One request and its response on a connection.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use h2o_exchange::{Trace, Worker};
use h2o_http::{ClientResponse, StatusCode};
use h2o_http1::{Awaited, ClientConnection, ClientReceived, UpstreamError};
use tokio::io::AsyncReadExt;

use super::upload::{Hold, Upload, Went};
use super::{Connection, Connections};
use crate::failure::text_of;
use crate::{Cause, Failure, OnInformational};

/// Most bytes of content read at once, and held.
const PIECE: usize = 64 * 1024;

/// One request and its response.
pub(super) struct UpstreamExchange {
    pub(super) connection: Box<Connection>,
    pub(super) upload: Upload,
    pub(super) pool: Rc<Connections>,
    pub(super) worker: Rc<Worker>,
    /// A head that is not complete.
    input: Vec<u8>,
    /// Bytes of the response have come.
    has_begun: bool,
    /// Whether the response may have been made without all of the request: its head came before that was written, and the
    /// backend was not found silent since.
    is_early: bool,
    /// What the time limit was set for.
    awaits: Option<Awaits>,
    trace: Option<Rc<Trace>>,
}

/// What the exchange waits for, as far as it is limited in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// The backend is to take something, or to go on.
    Progress,
    /// The first byte of the response.
    FirstByte,
    /// The client, whose time is limited elsewhere.
    Client,
}

/// Content that came at once, with the head for example.
pub(super) struct Arrived {
    pub(super) content: Bytes,
    pub(super) rest: Rest,
}

/// What follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: the response is complete. `is_clean` if no byte came after it.
    Nothing { is_clean: bool },
    /// More content, or a tunnel.
    More,
    /// Bytes that are no content; the text says what is wrong with them.
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
            awaits: None,
            trace,
        }
    }

    /// Ready when the head of the final response is in `response`.
    pub(super) fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        response: &mut ClientResponse,
        on_informational: &mut Option<OnInformational<'_>>,
    ) -> Poll<Result<Arrived, Failure>> {
        loop {
            let went = self.poll_upload(context);
            if let Some(text) = self.upload.broken {
                return Poll::Ready(Err(Failure::sent(text).with_cause(Cause::Client)));
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
                let awaits = self.awaited(went);
                return self
                    .poll_late(context, awaits)
                    .map(|text| Err(Failure::sent(text).with_cause(Cause::TimedOut)));
            }
        }
    }

    /// Takes the request further.
    pub(super) fn poll_upload(&mut self, context: &mut Context<'_>) -> Went {
        if self.upload.is_done() {
            return Went::Done;
        }
        let connection = &mut *self.connection;
        let (stream, engine) = (&mut connection.stream, &mut connection.engine);
        let went = (self.upload).poll(context, stream, engine, &self.pool.scratch);
        connection.is_cut_off |= self.upload.broken.is_some();
        if std::mem::take(&mut self.upload.has_moved) {
            // The limit begins anew.
            self.awaits = None;
            self.note_sent();
        }
        went
    }

    const fn awaited(&self, went: Went) -> Awaits {
        match went {
            _ if !self.input.is_empty() => Awaits::Progress,
            Went::Blocked => Awaits::Progress,
            Went::Starved => Awaits::Client,
            Went::Done | Went::Held if self.has_begun => Awaits::Progress,
            Went::Done | Went::Held => Awaits::FirstByte,
        }
    }

    /// Sets the time limit if something has moved or something else is awaited now. Ready when it has passed, with the text that
    /// says so.
    pub(super) fn poll_late(
        &mut self,
        context: &Context<'_>,
        awaits: Awaits,
    ) -> Poll<&'static str> {
        let settings = &self.pool.upstream.settings;
        let (limit, text) = match awaits {
            Awaits::Progress => (settings.io_timeout, Failure::IO_TIMEOUT),
            Awaits::FirstByte => (settings.first_byte_timeout, Failure::FIRST_BYTE_TIMEOUT),
            Awaits::Client => {
                self.rest();
                return Poll::Pending;
            }
        };
        let timer = &self.connection.timer;
        if self.awaits.replace(awaits) != Some(awaits) {
            timer.set_after(limit);
        }
        timer.poll_fired(context).map(|()| text)
    }

    /// Something has moved: the time limit begins anew when something is awaited again.
    pub(super) fn rest(&mut self) {
        if self.awaits.take().is_some() {
            self.connection.timer.clear();
        }
    }

    fn on_closed(&mut self) -> Failure {
        let cause = match self.connection.engine.on_closed() {
            Err(UpstreamError::ClosedBeforeResponse) if self.upload.written == 0 => Cause::NotSent,
            Err(UpstreamError::ClosedBeforeResponse) => Cause::Silent,
            Err(UpstreamError::HeadTruncated) if self.input.is_empty() => Cause::NotAnswered,
            _ => Cause::Other,
        };
        Failure::sent(Failure::IO).with_cause(cause)
    }

    fn on_bytes(
        &mut self,
        bytes: &[u8],
        response: &mut ClientResponse,
        on_informational: &mut Option<OnInformational<'_>>,
    ) -> Option<Result<Arrived, Failure>> {
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
                    if self.upload.hold() == Hold::Continue
                        || self.connection.engine.awaited() == Awaited::Tunnel
                    {
                        self.upload.release();
                    }
                    self.is_early = !self.upload.is_done();
                    let engine = &mut self.connection.engine;
                    return Some(Ok(collect(engine, &input[taken..], Vec::new())));
                }
                Ok(ClientReceived::Data { .. } | ClientReceived::BodyEnd { .. }) => {
                    debug_assert!(false, "the head comes first");
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
        if response.status == StatusCode::CONTINUE && self.upload.hold() == Hold::Continue {
            self.upload.release();
        } else if let Some(tell) = on_informational {
            tell(response.status, &response.headers);
        }
    }

    /// Reads content into `piece`, which is empty, at most `max` bytes; 0 at the end.
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
                // Who waits holds no memory.
                *piece = BytesMut::new();
                self.note_silence();
            }
            Poll::Ready(Ok(read)) => self.note_received(*read),
            Poll::Ready(Err(_)) => {}
        }
        read
    }

    /// The backend has not sent the rest of its response yet. If it has been sent all of the request, it will do that knowing
    /// the request.
    pub(super) const fn note_silence(&mut self) {
        self.is_early &= !self.upload.is_done();
    }

    /// Bytes of a tunnel went either way, or can from now on: its time begins anew.
    pub(super) fn note_transfer(&self) {
        let limit = self.pool.upstream.settings.io_timeout;
        self.connection.timer.set_after(limit);
    }

    /// Bytes were written, perhaps the last ones.
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

    /// All of the response is there. The first call counts.
    pub(super) fn note_end(&self) {
        if let Some(trace) = &self.trace
            && trace.response_ended.get().is_none()
        {
            trace.response_ended.set(Some(self.worker.clock.now()));
        }
    }

    /// The response is complete and so is its use: the connection is kept for the next request if it can be.
    ///
    /// It cannot if the backend made its response without the content of the request: whether it reads that or takes it for
    /// the next request is not known.
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

/// What content there is in all of `input`, behind `content`: chunks may be many and small, and each piece costs a write.
pub(super) fn collect(
    engine: &mut ClientConnection,
    mut input: &[u8],
    mut content: Vec<u8>,
) -> Arrived {
    let rest = loop {
        if engine.awaited() == Awaited::Nothing {
            break Rest::Nothing {
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
            Ok(ClientReceived::NeedMore { .. }) => break Rest::More,
            Ok(ClientReceived::Interim { .. } | ClientReceived::Response { .. }) => {
                debug_assert!(false, "there is one head");
                break Rest::Broken(Failure::IO);
            }
            Err(error) => break Rest::Broken(text_of(error)),
        }
    };
    Arrived {
        content: content.into(),
        rest,
    }
}
