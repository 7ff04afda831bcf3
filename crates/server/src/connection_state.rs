//! What driver, request table and TLS of one connection share: the socket, the client's address, the abuse budget.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use h2o_exchange::{Address, ConnectionInfo, Counter, TimerKey};

use crate::budget::{Budget, Overdrawn};
use crate::context::Context;
use crate::io::Io;
use crate::listener::LocalListener;

/// Number of the next connection.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// State of a connection that does not depend on the protocol version.
pub(crate) struct ConnectionState {
    /// Identifies the connection to wakers and events.
    pub(crate) token: u64,
    /// Timer of the connection, set by the table of connections.
    pub(crate) timer: TimerKey,
    /// When the timer fires. The deadline of the connection may be later: every request postpones the deadline, but the timer
    /// is set anew only once it has fired.
    pub(crate) timer_at: Option<Instant>,
    /// Number of the connection, counted over the process from 1; 0 until HTTP begins.
    pub(crate) id: u64,
    pub(crate) accepted: Instant,
    pub(crate) listener: Rc<LocalListener>,
    pub(crate) peer: Address,
    pub(crate) io: Io,
    /// Bytes received, decrypted, and not yet consumed by the engine.
    pub(crate) input: Vec<u8>,
    /// Over QUIC: whether the TLS handshake is not complete yet.
    pub(crate) is_quic_early: bool,
    pub(crate) budget: Budget,
    /// Created on first use.
    pub(crate) info: Option<Rc<ConnectionInfo>>,
}

impl ConnectionState {
    /// Whether requests may be replays: the TLS handshake, in whose early data they came, is not complete (RFC 8446 §8).
    pub(crate) fn is_early(&self) -> bool {
        self.is_quic_early || self.io.is_early()
    }

    /// Numbers the connection when HTTP begins. H2O compatibility: H2O numbers connections after their TLS handshake,
    /// so that the numbers in access logs have no gaps.
    pub(crate) fn take_number(&mut self) {
        self.id = NUMBERS.fetch_add(1, Relaxed);
    }

    /// Facts about the connection for handlers and logs.
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

    /// End of `handshake-timeout`.
    pub(crate) fn handshake_end(&self) -> Instant {
        self.accepted + self.listener.setup.handshake_timeout
    }

    /// Counts a completed TLS handshake.
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

    /// Restores units of the connection's abuse budget.
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

/// State of an open connection, as the status page counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStatus {
    /// Before HTTP.
    Opening,
    /// Between requests.
    Idle(HttpVersion),
    /// A request is in progress, or the first request has not arrived yet.
    Active(HttpVersion),
    /// Graceful shutdown: the connection ends after the requests in progress.
    Shutdown(HttpVersion),
    /// After HTTP.
    Closing,
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
    Http3,
}

impl ConnectionStatus {
    /// The counter of connections in this state.
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

    /// Changes the state and the counters of the worker.
    pub(crate) fn set(&mut self, context: &Context, status: Self) {
        if status != *self {
            let counters = &context.worker.counters;
            counters.uncount(self.counter());
            counters.count(status.counter());
            *self = status;
        }
    }
}
