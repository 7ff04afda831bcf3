//! What belongs to one worker: clock, timers, counters, kept exchanges, and whatever features keep per worker.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
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

/// An exchange of this worker. Free ones wait for the next request; all can be listed.
pub type ExchangeRef = Rc<RefCell<Exchange>>;

/// What the event loop of a worker is told to do by other threads.
pub enum Order {
    /// Begin the graceful shutdown: accept no more, and let each connection end with what is under way.
    Drain,
    /// Close all connections, whatever they do.
    Close,
    /// Run a function on the thread of the worker.
    Ask(WorkerTask),
}

/// What another thread asks of a worker.
pub type WorkerTask = Box<dyn FnOnce(&Rc<Worker>) + Send>;

/// Free exchanges kept; more are given back to the allocator.
const KEPT_EXCHANGES: usize = 128;
/// A kept exchange holds on to no more than this much per field block.
const KEPT_HEADERS: usize = 16 * 1024;

/// What other threads may know of a worker.
pub struct WorkerHandle {
    /// Its counters.
    pub counters: Arc<Counters>,
    orders: UnboundedSender<Order>,
}

impl WorkerHandle {
    /// What other threads may know of the worker that counts in `counters` and obeys `orders`.
    #[must_use]
    pub const fn new(counters: Arc<Counters>, orders: UnboundedSender<Order>) -> Self {
        Self { counters, orders }
    }

    /// Has the worker do something, in one of its next turns. False if it has ended.
    pub fn order(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
    }
}

/// What all workers of the process share; nothing of it is written on a request's path. The default is a process without
/// connections, listeners and workers.
#[derive(Default)]
pub struct Shared {
    /// Wall clock at start, since the Unix epoch.
    pub started: Duration,
    /// Generation under a supervisor.
    pub generation: Option<u64>,
    /// Descriptors, and who has them.
    pub descriptors: Arc<Descriptors>,
    /// How many connections there may be.
    pub limits: ConnectionLimits,
    /// Number of listening sockets.
    pub listeners: usize,
    /// Temporary files.
    pub temp_files: Arc<TempFiles>,
    /// The workers, set when all have started.
    pub workers: OnceLock<Vec<WorkerHandle>>,
}

/// How many connections a process may have. Can be set anew while it runs. The default is none.
#[derive(Debug, Default)]
pub struct ConnectionLimits {
    max: AtomicUsize,
    soft: AtomicUsize,
    /// Milliseconds.
    soft_min_age: AtomicU64,
}

impl ConnectionLimits {
    /// Limits as [`ConnectionLimits::set`] sets them.
    #[must_use]
    pub fn new(max: usize, soft: usize, soft_min_age: Duration) -> Self {
        let limits = Self::default();
        limits.set(max, soft, soft_min_age);
        limits
    }

    /// Sets `max-connections`, `soft-connection-limit` and `soft-connection-limit.min-age`. Workers obey them with the next
    /// connection.
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

impl Shared {
    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.descriptors.clients()
    }
}

/// One worker. Never leaves its thread.
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
    /// True once the process is to end: responses announce the end of their connection.
    pub shutting_down: Cell<bool>,
    /// Tells those who wait for it that the process is to end.
    pub shutdown: Arc<Notify>,
    locals: RefCell<FxHashMap<TypeId, Rc<dyn Any>>>,
    free: RefCell<Vec<ExchangeRef>>,
    busy: RefCell<Vec<ExchangeRef>>,
    /// Held by free exchanges in place of a connection and a site, which can then be let go.
    nobody: Rc<ConnectionInfo>,
    nowhere: Rc<LocalSite>,
}

