//! Implements [`Streams`](crate::request::Streams) for HTTP/3, on the streams of the QUIC transport.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{
    Body, BodyError, DatagramPipe, Exchange, ExchangeRef, FileReader, Http3Stream, Protocol,
    Response,
};
use h2o_http::priority::{PriorityField, PriorityParameters};
use h2o_http::{Headers, Known, ResponseHead, StatusCode};
use h2o_http3::{
    Command, ErrorCode, LocalStream, RepeatableSection, ServerConnection, StreamKey, StreamState,
};
use h2o_quic::{Connection, Output, SendDatagramError, SharedConnection, StreamId, Tails};

use super::{engine_id, slot, stream};
use crate::flow::Turn;
use crate::request::paces::StreamTransfers;
use crate::request::{
    CloseReason, HeadSent, KeptNumber, RequestLimits, ResponseShape, SlotId, StopReason, Streams,
    VersionRules, Window,
};
use crate::setup::Setup;

/// Response bodies up to this size are sent at once, behind their heads, as long as no other stream waits to send. Larger bodies go
/// through the scheduler, so that a later request can overtake them.
const AT_ONCE: usize = 8 * 1024;
/// Pieces of a body up to this size are copied behind the header of their DATA frame; larger pieces go to the transport without a
/// copy.
const COPIED: usize = 1024;
/// A client whose initial window per stream is smaller than this gets response bodies in pieces that fit into its windows: on a hundred
/// streams, larger pieces that wait for windows would hold more memory than the windows allow.
const SMALL_WINDOW: u64 = 64 * 1024;
/// Smallest number of bytes of a response's body for which the server asks the source.
const LEAST_PIECE: usize = 1024;
/// Response bodies from this size on that are sent at once go to the transport without a copy; shorter ones are copied behind their
/// heads.
const SHARED: usize = 256;
/// Bytes of room for the header of a DATA frame (RFC 9114 §7.1).
const HEADER_ROOM: usize = 9;
/// Number of bytes of a request's body that a client may send before a handler wants the body.
const FIRST_WINDOW: usize = 64 * 1024;

/// The protocol engine of a connection, together with the connection's QUIC transport.
pub(super) struct Http3Streams {
    pub(super) engine: ServerConnection,
    pub(super) quic: SharedConnection,
    /// The server's unidirectional streams, in the order of [`LocalStream::ALL`]; `None`: the stream is not open yet.
    local: [Option<StreamId>; 3],
    /// The driver's own state of each stream, by slot.
    stream_io: Vec<StreamIo>,
    /// Number of streams that the engine's scheduler knows to have something to send.
    ready: usize,
    /// The remaining output of responses that the transport has not taken yet, although their requests are over.
    tails: Tails,
    /// Number of bytes that the client takes of each stream before it raises the window, if that is less than [`SMALL_WINDOW`];
    /// otherwise `u64::MAX`.
    first_window: u64,
    /// Whether client and server have agreed on QUIC datagrams.
    has_datagrams: bool,
    /// The pipes for the datagrams of the tunnels.
    tunnels: Vec<(StreamKey, Rc<DatagramPipe>)>,
    /// A datagram that the transport has not taken yet.
    unsent: Option<Box<Bytes>>,
    /// Streams of which more can be read, because a handler has taken some of the body.
    readable: Vec<StreamId>,
    /// The encoded form of the response that the request table keeps.
    kept: Option<Box<Kept>>,
}

/// The encoded form of a kept response, which can be sent again on other streams.
struct Kept {
    number: KeptNumber,
    section: RepeatableSection,
    content_len: usize,
    /// The HEADERS and DATA frames.
    frames: Bytes,
}

/// The driver's own state of the stream of a request.
#[derive(Default)]
struct StreamIo {
    id: Option<StreamId>,
    output: Output,
    /// Whether the request table has something to send on the stream.
    is_ready: bool,
    /// Whether the transport takes nothing more on the stream for now.
    is_blocked: bool,
    /// Whether the engine's scheduler has the stream in its queue.
    is_queued: bool,
    /// Number of bytes of the request's body that the client may still send.
    window: usize,
    /// Whether there may be more to read on the stream than the window allows.
    has_unread: bool,
    sent: u64,
    /// Number of bytes of the response's body to ask the source for, while the server does not know how much the client takes.
    piece: usize,
}

