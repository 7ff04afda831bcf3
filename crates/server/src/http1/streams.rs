//! Implements [`Streams`] for HTTP/1, which has one stream at a time.

use std::io;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, Exchange, FileReader, Response};
use h2o_http::{Headers, Known, Name, ResponseHead, StatusCode};
use h2o_http1::{BodyMode, ServerConnection};
use h2o_tls::OFFLOADED_FILE_LEN;

use super::reading::MAX_DISCARDED;
use super::splice::{Splicing, TransferError};
use crate::flow::Turn;
use crate::request::{
    CloseReason, Content, HeadSent, PullResult, RequestLimits, ResponseShape, SlotId, Source,
    StopReason, Streams, VersionRules, Window,
};
use crate::setup::Setup;

/// Number of bytes of a response's body per TLS write or per chunk. The server buffers no more than this for a client that does not
/// read.
const PIECE: usize = 48 * 1024;
/// Number of bytes per call of `sendfile`; the server checks before each call whether the page cache holds them.
const FILE_PIECE: usize = 512 * 1024;
/// Response bodies up to this size are copied behind the head and sent with it.
const INLINE: usize = 8 * 1024;

/// The protocol engine of a connection, and how the connection goes on after the current request.
pub(super) struct Http1Streams {
    pub(super) engine: ServerConnection,
    /// How the end of the current response's body is marked: by its length, by chunks, or by closing the connection.
    mode: BodyMode,
    /// State of the transfer within the kernel; present if the response's body may be moved that way from a backend's socket.
    splicing: Option<Splicing>,
    /// Whether the rest of the request's body is read and dropped.
    pub(super) drops_body: bool,
    /// Whether no further request is taken, and the connection ends when all output is written.
    pub(super) is_closing: bool,
    /// Whether the connection must be closed at once.
    pub(super) is_over: bool,
    /// Whether the server goes on reading after the last response, because the client was refused, or sends more than the server
    /// reads.
    pub(super) lingers: bool,
}

impl Http1Streams {
    pub(super) const fn new(engine: ServerConnection) -> Self {
        Self {
            engine,
            mode: BodyMode::None,
            splicing: None,
            drops_body: false,
            is_closing: false,
            is_over: false,
            lingers: false,
        }
    }

    /// Sends the next piece of a response's body: from a file by `sendfile`, from a backend's socket by `splice`, if possible.
    pub(super) fn pull(
        &mut self,
        content: &mut Content,
        turn: &mut Turn<'_>,
        task: &mut TaskContext<'_>,
    ) -> Result<PullResult, BodyError> {
        match &mut content.source {
            Source::File(reader) if turn.connection.io.takes_files() => {
                if let Some(sent) = self.send_file(turn, reader)? {
                    let is_end = reader.remaining() == 0;
                    return Ok(sent.map_or(PullResult::Blocked, |len| {
                        if is_end {
                            self.engine.finish(None, &mut turn.out);
                        }
                        content.moved(len, is_end)
                    }));
                }
            }
            Source::Stream(source) => {
                if let Some(splicing) = &mut self.splicing {
                    let moved = splicing.send(turn, &mut self.engine, source.as_mut(), task);
                    match moved {
                        Ok(Some(PullResult::Data { len, is_end })) => {
                            return Ok(content.moved(len, is_end));
                        }
                        Ok(Some(pulled)) => return Ok(pulled),
                        Ok(None) => {}
                        Err(error) => return self.on_io_error(error),
                    }
                }
            }
            Source::Bytes(_) | Source::File(_) => {}
        }
        content.pull(self, turn, SlotId::ONLY, PIECE, task)
    }

    /// Handles a failure of the client's socket or of the source of the response's body.
    fn on_io_error(&mut self, error: TransferError) -> Result<PullResult, BodyError> {
        match error {
            TransferError::Socket => {
                self.is_over = true;
                Ok(PullResult::Blocked)
            }
            TransferError::Body(error) => Err(error),
        }
    }

