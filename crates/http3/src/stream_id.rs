//! Identifiers of QUIC streams (RFC 9000 §2.1).

/// The identifier of a stream of a QUIC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// The largest identifier of a request stream, which the first GOAWAY of a graceful shutdown names (RFC 9114 §5.2).
    pub const MAX_REQUEST: Self = Self((1 << 62) - 4);

    /// The stream identifier `id`.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The identifier as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether the client, not the server, has opened the stream.
    #[must_use]
    pub const fn is_client(self) -> bool {
        self.0 & 1 == 0
    }

    /// Whether the stream is unidirectional: only the side that has opened it may send on it.
    #[must_use]
    pub const fn is_unidirectional(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether the stream carries a request (RFC 9114 §6.1).
    #[must_use]
    pub const fn is_request(self) -> bool {
        self.0 & 3 == 0
    }
}
