//! Workers: one thread each, with one event loop and its own connections.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context as TaskContext, Poll};
use std::thread::JoinHandle;

use h2o_exchange::{Counter, Counters, LocalSite, Mail, Shared, Site, Worker, WorkerHandle};
use slab::Slab;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Sleep;

use crate::bind::{Bound, reason};
use crate::connection::{Connection, Fate};
use crate::context::{Context, LocalListener, MemoryAccount, Scratch, Wakes};
use crate::listen::Listeners;
use crate::reactor::{Reactor, Ready};
use crate::socket::Socket;
use crate::timers::{STEP, Timers};
use crate::tls::{Resumption, ResumptionSettings, TlsAcceptor};
use crate::{Loaded, ServerSettings};

/// Connections accepted per event of a listener.
const ACCEPT_BATCH: usize = 10;
/// Batches of events handled before the runtime gets its turn.
const ROUNDS: u32 = 8;
/// Tokens from here on are listeners.
const LISTENER_TOKENS: u64 = 1 << 63;
/// Threads per worker that wait for the disk.
const DISK_THREADS: usize = 4;

/// Number of the next connection, process-wide, from 1.
static CONNECTION_IDS: AtomicU64 = AtomicU64::new(1);

/// The running workers.
pub struct Server {
    threads: Vec<JoinHandle<()>>,
    mail: Vec<UnboundedSender<Mail>>,
    shared: Arc<Shared>,
}

/// One entry per worker: the CPU it is pinned to, if any.
#[must_use]
pub fn worker_plan(settings: &ServerSettings) -> Vec<Option<usize>> {
    if settings.workers.is_empty() {
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        return vec![None; online];
    }
    settings.workers.clone()
}

/// Everything a worker's thread begins with.
struct Seed {
    index: usize,
    cpu: Option<usize>,
    site: Arc<Site>,
    settings: Arc<ServerSettings>,
    listeners: Vec<SeedListener>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    mail: UnboundedReceiver<Mail>,
}

struct SeedListener {
    fd: OwnedFd,
    hosts: Vec<u32>,
    tls: Option<Arc<TlsAcceptor>>,
    proxy_protocol: bool,
    is_unix: bool,
}

