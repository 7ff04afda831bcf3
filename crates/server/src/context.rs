//! What the drivers of one worker share: the site, limits, and buffers that are lent out for one turn.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use h2o_exchange::{HostTable, LocalSite, Worker};

use crate::budget::BudgetSettings;
use crate::event::wake_queue::WakeQueue;
use crate::http1::Active;
use crate::site::certificates::AcceptorSlot;
use crate::site::http2_settings::LatencySettings;
use crate::site::listen::ProxyProtocol;
use crate::splice::Pipes;
use h2o_tls::OutputBuffer;

/// Octets after which a connection has had its turn. Simulations reach this end with less.
pub(crate) const fn per_turn(octets: usize) -> usize {
    if cfg!(test) { octets / 64 } else { octets }
}

/// Octets received at once.
pub(crate) const READ_SIZE: usize = 64 * 1024;

/// What the drivers of one worker share.
pub(crate) struct Context {
    pub(crate) worker: Rc<Worker>,
    pub(crate) site: Rc<LocalSite>,
    pub(crate) http1: Arc<h2o_http1::Settings>,
    pub(crate) http2: Http2Limits,
    /// `send-informational` allows informational responses over HTTP/2.
    pub(crate) sends_informational: bool,
    /// It allows them over HTTP/1.1 as well.
    pub(crate) informs_http1: bool,
    pub(crate) server_field: Option<Arc<str>>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) temp_buffer_threshold: u64,
    pub(crate) temp_buffer_max_size: u64,
    pub(crate) budget: BudgetSettings,
    pub(crate) memory: MemoryAccount,
    pub(crate) listeners: Vec<LocalListener>,
    pub(crate) wakes: Arc<WakeQueue>,
    /// Connections that gave up their turn with work left.
    pub(crate) again: RefCell<Vec<u64>>,
    pub(crate) scratch: Scratch,
    pub(crate) pipes: Rc<Pipes>,
    /// Kept for the next requests.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    pub(crate) actives: RefCell<Vec<Box<Active>>>,
}

/// What the HTTP/2 connections of one worker obey.
pub(crate) struct Http2Limits {
    pub(crate) engine: Arc<h2o_http2::Settings>,
    pub(crate) max_concurrent_requests: usize,
    pub(crate) max_concurrent_streaming_requests: usize,
    pub(crate) reset_budget: u32,
    pub(crate) dos_delay: Duration,
    pub(crate) latency: LatencySettings,
}

/// What the connections of one worker keep in buffers, and how much that may be.
pub(crate) struct MemoryAccount {
    pub(crate) used: Cell<usize>,
    pub(crate) limit: usize,
}

impl MemoryAccount {
    /// True when new work is to be turned away.
    pub(crate) fn is_tight(&self) -> bool {
        self.used.get() > self.limit / 8 * 7
    }

    /// True when connections have to go.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.used.get() > self.limit
    }
}

/// A listener as its worker sees it.
pub(crate) struct LocalListener {
    /// `None` if it could not be bound, and once the worker accepts no more.
    pub(crate) fd: Option<OwnedFd>,
    /// Host entries it serves, in order of mention.
    pub(crate) hosts: HostTable,
    pub(crate) tls: Option<Arc<AcceptorSlot>>,
    /// Told to HTTP/2 clients (RFC 8336).
    pub(crate) origins: Option<Arc<[Box<str>]>>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) is_unix: bool,
    /// Send and receive buffer of accepted Unix sockets, which do not inherit them.
    pub(crate) unix_buffers: (Option<usize>, Option<usize>),
}

/// Buffers lent to whichever connection has its turn, so that idle ones need none.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) input: Lent<Vec<u8>>,
    pub(crate) output: Lent<Vec<u8>>,
    pub(crate) cipher_in: Lent<Vec<u8>>,
    pub(crate) cipher_out: Lent<OutputBuffer>,
    pub(crate) file: Lent<Vec<u8>>,
}

/// A value that is taken out, used and put back.
#[derive(Default)]
pub(crate) struct Lent<T>(RefCell<T>);

impl<T: Default> Lent<T> {
    pub(crate) fn take(&self) -> T {
        self.0.take()
    }

    pub(crate) fn put(&self, value: T) {
        self.0.replace(value);
    }
}

impl Lent<Vec<u8>> {
    /// Puts a buffer back empty; one that has grown far beyond its use is let go.
    pub(crate) fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= 16 * READ_SIZE {
            buffer.clear();
            self.put(buffer);
        }
    }
}

impl Lent<OutputBuffer> {
    /// As for other buffers.
    pub(crate) fn give_back(&self, mut buffer: OutputBuffer) {
        if buffer.capacity() <= 16 * READ_SIZE {
            buffer.clear();
            self.put(buffer);
        }
    }
}

impl Context {
    /// A waker for a stream of the connection with this token, 0 where there are no streams. Made only for what a connection waits for besides its
    /// socket; static files out of memory never need one.
    pub(crate) fn waker(&self, token: u64, stream: u32) -> Waker {
        WakeQueue::waker(&self.wakes, (token, stream))
    }
}
