//! `Turn` and `Flow`: the argument and the result of each step of a connection.

use std::io;
use std::time::Instant;

use bytes::Bytes;

use crate::budget::{Cost, Overdrawn};
use crate::connection_state::ConnectionState;
use crate::context::Context;

/// A read of fewer bytes than this that completes no piece of the protocol counts as a fragment, which the abuse budget is
/// charged for.
const FRAGMENT: usize = 256;

/// What a step of a connection returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Flow {
    /// Something has changed, so the next step of the connection can be taken at once.
    Continue,
    /// The next step of the connection needs an event of the socket, a waker or a timer.
    Wait,
    /// The connection is over.
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
    /// Sent after `out`.
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

    /// Offers the output to the socket, which keeps the rest if it cannot take all.
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

    /// Has the next [`Turn::send`] send `body` after `out` without copying it. No output may be added in between.
    pub(crate) fn send_behind(&mut self, body: Bytes) {
        self.tail = body;
    }

    /// Charges the connection's abuse budget.
    ///
    /// # Errors
    /// If the budget is used up.
    pub(crate) fn pay(&mut self, units: u32) -> Result<(), Overdrawn> {
        self.connection.pay_units(self.context, units)
    }

    /// Charges the connection's abuse budget for `len` bytes that completed nothing, if that is few.
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

    /// Restores units of the connection's abuse budget.
    #[inline]
    pub(crate) fn earn(&mut self, units: u32) {
        self.connection.earn_units(units);
    }

    /// Gives the output buffer back. Unsent output is dropped.
    #[inline]
    pub(crate) fn end(self) {
        self.context.scratch.output.give_back(self.out);
    }
}
