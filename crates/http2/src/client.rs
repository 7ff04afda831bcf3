//! The client role of one HTTP/2 connection: requests to a backend.

mod receive;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use receive::{ClientReceived, ClientStep};

use crate::connection::{CONNECTION_WINDOW, Connection};
use crate::error::{ErrorCode, PeerError};
use crate::field_block::SectionLimits;
use crate::frame::{self, PREFACE, StreamId};
use crate::settings::{self, ClientSettings, DEFAULT_WINDOW, PeerSettings};
use crate::stream::{StreamKey, StreamState};

/// How far the setup of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The connection waits for the server's SETTINGS (RFC 9113 §3.4).
    Settings,
    Done,
    /// The server violated the protocol; the rest of its input is ignored.
    Failed,
}

/// The client role of one HTTP/2 connection: bytes and time go in, events and bytes come out.
///
/// It is used like [`crate::ServerConnection`], with these differences.
///
/// **Input.** [`receive`](Self::receive) fills a [`h2o_http::ClientResponse`]; costs are charged as in the server role.
/// After [`ClientReceived::GoAway`] each of the next steps reports a [`ClientReceived::Refused`] for a stream that the
/// server will not answer, even without more input: the caller repeats the call until [`ClientReceived::NeedMore`].
///
/// **Streams.** A stream begins with [`request`](Self::request), and ends with [`release`](Self::release): after the end of
/// response and request, after [`ClientReceived::Reset`] or [`ClientReceived::Refused`], or earlier, which cancels the
/// request. The caller calls [`release_content`](Self::release_content) for the bytes of each [`ClientReceived::Data`].
///
/// **Output.** `request` writes the head of a request. Its content is sent as in the server role.
///
/// **Time and the end.** There are no timers: the caller limits how long it waits for a response, and [resets](Self::reset)
/// the stream. Once [`is_reusable`](Self::is_reusable) is false, no more requests can be made. The caller closes the
/// connection once [`is_over`](Self::is_over) is true.
pub struct ClientConnection {
    settings: Arc<ClientSettings>,
    connection: Connection,
    opening: Opening,
    /// The latest stream that this side opened.
    newest: StreamId,
    /// The last stream that the server will process, as its GOAWAY frame says.
    last: Option<StreamId>,
    /// Streams above `last`, which the server refused with its GOAWAY, and whose refusal has not been reported to the
    /// caller yet.
    refused: Vec<StreamKey>,
    /// A stream whose response ended before the announced `content-length`. All of its content has been passed to the
    /// caller; the next step reports the error.
    cut_off: Option<StreamId>,
    /// Whether this side has sent GOAWAY.
    is_leaving: bool,
    /// Number of PING frames sent that the server has not acknowledged.
    pings: u32,
}

impl ClientConnection {
    /// The engine for a connection that was just established. Writes the client's preface: SETTINGS and the window of the
    /// connection. H2O compatibility: H2O sends the same values.
    #[must_use]
    pub fn new(settings: Arc<ClientSettings>, now: Instant, out: &mut Vec<u8>) -> Self {
        // The unread content of the whole connection is not limited: its streams serve different clients, and a slow client
        // must not make the others wait.
        let mut connection = Connection::new(usize::MAX, SectionLimits::OF_BACKENDS);
        // Set to false, so that a server that announces SETTINGS_ENABLE_PUSH as 1 is detected: a server cannot accept
        // pushes (RFC 9113 §8.4).
        connection.peer.enable_push = false;
        connection.settings_sent = Some(now);
        out.extend_from_slice(PREFACE);
        frame::settings(
            out,
            &[
                (settings::ENABLE_PUSH, 0),
                (settings::MAX_CONCURRENT_STREAMS, settings.max_streams),
                (settings::INITIAL_WINDOW_SIZE, settings.stream_window()),
            ],
        );
        let increment = CONNECTION_WINDOW - DEFAULT_WINDOW;
        frame::window_update(out, StreamId::CONNECTION, increment);
        connection.recv_window.raise(increment);
        Self {
            settings,
            connection,
            opening: Opening::Settings,
            newest: StreamId::CONNECTION,
            last: None,
            refused: Vec::new(),
            cut_off: None,
            is_leaving: false,
            pings: 0,
        }
    }

    /// Ends the connection because of `error`: writes GOAWAY and ignores further input. The caller sends `out` and closes
    /// the connection.
    pub fn fail(&mut self, error: PeerError, out: &mut Vec<u8>) {
        if self.opening == Opening::Failed {
            return;
        }
        self.opening = Opening::Failed;
        if let Some((code, text)) = error.answer() {
            frame::goaway(out, StreamId::CONNECTION, code, text);
        }
    }

