//! `max-memory`: accounts for the buffers of a worker's connections.

use std::cell::Cell;
use std::sync::Arc;

use h2o_exchange::Shared;

/// Bytes that the connections of one worker hold in buffers, within the limit of [`h2o_exchange::BufferLimits`].
pub(crate) struct MemoryAccount {
    pub(crate) used: Cell<usize>,
    shared: Arc<Shared>,
}

impl MemoryAccount {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self {
            used: Cell::new(0),
            shared,
        }
    }

    fn limit(&self) -> usize {
        self.shared.buffers.memory()
    }

    /// Whether the buffers take more than 7/8 of the limit, so that new requests must be refused.
    pub(crate) fn is_tight(&self) -> bool {
        self.used.get() > self.limit() / 8 * 7
    }

    /// Whether the buffers take more than the limit, so that connections must be closed.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.used.get() > self.limit()
    }
}
