//! State of one worker: clock, timers, counters, reusable exchanges, and state of features.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::{
    Address, Clock, ConnectionInfo, Counters, Descriptors, Exchange, LocalSite, TempFiles,
    TimedOut, Timer, Timers, Transport,
};

/// A reference to an exchange of a worker. The worker reuses exchanges and can list those in progress.
pub type ExchangeRef = Rc<RefCell<Exchange>>;

/// An order of another thread to a worker's event loop.
pub enum Order {
    /// Begin graceful shutdown: stop accepting, and close each connection after its requests in progress.
    Drain,
    /// Close all connections at once.
    Close,
    /// Run a function on the worker's thread.
    Run(WorkerTask),
    /// Serve by another configuration: a value of the server's own type, which handlers have none of.
    Configure(Box<dyn Any + Send>),
}

/// A function to run on a worker's thread.
pub type WorkerTask = Box<dyn FnOnce(&Rc<Worker>) + Send>;

/// Most unused exchanges that are kept.
const KEPT_EXCHANGES: usize = 128;
/// Number of bytes of memory that a field block of an unused exchange keeps at most.
const KEPT_HEADERS: usize = 16 * 1024;

/// A worker as other threads see it.
pub struct WorkerHandle {
    /// Its counters.
    pub counters: Arc<Counters>,
    orders: UnboundedSender<Order>,
}

impl WorkerHandle {
    /// A handle of the worker with these counters, which receives `orders`.
    #[must_use]
    pub const fn new(counters: Arc<Counters>, orders: UnboundedSender<Order>) -> Self {
        Self { counters, orders }
    }

    /// Sends an order, which the worker executes in one of its next turns. Returns false if the worker has ended.
    pub fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
    }
}

/// State shared by all workers of the process; request processing never writes to it. The default is a process without
/// connections, listeners and workers.
#[derive(Default)]
pub struct Shared {
    /// Wall-clock time of the start, since the Unix epoch.
    pub started: Duration,
    /// Generation under a supervisor.
    pub generation: Option<u64>,
    /// Counts and limits file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// Number of QUIC connections, which have no descriptor of their own.
    pub quic_connections: AtomicUsize,
    /// Limits of connections.
    pub limits: ConnectionLimits,
    /// Limits of buffers.
    pub buffers: BufferLimits,
    /// Number of listening sockets.
    pub listeners: AtomicUsize,
    /// Temporary files.
    pub temp_files: Arc<TempFiles>,
    /// The workers; set when all have started.
    pub workers: OnceLock<Vec<WorkerHandle>>,
    /// Reloads of the configuration.
    pub reloads: Reloads,
    /// Whether the process has been told to end: at first it may still accept connections (`shutdown-delay`).
    pub is_ending: AtomicBool,
}

/// Reloads of the configuration, as the status page counts them.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Reloads after which the new configuration served.
    pub succeeded: AtomicU64,
    /// Reloads that changed nothing, because the new configuration could not be used.
    pub failed: AtomicU64,
    /// Earlier configurations that still serve requests which began with them.
    pub retiring: AtomicUsize,
}

/// Limits of connections per process. Can be changed while it runs. The default is 0.
#[derive(Debug, Default)]
pub struct ConnectionLimits {
    max: AtomicUsize,
    soft: AtomicUsize,
    /// Milliseconds.
    soft_min_age: AtomicU64,
}

impl ConnectionLimits {
    /// Limits as set by [`ConnectionLimits::set`].
    #[must_use]
    pub fn new(max: usize, soft: usize, soft_min_age: Duration) -> Self {
        let limits = Self::default();
        limits.set(max, soft, soft_min_age);
        limits
    }

    /// Sets `max-connections`, `soft-connection-limit` and `soft-connection-limit.min-age`. They apply from the next
    /// connection on.
    pub fn set(&self, max: usize, soft: usize, soft_min_age: Duration) {
        self.max.store(max, Relaxed);
        self.soft.store(soft, Relaxed);
        let millis = u64::try_from(soft_min_age.as_millis()).unwrap_or(u64::MAX);
        self.soft_min_age.store(millis, Relaxed);
    }

    /// `max-connections`.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max.load(Relaxed)
    }

    /// `soft-connection-limit`.
    #[must_use]
    pub fn soft(&self) -> usize {
        self.soft.load(Relaxed)
    }

    /// `soft-connection-limit.min-age`.
    #[must_use]
    pub fn soft_min_age(&self) -> Duration {
        Duration::from_millis(self.soft_min_age.load(Relaxed))
    }
}

/// Limits of what a worker keeps for its connections. Can be changed while it runs. By default memory has no limit, and no pipe
/// is kept.
#[derive(Debug)]
pub struct BufferLimits {
    memory: AtomicUsize,
    spare_pipes: AtomicUsize,
}

