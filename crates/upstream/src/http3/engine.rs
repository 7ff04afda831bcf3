//! The HTTP/3 engine of a connection to a backend, and the output that QUIC has not taken.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use h2o_exchange::Clock;
use h2o_http::RequestHead;
use h2o_http3::{
    ClientConnection, ClientSettings, Command, ErrorCode, LocalStream, StreamKey, StreamState,
};
use h2o_quic::{ConnectionIndex, Output, SharedConnection, StreamId, Tails};

use super::liveness::Liveness;
use crate::Protocol;
use crate::multiplexed::{Engine, StreamIndex, StreamSettings};

/// Number of bytes of a body that are handed to QUIC at a time.
const PIECE: usize = 16 * 1024;
/// Least number of bytes that the backend may send on a stream before they are read. Heads of responses count as well.
const MIN_WINDOW: u32 = 16 * 1024;

/// Limit in bytes of the buffer that an idle connection keeps.
const KEPT_BUFFER: usize = 4 * 1024;

/// The state of a connection's QUIC handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    Running,
    Done,
    /// The handshake failed, for this reason.
    Failed(String),
}

/// The HTTP/3 engine of a connection, and its QUIC connection.
pub(crate) struct Http3 {
    pub(super) engine: ClientConnection,
    pub(super) quic: SharedConnection,
    pub(super) handshake: Handshake,
    clock: Rc<Clock>,
    pub(super) liveness: Liveness,
    /// Connections that the worker has to run soon, because a request has given them something to send.
    changed: Rc<RefCell<Vec<ConnectionIndex>>>,
    /// The unidirectional streams of this side, in the order of [`LocalStream::ALL`].
    local: Vec<StreamId>,
    /// The QUIC stream for the next request; `None` if the backend allows no more streams for now.
    next: Option<StreamId>,
    /// The streams of the requests, indexed by [`StreamIndex`].
    stream_io: Vec<StreamIo>,
    /// The last bytes of requests whose streams were released, as far as QUIC has not taken them.
    tails: Tails,
    /// Streams of which more can be read, since the client has taken content.
    pub(super) readable: Vec<StreamId>,
    max_streams: usize,
    window: u32,
    bytes_made: u64,
    /// Number of bytes read from all streams so far.
    pub(super) bytes_read: u64,
    buffer: Vec<u8>,
}

/// The stream of a request.
#[derive(Default)]
struct StreamIo {
    id: Option<StreamId>,
    output: Output,
    has_content: bool,
    /// Whether QUIC takes no bytes of the stream for now.
    is_blocked: bool,
    /// Whether the stream may have more to read than the client has room for.
    has_unread: bool,
}

pub(super) const fn index(key: StreamKey) -> StreamIndex {
    StreamIndex(key.index())
}

fn key(stream: StreamIndex) -> StreamKey {
    StreamKey::from_index(u32::try_from(stream.0).unwrap_or(u32::MAX))
}

/// The number by which the engine knows a QUIC stream.
pub(super) const fn engine_id(id: StreamId) -> h2o_http3::StreamId {
    h2o_http3::StreamId::new(id.number())
}

/// Number of bytes that the backend may send on a stream before they are read, for a stream whose window is `window` bytes. This
/// is half of the window, because as many bytes that were read may wait for the client.
pub(super) const fn receive_window(window: u32) -> u32 {
    if window / 2 < MIN_WINDOW {
        MIN_WINDOW
    } else {
        window / 2
    }
}