impl Http3Streams {
    pub(super) fn new(
        engine: ServerConnection,
        quic: SharedConnection,
        has_datagrams: bool,
    ) -> Self {
        let handshake = quic.with(|quic| quic.handshake()).flatten();
        let mut streams = Self {
            engine,
            quic,
            first_window: (handshake.map(|handshake| handshake.stream_window))
                .filter(|window| *window < SMALL_WINDOW)
                .unwrap_or(u64::MAX),
            local: [None; 3],
            stream_io: Vec::new(),
            ready: 0,
            tails: Tails::default(),
            has_datagrams,
            tunnels: Vec::new(),
            unsent: None,
            readable: Vec::new(),
            kept: None,
        };
        streams.open_local();
        streams
    }

    /// Opens the server's control stream if the client allows another unidirectional stream.
    pub(super) fn open_local(&mut self) {
        self.local_stream(LocalStream::Control);
    }

    /// Returns one of the server's unidirectional streams, and opens it if it is not open yet; `None` if the client allows no more
    /// streams.
    fn local_stream(&mut self, stream: LocalStream) -> Option<StreamId> {
        let place = self.local.get_mut(stream as usize)?;
        if place.is_none() {
            *place = self.quic.open_one_urgent();
        }
        *place
    }

    /// Called when a datagram has come for a tunnel.
    pub(super) fn on_datagram(&self, key: StreamKey, datagram: Bytes) {
        if let Some((_, pipe)) = self.tunnels.iter().find(|(other, _)| *other == key) {
            // The datagram is lost if the handler of the tunnel does not keep up.
            pipe.receive(datagram);
        }
    }

    /// Once the client's SETTINGS have come, tells the tunnels whether the client accepts datagrams.
    pub(super) fn settle_datagrams(&self) {
        let Some(takes) = self.engine.takes_datagrams() else {
            return;
        };
        for (key, pipe) in &self.tunnels {
            if !pipe.is_settled() {
                let mut prefix = Vec::new();
                let takes = takes && self.engine.begin_datagram(*key, &mut prefix);
                pipe.settle(takes.then_some(&prefix));
            }
        }
    }

    /// Hands the datagrams of all tunnels to the transport, in turn one of each tunnel, as many as the transport takes.
    pub(super) fn send_datagrams(&mut self) {
        let mut idle = 0;
        loop {
            let datagram = match self.unsent.take() {
                Some(datagram) => *datagram,
                None if idle >= self.tunnels.len() => return,
                None => {
                    let next = self
                        .tunnels
                        .first()
                        .and_then(|(_, pipe)| pipe.next_to_send());
                    self.tunnels.rotate_left(1);
                    let Some(next) = next else {
                        idle += 1;
                        continue;
                    };
                    next
                }
            };
            idle = 0;
            match self.quic.with(|quic| quic.send_datagram(datagram.clone())) {
                Some(Err(SendDatagramError::Blocked)) => {
                    self.unsent = Some(Box::new(datagram));
                    return;
                }
                // A datagram that is too long is lost: if it were sent as a capsule, it would hide the MTU of the path (RFC 9298
                // §6.1).
                Some(
                    Ok(()) | Err(SendDatagramError::TooLarge | SendDatagramError::Unsupported),
                )
                | None => {}
            }
        }
    }

    /// Whether the client has acknowledged all bytes of the responses that were sent.
    pub(super) fn is_delivered(&self) -> bool {
        let open = self.quic.with(|quic| quic.unacknowledged_streams());
        self.tails.is_empty() && open.is_none_or(|open| open <= self.local.iter().flatten().count())
    }

    /// Writes the engine's frames to the server's unidirectional streams, then executes the engine's commands. A QPACK stream is
    /// opened for its first instruction: many connections never need one.
    pub(super) fn flush_engine(&mut self) {
        for stream in LocalStream::ALL {
            let is_open = self.local[stream as usize].is_some();
            // A QPACK stream without instructions has one pending byte: the type of the stream.
            const NOTHING: usize = 1;
            if !is_open && self.engine.pending(stream).len() <= NOTHING {
                continue;
            }
            let Some(id) = self.local_stream(stream) else {
                continue;
            };
            let taken = self.quic.write_some(id, self.engine.pending(stream));
            self.engine.advance(stream, taken);
        }
        self.obey_engine();
    }

