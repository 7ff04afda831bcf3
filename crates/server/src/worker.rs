//! Workers: one thread each, with one event loop and its own connections.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use h2o_exchange::{
    BufferLimits, ConnectionLimits, Counters, Descriptors, Order, Reloads, Shared, Site,
    SubRequestService, Sweep, TempFiles, Worker, WorkerHandle,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use h2o_log::reason;

use crate::context::Context;
use crate::current::{Current, Retired};
use crate::event::event_loop::EventLoop;
use crate::event::watched_sockets::WatchedSockets;
use crate::generation::{Generation, LocalGeneration, start_features};
use crate::quic::connections::QuicConnections;
use crate::quic::endpoint::QuicShared;
use crate::quic::handover::{Handover, OtherGenerations};
use crate::quic::mail::Mailbox;
use crate::request::sub_request::SubRequestHandlers;
use crate::site::certificates::{CertificateReload, CertificateWatch};
use crate::sockets::bind::ListeningSockets;
use crate::sockets::inherited::supervisor_generation;
use crate::stapling::StapleFetches;
use crate::tcp::connections::Connections;
use crate::{LoadedConfig, ServerSettings, worker_plan};
use h2o_quic::{KnownPaths, UsedTokens};
use h2o_tls::{Resumption, ResumptionSettings};

/// Number of threads per worker for blocking file operations.
const DISK_THREADS: usize = 4;

/// How long each step of a status report waits for the workers' answers.
const STATUS_PATIENCE: Duration = Duration::from_secs(1);

/// The running server: its workers and its configuration.
pub struct Server {
    threads: Vec<JoinHandle<()>>,
    disk: Runtime,
    pub(crate) orders: Vec<UnboundedSender<Order>>,
    pub(crate) shared: Arc<Shared>,
    /// The configuration that is used for new requests.
    pub(crate) current: Current,
    /// Earlier configurations, of which requests are still in progress.
    pub(crate) retired: Vec<Retired>,
    pub(crate) watch: CertificateWatch,
    pub(crate) staple_fetches: StapleFetches,
}

/// How a worker's thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// The worker was shut down: its last connection has closed.
    Drained,
    /// The worker panicked outside of a connection. Its connections are lost, and no other worker takes over its listeners.
    Died,
}

/// Called by each worker's thread, as its last action, with the way it ended.
type OnWorkerEnd = dyn Fn(WorkerEnd) + Send + Sync;

/// Arguments of a worker's thread.
pub(crate) struct WorkerConfig {
    pub(crate) index: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) generation: Generation,
    pub(crate) sweeps: Vec<Sweep>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) orders: UnboundedReceiver<Order>,
    /// Queues in which workers pass QUIC datagrams to each other.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    /// Channels to the other generations of this server (processes before and after an upgrade of the binary).
    pub(crate) other_generations: Arc<OtherGenerations>,
    /// What all workers know about the network paths to QUIC clients.
    pub(crate) known_paths: KnownPaths,
    /// The address validation tokens that QUIC clients have used at any worker.
    pub(crate) used_tokens: Arc<UsedTokens>,
    /// Whether this worker refreshes the keys of TLS session resumption: exactly one worker does.
    pub(crate) refreshes_resumption: bool,
}