impl Http3 {
    /// Makes the engine of a connection that is being opened.
    pub(super) fn new(
        settings: &StreamSettings,
        quic: SharedConnection,
        changed: Rc<RefCell<Vec<ConnectionIndex>>>,
        clock: &Rc<Clock>,
    ) -> Self {
        let client = ClientSettings {
            max_streams: settings.max_streams,
            // H2O compatibility: QPACK's dynamic table is not used. Requests to a backend are many and alike, but all clients would
            // share the table: a client that can observe the lengths of packets could probe for field values of other clients (RFC
            // 9204 §7.1).
            qpack_decoder_capacity: 0,
            qpack_encoder_capacity: 0,
            // A backend then sends the payloads of a tunnel in capsules (RFC 9297 §3.5), which pass through like any other content.
            takes_datagrams: false,
        };
        Self {
            engine: ClientConnection::new(Arc::new(client), true),
            quic,
            handshake: Handshake::Running,
            clock: Rc::clone(clock),
            liveness: Liveness::new(clock.now()),
            changed,
            local: Vec::new(),
            next: None,
            stream_io: Vec::new(),
            tails: Tails::default(),
            readable: Vec::new(),
            max_streams: settings.max_streams as usize,
            window: settings.window,
            bytes_made: 0,
            bytes_read: 0,
            buffer: Vec::new(),
        }
    }

    /// Opens the control and QPACK streams of this side, and the stream that the next request will use, as far as the backend's
    /// limits of streams allow.
    pub(super) fn open_streams_ahead(&mut self) {
        self.quic
            .open_urgent(&mut self.local, LocalStream::ALL.len());
        if self.next.is_none() {
            self.next = self
                .quic
                .with(h2o_quic::Connection::open_bidirectional)
                .flatten();
        }
    }

    /// Whether the backend's limit of streams allows a request.
    pub(super) const fn has_stream(&self) -> bool {
        self.next.is_some()
    }

    /// Writes the engine's frames to the unidirectional streams of this side. Then carries out the engine's commands: resets
    /// streams, and asks the backend to stop sending on streams.
    pub(super) fn flush(&mut self) {
        for (stream, &id) in LocalStream::ALL.into_iter().zip(&self.local) {
            let taken = self.quic.write_some(id, self.engine.pending(stream));
            self.engine.advance(stream, taken);
        }
        while let Some(command) = self.engine.poll_command() {
            self.quic.with(|quic| match command {
                Command::Reset { stream, code } => {
                    quic.reset(StreamId::new(stream.get()), code.0);
                }
                Command::StopSending { stream, code } => {
                    quic.stop_sending(StreamId::new(stream.get()), code.0);
                }
            });
        }
    }

    fn io(&mut self, stream: StreamIndex) -> Option<&mut StreamIo> {
        let io = self.stream_io.get_mut(stream.0)?;
        io.id.is_some().then_some(io)
    }

    /// The request's stream that has this QUIC stream id.
    pub(super) fn find(&self, id: StreamId) -> Option<StreamIndex> {
        self.engine.find(engine_id(id)).map(index)
    }

    /// Number of bytes of a stream that may be read now, while `queued` bytes wait that the client has not taken.
    pub(super) const fn room(&self, queued: usize) -> usize {
        let half = self.window.div_ceil(2) as usize;
        half.saturating_sub(queued)
    }

    /// Records that a stream was not read to its end.
    pub(super) fn note_unread(&mut self, stream: StreamIndex) {
        if let Some(io) = self.io(stream) {
            io.has_unread = true;
        }
    }

    /// Handles the event that QUIC takes more bytes of a stream.
    pub(super) fn on_writable(&mut self, id: StreamId) {
        let Self {
            quic,
            tails,
            stream_io,
            engine,
            ..
        } = self;
        if quic.with(|quic| tails.flush(quic, id)) == Some(true) {
            return;
        }
        let Some(key) = engine.find(engine_id(id)) else {
            return;
        };
        let Some(io) = stream_io.get_mut(key.index()) else {
            return;
        };
        quic.with(|quic| io.output.flush(quic, id));
        io.is_blocked = !io.output.is_empty();
        self.update_ready(index(key));
    }

    /// Drops the output of a stream, because the backend wants no more of it.
    pub(super) fn drop_output(&mut self, id: StreamId) {
        self.tails.forget(id);
        if let Some(stream) = self.find(id)
            && let Some(io) = self.io(stream)
        {
            io.output = Output::default();
        }
    }

