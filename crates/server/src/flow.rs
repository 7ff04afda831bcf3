//! `Turn` and `Flow`: the argument and the result of each step of a connection in the event loop.

use std::io;
use std::time::Instant;

use bytes::Bytes;

use crate::budget::{Cost, Overdrawn};
use crate::connection_state::ConnectionState;
use crate::context::Context;

/// A read is a fragment if it brings fewer bytes than this and completes no message or frame; the abuse budget is charged for fragments.
const FRAGMENT: usize = 256;

/// What a step of a connection returns: how the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Flow {
    /// The step has made progress, so the next step of the connection can be taken at once.
    Continue,
    /// The next step of the connection needs an event of the socket, a waker or a timer.
    Wait,
    /// The connection is over and must be closed.
    Close,
}

/// One turn of a connection: the arguments of each of its steps.
pub(crate) struct Turn<'a> {
    pub(crate) context: &'a Context,
    pub(crate) connection: &'a mut ConnectionState,
    /// The worker's clock, which does not advance during a turn.
    pub(crate) now: Instant,
    /// Output for the client in clear text, not yet offered to the socket.
    pub(crate) out: Vec<u8>,
    /// Output that is sent after the bytes of `out`, without a copy.
    tail: Bytes,
}

impl<'a> Turn<'a> {
    /// Begins a turn with a reused output buffer.
    #[inline]
    pub(crate) fn new(context: &'a Context, connection: &'a mut ConnectionState) -> Self {
        Self {
            context,
            connection,
            now: context.worker.clock.now(),
            out: context.scratch.output.take(),
            tail: Bytes::new(),
        }
    }

    /// Offers the output to the client's socket; what the socket does not take is queued.
    #[inline]
    pub(crate) fn send(&mut self) -> io::Result<()> {
        let (context, io) = (self.context, &mut self.connection.io);
        let sent = if self.tail.is_empty() {
            io.send(context, &self.out)
        } else {
            io.send_with(context, &self.out, std::mem::take(&mut self.tail))
        };
        self.out.clear();
        sent
    }

    /// Has the next [`Turn::send`] send `body` after `out` without copying it. Until then, nothing may be added to the output.
    pub(crate) fn send_behind(&mut self, body: Bytes) {
        self.tail = body;
    }

    /// Takes `units` off the connection's abuse budget.
    ///
    /// # Errors
    /// If the budget is used up.
    pub(crate) fn pay(&mut self, units: u32) -> Result<(), Overdrawn> {
        self.connection.pay_units(self.context, units)
    }

    /// Charges the connection's abuse budget for a read of `len` bytes that completed no message or frame, if `len` is below [`FRAGMENT`].
    ///
    /// # Errors
    /// If the budget is used up.
    pub(crate) fn pay_for_fragment(&mut self, len: usize) -> Result<(), Overdrawn> {
        if len < FRAGMENT {
            self.pay(Cost::Fragment.units())
        } else {
            Ok(())
        }
    }

    /// Adds `units` to the connection's abuse budget.
    #[inline]
    pub(crate) fn earn(&mut self, units: u32) {
        self.connection.earn_units(units);
    }

    /// Ends the turn: gives the output buffer back for reuse and drops output that was not sent.
    #[inline]
    pub(crate) fn end(self) {
        self.context.scratch.output.give_back(self.out);
    }
}
