//! The HTTP/3 driver of one connection: it moves bytes and events between the protocol engine, the request table and the QUIC
//! transport.
//!
//! The driver first takes in all input of a turn. Short responses go to the transport at once; other bodies are pulled in the order
//! that the engine's scheduler sets, until the transport has as much as the network takes now and a little more.

mod streams;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2o_exchange::Counter;
use h2o_http3::{ErrorCode, PeerError, Received, ServerConnection, Settings, StreamKey};
use h2o_quic::{ConnectionIndex, Endpoint, Event, Read, SharedConnection, StreamId};

use crate::connection_state::ConnectionState;
use crate::context::{Context, READ_SIZE, per_turn};
use crate::flow::{Flow, Turn};
use crate::request::paces::ConnectionPace;
use crate::request::{PullResult, Requests, SlotId, StreamRequest};
use crate::site::quic_settings::QuicSettings;
use streams::Http3Streams;

/// Largest number of bytes of a response's body that are handed to the transport at a time: other responses cannot overtake bytes
/// that the transport has.
const PIECE: usize = 16 * 1024;
/// Largest number of bytes that one connection hands to the transport before other connections run.
const SEND_TURN: usize = per_turn(1024 * 1024);
/// Number of bytes as which a pull that brings fewer counts for [`SEND_TURN`].
const LEAST_COST: usize = 2 * 1024;

/// The HTTP/3 driver of one connection.
pub(crate) struct Http3 {
    requests: Requests,
    streams: Http3Streams,
    pace: ConnectionPace,
    /// Streams whose field sections wait for missing entries of the QPACK dynamic table, with the bytes received after these
    /// sections.
    blocked: Vec<Waiting>,
    /// The error code and text with which the connection must be closed, after its requests were ended; `None` while it goes on.
    closing: Option<(ErrorCode, &'static str)>,
    wants_shutdown: bool,
    /// Whether the connection has received a request.
    is_used: bool,
}

/// The allocator has blocks of 1,536 bytes, and the next larger ones have 1,792: a larger `Http3` would cost 256 bytes per connection.
const _: () = assert!(size_of::<Http3>() <= 1536);

/// Bytes received on a stream that cannot be decoded yet.
struct Waiting {
    id: StreamId,
    input: Vec<u8>,
    has_ended: bool,
}

/// The key by which the protocol engine names the stream of the request in slot `id`.
const fn stream(id: SlotId) -> StreamKey {
    StreamKey::from_index(id.index())
}

/// The slot of the request on `stream`.
fn slot(stream: StreamKey) -> SlotId {
    SlotId::new(u32::try_from(stream.index()).unwrap_or(u32::MAX))
}

/// The protocol engine's type for the id of a stream of the transport.
const fn engine_id(id: StreamId) -> h2o_http3::StreamId {
    h2o_http3::StreamId::new(id.number())
}

impl Http3 {
    pub(crate) fn new(
        context: &Context,
        connection: &ConnectionState,
        endpoint: Rc<RefCell<Endpoint>>,
        index: ConnectionIndex,
        settings: &QuicSettings,
    ) -> Self {
        let setup = &connection.listener.setup;
        let settings = Settings {
            max_streams: u32::try_from(settings.max_streams).unwrap_or(u32::MAX),
            qpack_decoder_capacity: settings.decoder_table,
            qpack_encoder_capacity: settings.encoder_table,
            limit_request_body: setup.http1.limit_request_body,
            graceful_shutdown_timeout: setup.http3.graceful_shutdown_timeout,
        };
        let quic = SharedConnection::new(endpoint, index);
        let takes_datagrams = quic.with(|quic| quic.max_datagram_len().is_some()) == Some(true);
        let engine = ServerConnection::new(Arc::new(settings), takes_datagrams);
        Self {
            requests: Requests::new(context, connection.is_early()),
            streams: Http3Streams::new(engine, quic, takes_datagrams),
            pace: ConnectionPace::new(context.worker.clock.now()),
            blocked: Vec::new(),
            closing: None,
            wants_shutdown: context.worker.shutting_down.get() || connection.listener.is_closing,
            is_used: false,
        }
    }

