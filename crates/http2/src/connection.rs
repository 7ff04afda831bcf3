//! The parts of an HTTP/2 connection that both roles share: frames, settings, flow control windows, field blocks, content
//! to send.

use std::collections::VecDeque;
use std::time::Instant;

use crate::error::{ErrorCode, Fault, PeerError, StreamError};
use crate::field_block::{FieldBlock, SectionLimits};
use crate::flow_control::{RecvWindow, SendWindow};
use crate::frame::{self, FrameHeader, FrameType, HEADER_LEN, StreamId, flags};
use crate::hpack::{Decoder, Encoder};
use crate::scheduler::Scheduler;
use crate::settings::{self, DEFAULT_WINDOW, HEADER_TABLE, PeerSettings};
use crate::stream::{Stream, StreamKey, StreamState, Streams};

/// The receive window of a connection in bytes. H2O compatibility: H2O's window has the same size.
pub const CONNECTION_WINDOW: u32 = 16 << 20;

/// Limit in bytes of the received request content that a connection holds unread, plus the receive window that the client
/// still has. It has room for one full stream of the largest window whose handler does not read, and 1 MiB for the others.
pub(crate) const MAX_HELD: usize = CONNECTION_WINDOW as usize + (1 << 20);

/// The cost of a peer's actions, in units of the connection's budget. Served requests and sent content earn units, so that
/// a client in good faith stays far within its budget.
pub(crate) mod cost {
    /// Cost of PING, SETTINGS, PRIORITY, PRIORITY_UPDATE and unknown frames, and of WINDOW_UPDATE frames beyond those that
    /// sent DATA frames explain: each makes this side work or answer (CVE-2019-9512, -9513, -9515).
    pub(crate) const CONTROL: u32 = 1;
    /// Number of values in a SETTINGS frame for which one more unit is charged.
    pub(crate) const SETTINGS_VALUES: usize = 16;
    /// Cost of a DATA frame that neither carries content nor ends its stream (CVE-2019-9518), and of an empty CONTINUATION.
    pub(crate) const EMPTY: u32 = 1;
    /// Cost of a DATA frame that had to be cut to a few bytes because the peer's flow control window is small
    /// (CVE-2019-9511, -9517).
    pub(crate) const DRIBBLE: u32 = 2;
    /// Cost of a request that the peer cancels (CVE-2023-44487, "rapid reset").
    pub(crate) const RESET: u32 = 5;
    /// Cost of a request that this side has to reset because of the peer (CVE-2025-8671, "MadeYouReset").
    pub(crate) const CAUSED_RESET: u32 = 10;
    /// Cost of a field section that was refused for its size.
    pub(crate) const BOMB: u32 = 25;
}
/// The initial value of `due_updates`, and its limit later: at most this many WINDOW_UPDATE frames without cost can be
/// saved up.
pub(crate) const MAX_DUE_UPDATES: u32 = 256;
/// Once the peer has caused this many units of cost in a step, the step ends early, so that the caller can charge them to
/// the budget.
const REPORT_COSTS_AT: u32 = 32;
/// How many streams that this side has reset are remembered. The peer may have sent frames before it received the
/// RST_STREAM: such frames on a remembered stream are no error.
const MAX_ABANDONED: usize = 128;

/// The state of a connection that both roles share.
pub(crate) struct Connection {
    pub(crate) peer: PeerSettings,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    pub(crate) send_window: SendWindow,
    pub(crate) recv_window: RecvWindow,
    /// Bytes of content that were received and not yet used by the caller. From `max_held` on, the connection's receive
    /// window is not opened any more.
    held: usize,
    max_held: usize,
    pub(crate) streams: Streams,
    pub(crate) scheduler: Scheduler,
    pub(crate) block: Option<Box<FieldBlock>>,
    pub(crate) section_limits: SectionLimits,
    /// Units of cost that the peer has caused since the caller last took them.
    debt: u32,
    /// Number of WINDOW_UPDATE frames that the peer may send without cost. Each DATA frame that this side sends allows two:
    /// one for the stream's window and one for the connection's.
    pub(crate) due_updates: u32,
    /// When this side's SETTINGS were sent; `settings_acked` is when the peer first acknowledged them.
    pub(crate) settings_sent: Option<Instant>,
    pub(crate) settings_acked: Option<Instant>,
    /// Whether the peer has sent GOAWAY.
    pub(crate) is_peer_leaving: bool,
    /// The latest streams that this side has reset while the peer could still send on them.
    abandoned: VecDeque<StreamId>,
}

