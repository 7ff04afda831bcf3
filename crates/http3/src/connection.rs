//! The parts of an HTTP/3 connection that both roles share: streams, settings, QPACK, priorities, and the actions that the
//! caller takes on the transport.

use std::collections::VecDeque;

use h2o_http::field_section::encode_fields;
use h2o_http::priority::{PriorityField, PriorityParameters, QueuedStream, UrgencyQueue};
use h2o_http::{Headers, StatusCode};

use crate::error::{ErrorCode, Fault, PeerError, StreamError};
use crate::frame::{self, Disposition, FrameType, MAX_PAYLOAD, Piece};
use crate::local::{LocalStream, Pending};
use crate::qpack::{Decoder, Encoder, SectionWriter};
use crate::remote::{RemoteStreams, Role};
use crate::settings::PeerSettings;
use crate::stream::{BlockedSection, Stage, StreamKey, StreamState, Streams};
use crate::stream_id::StreamId;
use crate::varint;

/// The cost of a peer's actions, in units of the connection's budget. Served requests and sent content earn units, so that
/// a client in good faith stays far within its budget. The numbers are those of HTTP/2.
pub(crate) mod cost {
    /// Cost of a frame on the control stream, of an unknown frame, or of a unidirectional stream of unknown type: each
    /// makes this side work.
    pub(crate) const CONTROL: u32 = 1;
    /// Cost of a DATA frame that neither carries content nor ends its stream.
    pub(crate) const EMPTY: u32 = 1;
    /// Cost of a request that the peer cancels ("rapid reset").
    pub(crate) const RESET: u32 = 5;
    /// Cost of a request that this side has to reset because of the peer.
    pub(crate) const CAUSED_RESET: u32 = 10;
    /// Cost of a field section that was refused for its size.
    pub(crate) const BOMB: u32 = 25;
}
/// Number of datagrams without a tunnel that cost [`cost::CONTROL`] together.
pub(crate) const LOST_DATAGRAMS: u32 = 16;
/// Once the peer has caused this many units of cost, a step ends early and reports them to the caller.
const REPORT_COSTS_AT: u32 = 32;

/// An action that the caller has to take on a stream of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send RESET_STREAM, and drop the bytes that were written to the stream but not sent.
    Reset {
        /// The stream to reset.
        stream: StreamId,
        /// The error code of the frame.
        code: ErrorCode,
    },
    /// Send STOP_SENDING, and read nothing more from the stream.
    StopSending {
        /// The stream not to be read.
        stream: StreamId,
        /// The error code of the frame.
        code: ErrorCode,
    },
}

/// The state of a connection that both roles share.
pub(crate) struct Connection {
    /// The settings that the peer has announced; `None` before its SETTINGS frame.
    pub(crate) peer: Option<PeerSettings>,
    /// Whether the QUIC implementations of both sides support datagrams (RFC 9221).
    has_datagrams: bool,
    /// Whether there was a tunnel with a datagram flow id of its own (draft 03 of RFC 9298).
    pub(crate) has_flow_ids: bool,
    /// Number of datagrams that belonged to no tunnel.
    pub(crate) lost_datagrams: u32,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    /// Maximum number of streams whose field sections may wait for insertions into the QPACK table.
    max_blocked: u32,
    pub(crate) streams: Streams,
    pub(crate) remote: RemoteStreams,
    local: [Pending; 3],
    queue: UrgencyQueue,
    commands: VecDeque<Command>,
    /// Streams whose field sections wait for the QPACK table, each with the number of insertions that the section requires.
    blocked: Vec<(u64, StreamId)>,
    /// Streams whose field sections no longer wait for the QPACK table, and which have not been reported to the caller yet.
    unblocked: VecDeque<StreamId>,
    /// Units of cost that the peer has caused since the caller last took them.
    debt: u32,
    /// The identifier in the peer's latest GOAWAY.
    pub(crate) goaway: Option<u64>,
    /// Whether the peer has violated the protocol, so that the rest of its input is ignored.
    pub(crate) has_failed: bool,
}

/// What a frame of the peer's control stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Settings,
    GoAway(u64),
    Priority(StreamId, PriorityParameters),
    MaxPushId(u64),
}

