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

/// An order that another thread sends to a worker's event loop.
pub enum Order {
    /// The worker begins graceful shutdown: it stops accepting, and closes each connection after its requests in
    /// progress.
    Drain,
    /// The worker closes all connections at once.
    Close,
    /// The worker runs a function on its thread.
    Run(WorkerTask),
    /// After a reload, the worker serves by a new configuration. The value is of a type of the server, which this crate
    /// does not know.
    Configure(Box<dyn Any + Send>),
}

/// A function to run on a worker's thread.
pub type WorkerTask = Box<dyn FnOnce(&Rc<Worker>) + Send>;

/// Most unused exchanges that a worker keeps for reuse.
const KEPT_EXCHANGES: usize = 128;
/// Most bytes of memory that each header field block of an unused exchange keeps.
const KEPT_HEADERS: usize = 16 * 1024;

/// The handle by which other threads reach a worker.
pub struct WorkerHandle {
    /// The counters of the worker.
    pub counters: Arc<Counters>,
    orders: UnboundedSender<Order>,
}

impl WorkerHandle {
    /// Creates the handle of the worker that has these counters and gets its orders through `orders`.
    #[must_use]
    pub const fn new(counters: Arc<Counters>, orders: UnboundedSender<Order>) -> Self {
        Self { counters, orders }
    }

    /// Sends an order, which the worker executes in one of its next turns. Returns false if the worker has ended.
    pub fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
    }
}

/// State shared by all workers of the process. A request that needs neither a temporary file nor a new connection to a backend writes nothing
/// to it. The default is that of a process without connections, listeners and workers.
#[derive(Default)]
pub struct Shared {
    /// When the process started: wall-clock time since the Unix epoch.
    pub started: Duration,
    /// The number of this process among those that its supervisor has started; `None` without a supervisor.
    pub generation: Option<u64>,
    /// Counts the file descriptors of the process, and limits those that clients can occupy.
    pub descriptors: Arc<Descriptors>,
    /// Number of QUIC connections; they have no file descriptor, so they are not counted with the descriptors.
    pub quic_connections: AtomicUsize,
    /// Limits on the number of client connections.
    pub limits: ConnectionLimits,
    /// Limits on the memory and the unused pipes that workers keep.
    pub buffers: BufferLimits,
    /// Number of listening sockets of the process.
    pub listeners: AtomicUsize,
    /// The directory, the limit and the number of temporary files.
    pub temp_files: Arc<TempFiles>,
    /// Handles of all workers; set when all have started.
    pub workers: OnceLock<Vec<WorkerHandle>>,
    /// Counts of the reloads of the configuration.
    pub reloads: Reloads,
    /// Whether the process has been told to end. It may still accept connections for the time of `shutdown-delay`.
    pub is_ending: AtomicBool,
}

/// Counts of the reloads of the configuration, for the status page.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Number of reloads after which the new configuration was used.
    pub succeeded: AtomicU64,
    /// Number of reloads that changed nothing, because the new configuration was invalid or could not be used.
    pub failed: AtomicU64,
    /// Number of earlier configurations that are still in use, by requests that began before a reload.
    pub retiring: AtomicUsize,
}

/// Limits on the number of connections of the process. They can be changed while it runs, and are 0 by default.
#[derive(Debug, Default)]
pub struct ConnectionLimits {
    max: AtomicUsize,
    soft: AtomicUsize,
    /// The value of `soft-connection-limit.min-age` in milliseconds.
    soft_min_age: AtomicU64,
}

impl ConnectionLimits {
    /// Creates limits with these initial values, see [`ConnectionLimits::set`].
    #[must_use]
    pub fn new(max: usize, soft: usize, soft_min_age: Duration) -> Self {
        let limits = Self::default();
        limits.set(max, soft, soft_min_age);
        limits
    }

    /// Sets `max-connections`, `soft-connection-limit` and `soft-connection-limit.min-age`. The new limits apply from
    /// the next connection on.
    pub fn set(&self, max: usize, soft: usize, soft_min_age: Duration) {
        self.max.store(max, Relaxed);
        self.soft.store(soft, Relaxed);
        let millis = u64::try_from(soft_min_age.as_millis()).unwrap_or(u64::MAX);
        self.soft_min_age.store(millis, Relaxed);
    }

