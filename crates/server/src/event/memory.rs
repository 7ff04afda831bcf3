//! `max-memory`: accounts for the buffers of a worker's connections, and for its scripts.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{Shared, Worker};

/// The memory of a worker's scripts counts towards `max-memory` at most up to the limit divided by this number. The rest is always left
/// to connections: closing connections does not make scripts smaller.
const SCRIPTS_SHARE: usize = 2;

/// Bytes that the connections of one worker hold in buffers, within the limit of [`h2o_exchange::BufferLimits`].
pub(crate) struct MemoryAccount {
    pub(crate) used: Cell<usize>,
    scripts: Rc<Cell<usize>>,
    shared: Arc<Shared>,
}

impl MemoryAccount {
    pub(crate) fn new(worker: &Worker) -> Self {
        Self {
            used: Cell::new(0),
            scripts: Rc::clone(&worker.script_bytes),
            shared: Arc::clone(&worker.shared),
        }
    }

    fn limit(&self) -> usize {
        self.shared.buffers.memory()
    }

    /// Bytes that the worker's scripts have allocated.
    pub(crate) fn scripts(&self) -> usize {
        self.scripts.get()
    }

    /// Bytes that count towards `limit`: those of the connections' buffers, and those of the scripts up to their share.
    fn taken(&self, limit: usize) -> usize {
        let scripts = self.scripts.get().min(limit / SCRIPTS_SHARE);
        self.used.get().saturating_add(scripts)
    }

    /// Whether the buffers and scripts take more than 7/8 of the limit, so that new requests must be refused.
    pub(crate) fn is_tight(&self) -> bool {
        let limit = self.limit();
        self.taken(limit) > limit / 8 * 7
    }

    /// Whether the buffers and scripts take more than the limit, so that connections must be closed.
    pub(crate) fn is_exceeded(&self) -> bool {
        let limit = self.limit();
        self.taken(limit) > limit
    }
}
