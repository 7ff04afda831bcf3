//! The heads of responses: those that engines send, and those that they receive from backends.

use crate::{BodyLength, Headers, Span, StatusCode, Version};

/// The head of a final or informational response that an engine is to send.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status of the response.
    pub status: StatusCode,
    /// The reason phrase, which only HTTP/1 sends; `None` for the registered phrase of the status.
    pub reason: Option<&'a str>,
    /// The fields of the response. Fields that frame the message are written by the engine and ignored here.
    pub headers: &'a Headers,
    /// Length of the content in bytes, if it is known; sent as `content-length`.
    pub length: Option<u64>,
    /// Value of the `server` field; `None` to leave the field out.
    pub server: Option<&'a [u8]>,
}

/// The head of a response received from a backend. The same value is refilled for each response, so that a response costs
/// no allocation.
#[derive(Clone, Debug)]
pub struct ClientResponse {
    /// The HTTP version of the response.
    pub version: Version,
    /// The status of the response; 1xx for an informational response.
    pub status: StatusCode,
    /// The fields of the head, or the trailers. `content-length` and `transfer-encoding` are not among them.
    pub headers: Headers,
    /// The value of `content-length`, also for responses to HEAD and with 304, which have no content.
    pub length: Option<u64>,
    /// The length of the content. [`BodyLength::Unknown`] means that the content ends with the stream, with the last chunk
    /// or with the connection.
    pub body: BodyLength,
    /// Length of the head, or of the trailers, in bytes on the wire: compressed in HTTP/2 and HTTP/3.
    pub section_len: u32,
    reason: Span,
}

impl ClientResponse {
    /// An empty response head, which allocates nothing before the first field.
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

    /// Clears the head and keeps its memory for the next response.
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

    /// The reason phrase as received, which may be empty. HTTP/2 and HTTP/3 responses have none.
    #[must_use]
    pub fn reason(&self) -> &[u8] {
        self.headers.text(self.reason)
    }

    /// Sets the reason phrase, a span in the arena of `headers`.
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
