//! QUIC streams (RFC 9000 §2): their identifiers, and the results of reading and writing them.

use bytes::Bytes;

/// The number of a stream (RFC 9000 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// The stream with this identifier, which must be below 2^62.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number of the stream.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Whether both sides can send on the stream.
    pub const fn is_bidirectional(self) -> bool {
        self.0 & 2 == 0
    }

    /// Whether the client has opened the stream.
    pub const fn is_opened_by_client(self) -> bool {
        self.0 & 1 == 0
    }

    pub(crate) fn of(id: quinn_proto::StreamId) -> Self {
        Self(id.into())
    }

    pub(crate) fn to_quinn(self) -> quinn_proto::StreamId {
        use quinn_proto::{Dir, Side};
        let side = if self.is_opened_by_client() {
            Side::Client
        } else {
            Side::Server
        };
        let direction = if self.is_bidirectional() {
            Dir::Bi
        } else {
            Dir::Uni
        };
        quinn_proto::StreamId::new(side, direction, self.0 >> 2)
    }
}

/// The result of reading from a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes of the stream.
    Data(Bytes),
    /// The last bytes of the stream: the peer has ended it after them.
    Last(Bytes),
    /// Nothing has arrived yet; [`crate::Event::Readable`] tells when to try again.
    Blocked,
    /// The peer has ended the stream, and all of it was read.
    End,
    /// The peer has reset the stream with this error code (RFC 9000 §19.4).
    Reset(u64),
    /// There is no such stream, or it was read to its end, reset or stopped before.
    Unknown,
}

/// The result of writing to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The stream took this number of bytes: at least one, unless none were given.
    Taken(usize),
    /// The stream took nothing, as the flow control window or the send buffer is full; [`crate::Event::Writable`] tells when
    /// to try again.
    Blocked,
    /// The peer has sent STOP_SENDING with this error code: it wants no more data (RFC 9000 §19.5). The caller has to reset
    /// the stream.
    Stopped(u64),
    /// There is no such stream, or it is finished or reset.
    Unknown,
}