    /// Handles an event of the QUIC transport. The caller must call [`Http3::run`] afterwards.
    pub(crate) fn on_event(&mut self, turn: &mut Turn<'_>, event: Event) {
        if self.is_closing() {
            return;
        }
        match event {
            Event::StreamOpened(id) => {
                if let Err(error) = self.streams.engine.open(engine_id(id)) {
                    self.fail(error);
                    return;
                }
                self.after_step(turn);
                self.read(turn, id);
            }
            Event::Readable(id) => self.read(turn, id),
            Event::Writable(id) => self.streams.on_writable(id),
            Event::Stopped { stream: id, code } => {
                self.streams.on_stopped(id);
                let stopped = (self.streams.engine).on_stop_sending(engine_id(id), ErrorCode(code));
                self.on_given_up(turn, stopped);
            }
            Event::StreamsAvailable { .. } => self.streams.open_local(),
            Event::DatagramReceived => self.receive_datagrams(turn),
            Event::DatagramsUnblocked
            | Event::HandshakeAgreed
            | Event::Connected
            | Event::Closed(_)
            | Event::Drained => {}
        }
        self.read_unblocked(turn);
    }

    /// Lets streams take as many bytes as the congestion window allows now. Must be called before the events of the transport are taken: one
    /// of them may say that streams can be written to again.
    pub(crate) fn fit_send_window(&self) {
        self.streams.quic.with(|quic| {
            let room = quic.send_room();
            quic.set_send_window(room);
        });
    }

    /// Runs the connection as far as it can go without further events.
    pub(crate) fn run(&mut self, turn: &mut Turn<'_>) -> Flow {
        let flow = self.advance(turn);
        if flow == Flow::Close {
            self.abandon();
        } else {
            self.shrink_if_idle(turn.context);
            self.pace.plan(self.streams.engine.has_streams(), turn.now);
        }
        flow
    }

    fn advance(&mut self, turn: &mut Turn<'_>) -> Flow {
        if std::mem::take(&mut self.wants_shutdown) {
            self.streams.engine.shut_down(turn.now);
        }
        if self.requests.is_early_over(turn) {
            self.requests.end_early();
        }
        self.pay_for_transport(turn);
        self.requests.run_woken(&mut self.streams, turn);
        loop {
            while let Some(id) = self.streams.poll_readable() {
                self.read(turn, id);
            }
            if self.is_closing() {
                return Flow::Close;
            }
            self.requests.start_queued(&mut self.streams, turn);
            self.streams.send_datagrams();
            let is_done = self.feed(turn);
            if self.requests.take_overdrawn() {
                self.fail(PeerError::Overdrawn);
            }
            self.streams.flush_engine();
            if self.is_closing() {
                return Flow::Close;
            }
            // Data that the client has not acknowledged yet would be lost if the connection were closed now.
            if self.streams.engine.is_over() && self.streams.is_delivered() {
                self.close(ErrorCode::NO_ERROR, "");
                return Flow::Close;
            }
            // Response bodies that were pulled may have made room for more bytes of request bodies.
            if !is_done || self.streams.has_readable() {
                turn.context
                    .unfinished
                    .borrow_mut()
                    .push(turn.connection.token);
                return Flow::Wait;
            }
            // A response that was just completed may have made room for a request in the queue.
            if !self.requests.may_start::<Http3Streams>(turn) {
                self.requests.read_ahead(turn);
                return Flow::Wait;
            }
        }
    }