    /// Has the kernel copy bytes of a file from the page cache to the socket. Returns `None` if the file must be read into memory
    /// first, and `Some(None)` if the socket is full.
    fn send_file(
        &mut self,
        turn: &mut Turn<'_>,
        reader: &mut FileReader,
    ) -> Result<Option<Option<usize>>, BodyError> {
        let Some(range) = reader.unread().filter(|range| range.len > 0) else {
            return Ok((reader.remaining() == 0).then_some(Some(0)));
        };
        let len = FILE_PIECE.min(usize::try_from(range.len).unwrap_or(usize::MAX));
        if !range.file.is_cached(range.offset, len) {
            return Ok(None);
        }
        match turn.connection.io.send_file(range, len) {
            Ok(None) => Ok(Some(None)),
            Ok(Some(0)) => Err(BodyError::file_shrunk()),
            Ok(Some(sent)) => {
                // The length of a file is known, so it is sent without chunks, and the engine only counts its bytes.
                let counted = self.engine.begin_data(sent, &mut Vec::new());
                debug_assert_eq!(
                    counted, sent,
                    "a file is never longer than what was announced"
                );
                reader.skip(sent as u64);
                Ok(Some(Some(sent)))
            }
            Err(error) if is_of_socket(&error) => {
                self.is_over = true;
                Ok(Some(None))
            }
            // The failure comes from the file, not from the socket.
            Err(error) => Err(BodyError::Local(error)),
        }
    }

    /// Sends a short body together with its head, and returns its length. Returns `None` if the body must be pulled.
    fn send_at_once(&mut self, turn: &mut Turn<'_>, body: &mut Body) -> Option<usize> {
        match body {
            Body::Bytes(bytes) if bytes.len() <= INLINE => {
                self.engine.send_data(bytes, &mut turn.out);
                self.engine.finish(None, &mut turn.out);
                return Some(bytes.len());
            }
            Body::Bytes(bytes) if bytes.len() <= PIECE => {
                let len = self.engine.begin_data(bytes.len(), &mut turn.out);
                let mut after = Vec::new();
                self.engine.end_data(&mut after);
                self.engine.finish(None, &mut after);
                if after.is_empty() {
                    turn.send_behind(bytes.slice(..len));
                } else {
                    turn.out.extend_from_slice(&bytes[..len]);
                    turn.out.extend_from_slice(&after);
                }
                return Some(len);
            }
            // `sendfile` cannot be used: the file is sent in chunks, or with a different length than it has.
            Body::File(range) if self.mode != BodyMode::Identity(range.len) => {
                *body = Body::Stream(Box::new(FileReader::new(range.clone())));
            }
            Body::File(range) if range.len >= OFFLOADED_FILE_LEN => turn.connection.io.offload(),
            Body::Stream(_) if turn.connection.io.tls.is_none() => {
                if matches!(self.mode, BodyMode::Identity(_)) {
                    self.splicing = Some(Splicing::new(Rc::clone(&turn.context.pipes)));
                }
            }
            Body::Empty | Body::Bytes(_) | Body::File(_) | Body::Stream(_) => {}
        }
        None
    }

    /// Whether the rest of the request's body is too long to be read and dropped before the next request.
    pub(super) fn is_rest_long(&self) -> bool {
        (self.engine.body_left()).is_some_and(|left| left > MAX_DISCARDED)
    }
}

/// Whether the failure of `sendfile` comes from the socket and not from the file.
fn is_of_socket(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
            | io::ErrorKind::TimedOut
    )
}

impl Streams for Http1Streams {
    const RULES: VersionRules = VersionRules {
        ends_when_flushed: true,
        ends_with_source: true,
        reads_on_demand: true,
        always_continues: true,
        switches_protocols: true,
        stops_bodies_at_once: false,
        streaming_counter: None,
    };

