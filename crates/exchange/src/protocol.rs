//! The protocol version of a request.

use crate::{Http2Stream, Http3Stream};

/// The protocol version of a request, and the request's number or stream on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1: the requests of a connection are answered in order.
    Http1 {
        /// Number of the request on its connection, from 1; 0 if unknown.
        index: u64,
    },
    /// HTTP/2.
    Http2(Http2Stream),
    /// HTTP/3.
    Http3(Http3Stream),
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Http1 { index: 0 }
    }
}

impl Protocol {
    /// Whether a connection's requests are answered in any order (HTTP/2, HTTP/3), so that one can wait without
    /// delaying others.
    #[must_use]
    pub const fn is_multiplexed(&self) -> bool {
        match self {
            Self::Http1 { .. } => false,
            Self::Http2(_) | Self::Http3(_) => true,
        }
    }

    /// Identifies the request on its connection: stream identifier or number.
    #[must_use]
    pub fn request_id(&self) -> u64 {
        match self {
            Self::Http1 { index } => *index,
            Self::Http2(stream) => stream.id.into(),
            Self::Http3(stream) => stream.id,
        }
    }

    /// The stream, if the request came over HTTP/2.
    #[must_use]
    pub const fn http2(&self) -> Option<&Http2Stream> {
        match self {
            Self::Http1 { .. } | Self::Http3(_) => None,
            Self::Http2(stream) => Some(stream),
        }
    }

    /// The stream, if the request came over HTTP/2.
    pub const fn http2_mut(&mut self) -> Option<&mut Http2Stream> {
        match self {
            Self::Http1 { .. } | Self::Http3(_) => None,
            Self::Http2(stream) => Some(stream),
        }
    }

    /// The stream, over HTTP/3.
    #[must_use]
    pub const fn http3(&self) -> Option<&Http3Stream> {
        match self {
            Self::Http1 { .. } | Self::Http2(_) => None,
            Self::Http3(stream) => Some(stream),
        }
    }

    /// As [`Protocol::http3`], to be changed.
    pub const fn http3_mut(&mut self) -> Option<&mut Http3Stream> {
        match self {
            Self::Http1 { .. } | Self::Http2(_) => None,
            Self::Http3(stream) => Some(stream),
        }
    }
}
