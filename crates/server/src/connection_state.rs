//! The state of one connection that its driver, its request table and its TLS share: the socket, the client's address, the abuse budget.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use h2o_exchange::{Address, ConnectionInfo, Counter, TimerKey};

use crate::budget::{Budget, Overdrawn};
use crate::context::Context;
use crate::io::Io;
use crate::listener::LocalListener;

/// The number that the next connection gets as its id ([`ConnectionState::id`]).
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// State of a connection that does not depend on the protocol version.
pub(crate) struct ConnectionState {
    /// Token by which wakers and events of sockets name the connection.
    pub(crate) token: u64,
    /// The connection's timer in the event loop; the table of connections sets it.
    pub(crate) timer: TimerKey,
    /// When the connection's timer fires. The deadline of the connection may be later: every request postpones the deadline, but the timer
    /// is set anew only once it has fired.
    pub(crate) timer_at: Option<Instant>,
    /// Number of the connection, counted over the process from 1; 0 until HTTP begins.
    pub(crate) id: u64,
    pub(crate) accepted: Instant,
    pub(crate) listener: Rc<LocalListener>,
    pub(crate) peer: Address,
    pub(crate) io: Io,
    /// Decrypted input from the client that the protocol engine has not consumed yet.
    pub(crate) input: Vec<u8>,
    /// Over QUIC: whether the TLS handshake is incomplete, so that requests may be replays of TLS early data.
    pub(crate) is_quic_early: bool,
    pub(crate) budget: Budget,
    /// What handlers and logs may ask about the connection; built when the first of them asks.
    pub(crate) info: Option<Rc<ConnectionInfo>>,
}

/// Limits the number of lines about connections that have used up their abuse budget in the error log.
static OVERDRAWN: h2o_log::LineLimit = h2o_log::LineLimit::per_minute(6);

impl ConnectionState {
    /// Whether requests on this connection may be replays: they came as TLS early data, and the handshake is not complete (RFC 8446 §8).
    pub(crate) fn is_early(&self) -> bool {
        self.is_quic_early || self.io.is_early()
    }

    /// Gives the connection its number; called when HTTP begins. H2O compatibility: H2O numbers connections after their TLS handshake, so
    /// that the numbers in access logs have no gaps.
    pub(crate) fn take_number(&mut self) {
        self.id = NUMBERS.fetch_add(1, Relaxed);
    }

    /// Returns what handlers and logs may know of the connection: number, client's address, TLS, listener.
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

    /// When `handshake-timeout` ends for this connection.
    pub(crate) fn handshake_end(&self) -> Instant {
        self.accepted + self.listener.setup.handshake_timeout
    }

    /// Counts a completed TLS handshake and its duration in the worker's counters.
    pub(crate) fn count_handshake(&self, context: &Context, now: Instant, is_resumed: bool) {
        let (handshake, time) = if is_resumed {
            (Counter::SslHandshakeResume, Counter::SslHandshakeTimeResume)
        } else {
            (Counter::SslHandshakeFull, Counter::SslHandshakeTimeFull)
        };
        let took = u64::try_from((now - self.accepted).as_micros()).unwrap_or(u64::MAX);
        let counters = &context.worker.counters;
        counters.count(handshake);
        counters.add(time, took);
    }

    /// Takes `units` off the connection's abuse budget.
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
            if let Some(held_back) = OVERDRAWN.admit() {
                let peer = self.peer;
                h2o_log::report!(
                    notice,
                    "the connection of {peer} ends: its client has used up `connection-budget` by errors or useless work{held_back}"
                );
            }
        }
        spent
    }

    /// Adds `units` to the connection's abuse budget.
    #[inline]
    pub(crate) fn earn_units(&mut self, units: u32) {
        self.budget.earn_units(units, self.listener.setup.budget);
    }

    /// Bytes of memory that the buffers of the connection hold.
    #[inline]
    pub(crate) fn retained(&self) -> usize {
        self.input.capacity() + self.io.retained()
    }
}

/// State of an open connection, as the status page counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStatus {
    /// HTTP has not begun: the connection waits for a PROXY header or the TLS handshake.
    Opening,
    /// The connection is open and has no request in progress.
    Idle(HttpVersion),
    /// A request is in progress, or the connection's first request has not arrived yet.
    Active(HttpVersion),
    /// Graceful shutdown: the connection closes after the requests in progress.
    Shutdown(HttpVersion),
    /// HTTP has ended, and the connection is being closed.
    Closing,
}

/// The version of HTTP that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
    Http3,
}

impl ConnectionStatus {
    /// The counter on the status page of the connections in this state.
    pub(crate) const fn counter(self) -> Counter {
        match self {
            Self::Opening => Counter::ConnectionsOpening,
            Self::Idle(HttpVersion::Http1) => Counter::Http1Idle,
            Self::Idle(HttpVersion::Http2) => Counter::Http2Idle,
            Self::Idle(HttpVersion::Http3) => Counter::Http3Idle,
            Self::Active(HttpVersion::Http1) => Counter::Http1Active,
            Self::Active(HttpVersion::Http2) => Counter::Http2Active,
            Self::Active(HttpVersion::Http3) => Counter::Http3Active,
            Self::Shutdown(HttpVersion::Http1) => Counter::Http1Shutdown,
            Self::Shutdown(HttpVersion::Http2) => Counter::Http2Shutdown,
            Self::Shutdown(HttpVersion::Http3) => Counter::Http3Shutdown,
            Self::Closing => Counter::ConnectionsClosing,
        }
    }

    /// Changes the connection's state, and moves the connection to the other counter of the worker.
    pub(crate) fn set(&mut self, context: &Context, status: Self) {
        if status != *self {
            let counters = &context.worker.counters;
            counters.uncount(self.counter());
            counters.count(status.counter());
            *self = status;
        }
    }
}