impl Connection {
    /// The state of a new connection. This side announces a QPACK table of `capacity` bytes and `max_blocked` streams that
    /// may wait for it, and uses at most `encoder_limit` bytes of the peer's table.
    pub(crate) fn new(
        capacity: u32,
        max_blocked: u32,
        encoder_limit: u32,
        has_datagrams: bool,
    ) -> Self {
        let mut local: [Pending; 3] = Default::default();
        for (stream, pending) in LocalStream::ALL.iter().zip(&mut local) {
            pending.out().push(stream.kind());
        }
        Self {
            peer: None,
            has_datagrams,
            has_flow_ids: false,
            lost_datagrams: 0,
            decoder: Decoder::new(capacity),
            encoder: Encoder::new(encoder_limit),
            max_blocked: if capacity > 0 { max_blocked } else { 0 },
            streams: Streams::new(),
            remote: RemoteStreams::new(),
            local,
            queue: UrgencyQueue::new(),
            commands: VecDeque::new(),
            blocked: Vec::new(),
            unblocked: VecDeque::new(),
            debt: 0,
            goaway: None,
            has_failed: false,
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

    #[inline]
    pub(crate) const fn take_costs(&mut self) -> u32 {
        std::mem::replace(&mut self.debt, 0)
    }

    pub(crate) const fn local(&mut self, stream: LocalStream) -> &mut Pending {
        let [control, encoder, decoder] = &mut self.local;
        match stream {
            LocalStream::Control => control,
            LocalStream::QpackEncoder => encoder,
            LocalStream::QpackDecoder => decoder,
        }
    }

    pub(crate) fn pending(&self, stream: LocalStream) -> &[u8] {
        let [control, encoder, decoder] = &self.local;
        match stream {
            LocalStream::Control => control,
            LocalStream::QpackEncoder => encoder,
            LocalStream::QpackDecoder => decoder,
        }
        .bytes()
    }

    /// The QPACK decoder, and the buffer of the decoder stream for its instructions to the peer's encoder.
    #[inline]
    pub(crate) const fn decoding(&mut self) -> (&mut Decoder, &mut Vec<u8>) {
        let [_, _, out] = &mut self.local;
        (&mut self.decoder, out.out())
    }

    /// Begins a field section at the end of `out`.
    #[inline]
    pub(crate) fn section<'e>(&'e mut self, out: &'e mut Vec<u8>) -> SectionWriter<'e> {
        let [_, instructions, _] = &mut self.local;
        self.encoder.section(out, instructions.with_room())
    }

    /// Writes a HEADERS frame with the fields of an informational response or of trailers. Returns the length of the field
    /// section in bytes.
    pub(crate) fn write_section(
        &mut self,
        id: StreamId,
        status: Option<StatusCode>,
        headers: &Headers,
        out: &mut Vec<u8>,
    ) -> usize {
        let at = frame::begin_section(out);
        let mut section = self.section(out);
        if let Some(status) = status {
            section.status(status);
        }
        encode_fields(headers, |name, value| section.field(name, value));
        section.finish(id);
        frame::end_section(out, at)
    }

    #[inline]
    pub(crate) fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    pub(crate) fn reset_stream(&mut self, stream: StreamId, code: ErrorCode) {
        self.commands.push_back(Command::Reset { stream, code });
    }

    pub(crate) fn stop_sending(&mut self, stream: StreamId, code: ErrorCode) {
        self.commands
            .push_back(Command::StopSending { stream, code });
    }

    /// The next piece of a request stream; `None` if more input is needed. `limit` is the maximum length of the content in
    /// bytes, which does not apply to a tunnel.
    #[inline]
    pub(crate) fn next_piece<'i>(
        &mut self,
        key: StreamKey,
        input: &mut &'i [u8],
        limit: u64,
        on_promise: PeerError,
    ) -> Result<Option<Piece<'i>>, Fault> {
        let Some(stream) = self.streams.get_mut(key) else {
            *input = &[];
            return Ok(None);
        };
        let (stage, is_tunnel) = (stream.stage, stream.is_tunnel);
        let (declared, received) = (stream.declared.unwrap_or(u64::MAX), stream.received);
        stream.reader.next(input, |kind, len| {
            let disposition = accept(stage, is_tunnel, on_promise, kind, len)?;
            if kind == FrameType::DATA {
                // The header of the DATA frame already tells that the content is too long, before the payload has arrived.
                if len > declared.saturating_sub(received) {
                    return Err(StreamError::ContentTooLong.into());
                }
                if len > limit.saturating_sub(received) && !is_tunnel {
                    return Err(StreamError::BodyTooLarge.into());
                }
            }
            Ok(disposition)
        })
    }

