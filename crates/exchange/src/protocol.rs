//! The protocol version of a request.

use crate::Http2Stream;

/// The protocol version of a request, with its position on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1: a connection's requests are answered in order.
    Http1 {
        /// Number of the request on its connection, from 1; 0 if unknown.
        index: u64,
    },
    /// HTTP/2.
    Http2(Http2Stream),
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Http1 { index: 0 }
    }
}

impl Protocol {
    /// Whether a connection's requests are answered in any order, so that one can wait without delaying others.
    #[must_use]
    pub const fn is_multiplexed(&self) -> bool {
        match self {
            Self::Http1 { .. } => false,
            Self::Http2(_) => true,
        }
    }

    /// Identifies the request on its connection: stream identifier or number.
    #[must_use]
    pub fn request_id(&self) -> u64 {
        match self {
            Self::Http1 { index } => *index,
            Self::Http2(stream) => stream.id.into(),
        }
    }

    /// The stream, if the request came over HTTP/2.
    #[must_use]
    pub const fn http2(&self) -> Option<&Http2Stream> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2(stream) => Some(stream),
        }
    }

    /// The stream, if the request came over HTTP/2.
    pub const fn http2_mut(&mut self) -> Option<&mut Http2Stream> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2(stream) => Some(stream),
        }
    }
}
