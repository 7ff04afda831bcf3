//! The server role of one HTTP/3 connection.

mod receive;
mod respond;

use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::field_section::{RequestMemo, ResponseMemo};
use h2o_http::priority::{EarlyUpdates, PriorityParameters};

pub use receive::{Received, ServerStep};
pub use respond::RepeatableSection;

use crate::connection::{Command, Connection, cost};
use crate::error::{ErrorCode, PeerError, StreamError};
use crate::frame::{self, FrameType};
use crate::local::LocalStream;
use crate::qpack::{Decoder, Encoder, References};
use crate::settings::{PeerSettings, Settings};
use crate::stream::{Stream, StreamKey, StreamState};
use crate::stream_id::StreamId;
use crate::varint;

/// Time between the two GOAWAY frames of a graceful shutdown. Requests that the client sent before it received the first
/// GOAWAY are still served (RFC 9114 §5.2).
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// How far the graceful shutdown has come (RFC 9114 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    Running,
    /// The first GOAWAY, which names the largest identifier, was written. New requests are still served until the time
    /// `until`.
    Announced {
        until: Instant,
    },
    /// The final GOAWAY was written. Requests on the streams from `first` on are rejected.
    Draining {
        first: StreamId,
        until: Option<Instant>,
    },
}

/// The server role of one HTTP/3 connection: bytes and time go in, events and bytes come out.
///
/// The caller owns the transport, the clock and the buffers. There are five groups of calls.
///
/// **Input.** The caller reports each stream that the client opens with [`open`](Self::open), in the order of identifiers
/// of its kind, and passes all bytes that are received on a stream to [`receive`](Self::receive), which makes one step over
/// the bytes received and not yet removed. The caller repeats it until [`Received::NeedMore`] or [`Received::Blocked`].
/// After each step the caller
///
/// 1. charges the client's budget with [`take_costs`](Self::take_costs); if the budget does not cover them, it calls
///    [`fail`](Self::fail) with [`PeerError::Overdrawn`] and closes the connection;
/// 2. counts the refused stream that [`take_rejected`](Self::take_rejected) reports: the next step forgets it;
/// 3. uses the [event](ServerStep::received): content is a range of the input, a head stays until the next step;
/// 4. removes the bytes that were [taken](ServerStep::taken) from the input.
///
/// After [`Received::Blocked`] the caller keeps the bytes that were not taken and reads no more from that stream, until
/// [`poll_unblocked`](Self::poll_unblocked) returns the stream. The caller reports RESET_STREAM and STOP_SENDING of the
/// client with [`on_reset`](Self::on_reset) and [`on_stop_sending`](Self::on_stop_sending), and passes datagrams to
/// [`on_datagram`](Self::on_datagram).
///
/// An error is final: the caller closes the connection with the error's [answer](PeerError::answer). No later step reports
/// anything.
///
/// **Transport.** After any call the caller takes the actions that [`poll_command`](Self::poll_command) returns, and sends
/// the bytes that are [pending](Self::pending) on the three unidirectional streams that it opens at the beginning.
///
/// **Streams.** A stream begins with the [`StreamKey`] from [`Received::Request`], and ends with
/// [`release`](Self::release). The caller releases each stream once, however it ended: when its response is written, after
/// [`Received::Reset`], after its own [`reset`](Self::reset). Until then the stream counts towards the limit of streams,
/// and its index is not reused.
///
/// **Output.** For each stream any number of [`inform`](Self::inform), one [`respond`](Self::respond), then
/// [`schedule`](Self::schedule) if the response has a priority of its own, then the content, then its end: the last
/// [`send_data`](Self::send_data), or [`finish`](Self::finish). The caller writes the bytes that these calls append to
/// `out` to that stream of the transport, and ends it where the response ends. Content is sent directly after the head, or
/// in turns. For the latter the caller reports with [`set_ready`](Self::set_ready) that it has content and that the
/// transport has room for it; [`poll_send`](Self::poll_send) returns the stream whose turn it is, and the caller answers
/// each turn with content or `set_ready`. Otherwise the same stream may be returned again. Calls for streams that may not
/// send do nothing.
///
/// **Time and the end.** The transport closes idle connections. Any call may change [`next_timeout`](Self::next_timeout);
/// at that time the caller calls [`on_timeout`](Self::on_timeout). [`shut_down`](Self::shut_down) begins the graceful
/// shutdown. The caller closes the connection, with [`ErrorCode::NO_ERROR`], once [`is_over`](Self::is_over) is true.
/// [`shrink`](Self::shrink) is for idle connections.
pub struct ServerConnection {
    settings: Arc<Settings>,
    connection: Connection,
    shutdown: Shutdown,
    /// The lowest request stream that the client has not opened yet.
    next: StreamId,
    /// Priorities from PRIORITY_UPDATE frames for streams that the client has not opened yet.
    early: EarlyUpdates,
    /// The largest push identifier that the client allows. This server never pushes.
    max_push_id: Option<u64>,
    /// Error code with which the last step ended a stream that no event reports.
    rejected: Option<ErrorCode>,
    /// `None` before the first request, and on idle connections that have freed memory.
    memos: Option<Box<Memos>>,
}