    /// Stores the field section of a stream, which waits until there were `required` insertions into the QPACK table.
    pub(crate) fn block(
        &mut self,
        key: StreamKey,
        required: u64,
        bytes: Vec<u8>,
    ) -> Result<(), PeerError> {
        if self.blocked.len() >= self.max_blocked as usize {
            return Err(PeerError::Decompression);
        }
        if let Some(stream) = self.streams.get_mut(key) {
            self.blocked.push((required, stream.id));
            stream.has_waited |= stream.stage == Stage::Head;
            stream.blocked = Some(Box::new(BlockedSection { bytes, required }));
        }
        Ok(())
    }

    /// The field section of a stream that was stored to wait for the QPACK table and no longer has to. Returns `Err` if it
    /// still has to wait, and `Ok(None)` if none was stored.
    #[inline]
    pub(crate) fn take_blocked(&mut self, key: StreamKey) -> Result<Option<Vec<u8>>, StillBlocked> {
        let inserted = self.decoder.inserted();
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(None);
        };
        match &stream.blocked {
            None => Ok(None),
            Some(section) if section.required > inserted => Err(StillBlocked),
            Some(_) => Ok(stream.blocked.take().map(|section| section.bytes)),
        }
    }

    /// Returns the next stream whose field section had to wait for the QPACK table and no longer does.
    pub(crate) fn poll_unblocked(&mut self) -> Option<StreamId> {
        self.unblocked.pop_front()
    }

    /// Handles `input` that was received on a unidirectional stream of the peer. Returns what to report to the caller, and
    /// the part of `input` that was not consumed.
    pub(crate) fn on_unidirectional<'i>(
        &mut self,
        id: StreamId,
        mut input: &'i [u8],
        has_ended: bool,
    ) -> Result<(Option<Control>, &'i [u8]), PeerError> {
        let role = match self.remote.role(id) {
            Some(role) => role,
            None => match self.remote.take_type(id, &mut input) {
                Some(role) => {
                    self.on_role(id, role)?;
                    role
                }
                None => {
                    if has_ended {
                        self.remote.forget(id);
                    }
                    return Ok((None, &[]));
                }
            },
        };
        let mut control = None;
        match role {
            Role::Control => control = self.on_control(&mut input)?,
            Role::QpackEncoder => {
                self.on_encoder_stream(std::mem::take(&mut input))?;
            }
            Role::QpackDecoder => {
                self.encoder.receive(std::mem::take(&mut input))?;
            }
            Role::Push | Role::Unknown => return Ok((None, &[])),
        }
        if has_ended && input.is_empty() && control.is_none() {
            return Err(PeerError::ClosedCriticalStream);
        }
        Ok((control, input))
    }

    /// Notes the role of a unidirectional stream, once the stream's type has arrived.
    fn on_role(&mut self, id: StreamId, role: Role) -> Result<(), PeerError> {
        let stream = match role {
            Role::Control => &mut self.remote.control,
            Role::QpackEncoder => &mut self.remote.encoder,
            Role::QpackDecoder => &mut self.remote.decoder,
            // Only servers push (RFC 9114 §6.2.2), and only after a MAX_PUSH_ID, which the engine never sends (§4.6).
            Role::Push if id.is_client() => return Err(PeerError::StreamCreation),
            Role::Push => return Err(PeerError::IdInvalid),
            Role::Unknown => {
                self.charge(cost::CONTROL);
                self.stop_sending(id, ErrorCode::STREAM_CREATION_ERROR);
                return Ok(());
            }
        };
        if stream.replace(id).is_some() {
            return Err(PeerError::SecondCriticalStream);
        }
        Ok(())
    }

    fn on_encoder_stream(&mut self, input: &[u8]) -> Result<(), PeerError> {
        let [_, _, out] = &mut self.local;
        self.decoder.receive(input, out.out())?;
        out.check()?;
        if !self.blocked.is_empty() {
            let inserted = self.decoder.inserted();
            let unblocked = &mut self.unblocked;
            self.blocked.retain(|&(required, stream)| {
                let waits = required > inserted;
                if !waits {
                    unblocked.push_back(stream);
                }
                waits
            });
        }
        Ok(())
    }

    fn on_control(&mut self, input: &mut &[u8]) -> Result<Option<Control>, PeerError> {
        loop {
            let has_settings = self.peer.is_some();
            let piece = self.remote.reader.next(input, |kind, len| {
                if !has_settings && kind != FrameType::SETTINGS {
                    return Err(PeerError::SettingsExpected);
                }
                match kind {
                    FrameType::SETTINGS if has_settings => Err(PeerError::SecondSettings),
                    FrameType::DATA | FrameType::HEADERS | FrameType::PUSH_PROMISE => {
                        Err(PeerError::UnexpectedFrame(kind))
                    }
                    kind if kind.is_reserved() => Err(PeerError::UnexpectedFrame(kind)),
                    _ if len > MAX_PAYLOAD => Err(PeerError::FrameTooLong),
                    FrameType::SETTINGS
                    | FrameType::GOAWAY
                    | FrameType::MAX_PUSH_ID
                    | FrameType::CANCEL_PUSH
                    | FrameType::PRIORITY_UPDATE => Ok(Disposition::Whole),
                    FrameType::PRIORITY_UPDATE_PUSH => Err(PeerError::PushPriority),
                    _ => Ok(Disposition::Skip),
                }
            })?;
            match piece {
                None => return Ok(None),
                Some(Piece::Skipped | Piece::Data(_)) => self.charge(cost::CONTROL),
                Some(Piece::Frame(kind, payload)) => {
                    self.charge(cost::CONTROL);
                    if let Some(control) = self.on_control_frame(kind, &payload)? {
                        return Ok(Some(control));
                    }
                }
            }
        }
    }

    fn on_control_frame(
        &mut self,
        kind: FrameType,
        payload: &[u8],
    ) -> Result<Option<Control>, PeerError> {
        let whole = || match varint::decode(payload) {
            Some((id, [])) => Ok(id),
            _ => Err(PeerError::FrameMalformed(kind)),
        };
        Ok(match kind {
            FrameType::SETTINGS => {
                let settings = PeerSettings::parse(payload, self.has_datagrams)?;
                self.peer = Some(settings);
                self.encoder
                    .set_peer_capacity(settings.qpack_max_table_capacity);
                Some(Control::Settings)
            }
            FrameType::GOAWAY => {
                let id = whole()?;
                if self.goaway.is_some_and(|before| id > before) {
                    return Err(PeerError::IdInvalid);
                }
                self.goaway = Some(id);
                Some(Control::GoAway(id))
            }
            FrameType::MAX_PUSH_ID => Some(Control::MaxPushId(whole()?)),
            FrameType::CANCEL_PUSH => {
                whole()?;
                // The identifier is invalid in any case: no push was promised (RFC 9114 §7.2.3).
                return Err(PeerError::IdInvalid);
            }
            FrameType::PRIORITY_UPDATE => {
                let Some((id, value)) = varint::decode(payload) else {
                    return Err(PeerError::FrameMalformed(kind));
                };
                let id = StreamId::new(id);
                if !id.is_request() {
                    return Err(PeerError::IdInvalid);
                }
                let field = PriorityField::parse(value);
                Some(Control::Priority(id, field.into()))
            }
            _ => None,
        })
    }

    /// Handles RESET_STREAM on a unidirectional stream of the peer. Only the control and QPACK streams must not be reset.
    pub(crate) fn on_unidirectional_reset(&mut self, id: StreamId) -> Result<(), PeerError> {
        if self.remote.role(id).is_some() {
            return Err(PeerError::ClosedCriticalStream);
        }
        self.remote.forget(id);
        Ok(())
    }

    /// Notes that the peer has ended its direction of a stream.
    pub(crate) fn end_recv(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.state = stream.state.end_recv();
        }
    }

    /// Notes that this side has ended its direction of a stream.
    #[inline]
    pub(crate) fn end_send(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.state = stream.state.end_send();
            self.queue_remove(key);
        }
    }

    /// Ends both directions of a stream, as far as they have not ended yet, with these error codes.
    pub(crate) fn abort(&mut self, key: StreamKey, send: ErrorCode, recv: ErrorCode) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let (id, state) = (stream.id, stream.state);
        stream.state = StreamState::Closed;
        if stream.blocked.take().is_some()
            && let Some(at) = self.blocked.iter().position(|&(_, other)| other == id)
        {
            self.blocked.swap_remove(at);
            // The caller has kept the input of this stream until now: it passes the input to the engine, which drops it.
            self.unblocked.push_back(id);
        }
        self.queue_remove(key);
        if state.can_recv() {
            let [_, _, out] = &mut self.local;
            self.decoder.cancel(id, out.out());
            self.stop_sending(id, recv);
        }
        if state.can_send() {
            self.reset_stream(id, send);
        }
    }

    /// Sets whether the stream has content to send and the transport has room for it.
    #[inline]
    pub(crate) fn set_ready(&mut self, key: StreamKey, is_ready: bool) {
        if !is_ready {
            self.queue_remove(key);
            return;
        }
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        if stream.state.can_send() && !self.queue.contains(key.slot()) {
            let queued = QueuedStream {
                id: stream.id.get(),
                priority: stream.priority,
                is_elevated: false,
                has_sent: stream.sent > 0,
            };
            self.queue.insert(key.slot(), queued);
        }
    }

    #[inline]
    fn queue_remove(&mut self, key: StreamKey) {
        if self.queue.contains(key.slot()) {
            self.queue.remove(key.slot());
        }
    }

    pub(crate) fn next_ready(&mut self) -> Option<StreamKey> {
        Some(StreamKey::from_index(self.queue.next()?))
    }

    /// Sets the priority of a stream.
    pub(crate) fn prioritize(&mut self, key: StreamKey, priority: PriorityParameters) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        stream.priority = priority;
        if self.queue.contains(key.slot())
            && let Some(queued) = self.queue.remove(key.slot())
        {
            self.queue
                .insert(key.slot(), QueuedStream { priority, ..queued });
        }
    }

    /// Removes a stream that the caller has released.
    #[inline]
    pub(crate) fn remove(&mut self, key: StreamKey) {
        self.queue_remove(key);
        self.streams.remove(key);
    }

    /// Frees the memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        self.streams.shrink();
        self.queue.shrink();
        self.decoder.shrink();
        self.encoder.shrink();
        self.remote.shrink();
        for pending in &mut self.local {
            pending.shrink();
        }
        self.commands.shrink_to_fit();
        self.blocked.shrink_to_fit();
        self.unblocked.shrink_to_fit();
    }

    pub(crate) fn retained(&self) -> usize {
        let local: usize = self.local.iter().map(Pending::retained).sum();
        local
            + self.streams.retained()
            + self.queue.retained()
            + self.decoder.retained()
            + self.encoder.retained()
            + self.remote.retained()
            + self.commands.capacity() * size_of::<Command>()
            + self.blocked.capacity() * size_of::<(u64, StreamId)>()
            + self.unblocked.capacity() * size_of::<StreamId>()
    }
}

