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
use crate::stream::{State, StreamKey};

/// What has been understood of the connection's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The server's SETTINGS are due (RFC 9113 §3.4).
    Settings,
    Done,
    /// The server broke the protocol; nothing it sends is looked at.
    Failed,
}

/// The client role of one connection: bytes and time in, events and bytes out.
///
/// The contract is that of [`crate::ServerConnection`], and these are the differences.
///
/// **Input.** [`receive`](Self::receive) fills a [`h2o_http::ClientResponse`], and the costs are those of the server. After
/// [`ClientReceived::GoAway`] the next steps report a [`ClientReceived::Refused`] for each stream that the server will not
/// answer, also if no more bytes arrive: the caller goes on until [`ClientReceived::NeedMore`].
///
/// **Streams.** A stream begins with [`request`](Self::request), and ends with [`release`](Self::release): after the end of the
/// response and of the request, after [`ClientReceived::Reset`] or [`ClientReceived::Refused`], or before, which cancels the
/// request. The caller calls [`release_content`](Self::release_content) for the bytes of each [`ClientReceived::Data`].
///
/// **Output.** The head is written by `request`. Content follows as in the server role.
///
/// **Time and the end.** There are no timers: the caller that waits for a response knows for how long, and
/// [resets](Self::reset) its stream. Once [`is_reusable`](Self::is_reusable) is false no request can be made any more. The caller
/// closes once [`is_over`](Self::is_over).
pub struct ClientConnection {
    settings: Arc<ClientSettings>,
    connection: Connection,
    opening: Opening,
    /// Latest stream opened by us.
    newest: StreamId,
    /// Streams that are not released.
    held: u32,
    /// The last stream that the server looks at, once it has said so.
    last: Option<StreamId>,
    /// Streams above that which are still to be reported.
    refused: Vec<StreamKey>,
    /// A stream whose content has ended short of its announced length. The last of that has been reported, the error has not.
    cut_off: Option<StreamId>,
    /// GOAWAY is sent.
    is_leaving: bool,
    /// PING frames of ours without an answer.
    pings: u32,
}

impl ClientConnection {
    /// A connection that was just established. Writes the client's preface: SETTINGS and the connection's window (H2O
    /// compatibility for the values).
    #[must_use]
    pub fn new(settings: Arc<ClientSettings>, now: Instant, out: &mut Vec<u8>) -> Self {
        // Streams are of different clients here: none is held up because of another one.
        let mut connection = Connection::new(usize::MAX);
        // Servers take no pushes (RFC 9113 §8.4); one that says otherwise is found by that.
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

    /// Ends the connection because of `error`: GOAWAY is written, and nothing is received any more. The caller sends
    /// what is in `out` and closes.
    pub fn fail(&mut self, error: PeerError, out: &mut Vec<u8>) {
        if self.opening == Opening::Failed {
            return;
        }
        self.opening = Opening::Failed;
        if let Some((code, text)) = error.answer() {
            frame::goaway(out, StreamId::CONNECTION, code, text);
        }
    }

    /// No more requests are to be made: GOAWAY is written, what has begun goes on.
    pub fn go_away(&mut self, out: &mut Vec<u8>) {
        if self.opening != Opening::Failed && !std::mem::replace(&mut self.is_leaving, true) {
            // The server has opened no streams.
            frame::goaway(out, StreamId::CONNECTION, ErrorCode::NO_ERROR, "");
        }
    }

    /// Writes PING, unless the connection has failed; [`ClientReceived::Pong`] answers it.
    pub fn ping(&mut self, data: [u8; 8], out: &mut Vec<u8>) {
        if self.opening != Opening::Failed {
            self.pings += 1;
            frame::ping(out, 0, data);
        }
    }

    /// True if another request could be made now, as far as limits go: ours and the server's (RFC 9113 §5.1.2), that
    /// neither side is leaving (§6.8), and that identifiers are left (§5.1.1).
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.is_reusable() && self.open_streams() < self.most_streams()
    }

    /// Streams that are open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.connection.streams.open_count()
    }

    /// Streams that may be open at a time: our limit, or the server's if that is lower.
    #[must_use]
    pub fn most_streams(&self) -> usize {
        let theirs = self.connection.peer.max_concurrent_streams;
        self.settings.max_streams.min(theirs) as usize
    }

    /// True if requests can still be made, now or when others have ended.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.opening != Opening::Failed
            && !self.is_leaving
            && !self.connection.is_peer_leaving
            && self.newest.get() < StreamId::MAX.get()
    }

    /// True if the server takes extended CONNECT (RFC 8441). It says so in its SETTINGS.
    #[must_use]
    pub const fn takes_extended_connect(&self) -> bool {
        self.connection.peer.enable_connect_protocol
    }

    /// True once nothing is to come on the connection: no more requests can be made, and none is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.opening == Opening::Failed || (!self.is_reusable() && self.held == 0)
    }

    /// True while streams are open, or closed and not released.
    #[must_use]
    pub const fn has_streams(&self) -> bool {
        self.held > 0
    }

    /// What the server has made us do since the last call, in the units of [`crate::ServerConnection::take_costs`].
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// True once the server's SETTINGS have come.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.opening == Opening::Done
    }

    /// The settings the server has announced.
    #[must_use]
    pub const fn peer_settings(&self) -> &PeerSettings {
        &self.connection.peer
    }

    /// Bytes that the server may still send, and that we may, on the connection as a whole.
    #[must_use]
    pub const fn windows(&self) -> (u32, i32) {
        (
            self.connection.recv_window.left(),
            self.connection.send_window.get(),
        )
    }

    /// Time between our SETTINGS and their acknowledgement; `None` before that.
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
    pub fn state(&self, key: StreamKey) -> State {
        self.connection
            .streams
            .get(key)
            .map_or(State::Closed, |stream| stream.state)
    }

    /// Ends a stream at once, with [`ErrorCode::CANCEL`] if its response is not wanted any more. What still comes for
    /// it is discarded.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode, out: &mut Vec<u8>) {
        self.connection.reset(key, code, out);
    }

    /// The caller is done with a stream. One that is not over is cancelled.
    pub fn release(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        if self.connection.streams.get(key).is_none() {
            return;
        }
        self.connection.reset(key, ErrorCode::CANCEL, out);
        self.connection.release(key, false, out);
        self.held -= 1;
    }

    /// `len` bytes of a response's content are dealt with: the server may send as many more.
    pub fn release_content(&mut self, key: StreamKey, len: usize, out: &mut Vec<u8>) {
        self.connection.release_content(key, len, out);
    }

    /// Gives memory back while nothing goes on.
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
