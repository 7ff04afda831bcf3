//! Sending to the client: heads and content of responses, and the ends of streams.

use h2o_http::field_section::encode_fields;
use h2o_http::priority::PriorityField;
use h2o_http::{Headers, Known, Name, ResponseHead, StatusCode};

use super::ServerConnection;
use crate::error::ErrorCode;
use crate::frame;
use crate::qpack::{References, SectionWriter};
use crate::stream::{StreamKey, StreamState};

/// The encoded field section of a response's head, which can be sent on other streams, too, as long as the QPACK encoder is in the same
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatableSection {
    generation: (u64, u64),
    references: References,
}

impl ServerConnection {
    /// Writes the final response head of a stream to `out`. If `end_stream` is true, no content follows. Returns the length
    /// of the encoded field section in bytes.
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
        if !stream.state.can_send() {
            return 0;
        }
        stream.has_response = true;
        let id = stream.id;
        let at = frame::begin_section(out);
        let encoder = &mut self.connection.encoder;
        let generation = encoder.generation();
        let memos = self.memos.get_or_insert_default();
        let remembered = memos.response.find(head, generation);
        if let Some(section) = remembered.filter(|_| encoder.can_repeat(memos.references)) {
            out.extend_from_slice(section);
            encoder.note(id, memos.references);
        } else {
            let start = out.len();
            let mut section = self.connection.section(out);
            encode_head(&mut section, head);
            let references = section.finish(id);
            if generation == self.connection.encoder.generation()
                && memos.response.note(head, generation, &out[start..])
            {
                memos.references = references;
            }
        }
        let len = frame::end_section(out, at);
        if end_stream {
            self.connection.end_send(key);
        }
        len
    }

    /// The encoded section of `head`, which [`ServerConnection::respond`] has just written; `None` if the engine does not remember it.
    #[must_use]
    pub fn section_of(&self, head: &ResponseHead<'_>) -> Option<RepeatableSection> {
        let memos = self.memos.as_ref()?;
        let generation = self.connection.encoder.generation();
        let is_remembered = memos.response.find(head, generation).is_some();
        is_remembered.then_some(RepeatableSection {
            generation,
            references: memos.references,
        })
    }

    /// Notes that the caller sends a whole response again on a stream: the same bytes that [`ServerConnection::respond`] and
    /// [`ServerConnection::begin_data`] have written for an earlier stream, with `content_len` bytes of content. Returns false if the
    /// response has to be encoded anew, because the section means something else since then, or if the stream takes no response.
    #[inline]
    pub fn respond_again(
        &mut self,
        key: StreamKey,
        section: &RepeatableSection,
        content_len: u64,
    ) -> bool {
        let encoder = &mut self.connection.encoder;
        if section.generation != encoder.generation() || !encoder.can_repeat(section.references) {
            return false;
        }
        let Some(stream) = self.connection.streams.get_mut(key) else {
            return false;
        };
        if !stream.state.can_send() {
            return false;
        }
        stream.has_response = true;
        stream.sent += content_len;
        encoder.note(stream.id, section.references);
        self.connection.end_send(key);
        true
    }

    /// Writes an informational response (RFC 9110 §15.2). Returns the length of the encoded field section in bytes.
    pub fn inform(
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
        self.connection
            .write_section(id, Some(status), headers, out)
    }

    /// Applies the `priority` field of a response whose head was written: the field overrides the priority that the client
    /// has requested (RFC 9218 §8).
    pub fn schedule(&mut self, key: StreamKey, field: PriorityField) {
        let priority = field.over(self.priority(key));
        self.connection.prioritize(key, priority);
    }

    /// Reports whether the caller has content to send on the stream and the transport has room for it.
    #[inline]
    pub fn set_ready(&mut self, key: StreamKey, is_ready: bool) {
        self.connection.set_ready(key, is_ready);
    }

    /// The stream whose turn it is to send content.
    #[inline]
    pub fn poll_send(&mut self) -> Option<StreamKey> {
        self.connection.next_ready()
    }

    /// Writes a DATA frame with `data`. If `end_stream` is true, the frame ends the response.
    #[inline]
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], end_stream: bool, out: &mut Vec<u8>) {
        if self.begin_data(key, data.len() as u64, end_stream, out) {
            out.extend_from_slice(data);
        }
    }

    /// Writes the header of a DATA frame with `len` bytes of content, which the caller writes after it. If `end_stream` is
    /// true, the frame ends the response. Returns false if nothing can be sent on the stream. For a `len` of 0 nothing is
    /// written; only the end is noted.
    #[inline]
    pub fn begin_data(
        &mut self,
        key: StreamKey,
        len: u64,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        self.connection.begin_data(key, len, end_stream, out)
    }

    /// Ends the response: appends `trailers`, if any, to `out`. The caller then ends the stream (FIN) after these bytes.
    pub fn finish(&mut self, key: StreamKey, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        self.connection.finish(key, trailers, out);
    }

    /// Ends both directions of a stream at once, with this error code.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        self.connection.abort(key, code, code);
    }

    /// Ends the use of a stream by the caller. If the stream has not ended, it is reset; if the response is complete, the
    /// client is only told that the rest of its request is not needed.
    #[inline]
    pub fn release(&mut self, key: StreamKey) {
        let recv = match self.state(key) {
            // RFC 9114 §4.1 requires this code. H2O sends the number that drafts had for it, which now means a malformed
            // message.
            StreamState::HalfClosedLocal => ErrorCode::NO_ERROR,
            StreamState::Open | StreamState::HalfClosedRemote | StreamState::Closed => {
                ErrorCode::INTERNAL_ERROR
            }
        };
        self.connection.abort(key, ErrorCode::INTERNAL_ERROR, recv);
        self.connection.remove(key);
    }

    /// Whether the client accepts HTTP datagrams (RFC 9297 §2.1.1); `None` before its SETTINGS frame.
    pub fn takes_datagrams(&self) -> Option<bool> {
        self.connection.peer.map(|settings| settings.datagrams)
    }

    /// Writes the start of an HTTP datagram of a tunnel (RFC 9297 §2.1); the caller appends the payload. Writes nothing and
    /// returns false if the client does not accept datagrams, if its settings have not arrived, or if there is no tunnel.
    pub fn begin_datagram(&self, key: StreamKey, out: &mut Vec<u8>) -> bool {
        self.connection.begin_datagram(key, out)
    }
}

fn encode_head(section: &mut SectionWriter<'_>, head: &ResponseHead<'_>) {
    section.status(head.status);
    if let Some(server) = head.server {
        section.field(Name::Known(Known::Server), server);
    }
    if let Some(length) = head.length {
        let name = Name::Known(Known::ContentLength);
        section.field(name, itoa::Buffer::new().format(length).as_bytes());
    }
    encode_fields(head.headers, |name, value| section.field(name, value));
}
