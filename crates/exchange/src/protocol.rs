//! The protocol version by which a request came.

use crate::Http2Stream;

/// The protocol version by which a request came, with the request's place on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1: requests of a connection are answered one after the other.
    Http1 {
        /// Number of the request on its connection, from 1; 0 where there is none.
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
    /// Whether requests of a connection are answered in any order, so that one can wait without holding up others.
    #[must_use]
    pub const fn is_multiplexed(&self) -> bool {
        match self {
            Self::Http1 { .. } => false,
            Self::Http2(_) => true,
        }
    }

    /// What tells the request from others of its connection: the identifier of its stream, or its number.
    #[must_use]
    pub fn request_id(&self) -> u64 {
        match self {
            Self::Http1 { index } => *index,
            Self::Http2(stream) => stream.id.into(),
        }
    }

    /// The stream, over HTTP/2.
    #[must_use]
    pub const fn http2(&self) -> Option<&Http2Stream> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2(stream) => Some(stream),
        }
    }

    /// As [`Protocol::http2`], to be changed.
    pub const fn http2_mut(&mut self) -> Option<&mut Http2Stream> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2(stream) => Some(stream),
        }
    }
}