    /// Tells the scheduler whether the stream has something to send that QUIC takes.
    fn update_ready(&mut self, stream: StreamIndex) {
        if let Some(io) = self.io(stream) {
            let is_ready = io.has_content && !io.is_blocked;
            self.engine.set_ready(key(stream), is_ready);
        }
    }

    /// Whether QUIC takes bytes of a stream now; if not, [`Http3::on_writable`] is called when it does.
    fn takes_more(&mut self, stream: StreamIndex) -> bool {
        let Some(io) = self.io(stream) else {
            return false;
        };
        let (id, is_free) = (io.id, io.output.is_empty());
        let takes = is_free && id.is_some_and(|id| self.quic.has_room(id));
        if !takes {
            if let Some(io) = self.io(stream) {
                io.is_blocked = true;
            }
            self.update_ready(stream);
        }
        takes
    }

    /// Hands the frames in the buffer to QUIC, then `piece`, then the end of the stream if `is_end`.
    fn write(&mut self, stream: StreamIndex, piece: Bytes, is_end: bool) {
        let Some(io) = self.stream_io.get_mut(stream.0) else {
            return;
        };
        let Some(id) = io.id else { return };
        self.bytes_made += (self.buffer.len() + piece.len()) as u64;
        self.quic.with(|quic| {
            io.output.write_copy(quic, id, &self.buffer);
            io.output.write(quic, id, piece);
            if is_end {
                io.output.finish(quic, id);
            }
        });
        self.buffer.clear();
        io.is_blocked = !io.output.is_empty();
        self.update_ready(stream);
    }

    /// Whether the backend has acknowledged everything of the requests whose streams were released.
    pub(super) fn is_delivered(&self) -> bool {
        let ours = self.local.len() + usize::from(self.next.is_some());
        let open = self.quic.with(h2o_quic::Connection::unacknowledged_streams);
        self.tails.is_empty() && open.is_none_or(|open| open <= ours)
    }

    /// Frees memory that is not needed while no request is in progress, after a request whose head needed much.
    pub(super) fn shrink(&mut self) {
        if self.buffer.capacity() > KEPT_BUFFER {
            self.buffer = Vec::new();
            self.engine.shrink();
        }
    }
}

impl Engine for Http3 {
    const PROTOCOL: Protocol = Protocol::Http3;

    fn can_request(&self) -> bool {
        self.engine.can_request()
            && self.next.is_some()
            && !self.liveness.is_doubtful(self.clock.now())
    }

    fn is_reusable(&self) -> bool {
        self.engine.is_reusable()
    }

    fn is_over(&self) -> bool {
        self.engine.is_over() && self.is_delivered()
    }

    fn has_streams(&self) -> bool {
        self.engine.open_streams() > 0 || !self.is_delivered()
    }

    fn open_streams(&self) -> usize {
        self.engine.open_streams()
    }

    /// Limit of the streams that are open at a time. Once the backend allows no more, this is the number of open streams: the
    /// backend's own limit is known only when it is reached.
    fn most_streams(&self) -> usize {
        if self.next.is_some() {
            self.max_streams
        } else {
            self.open_streams()
        }
    }

    /// The limit is a transport parameter, which comes with the handshake.
    fn knows_limit(&self) -> bool {
        true
    }

    fn has_settings(&self) -> bool {
        self.engine.peer_settings().is_some()
    }

    fn takes_extended_connect(&self) -> bool {
        self.engine.takes_extended_connect()
    }

    fn request(&mut self, head: &RequestHead, is_complete: bool) -> Option<(StreamIndex, usize)> {
        let id = self.next?;
        self.buffer.clear();
        let engine_id = engine_id(id);
        let key = (self.engine).request(engine_id, head, is_complete, &mut self.buffer)?;
        self.next = None;
        let stream = index(key);
        if self.stream_io.len() <= stream.0 {
            self.stream_io.resize_with(stream.0 + 1, StreamIo::default);
        }
        self.stream_io[stream.0] = StreamIo {
            id: Some(id),
            ..StreamIo::default()
        };
        let len = self.buffer.len();
        self.write(stream, Bytes::new(), is_complete);
        self.open_streams_ahead();
        Some((stream, len))
    }