    /// The value of `max-connections`.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max.load(Relaxed)
    }

    /// The value of `soft-connection-limit`.
    #[must_use]
    pub fn soft(&self) -> usize {
        self.soft.load(Relaxed)
    }

    /// The value of `soft-connection-limit.min-age`.
    #[must_use]
    pub fn soft_min_age(&self) -> Duration {
        Duration::from_millis(self.soft_min_age.load(Relaxed))
    }
}

/// Limits on the memory and the unused pipes that a worker keeps for its connections. They can be changed while the
/// process runs. By default memory has no limit, and no unused pipe is kept.
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
    /// Creates limits with these initial values, see [`BufferLimits::set`].
    #[must_use]
    pub fn new(memory: usize, spare_pipes: usize) -> Self {
        let limits = Self::default();
        limits.set(memory, spare_pipes);
        limits
    }

    /// Sets each worker's share of `max-memory`, in bytes, and `max-spare-pipes`. A worker applies the memory limit
    /// from its next turn on, and the limit of pipes when the next pipe becomes unused.
    pub fn set(&self, memory: usize, spare_pipes: usize) {
        self.memory.store(memory, Relaxed);
        self.spare_pipes.store(spare_pipes, Relaxed);
    }

    /// A worker's share of `max-memory`, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// The memory limit of this many workers together, in bytes, if there is a limit.
    #[must_use]
    pub fn memory_of(&self, workers: usize) -> Option<usize> {
        self.memory().checked_mul(workers)
    }

    /// The value of `max-spare-pipes`.
    #[must_use]
    pub fn spare_pipes(&self) -> usize {
        self.spare_pipes.load(Relaxed)
    }
}

impl Shared {
    /// Number of client connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.descriptors.clients() + self.quic_connections.load(Relaxed)
    }
}

/// The state of one worker. It never leaves the worker's thread.
pub struct Worker {
    /// Number of the worker, from 0.
    pub index: usize,
    /// The clock of the worker.
    pub clock: Rc<Clock>,
    /// The timers of the worker.
    pub timers: Rc<Timers>,
    /// The counters of the worker.
    pub counters: Arc<Counters>,
    /// State that all workers of the process share.
    pub shared: Arc<Shared>,
    /// Whether graceful shutdown has begun. Responses then announce to the client that their connection ends.
    pub shutting_down: Cell<bool>,
    /// Notifies waiting tasks of the graceful shutdown.
    pub shutdown: Arc<Notify>,
    /// Bytes that the scripts of this worker have allocated. They count towards `max-memory`.
    pub script_bytes: Rc<Cell<usize>>,
    locals: RefCell<FxHashMap<TypeId, Rc<dyn Any>>>,
    free: RefCell<Vec<ExchangeRef>>,
    busy: RefCell<Vec<ExchangeRef>>,
    /// The connection that unused exchanges refer to, so that they do not keep the last request's connection alive.
    placeholder: Rc<ConnectionInfo>,
    nowhere: Rc<LocalSite>,
}