impl Server {
    /// Starts the workers. Returns when all of them accept connections. Each worker's thread calls `on_end` when it ends.
    ///
    /// # Errors
    /// The error message for the administrator.
    pub fn start(
        loaded: &LoadedConfig,
        mut bound: ListeningSockets,
        on_end: impl Fn(WorkerEnd) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let on_end: Arc<OnWorkerEnd> = Arc::new(on_end);
        let settings = loaded.settings();
        let plan = worker_plan(&settings);
        let shared = Arc::new(shared(&settings, plan.len()));
        let resumption = Resumption::new(&loaded.site.settings.get::<ResumptionSettings>());
        let mut current = Current::new(loaded, resumption);
        let handover = bound.handover.take();
        let other_generations = Arc::new(
            handover
                .as_ref()
                .map(Handover::other_generations)
                .unwrap_or_default(),
        );
        let generations = current.share_out(loaded, bound, plan.len(), &mpsc::channel().0, None)?;
        (shared.listeners).store(current.listening_sockets(), Relaxed);
        let (ready, is_ready) = mpsc::channel();
        let mut server = Self {
            threads: Vec::new(),
            disk: disk_threads(plan.len())?,
            orders: Vec::new(),
            shared: Arc::clone(&shared),
            current,
            retired: Vec::new(),
            watch: CertificateWatch::default(),
            staple_fetches: StapleFetches::default(),
        };
        let mut handles = Vec::new();
        let known_paths = KnownPaths::default();
        let used_tokens: Arc<UsedTokens> = Arc::default();
        let mailboxes: Arc<[Mailbox]> = plan.iter().map(|_| Mailbox::default()).collect();
        for ((index, cpu), generation) in plan.into_iter().enumerate().zip(generations) {
            let (sender, orders) = unbounded_channel();
            let counters = Arc::new(Counters::default());
            handles.push(WorkerHandle::new(Arc::clone(&counters), sender.clone()));
            let config = WorkerConfig {
                index,
                cpu,
                generation,
                sweeps: loaded.sweeps.clone(),
                shared: Arc::clone(&shared),
                counters,
                orders,
                mailboxes: Arc::clone(&mailboxes),
                other_generations: Arc::clone(&other_generations),
                known_paths: known_paths.clone(),
                used_tokens: Arc::clone(&used_tokens),
                refreshes_resumption: index == 0,
            };
            let disk = server.disk.handle().clone();
            let ready = ready.clone();
            let on_end = Arc::clone(&on_end);
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    let ended = catch_unwind(AssertUnwindSafe(|| run(config, &disk, &ready)));
                    // `ready` is dropped before `on_end` is called, so that the starting server stops waiting for a worker that has
                    // ended.
                    drop(ready);
                    on_end(ended.map_or(WorkerEnd::Died, |()| WorkerEnd::Drained));
                });
            server.threads.push(
                thread.map_err(|error| {
                    format!("failed to start a worker thread: {}", reason(&error))
                })?,
            );
            server.orders.push(sender);
        }
        // The result is ignored: the workers' handles are set here only, before the first worker reports that it is ready.
        let _ = shared.workers.set(handles);
        drop(ready);
        for _ in 0..server.threads.len() {
            is_ready
                .recv()
                .map_err(|_| "a worker thread ended while the server was starting".to_string())??;
        }
        server.current.begin_services(None)?;
        if let Some(handover) = handover {
            handover.begin(other_generations, mailboxes);
        }
        Ok(server)
    }

    /// Number of workers.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.threads.len()
    }

    /// The state that the workers share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Reads the certificates, keys and client authorities of every listener again, with the rights of the user that the server
    /// runs as. New connections use the files that have changed. A file that cannot be read, or does not match its key, leaves the
    /// loaded one in use. Sessions of a certificate that was replaced are no longer resumed.
    ///
    /// Updates the list of [`h2o_exchange::Certificates`].
    pub fn reload_certificates(&self) -> CertificateReload {
        self.current.tls().reload()
    }

    /// Has the readiness probe fail from now on. The server goes on with everything else.
    pub fn announce_end(&self) {
        self.shared.is_ending.store(true, Relaxed);
    }

    /// Begins graceful shutdown: the server accepts no more connections, and closes each open connection once its requests in progress are
    /// answered.
    pub fn shut_down(&self) {
        self.announce_end();
        self.order_all(|| Order::Drain);
    }

    /// Closes the remaining connections at once, and the listeners.
    pub fn close_connections(&self) {
        self.shut_down();
        self.order_all(|| Order::Close);
    }

    /// Asks all workers to publish their counters for a status report, without waiting for them: [`StatusReport::wait`] does.
    #[must_use]
    pub fn begin_status(&self) -> StatusReport {
        let (done, published) = mpsc::channel::<()>();
        self.order_all(|| {
            let done = done.clone();
            Order::Run(Box::new(move |worker| {
                h2o_handlers::publish_counters(worker);
                drop(done);
            }))
        });
        StatusReport {
            published,
            orders: self.orders.clone(),
            site: Arc::clone(self.current.site()),
        }
    }

    fn order_all(&self, order: impl Fn() -> Order) {
        for worker in &self.orders {
            // The result is ignored: a worker that has already ended takes no orders.
            let _ = worker.send(order());
        }
    }

    /// Ends the background services without waiting for the workers: this writes buffered log lines.
    pub fn abandon(self) {
        self.disk.shutdown_background();
        drop((self.current, self.retired));
    }

    /// Waits until all workers have ended, that is, until their connections have closed.
    pub fn join(self) {
        for thread in self.threads {
            // The result is ignored: the panic hook has already reported a worker's panic.
            let _ = thread.join();
        }
        // Waits until the disk threads have done what they were told.
        drop(self.disk);
        drop((self.current, self.retired));
    }
}

