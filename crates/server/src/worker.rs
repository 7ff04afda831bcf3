//! Workers: one thread each, with one event loop and its own connections.

use std::any::Any;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use h2o_exchange::{
    BackgroundServices, BufferLimits, ConnectionLimits, Counters, Descriptors, Endpoint, HostTable,
    LocalSite, Order, Shared, Site, SubRequestService, TempFiles, Worker, WorkerHandle,
    WorkerStarts,
};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use h2o_log::reason;

use crate::context::Context;
use crate::event::event_loop::EventLoop;
use crate::event::socket::Socket;
use crate::listener::LocalListener;
use crate::quic::connections::{QuicConnections, QuicListener, QuicShared};
use crate::quic::mail::Mailbox;
use crate::request::sub_request::SubRequestHandlers;
use crate::setup::Setup;
use crate::site::bind::ListeningSockets;
use crate::site::certificates::{AcceptorSlot, CertificateReload, TlsListeners};
use crate::site::listen::Listeners;
use crate::site::listen::ProxyProtocol;
use crate::site::quic_settings::QuicSettings;
use crate::tcp::connections::Connections;
use crate::{LoadedConfig, ServerSettings};
use h2o_quic::KnownPaths;
use h2o_tls::{Resumption, ResumptionSettings};

/// Threads per worker for blocking file operations.
const DISK_THREADS: usize = 4;

/// The running workers.
pub struct Server {
    threads: Vec<JoinHandle<()>>,
    orders: Vec<UnboundedSender<Order>>,
    shared: Arc<Shared>,
    tls: TlsListeners,
    /// Background services; each runs until it is dropped.
    services: Vec<Box<dyn Any + Send>>,
}

/// How a worker's thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// It drained: its last connection has closed.
    Drained,
    /// It panicked outside a connection. Its connections are lost, and no other worker takes over its listeners.
    Died,
}

/// Called by each worker's thread, as its last action, with the way it ended.
type OnWorkerEnd = dyn Fn(WorkerEnd) + Send + Sync;

/// One entry per worker: the CPU it is pinned to, if any.
#[must_use]
pub fn worker_plan(settings: &ServerSettings) -> Vec<Option<usize>> {
    if settings.workers.is_empty() {
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        return vec![None; online];
    }
    settings.workers.clone()
}

/// Arguments of a worker's thread.
pub(crate) struct WorkerConfig {
    pub(crate) index: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) site: Arc<Site>,
    pub(crate) settings: Arc<ServerSettings>,
    pub(crate) listeners: Vec<ListenerConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) orders: UnboundedReceiver<Order>,
    /// Session resumption of TLS and QUIC clients.
    pub(crate) resumption: Arc<Resumption>,
    /// Where workers leave datagrams for each other.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    /// What all workers know of the paths to QUIC clients.
    pub(crate) known_paths: KnownPaths,
    /// Whether this worker refreshes it: one does, if a listener has TLS.
    pub(crate) refreshes_resumption: bool,
}

pub(crate) struct ListenerConfig {
    pub(crate) fd: OwnedFd,
    pub(crate) endpoint: Endpoint,
    pub(crate) hosts: Vec<u32>,
    pub(crate) tls: Option<Arc<AcceptorSlot>>,
    pub(crate) origins: Option<Arc<[Box<str>]>>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) is_unix: bool,
    pub(crate) unix_buffers: (Option<usize>, Option<usize>),
    /// Set on UDP sockets.
    pub(crate) quic: Option<Arc<QuicSettings>>,
}