    /// Begins the graceful shutdown: writes GOAWAY and makes no more requests. The open streams are completed.
    pub fn go_away(&mut self, out: &mut Vec<u8>) {
        if self.opening != Opening::Failed && !std::mem::replace(&mut self.is_leaving, true) {
            // The last stream of this GOAWAY is 0, since the server has opened no streams.
            frame::goaway(out, StreamId::CONNECTION, ErrorCode::NO_ERROR, "");
        }
    }

    /// Writes a PING frame, unless the connection has failed. The server's acknowledgement is reported as
    /// [`ClientReceived::Pong`].
    pub fn ping(&mut self, data: [u8; 8], out: &mut Vec<u8>) {
        if self.opening != Opening::Failed {
            self.pings += 1;
            frame::ping(out, 0, data);
        }
    }

    /// Whether another request can be made now: neither side's limit of streams is reached (RFC 9113 §5.1.2), neither side
    /// has sent GOAWAY (§6.8), and stream identifiers are left (§5.1.1).
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.is_reusable() && self.open_streams() < self.most_streams()
    }

    /// Number of open streams.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.connection.streams.open_count()
    }

    /// Number of streams that may be open at a time: the lower of the limits of both sides. Before the server's SETTINGS have
    /// arrived it is 1, because a server that allows few streams refuses the others (RFC 9113 §5.1.2).
    #[must_use]
    pub fn most_streams(&self) -> usize {
        if self.opening == Opening::Settings {
            return 1;
        }
        let theirs = self.connection.peer.max_concurrent_streams;
        self.settings.max_streams.min(theirs) as usize
    }

    /// Whether more requests can be made on this connection, now or after others have ended.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.opening != Opening::Failed
            && !self.is_leaving
            && !self.connection.is_peer_leaving
            && self.newest.get() < StreamId::MAX.get()
    }

    /// Whether the server's SETTINGS allow extended CONNECT (RFC 8441).
    #[must_use]
    pub const fn takes_extended_connect(&self) -> bool {
        self.connection.peer.enable_connect_protocol
    }

    /// Whether the connection is finished: no more requests can be made, and no stream is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.opening == Opening::Failed
            || (!self.is_reusable() && self.connection.streams.held() == 0)
    }

    /// Whether the connection has streams that were not released yet.
    #[must_use]
    pub const fn has_streams(&self) -> bool {
        self.connection.streams.held() > 0
    }

    /// Returns and clears the costs that the server has caused since the last call, in the units of
    /// [`crate::ServerConnection::take_costs`].
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// Whether the server's SETTINGS were received.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.opening == Opening::Done
    }

    /// The settings that the server has announced.
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

    /// Time between the SETTINGS frame of this side and its acknowledgement by the server; `None` before the
    /// acknowledgement.
    #[must_use]
    pub fn settings_rtt(&self) -> Option<Duration> {
        Some(
            self.connection
                .settings_acked?
                .saturating_duration_since(self.connection.settings_sent?),
        )
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

    /// Resets a stream, with [`ErrorCode::CANCEL`] if its response is no longer wanted. Later frames for it are discarded.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode, out: &mut Vec<u8>) {
        self.connection.reset(key, code, out);
    }

    /// Ends the use of a stream by the caller. If the stream has not ended, it is cancelled.
    pub fn release(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        if self.connection.streams.get(key).is_none() {
            return;
        }
        self.connection.reset(key, ErrorCode::CANCEL, out);
        self.connection.release(key, out);
    }

    /// Reports that the caller has used `len` bytes of a response's content: the stream's receive window opens by as many
    /// bytes, so that the server may send more.
    pub fn release_content(&mut self, key: StreamKey, len: usize, out: &mut Vec<u8>) {
        self.connection.release_content(key, len, out);
    }

    /// Frees the memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.connection.shrink();
    }

    /// Bytes of memory that the engine has allocated.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.connection.retained()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_run_out() {
        #[expect(
            clippy::disallowed_methods,
            reason = "the test may begin at any instant"
        )]
        let now = Instant::now();
        let mut out = Vec::new();
        let settings = Arc::new(ClientSettings::default());
        let mut connection = ClientConnection::new(settings, now, &mut out);
        connection.opening = Opening::Done;
        connection.newest = StreamId::new(0x7fff_fffb);
        let request = h2o_http::RequestHead::default();
        for want in [Some(0x7fff_fffd), Some(0x7fff_ffff), None, None] {
            let stream = connection.request(&request, true, &mut out);
            let id = stream.map(|stream| connection.stream_id(stream).get());
            assert_eq!(id, want, "RFC 9113 §5.1.1");
        }
        assert!(!connection.is_reusable());
    }
}