    /// Resets the streams that the engine names, and asks the client to stop sending on the streams that the engine names for that.
    fn obey_engine(&mut self) {
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

    /// Begins the state of the stream of a new request.
    pub(super) fn begin(&mut self, key: StreamKey, id: StreamId) -> Protocol {
        let index = key.index();
        if self.stream_io.len() <= index {
            self.stream_io.resize_with(index + 1, StreamIo::default);
        }
        self.stream_io[index] = StreamIo {
            id: Some(id),
            window: FIRST_WINDOW,
            // The first piece of a response body after the initial window is small for a client whose initial window is small: such a
            // client also raises the window by little.
            piece: usize::try_from(self.first_window)
                .unwrap_or(usize::MAX)
                .max(LEAST_PIECE),
            ..StreamIo::default()
        };
        Protocol::Http3(Http3Stream {
            id: id.number(),
            ..Http3Stream::default()
        })
    }

    fn io(&mut self, key: StreamKey) -> Option<&mut StreamIo> {
        let io = self.stream_io.get_mut(key.index())?;
        io.id.is_some().then_some(io)
    }

    /// Number of bytes that may be read of a stream now.
    pub(super) fn window(&mut self, key: StreamKey) -> usize {
        self.io(key).map_or(usize::MAX, |io| io.window)
    }

    /// Notes that a stream was not read to its end, because its window is used up.
    pub(super) fn note_unread(&mut self, key: StreamKey) {
        if let Some(io) = self.io(key) {
            io.has_unread = true;
        }
    }

    /// Notes that `len` bytes of a request's body have come.
    pub(super) fn on_content(&mut self, key: StreamKey, len: usize) {
        if let Some(io) = self.io(key) {
            io.window = io.window.saturating_sub(len);
        }
    }

    /// Whether [`Http3Streams::poll_readable`] would return a stream.
    pub(super) const fn has_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Returns a stream of which more can be read.
    pub(super) fn poll_readable(&mut self) -> Option<StreamId> {
        self.readable.pop()
    }

    /// Called when the transport takes more bytes of a stream again.
    pub(super) fn on_writable(&mut self, id: StreamId) {
        if self.local.contains(&Some(id)) {
            return;
        }
        let Self { quic, tails, .. } = self;
        if quic.with(|quic| tails.flush(quic, id)) == Some(true) {
            return;
        }
        let Some(key) = self.engine.find(engine_id(id)) else {
            return;
        };
        let Self {
            quic, stream_io, ..
        } = self;
        let Some(io) = stream_io.get_mut(key.index()) else {
            return;
        };
        quic.with(|quic| io.output.flush(quic, id));
        io.is_blocked = !io.output.is_empty();
        self.update_ready(key);
    }

    /// Called when the client asks the server to stop sending on a stream: the rest of its output is dropped, and the stream is reset, even
    /// if its request is over (RFC 9000 §3.5). Without the reset the stream would never end, and the client could soon open no more.
    pub(super) fn on_stopped(&mut self, id: StreamId) {
        self.tails.forget(id);
        if !engine_id(id).is_unidirectional() {
            self.quic
                .with(|quic| quic.reset(id, ErrorCode::REQUEST_CANCELLED.0));
        }
    }

    /// Whether a stream has something to send that the transport takes.
    pub(super) const fn has_ready(&self) -> bool {
        self.ready > 0
    }

    fn update_ready(&mut self, key: StreamKey) {
        let Some(io) = self.stream_io.get_mut(key.index()) else {
            return;
        };
        let is_queued = io.is_ready && !io.is_blocked;
        if std::mem::replace(&mut io.is_queued, is_queued) != is_queued {
            if is_queued {
                self.ready += 1;
            } else {
                self.ready -= 1;
            }
            self.engine.set_ready(key, is_queued);
        }
    }

    /// How many bytes of a response's body to ask its source for, `most` at most: bytes that the transport does not take wait in
    /// memory until the client raises the window.
    pub(super) fn piece(&self, key: StreamKey, most: usize) -> usize {
        let Some(io) = self.stream_io.get(key.index()) else {
            return most;
        };
        let known = self.first_window.saturating_sub(io.sent);
        match usize::try_from(known).unwrap_or(usize::MAX) {
            0 => io.piece.min(most),
            known => known.min(most),
        }
    }

    /// Whether the transport takes data for a stream now. If not, the transport reports when it does
    /// ([`Http3Streams::on_writable`]).
    pub(super) fn takes_more(&mut self, key: StreamKey) -> bool {
        let Some(io) = self.io(key) else {
            return false;
        };
        let Some(id) = io.id else { return false };
        let takes = io.output.is_empty() && self.quic.has_room(id);
        if !takes {
            if let Some(io) = self.io(key) {
                io.is_blocked = true;
            }
            self.update_ready(key);
        }
        takes
    }

    /// Copies `bytes`, encoded frames, into the output of the stream.
    fn write_copy(&mut self, key: StreamKey, bytes: &[u8]) {
        self.write_by(key, bytes.len(), |output, quic, id| {
            output.write_copy(quic, id, bytes);
        });
    }

    /// Adds `bytes`, the content of a response, to the output of the stream without a copy.
    fn write(&mut self, key: StreamKey, bytes: Bytes) {
        let len = bytes.len();
        self.write_by(key, len, |output, quic, id| {
            output.write(quic, id, bytes);
        });
        self.fit_piece(key, len);
    }

    /// Notes that `len` bytes of a response's body were written. Next time the source will be asked for as many bytes as the
    /// transport took, or for twice as many if the transport took all.
    fn fit_piece(&mut self, key: StreamKey, len: usize) {
        let Some(io) = self.stream_io.get_mut(key.index()) else {
            return;
        };
        if !io.output.is_empty() {
            io.piece = len.saturating_sub(io.output.retained()).max(LEAST_PIECE);
        } else if io.piece <= len {
            io.piece = len.saturating_mul(2);
        }
    }

    /// Ends the server's direction of a stream.
    fn end(&mut self, key: StreamKey) {
        self.write_by(key, 0, Output::finish);
    }

    /// Writes `len` bytes to a stream by the function `write`.
    #[inline]
    fn write_by(
        &mut self,
        key: StreamKey,
        len: usize,
        write: impl FnOnce(&mut Output, &mut Connection, StreamId),
    ) {
        let Some(io) = self.stream_io.get_mut(key.index()) else {
            return;
        };
        let Some(id) = io.id else { return };
        io.sent += len as u64;
        self.quic.with(|quic| write(&mut io.output, quic, id));
        io.is_blocked |= !io.output.is_empty();
    }

    /// Sends a piece of a response's body in a DATA frame.
    fn send_content(&mut self, turn: &mut Turn<'_>, key: StreamKey, piece: &Bytes, is_end: bool) {
        turn.out.clear();
        if !self
            .engine
            .begin_data(key, piece.len() as u64, is_end, &mut turn.out)
        {
            return;
        }
        if piece.len() <= COPIED {
            turn.out.extend_from_slice(piece);
            self.write_copy(key, &turn.out);
        } else {
            self.write_copy(key, &turn.out);
            self.write(key, piece.clone());
        }
        turn.out.clear();
        if is_end {
            self.end(key);
        }
        self.update_ready(key);
    }

    /// Sets the priority of a stream in the transport, which sends the streams, and also resends lost data, in this order. What is queued
    /// already keeps its place in the order until the transport has sent the next packet of the stream.
    fn set_transport_priority(&self, key: StreamKey) {
        self.set_rank(key, false);
    }

    /// Like [`set_transport_priority`](Self::set_transport_priority). If `is_first`, nothing of the response has been sent.
    fn set_rank(&self, key: StreamKey, is_first: bool) {
        let Some(id) = self.engine.stream_id(key) else {
            return;
        };
        let PriorityParameters {
            urgency,
            incremental,
        } = self.engine.priority(key);
        // Among the responses of one urgency, those that are not incremental are sent first, one after the other, and with them the first
        // packet of each incremental response; then the incremental responses take turns. Responses of the default urgency have negative
        // ranks: streams without a priority, such as the control stream, have the rank 0 and go before them.
        const STREAMS: i32 = 1 << 24;
        let place = if incremental && !is_first {
            -STREAMS
        } else {
            let number = i32::try_from(id.get() / 4 % (1 << 24)).unwrap_or(0);
            -1 - number
        };
        let above = i32::from(PriorityParameters::DEFAULT.urgency) - i32::from(urgency.min(7));
        let rank = above * (STREAMS + 1) + place;
        self.quic
            .with(|quic| quic.set_priority(StreamId::new(id.get()), rank));
    }

    /// How far the client has come with the transfers of each stream. The transport does not tell which responses wait for the
    /// network and which wait for their window.
    pub(super) fn transfers(&self) -> Vec<StreamTransfers> {
        let of_stream = |info: h2o_http3::StreamInfo| {
            let io = self.stream_io.get(info.key.index());
            StreamTransfers {
                id: slot(info.key),
                received: info.received,
                may_receive: io.is_some_and(|io| io.window > 0),
                sent: info.sent,
                lacks_window: false,
                lacks_connection: io.is_some_and(|io| io.is_blocked),
            }
        };
        self.engine.streams().map(of_stream).collect()
    }

    /// Called when the client has changed the priority of a stream.
    pub(super) fn on_priority(&self, key: StreamKey) {
        self.set_transport_priority(key);
    }

    /// Bytes of memory that the streams hold.
    pub(super) fn retained(&self) -> usize {
        let outputs = self.stream_io.iter().map(|io| io.output.retained());
        self.engine.retained()
            + self.stream_io.capacity() * size_of::<StreamIo>()
            + outputs.sum::<usize>()
            + self.tails.retained()
            + (self.kept.as_ref()).map_or(0, |kept| size_of::<Kept>() + kept.frames.len())
    }

    /// Frees memory that can be allocated again when it is needed. The connection must have no streams.
    pub(super) fn shrink(&mut self) {
        self.engine.shrink();
        self.stream_io = Vec::new();
        self.readable = Vec::new();
        self.tunnels = Vec::new();
        self.tails.shrink();
        self.kept = None;
    }
}

impl Streams for Http3Streams {
    const RULES: VersionRules = VersionRules {
        ends_when_flushed: false,
        ends_with_source: false,
        reads_on_demand: false,
        always_continues: false,
        switches_protocols: false,
        stops_bodies_at_once: true,
        streaming_counter: None,
    };

