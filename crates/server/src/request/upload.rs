//! A request body that a handler pulls.

use std::rc::Rc;

use h2o_exchange::BodyPipe;

/// A request body on its way to the handler that pulls it.
pub(super) struct Upload {
    pub(super) pipe: Rc<BodyPipe>,
    /// Number of bytes in the pipe when the client's window was last raised for bytes that the handler took.
    pub(super) queued: usize,
}

impl Upload {
    pub(super) const fn new(pipe: Rc<BodyPipe>) -> Self {
        Self { pipe, queued: 0 }
    }

    /// Bytes of memory that the pipe holds.
    pub(super) fn retained(&self) -> usize {
        let datagrams = self.pipe.datagrams().map_or(0, |pipe| pipe.retained());
        self.pipe.queued() + self.pipe.kept() + datagrams
    }

    /// Whether the handler has taken all bytes, so that it can only wait for more from the client.
    pub(super) fn is_starved(&self) -> bool {
        self.pipe.is_starved()
    }

    /// Tells the handler that the rest of the request body will not come, with the reason.
    pub(super) fn break_off(&self, reason: &str) {
        self.pipe.finish(Err(reason.into()));
    }
}
