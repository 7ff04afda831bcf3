//! The connections of one worker, and the turns of its event loop.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context as TaskContext, Poll};

use h2o_exchange::{Address, Counter, HostTable, LocalSite, Shared, Worker, WorkerTask};
use slab::Slab;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Sleep;

use crate::context::{Context, Http2Limits, LocalListener, MemoryAccount, Scratch};
use crate::event::reactor::{Reactor, Ready};
use crate::event::socket::{Socket, address};
use crate::event::timers::{STEP, Timers};
use crate::event::wake_queue::{WakeQueue, Woken};
use crate::flow::Flow;
use crate::site::settings::{SendInformational, ServerSettings};
use crate::splice::Pipes;
use crate::tcp::connection::Connection;
use crate::worker::{WorkerConfig, worker_plan};
use h2o_log::reason;

/// Connections accepted per event of a listener.
const ACCEPT_BATCH: usize = 10;
/// Events after which a new turn begins and the clock is read anew: under load about two thousand times a second.
const TURN_EVENTS: usize = 64;
/// Batches of events handled before the runtime gets its turn.
const ROUNDS: u32 = 8;
/// Tokens from here on are listeners.
const LISTENER_TOKENS: u64 = 1 << 63;

/// The connections of a worker with all that moves them.
pub(crate) struct Connections {
    context: Context,
    reactor: Reactor,
    timers: Timers,
    slab: Slab<Box<Connection>>,
    /// Distinguishes connections that use one slot of the slab after another.
    generation: u32,
    mail: UnboundedReceiver<WorkerTask>,
    /// True while the listeners are not watched, as `max-connections` is reached.
    is_full: bool,
    is_draining: bool,
    ready: Vec<Ready>,
    woken: Vec<Woken>,
    due: Vec<u32>,
}