    #[inline]
    fn limits(setup: &Setup) -> RequestLimits {
        RequestLimits {
            // The number of running requests has no limit here, because the QUIC transport limits how many streams a client may
            // open.
            running: usize::MAX,
            streaming: setup.http3.max_concurrent_streaming_requests,
            resets: setup.http2.max_concurrent_requests,
            reset_delay: setup.http2.dos_delay,
            sends_interims: setup.sends_informational,
        }
    }

    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize {
        turn.out.clear();
        let key = stream(id);
        let len = self.engine.inform(key, status, headers, &mut turn.out);
        self.set_rank(key, true);
        self.write_copy(key, &turn.out);
        turn.out.clear();
        len
    }

    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &Exchange,
        response: &mut Response,
        shape: ResponseShape,
    ) -> HeadSent {
        let key = stream(id);
        let own_priority = response.headers.get(Known::Priority);
        if let Some(field) = own_priority {
            self.engine.schedule(key, PriorityField::parse(field));
        }
        let head = ResponseHead {
            status: response.status,
            reason: None,
            headers: &response.headers,
            length: response.length,
            server: exchange.site.server_field.as_deref(),
        };
        let content = match &response.body {
            _ if !shape.has_body => None,
            Body::Bytes(bytes) if bytes.len() <= AT_ONCE && self.ready == 0 => Some(bytes),
            Body::Empty | Body::Bytes(_) | Body::File(_) | Body::Stream(_) => None,
        };
        let content_len = content.map_or(0, Bytes::len);
        let mut body = Bytes::new();
        turn.out.clear();
        let head_len = self
            .engine
            .respond(key, &head, !shape.has_body, &mut turn.out);
        if let Some(content) = content
            && (self.engine).begin_data(key, content_len as u64, true, &mut turn.out)
        {
            if content_len < SHARED {
                turn.out.extend_from_slice(content);
            } else {
                body = content.clone();
            }
        }
        let is_whole = content.is_some() || !shape.has_body;
        let frames = [turn.context.scratch.beginning.share(&turn.out), body];
        turn.out.clear();
        let is_repeatable = is_whole && head_len > 0 && own_priority.is_none();
        if let Some(number) = shape.kept.filter(|_| is_repeatable) {
            let section = self.engine.section_of(&head);
            let kept = self.kept.as_deref();
            if kept.map(|kept| (kept.number, kept.section))
                != section.map(|section| (number, section))
            {
                self.kept = section.map(|section| {
                    Box::new(Kept {
                        number,
                        section,
                        content_len,
                        frames: Bytes::from(frames.concat()),
                    })
                });
            }
        }
        // The priority is set before the head is written: queued data keeps its place in the transport's order, so the head would wait for
        // less urgent responses. For a short response of the default priority none is set: the transport then sends it before longer
        // responses of the same urgency.
        let priority = self.engine.priority(key);
        if !is_whole || priority != PriorityParameters::DEFAULT {
            self.set_rank(key, true);
        }
        let len = frames.iter().map(Bytes::len).sum();
        self.write_by(key, len, |output, quic, id| {
            output.write_all(quic, id, frames);
            if is_whole {
                output.finish(quic, id);
            }
        });
        if priority.incremental {
            self.set_transport_priority(key);
        }
        HeadSent {
            head_len,
            body_len: is_whole.then_some(content_len),
        }
    }

