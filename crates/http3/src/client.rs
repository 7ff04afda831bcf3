//! The client role of one HTTP/3 connection: requests to a backend.

mod receive;
mod request;

use std::sync::Arc;

use h2o_http::priority::PriorityParameters;

pub use receive::{ClientReceived, ClientStep};

use crate::connection::{Command, Connection};
use crate::error::{ErrorCode, PeerError};
use crate::local::LocalStream;
use crate::settings::{ClientSettings, PeerSettings};
use crate::stream::{StreamKey, StreamState};
use crate::stream_id::StreamId;

/// The client role of one HTTP/3 connection: bytes go in, events and bytes come out.
///
/// It is used like [`crate::ServerConnection`], with these differences.
///
/// **Input.** The caller reports the streams that the server opens with [`open`](Self::open). [`receive`](Self::receive)
/// fills a [`h2o_http::ClientResponse`]. After [`ClientReceived::GoAway`] the caller asks
/// [`poll_refused`](Self::poll_refused) for the streams that the server will not answer.
///
/// **Streams.** A stream begins with [`request`](Self::request), for which the caller opens a stream of the transport, and
/// ends with [`release`](Self::release): after the end of the response and of the request, after [`ClientReceived::Reset`]
/// or [`ClientReceived::Refused`], or earlier, which cancels the request.
///
/// **Output.** `request` writes the head of a request. Its content is sent as in the server role.
///
/// **Time and the end.** There are no timers: the caller limits how long it waits for a response, and [resets](Self::reset)
/// the stream. Once [`is_reusable`](Self::is_reusable) is false, no more requests can be made. The caller closes the
/// connection once [`is_over`](Self::is_over) is true.
pub struct ClientConnection {
    settings: Arc<ClientSettings>,
    connection: Connection,
    /// The first request stream that the server will not process, as its GOAWAY frame says.
    first_refused: Option<StreamId>,
    /// Streams from `first_refused` on whose refusal has not been reported to the caller yet.
    refused: Vec<StreamKey>,
    /// Whether the caller has begun the graceful shutdown, so that no more requests are made.
    is_leaving: bool,
}

impl ClientConnection {
    /// The engine for a new connection to a server. `has_datagrams` tells whether both sides support QUIC datagrams.
    #[must_use]
    pub fn new(settings: Arc<ClientSettings>, has_datagrams: bool) -> Self {
        let mut connection = Connection::new(
            settings.qpack_decoder_capacity,
            settings.max_streams,
            settings.qpack_encoder_capacity,
            has_datagrams,
        );
        settings.write(has_datagrams, connection.local(LocalStream::Control).out());
        Self {
            settings,
            connection,
            first_refused: None,
            refused: Vec::new(),
            is_leaving: false,
        }
    }

    /// Reports that the server has opened a stream.
    ///
    /// # Errors
    /// Returns a [`PeerError`] if the server may not open the stream.
    pub fn open(&mut self, id: StreamId) -> Result<(), PeerError> {
        if self.connection.has_failed {
            return Ok(());
        }
        // Servers must not open bidirectional streams (RFC 9114 §6.1).
        if id.is_client() || !id.is_unidirectional() {
            return self.failed(PeerError::StreamCreation);
        }
        if !self.connection.remote.open(id) {
            return self.failed(PeerError::Overdrawn);
        }
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

    /// Begins the graceful shutdown: no more requests are made, and open streams are completed. The server need not be
    /// told, since it has nothing to push (RFC 9114 §5.2).
    pub const fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// The next action that the caller has to take on a stream of the transport.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.connection.poll_command()
    }

    /// The next stream that was [blocked](ClientReceived::Blocked) and whose input can be passed again. The stream may also
    /// have ended: its input is then consumed and dropped.
    pub fn poll_unblocked(&mut self) -> Option<StreamId> {
        self.connection.poll_unblocked()
    }

    /// The next stream whose request the server has not processed and will not process; the caller still has to release the
    /// stream. The request can safely be sent again on another connection.
    pub fn poll_refused(&mut self) -> Option<StreamKey> {
        self.refused.pop()
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

    /// Whether the limit of this side and the server's GOAWAY allow another request now. The transport has limits of its
    /// own.
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.is_reusable() && self.open_streams() < self.settings.max_streams as usize
    }

    /// Number of streams that are not released.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.connection.streams.len()
    }

    /// Whether more requests can be made on this connection, now or after others have ended.
    #[must_use]
    pub const fn is_reusable(&self) -> bool {
        !self.connection.has_failed && !self.is_leaving && self.first_refused.is_none()
    }

    /// Whether the server's settings allow extended CONNECT (RFC 9220).
    #[must_use]
    pub fn takes_extended_connect(&self) -> bool {
        let peer = self.connection.peer;
        peer.is_some_and(|settings| settings.enable_connect_protocol)
    }

    /// Whether the connection is finished: no more requests can be made, and no stream is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connection.has_failed || (!self.is_reusable() && self.open_streams() == 0)
    }

    /// Returns and clears the costs that the server has caused since the last call, in the units of
    /// [`crate::ServerConnection::take_costs`].
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// The settings that the server has announced; `None` before its SETTINGS frame.
    #[must_use]
    pub const fn peer_settings(&self) -> Option<&PeerSettings> {
        self.connection.peer.as_ref()
    }

    /// The identifier of a stream; `None` if the stream is released.
    #[must_use]
    pub fn stream_id(&self, key: StreamKey) -> Option<StreamId> {
        Some(self.connection.streams.get(key)?.id)
    }

    /// The stream with this identifier, if it is not released.
    #[must_use]
    pub fn find(&self, id: StreamId) -> Option<StreamKey> {
        self.connection.streams.find(id)
    }

    /// The state of a stream.
    #[must_use]
    pub fn state(&self, key: StreamKey) -> StreamState {
        self.connection
            .streams
            .get(key)
            .map_or(StreamState::Closed, |stream| stream.state)
    }

    /// Changes the priority that a stream has among the streams that send.
    pub fn prioritize(&mut self, key: StreamKey, priority: PriorityParameters) {
        self.connection.prioritize(key, priority);
    }

    /// Resets a stream, with [`ErrorCode::REQUEST_CANCELLED`] if its response is no longer wanted.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        self.connection.abort(key, code, code);
    }

    /// Ends the use of a stream by the caller. If the stream has not ended, it is cancelled.
    pub fn release(&mut self, key: StreamKey) {
        let code = ErrorCode::REQUEST_CANCELLED;
        self.connection.abort(key, code, code);
        self.connection.remove(key);
        self.refused.retain(|&refused| refused != key);
    }

    /// Frees the memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.connection.shrink();
        self.refused.shrink_to_fit();
    }

    /// Bytes of memory that the engine has allocated.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.connection.retained() + self.refused.capacity() * size_of::<StreamKey>()
    }
}
