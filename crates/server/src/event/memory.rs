//! `max-memory`: what the connections of a worker hold in buffers.

use std::cell::Cell;

/// What the connections of one worker hold in buffers, and how much that may be; bytes.
pub(crate) struct MemoryAccount {
    pub(crate) used: Cell<usize>,
    limit: usize,
}

impl MemoryAccount {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            used: Cell::new(0),
            limit,
        }
    }

    /// Whether new requests are to be refused.
    pub(crate) const fn is_tight(&self) -> bool {
        self.used.get() > self.limit / 8 * 7
    }

    /// Whether connections have to be closed.
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.used.get() > self.limit
    }
}