    #[inline]
    fn send_kept(&mut self, id: SlotId, number: KeptNumber) -> Option<usize> {
        let key = stream(id);
        let kept = self.kept.as_deref().filter(|kept| kept.number == number)?;
        let id = StreamId::new(self.engine.stream_id(key)?.get());
        let len = kept.content_len;
        if self.ready > 0 || !(self.engine).respond_again(key, &kept.section, len as u64) {
            return None;
        }
        let frames = kept.frames.clone();
        let priority = self.engine.priority(key);
        if priority != PriorityParameters::DEFAULT {
            self.set_rank(key, true);
        }
        let mut output = Output::default();
        self.quic.with(|quic| {
            output.write(quic, id, frames);
            output.finish(quic, id);
        });
        if !output.is_empty() {
            self.tails.push(id, output);
        }
        if priority.incremental {
            self.set_transport_priority(key);
        }
        self.engine.release(key);
        Some(len)
    }

    fn set_ready(&mut self, id: SlotId, is_ready: bool) {
        let key = stream(id);
        if let Some(io) = self.io(key) {
            io.is_ready = is_ready;
            self.update_ready(key);
        }
    }

    fn send_data(&mut self, turn: &mut Turn<'_>, id: SlotId, piece: &Bytes, is_end: bool) {
        self.send_content(turn, stream(id), piece, is_end);
    }

