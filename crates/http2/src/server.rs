//! The server role of one HTTP/2 connection.

mod receive;
mod respond;

use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::TimeLimit;
use h2o_http::field_section::{RequestMemo, ResponseMemo};

pub use receive::{Received, ServerStep};
pub use respond::SchedulingHint;

use crate::connection::{CONNECTION_WINDOW, Connection, MAX_HELD};
use crate::error::{ErrorCode, PeerError};
use crate::field_block::SectionLimits;
use crate::frame::{self, StreamId};
use crate::hpack::{Decoder, Encoder};
use crate::settings::{self, DEFAULT_WINDOW, PeerSettings, Settings};
use crate::stream::{Stream, StreamKey, StreamState};

/// Time between the two GOAWAY frames of a graceful shutdown. Requests that the client sent before it received the first
/// GOAWAY are still served (RFC 9113 §6.8).
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// How far the setup of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The client's preface is being received; the number of its bytes received so far.
    Preface(usize),
    /// The connection waits for the client's SETTINGS (RFC 9113 §3.4).
    Settings,
    Done,
    /// The client violated the protocol; the rest of its input is ignored.
    Failed,
}

/// How far the graceful shutdown has come (RFC 9113 §6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    Running,
    /// The first GOAWAY, which names the stream 2^31-1, was written. New requests are still served until the time `until`.
    Announced {
        until: Instant,
    },
    /// The final GOAWAY was written. Streams above `last` are ignored.
    Draining {
        last: StreamId,
        until: Option<Instant>,
    },
}

/// The server role of one HTTP/2 connection: bytes and time go in, events and bytes come out.
///
/// The caller owns the socket, the clock and the buffers. Each call appends what the engine sends because of it to the
/// `out` of the call; the caller writes that to the socket before it closes. There are four groups of calls.
///
/// **Input.** [`receive`](Self::receive) makes one step over all bytes received and not yet removed. The caller repeats it
/// until [`Received::NeedMore`]. After each step the caller
///
/// 1. charges the client's budget with [`take_costs`](Self::take_costs), and calls [`fail`](Self::fail) with
///    [`PeerError::Overdrawn`] if the budget does not cover them;
/// 2. counts the refused stream that [`take_rejected`](Self::take_rejected) reports: the next step forgets it;
/// 3. uses the [event](ServerStep::received): content is a range of the input, a head stays until the next step;
/// 4. removes the bytes that were [taken](ServerStep::taken) from the input.
///
/// An error of `receive` and a call of `fail` are final. No later step reports anything.
///
/// **Streams.** A stream begins with the [`StreamKey`] from [`Received::Request`], [`upgraded`](Self::upgraded) or
/// [`promise`](Self::promise), and ends with [`release`](Self::release). The caller releases each stream once, however it
/// ended: when its response is sent, after [`Received::Reset`], after its own [`reset`](Self::reset). Until then the stream
/// counts towards the limit of streams, and its index is not reused. If the request has content, the caller calls
/// [`accept_content`](Self::accept_content) when a handler reads it, and [`release_content`](Self::release_content) for the
/// bytes of each [`Received::Data`] when they are used: both open the client's window. `release` gives back the rest.
///
/// **Output.** For each stream any number of [`send_informational`](Self::send_informational), one [`respond`](Self::respond), then
/// [`schedule`](Self::schedule) if the response has a priority of its own, then the content, then its end: the last
/// [`send_data`](Self::send_data), or [`finish`](Self::finish). Content is sent in one of two ways: directly after the
/// head, up to [`sendable`](Self::sendable) bytes; or in turns. For the latter the caller announces content with
/// [`set_content`](Self::set_content); [`poll_send`](Self::poll_send) names the stream that sends next and how many bytes
/// it may send, and the caller answers each turn with `send_data` (or [`send_data_with`](Self::send_data_with)) or, without
/// content, with `set_content`. Otherwise the same stream is named again. Calls for streams that may not send do nothing.
///
/// **Time and the end.** The caller reports by [`on_activity`](Self::on_activity) that bytes were received or sent. Any
/// call may change [`next_timeout`](Self::next_timeout); at that time the caller calls [`on_timeout`](Self::on_timeout),
/// and closes if that returns a limit. [`shut_down`](Self::shut_down) begins the graceful shutdown. The caller closes once
/// [`is_over`](Self::is_over). [`shrink`](Self::shrink) is for idle connections.
pub struct ServerConnection {
    settings: Arc<Settings>,
    connection: Connection,
    opening: Opening,
    shutdown: Shutdown,
    /// The latest stream that the client opened.
    newest: StreamId,
    /// The latest response head and its encoded form, which is copied if an equal head is sent again.
    memo: ResponseMemo<(u32, u32)>,
    /// The latest request's encoded field section and the head decoded from it, which is copied if the same section is
    /// received again.
    request_memo: RequestMemo<(u32, u32)>,
    /// Error code of the RST_STREAM with which the last step refused a stream that no event reports.
    rejected: Option<ErrorCode>,
    /// Whether the HEADERS frame of the latest stream was received but not the end of its field section.
    is_opening_stream: bool,
    /// The latest stream that the server promised with PUSH_PROMISE.
    promised: StreamId,
    open_pushes: u32,
    /// When bytes were last received or sent.
    active_at: Instant,
    /// The origins for the ORIGIN frame that follows the preface (RFC 8336).
    origins: Option<Arc<[Box<str>]>>,
    /// Whether the server's preface was already sent, which may happen before the client's arrives, as after an upgrade.
    is_preface_sent: bool,
}

