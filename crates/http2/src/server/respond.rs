//! Sending to the client: response heads, content in the order of the scheduler, and pushes.

use h2o_http::priority::PriorityField;
use h2o_http::{Headers, Known, Name, RequestHead, ResponseHead, StatusCode};

use super::{Opening, ServerConnection, Shutdown, StreamKey};
use crate::encode::{encode_fields, encode_length, encode_request_fields};
use crate::error::ErrorCode;
use crate::field_block::{begin_section, end_section};
use crate::frame::{FrameType, HEADER_LEN, StreamId, flags};
use crate::hpack::{Encoder, Pseudo};
use crate::scheduler::{Place, Priority};
use crate::settings::DEFAULT_WINDOW;
use crate::stream::{Stream, StreamState};

/// How to schedule a response, in addition to the priorities that the client states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulingHint {
    /// The parameters of the response's `priority` field (RFC 9218 §8).
    pub priority: Option<PriorityField>,
    /// Whether the content blocks rendering and should precede other content (`http2-reprioritize-blocking-assets`).
    pub blocks_rendering: bool,
    /// Whether to send the response before all others (pushes marked `critical`).
    pub is_critical: bool,
}

impl ServerConnection {
    /// Writes the final response head of a stream. If `end_stream` is true, no content follows. Returns the length of the
    /// encoded field section in bytes.
    #[inline]
    pub fn respond(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(stream) = self.connection.streams.get_mut(key) else {
            return 0;
        };
        if stream.state == StreamState::ReservedLocal {
            // The client sends nothing on a stream that the server promised (RFC 9113 §5.1).
            stream.state = StreamState::HalfClosedRemote;
        }
        if !stream.state.can_send() {
            return 0;
        }
        stream.has_response = true;
        let id = stream.id;
        let end = if end_stream { flags::END_STREAM } else { 0 };
        let at = begin_section(out, FrameType::HEADERS, end, id);
        let encoder = &mut self.connection.encoder;
        let has_size_update = encoder.has_size_update();
        let generation = encoder.generation();
        let remembered = self.memo.find(head, generation);
        if let Some(section) = remembered.filter(|_| !has_size_update) {
            out.extend_from_slice(section);
        } else {
            encode_head(encoder, head, out);
            if !has_size_update && generation == encoder.generation() {
                self.memo.note(head, generation, &out[at + HEADER_LEN..]);
            }
        }
        let len = end_section(out, at, id, self.connection.peer.frame_size());
        if end_stream {
            self.end_sending(key);
        }
        len
    }

    /// Writes an informational response (RFC 9110 §15.2). Returns the length of the encoded field section in bytes.
    pub fn send_informational(
        &mut self,
        key: StreamKey,
        status: StatusCode,
        headers: &Headers,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(stream) = self.connection.streams.get(key) else {
            return 0;
        };
        if !stream.state.can_send() || stream.has_response {
            return 0;
        }
        let id = stream.id;
        let at = begin_section(out, FrameType::HEADERS, 0, id);
        self.connection.encoder.begin(out);
        self.connection.encoder.status(status, out);
        encode_fields(&mut self.connection.encoder, headers, out);
        end_section(out, at, id, self.connection.peer.frame_size())
    }

    /// How many bytes of content the stream may send in one frame now, if it were its turn.
    #[inline]
    #[must_use]
    pub fn sendable(&self, key: StreamKey) -> usize {
        self.connection.sendable(key)
    }

    /// Whether [`ServerConnection::poll_send`] would return a stream now.
    #[inline]
    #[must_use]
    pub fn has_sendable(&self) -> bool {
        self.connection.has_sendable()
    }

    /// The stream whose turn it is to send, and how many bytes of content its next DATA frame may have. The caller then
    /// calls [`ServerConnection::send_data`], or [`ServerConnection::set_content`] if the stream has no content at the
    /// moment.
    pub fn poll_send(&mut self) -> Option<(StreamKey, usize)> {
        self.connection.poll_send()
    }