/// The socket of a connection that has none: of exchanges that nobody has sent, and in tests.
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
    /// A worker with nothing to do yet.
    #[must_use]
    pub fn new(index: usize, counters: Arc<Counters>, shared: Arc<Shared>) -> Rc<Self> {
        let clock = Rc::new(Clock::default());
        let nobody = ConnectionInfo {
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
            nobody: Rc::new(nobody),
            nowhere: Rc::default(),
        })
    }

    /// The process is to end. Called by the event loop when it is told to [drain](Order::Drain).
    pub fn shut_down(&self) {
        self.shutting_down.set(true);
        self.shutdown.notify_waiters();
    }

    /// Runs a task on this worker's thread, beside the event loop. Its clock is read anew whenever the task is polled.
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

    /// Waits for so long.
    pub async fn sleep(&self, time: Duration) {
        let timer = Timer::new(&self.timers);
        timer.set_after(time);
        timer.fired().await;
    }

    /// Waits for `work`, but no longer than `limit`. It is polled once in any case.
    ///
    /// # Errors
    /// [`TimedOut`] if the time was over first.
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

    /// Runs `work` with this worker's clock and timers, where no event loop runs them: on threads that serve no clients, and in
    /// tests.
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

    /// The value of type `T` that a feature keeps on this worker, made on first use.
    pub fn local<T: Default + 'static>(&self) -> Rc<T> {
        let mut locals = self.locals.borrow_mut();
        let value = locals
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Rc::new(T::default()));
        Rc::clone(value)
            .downcast()
            .unwrap_or_else(|_| unreachable!("entries are filed under their own type"))
    }

    /// A free exchange whose request head is empty and may be filled in; [`Worker::begin`] makes it one of `connection`,
    /// [`Worker::put_back`] takes it back unused.
    pub fn spare_exchange(self: &Rc<Self>) -> ExchangeRef {
        let mut free = self.free.borrow_mut();
        // Whoever still holds one of an earlier request must not see the next one.
        let unshared = std::iter::from_fn(|| free.pop()).find(|kept| Rc::strong_count(kept) == 1);
        unshared.unwrap_or_else(|| {
            let (site, nobody) = (Rc::clone(&self.nowhere), Rc::clone(&self.nobody));
            Exchange::shared(Rc::clone(self), site, nobody)
        })
    }

    /// Takes back an exchange that [`Worker::spare_exchange`] gave and no request needed.
    pub fn put_back(&self, exchange: ExchangeRef) {
        debug_assert!(
            exchange.borrow().request.target().is_empty(),
            "a head was filled in"
        );
        self.free.borrow_mut().push(exchange);
    }

    /// A request begins with the head that was filled in.
    pub fn begin(
        &self,
        exchange: &ExchangeRef,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) {
        exchange.borrow_mut().reset(site, connection);
        self.busy.borrow_mut().push(Rc::clone(exchange));
    }

    /// True for an exchange that was begun for `connection` and `site`, and then [rewound](Exchange::rewind): a request can
    /// use it without beginning it anew.
    #[inline]
    #[must_use]
    pub fn is_begun(
        exchange: &Exchange,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) -> bool {
        Rc::ptr_eq(&exchange.connection, connection) && Rc::ptr_eq(&exchange.site, site)
    }

    /// An exchange for a request that begins on `connection`; its head is empty.
    pub fn exchange(
        self: &Rc<Self>,
        site: &Rc<LocalSite>,
        connection: &Rc<ConnectionInfo>,
    ) -> ExchangeRef {
        let exchange = self.spare_exchange();
        self.begin(&exchange, site, connection);
        exchange
    }

    /// Takes an exchange back when its log line is written.
    pub fn release(&self, exchange: ExchangeRef) {
        let mut busy = self.busy.borrow_mut();
        // Busy exchanges are few per worker and mostly end in the order they began.
        if let Some(at) = busy.iter().rposition(|other| Rc::ptr_eq(other, &exchange)) {
            busy.swap_remove(at);
        }
        let mut free = self.free.borrow_mut();
        if free.len() >= KEPT_EXCHANGES {
            return;
        }
        // One that is in use cannot be cleared, and is not used again.
        let Ok(mut kept) = exchange.try_borrow_mut() else {
            return;
        };
        kept.request.clear();
        kept.request.headers.shrink(KEPT_HEADERS);
        kept.sent.headers.shrink(KEPT_HEADERS);
        kept.body = crate::RequestBody::None;
        kept.connection = Rc::clone(&self.nobody);
        kept.site = Rc::clone(&self.nowhere);
        kept.restore = None;
        kept.sent.unfiltered = None;
        drop(kept);
        free.push(exchange);
    }

    /// Calls `see` for every request in flight on this worker that is not being worked on right now.
    pub fn each_live(&self, mut see: impl FnMut(&Exchange)) {
        for exchange in self.busy.borrow().iter() {
            if let Ok(exchange) = exchange.try_borrow() {
                see(&exchange);
            }
        }
    }
}