/// A status report for which the workers have been asked to publish their counters. Another thread than that of the [`Server`] can wait for
/// it.
pub struct StatusReport {
    /// Closed once all workers have published their counters.
    published: mpsc::Receiver<()>,
    orders: Vec<UnboundedSender<Order>>,
    site: Arc<Site>,
}

impl StatusReport {
    /// Waits for the status report and returns it as JSON; `None` if no worker has written it within [`STATUS_PATIENCE`].
    #[must_use]
    pub fn wait(self) -> Option<Vec<u8>> {
        // No value is ever sent over this channel: the call waits until all workers have dropped their senders. For a worker that is too
        // busy to do so in time, the report shows its earlier counters.
        let _ = self.published.recv_timeout(STATUS_PATIENCE);
        let (sender, answer) = mpsc::channel();
        for worker in &self.orders {
            let (site, sender) = (Arc::clone(&self.site), sender.clone());
            // Every worker is asked for the whole report, and the first report that arrives is used. Results are ignored: a worker may have
            // ended, or its report may come too late.
            let _ = worker.send(Order::Run(Box::new(move |worker| {
                let _ = sender.send(h2o_handlers::report_of(worker, &site));
            })));
        }
        drop(sender);
        answer.recv_timeout(STATUS_PATIENCE).ok()
    }
}

/// The state that the workers of a process share.
fn shared(settings: &ServerSettings, workers: usize) -> Shared {
    let descriptors = Arc::new(Descriptors::of_process());
    let shared = Shared {
        started: h2o_exchange::Clock::default().unix(),
        generation: supervisor_generation(),
        temp_files: Arc::new(TempFiles::default().counted(&descriptors)),
        descriptors,
        quic_connections: AtomicUsize::new(0),
        limits: ConnectionLimits::default(),
        buffers: BufferLimits::default(),
        listeners: AtomicUsize::new(0),
        workers: OnceLock::new(),
        reloads: Reloads::default(),
        is_ending: AtomicBool::new(false),
    };
    set_limits(&shared, settings, workers);
    shared
}

/// Sets the limits (of connections, memory and temporary files) that a reload can change, for a process with this number of workers.
pub(crate) fn set_limits(shared: &Shared, settings: &ServerSettings, workers: usize) {
    shared.limits.set(
        settings.max_connections,
        settings.soft_connection_limit,
        settings.soft_connection_min_age,
    );
    (shared.buffers).set(memory_share(settings, workers), settings.max_spare_pipes);
    (shared.temp_files).set(&settings.temp_buffer_path, settings.temp_buffer_limit());
}

/// The arguments for a single worker, for callers that run it on their own thread.
#[cfg(any(test, feature = "mruby"))]
pub(crate) fn only_config(
    loaded: &LoadedConfig,
    bound: ListeningSockets,
) -> Result<(WorkerConfig, UnboundedSender<Order>), String> {
    let settings = loaded.settings();
    let resumption = Resumption::new(&loaded.site.settings.get::<ResumptionSettings>());
    let shared = Arc::new(shared(&settings, 1));
    let mut current = Current::new(loaded, resumption);
    let mut generation = current
        .share_out(loaded, bound, 1, &mpsc::channel().0, None)?
        .remove(0);
    (shared.listeners).store(current.listening_sockets(), Relaxed);
    // A copy of the settings, because tests change them.
    generation.settings = Arc::new(ServerSettings::clone(&settings));
    let (sender, orders) = unbounded_channel();
    let config = WorkerConfig {
        index: 0,
        cpu: None,
        generation,
        sweeps: loaded.sweeps.clone(),
        shared,
        counters: Arc::default(),
        orders,
        mailboxes: std::iter::once(Mailbox::default()).collect(),
        other_generations: Arc::default(),
        known_paths: KnownPaths::default(),
        used_tokens: Arc::default(),
        refreshes_resumption: false,
    };
    Ok((config, sender))
}

