//! Streams (RFC 9000 §2): their numbers, and what reading and writing them brings.

use bytes::Bytes;

/// The number of a stream (RFC 9000 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// The stream of that number, which is below 2^62.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Whether both sides can send on it.
    pub const fn is_bidirectional(self) -> bool {
        self.0 & 2 == 0
    }

    /// Whether the client has opened it.
    pub const fn is_opened_by_client(self) -> bool {
        self.0 & 1 == 0
    }

    pub(crate) fn of(id: quinn_proto::StreamId) -> Self {
        Self(id.into())
    }

    pub(crate) fn library(self) -> quinn_proto::StreamId {
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

/// What a stream has to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes.
    Data(Bytes),
    /// Nothing has arrived yet; [`crate::Event::Readable`] tells when to try again.
    Blocked,
    /// The peer has ended the stream, and all of it was read.
    End,
    /// The peer has given the stream up with that code (RFC 9000 §19.4).
    Reset(u64),
    /// There is no such stream, or it was read to its end or given up before.
    Unknown,
}

/// What became of bytes that were to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// That many were taken, at least one unless none were offered.
    Taken(usize),
    /// The windows are full; [`crate::Event::Writable`] tells when to try again.
    Blocked,
    /// The peer wants no more, for the reason of that code (RFC 9000 §19.5). The stream has to be reset.
    Stopped(u64),
    /// There is no such stream, or it is finished or reset.
    Unknown,
}