impl Server {
    /// Starts the workers. Returns when all of them accept connections.
    ///
    /// # Errors
    /// The text to show.
    pub fn start(loaded: &Loaded, bound: Bound) -> Result<Self, String> {
        let settings = loaded.settings();
        let plan = worker_plan(&settings);
        let shared = Arc::new(Shared {
            started: h2o_exchange::Clock::default().unix(),
            generation: None,
            connections: 0.into(),
            max_connections: settings.max_connections,
            soft_connection_limit: settings.soft_connection_limit,
            soft_connection_min_age: settings.soft_connection_min_age,
            listeners: bound.len(),
            workers: OnceLock::new(),
        });
        let resumption = Resumption::new(&loaded.site.settings.get::<ResumptionSettings>());
        let mut listeners = share_out(loaded, bound, &resumption, plan.len())?;
        let (ready, is_ready) = mpsc::channel();
        let mut server = Self {
            threads: Vec::new(),
            mail: Vec::new(),
            shared: Arc::clone(&shared),
        };
        let mut handles = Vec::new();
        for (index, cpu) in plan.into_iter().enumerate() {
            let (sender, mail) = unbounded_channel();
            let counters = Arc::new(Counters::default());
            handles.push(WorkerHandle {
                counters: Arc::clone(&counters),
                mail: sender.clone(),
            });
            let seed = Seed {
                index,
                cpu,
                site: Arc::clone(&loaded.site),
                settings: Arc::clone(&settings),
                listeners: std::mem::take(&mut listeners[index]),
                shared: Arc::clone(&shared),
                counters,
                mail,
            };
            let ready = ready.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || run(seed, &ready));
            server.threads.push(
                thread.map_err(|error| format!("failed to start a worker: {}", reason(&error)))?,
            );
            server.mail.push(sender);
        }
        // Set before the first worker says that it is ready, and read by nobody earlier.
        let _ = shared.workers.set(handles);
        drop(ready);
        for _ in 0..server.threads.len() {
            is_ready
                .recv()
                .map_err(|_| "a worker ended while it was starting".to_string())??;
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

    /// Begins the graceful end: listeners are closed, and each connection ends with its next response.
    pub fn shut_down(&self) {
        for mail in &self.mail {
            // A worker that has ended already needs no telling.
            let _ = mail.send(Box::new(|worker| worker.shutting_down.set(true)));
        }
    }

    /// Waits until all connections have ended.
    pub fn join(self) {
        for thread in self.threads {
            // A worker's panic has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Gives each worker its own descriptor of every listener.
fn share_out(
    loaded: &Loaded,
    bound: Bound,
    resumption: &Arc<Resumption>,
    workers: usize,
) -> Result<Vec<Vec<SeedListener>>, String> {
    let configured = loaded.site.shared.get::<Listeners>();
    let mut out: Vec<Vec<SeedListener>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, sockets) in bound.sockets {
        let listener = &configured.0[index];
        let tls = if listener.is_tls() {
            let entries: Vec<_> = listener
                .tls
                .iter()
                .map(|entry| (entry.names.clone(), Arc::clone(&entry.settings)))
                .collect();
            Some(Arc::new(TlsAcceptor::new(
                &entries,
                Arc::clone(resumption),
                &[b"http/1.1"],
            )?))
        } else {
            None
        };
        let mut sockets = sockets.into_iter();
        let mut shared: Option<OwnedFd> = None;
        for worker in &mut out {
            let fd = match (sockets.next(), &shared) {
                (Some(fd), _) => fd,
                (None, Some(fd)) => fd
                    .try_clone()
                    .map_err(|error| format!("failed to share a listener: {}", reason(&error)))?,
                (None, None) => continue,
            };
            shared = Some(
                fd.try_clone()
                    .map_err(|error| format!("failed to share a listener: {}", reason(&error)))?,
            );
            worker.push(SeedListener {
                fd,
                hosts: listener.hosts.clone().unwrap_or_default(),
                tls: tls.clone(),
                proxy_protocol: listener.proxy_protocol,
                is_unix: listener.unix_path().is_some(),
            });
        }
    }
    Ok(out)
}

type ReadySender = mpsc::Sender<Result<(), String>>;

fn run(seed: Seed, ready: &ReadySender) {
    if let Some(cpu) = seed.cpu {
        pin(cpu);
    }
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(DISK_THREADS)
        .thread_keep_alive(std::time::Duration::from_secs(10))
        .build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(format!(
                "failed to start an event loop: {}",
                reason(&error)
            )));
            return;
        }
    };
    runtime.block_on(async {
        let mut connections = match Connections::new(seed) {
            Ok(connections) => connections,
            Err(error) => {
                let _ = ready.send(Err(format!(
                    "failed to start an event loop: {}",
                    reason(&error)
                )));
                return;
            }
        };
        // Whoever started us waits for this.
        let _ = ready.send(Ok(()));
        let mut sleep = Box::pin(tokio::time::sleep(STEP));
        poll_fn(|task| connections.poll_turn(task, &mut sleep)).await;
    });
}

fn pin(cpu: usize) {
    let pinned = (|| {
        let mut set = nix::sched::CpuSet::new();
        set.set(cpu)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)
    })();
    if let Err(error) = pinned {
        h2o_exchange::report!(
            "[warning] failed to bind a worker thread to CPU {cpu}: {}",
            error.desc()
        );
    }
}

