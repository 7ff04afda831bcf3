//! The client role of one connection.

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

/// The client role of one connection: bytes in, events and bytes out.
///
/// The contract is that of [`crate::ServerConnection`], and these are the differences.
///
/// **Input.** [`open`](Self::open) is for the streams of the server. [`receive`](Self::receive) fills a [`h2o_http::ClientResponse`].
/// After [`ClientReceived::GoAway`] the caller asks [`poll_refused`](Self::poll_refused) for the streams that the server will not answer.
///
/// **Streams.** A stream begins with [`request`](Self::request), for which the caller opens one of the transport, and ends with
/// [`release`](Self::release): after the end of the response and of the request, after [`ClientReceived::Reset`] or
/// [`ClientReceived::Refused`], or before, which cancels the request.
///
/// **Output.** The head is written by `request`. Content follows as in the server role.
///
/// **Time and the end.** There are no timers: the caller that waits for a response knows for how long, and [resets](Self::reset) its
/// stream. Once [`is_reusable`](Self::is_reusable) is false no request can be made any more. The caller closes once
/// [`is_over`](Self::is_over).
pub struct ClientConnection {
    settings: Arc<ClientSettings>,
    connection: Connection,
    /// The first request stream that the server will not process, as its GOAWAY frame says.
    first_refused: Option<StreamId>,
    /// Streams from `first_refused` on, which the caller has not been told yet that the server has refused.
    refused: Vec<StreamKey>,
    /// No more requests are to be made.
    is_leaving: bool,
}

impl ClientConnection {
    /// A connection to a server. `has_datagrams`: whether both transports support QUIC datagrams.
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

    /// Handles the server having opened a stream.
    ///
    /// # Errors
    /// [`PeerError`]: the server may not open it.
    pub fn open(&mut self, id: StreamId) -> Result<(), PeerError> {
        if self.connection.has_failed {
            return Ok(());
        }
        // Servers open no bidirectional streams (RFC 9114 §6.1).
        if id.is_client() || !id.is_unidirectional() {
            return self.failed(PeerError::StreamCreation);
        }
        if !self.connection.remote.open(id) {
            return self.failed(PeerError::Overdrawn);
        }
        Ok(())
    }

    /// Ends the connection because of `error`: further input is ignored. The caller closes with the error's
    /// [answer](PeerError::answer).
    pub const fn fail(&mut self, _error: PeerError) {
        self.connection.has_failed = true;
    }

    fn failed<T>(&mut self, error: PeerError) -> Result<T, PeerError> {
        self.fail(error);
        Err(error)
    }

    /// Begins the graceful shutdown: no more requests are made, and open streams are finished. The server need not be told:
    /// it has nothing to push (RFC 9114 §5.2).
    pub const fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// The next action that the caller has to take on a stream of the transport.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.connection.poll_command()
    }

    /// A stream that was [blocked](ClientReceived::Blocked) and can be received again. It may also have ended: its input is
    /// then consumed and dropped.
    pub fn poll_unblocked(&mut self) -> Option<StreamId> {
        self.connection.poll_unblocked()
    }

    /// A stream whose request the server has not processed and will not process; the caller still has to release it. The
    /// request can safely be sent again on another connection.
    pub fn poll_refused(&mut self) -> Option<StreamKey> {
        self.refused.pop()
    }

    /// The bytes to send on one of our unidirectional streams, beginning with the type of the stream.
    #[must_use]
    pub fn pending(&self, stream: LocalStream) -> &[u8] {
        self.connection.pending(stream)
    }

    /// The caller has passed `len` of the pending bytes to the transport.
    pub fn advance(&mut self, stream: LocalStream, len: usize) {
        self.connection.local(stream).advance(len);
    }

    /// Whether our limit and the server's GOAWAY allow another request now; the transport has limits of its own.
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.is_reusable() && self.open_streams() < self.settings.max_streams as usize
    }

    /// Streams that are not released.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.connection.streams.len()
    }

    /// Whether requests can still be made, now or when others have ended.
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

    /// Whether the connection is finished: no more requests can be made, and none is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connection.has_failed || (!self.is_reusable() && self.open_streams() == 0)
    }

    /// Costs that the server has caused since the last call, in the units of [`crate::ServerConnection::take_costs`].
    pub const fn take_costs(&mut self) -> u32 {
        self.connection.take_costs()
    }

    /// The settings that the server has announced; `None` before its SETTINGS frame.
    #[must_use]
    pub const fn peer_settings(&self) -> Option<&PeerSettings> {
        self.connection.peer.as_ref()
    }

    /// The identifier of a stream; `None` if it is released.
    #[must_use]
    pub fn stream_id(&self, key: StreamKey) -> Option<StreamId> {
        Some(self.connection.streams.get(key)?.id)
    }

    /// The stream with that identifier, if it is not released.
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

    /// Changes the priority of a stream among those that send.
    pub fn prioritize(&mut self, key: StreamKey, priority: PriorityParameters) {
        self.connection.prioritize(key, priority);
    }

    /// Resets a stream, with [`ErrorCode::REQUEST_CANCELLED`] if its response is no longer wanted.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        self.connection.abort(key, code, code);
    }

    /// The caller no longer uses a stream. If it has not ended, it is cancelled.
    pub fn release(&mut self, key: StreamKey) {
        let code = ErrorCode::REQUEST_CANCELLED;
        self.connection.abort(key, code, code);
        self.connection.remove(key);
        self.refused.retain(|&refused| refused != key);
    }

    /// Gives memory back while nothing goes on.
    pub fn shrink(&mut self) {
        self.connection.shrink();
        self.refused.shrink_to_fit();
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.connection.retained() + self.refused.capacity() * size_of::<StreamKey>()
    }
}
