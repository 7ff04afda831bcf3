//! Sending of the client role: requests, and their content.

use h2o_http::field_section::{
    connect_protocol, encode_request_fields, encode_request_pseudo, forwardable,
};
use h2o_http::{BodyLength, Headers, Known, Method, Name, RequestHead};

use super::ClientConnection;
use crate::frame;
use crate::stream::{Stream, StreamKey};
use crate::stream_id::StreamId;

impl ClientConnection {
    /// Writes the head of a request to `out`, for the stream `id` that the caller has opened. If `end_stream` is true, no
    /// content follows. Returns `None` if no request can be made now (see [`ClientConnection::can_request`]), or if the
    /// request needs extended CONNECT and the server [does not allow that](ClientConnection::takes_extended_connect).
    pub fn request(
        &mut self,
        id: StreamId,
        head: &RequestHead,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Option<StreamKey> {
        debug_assert!(id.is_request());
        let needs_more = connect_protocol(head).is_some() && !self.takes_extended_connect();
        if !self.can_request() || needs_more {
            return None;
        }
        let mut stream = Stream::new(id);
        stream.is_reported = true;
        stream.is_bodyless = head.method == Method::Head;
        stream.is_tunnel = matches!(head.method, Method::Connect | Method::ConnectUdp);
        let key = self.connection.streams.insert(stream);
        let at = frame::begin_section(out);
        let mut section = self.connection.section(out);
        encode_request_pseudo(head, |pseudo, value| section.pseudo(pseudo, value));
        if !head.expect().is_empty() {
            section.field(Name::Known(Known::Expect), b"100-continue");
        }
        encode_request_fields(&forwardable(&head.headers), |name, value| {
            section.field(name, value);
        });
        if let BodyLength::Known(length) = head.body {
            let name = Name::Known(Known::ContentLength);
            section.field(name, itoa::Buffer::new().format(length).as_bytes());
        }
        section.finish(id);
        frame::end_section(out, at);
        if end_stream {
            self.connection.end_send(key);
        }
        Some(key)
    }

    /// Reports whether the caller has content to send on the stream and the transport has room for it.
    pub fn set_ready(&mut self, key: StreamKey, is_ready: bool) {
        self.connection.set_ready(key, is_ready);
    }

    /// The stream whose turn it is to send content.
    pub fn poll_send(&mut self) -> Option<StreamKey> {
        self.connection.next_ready()
    }

    /// Writes a DATA frame with `data`. If `end_stream` is true, the frame ends the request.
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], end_stream: bool, out: &mut Vec<u8>) {
        if self
            .connection
            .begin_data(key, data.len() as u64, end_stream, out)
        {
            out.extend_from_slice(data);
        }
    }

    /// Writes the header of a DATA frame, as [`crate::ServerConnection::begin_data`] does.
    pub fn begin_data(
        &mut self,
        key: StreamKey,
        len: u64,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        self.connection.begin_data(key, len, end_stream, out)
    }

    /// Ends the request: appends `trailers`, if any, to `out`. The caller then ends the stream (FIN) after these bytes.
    pub fn finish(&mut self, key: StreamKey, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        self.connection.finish(key, trailers, out);
    }

    /// Begins an HTTP datagram of a tunnel, as [`crate::ServerConnection::begin_datagram`] does.
    pub fn begin_datagram(&self, key: StreamKey, out: &mut Vec<u8>) -> bool {
        self.connection.begin_datagram(key, out)
    }
}