/// What the engine remembers of the latest request and the latest response.
#[derive(Default)]
struct Memos {
    /// The latest encoded response head; `references` are the entries of the QPACK table that its encoding refers to.
    response: ResponseMemo<(u64, u64)>,
    references: References,
    /// The latest request's encoded field section and the head decoded from it, which is copied if the same section is
    /// received again.
    request: RequestMemo<u64>,
}

impl ServerConnection {
    /// The engine for a new connection of a client. `has_datagrams` tells whether both sides support QUIC datagrams.
    #[must_use]
    pub fn new(settings: Arc<Settings>, has_datagrams: bool) -> Self {
        let mut connection = Connection::new(
            settings.qpack_decoder_capacity,
            settings.max_streams,
            settings.qpack_encoder_capacity,
            has_datagrams,
        );
        settings.write(connection.local(LocalStream::Control).out());
        Self {
            settings,
            connection,
            shutdown: Shutdown::Running,
            next: StreamId::new(0),
            early: EarlyUpdates::new(),
            max_push_id: None,
            rejected: None,
            memos: None,
        }
    }

    /// Reports that the client has opened a stream.
    ///
    /// # Errors
    /// Returns a [`PeerError`] if the client may not open the stream.
    pub fn open(&mut self, id: StreamId) -> Result<(), PeerError> {
        if self.connection.has_failed {
            return Ok(());
        }
        if !id.is_client() {
            return self.failed(PeerError::StreamCreation);
        }
        if id.is_unidirectional() {
            if !self.connection.remote.open(id) {
                return self.failed(PeerError::Overdrawn);
            }
            return Ok(());
        }
        if id >= self.next {
            self.next = StreamId::new(id.get() + 4);
        }
        let is_late = matches!(self.shutdown, Shutdown::Draining { first, .. } if id >= first);
        if is_late || self.connection.streams.len() >= self.settings.max_streams as usize {
            let code = StreamError::Rejected.code();
            self.connection.charge(cost::RESET);
            self.connection.stop_sending(id, code);
            self.connection.reset_stream(id, code);
            self.rejected = Some(code);
            return Ok(());
        }
        let mut stream = Stream::new(id);
        if !self.early.is_empty()
            && let Some(priority) = self.early.take(id.get())
        {
            stream.priority = priority;
            stream.has_priority = true;
        }
        self.connection.streams.insert(stream);
        Ok(())
    }

    /// Ends the connection because of `error`: further input is ignored. The caller closes the connection with the error's
    /// [answer](PeerError::answer).
    pub const fn fail(&mut self, _error: PeerError) {
        self.connection.has_failed = true;
    }

    fn failed<T>(&mut self, error: PeerError) -> Result<T, PeerError> {
        self.fail(error);
        Err(error)
    }

    /// The next action that the caller has to take on a stream of the transport.
    #[inline]
    pub fn poll_command(&mut self) -> Option<Command> {
        self.connection.poll_command()
    }

    /// The next stream that was [blocked](Received::Blocked) and whose input can be passed again. The stream may also have
    /// ended: its input is then consumed and dropped.
    #[inline]
    pub fn poll_unblocked(&mut self) -> Option<StreamId> {
        self.connection.poll_unblocked()
    }

    /// The bytes that are to be sent on one of the unidirectional streams of this side, beginning with the type of the
    /// stream.
    #[must_use]
    pub fn pending(&self, stream: LocalStream) -> &[u8] {
        self.connection.pending(stream)
    }

    /// Reports that the caller has passed `len` of the pending bytes to the transport.
    pub fn advance(&mut self, stream: LocalStream, len: usize) {
        self.connection.local(stream).advance(len);
    }

    /// Begins the graceful shutdown: writes the first GOAWAY; [`ServerConnection::on_timeout`] writes the final one. Open
    /// requests are completed.
    pub fn shut_down(&mut self, now: Instant) {
        if self.shutdown != Shutdown::Running || self.connection.has_failed {
            return;
        }
        self.send_goaway(StreamId::MAX_REQUEST);
        self.shutdown = Shutdown::Announced {
            until: now + SHUTDOWN_GRACE,
        };
    }

    fn send_goaway(&mut self, first: StreamId) {
        let mut payload = Vec::with_capacity(8);
        varint::encode(first.get(), &mut payload);
        let out = self.connection.local(LocalStream::Control).out();
        frame::write(FrameType::GOAWAY, &payload, out);
    }