    fn set_content(&mut self, stream: StreamIndex, has_content: bool) {
        if let Some(io) = self.io(stream) {
            io.has_content = has_content;
        }
        self.update_ready(stream);
    }

    fn poll_send(&mut self) -> Option<(StreamIndex, usize)> {
        while let Some(key) = self.engine.poll_send() {
            if self.takes_more(index(key)) {
                return Some((index(key), PIECE));
            }
        }
        None
    }

    fn send_data(&mut self, stream: StreamIndex, piece: Bytes, is_end: bool) {
        let (len, out) = (piece.len() as u64, &mut self.buffer);
        if self.engine.begin_data(key(stream), len, is_end, out) {
            self.write(stream, piece, is_end);
        }
    }

    fn send_data_with<E>(
        &mut self,
        stream: StreamIndex,
        max: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<Option<(usize, bool)>, E>,
    ) -> Result<Option<(usize, bool)>, E> {
        let mut piece = Vec::with_capacity(max);
        let filled = fill(&mut piece)?;
        if let Some((_, is_end)) = filled {
            self.send_data(stream, piece.into(), is_end);
        }
        Ok(filled)
    }

    fn finish(&mut self, stream: StreamIndex) {
        self.engine.finish(key(stream), None, &mut self.buffer);
        self.write(stream, Bytes::new(), true);
    }

    fn cancel(&mut self, stream: StreamIndex) {
        let code = ErrorCode::REQUEST_CANCELLED;
        self.engine.reset(key(stream), code);
        if let Some(io) = self.io(stream) {
            io.output = Output::default();
        }
    }

    fn release(&mut self, stream: StreamIndex) -> bool {
        let was_over = self.engine.state(key(stream)) == StreamState::Closed;
        self.engine.release(key(stream));
        if let Some(io) = self.stream_io.get_mut(stream.0) {
            let io = std::mem::take(io);
            // The request is complete, but QUIC has not taken its last bytes, so these are kept in `tails`.
            if let Some(id) = io.id.filter(|_| io.output.ends()) {
                self.tails.push(id, io.output);
            }
        }
        !was_over
    }

    fn release_content(&mut self, stream: StreamIndex, _len: usize, queued: usize) -> bool {
        let has_room = self.room(queued) > self.room(0) / 2;
        let Some(io) = self.io(stream) else {
            return false;
        };
        if !(io.has_unread && has_room) {
            return false;
        }
        io.has_unread = false;
        let id = io.id;
        self.readable.extend(id);
        true
    }

    /// Begins to close the connection. No GOAWAY is sent, because the server opens no streams (RFC 9114 §5.2).
    fn go_away(&mut self) {
        self.engine.leave();
    }

    fn bytes_made(&self) -> u64 {
        self.bytes_made
    }

    fn has_backlog(&self) -> bool {
        !self.tails.is_empty() || self.stream_io.iter().any(|io| !io.output.is_empty())
    }

    fn is_written(&self, stream: StreamIndex) -> bool {
        let io = self.stream_io.get(stream.0);
        io.is_none_or(|io| io.output.is_empty())
    }

    fn frame_len(payload: usize) -> usize {
        // A frame begins with its type and its length, which is a variable-length integer (RFC 9114 §7.1).
        let len = match payload {
            ..64 => 1,
            64..16_384 => 2,
            _ => 4,
        };
        1 + len + payload
    }

    fn stream_window(&self) -> usize {
        receive_window(self.window) as usize + self.room(0)
    }

    fn on_change(&mut self) {
        self.changed.borrow_mut().push(self.quic.index());
    }
}