impl Server {
    /// Starts the workers. Returns when all of them accept connections. Each worker's thread calls `on_end` when it ends.
    ///
    /// # Errors
    /// The text to show.
    pub fn start(
        loaded: &LoadedConfig,
        bound: ListeningSockets,
        on_end: impl Fn(WorkerEnd) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let on_end: Arc<OnWorkerEnd> = Arc::new(on_end);
        let settings = loaded.settings();
        let plan = worker_plan(&settings);
        let shared = Arc::new(shared(&settings, bound.len()));
        let resumption = Resumption::new(&loaded.site.settings.get::<ResumptionSettings>());
        let tls = TlsListeners::new(Arc::clone(&loaded.site), resumption);
        let mut listeners = share_out(loaded, bound, &tls, plan.len())?;
        let has_tls = listeners
            .iter()
            .flatten()
            .any(|listener| listener.tls.is_some());
        let (ready, is_ready) = mpsc::channel();
        let mut server = Self {
            threads: Vec::new(),
            orders: Vec::new(),
            shared: Arc::clone(&shared),
            tls,
            services: Vec::new(),
        };
        let mut handles = Vec::new();
        let known_paths = KnownPaths::default();
        let mailboxes: Arc<[Mailbox]> = plan.iter().map(|_| Mailbox::default()).collect();
        for (index, cpu) in plan.into_iter().enumerate() {
            let (sender, orders) = unbounded_channel();
            let counters = Arc::new(Counters::default());
            handles.push(WorkerHandle::new(Arc::clone(&counters), sender.clone()));
            let config = WorkerConfig {
                index,
                cpu,
                site: Arc::clone(&loaded.site),
                settings: Arc::clone(&settings),
                listeners: std::mem::take(&mut listeners[index]),
                shared: Arc::clone(&shared),
                counters,
                orders,
                resumption: Arc::clone(server.tls.resumption()),
                mailboxes: Arc::clone(&mailboxes),
                known_paths: known_paths.clone(),
                refreshes_resumption: index == 0 && has_tls,
            };
            let ready = ready.clone();
            let on_end = Arc::clone(&on_end);
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    let ended = catch_unwind(AssertUnwindSafe(|| run(config, &ready)));
                    // Drop it before `on_end`: a starting server that still waits for this worker then stops waiting.
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
        // Set before the first worker reports that it is ready; not read earlier.
        let _ = shared.workers.set(handles);
        drop(ready);
        for _ in 0..server.threads.len() {
            is_ready
                .recv()
                .map_err(|_| "a worker thread ended while the server was starting".to_string())??;
        }
        for service in &loaded.site.shared.get::<BackgroundServices>().0 {
            server.services.push(service.begin()?);
        }
        Ok(server)
    }

    /// Number of workers.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.threads.len()
    }

    /// What the workers share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Reads the certificates, keys and client authorities of every listener again, with the rights of the user that
    /// the server runs as. New connections get those that have changed. A file that cannot be read, or does not match
    /// its key, leaves the loaded one in use. Sessions of a certificate that was replaced are no longer resumed.
    ///
    /// Updates the list of [`h2o_exchange::Certificates`].
    pub fn reload_certificates(&self) -> CertificateReload {
        self.tls.reload()
    }

    /// Begins graceful shutdown: no connection is accepted any more, and each one
    /// ends when the requests that it has begun are answered.
    pub fn shut_down(&self) {
        self.order_all(|| Order::Drain);
    }

    /// Closes the remaining connections at once, and the listeners.
    pub fn close_connections(&self) {
        self.shut_down();
        self.order_all(|| Order::Close);
    }

    fn order_all(&self, order: impl Fn() -> Order) {
        for worker in &self.orders {
            // A worker that has already ended ignores orders.
            let _ = worker.send(order());
        }
    }

    /// Ends the background services without waiting for the workers: buffered log lines are written.
    pub fn abandon(self) {
        drop(self.services);
    }

    /// Waits until all connections have closed.
    pub fn join(self) {
        for thread in self.threads {
            // The panic hook has reported a worker's panic.
            let _ = thread.join();
        }
        drop(self.services);
    }
}

/// The state that the workers of a process share.
fn shared(settings: &ServerSettings, listeners: usize) -> Shared {
    let descriptors = Arc::new(Descriptors::of_process());
    let shared = Shared {
        started: h2o_exchange::Clock::default().unix(),
        generation: generation(),
        temp_files: Arc::new(TempFiles::default().counted(&descriptors)),
        descriptors,
        quic_connections: AtomicUsize::new(0),
        limits: ConnectionLimits::default(),
        buffers: BufferLimits::default(),
        listeners,
        workers: OnceLock::new(),
    };
    set_limits(&shared, settings);
    shared
}