    /// Hands pieces of response bodies to the transport, as far as it takes them. Returns `false` if there is more to hand over but
    /// other connections must run first.
    fn feed(&mut self, turn: &mut Turn<'_>) -> bool {
        if !self.streams.has_ready() {
            return true;
        }
        let mut sent = 0;
        while let Some(key) = self.streams.engine.poll_send() {
            if sent >= SEND_TURN {
                return false;
            }
            if !self.streams.takes_more(key) {
                continue;
            }
            let piece = self.streams.piece(key, PIECE);
            let pulled = (self.requests).pull(&mut self.streams, turn, slot(key), piece);
            let len = match pulled {
                Some(PullResult::Data { len, .. }) => len,
                Some(PullResult::Waiting | PullResult::Blocked) | None => 0,
            };
            // A pull that brings little takes its time, too.
            sent += len.max(LEAST_COST);
        }
        self.requests.earn_by_bodies(turn);
        self.after_step(turn);
        true
    }

    /// Reads the bytes that have come on a stream.
    fn read(&mut self, turn: &mut Turn<'_>, id: StreamId) {
        if self.blocked.iter().any(|waiting| waiting.id == id) {
            return;
        }
        while !self.is_closing() {
            let Some(read) = self.read_piece(id) else {
                return;
            };
            let (piece, has_ended) = match read {
                Read::Data(piece) => (piece, false),
                Read::Last(piece) => (piece, true),
                Read::End => (Bytes::new(), true),
                Read::Reset(code) => {
                    self.on_stream_reset(turn, id, code);
                    return;
                }
                Read::Blocked | Read::Unknown => return,
            };
            if !self.receive(turn, id, &piece, has_ended) || has_ended {
                return;
            }
        }
    }

    fn on_stream_reset(&mut self, turn: &mut Turn<'_>, id: StreamId, code: u64) {
        let reset = (self.streams.engine).on_reset(engine_id(id), ErrorCode(code));
        self.on_given_up(turn, reset);
    }

    /// Reads the next piece that was received on a stream. Returns `None` if the window for the request's body is used up.
    fn read_piece(&mut self, id: StreamId) -> Option<Read> {
        let mut max = READ_SIZE;
        if let Some(slot) = streams::find(&self.streams, id) {
            let key = stream(slot);
            max = max.min(self.streams.window(key));
            if max == 0 {
                self.streams.note_unread(key);
                return None;
            }
        }
        self.streams.quic.with(|quic| quic.read(id, max))
    }

