//! `max-memory`: accounts for the buffers of a worker's connections.

use std::cell::Cell;

/// Bytes that the connections of one worker hold in buffers, and the limit.
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

    /// Whether new requests must be refused.
    pub(crate) const fn is_tight(&self) -> bool {
        self.used.get() > self.limit / 8 * 7
    }

    /// Whether connections must be closed.
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.used.get() > self.limit
    }
}
