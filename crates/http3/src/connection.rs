//! What both roles have in common: streams, settings, compression, priorities, what is to be done with the transport.

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

/// What acts of a peer cost, in units of the connection's budget. Each is far below what a client in good faith needs per second,
/// as requests served and content sent pay units back. The numbers are those of HTTP/2.
pub(crate) mod cost {
    /// Frames of the control stream, unknown frames, unidirectional streams of unknown types: each makes us work.
    pub(crate) const CONTROL: u32 = 1;
    /// DATA that neither carries nor ends anything.
    pub(crate) const EMPTY: u32 = 1;
    /// A request taken back ("rapid reset").
    pub(crate) const RESET: u32 = 5;
    /// A request that the peer makes us reset.
    pub(crate) const CAUSED_RESET: u32 = 10;
    /// A field section refused for its size.
    pub(crate) const BOMB: u32 = 25;
}
/// Datagrams of no tunnel for which [`cost::CONTROL`] is charged.
pub(crate) const LOST_DATAGRAMS: u32 = 16;
/// Costs are reported to the caller at least this often.
const REPORT_COSTS_AT: u32 = 32;

/// What the caller is to do with a stream of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send RESET_STREAM: what was written and has not been sent is dropped.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why.
        code: ErrorCode,
    },
    /// Send STOP_SENDING, and read nothing more of the stream.
    StopSending {
        /// The stream.
        stream: StreamId,
        /// Why.
        code: ErrorCode,
    },
}

/// The parts of a connection.
pub(crate) struct Connection {
    /// What the peer has announced; `None` before that.
    pub(crate) peer: Option<PeerSettings>,
    /// The transport has agreed on datagrams.
    has_datagrams: bool,
    /// A tunnel has had a name of its own in datagrams (draft 03 of RFC 9298).
    pub(crate) has_flow_ids: bool,
    /// Datagrams that belonged to no tunnel.
    pub(crate) lost_datagrams: u32,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    /// Streams whose sections may wait for the table.
    max_blocked: u32,
    pub(crate) streams: Streams,
    pub(crate) remote: RemoteStreams,
    local: [Pending; 3],
    queue: UrgencyQueue,
    commands: VecDeque<Command>,
    /// Streams whose sections wait, and for how many insertions.
    blocked: Vec<(u64, StreamId)>,
    /// Streams whose sections do not wait any more, of which the caller has not heard.
    unblocked: VecDeque<StreamId>,
    /// What the peer has made us do since the caller last asked.
    debt: u32,
    /// The identifier in the peer's latest GOAWAY.
    pub(crate) goaway: Option<u64>,
    /// The peer broke the protocol; nothing it sends is looked at.
    pub(crate) has_failed: bool,
}

/// What the control stream said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Settings,
    GoAway(u64),
    Priority(StreamId, PriorityParameters),
    MaxPushId(u64),
}

impl Connection {
    /// A connection whose peer is told `capacity` bytes of table and `max_blocked` streams that wait for it, and of whose table we
    /// use `encoder_limit` bytes.
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

    /// The decoder, and where its instructions go.
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

    /// Writes a HEADERS frame with a section of informational responses or trailers. Gives the length of the section.
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

    /// The next piece of a request stream. `limit`: of the content of a message that is no tunnel.
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
                // The frame says so before its payload has come.
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

    /// The section of a stream waits for so many insertions.
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

    /// The section of a stream that does not wait any more. `Err`: it still waits.
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

    /// A stream whose section waited, and does not any more.
    pub(crate) fn poll_unblocked(&mut self) -> Option<StreamId> {
        self.unblocked.pop_front()
    }

    /// `input` has come on a unidirectional stream of the peer. Gives what is to be reported, and how much is left.
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

    /// The type of a stream is known.
    fn on_role(&mut self, id: StreamId, role: Role) -> Result<(), PeerError> {
        let stream = match role {
            Role::Control => &mut self.remote.control,
            Role::QpackEncoder => &mut self.remote.encoder,
            Role::QpackDecoder => &mut self.remote.decoder,
            // Only servers push (RFC 9114 §6.2.2), and only after a MAX_PUSH_ID, which we never send (§4.6).
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
                // No push was promised (RFC 9114 §7.2.3).
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

    /// The peer ends a unidirectional stream early. What is not critical may end at any time.
    pub(crate) fn on_unidirectional_reset(&mut self, id: StreamId) -> Result<(), PeerError> {
        if self.remote.role(id).is_some() {
            return Err(PeerError::ClosedCriticalStream);
        }
        self.remote.forget(id);
        Ok(())
    }

    /// The peer has sent all it had on a stream.
    pub(crate) fn end_recv(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.state = stream.state.end_recv();
        }
    }

    /// We have sent all we had on a stream.
    #[inline]
    pub(crate) fn end_send(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.state = stream.state.end_send();
            self.queue_remove(key);
        }
    }

    /// Ends a stream in both directions, as far as they are open.
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
            // The caller keeps input for it, which it can drop now.
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

    /// The stream has something to send, and the transport takes it; or not.
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

    /// Gives a stream another priority.
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

    /// Forgets a stream.
    #[inline]
    pub(crate) fn remove(&mut self, key: StreamKey) {
        self.queue_remove(key);
        self.streams.remove(key);
    }

    /// Gives memory back while nothing goes on.
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

/// A section still waits for the table.
pub(crate) struct StillBlocked;

/// What becomes of a frame of a request stream (RFC 9114 §4.1, §7.2).
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
        // Until the response is there it may still refuse the tunnel, with a head like any other.
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