    /// Whether GOAWAY was written, or the connection has failed.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown != Shutdown::Running || self.connection.has_failed
    }

    /// Whether the connection is finished: it is shut down and no stream is left, or it has failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connection.has_failed
            || (matches!(self.shutdown, Shutdown::Draining { .. }) && !self.has_streams())
    }

    /// When to call [`ServerConnection::on_timeout`] next.
    #[must_use]
    pub const fn next_timeout(&self) -> Option<Instant> {
        match self.shutdown {
            Shutdown::Running => None,
            Shutdown::Announced { until } => Some(until),
            Shutdown::Draining { until, .. } => until,
        }
    }

    /// Writes the final GOAWAY if it is due at `now`. Returns true if the time limit of the shutdown has expired: the
    /// caller then closes the connection.
    #[must_use]
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        match self.shutdown {
            Shutdown::Announced { until } if until <= now && !self.connection.has_failed => {
                self.send_goaway(self.next);
                self.shutdown = Shutdown::Draining {
                    first: self.next,
                    until: self
                        .settings
                        .graceful_shutdown_timeout
                        .map(|wait| now + wait),
                };
                false
            }
            Shutdown::Draining {
                until: Some(until), ..
            } => until <= now,
            Shutdown::Running | Shutdown::Announced { .. } | Shutdown::Draining { .. } => false,
        }
    }

    /// Returns and clears the costs that the client has caused since the last call, in units of its budget.
    #[inline]
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// Returns and clears the error code with which the last step ended a stream that no event reports.
    #[inline]
    pub const fn take_rejected(&mut self) -> Option<ErrorCode> {
        self.rejected.take()
    }

    /// Whether there are streams that the caller has not released, or whose request has not arrived completely.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.connection.streams.len() > 0
    }

    /// The settings that the client has announced; `None` before its SETTINGS frame.
    #[must_use]
    pub const fn peer_settings(&self) -> Option<&PeerSettings> {
        self.connection.peer.as_ref()
    }

    /// The identifier of a stream; `None` if the stream is released.
    #[must_use]
    pub fn stream_id(&self, key: StreamKey) -> Option<StreamId> {
        Some(self.connection.streams.get(key)?.id)
    }

    /// The stream with this identifier, if its request was received and it is not released.
    #[must_use]
    pub fn find(&self, id: StreamId) -> Option<StreamKey> {
        let key = self.connection.streams.find(id)?;
        let stream = self.connection.streams.get(key)?;
        stream.is_reported.then_some(key)
    }

    /// The state of a stream.
    #[must_use]
    pub fn state(&self, key: StreamKey) -> StreamState {
        self.connection
            .streams
            .get(key)
            .map_or(StreamState::Closed, |stream| stream.state)
    }

    /// Number of bytes of a stream that [`ServerConnection::receive`] has consumed, framing included; 0 if the stream is
    /// released.
    #[must_use]
    pub fn bytes_taken(&self, key: StreamKey) -> u64 {
        let stream = self.connection.streams.get(key);
        stream.map_or(0, |stream| stream.taken)
    }

    /// Whether the head of a request had to wait for insertions into the QPACK table (RFC 9204 §2.1.2).
    #[must_use]
    pub fn has_waited(&self, key: StreamKey) -> bool {
        let stream = self.connection.streams.get(key);
        stream.is_some_and(|stream| stream.has_waited)
    }

    /// Bytes of the encoded field section that opened a request.
    #[must_use]
    pub fn head_len(&self, key: StreamKey) -> u64 {
        let stream = self.connection.streams.get(key);
        stream.map_or(0, |stream| stream.head_len.into())
    }

    /// The current priority of a stream: that of the client, as changed by the response.
    #[must_use]
    pub fn priority(&self, key: StreamKey) -> PriorityParameters {
        self.connection
            .streams
            .get(key)
            .map_or(PriorityParameters::DEFAULT, |stream| stream.priority)
    }

    /// Information on each stream whose request was received, in the order of identifiers.
    pub fn streams(&self) -> impl Iterator<Item = StreamInfo> {
        let streams = self.connection.streams.iter();
        streams
            .filter(|(_, stream)| stream.is_reported)
            .map(|(key, stream)| StreamInfo {
                key,
                id: stream.id,
                state: stream.state,
                received: stream.received,
                sent: stream.sent,
                priority: stream.priority,
            })
    }

    /// Frees the memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.connection.shrink();
        self.early.shrink();
        self.memos = None;
    }

    /// Bytes of memory that the engine has allocated.
    #[must_use]
    pub fn retained(&self) -> usize {
        let memos = self.memos.as_ref().map_or(0, |memos| {
            size_of::<Memos>() + memos.response.retained() + memos.request.retained()
        });
        self.connection.retained() + memos
    }

    /// The QPACK decoder and encoder, for showing their tables.
    #[must_use]
    pub const fn compression(&self) -> (&Decoder, &Encoder) {
        (&self.connection.decoder, &self.connection.encoder)
    }
}

/// Information on one stream, as [`ServerConnection::streams`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The key of the stream.
    pub key: StreamKey,
    /// The identifier of the stream.
    pub id: StreamId,
    /// The state of the stream.
    pub state: StreamState,
    /// Bytes of content received on the stream.
    pub received: u64,
    /// Bytes of content sent on the stream.
    pub sent: u64,
    /// The current priority of the stream.
    pub priority: PriorityParameters,
}
