//! How a connection proceeds, and what every step of it is given.

use std::io;
use std::time::Instant;

use bytes::Bytes;

use crate::connection_state::ConnectionState;
use crate::context::Context;

/// How a connection proceeds after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Flow {
    /// Something changed: the next step can be taken at once.
    Continue,
    /// The next step needs an event: of the socket, a waker or a timer.
    Wait,
    /// The connection is over.
    Close,
}

/// One turn of a connection on its worker: what every step of it is given.
pub(crate) struct Turn<'a> {
    pub(crate) context: &'a Context,
    pub(crate) connection: &'a mut ConnectionState,
    /// The worker's clock, which stands still during a turn.
    pub(crate) now: Instant,
    /// Bytes for the client, in clear text, that the socket has not been offered yet.
    pub(crate) out: Vec<u8>,
}

impl<'a> Turn<'a> {
    /// A turn with a lent buffer for its output.
    pub(crate) fn new(context: &'a Context, connection: &'a mut ConnectionState) -> Self {
        Self {
            context,
            connection,
            now: context.worker.clock.now(),
            out: context.scratch.output.take(),
        }
    }

    /// Offers the socket what has been written; it keeps what it cannot take.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        let sent = self.connection.io.send(self.context, &self.out);
        self.out.clear();
        sent
    }

    /// As [`Turn::send`], with `body` behind it, which is not copied first.
    pub(crate) fn send_with(&mut self, body: Bytes) -> io::Result<()> {
        let (context, io) = (self.context, &mut self.connection.io);
        let sent = io.send_with(context, &self.out, body);
        self.out.clear();
        sent
    }

    /// Gives the buffer back. What is left in it is dropped.
    pub(crate) fn end(self) {
        self.context.scratch.output.give_back(self.out);
    }
}