/// The connections of a worker with all that moves them.
struct Connections {
    context: Context,
    reactor: Reactor,
    timers: Timers,
    slab: Slab<Box<Connection>>,
    /// Distinguishes connections that use one slot of the slab after another.
    generation: u32,
    mail: UnboundedReceiver<Mail>,
    /// True while the listeners are not watched, as `max-connections` is reached.
    is_full: bool,
    is_draining: bool,
    ready: Vec<Ready>,
    tokens: Vec<u64>,
    due: Vec<u32>,
}

impl Connections {
    fn new(seed: Seed) -> io::Result<Self> {
        let worker_count = worker_plan(&seed.settings).len();
        let worker = Worker::new(seed.index, seed.counters, seed.shared);
        let settings = &seed.settings;
        // HTTP/2 is not built: with the upgrade switched off the engine takes its preface for what it is on
        // an HTTP/1 connection, a malformed request.
        let mut http1 = settings.http1.clone();
        http1.upgrade_to_http2 = false;
        let listeners = seed.listeners.into_iter().map(|listener| LocalListener {
            fd: Some(listener.fd),
            hosts: listener.hosts,
            tls: listener.tls,
            proxy_protocol: listener.proxy_protocol,
            is_unix: listener.is_unix,
        });
        let context = Context {
            site: Rc::new(LocalSite(seed.site)),
            http1: Arc::new(http1),
            server_field: settings.server_field(),
            handshake_timeout: settings.handshake_timeout,
            max_reroutes: settings.max_reroutes,
            temp_buffer_path: settings.temp_buffer_path.clone(),
            temp_buffer_threshold: settings.temp_buffer_threshold.unwrap_or(u64::MAX),
            budget: settings.budget,
            memory: MemoryAccount {
                used: 0.into(),
                limit: memory_share(settings, worker_count),
            },
            listeners: listeners.collect(),
            wakes: Arc::new(Wakes::default()),
            again: Vec::new().into(),
            scratch: Scratch::default(),
            worker,
        };
        let reactor = Reactor::new()?;
        for (index, listener) in context.listeners.iter().enumerate() {
            if let Some(fd) = &listener.fd {
                reactor.add_listener(fd, LISTENER_TOKENS | index as u64)?;
            }
        }
        let timers = Timers::new(context.worker.clock.now());
        Ok(Self {
            context,
            reactor,
            timers,
            slab: Slab::new(),
            generation: 0,
            mail: seed.mail,
            is_full: false,
            is_draining: false,
            ready: Vec::new(),
            tokens: Vec::new(),
            due: Vec::new(),
        })
    }