/// The field section of a stream still has to wait for the QPACK table.
pub(crate) struct StillBlocked;

/// Decides how the payload of a frame on a request stream is handled, or why the frame is an error (RFC 9114 §4.1, §7.2).
fn accept(
    stage: Stage,
    is_tunnel: bool,
    on_promise: PeerError,
    kind: FrameType,
    len: u64,
) -> Result<Disposition, Fault> {
    let unexpected = if is_tunnel {
        PeerError::UnexpectedInTunnel(kind)
    } else {
        PeerError::UnexpectedFrame(kind)
    };
    match kind {
        FrameType::DATA if stage == Stage::Content => Ok(Disposition::Content),
        // A tunnel's response has not arrived: the server may still refuse the tunnel, with a head and content as in any
        // other response.
        FrameType::HEADERS if stage == Stage::Head || (stage == Stage::Content && !is_tunnel) => {
            if len > MAX_PAYLOAD {
                return Err(StreamError::SectionTooLong.into());
            }
            Ok(Disposition::Whole)
        }
        FrameType::PUSH_PROMISE => Err(on_promise.into()),
        FrameType::DATA
        | FrameType::HEADERS
        | FrameType::CANCEL_PUSH
        | FrameType::SETTINGS
        | FrameType::GOAWAY
        | FrameType::MAX_PUSH_ID
        | FrameType::PRIORITY_UPDATE
        | FrameType::PRIORITY_UPDATE_PUSH => Err(unexpected.into()),
        kind if kind.is_reserved() => Err(unexpected.into()),
        _ if len > MAX_PAYLOAD => Err(PeerError::FrameTooLong.into()),
        _ => Ok(Disposition::Skip),
    }
}