/// The threads for blocking operations of this number of workers. The runtime runs no task and watches no socket: the event loops do.
pub(crate) fn disk_threads(workers: usize) -> Result<Runtime, String> {
    Builder::new_current_thread()
        .max_blocking_threads(DISK_THREADS * workers.max(1))
        .thread_keep_alive(Duration::from_secs(10))
        .build()
        .map_err(|error| format!("failed to start the disk threads: {}", reason(&error)))
}

type ReadySender = mpsc::Sender<Result<(), String>>;

fn run(config: WorkerConfig, disk: &Handle, ready: &ReadySender) {
    if let Some(cpu) = config.cpu {
        pin(cpu);
    }
    let _disk = disk.enter();
    let mut tasks = LocalSet::new();
    let _tasks = tasks.enter();
    let resumption =
        (config.refreshes_resumption).then(|| Arc::clone(&config.generation.resumption));
    let mut event_loop = match event_loop(config) {
        Ok(event_loop) => event_loop,
        Err(error) => {
            let _ = ready.send(Err(format!(
                "failed to start an event loop: {}",
                reason(&error)
            )));
            return;
        }
    };
    if let Some(resumption) = resumption {
        let worker = event_loop.worker();
        worker.spawn(refresh(Rc::clone(worker), resumption));
    }
    start_features(event_loop.worker(), event_loop.site());
    // Tells `Server::start`, which waits for it, that this worker is ready.
    let _ = ready.send(Ok(()));
    event_loop.run(&mut tasks, EventLoop::poll_turn);
}

/// Creates the event loop of a worker with its tables of connections. Must be called in the context of the [disk threads](disk_threads).
pub(crate) fn event_loop(config: WorkerConfig) -> io::Result<EventLoop> {
    let worker = Worker::new(config.index, config.counters, config.shared);
    let mut generation = LocalGeneration::new(config.generation);
    let site = Rc::clone(&generation.setup.site);
    let mut event_loop = EventLoop::new(worker, config.orders, site, config.sweeps.into())?;
    let context = Rc::new(Context::new(&event_loop));
    let service = context.worker.local::<SubRequestService>();
    // The result is ignored: the cell is empty, since a worker has one event loop.
    let _ = service.0.set(Rc::new(SubRequestHandlers));
    let quic_context = Rc::clone(&context);
    event_loop.add(|registry, first_token| {
        Ok(Connections::new(
            context,
            registry,
            first_token,
            &mut generation,
        ))
    })?;
    let shared = QuicShared {
        known_paths: config.known_paths,
        used_tokens: config.used_tokens,
        mailboxes: config.mailboxes,
        other_generations: config.other_generations,
    };
    event_loop.add(|registry, first_token| {
        QuicConnections::new(quic_context, registry, first_token, &mut generation, shared)
    })?;
    let worker = Rc::clone(event_loop.worker());
    event_loop
        .add(|registry, first_token| Ok(WatchedSockets::new(&worker, registry, first_token)))?;
    Ok(event_loop)
}

/// A worker's share of `max-memory`, in bytes.
fn memory_share(settings: &ServerSettings, workers: usize) -> usize {
    let share = (settings.max_memory).map(|limit| limit / workers.max(1) as u64);
    share
        .and_then(|share| usize::try_from(share).ok())
        .unwrap_or(usize::MAX)
}

/// Renews the keys of session tickets and drops expired TLS sessions every 10 seconds; handshakes do both, too, but there may be none for a
/// long time.
async fn refresh(worker: Rc<Worker>, resumption: Arc<Resumption>) {
    loop {
        worker.sleep(std::time::Duration::from_secs(10)).await;
        resumption.refresh();
    }
}

fn pin(cpu: usize) {
    let pinned = (|| {
        let mut set = nix::sched::CpuSet::new();
        set.set(cpu)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)
    })();
    if let Err(error) = pinned {
        h2o_log::report!(
            warning,
            "failed to bind a worker thread to CPU {cpu}: {}",
            error.desc()
        );
    }
}