impl Connection {
    pub(crate) fn new(max_held: usize, section_limits: SectionLimits) -> Self {
        Self {
            peer: PeerSettings::default(),
            decoder: Decoder::new(HEADER_TABLE),
            encoder: Encoder::new(),
            send_window: SendWindow::new(DEFAULT_WINDOW),
            recv_window: RecvWindow::new(DEFAULT_WINDOW),
            held: 0,
            max_held,
            streams: Streams::new(),
            scheduler: Scheduler::new(),
            block: None,
            section_limits,
            debt: 0,
            due_updates: MAX_DUE_UPDATES,
            settings_sent: None,
            settings_acked: None,
            is_peer_leaving: false,
            abandoned: VecDeque::new(),
        }
    }

    #[inline]
    pub(crate) fn charge(&mut self, units: u32) {
        self.debt = self.debt.saturating_add(units);
    }

    #[inline]
    pub(crate) const fn is_charged(&self) -> bool {
        self.debt >= REPORT_COSTS_AT
    }

    pub(crate) const fn take_costs(&mut self) -> u32 {
        std::mem::replace(&mut self.debt, 0)
    }

    /// The next frame of `input`: its header and payload. `None` if the frame is incomplete.
    #[inline]
    pub(crate) fn next_frame<'a>(
        &self,
        input: &'a [u8],
    ) -> Result<Option<(FrameHeader, &'a [u8])>, PeerError> {
        let Some(header) = FrameHeader::parse(input) else {
            return Ok(None);
        };
        if header.len > frame::MAX_FRAME_SIZE {
            return Err(PeerError::FrameTooLong);
        }
        if let Some(block) = &self.block {
            if header.kind != FrameType::CONTINUATION {
                return Err(PeerError::ContinuationExpected);
            }
            if header.stream != block.stream {
                return Err(PeerError::ContinuationStream);
            }
        }
        Ok(input
            .get(HEADER_LEN..HEADER_LEN + header.len)
            .map(|payload| (header, payload)))
    }

    /// Deducts a DATA frame from the receive windows of its stream and of the connection. Returns the stream and the
    /// frame's content.
    ///
    /// `newest` is the latest stream opened by the side that opens streams with such identifiers as `header.stream`.
    pub(crate) fn on_data<'a>(
        &mut self,
        header: &FrameHeader,
        payload: &'a [u8],
        newest: StreamId,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<(StreamKey, &'a [u8]), Fault> {
        if header.stream == StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(FrameType::DATA).into());
        }
        let data = frame::without_padding(header, payload)?;
        // DATA on a closed stream counts against the window of the connection, too (RFC 9113 §5.1).
        self.recv_window
            .take(payload.len())
            .map_err(|_| PeerError::WindowExceeded)?;
        let taken = self.on_stream_data(header, payload.len(), data, newest, limit, out);
        self.refill(payload.len(), out);
        taken.map(|key| (key, data))
    }

    /// Updates the state and window of a stream for the content `data`, which came in a payload of `len` bytes.
    fn on_stream_data(
        &mut self,
        header: &FrameHeader,
        len: usize,
        data: &[u8],
        newest: StreamId,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<StreamKey, Fault> {
        if header.stream > newest {
            return Err(PeerError::IdleStream(FrameType::DATA).into());
        }
        let fault = |error| Fault::Stream(header.stream, error);
        let closed = fault(StreamError::Closed);
        let key = self.streams.find(header.stream).ok_or(closed)?;
        let stream = self.streams.get_mut(key).ok_or(closed)?;
        if !stream.state.can_recv() {
            return Err(closed);
        }
        stream
            .recv_window
            .take(len)
            .map_err(|_| fault(StreamError::WindowExceeded))?;
        if let Some(increment) = stream.recv_window.give_back(len - data.len()) {
            frame::window_update(out, header.stream, increment);
        }
        let is_end = header.has(flags::END_STREAM);
        stream.received += data.len() as u64;
        let is_wrong = match stream.declared {
            Some(declared) if is_end => stream.received != declared,
            Some(declared) => stream.received > declared,
            None => false,
        };
        if is_wrong {
            return Err(fault(StreamError::ContentLength));
        }
        if stream.received > limit && !stream.is_tunnel {
            return Err(fault(StreamError::BodyTooLarge));
        }
        stream.held += data.len();
        self.held += data.len();
        if data.is_empty() && !is_end {
            self.charge(cost::EMPTY);
        }
        Ok(key)
    }

    /// Opens the receive window of the connection by `len` bytes, as far as the unread content allows. H2O compatibility:
    /// H2O opens it at once, before a handler has used the bytes.
    #[inline]
    fn refill(&mut self, len: usize, out: &mut Vec<u8>) {
        let most = self.max_held.saturating_sub(self.held);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        if let Some(increment) = self.recv_window.give_back_up_to(len, most) {
            frame::window_update(out, StreamId::CONNECTION, increment);
        }
    }

    /// Updates the stream after the peer sent END_STREAM on it.
    pub(crate) fn on_end_recv(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        match stream.state {
            StreamState::Open => stream.state = StreamState::HalfClosedRemote,
            StreamState::HalfClosedLocal => self.close(key),
            StreamState::HalfClosedRemote | StreamState::ReservedLocal | StreamState::Closed => {}
        }
    }

    /// Handles SETTINGS of the peer (RFC 9113 §6.5).
    pub(crate) fn on_settings(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<(), PeerError> {
        if header.stream != StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(FrameType::SETTINGS));
        }
        let values = u32::try_from(payload.len() / 6 / cost::SETTINGS_VALUES).unwrap_or(u32::MAX);
        self.charge(cost::CONTROL + values);
        if header.has(flags::ACK) {
            if !payload.is_empty() {
                return Err(PeerError::SettingsAckSize);
            }
            self.settings_acked.get_or_insert(now);
            return Ok(());
        }
        self.apply_settings(payload)?;
        frame::settings_ack(out);
        Ok(())
    }

    /// Applies settings of the peer, from a SETTINGS frame or from the field `HTTP2-Settings`.
    pub(crate) fn apply_settings(&mut self, payload: &[u8]) -> Result<(), PeerError> {
        let before = self.peer;
        self.peer.apply(payload)?;
        // If the peer announces several header table sizes in one frame, the smallest must be applied, too, not only the
        // last (RFC 7541 §4.2).
        for size in settings::table_sizes(payload) {
            self.encoder.set_peer_table_size(size);
        }
        if self.peer.no_rfc7540_priorities {
            self.scheduler.use_urgencies();
        }
        let shift =
            i64::from(self.peer.initial_window_size) - i64::from(before.initial_window_size);
        if shift == 0 {
            return Ok(());
        }
        for key in self.streams.open_keys() {
            if let Some(stream) = self.streams.get_mut(key) {
                stream
                    .send_window
                    .shift(shift)
                    .map_err(|_| PeerError::SettingsWindow)?;
            }
            self.update_ready(key);
        }
        Ok(())
    }

    /// Handles PING (RFC 9113 §6.7): answers it unless it is an acknowledgement.
    pub(crate) fn on_ping(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), PeerError> {
        if header.stream != StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(FrameType::PING));
        }
        let data = payload
            .try_into()
            .map_err(|_| PeerError::FrameSize(FrameType::PING))?;
        self.charge(cost::CONTROL);
        if !header.has(flags::ACK) {
            frame::ping(out, flags::ACK, data);
        }
        Ok(())
    }

    /// Handles GOAWAY: returns the last stream that the peer will process, and its error code (RFC 9113 §6.8).
    pub(crate) fn on_goaway(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(StreamId, ErrorCode), PeerError> {
        if header.stream != StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(FrameType::GOAWAY));
        }
        let Some(&[a, b, c, d, e, f, g, h]) = payload.first_chunk::<8>() else {
            return Err(PeerError::FrameSize(FrameType::GOAWAY));
        };
        self.charge(cost::CONTROL);
        self.is_peer_leaving = true;
        let last = StreamId::new(u32::from_be_bytes([a, b, c, d]));
        Ok((last, ErrorCode(u32::from_be_bytes([e, f, g, h]))))
    }

    /// Handles WINDOW_UPDATE (RFC 9113 §6.9). `is_idle` tells whether the stream was never opened.
    pub(crate) fn on_window_update(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        is_idle: bool,
    ) -> Result<(), Fault> {
        let kind = FrameType::WINDOW_UPDATE;
        let bytes = payload.try_into().map_err(|_| PeerError::FrameSize(kind))?;
        let increment = u32::from_be_bytes(bytes) & 0x7fff_ffff;
        match self.due_updates.checked_sub(1) {
            Some(due) => self.due_updates = due,
            None => self.charge(cost::CONTROL),
        }
        if header.stream == StreamId::CONNECTION {
            if increment == 0 {
                return Err(PeerError::ZeroIncrement.into());
            }
            self.send_window
                .grow(increment)
                .map_err(|_| PeerError::WindowOverflow)?;
            return Ok(());
        }
        if is_idle {
            return Err(PeerError::IdleStream(kind).into());
        }
        let Some(key) = self.streams.find(header.stream) else {
            return Ok(()); // The stream is closed: RFC 9113 §5.1 allows such frames for a while.
        };
        if increment == 0 {
            return Err(Fault::Stream(header.stream, StreamError::ZeroIncrement));
        }
        if let Some(stream) = self.streams.get_mut(key) {
            stream
                .send_window
                .grow(increment)
                .map_err(|_| Fault::Stream(header.stream, StreamError::WindowOverflow))?;
        }
        self.update_ready(key);
        Ok(())
    }

    /// Handles RST_STREAM: closes the stream. Returns it with the error code, if it was open.
    pub(crate) fn on_rst_stream(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        is_idle: bool,
    ) -> Result<Option<(StreamKey, ErrorCode)>, PeerError> {
        let kind = FrameType::RST_STREAM;
        if header.stream == StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(kind));
        }
        let bytes = payload.try_into().map_err(|_| PeerError::FrameSize(kind))?;
        if is_idle {
            return Err(PeerError::IdleStream(kind));
        }
        // A reset is charged even if it came after the whole response was sent: the peer has made this side work for
        // nothing.
        self.charge(cost::RESET);
        let Some(key) = self.streams.find(header.stream) else {
            return Ok(None);
        };
        self.close(key);
        Ok(Some((key, ErrorCode(u32::from_be_bytes(bytes)))))
    }

    /// Closes a stream in both directions.
    pub(crate) fn close(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && let Some(node) = stream.node.take()
        {
            stream.last_place = Some((self.scheduler.received(node), self.scheduler.actual(node)));
            self.scheduler.close(node);
        }
        self.streams.close(key);
    }

    /// Writes RST_STREAM for a stream that is not closed, and closes it.
    pub(crate) fn reset(&mut self, key: StreamKey, code: ErrorCode, out: &mut Vec<u8>) {
        if let Some(stream) = self.streams.get(key)
            && stream.state != StreamState::Closed
        {
            let id = stream.id;
            frame::rst_stream(out, id, code);
            if stream.state.can_recv() {
                self.abandon(id);
            }
            self.close(key);
        }
    }

    /// Remembers a stream that this side has reset while the peer could still send on it.
    pub(crate) fn abandon(&mut self, id: StreamId) {
        if self.abandoned.len() == MAX_ABANDONED {
            self.abandoned.pop_front();
        }
        self.abandoned.push_back(id);
    }

    /// Whether this side has reset the stream so recently that the peer may not know: its frames are to be discarded (RFC
    /// 9113 §5.1).
    pub(crate) fn is_abandoned(&self, id: StreamId) -> bool {
        self.abandoned.contains(&id)
    }

    pub(crate) fn insert(&mut self, stream: Stream) -> StreamKey {
        self.streams.insert(stream)
    }

    /// Reports that the caller has used `len` bytes of a stream's content: the receive windows of the stream and of the
    /// connection open by as many bytes, but in all by no more than was received.
    pub(crate) fn release_content(&mut self, key: StreamKey, len: usize, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let used = len.min(stream.held);
        stream.held -= used;
        self.held -= used;
        if stream.state.can_recv()
            && let Some(increment) = stream.recv_window.give_back(used)
        {
            frame::window_update(out, stream.id, increment);
        }
        self.refill(0, out);
    }

    /// Frees a stream that the caller no longer uses, with its content.
    #[inline]
    pub(crate) fn release(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        let held = self.streams.get(key).map_or(0, |stream| stream.held);
        self.streams.release(key);
        if held > 0 {
            self.held -= held;
            self.refill(0, out);
        }
    }

    /// Raises the receive window of a stream from its default to `window` bytes, so that the peer may send that much. To be
    /// called when a handler begins to read the content of the stream.
    pub(crate) fn accept_content(&mut self, key: StreamKey, window: u32, out: &mut Vec<u8>) {
        if let Some(stream) = self.streams.get_mut(key)
            && !std::mem::replace(&mut stream.is_accepted, true)
            && stream.state.can_recv()
        {
            let increment = window.saturating_sub(DEFAULT_WINDOW);
            if increment > 0 {
                stream.recv_window.raise(increment);
                frame::window_update(out, stream.id, increment);
            }
        }
    }

    /// Frees the memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        self.streams.shrink();
        self.scheduler.shrink();
        self.decoder.shrink();
        self.abandoned = VecDeque::new();
    }

    pub(crate) fn retained(&self) -> usize {
        self.streams.retained()
            + self.decoder.retained()
            + self.encoder.retained()
            + self.abandoned.capacity() * size_of::<StreamId>()
            + self
                .block
                .as_ref()
                .map_or(0, |block| block.bytes.capacity())
    }
}