    #[inline]
    fn limits(setup: &Setup) -> RequestLimits {
        RequestLimits {
            running: usize::MAX,
            streaming: usize::MAX,
            resets: usize::MAX,
            reset_delay: Duration::ZERO,
            sends_interims: setup.informs_http1,
        }
    }

    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        _id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize {
        let had = turn.out.len();
        match status {
            StatusCode::CONTINUE if self.engine.wants_continue() => {
                self.engine.send_continue(&mut turn.out, turn.now);
            }
            status => self
                .engine
                .send_informational(status, headers, &mut turn.out),
        }
        turn.out.len() - had
    }

    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        _id: SlotId,
        exchange: &Exchange,
        response: &mut Response,
        shape: ResponseShape,
    ) -> HeadSent {
        if response.closes {
            self.engine.shut_down();
        }
        if shape.opens_tunnel
            && response.status == StatusCode::SWITCHING_PROTOCOLS
            && response.headers.get(Known::Upgrade).is_none()
        {
            let token = exchange.request.upgrade();
            response.headers.push(Known::Upgrade, token);
        }
        let had = turn.out.len();
        let head = ResponseHead {
            status: response.status,
            reason: response.reason.as_deref(),
            headers: &response.headers,
            length: response.length,
            server: exchange.site.server_field.as_deref(),
        };
        self.mode = self.engine.respond(&head, &mut turn.out, turn.now);
        let head_len = turn.out.len() - had;
        let body_len = if shape.has_body && self.mode != BodyMode::None {
            self.send_at_once(turn, &mut response.body)
        } else if response.status.is_bodyless()
            && matches!(response.body, Body::Stream(_))
            && !self.engine.is_body_done()
        {
            // The source of the response may still be sending the request's body to a backend, so the response ends only with its
            // source.
            None
        } else {
            self.engine.finish(None, &mut turn.out);
            Some(0)
        };
        HeadSent { head_len, body_len }
    }

    #[inline]
    fn set_ready(&mut self, _id: SlotId, _is_ready: bool) {}

    fn send_data(&mut self, turn: &mut Turn<'_>, _id: SlotId, piece: &Bytes, is_end: bool) {
        if self.engine.is_tunnel() && turn.out.is_empty() {
            // A piece for the client of a tunnel is sent directly, without a copy to the output buffer.
            if turn.connection.io.send(turn.context, piece).is_err() {
                self.is_over = true;
            }
        } else {
            self.engine.send_data(piece, &mut turn.out);
        }
        if is_end {
            self.engine.finish(None, &mut turn.out);
        }
    }

    fn send_file_data(
        &mut self,
        turn: &mut Turn<'_>,
        _id: SlotId,
        max: usize,
        reader: &mut FileReader,
        task: &mut TaskContext<'_>,
    ) -> Result<Option<(usize, bool)>, BodyError> {
        if reader.remaining() == 0 {
            self.engine.finish(None, &mut turn.out);
            return Ok(Some((0, true)));
        }
        let len = match reader.poll_append(task, max, &mut turn.out) {
            Poll::Pending => return Ok(None),
            Poll::Ready(len) => len?,
        };
        // The length of a file is known, so it is sent without chunks, and the engine only counts its bytes.
        let counted = self.engine.begin_data(len, &mut Vec::new());
        debug_assert_eq!(
            counted, len,
            "a file is never longer than what was announced"
        );
        let is_end = reader.remaining() == 0;
        if is_end {
            self.engine.finish(None, &mut turn.out);
        }
        Ok(Some((len, is_end)))
    }

    /// Ends the response. Of its trailers it sends only the `server-timing` trailer. H2O compatibility: H2O sends no other trailers
    /// over HTTP/1.
    fn finish(&mut self, turn: &mut Turn<'_>, _id: SlotId, trailers: Option<Headers>) {
        let mut trailers = trailers.unwrap_or_default();
        trailers.retain(|field| field.name == Name::Known(Known::ServerTiming));
        let trailers = (!trailers.is_empty()).then_some(trailers);
        self.engine.finish(trailers.as_ref(), &mut turn.out);
    }

    #[inline]
    fn open_window(&mut self, _turn: &mut Turn<'_>, _id: SlotId, _window: Window) {}

    /// Makes the response the last one of the connection, unless the rest of the request's body is short enough to be dropped.
    fn stop_input(&mut self, _id: SlotId, reason: StopReason) {
        match reason {
            StopReason::Abandoned if !self.is_rest_long() => return,
            // H2O compatibility: H2O closes the connection if no tunnel is opened. Bytes that the client has sent into the tunnel
            // meanwhile must not be taken for requests.
            StopReason::Abandoned | StopReason::NoTunnel => {}
            StopReason::Unwanted => self.drops_body = true,
            StopReason::Refused | StopReason::Overdrawn => self.lingers = true,
        }
        self.engine.shut_down();
    }

    #[inline]
    fn is_input_open(&self, _id: SlotId) -> bool {
        false
    }

    fn close(&mut self, turn: &mut Turn<'_>, _id: SlotId, reason: CloseReason) {
        self.splicing = None;
        self.drops_body = false;
        match reason {
            CloseReason::Complete | CloseReason::EnoughRead | CloseReason::Reset => {}
            CloseReason::Refused | CloseReason::PushCancelled | CloseReason::TooSlow => {
                self.is_over = true;
            }
            CloseReason::TunnelBroken if self.engine.is_tunnel() => {
                turn.connection.io.is_truncated = true;
                self.is_over = true;
            }
            CloseReason::TunnelBroken | CloseReason::BodyLost | CloseReason::BodyBroken => {
                self.engine.abort(&mut turn.out);
                turn.connection.io.is_truncated = true;
                self.is_closing = true;
            }
        }
    }
}