    /// One turn of the event loop. Ready when the worker has been told to end and its last connection has.
    fn poll_turn(&mut self, task: &mut TaskContext<'_>, sleep: &mut Pin<Box<Sleep>>) -> Poll<()> {
        self.context.worker.clock.begin_turn();
        self.context.wakes.set_task(task.waker());
        while let Poll::Ready(Some(mail)) = self.mail.poll_recv(task) {
            // What other threads ask for must not end the worker either.
            let _ = catch_unwind(AssertUnwindSafe(|| mail(&self.context.worker)));
        }
        if self.context.worker.shutting_down.get() && !self.is_draining {
            self.drain();
        }
        self.run_woken();
        let mut ready = std::mem::take(&mut self.ready);
        for round in 0.. {
            // The runtime has events of its own to look at.
            if round == ROUNDS {
                task.waker().wake_by_ref();
                break;
            }
            match self.reactor.poll_events(task, &mut ready) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    h2o_exchange::report!("[error] waiting for sockets failed: {}", reason(&error));
                    break;
                }
            }
            for event in ready.drain(..) {
                self.on_event(&event);
            }
            self.context.worker.clock.begin_turn();
        }
        self.ready = ready;
        if !self.slab.is_empty() || self.is_full {
            self.poll_timers(task, sleep);
        }
        if !self.context.again.borrow().is_empty() {
            task.waker().wake_by_ref();
        }
        if self.is_draining && self.slab.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn run_woken(&mut self) {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.append(&mut self.context.again.borrow_mut());
        self.context.wakes.take(&mut tokens);
        for token in tokens.drain(..) {
            self.run_connection(token, |connection, context| connection.run(context));
        }
        self.tokens = tokens;
    }

    fn on_event(&mut self, event: &Ready) {
        if event.token & LISTENER_TOKENS != 0 {
            self.accept(usize::try_from(event.token & !LISTENER_TOKENS).unwrap_or(usize::MAX));
        } else {
            self.run_connection(event.token, |connection, context| {
                connection.on_ready(context, event)
            });
        }
    }

    fn poll_timers(&mut self, task: &mut TaskContext<'_>, sleep: &mut Pin<Box<Sleep>>) {
        while sleep.as_mut().poll(task).is_ready() {
            let now = self.context.worker.clock.now();
            let mut due = std::mem::take(&mut self.due);
            self.timers.advance(now, &mut due);
            for key in due.drain(..) {
                let Some(connection) = self.slab.get(key as usize) else {
                    continue;
                };
                let token = connection.token;
                self.run_connection(token, |connection, context| {
                    connection.on_timeout(context, now)
                });
            }
            self.due = due;
            if self.is_full {
                self.set_full(false);
            }
            sleep
                .as_mut()
                .reset(tokio::time::Instant::from_std(now) + STEP);
        }
    }

    /// Runs one connection inside its fence: a panic ends that connection and nothing else.
    fn run_connection(&mut self, token: u64, run: impl FnOnce(&mut Connection, &Context) -> Fate) {
        let key = key_of(token);
        let Some(connection) = self
            .slab
            .get_mut(key as usize)
            .filter(|connection| connection.token == token)
        else {
            return;
        };
        let context = &self.context;
        let fate = catch_unwind(AssertUnwindSafe(|| run(connection, context)));
        match fate {
            Ok(Fate::Keep) => {
                connection.settle_account(context);
                self.timers.set(key, connection.deadline());
                if context.memory.is_exceeded() {
                    self.make_room();
                }
            }
            Ok(Fate::Close) => self.remove(key),
            Err(_) => {
                self.context.worker.counters.count(Counter::Panics);
                self.remove(key);
            }
        }
    }

    fn remove(&mut self, key: u32) {
        let mut connection = self.slab.remove(key as usize);
        // What is logged here may be what panicked before.
        let _ = catch_unwind(AssertUnwindSafe(|| connection.abandon()));
        let memory = &self.context.memory;
        memory.used.set(memory.used.get() - connection.charged());
        self.timers.set(key, None);
        self.context.worker.shared.connections.fetch_sub(1, Relaxed);
        if self.slab.is_empty() {
            self.slab.shrink_to_fit();
        }
        if self.is_full {
            self.set_full(false);
        }
    }

    /// `max-memory`: the connection that holds most goes first.
    fn make_room(&mut self) {
        while self.context.memory.is_exceeded() {
            let costliest = self
                .slab
                .iter()
                .max_by_key(|(_, connection)| connection.charged());
            let Some((key, _)) = costliest.filter(|(_, connection)| connection.charged() > 0)
            else {
                return;
            };
            self.context.worker.counters.count(Counter::MemoryClosed);
            self.remove(u32::try_from(key).unwrap_or(u32::MAX));
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPT_BATCH {
            let shared = Arc::clone(&self.context.worker.shared);
            if shared.connections() >= shared.max_connections {
                self.set_full(true);
                return;
            }
            let Some(listener) = self.context.listeners.get(index) else {
                return;
            };
            let Some(fd) = &listener.fd else { return };
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            let fd = match rustix::net::accept_with(fd, flags) {
                Ok(fd) => fd,
                Err(rustix::io::Errno::AGAIN) => return,
                // The client has given up already, or the network has.
                Err(
                    rustix::io::Errno::INTR
                    | rustix::io::Errno::CONNABORTED
                    | rustix::io::Errno::PROTO,
                ) => continue,
                Err(error) => {
                    // Out of descriptors or memory: let connections end before more are taken.
                    h2o_exchange::report!("[warning] accept failed: {error}");
                    self.set_full(true);
                    return;
                }
            };
            let socket = Socket::new(fd, listener.is_unix);
            self.add(index, socket);
            self.enforce_soft_limit(&shared);
        }
    }

    fn add(&mut self, listener: usize, socket: Socket) {
        let entry = self.slab.vacant_entry();
        let key = u64::try_from(entry.key()).unwrap_or(u64::MAX);
        // The top bit marks listeners.
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        let token = u64::from(self.generation) << 32 | key;
        if let Err(error) = self.reactor.add_connection(&socket, token) {
            h2o_exchange::report!(
                "[warning] a connection cannot be watched: {}",
                reason(&error)
            );
            return;
        }
        let id = CONNECTION_IDS.fetch_add(1, Relaxed);
        let now = self.context.worker.clock.now();
        entry.insert(Box::new(Connection::new(
            &self.context,
            token,
            id,
            listener,
            socket,
            now,
        )));
        self.context.worker.shared.connections.fetch_add(1, Relaxed);
        self.context.worker.counters.count(Counter::Sessions);
        // Listeners defer accepting, so the first octets are mostly there.
        self.run_connection(token, |connection, context| connection.run(context));
    }

    /// `soft-connection-limit`: each worker closes its share of the excess among idle connections.
    fn enforce_soft_limit(&mut self, shared: &Shared) {
        let Some(excess) = shared
            .connections()
            .checked_sub(shared.soft_connection_limit)
            .filter(|excess| *excess > 0)
        else {
            return;
        };
        let workers = shared.workers.get().map_or(1, Vec::len);
        let now = self.context.worker.clock.now();
        let is_old = |connection: &Connection| {
            connection.is_idle() && now - connection.accepted >= shared.soft_connection_min_age
        };
        let mut old: Vec<(std::time::Instant, usize)> = self
            .slab
            .iter()
            .filter(|(_, connection)| is_old(connection))
            .map(|(key, connection)| (connection.accepted, key))
            .collect();
        old.sort_unstable();
        for (_, key) in old.into_iter().take(excess.div_ceil(workers)) {
            self.context
                .worker
                .counters
                .count(Counter::ConnectionsIdleClosed);
            self.remove(u32::try_from(key).unwrap_or(u32::MAX));
        }
    }

    fn set_full(&mut self, is_full: bool) {
        if self.is_full == is_full || self.is_draining {
            return;
        }
        self.is_full = is_full;
        for (index, listener) in self.context.listeners.iter().enumerate() {
            let Some(fd) = &listener.fd else { continue };
            if is_full {
                self.reactor.remove_listener(fd);
            } else if let Err(error) = self
                .reactor
                .add_listener(fd, LISTENER_TOKENS | index as u64)
            {
                h2o_exchange::report!("[error] a listener cannot be watched: {}", reason(&error));
            }
        }
    }

    /// Stops accepting, and tells every connection that its next response is the last.
    fn drain(&mut self) {
        self.is_draining = true;
        for listener in &mut self.context.listeners {
            if let Some(fd) = listener.fd.take() {
                self.reactor.remove_listener(&fd);
            }
        }
        let keys: Vec<u64> = self
            .slab
            .iter()
            .map(|(_, connection)| connection.token)
            .collect();
        for token in keys {
            self.run_connection(token, |connection, context| {
                connection.shut_down();
                connection.run(context)
            });
        }
    }
}

/// Each worker's part of `max-memory`, octets.
fn memory_share(settings: &ServerSettings, workers: usize) -> usize {
    let share = settings
        .max_memory
        .map(|limit| limit / workers.max(1) as u64);
    share
        .and_then(|share| usize::try_from(share).ok())
        .unwrap_or(usize::MAX)
}

fn key_of(token: u64) -> u32 {
    u32::try_from(token & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}