/// The transport of connections that have no socket: the placeholder of unused exchanges, and connections in tests.
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
    /// Creates the state of the worker with the number `index`.
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
            script_bytes: Rc::default(),
            locals: RefCell::default(),
            free: RefCell::default(),
            busy: RefCell::default(),
            placeholder: Rc::new(placeholder),
            nowhere: Rc::default(),
        })
    }

    /// Begins graceful shutdown. Called by the event loop when it gets [`Order::Drain`].
    pub fn shut_down(&self) {
        self.shutting_down.set(true);
        self.shutdown.notify_waiters();
    }

    /// Spawns a task on this worker's thread, beside the event loop. The worker's clock is read again whenever the task
    /// is polled.
    ///
    /// Must be called within a `LocalSet` or a local runtime of tokio.
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

    /// Waits until `time` has passed.
    pub async fn sleep(&self, time: Duration) {
        let timer = Timer::new(&self.timers);
        timer.set_after(time);
        timer.fired().await;
    }

    /// Waits for the future `work` for at most the time `limit`. Polls the future at least once.
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

    /// Runs the future `work` with this worker's clock and timers where there is no event loop: on other threads and in
    /// tests.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut events = Vec::new();
        let turns = poll_fn(|context| {
            self.clock.begin_turn();
            let polled = work.as_mut().poll(context);
            while self.timers.poll_due(context, &mut events).is_ready() {
                debug_assert!(
                    false,
                    "a timer of an event loop fired on a worker that has no event loop"
                );
                events.clear();
            }
            self.clock.end_turn();
            polled
        });
        turns.await
    }

    /// The worker's state of type `T`. The first call creates it.
    #[inline(always)]
    pub fn local<T: Default + 'static>(&self) -> Rc<T> {
        let known = self.locals.borrow().get(&TypeId::of::<T>()).cloned();
        let value = known.unwrap_or_else(|| self.create_local::<T>());
        value
            .downcast()
            .unwrap_or_else(|_| unreachable!("each entry is stored under its own type"))
    }

    #[cold]
    fn create_local<T: Default + 'static>(&self) -> Rc<dyn Any> {
        let value: Rc<dyn Any> = Rc::new(T::default());
        let mut locals = self.locals.borrow_mut();
        locals.insert(TypeId::of::<T>(), Rc::clone(&value));
        value
    }

    /// Takes an unused exchange with an empty request head, which the caller fills in. [`Worker::begin`] then makes it
    /// a request of a connection; [`Worker::put_back`] returns it if there is no request.
    pub fn spare_exchange(self: &Rc<Self>) -> ExchangeRef {
        let mut free = self.free.borrow_mut();
        // An exchange to which a task of its last request still holds a reference must not be reused: the task would
        // see the next request.
        let unshared = std::iter::from_fn(|| free.pop()).find(|kept| Rc::strong_count(kept) == 1);
        unshared.unwrap_or_else(|| {
            let (site, placeholder) = (Rc::clone(&self.nowhere), Rc::clone(&self.placeholder));
            Exchange::shared(Rc::clone(self), site, placeholder)
        })
    }

    /// Returns an exchange from [`Worker::spare_exchange`] that was not used for a request.
    pub fn put_back(&self, exchange: ExchangeRef) {
        debug_assert!(
            exchange.borrow().request.target().is_empty(),
            "an exchange that was given back still has a request head"
        );
        self.free.borrow_mut().push(exchange);
    }

    /// Begins a request with an exchange whose head the caller has filled in.
    pub fn begin(
        &self,
        exchange: &ExchangeRef,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) {
        exchange.borrow_mut().reset(site, connection);
        self.busy.borrow_mut().push(Rc::clone(exchange));
    }

    /// Whether the exchange, after it was [rewound](Exchange::rewind), still belongs to `connection` and `site`: the
    /// next request can then use it at once.
    #[inline]
    #[must_use]
    pub fn is_begun(
        exchange: &Exchange,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) -> bool {
        Rc::ptr_eq(&exchange.connection, connection) && Rc::ptr_eq(&exchange.site, site)
    }

    /// Takes an exchange with an empty head and begins a request on `connection` with it.
    pub fn exchange(
        self: &Rc<Self>,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) -> ExchangeRef {
        let exchange = self.spare_exchange();
        self.begin(&exchange, site, connection);
        exchange
    }

    /// Takes an exchange back for reuse, after its log line was written.
    pub fn release(&self, exchange: ExchangeRef) {
        let mut busy = self.busy.borrow_mut();
        // The search begins at the end: short requests are among the latest, however many tunnels and long polls are in progress.
        if let Some(at) = busy.iter().rposition(|other| Rc::ptr_eq(other, &exchange)) {
            busy.swap_remove(at);
        }
        let mut free = self.free.borrow_mut();
        if free.len() >= KEPT_EXCHANGES {
            return;
        }
        // An exchange that is still borrowed cannot be cleared for reuse, so it is dropped.
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

    /// Calls `see` for every request in progress on this worker, except those that are mutably borrowed at the moment.
    pub fn each_live(&self, mut see: impl FnMut(&Exchange)) {
        for exchange in self.busy.borrow().iter() {
            if let Ok(exchange) = exchange.try_borrow() {
                see(&exchange);
            }
        }
    }
}
