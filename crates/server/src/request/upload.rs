//! A request body that a handler pulls.

use std::rc::Rc;

use h2o_exchange::BodyPipe;

/// A body on its way to a handler that pulls it.
pub(super) struct Upload {
    pub(super) pipe: Rc<BodyPipe>,
    /// Number of bytes in the pipe when the client's window was last raised by what the handler took.
    pub(super) queued: usize,
}

impl Upload {
    pub(super) const fn new(pipe: Rc<BodyPipe>) -> Self {
        Self { pipe, queued: 0 }
    }

    /// Bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        let datagrams = self.pipe.datagrams().map_or(0, |pipe| pipe.retained());
        self.pipe.queued() + self.pipe.kept() + datagrams
    }

    /// Whether the handler can do nothing but wait for more from the client.
    pub(super) fn is_starved(&self) -> bool {
        self.pipe.is_starved()
    }

    /// The rest of the body will not come.
    pub(super) fn break_off(&self, reason: &str) {
        self.pipe.finish(Err(reason.into()));
    }
}