    fn send_file_data(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        max: usize,
        reader: &mut FileReader,
        task: &mut TaskContext<'_>,
    ) -> Result<Option<(usize, bool)>, BodyError> {
        let key = stream(id);
        let mut piece = Vec::with_capacity(HEADER_ROOM + max);
        piece.resize(HEADER_ROOM, 0);
        let len = match reader.poll_append(task, max, &mut piece) {
            Poll::Pending => return Ok(None),
            Poll::Ready(len) => len?,
        };
        let is_end = reader.remaining() == 0;
        turn.out.clear();
        let takes = self
            .engine
            .begin_data(key, len as u64, is_end, &mut turn.out);
        if takes {
            // The header of the DATA frame is put directly before the content, so that both are one piece.
            let at = HEADER_ROOM - turn.out.len();
            piece[at..HEADER_ROOM].copy_from_slice(&turn.out);
            self.write(key, Bytes::from(piece).slice(at..));
            if is_end {
                self.end(key);
            }
            self.update_ready(key);
        }
        turn.out.clear();
        Ok(Some((len, is_end)))
    }

    fn finish(&mut self, turn: &mut Turn<'_>, id: SlotId, trailers: Option<Headers>) {
        let key = stream(id);
        turn.out.clear();
        self.engine.finish(key, trailers.as_ref(), &mut turn.out);
        self.write_copy(key, &turn.out);
        turn.out.clear();
        self.end(key);
    }

