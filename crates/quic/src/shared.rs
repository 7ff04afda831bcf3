//! Calls to a QUIC connection for the code that runs a protocol such as HTTP/3 over it, as server or as client.

use std::cell::RefCell;
use std::rc::Rc;

use crate::connection::Connection;
use crate::endpoint::{ConnectionIndex, Endpoint};
use crate::stream::{StreamId, Write};

/// A reference to one connection of an endpoint that several parts of a worker share.
pub struct SharedConnection {
    endpoint: Rc<RefCell<Endpoint>>,
    index: ConnectionIndex,
}

impl SharedConnection {
    /// A reference to the connection of the endpoint with this index. The endpoint may drop the connection at any time; calls then
    /// have no effect.
    pub const fn new(endpoint: Rc<RefCell<Endpoint>>, index: ConnectionIndex) -> Self {
        Self { endpoint, index }
    }

    /// The index of the connection in its endpoint.
    pub const fn index(&self) -> ConnectionIndex {
        self.index
    }

    /// Calls `use_it` with the connection and returns its result; `None` if the connection is deleted. `use_it` must not use
    /// the endpoint.
    #[inline]
    pub fn with<R>(&self, use_it: impl FnOnce(&mut Connection) -> R) -> Option<R> {
        self.endpoint
            .borrow_mut()
            .connection(self.index)
            .map(use_it)
    }

    /// Opens unidirectional streams that are sent before all others, until `streams` has `count` of them or the peer allows no
    /// more.
    pub fn open_urgent(&self, streams: &mut Vec<StreamId>, count: usize) {
        while streams.len() < count {
            let Some(id) = self.open_one_urgent() else {
                return;
            };
            streams.push(id);
        }
    }

    /// Opens a unidirectional stream whose data are sent before those of all other streams; `None` if the peer allows no more
    /// streams.
    pub fn open_one_urgent(&self) -> Option<StreamId> {
        let opened = self.with(|connection| {
            let id = connection.open_unidirectional()?;
            connection.set_priority(id, i32::MAX);
            Some(id)
        });
        opened.flatten()
    }

    /// Writes as much of `bytes` as QUIC takes. Returns how many bytes it took.
    pub fn write_some(&self, stream: StreamId, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        let taken = self.with(|connection| {
            let mut taken = 0;
            while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
                match connection.write_copy(stream, rest) {
                    Write::Taken(len) => taken += len,
                    Write::Blocked | Write::Stopped(_) | Write::Unknown => break,
                }
            }
            taken
        });
        taken.unwrap_or(0)
    }

    /// Whether the windows of the stream and of the connection have room; if not, [`crate::Event::Writable`] tells when they do.
    /// Also returns true if the peer has stopped the stream: bytes written to it are then dropped.
    pub fn has_room(&self, stream: StreamId) -> bool {
        // A write of zero bytes is blocked if one of the two windows is full.
        let written = self.with(|connection| connection.write_copy(stream, &[]));
        !matches!(written, Some(Write::Blocked))
    }
}