/// How often the supervisor has started this server.
fn generation() -> Option<u64> {
    std::env::var("SERVER_STARTER_GENERATION")
        .ok()?
        .parse()
        .ok()
}

/// Sets the limits that can be changed while the process runs.
fn set_limits(shared: &Shared, settings: &ServerSettings) {
    shared.limits.set(
        settings.max_connections,
        settings.soft_connection_limit,
        settings.soft_connection_min_age,
    );
    (shared.buffers).set(memory_share(settings), settings.max_spare_pipes);
    (shared.temp_files).set(&settings.temp_buffer_path, settings.temp_buffer_limit());
}

/// The configuration of a single worker, for callers that run it themselves.
#[cfg(any(test, feature = "mruby"))]
pub(crate) fn only_config(
    loaded: &LoadedConfig,
    bound: ListeningSockets,
) -> Result<(WorkerConfig, UnboundedSender<Order>), String> {
    let settings = loaded.settings();
    let resumption = Resumption::new(&loaded.site.settings.get::<ResumptionSettings>());
    let tls = TlsListeners::new(Arc::clone(&loaded.site), resumption);
    let shared = Arc::new(shared(&settings, bound.len()));
    let mut listeners = share_out(loaded, bound, &tls, 1)?;
    let (sender, orders) = unbounded_channel();
    let config = WorkerConfig {
        index: 0,
        cpu: None,
        site: Arc::clone(&loaded.site),
        settings: Arc::new(ServerSettings::clone(&settings)),
        listeners: listeners.remove(0),
        shared,
        counters: Arc::default(),
        orders,
        resumption: Arc::clone(tls.resumption()),
        mailboxes: std::iter::once(Mailbox::default()).collect(),
        known_paths: KnownPaths::default(),
        refreshes_resumption: false,
    };
    Ok((config, sender))
}

/// Gives each worker a descriptor of every listener.
fn share_out(
    loaded: &LoadedConfig,
    bound: ListeningSockets,
    tls_listeners: &TlsListeners,
    workers: usize,
) -> Result<Vec<Vec<ListenerConfig>>, String> {
    let configured = loaded.site.shared.get::<Listeners>();
    let failed = |error: std::io::Error| {
        format!("failed to duplicate a listening socket: {}", reason(&error))
    };
    let mut out: Vec<Vec<ListenerConfig>> = (0..workers).map(|_| Vec::new()).collect();
    let mut bound = bound.sockets.into_iter().peekable();
    for (index, listener) in configured.0.iter().enumerate() {
        let tls = tls_listeners.add(listener)?;
        // A listener that could not be bound has no sockets.
        let sockets = bound.next_if(|(of, _)| *of == index);
        let mut sockets = sockets
            .map_or_else(Vec::new, |(_, sockets)| sockets)
            .into_iter();
        let mut shared: Option<OwnedFd> = None;
        for worker in &mut out {
            let fd = match (sockets.next(), &shared) {
                (Some(fd), _) => fd,
                // Each worker that serves QUIC has its own socket.
                (None, _) if listener.quic.is_some() => break,
                (None, Some(fd)) => fd.try_clone().map_err(failed)?,
                (None, None) => break,
            };
            shared = Some(fd.try_clone().map_err(failed)?);
            worker.push(ListenerConfig {
                fd,
                endpoint: listener.endpoint.clone(),
                hosts: listener.hosts.clone().unwrap_or_default(),
                tls: tls.clone(),
                // H2O compatibility: H2O sends the origins of the first entry of an address only.
                origins: listener
                    .tls
                    .first()
                    .and_then(|entry| entry.settings.origins.clone()),
                proxy_protocol: listener.proxy_protocol,
                is_unix: listener.unix_path().is_some(),
                unix_buffers: (listener.sndbuf, listener.rcvbuf),
                quic: listener.quic.clone(),
            });
        }
    }
    Ok(out)
}

