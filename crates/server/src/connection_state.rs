//! What the parts of one connection share: the socket, what is known of the client, what it may cost.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use h2o_exchange::{Address, ConnectionInfo, Counter, TimerKey};

use crate::budget::{Budget, Overdrawn};
use crate::context::Context;
use crate::io::Io;
use crate::listener::LocalListener;

/// Number of the next connection that comes to HTTP.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A connection as the driver of its protocol sees it.
pub(crate) struct ConnectionState {
    /// What wakers and events call the connection by.
    pub(crate) token: u64,
    /// Its timer, which the table of connections sets.
    pub(crate) timer: TimerKey,
    /// Number of the connection, process-wide, from 1; 0 until HTTP begins.
    pub(crate) id: u64,
    pub(crate) accepted: Instant,
    pub(crate) listener: Rc<LocalListener>,
    pub(crate) peer: Address,
    pub(crate) io: Io,
    /// Received, in clear text, and not taken by the engine yet.
    pub(crate) input: Vec<u8>,
    pub(crate) budget: Budget,
    /// Made when it is asked for.
    pub(crate) info: Option<Rc<ConnectionInfo>>,
}

impl ConnectionState {
    /// HTTP begins: the connection gets its number. One whose handshake comes to nothing has none, so that no log leaves
    /// numbers out (H2O compatibility).
    pub(crate) fn take_number(&mut self) {
        self.id = NUMBERS.fetch_add(1, Relaxed);
    }

    /// What handlers and logs may know of this connection.
    #[inline]
    pub(crate) fn info(&mut self) -> Rc<ConnectionInfo> {
        if let Some(info) = &self.info {
            return Rc::clone(info);
        }
        let info = Rc::new(ConnectionInfo {
            id: self.id,
            peer: self.peer,
            accepted: self.accepted,
            tls: self.io.tls.as_ref().map(|tls| Box::new(tls.info())),
            transport: Rc::clone(&self.io.socket) as Rc<_>,
            listener: Rc::clone(&self.listener.endpoint),
        });
        self.info = Some(Rc::clone(&info));
        info
    }

    /// Charges the connection's abuse budget.
    ///
    /// # Errors
    /// If the budget is used up.
    pub(crate) fn pay_units(&mut self, context: &Context, units: u32) -> Result<(), Overdrawn> {
        let age = context
            .worker
            .clock
            .now()
            .saturating_duration_since(self.accepted);
        let spent = self.budget.spend(units, self.listener.setup.budget, age);
        if spent.is_err() {
            context.worker.counters.count(Counter::Overdrawn);
        }
        spent
    }

    /// Something useful was done for the peer.
    #[inline]
    pub(crate) fn earn_units(&mut self, units: u32) {
        self.budget.earn_units(units, self.listener.setup.budget);
    }

    /// Bytes of memory held in buffers.
    #[inline]
    pub(crate) fn retained(&self) -> usize {
        self.input.capacity() + self.io.retained()
    }
}
