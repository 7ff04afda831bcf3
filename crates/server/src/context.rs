//! What the drivers of one worker share: the site, limits, and buffers that are lent out for one turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use h2o_exchange::{LocalSite, Site, Worker};

use crate::budget::BudgetSettings;
use crate::event::event_loop::EventLoop;
use crate::event::memory::MemoryAccount;
use crate::event::pipes::Pipes;
use crate::event::wake_queue::WakeQueue;
use crate::site::http2_settings::LatencySettings;
use crate::site::settings::{SendInformational, ServerSettings};
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
    pub(crate) memory: Rc<MemoryAccount>,
    wakes: Arc<WakeQueue>,
    /// Connections that ended their turn with work left, by token.
    pub(crate) unfinished: Rc<RefCell<Vec<u64>>>,
    pub(crate) scratch: Scratch,
    pub(crate) pipes: Rc<Pipes>,
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

impl Http2Limits {
    fn new(settings: &ServerSettings) -> Self {
        let http2 = &settings.http2;
        Self {
            engine: Arc::new(h2o_http2::Settings {
                max_streams: http2.max_streams,
                input_window: http2.input_window_size,
                limit_request_body: settings.http1.limit_request_body,
                idle_timeout: http2.idle_timeout,
                graceful_shutdown_timeout: http2.graceful_shutdown_timeout,
            }),
            max_concurrent_requests: http2.max_concurrent_requests,
            max_concurrent_streaming_requests: http2.max_concurrent_streaming_requests,
            reset_budget: u32::try_from(http2.max_concurrent_requests).unwrap_or(u32::MAX),
            dos_delay: http2.dos_delay,
            latency: http2.latency.clone(),
        }
    }
}

/// Buffers lent to whichever connection has its turn, so that idle ones need none.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) input: Lent<Vec<u8>>,
    pub(crate) output: Lent<Vec<u8>>,
    pub(crate) cipher_in: Lent<Vec<u8>>,
    pub(crate) cipher_out: Lent<OutputBuffer>,
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
    /// What the drivers share that run in `event_loop`.
    pub(crate) fn new(event_loop: &EventLoop, site: Arc<Site>, settings: &ServerSettings) -> Self {
        Self {
            worker: Rc::clone(event_loop.worker()),
            site: Rc::new(LocalSite(site)),
            http1: Arc::new(settings.http1.clone()),
            http2: Http2Limits::new(settings),
            sends_informational: settings.send_informational != SendInformational::None,
            informs_http1: settings.send_informational == SendInformational::All,
            server_field: settings.server_field(),
            handshake_timeout: settings.handshake_timeout,
            temp_buffer_threshold: settings.temp_buffer_threshold.unwrap_or(u64::MAX),
            temp_buffer_max_size: settings.temp_buffer_max_size,
            budget: settings.budget,
            memory: Rc::clone(event_loop.memory()),
            wakes: Arc::clone(event_loop.wakes()),
            unfinished: Rc::clone(event_loop.unfinished()),
            scratch: Scratch::default(),
            pipes: Pipes::new(settings.max_spare_pipes),
        }
    }

    /// A waker for a stream of the connection with this token, 0 where there are no streams. Made only for what a connection waits for besides its
    /// socket; static files out of memory never need one.
    pub(crate) fn waker(&self, token: u64, stream: u32) -> Waker {
        WakeQueue::waker(&self.wakes, (token, stream))
    }
}
