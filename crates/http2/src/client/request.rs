//! Sending of the client role: requests, and their content, for which the streams take turns.

use h2o_http::field_section::{connect_protocol, encode_request_pseudo, forwardable};
use h2o_http::{BodyLength, Headers, Known, Method, Name, RequestHead};

use super::ClientConnection;
use crate::encode::{encode_length, encode_request_fields};
use crate::field_block::{begin_section, end_section};
use crate::frame::{FrameType, StreamId, flags};
use crate::stream::{Stream, StreamKey, StreamState};

impl ClientConnection {
    /// Writes the head of a request on a new stream. If `end_stream` is true, no content follows. Returns `None` if no
    /// request can be made now (see [`ClientConnection::can_request`]), or if the request needs extended CONNECT and the
    /// server [does not allow that](ClientConnection::takes_extended_connect).
    pub fn request(
        &mut self,
        head: &RequestHead,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Option<StreamKey> {
        let has_protocol = connect_protocol(head).is_some();
        if !self.can_request() || (has_protocol && !self.takes_extended_connect()) {
            return None;
        }
        let id = match self.newest {
            StreamId::CONNECTION => StreamId::new(1),
            newest => StreamId::new(newest.get() + 2),
        };
        self.newest = id;
        let end = if end_stream { flags::END_STREAM } else { 0 };
        let at = begin_section(out, FrameType::HEADERS, end, id);
        let encoder = &mut self.connection.encoder;
        encoder.begin(out);
        encode_request_pseudo(head, |name, value| encoder.pseudo(name, value, out));
        if !head.expect().is_empty() {
            encoder.field(Name::Known(Known::Expect), b"100-continue", out);
        }
        encode_request_fields(encoder, &forwardable(&head.headers), out);
        if let BodyLength::Known(length) = head.body {
            encode_length(encoder, length, out);
        }
        end_section(out, at, id, self.connection.peer.frame_size());

        let state = if end_stream {
            StreamState::HalfClosedLocal
        } else {
            StreamState::Open
        };
        let mut stream = Stream::new(
            id,
            state,
            self.connection.peer.initial_window_size,
            self.settings.stream_window(),
        );
        stream.is_bodyless = head.method == Method::Head;
        stream.is_tunnel = is_tunnel(&head.method);
        Some(self.connection.insert(stream))
    }

    /// How many bytes of content the stream may send in one frame now, if it were its turn.
    #[must_use]
    pub fn sendable(&self, key: StreamKey) -> usize {
        self.connection.sendable(key)
    }

    /// Whether [`ClientConnection::poll_send`] would return a stream now.
    #[must_use]
    pub fn has_sendable(&self) -> bool {
        self.connection.has_sendable()
    }

    /// The stream whose turn it is to send, and how many bytes of content its next DATA frame may have. The caller then
    /// calls [`ClientConnection::send_data`], or [`ClientConnection::set_content`] if the stream has no content at the
    /// moment.
    pub fn poll_send(&mut self) -> Option<(StreamKey, usize)> {
        self.connection.poll_send()
    }

    /// Reports whether the caller has content to send on the stream.
    pub fn set_content(&mut self, key: StreamKey, has_content: bool) {
        self.connection.set_content(key, has_content);
    }

    /// Writes a DATA frame with `data`, which must not be longer than [`ClientConnection::poll_send`] allowed. If
    /// `end_stream` is true, the frame ends the request.
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], end_stream: bool, out: &mut Vec<u8>) {
        self.connection.write_data(key, data, end_stream, out);
        if end_stream {
            self.end_sending(key);
        }
    }

    /// Writes a DATA frame whose content `fill` appends to `out`: up to `max` bytes, as
    /// [`crate::ServerConnection::send_data_with`] does.
    ///
    /// # Errors
    /// Returns an error of `fill`; no frame is written then.
    pub fn send_data_with<E>(
        &mut self,
        key: StreamKey,
        max: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<Option<(usize, bool)>, E>,
    ) -> Result<Option<(usize, bool)>, E> {
        let written = self.connection.write_data_with(key, max, out, fill)?;
        if let Some((_, true)) = written {
            self.end_sending(key);
        }
        Ok(written)
    }

    /// Ends the request with `trailers`, or with an empty DATA frame.
    pub fn finish(&mut self, key: StreamKey, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        if self.connection.write_end(key, trailers, out) {
            self.end_sending(key);
        }
    }

    /// Updates the stream after END_STREAM was sent on it.
    fn end_sending(&mut self, key: StreamKey) {
        let Some(stream) = self.connection.streams.get_mut(key) else {
            return;
        };
        match stream.state {
            StreamState::Open => {
                stream.state = StreamState::HalfClosedLocal;
                self.connection.set_content(key, false);
            }
            StreamState::HalfClosedRemote => self.connection.close(key),
            StreamState::ReservedLocal | StreamState::HalfClosedLocal | StreamState::Closed => {}
        }
    }
}

const fn is_tunnel(method: &Method) -> bool {
    matches!(method, Method::Connect | Method::ConnectUdp)
}
