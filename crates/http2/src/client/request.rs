//! What the client sends: requests, and their content in turns.

use std::borrow::Cow;

use h2o_http::{BodyLength, Headers, Known, Method, Name, RequestHead, escape};

use super::ClientConnection;
use crate::encode::{encode_fields, encode_length};
use crate::field_block::{begin_section, end_section};
use crate::frame::{FrameType, StreamId, flags};
use crate::hpack::{Encoder, Pseudo};
use crate::stream::{State, Stream, StreamKey};

impl ClientConnection {
    /// Writes the head of a request on a new stream; `end_stream` if no content follows. `None`: none can be made now
    /// (see [`ClientConnection::can_request`]), or it asks for a protocol and the server
    /// [does not take that](ClientConnection::takes_extended_connect).
    pub fn request(
        &mut self,
        head: &RequestHead,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Option<StreamKey> {
        let protocol = protocol(head);
        if !self.can_request() || (protocol.is_some() && !self.takes_extended_connect()) {
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
        encode_pseudo(encoder, head, protocol, out);
        if !head.expect().is_empty() {
            encoder.field(Name::Known(Known::Expect), b"100-continue", out);
        }
        match forwardable(&head.headers) {
            Some(headers) => encode_fields(encoder, &headers, out),
            None => encode_fields(encoder, &head.headers, out),
        }
        if let BodyLength::Known(length) = head.body {
            encode_length(encoder, length, out);
        }
        end_section(out, at, id, self.connection.peer.frame_size());

        let state = if end_stream {
            State::HalfClosedLocal
        } else {
            State::Open
        };
        let mut stream = Stream::new(
            id,
            state,
            self.connection.peer.initial_window_size,
            self.settings.stream_window(),
        );
        stream.is_bodyless = head.method == Method::Head;
        stream.is_tunnel = is_tunnel(&head.method);
        self.held += 1;
        Some(self.connection.insert(stream, false))
    }

    /// Octets of content that the stream may send in one frame now, whoever else waits.
    #[must_use]
    pub fn sendable(&self, key: StreamKey) -> usize {
        self.connection.sendable(key)
    }

    /// True if [`ClientConnection::poll_send`] would name a stream.
    #[must_use]
    pub fn has_sendable(&self) -> bool {
        self.connection.has_sendable()
    }

    /// The stream whose turn it is, and how many octets of content its next frame may have. The caller answers with
    /// [`ClientConnection::send_data`], or takes the stream out by [`ClientConnection::set_content`].
    pub fn poll_send(&mut self) -> Option<(StreamKey, usize)> {
        self.connection.poll_send()
    }

    /// The caller has content for the stream, or has none for now.
    pub fn set_content(&mut self, key: StreamKey, has_content: bool) {
        self.connection.set_content(key, has_content);
    }

    /// Writes a DATA frame with `data`, which is no longer than what was granted; `end_stream` if it is the last one.
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], end_stream: bool, out: &mut Vec<u8>) {
        self.connection.write_data(key, data, end_stream, out);
        if end_stream {
            self.end_sending(key);
        }
    }

    /// Lets `fill` append up to `max` octets of content to `out`, and makes a DATA frame of them, as
    /// [`crate::ServerConnection::send_data_with`] does.
    ///
    /// # Errors
    /// That of `fill`; no frame is written.
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

    /// The content ended: with `trailers`, or with an empty DATA frame.
    pub fn finish(&mut self, key: StreamKey, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        if self.connection.write_end(key, trailers, out) {
            self.end_sending(key);
        }
    }

    /// We have sent END_STREAM.
    fn end_sending(&mut self, key: StreamKey) {
        let Some(stream) = self.connection.streams.get_mut(key) else {
            return;
        };
        match stream.state {
            State::Open => {
                stream.state = State::HalfClosedLocal;
                self.connection.set_content(key, false);
            }
            State::HalfClosedRemote => self.connection.close(key),
            State::ReservedLocal | State::HalfClosedLocal | State::Closed => {}
        }
    }
}

const fn is_tunnel(method: &Method) -> bool {
    matches!(method, Method::Connect | Method::ConnectUdp)
}

/// The protocol that extended CONNECT asks for (RFC 8441 §4).
fn protocol(head: &RequestHead) -> Option<&[u8]> {
    let token = head.upgrade();
    (head.method == Method::Connect && !token.is_empty()).then_some(token)
}

fn encode_pseudo(
    encoder: &mut Encoder,
    head: &RequestHead,
    protocol: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let is_plain_connect = head.method == Method::Connect && protocol.is_none();
    encoder.pseudo(Pseudo::Method, head.method.as_str().as_bytes(), out);
    if let Some(protocol) = protocol {
        encoder.pseudo(Pseudo::Protocol, &visible(protocol), out);
    }
    if !is_plain_connect {
        encoder.pseudo(Pseudo::Scheme, head.scheme.as_str().as_bytes(), out);
    }
    let mut authority = authority(head);
    if is_plain_connect && authority.is_empty() {
        // Its target is an authority (RFC 9110 §7.1).
        authority = head.target();
    }
    // Without one the field is left out, never empty (RFC 9113 §8.3.1).
    if !authority.is_empty() {
        encoder.pseudo(Pseudo::Authority, &visible(authority), out);
    }
    if !is_plain_connect {
        let target = match head.target() {
            b"" => b"/",
            target => target,
        };
        encoder.pseudo(Pseudo::Path, &visible(target), out);
    }
}

/// The authority, or what `host` says in its place (RFC 9113 §8.3.1).
fn authority(head: &RequestHead) -> &[u8] {
    match head.authority() {
        b"" => head.headers.get(Known::Host).unwrap_or_default(),
        authority => authority,
    }
}

/// A blank or control character in a pseudo field would let whoever chose it write requests of his own where it is
/// translated to HTTP/1 (RFC 9113 §10.3). Nothing that was received has one; in what a script made up it is
/// percent-encoded.
fn visible(text: &[u8]) -> Cow<'_, [u8]> {
    let is_visible = |octet: &u8| *octet > b' ' && *octet != 0x7f;
    if text.iter().all(is_visible) {
        return text.into();
    }
    let mut out = Vec::new();
    for octet in text {
        if is_visible(octet) {
            out.push(*octet);
        } else {
            escape::uri(&[*octet], b"", &mut out);
        }
    }
    out.into()
}

/// The fields without those for this hop only that [`encode_fields`] does not know by their names: those `connection`
/// lists (RFC 9110 §7.6.1), `te` other than `trailers` (RFC 9113 §8.2.2), and those the head has apart. `None`: there
/// are none.
fn forwardable(headers: &Headers) -> Option<Headers> {
    let options: Vec<&[u8]> = headers.get_all(Known::Connection).collect();
    let is_of_hop = |name: Name<'_>, value: &[u8]| match name {
        Name::Known(Known::Host | Known::Expect) => true,
        Name::Known(Known::Te) => value != b"trailers",
        name => options
            .iter()
            .any(|options| escape::list_contains(options, name.as_str().as_bytes())),
    };
    if !headers
        .iter()
        .any(|field| is_of_hop(field.name, field.value))
    {
        return None;
    }
    let mut kept = headers.clone();
    kept.retain(|field| !is_of_hop(field.name, field.value));
    Some(kept)
}