impl ServerConnection {
    /// The engine for a connection that was opened at `now`. The client is told `origins` by an ORIGIN frame (RFC 8336).
    #[must_use]
    pub fn new(settings: Arc<Settings>, origins: Option<Arc<[Box<str>]>>, now: Instant) -> Self {
        Self {
            settings,
            connection: Connection::new(MAX_HELD, SectionLimits::OF_CLIENTS),
            opening: Opening::Preface(0),
            shutdown: Shutdown::Running,
            newest: StreamId::CONNECTION,
            memo: ResponseMemo::default(),
            request_memo: RequestMemo::default(),
            rejected: None,
            is_opening_stream: false,
            promised: StreamId::CONNECTION,
            open_pushes: 0,
            active_at: now,
            origins,
            is_preface_sent: false,
        }
    }

    /// The engine for a connection that continues an HTTP/1.1 request with `Upgrade: h2c` (RFC 7540 §3.2).
    /// `settings_payload` is the decoded value of `HTTP2-Settings`. The request becomes stream 1; its content is complete.
    ///
    /// # Errors
    /// Returns a [`PeerError`] if the payload is malformed.
    pub fn upgraded(
        settings: Arc<Settings>,
        settings_payload: &[u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<(Self, StreamKey), PeerError> {
        let mut server = Self::new(settings, None, now);
        server.connection.apply_settings(settings_payload)?;
        server.send_preface(now, out);
        server.newest = StreamId::new(1);
        let window = server.connection.peer.initial_window_size;
        let stream = Stream::new(
            server.newest,
            StreamState::HalfClosedRemote,
            window,
            DEFAULT_WINDOW,
        );
        let key = server.connection.insert(stream);
        Ok((server, key))
    }

    /// Writes the server's preface: SETTINGS, the window of the connection, the origins. H2O compatibility: H2O sends the
    /// same values.
    fn send_preface(&mut self, now: Instant, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.is_preface_sent, true) {
            return;
        }
        frame::settings(
            out,
            &[
                (settings::MAX_CONCURRENT_STREAMS, self.settings.max_streams),
                (settings::ENABLE_CONNECT_PROTOCOL, 1),
            ],
        );
        let increment = CONNECTION_WINDOW - DEFAULT_WINDOW;
        frame::window_update(out, StreamId::CONNECTION, increment);
        self.connection.recv_window.raise(increment);
        if let Some(origins) = self.origins.take() {
            frame::origin(out, &origins);
        }
        self.connection.settings_sent = Some(now);
    }

    /// Ends the connection because of `error`: writes GOAWAY and ignores further input. The caller sends `out` and closes
    /// the connection.
    pub fn fail(&mut self, error: PeerError, out: &mut Vec<u8>) {
        if self.opening == Opening::Failed {
            return;
        }
        self.opening = Opening::Failed;
        if let Some((code, text)) = error.answer()
            && self.is_preface_sent
        {
            frame::goaway(out, self.last_taken(), code, text);
        }
    }

    /// The last stream that the server processes. No GOAWAY names a later stream than an earlier GOAWAY (RFC 9113 §6.8).
    const fn last_taken(&self) -> StreamId {
        match self.shutdown {
            Shutdown::Draining { last, .. } => last,
            Shutdown::Running | Shutdown::Announced { .. } => self.newest,
        }
    }

    /// Begins the graceful shutdown: writes the first GOAWAY; [`ServerConnection::on_timeout`] writes the final one.
    pub fn shut_down(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.shutdown != Shutdown::Running || self.opening == Opening::Failed {
            return;
        }
        if !self.is_preface_sent {
            self.send_preface(now, out);
        }
        frame::goaway(out, StreamId::MAX, ErrorCode::NO_ERROR, "graceful shutdown");
        self.shutdown = Shutdown::Announced {
            until: now + SHUTDOWN_GRACE,
        };
    }

    /// Whether GOAWAY was written.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown != Shutdown::Running || self.opening == Opening::Failed
    }