    /// Hands bytes received on a stream to the protocol engine. Returns whether more of the stream can be read.
    fn receive(
        &mut self,
        turn: &mut Turn<'_>,
        id: StreamId,
        input: &[u8],
        has_ended: bool,
    ) -> bool {
        let mut at = 0;
        let mut spare = self.requests.take_spare(turn.context);
        let mut is_readable = true;
        while !self.is_closing() {
            let step = self.streams.engine.receive(
                engine_id(id),
                &input[at..],
                has_ended,
                &mut spare.borrow_mut().request,
            );
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    self.fail(error);
                    break;
                }
            };
            self.after_step(turn);
            let start = at;
            at += step.taken;
            match step.received {
                Received::NeedMore => break,
                Received::Blocked => {
                    self.blocked.push(Waiting {
                        id,
                        input: input[at..].to_vec(),
                        has_ended,
                    });
                    is_readable = false;
                    break;
                }
                Received::Request {
                    stream,
                    end_stream,
                    refusal,
                } => {
                    self.is_used = true;
                    if end_stream
                        && refusal.is_none()
                        && (self.requests).send_kept(
                            &mut self.streams,
                            turn,
                            slot(stream),
                            &spare.borrow().request,
                        )
                    {
                        break;
                    }
                    let request = StreamRequest {
                        exchange: spare,
                        protocol: self.streams.begin(stream, id),
                        end_stream,
                        refusal,
                    };
                    (self.requests).receive_on_stream(
                        &mut self.streams,
                        turn,
                        slot(stream),
                        request,
                    );
                    if end_stream && at == input.len() {
                        return true;
                    }
                    spare = self.requests.take_spare(turn.context);
                }
                Received::Data {
                    stream,
                    data,
                    end_stream,
                } => {
                    let piece = &input[start + data.start..start + data.end];
                    self.streams.on_content(stream, piece.len());
                    (self.requests).on_data(
                        &mut self.streams,
                        turn,
                        slot(stream),
                        piece,
                        end_stream,
                    );
                }
                Received::Trailers { stream } => {
                    // The section is trailers, which are dropped as in the other HTTP versions: no handler has checked them, so
                    // they never become fields of the head (RFC 9110 §6.5.1).
                    spare.borrow_mut().request.clear();
                    (self.requests).on_data(&mut self.streams, turn, slot(stream), &[], true);
                }
                Received::Reset { stream, .. } => {
                    self.requests
                        .on_reset(&mut self.streams, turn, slot(stream));
                }
                Received::Priority { stream } => self.streams.on_priority(stream),
                Received::Settings => self.streams.settle_datagrams(),
                Received::Charged | Received::GoAway => {}
            }
        }
        self.requests.keep_unused(spare);
        is_readable
    }

    /// Goes on with the streams whose field sections can be decoded now.
    fn read_unblocked(&mut self, turn: &mut Turn<'_>) {
        while let Some(id) = self.streams.engine.poll_unblocked() {
            let at = (self.blocked.iter()).position(|waiting| engine_id(waiting.id) == id);
            let Some(at) = at else { continue };
            let Waiting {
                id,
                input,
                has_ended,
            } = self.blocked.swap_remove(at);
            if self.receive(turn, id, &input, has_ended) && !has_ended {
                self.read(turn, id);
            }
        }
    }

    /// Ends the request if the client has reset its stream, or asks the server to stop sending on it.
    fn on_given_up(&mut self, turn: &mut Turn<'_>, given_up: Result<Option<Received>, PeerError>) {
        match given_up {
            Ok(Some(Received::Reset { stream, .. })) => {
                self.requests
                    .on_reset(&mut self.streams, turn, slot(stream));
            }
            Ok(_) => {}
            Err(error) => self.fail(error),
        }
        self.after_step(turn);
    }

    /// Passes HTTP datagrams (RFC 9297) to the handlers of their tunnels.
    fn receive_datagrams(&mut self, turn: &mut Turn<'_>) {
        while let Some(datagram) = self
            .streams
            .quic
            .with(|quic| quic.receive_datagram())
            .flatten()
        {
            match self.streams.engine.on_datagram(&datagram) {
                Ok(Some((key, at))) => self.streams.on_datagram(key, datagram.slice(at..)),
                Ok(None) => {}
                Err(error) => {
                    self.fail(error);
                    return;
                }
            }
        }
        self.after_step(turn);
    }

    /// Charges the connection's abuse budget for the work that the client has caused in the protocol engine.
    #[inline]
    fn after_step(&mut self, turn: &mut Turn<'_>) {
        // The engine has the error code of a stream that it has rejected in this step. The code is cleared: only HTTP/2 counts such
        // streams.
        let _ = self.streams.engine.take_rejected();
        let costs = self.streams.engine.take_costs();
        if costs > 0 && turn.pay(costs).is_err() {
            self.fail(PeerError::Overdrawn);
        }
    }

    /// Charges the connection's abuse budget for the work that the client has caused in the transport.
    fn pay_for_transport(&mut self, turn: &mut Turn<'_>) {
        let costs = self
            .streams
            .quic
            .with(|quic| quic.take_costs())
            .unwrap_or(0);
        if costs > 0 && !self.is_closing() && turn.pay(costs).is_err() {
            self.fail(PeerError::Overdrawn);
        }
    }

    /// Ends the connection because the client has violated the protocol.
    fn fail(&mut self, error: PeerError) {
        self.streams.engine.fail(error);
        let (code, text) = error.answer();
        self.close(code, text);
    }

    fn close(&mut self, code: ErrorCode, text: &'static str) {
        self.closing.get_or_insert((code, text));
    }

    const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Error code and text for CONNECTION_CLOSE, once [`Http3::run`] has returned that the connection must be closed.
    pub(crate) fn closing(&self) -> Option<(u64, &'static str)> {
        self.closing.map(|(code, text)| (code.0, text))
    }

    /// The counter of connections that were closed with the error code of this one.
    pub(crate) fn error_counter(&self) -> Option<Counter> {
        let (code, _) = self.closing?;
        Some(match code {
            ErrorCode::DATAGRAM_ERROR => Counter::Http3ErrorDatagram,
            ErrorCode::GENERAL_PROTOCOL_ERROR => Counter::Http3ErrorGeneralProtocol,
            ErrorCode::STREAM_CREATION_ERROR => Counter::Http3ErrorStreamCreation,
            ErrorCode::CLOSED_CRITICAL_STREAM => Counter::Http3ErrorClosedCriticalStream,
            ErrorCode::FRAME_UNEXPECTED => Counter::Http3ErrorFrameUnexpected,
            ErrorCode::FRAME_ERROR => Counter::Http3ErrorFrame,
            ErrorCode::EXCESSIVE_LOAD => Counter::Http3ErrorExcessiveLoad,
            ErrorCode::ID_ERROR => Counter::Http3ErrorId,
            ErrorCode::SETTINGS_ERROR => Counter::Http3ErrorSettings,
            ErrorCode::MISSING_SETTINGS => Counter::Http3ErrorMissingSettings,
            ErrorCode::QPACK_DECOMPRESSION_FAILED => Counter::Http3ErrorQpackDecompressionFailed,
            ErrorCode::QPACK_ENCODER_STREAM_ERROR => Counter::Http3ErrorQpackEncoderStream,
            ErrorCode::QPACK_DECODER_STREAM_ERROR => Counter::Http3ErrorQpackDecoderStream,
            _ => return None,
        })
    }

    /// If the worker has many connections and this one has no streams, frees memory that can be allocated again.
    fn shrink_if_idle(&mut self, context: &Context) {
        self.requests.give_back_spare();
        if !self.streams.engine.has_streams() && context.has_many_connections() {
            self.requests.shrink();
            self.streams.shrink();
            self.blocked = Vec::new();
        }
    }

    /// Called when the waker of a request has fired.
    pub(crate) fn wake(&mut self, id: SlotId) {
        self.requests.wake(id);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.streams.engine.next_timeout(),
            self.pace.deadline(),
            self.requests.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Called when a timer of the connection has fired. The caller must call [`Http3::run`] afterwards.
    pub(crate) fn on_timeout(&mut self, turn: &mut Turn<'_>) {
        if self.pace.is_due(turn.now) {
            let transfers = self.streams.transfers();
            (self.pace).check(
                &mut self.requests,
                &mut self.streams,
                turn,
                &transfers,
                false,
            );
        }
        self.requests.on_timeout(&mut self.streams, turn);
        if self.streams.engine.on_timeout(turn.now) {
            self.close(ErrorCode::NO_ERROR, "shutting down");
        }
    }

    /// Begins graceful shutdown: the client gets GOAWAY (RFC 9114 §5.2).
    pub(crate) const fn shut_down(&mut self) {
        self.wants_shutdown = true;
    }

    /// Whether the connection has had a request, and none is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_used && !self.is_closing() && !self.streams.engine.has_streams()
    }

    /// Whether the client has been told that the connection ends.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.is_closing() || self.streams.engine.is_shutting_down()
    }

    /// Bytes of memory that the connection's driver holds.
    pub(crate) fn retained(&self) -> usize {
        let blocked = self.blocked.iter().map(|waiting| waiting.input.capacity());
        self.requests.retained() + self.streams.retained() + blocked.sum::<usize>()
    }

    /// Ends all requests of the connection.
    pub(crate) fn abandon(&mut self) {
        self.requests.abandon(&self.streams);
    }
}
