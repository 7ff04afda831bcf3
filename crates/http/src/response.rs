//! The heads of responses: those that engines send and those that they receive.

use crate::{BodyLength, Headers, Span, StatusCode, Version};

/// The head of a final or informational response to send.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The reason phrase, which only HTTP/1 sends; `None` for the registered one.
    pub reason: Option<&'a str>,
    /// The fields. The engine writes those that frame the message itself and leaves out those given here.
    pub headers: &'a Headers,
    /// Length of the content, if known; sent as `content-length`.
    pub length: Option<u64>,
    /// Value of `server`; `None` to leave it out.
    pub server: Option<&'a [u8]>,
}

/// The head of a received response. The same value is refilled for each response, so that it costs no allocation.
#[derive(Clone, Debug)]
pub struct ClientResponse {
    /// The version of the protocol.
    pub version: Version,
    /// The status; 1xx for an informational response.
    pub status: StatusCode,
    /// The fields, or the trailers. `content-length` and `transfer-encoding` are not among them.
    pub headers: Headers,
    /// `content-length`, also where HEAD or 304 leave out the content that it announces.
    pub length: Option<u64>,
    /// The length of the content. [`BodyLength::Unknown`] covers content that ends with the stream, with the last chunk or
    /// with the connection.
    pub body: BodyLength,
    /// Length of the head, or of the trailers, on the wire: compressed in HTTP/2 and HTTP/3.
    pub section_len: u32,
    reason: Span,
}

impl ClientResponse {
    /// An empty head. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            version: Version::Http11,
            status: StatusCode::OK,
            headers: Headers::new(),
            length: None,
            body: BodyLength::None,
            section_len: 0,
            reason: Span::EMPTY,
        }
    }

    /// Clears all, keeps the memory.
    pub fn clear(&mut self) {
        let Self {
            version,
            status,
            headers,
            length,
            body,
            section_len,
            reason,
        } = self;
        headers.clear();
        *version = Version::default();
        *status = StatusCode::OK;
        *length = None;
        *body = BodyLength::None;
        *section_len = 0;
        *reason = Span::EMPTY;
    }

    /// The reason phrase as received, which may be empty. HTTP/2 and HTTP/3 have none.
    #[must_use]
    pub fn reason(&self) -> &[u8] {
        self.headers.text(self.reason)
    }

    /// Sets the span of the reason phrase in the arena of the fields.
    pub const fn set_reason(&mut self, reason: Span) {
        self.reason = reason;
    }
}

impl Default for ClientResponse {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Known;

    #[test]
    fn a_cleared_head_is_a_new_one() {
        let mut head = ClientResponse::new();
        head.version = Version::Http10;
        head.status = StatusCode::NOT_FOUND;
        let reason = head.headers.store(b"Gone Fishing");
        head.set_reason(reason);
        head.headers.push(Known::Server, b"x");
        head.length = Some(5);
        head.body = BodyLength::Known(5);
        head.section_len = 7;
        assert_eq!(head.reason(), b"Gone Fishing");
        head.clear();
        let new = ClientResponse::new();
        assert_eq!(
            (
                head.version,
                head.status,
                head.length,
                head.body,
                head.section_len
            ),
            (
                new.version,
                new.status,
                new.length,
                new.body,
                new.section_len
            )
        );
        assert_eq!(head.headers.len(), 0);
        assert_eq!(head.reason(), b"");
    }
}