impl Default for BufferLimits {
    fn default() -> Self {
        Self {
            memory: AtomicUsize::new(usize::MAX),
            spare_pipes: AtomicUsize::new(0),
        }
    }
}

impl BufferLimits {
    /// Limits as set by [`BufferLimits::set`].
    #[must_use]
    pub fn new(memory: usize, spare_pipes: usize) -> Self {
        let limits = Self::default();
        limits.set(memory, spare_pipes);
        limits
    }

    /// Sets each worker's share of `max-memory`, in bytes, and `max-spare-pipes`. They apply from a worker's next turn on, and to
    /// the next pipe that is not used any more.
    pub fn set(&self, memory: usize, spare_pipes: usize) {
        self.memory.store(memory, Relaxed);
        self.spare_pipes.store(spare_pipes, Relaxed);
    }

    /// A worker's share of `max-memory`, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// The value of [`BufferLimits::memory`] for this number of workers, if there is a limit.
    #[must_use]
    pub fn memory_of(&self, workers: usize) -> Option<usize> {
        self.memory().checked_mul(workers)
    }

    /// `max-spare-pipes`.
    #[must_use]
    pub fn spare_pipes(&self) -> usize {
        self.spare_pipes.load(Relaxed)
    }
}

impl Shared {
    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.descriptors.clients() + self.quic_connections.load(Relaxed)
    }
}

/// A worker. Never leaves its thread.
pub struct Worker {
    /// Number of the worker, from 0.
    pub index: usize,
    /// Its clock.
    pub clock: Rc<Clock>,
    /// Its timers.
    pub timers: Rc<Timers>,
    /// Its counters.
    pub counters: Arc<Counters>,
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Whether graceful shutdown has begun: responses then announce the end of their connection.
    pub shutting_down: Cell<bool>,
    /// Notifies waiting tasks of the shutdown.
    pub shutdown: Arc<Notify>,
    locals: RefCell<FxHashMap<TypeId, Rc<dyn Any>>>,
    free: RefCell<Vec<ExchangeRef>>,
    busy: RefCell<Vec<ExchangeRef>>,
    /// Placeholder connection of unused exchanges, so that the real one can be dropped.
    placeholder: Rc<ConnectionInfo>,
    nowhere: Rc<LocalSite>,
}

/// The transport of connections without a socket: of unused exchanges, and in tests.
pub struct NoTransport;

impl Transport for NoTransport {
    fn local_address(&self) -> Option<Address> {
        None
    }
    fn congestion_controller(&self) -> Option<String> {
        None
    }
    fn delivery_rate(&self) -> Option<u64> {
        None
    }
}

impl Worker {
    /// A new worker.
    #[must_use]
    pub fn new(index: usize, counters: Arc<Counters>, shared: Arc<Shared>) -> Rc<Self> {
        let clock = Rc::new(Clock::default());
        let placeholder = ConnectionInfo {
            id: 0,
            peer: Address::Unix,
            accepted: clock.now(),
            tls: None,
            transport: Rc::new(NoTransport),
            listener: Rc::default(),
        };
        Rc::new(Self {
            index,
            timers: Rc::new(Timers::new(Rc::clone(&clock))),
            clock,
            counters,
            shared,
            shutting_down: Cell::new(false),
            shutdown: Arc::default(),
            locals: RefCell::default(),
            free: RefCell::default(),
            busy: RefCell::default(),
            placeholder: Rc::new(placeholder),
            nowhere: Rc::default(),
        })
    }

    /// Begins shutdown. Called by the event loop on [`Order::Drain`].
    pub fn shut_down(&self) {
        self.shutting_down.set(true);
        self.shutdown.notify_waiters();
    }