impl Connections {
    pub(crate) fn new(config: WorkerConfig) -> io::Result<Self> {
        let worker_count = worker_plan(&config.settings).len();
        let worker = Worker::new(config.index, config.counters, config.shared);
        let settings = &config.settings;
        let site = config.site;
        let listeners = config.listeners.into_iter().map(|listener| LocalListener {
            fd: listener.fd,
            hosts: HostTable::new(&site.hosts, &listener.hosts),
            tls: listener.tls,
            origins: listener.origins,
            proxy_protocol: listener.proxy_protocol,
            is_unix: listener.is_unix,
            unix_buffers: listener.unix_buffers,
        });
        let listeners = listeners.collect();
        let context = Context {
            site: Rc::new(LocalSite(site)),
            http1: Arc::new(settings.http1.clone()),
            http2: http2_limits(settings),
            sends_informational: settings.send_informational != SendInformational::None,
            informs_http1: settings.send_informational == SendInformational::All,
            server_field: settings.server_field(),
            handshake_timeout: settings.handshake_timeout,
            temp_buffer_threshold: settings.temp_buffer_threshold.unwrap_or(u64::MAX),
            temp_buffer_max_size: settings.temp_buffer_max_size,
            budget: settings.budget,
            memory: MemoryAccount {
                used: 0.into(),
                limit: memory_share(settings, worker_count),
            },
            listeners,
            wakes: Arc::new(WakeQueue::default()),
            again: Vec::new().into(),
            scratch: Scratch::default(),
            pipes: Pipes::new(settings.max_spare_pipes),
            actives: RefCell::default(),
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
            mail: config.mail,
            is_full: false,
            is_draining: false,
            ready: Vec::new(),
            woken: Vec::new(),
            due: Vec::new(),
        })
    }

    /// One turn of the event loop. Ready when the worker has been told to end and its last connection has.
    pub(crate) fn poll_turn(
        &mut self,
        task: &mut TaskContext<'_>,
        sleep: &mut Pin<Box<Sleep>>,
    ) -> Poll<()> {
        self.context.worker.clock.begin_turn();
        self.context.wakes.set_task(task.waker());
        while let Poll::Ready(Some(mail)) = self.mail.poll_recv(task) {
            // What other threads ask for must not end the worker either.
            let _ = catch_unwind(AssertUnwindSafe(|| mail(&self.context.worker)));
        }
        if self.context.worker.shutting_down.get() && !self.is_draining {
            self.drain();
        }
        if self.context.worker.closing.get() {
            self.close_all();
        }
        self.run_woken();
        let mut ready = std::mem::take(&mut self.ready);
        let mut handled = 0;
        for round in 0.. {
            let polled = if round == 0 {
                self.reactor.poll_events(task, &mut ready)
            } else if round == ROUNDS {
                // The runtime has events of its own to look at.
                task.waker().wake_by_ref();
                break;
            } else {
                match self.reactor.take_more(&mut ready) {
                    Ok(true) => Poll::Ready(Ok(())),
                    // Asks the runtime to ring for the next one.
                    Ok(false) => self.reactor.poll_events(task, &mut ready),
                    Err(error) => Poll::Ready(Err(error)),
                }
            };
            match polled {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    h2o_log::report!(error, "waiting for sockets failed: {}", reason(&error));
                    break;
                }
            }
            handled += ready.len();
            for event in ready.drain(..) {
                self.on_event(&event);
            }
            if handled >= TURN_EVENTS {
                handled = 0;
                self.context.worker.clock.begin_turn();
            } else {
                // A client may have changed a file between the last answer and its next request.
                self.context.worker.clock.begin_round();
            }
        }
        self.ready = ready;
        if !self.slab.is_empty() || self.is_full {
            self.poll_timers(task, sleep);
        }
        if !self.context.again.borrow().is_empty() {
            task.waker().wake_by_ref();
        }
        self.context.worker.clock.end_turn();
        if self.is_draining && self.slab.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Runs every connection, whether or not anything has happened on it.
    #[cfg(test)]
    pub(crate) fn run_all(&mut self) {
        let tokens: Vec<u64> = self
            .slab
            .iter()
            .map(|(_, connection)| connection.state.token)
            .collect();
        for token in tokens {
            self.run_connection(token, |connection, context| connection.run(context));
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.slab.len()
    }

    /// The numbers that requests in progress have for paths.
    #[cfg(test)]
    pub(crate) fn live(&self) -> Vec<usize> {
        let mut live = Vec::new();
        self.context.worker.each_live(|exchange| {
            let path = String::from_utf8_lossy(exchange.request.path());
            live.extend(path.trim_start_matches('/').parse::<usize>());
        });
        live
    }

    /// Octets of memory on the account, and in temporary files.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, u64) {
        let files = &self.context.worker.shared.temp_files;
        (self.context.memory.used.get(), files.used())
    }

    fn run_woken(&mut self) {
        for token in self.context.again.take() {
            self.run_connection(token, |connection, context| connection.run(context));
        }
        let mut woken = std::mem::take(&mut self.woken);
        self.context.wakes.take(&mut woken);
        // What several streams of a connection have to send goes out together.
        woken.sort_by_key(|&(token, _)| token);
        for streams in woken.chunk_by(|one, next| one.0 == next.0) {
            self.run_connection(streams[0].0, |connection, context| {
                for &(_, stream) in streams {
                    connection.wake(stream);
                }
                connection.run(context)
            });
        }
        woken.clear();
        self.woken = woken;
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
                let token = connection.state.token;
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
    fn run_connection(&mut self, token: u64, run: impl FnOnce(&mut Connection, &Context) -> Flow) {
        let key = key_of(token);
        let Some(connection) = self
            .slab
            .get_mut(key as usize)
            .filter(|connection| connection.state.token == token)
        else {
            return;
        };
        let context = &self.context;
        let fate = catch_unwind(AssertUnwindSafe(|| run(connection, context)));
        match fate {
            Ok(Flow::Continue | Flow::Wait) => {
                connection.settle_account(context);
                self.timers.set(key, connection.deadline(context));
                if context.memory.is_exceeded() {
                    self.make_room();
                }
            }
            Ok(Flow::Close) => self.remove(key),
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
        connection.close_account(&self.context);
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
                // Nobody else would: it is done on accept.
                self.make_way(&shared);
                return;
            }
            let Some(listener) = self.context.listeners.get(index) else {
                return;
            };
            let Some(fd) = &listener.fd else { return };
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            // The address comes with the connection: a client that has reset it already has none any more.
            let (fd, peer) = match rustix::net::acceptfrom_with(fd, flags) {
                Ok(accepted) => accepted,
                Err(rustix::io::Errno::AGAIN) => return,
                // The client has given up already, or the network has.
                Err(
                    rustix::io::Errno::INTR
                    | rustix::io::Errno::CONNABORTED
                    | rustix::io::Errno::PROTO,
                ) => continue,
                Err(error) => {
                    // Out of descriptors or memory: let connections end before more are taken.
                    h2o_log::report!(warning, "accept failed: {error}");
                    self.set_full(true);
                    return;
                }
            };
            let peer = if listener.is_unix {
                set_buffers(&fd, listener.unix_buffers);
                Some(Address::Unix)
            } else {
                address(peer)
            };
            let Some(peer) = peer else { continue };
            let socket = Socket::new(fd, listener.is_unix);
            self.make_way(&shared);
            self.add(index, socket, peer);
            // Who comes next may know of changes made since the last one was answered.
            self.context.worker.clock.begin_round();
        }
    }

    fn add(&mut self, listener: usize, socket: Socket, peer: Address) {
        let entry = self.slab.vacant_entry();
        let key = u64::try_from(entry.key()).unwrap_or(u64::MAX);
        // The top bit marks listeners.
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        let token = u64::from(self.generation) << 32 | key;
        if let Err(error) = self.reactor.add_connection(&socket, token) {
            h2o_log::report!(
                warning,
                "a connection cannot be watched: {}",
                reason(&error)
            );
            return;
        }
        let now = self.context.worker.clock.now();
        let connection = Connection::new(&self.context, token, listener, socket, peer, now);
        connection.open_account(&self.context);
        entry.insert(Box::new(connection));
        self.context.worker.shared.connections.fetch_add(1, Relaxed);
        self.context.worker.counters.count(Counter::Sessions);
        // Listeners defer accepting, so the first octets are mostly there.
        self.run_connection(token, |connection, context| connection.run(context));
    }

    /// `soft-connection-limit`: a connection more is about to be taken, and each worker closes its share of the excess among
    /// idle ones.
    fn make_way(&mut self, shared: &Shared) {
        let excess = (shared.connections() + 1).saturating_sub(shared.soft_connection_limit);
        if excess == 0 {
            return;
        }
        let workers = shared.workers.get().map_or(1, Vec::len);
        let now = self.context.worker.clock.now();
        let is_old = |connection: &Connection| {
            connection.is_idle()
                && now - connection.state.accepted >= shared.soft_connection_min_age
        };
        let mut old: Vec<(std::time::Instant, usize)> = self
            .slab
            .iter()
            .filter(|(_, connection)| is_old(connection))
            .map(|(key, connection)| (connection.state.accepted, key))
            .collect();
        old.sort_unstable();
        for (_, key) in old.into_iter().take(excess.div_ceil(workers)) {
            self.context
                .worker
                .counters
                .count(Counter::ConnectionsIdleClosed);
            let Some(connection) = self.slab.get_mut(key) else {
                continue;
            };
            if connection.is_multiplexed() {
                // The client is told, and may finish what it has begun meanwhile.
                let token = connection.state.token;
                self.run_connection(token, |connection, context| {
                    connection.shut_down();
                    connection.run(context)
                });
            } else {
                connection.state.io.close_notify();
                self.remove(u32::try_from(key).unwrap_or(u32::MAX));
            }
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
                h2o_log::report!(error, "a listener cannot be watched: {}", reason(&error));
            }
        }
    }

    /// Closes every connection, whatever it does.
    fn close_all(&mut self) {
        let keys: Vec<usize> = self.slab.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(connection) = self.slab.get_mut(key) else {
                continue;
            };
            // TLS clients can tell this end from one that somebody in between made.
            let _ = catch_unwind(AssertUnwindSafe(|| connection.state.io.close_notify()));
            self.remove(u32::try_from(key).unwrap_or(u32::MAX));
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
            .map(|(_, connection)| connection.state.token)
            .collect();
        for token in keys {
            self.run_connection(token, |connection, context| {
                connection.shut_down();
                connection.run(context)
            });
        }
    }
}

fn set_buffers(socket: &OwnedFd, (send, receive): (Option<usize>, Option<usize>)) {
    use rustix::net::sockopt;
    // Sizes are wishes: the kernel has limits of its own.
    if let Some(size) = send {
        let _ = sockopt::set_socket_send_buffer_size(socket, size);
    }
    if let Some(size) = receive {
        let _ = sockopt::set_socket_recv_buffer_size(socket, size);
    }
}

fn http2_limits(settings: &ServerSettings) -> Http2Limits {
    let http2 = &settings.http2;
    Http2Limits {
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