/// The runtime of a worker.
pub(crate) fn runtime() -> Result<LocalRuntime, String> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(DISK_THREADS)
        .thread_keep_alive(std::time::Duration::from_secs(10))
        .build_local(LocalOptions::default())
        .map_err(|error| format!("failed to start an event loop: {}", reason(&error)))
}

type ReadySender = mpsc::Sender<Result<(), String>>;

fn run(config: WorkerConfig, ready: &ReadySender) {
    if let Some(cpu) = config.cpu {
        pin(cpu);
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let site = Arc::clone(&config.site);
    runtime.block_on(async {
        let resumption = (config.refreshes_resumption).then(|| Arc::clone(&config.resumption));
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
        let worker = event_loop.worker();
        let site = LocalSite(site);
        for feature in &site.shared.get::<WorkerStarts>().0 {
            feature.start(worker, &site);
        }
        drop(site);
        // `Server::start` waits for this.
        let _ = ready.send(Ok(()));
        let turns = poll_fn(|task| event_loop.poll_turn(task));
        // All connections are one task to the runtime, whose task budget would make sockets look unready after some
        // hundred uses. A turn limits its own length instead.
        tokio::task::coop::unconstrained(turns).await;
    });
}

/// Creates the event loop of a worker with its tables of connections. Must be called within the worker's runtime.
pub(crate) fn event_loop(config: WorkerConfig) -> io::Result<EventLoop> {
    let WorkerConfig {
        site,
        settings,
        listeners,
        ..
    } = config;
    let worker = Worker::new(config.index, config.counters, config.shared);
    let mut event_loop = EventLoop::new(worker, config.orders)?;
    let setup = Rc::new(Setup::new(site, &settings));
    let mut streams = Vec::new();
    let mut quic = Vec::new();
    for listener in listeners {
        let local = Rc::new(LocalListener {
            setup: Rc::clone(&setup),
            hosts: HostTable::new(&setup.site.hosts, &listener.hosts),
            endpoint: Rc::new(listener.endpoint),
            tls: listener.tls,
            origins: listener.origins,
            proxy_protocol: listener.proxy_protocol,
            is_unix: listener.is_unix,
            unix_buffers: listener.unix_buffers,
        });
        match (&*local.endpoint, listener.quic) {
            (Endpoint::Udp(address), Some(settings)) => quic.push(QuicListener {
                socket: Socket::new(listener.fd, false),
                address: *address,
                listener: local,
                settings: Rc::new(QuicSettings::clone(&settings)),
            }),
            (Endpoint::Udp(_) | Endpoint::Tcp(_) | Endpoint::Unix(_), _) => {
                streams.push((listener.fd, local));
            }
        }
    }
    let context = Rc::new(Context::new(&event_loop));
    let service = context.worker.local::<SubRequestService>();
    // Set once: a worker has one event loop.
    let _ = service.0.set(Rc::new(SubRequestHandlers));
    let quic_context = Rc::clone(&context);
    event_loop
        .add(|registry, first_token| Connections::new(context, registry, first_token, streams))?;
    if !quic.is_empty() {
        let shared = QuicShared {
            http3: settings.http3.clone(),
            resumption: config.resumption,
            max_connections: settings.max_quic_connections.unwrap_or(usize::MAX),
            known_paths: config.known_paths,
            nodes: settings.quic_nodes.clone(),
            mailboxes: config.mailboxes,
        };
        event_loop.add(|registry, first_token| {
            QuicConnections::new(quic_context, &registry, first_token, quic, shared)
        })?;
    }
    Ok(event_loop)
}

/// A worker's share of `max-memory`, in bytes.
fn memory_share(settings: &ServerSettings) -> usize {
    let workers = worker_plan(settings).len().max(1);
    let share = settings.max_memory.map(|limit| limit / workers as u64);
    share
        .and_then(|share| usize::try_from(share).ok())
        .unwrap_or(usize::MAX)
}

/// Renews ticket keys and drops expired sessions while there are no handshakes, which otherwise do it.
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