    /// Spawns a task on this worker's thread, beside the event loop. The worker's clock is read again whenever the task
    /// is polled.
    ///
    /// Must be called in a local runtime of tokio.
    pub fn spawn<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let clock = Rc::clone(&self.clock);
        tokio::task::spawn_local(async move {
            let mut task = pin!(task);
            let polled = poll_fn(|context| {
                clock.begin_turn();
                task.as_mut().poll(context)
            });
            polled.await
        })
    }

    /// Waits for this time.
    pub async fn sleep(&self, time: Duration) {
        let timer = Timer::new(&self.timers);
        timer.set_after(time);
        timer.fired().await;
    }

    /// Waits for `work`, at most for `limit`. Polls it at least once.
    ///
    /// # Errors
    /// [`TimedOut`] if the limit has passed.
    pub async fn timeout<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        let timer = Timer::new(&self.timers);
        timer.set_after(limit);
        let mut work = pin!(work);
        let raced = poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if limit.is_zero() => Poll::Ready(Err(TimedOut)),
            Poll::Pending => timer.poll_fired(context).map(|()| Err(TimedOut)),
        });
        raced.await
    }

    /// Runs `work` with this worker's clock and timers where there is no event loop: on other threads and in tests.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut events = Vec::new();
        let turns = poll_fn(|context| {
            self.clock.begin_turn();
            let polled = work.as_mut().poll(context);
            while self.timers.poll_due(context, &mut events).is_ready() {
                debug_assert!(false, "an event loop's timer, and no event loop");
                events.clear();
            }
            self.clock.end_turn();
            polled
        });
        turns.await
    }

    /// The worker's state of type `T`, created on first use.
    #[inline]
    pub fn local<T: Default + 'static>(&self) -> Rc<T> {
        let known = self.locals.borrow().get(&TypeId::of::<T>()).cloned();
        let value = known.unwrap_or_else(|| self.create_local::<T>());
        value
            .downcast()
            .unwrap_or_else(|_| unreachable!("entries are filed under their own type"))
    }

    #[cold]
    fn create_local<T: Default + 'static>(&self) -> Rc<dyn Any> {
        let value: Rc<dyn Any> = Rc::new(T::default());
        let mut locals = self.locals.borrow_mut();
        locals.insert(TypeId::of::<T>(), Rc::clone(&value));
        value
    }

    /// An unused exchange with an empty request head, to be filled in. [`Worker::begin`] turns it into a request of
    /// `connection`; [`Worker::put_back`] returns it unused.
    pub fn spare_exchange(self: &Rc<Self>) -> ExchangeRef {
        let mut free = self.free.borrow_mut();
        // An exchange that is still referenced must not be reused: its holder would see the next request.
        let unshared = std::iter::from_fn(|| free.pop()).find(|kept| Rc::strong_count(kept) == 1);
        unshared.unwrap_or_else(|| {
            let (site, placeholder) = (Rc::clone(&self.nowhere), Rc::clone(&self.placeholder));
            Exchange::shared(Rc::clone(self), site, placeholder)
        })
    }

    /// Returns an exchange from [`Worker::spare_exchange`] that was not used.
    pub fn put_back(&self, exchange: ExchangeRef) {
        debug_assert!(
            exchange.borrow().request.target().is_empty(),
            "a head was filled in"
        );
        self.free.borrow_mut().push(exchange);
    }

    /// Begins a request with the filled-in head.
    pub fn begin(
        &self,
        exchange: &ExchangeRef,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) {
        exchange.borrow_mut().reset(site, connection);
        self.busy.borrow_mut().push(Rc::clone(exchange));
    }

    /// Whether the exchange was begun for `connection` and `site`, and then [rewound](Exchange::rewind): another
    /// request can use it at once.
    #[inline]
    #[must_use]
    pub fn is_begun(
        exchange: &Exchange,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) -> bool {
        Rc::ptr_eq(&exchange.connection, connection) && Rc::ptr_eq(&exchange.site, site)
    }

    /// An exchange for a request on `connection`, with an empty head.
    pub fn exchange(
        self: &Rc<Self>,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) -> ExchangeRef {
        let exchange = self.spare_exchange();
        self.begin(&exchange, site, connection);
        exchange
    }

    /// Returns an exchange after its log line was written.
    pub fn release(&self, exchange: ExchangeRef) {
        let mut busy = self.busy.borrow_mut();
        // A worker has few requests in progress, and they mostly end in the order in which they began.
        if let Some(at) = busy.iter().rposition(|other| Rc::ptr_eq(other, &exchange)) {
            busy.swap_remove(at);
        }
        let mut free = self.free.borrow_mut();
        if free.len() >= KEPT_EXCHANGES {
            return;
        }
        // The exchange is still borrowed somewhere, so it cannot be cleared: it is dropped.
        let Ok(mut kept) = exchange.try_borrow_mut() else {
            return;
        };
        kept.request.clear();
        kept.shrink(KEPT_HEADERS);
        kept.body = crate::RequestBody::None;
        kept.connection = Rc::clone(&self.placeholder);
        kept.site = Rc::clone(&self.nowhere);
        kept.restore = None;
        kept.sent.unfiltered = None;
        drop(kept);
        free.push(exchange);
    }

    /// Calls `see` for every request in progress on this worker that is not borrowed at the moment.
    pub fn each_live(&self, mut see: impl FnMut(&Exchange)) {
        for exchange in self.busy.borrow().iter() {
            if let Ok(exchange) = exchange.try_borrow() {
                see(&exchange);
            }
        }
    }
}
