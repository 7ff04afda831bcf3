//! The client role of one connection.

mod receive;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use receive::{ClientReceived, ClientStep};

use crate::connection::{CONNECTION_WINDOW, Connection};
use crate::error::{ErrorCode, PeerError};
use crate::frame::{self, PREFACE, StreamId};
use crate::settings::{self, ClientSettings, DEFAULT_WINDOW, PeerSettings};
use crate::stream::{StreamKey, StreamState};

/// How far the connection has been set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// Waiting for the server's SETTINGS (RFC 9113 §3.4).
    Settings,
    Done,
    /// The server broke the protocol; its input is ignored.
    Failed,
}

/// The client role of one connection: bytes and time in, events and bytes out.
///
/// Used as [`crate::ServerConnection`], with these differences.
///
/// **Input.** [`receive`](Self::receive) fills a [`h2o_http::ClientResponse`]; costs are charged as in the server role.
/// After [`ClientReceived::GoAway`] the next steps report a [`ClientReceived::Refused`] for each stream that the server
/// will not answer, even without more input: the caller repeats the call until [`ClientReceived::NeedMore`].
///
/// **Streams.** A stream begins with [`request`](Self::request), and ends with [`release`](Self::release): after the end of
/// response and request, after [`ClientReceived::Reset`] or [`ClientReceived::Refused`], or earlier, which cancels the
/// request. The caller calls [`release_content`](Self::release_content) for the bytes of each [`ClientReceived::Data`].
///
/// **Output.** `request` writes the head. Content follows as in the server role.
///
/// **Time and the end.** There are no timers: the caller limits how long it waits for a response, and [resets](Self::reset)
/// its stream. Once [`is_reusable`](Self::is_reusable) is false, no request can be made. The caller closes once
/// [`is_over`](Self::is_over).
pub struct ClientConnection {
    settings: Arc<ClientSettings>,
    connection: Connection,
    opening: Opening,
    /// Latest stream opened by us.
    newest: StreamId,
    /// Streams that were not released yet.
    held: u32,
    /// The last stream that the server will process, as its GOAWAY frame says.
    last: Option<StreamId>,
    /// Our streams above `last`: the server refused them with its GOAWAY, which the caller has not been told yet.
    refused: Vec<StreamKey>,
    /// A stream whose response ended before the announced `content-length`. All of its content was passed to the caller; the
    /// next step reports the error.
    cut_off: Option<StreamId>,
    /// Whether GOAWAY was sent.
    is_leaving: bool,
    /// Number of PING frames that we sent and the server has not acknowledged.
    pings: u32,
}

impl ClientConnection {
    /// A connection that was just established. Writes the client's preface: SETTINGS and the window of the connection. H2O
    /// compatibility: H2O sends the same values.
    #[must_use]
    pub fn new(settings: Arc<ClientSettings>, now: Instant, out: &mut Vec<u8>) -> Self {
        // The content that this connection holds unread is not limited: its streams serve different clients, and a slow one
        // must not make the others wait.
        let mut connection = Connection::new(usize::MAX);
        // Set to false here, so that a server that announces SETTINGS_ENABLE_PUSH is detected: servers do not accept pushes
        // (RFC 9113 §8.4).
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
            held: 0,
            last: None,
            refused: Vec::new(),
            cut_off: None,
            is_leaving: false,
            pings: 0,
        }
    }

    /// Ends the connection because of `error`: writes GOAWAY and ignores further input. The caller sends `out` and closes.
    pub fn fail(&mut self, error: PeerError, out: &mut Vec<u8>) {
        if self.opening == Opening::Failed {
            return;
        }
        self.opening = Opening::Failed;
        if let Some((code, text)) = error.answer() {
            frame::goaway(out, StreamId::CONNECTION, code, text);
        }
    }

    /// Begins the graceful shutdown: writes GOAWAY and makes no more requests; the open streams are finished.
    pub fn go_away(&mut self, out: &mut Vec<u8>) {
        if self.opening != Opening::Failed && !std::mem::replace(&mut self.is_leaving, true) {
            // 0: the server has opened no streams.
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

    /// Whether another request can be made now: neither limit of streams is reached (RFC 9113 §5.1.2), neither side has
    /// sent GOAWAY (§6.8), and identifiers are left (§5.1.1).
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.is_reusable() && self.open_streams() < self.most_streams()
    }

    /// Streams that are open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.connection.streams.open_count()
    }

    /// Number of streams that may be open at a time: the lower of our limit and the server's.
    #[must_use]
    pub fn most_streams(&self) -> usize {
        let theirs = self.connection.peer.max_concurrent_streams;
        self.settings.max_streams.min(theirs) as usize
    }

    /// Whether requests can be made, now or once others have ended.
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

    /// Whether the connection is finished: no more requests can be made, and none is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.opening == Opening::Failed || (!self.is_reusable() && self.held == 0)
    }

    /// Whether there are streams that were not released yet.
    #[must_use]
    pub const fn has_streams(&self) -> bool {
        self.held > 0
    }

    /// Costs that the server has caused since the last call, in the units of [`crate::ServerConnection::take_costs`].
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// Whether the server's SETTINGS were received.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.opening == Opening::Done
    }

    /// The settings the server has announced.
    #[must_use]
    pub const fn peer_settings(&self) -> &PeerSettings {
        &self.connection.peer
    }

    /// Receive window and send window of the connection, in bytes.
    #[must_use]
    pub const fn windows(&self) -> (u32, i32) {
        (
            self.connection.recv_window.left(),
            self.connection.send_window.get(),
        )
    }

    /// Time between our SETTINGS frame and its acknowledgement by the server; `None` before the acknowledgement.
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

    /// The caller no longer uses a stream. If it has not ended, it is cancelled.
    pub fn release(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        if self.connection.streams.get(key).is_none() {
            return;
        }
        self.connection.reset(key, ErrorCode::CANCEL, out);
        self.connection.release(key, false, out);
        self.held -= 1;
    }

    /// The caller has used `len` bytes of a response's content: the stream's window opens again, so that the server may send
    /// as many more.
    pub fn release_content(&mut self, key: StreamKey, len: usize, out: &mut Vec<u8>) {
        self.connection.release_content(key, len, out);
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.connection.shrink();
    }

    /// Bytes of memory held.
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
        #[expect(clippy::disallowed_methods, reason = "any moment will do")]
        let now = Instant::now();
        let mut out = Vec::new();
        let settings = Arc::new(ClientSettings::default());
        let mut connection = ClientConnection::new(settings, now, &mut out);
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
