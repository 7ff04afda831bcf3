//! The protocol version of a request.

use crate::{Http2Stream, Http3Stream};

/// The protocol version of a request, and the request's number or stream on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1, whose requests on a connection are answered in order.
    Http1 {
        /// Number of the request on its connection, from 1; 0 if unknown.
        index: u64,
    },
    /// HTTP/2, with the stream of the request.
    Http2(Http2Stream),
    /// HTTP/3, with the stream of the request.
    Http3(Http3Stream),
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Http1 { index: 0 }
    }
}

impl Protocol {
    /// Whether the requests of a connection may be answered in any order (HTTP/2, HTTP/3), so that one of them can wait
    /// without delaying the others.
    #[must_use]
    pub const fn is_multiplexed(&self) -> bool {
        match self {
            Self::Http1 { .. } => false,
            Self::Http2(_) | Self::Http3(_) => true,
        }
    }

    /// The number that identifies the request on its connection: the stream identifier, or over HTTP/1 the number of
    /// the request.
    #[must_use]
    pub fn request_id(&self) -> u64 {
        match self {
            Self::Http1 { index } => *index,
            Self::Http2(stream) => stream.id.into(),
            Self::Http3(stream) => stream.id,
        }
    }

    /// The stream of the request, if it came over HTTP/2.
    #[must_use]
    pub const fn http2(&self) -> Option<&Http2Stream> {
        match self {
            Self::Http1 { .. } | Self::Http3(_) => None,
            Self::Http2(stream) => Some(stream),
        }
    }

    /// The stream of the request, to be changed, if it came over HTTP/2.
    pub const fn http2_mut(&mut self) -> Option<&mut Http2Stream> {
        match self {
            Self::Http1 { .. } | Self::Http3(_) => None,
            Self::Http2(stream) => Some(stream),
        }
    }

    /// The stream of the request, if it came over HTTP/3.
    #[must_use]
    pub const fn http3(&self) -> Option<&Http3Stream> {
        match self {
            Self::Http1 { .. } | Self::Http2(_) => None,
            Self::Http3(stream) => Some(stream),
        }
    }

    /// The stream of the request, to be changed, if it came over HTTP/3.
    pub const fn http3_mut(&mut self) -> Option<&mut Http3Stream> {
        match self {
            Self::Http1 { .. } | Self::Http2(_) => None,
            Self::Http3(stream) => Some(stream),
        }
    }
}