    /// Whether the connection is finished: it has failed, or it is shut down and no stream is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.opening == Opening::Failed
            || (matches!(self.shutdown, Shutdown::Draining { .. }) && !self.has_streams())
    }

    /// Reports that bytes were received or sent, so that the connection is not idle.
    #[inline]
    pub const fn on_activity(&mut self, now: Instant) {
        self.active_at = now;
    }

    /// When to call [`ServerConnection::on_timeout`] next. `is_waiting_for_us` tells whether some stream waits for a
    /// handler or for room in the socket: the idle timeout then does not apply, since the client did not cause the pause.
    #[must_use]
    pub fn next_timeout(&self, is_waiting_for_us: bool) -> Option<Instant> {
        let idle = (!is_waiting_for_us).then(|| self.active_at + self.settings.idle_timeout);
        let shutdown = match self.shutdown {
            Shutdown::Announced { .. } if self.opening == Opening::Failed => None,
            Shutdown::Running => None,
            Shutdown::Announced { until } => Some(until),
            Shutdown::Draining { until, .. } => until,
        };
        match (idle, shutdown) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Applies the time limits that have expired at `now`. If a limit is returned, the caller sends `out` and closes the
    /// connection.
    pub fn on_timeout(
        &mut self,
        now: Instant,
        is_waiting_for_us: bool,
        out: &mut Vec<u8>,
    ) -> Option<TimeLimit> {
        let has_failed = self.opening == Opening::Failed;
        match self.shutdown {
            Shutdown::Announced { until } if until <= now && !has_failed => {
                frame::goaway(out, self.newest, ErrorCode::NO_ERROR, "");
                self.shutdown = Shutdown::Draining {
                    last: self.newest,
                    until: self
                        .settings
                        .graceful_shutdown_timeout
                        .map(|wait| now + wait),
                };
            }
            Shutdown::Draining {
                until: Some(until), ..
            } if until <= now => return Some(TimeLimit::Shutdown),
            Shutdown::Running | Shutdown::Announced { .. } | Shutdown::Draining { .. } => {}
        }
        if !is_waiting_for_us && self.active_at + self.settings.idle_timeout <= now {
            // A connection that has failed has sent its GOAWAY already and is only sending its last bytes.
            if self.is_preface_sent && !has_failed {
                let code = ErrorCode::NO_ERROR;
                frame::goaway(out, self.last_taken(), code, "idle timeout");
            }
            self.opening = Opening::Failed;
            return Some(TimeLimit::Idle);
        }
        None
    }

    /// Returns and clears the costs that the client has caused since the last call, in units of its budget.
    #[inline]
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// Returns and clears the error code with which the last step refused a stream that no event reports.
    #[inline]
    pub const fn take_rejected(&mut self) -> Option<ErrorCode> {
        self.rejected.take()
    }

    /// Whether the connection has streams that were not released yet.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.connection.streams.open_count() > 0 || self.connection.streams.held() > 0
    }

    /// The settings that the client has announced.
    #[must_use]
    pub const fn peer_settings(&self) -> &PeerSettings {
        &self.connection.peer
    }

    /// The receive window and the send window of the connection, in bytes.
    #[must_use]
    pub const fn windows(&self) -> (u32, i32) {
        (
            self.connection.recv_window.left(),
            self.connection.send_window.get(),
        )
    }

    /// Time between the SETTINGS frame of the server and its acknowledgement by the client; `None` before the
    /// acknowledgement.
    #[must_use]
    pub fn settings_rtt(&self) -> Option<Duration> {
        Some(
            self.connection
                .settings_acked?
                .saturating_duration_since(self.connection.settings_sent?),
        )
    }

    /// The HPACK decoder and encoder, whose tables the debug page of the connection shows.
    #[must_use]
    pub const fn compression(&self) -> (&Decoder, &Encoder) {
        (&self.connection.decoder, &self.connection.encoder)
    }

    /// Information on each open stream, in the order of identifiers.
    pub fn streams(&self) -> impl Iterator<Item = StreamInfo> {
        self.connection
            .streams
            .iter_open()
            .map(|(key, stream)| StreamInfo {
                key,
                id: stream.id,
                state: stream.state,
                recv_window: stream.recv_window.left(),
                send_window: stream.send_window.get(),
                received: stream.received,
                sent: stream.sent,
            })
    }

    /// The identifier of a stream.
    #[must_use]
    pub fn stream_id(&self, key: StreamKey) -> StreamId {
        self.connection.id_of(key)
    }

    /// The state of a stream.
    #[must_use]
    pub fn state(&self, key: StreamKey) -> StreamState {
        self.connection
            .streams
            .get(key)
            .map_or(StreamState::Closed, |stream| stream.state)
    }

    /// Frees the memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.memo = ResponseMemo::default();
        self.request_memo = RequestMemo::default();
        self.connection.shrink();
    }

    /// Bytes of memory that the engine has allocated.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.connection.retained() + self.memo.retained() + self.request_memo.retained()
    }
}

/// Information on one stream, as [`ServerConnection::streams`] returns it.
#[derive(Clone, Copy, Debug)]
pub struct StreamInfo {
    /// The key of the stream.
    pub key: StreamKey,
    /// The identifier of the stream.
    pub id: StreamId,
    /// The state of the stream.
    pub state: StreamState,
    /// How many bytes of content the client may still send on the stream.
    pub recv_window: u32,
    /// How many bytes of content the server may still send on the stream; may be negative.
    pub send_window: i32,
    /// Bytes of content received on the stream.
    pub received: u64,
    /// Bytes of content sent on the stream.
    pub sent: u64,
}