    fn open_window(&mut self, turn: &mut Turn<'_>, id: SlotId, window: Window) {
        let body = turn.connection.listener.setup.http3.input_window_size as usize;
        let Some(io) = self.io(stream(id)) else {
            return;
        };
        match window {
            Window::Body => io.window += body.saturating_sub(FIRST_WINDOW),
            Window::Tunnel(limit) => {
                io.window += (limit as usize).saturating_sub(FIRST_WINDOW);
            }
            Window::Credit(len) => io.window += len,
        }
        if io.window > 0
            && std::mem::take(&mut io.has_unread)
            && let Some(id) = io.id
        {
            self.readable.push(id);
        }
    }

    fn open_datagrams(&mut self, id: SlotId, owner: Waker) -> Option<Rc<DatagramPipe>> {
        if !self.has_datagrams {
            return None;
        }
        let pipe = Rc::new(DatagramPipe::new(owner));
        self.tunnels.push((stream(id), Rc::clone(&pipe)));
        self.settle_datagrams();
        Some(pipe)
    }

    /// Does nothing: the client may use up its window, which is limited, and the data is dropped.
    #[inline]
    fn stop_input(&mut self, _id: SlotId, _reason: StopReason) {}

    #[inline]
    fn is_input_open(&self, id: SlotId) -> bool {
        self.engine.state(stream(id)) == StreamState::HalfClosedLocal
    }

    fn before_log(&self, id: SlotId, exchange: &ExchangeRef) {
        let key = stream(id);
        let Some(io) = self.stream_io.get(key.index()) else {
            return;
        };
        if let Ok(mut exchange) = exchange.try_borrow_mut()
            && let Some(http3) = exchange.protocol.http3_mut()
        {
            http3.was_blocked = self.engine.has_waited(key);
            http3.header_bytes = self.engine.head_len(key);
            http3.received = self.engine.bytes_taken(key);
            http3.sent = io.sent;
            http3.priority = self.engine.priority(key);
            if let Some((_, pipe)) = self.tunnels.iter().find(|(other, _)| *other == key) {
                exchange.sent.body_bytes += pipe.sent_bytes();
                exchange.request_body_bytes += pipe.received_bytes();
            }
        }
    }

    fn close(&mut self, _turn: &mut Turn<'_>, id: SlotId, reason: CloseReason) {
        let key = stream(id);
        let code = match reason {
            CloseReason::Complete | CloseReason::EnoughRead | CloseReason::Reset => None,
            CloseReason::Refused => Some(ErrorCode::REQUEST_REJECTED),
            CloseReason::TooSlow => Some(ErrorCode::REQUEST_CANCELLED),
            // The code CONNECT_ERROR tells the client that the connection to the tunnel's destination was reset (RFC 9114 §4.4).
            CloseReason::TunnelBroken => Some(ErrorCode::CONNECT_ERROR),
            // H2O compatibility: H2O ends the stream here as if the response were complete. This server does not: clients must be
            // able to tell that the response is incomplete.
            CloseReason::PushCancelled | CloseReason::BodyLost | CloseReason::BodyBroken => {
                Some(ErrorCode::INTERNAL_ERROR)
            }
        };
        self.set_ready(id, false);
        let io = self.stream_io.get_mut(key.index());
        let mut io = io.map(std::mem::take).unwrap_or_default();
        if let Some(code) = code {
            self.engine.reset(key, code);
        } else if reason != CloseReason::Reset
            && !io.output.is_empty()
            && let Some(id) = io.id
        {
            self.tails.push(id, std::mem::take(&mut io.output));
        }
        self.tunnels.retain(|(other, _)| *other != key);
        self.engine.release(key);
        self.obey_engine();
    }
}

/// Finds the slot of a stream, if the request table has the request on it.
pub(super) fn find(streams: &Http3Streams, id: StreamId) -> Option<SlotId> {
    streams.engine.find(engine_id(id)).map(slot)
}