    /// Reports whether the caller has content to send on the stream.
    pub fn set_content(&mut self, key: StreamKey, has_content: bool) {
        self.connection.set_content(key, has_content);
    }

    /// Applies a hint to the stream's place among the streams that send. The response head must have been written.
    pub fn schedule(&mut self, key: StreamKey, hint: SchedulingHint) {
        if hint == SchedulingHint::default() {
            return;
        }
        let Some(node) = self.connection.node(key) else {
            return;
        };
        let scheduler = &mut self.connection.scheduler;
        if hint.is_critical {
            scheduler.elevate(node);
            return;
        }
        if let Some(field) = hint.priority
            && scheduler.apply_response_priority(node, field)
        {
            return;
        }
        if hint.blocks_rendering {
            let is_push = !self
                .connection
                .streams
                .get(key)
                .is_some_and(|stream| stream.id.is_client());
            // H2O compatibility: H2O puts a response that blocks rendering before all others only if it is pushed, or if the
            // client has not ordered its streams by dependencies.
            if is_push || (!scheduler.has_placeholders() && scheduler.depends_on_root(node)) {
                scheduler.elevate(node);
            }
        }
    }

    /// Writes a DATA frame with `data`, which must not be longer than [`ServerConnection::poll_send`] allowed. If
    /// `end_stream` is true, the frame ends the response.
    #[inline]
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], end_stream: bool, out: &mut Vec<u8>) {
        self.connection.write_data(key, data, end_stream, out);
        if end_stream {
            self.end_sending(key);
        }
    }

    /// Writes a DATA frame whose content `fill` appends to `out`, up to `max` bytes. `fill` returns how many bytes it
    /// appended, and whether they are the last. If it returns `None`, or 0 bytes that are not the last, no frame is
    /// written.
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

    /// Ends the response with `trailers`, or with an empty DATA frame.
    pub fn finish(&mut self, key: StreamKey, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        if self.connection.write_end(key, trailers, out) {
            self.end_sending(key);
        }
    }

    /// Updates the stream after END_STREAM was sent on it. The client may still send until the caller
    /// [releases](ServerConnection::release) the stream.
    #[inline]
    fn end_sending(&mut self, key: StreamKey) {
        let Some(stream) = self.connection.streams.get_mut(key) else {
            return;
        };
        match stream.state {
            StreamState::Open => {
                stream.state = StreamState::HalfClosedLocal;
                stream.has_content = false;
                self.connection.set_content(key, false);
            }
            StreamState::HalfClosedRemote => self.connection.close(key),
            StreamState::ReservedLocal | StreamState::HalfClosedLocal | StreamState::Closed => {}
        }
    }

    /// Resets a stream with this error code, unless it is closed already.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode, out: &mut Vec<u8>) {
        self.connection.reset(key, code, out);
    }

    /// Ends the use of a stream by the caller. If the stream has not ended, it is reset: with NO_ERROR if the response is
    /// complete, which tells the client that the rest of the request is not needed (RFC 9113 §8.1).
    #[inline]
    pub fn release(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        let Some(stream) = self.connection.streams.get(key) else {
            return;
        };
        let is_push = !stream.id.is_client();
        match stream.state {
            StreamState::Closed => {}
            StreamState::HalfClosedLocal => self.connection.reset(key, ErrorCode::NO_ERROR, out),
            StreamState::Open | StreamState::HalfClosedRemote | StreamState::ReservedLocal => {
                self.connection.reset(key, ErrorCode::INTERNAL_ERROR, out);
            }
        }
        if is_push {
            self.open_pushes = self.open_pushes.saturating_sub(1);
        }
        self.connection.release(key, out);
    }

    /// Opens the receive window of the stream to `http2-input-window-size`. To be called when a handler begins to read the
    /// content of the request.
    pub fn accept_content(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        let window = self.settings.input_window;
        self.connection.accept_content(key, window, out);
    }

    /// Like [`ServerConnection::accept_content`], but opens the window to `window` bytes at most.
    pub fn accept_content_up_to(&mut self, key: StreamKey, window: u32, out: &mut Vec<u8>) {
        let window = self.settings.input_window.min(window);
        self.connection.accept_content(key, window, out);
    }

    /// Reports that the caller has used `len` bytes of the request's content: the client may send as many more.
    pub fn release_content(&mut self, key: StreamKey, len: usize, out: &mut Vec<u8>) {
        self.connection.release_content(key, len, out);
    }

    /// Whether the client accepts another push now (RFC 9113 §8.4).
    ///
    /// If the client announced no limit of streams, as many pushes are allowed at a time as it may have requests: pushes
    /// that it does not read would pile up in the server.
    ///
    /// The client's settings are known once there is a stream: from its SETTINGS frame, or from `HTTP2-Settings` (RFC 7540
    /// §3.2.1).
    #[must_use]
    pub fn can_push(&self) -> bool {
        let max_pushes =
            (self.connection.peer.max_concurrent_streams).min(self.settings.max_streams);
        self.connection.peer.enable_push
            && !self.connection.is_peer_leaving
            && self.shutdown == Shutdown::Running
            && self.opening != Opening::Failed
            && self.open_pushes < max_pushes
            && self.promised.get() < StreamId::MAX.get() - 2
    }

    /// Writes a PUSH_PROMISE for `request` on the stream `parent`. Returns the new stream for the response (RFC 9113
    /// §8.4.1); `None` if the client does not accept the push, or if the stream `parent` cannot carry the promise any more.
    pub fn promise(
        &mut self,
        parent: StreamKey,
        request: &RequestHead,
        out: &mut Vec<u8>,
    ) -> Option<StreamKey> {
        let on = self.connection.streams.get(parent)?;
        if !self.can_push() || !on.state.can_send() || !on.id.is_client() {
            return None;
        }
        let on = on.id;
        let id = StreamId::new(self.promised.get() + 2);
        self.promised = id;
        self.open_pushes += 1;
        let at = begin_section(out, FrameType::PUSH_PROMISE, 0, on);
        out.extend_from_slice(&id.get().to_be_bytes());
        let encoder = &mut self.connection.encoder;
        encoder.begin(out);
        encoder.pseudo(Pseudo::Method, request.method.as_str().as_bytes(), out);
        encoder.pseudo(Pseudo::Scheme, request.scheme.as_str().as_bytes(), out);
        encoder.pseudo(Pseudo::Authority, request.authority(), out);
        encoder.pseudo(Pseudo::Path, request.target(), out);
        encode_request_fields(encoder, &request.headers, out);
        end_section(out, at, on, self.connection.peer.frame_size());
        let stream = Stream::new(
            id,
            StreamState::ReservedLocal,
            self.connection.peer.initial_window_size,
            DEFAULT_WINDOW,
        );
        let key = self.connection.insert(stream);
        if let Some(node) = self.connection.node(parent) {
            let pushed = self
                .connection
                .scheduler
                .open_pushed(id.get(), key.to_user(), node);
            if let Some(stream) = self.connection.streams.get_mut(key) {
                stream.node = Some(pushed);
            }
        }
        Some(key)
    }

    /// The place of a stream in the dependency tree as the client requested it, and its current place, or its last one if
    /// the stream is closed. `None` for a stream that never needed a place and has the default.
    #[must_use]
    pub fn priorities(&self, key: StreamKey) -> Option<(Priority, Place)> {
        let stream = self.connection.streams.get(key)?;
        let Some(node) = stream.node else {
            return stream.last_place;
        };
        let scheduler = &self.connection.scheduler;
        Some((scheduler.received(node), scheduler.actual(node)))
    }
}

fn encode_head(encoder: &mut Encoder, head: &ResponseHead<'_>, out: &mut Vec<u8>) {
    encoder.begin(out);
    encoder.status(head.status, out);
    if let Some(server) = head.server {
        encoder.field(Name::Known(Known::Server), server, out);
    }
    encode_fields(encoder, head.headers, out);
    if let Some(length) = head.length {
        encode_length(encoder, length, out);
    }
}
