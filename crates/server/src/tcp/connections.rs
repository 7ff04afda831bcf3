//! The table of a worker's connections over TCP and Unix sockets; it also accepts new ones.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_exchange::{Address, Counter, Endpoint, TimerKey};
use h2o_log::reason;
use slab::Slab;

use crate::context::Context;
use crate::event::event_loop::ConnectionTable;
use crate::event::reactor::{Readiness, Registry};
use crate::event::socket::{Socket, address};
use crate::event::token::{ConnectionTokens, MAX_SLOT, SOCKET_BIT, slot_of, timer_event};
use crate::event::wake_queue::WakeTarget;
use crate::flow::Flow;
use crate::generation::{LocalGeneration, NextListener};
use crate::listener::LocalListener;
use crate::tcp::connection::Connection;

/// Largest number of connections that are accepted per event of a listening socket. `Embedded::turn` of the tests counts on it.
const ACCEPT_BATCH: usize = 10;
/// How long the worker accepts no connections after `accept` failed or `max-connections` was reached. The pause ends early when a
/// connection closes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Timer slot that stands for the end of the pause in accepting. The slots of connections are lower.
const ACCEPT_SLOT: u32 = MAX_SLOT;

/// The table of a worker's connections over TCP and Unix sockets.
pub(crate) struct Connections {
    context: Rc<Context>,
    registry: Registry,
    /// The listening sockets. Empty once graceful shutdown has begun.
    listeners: Slab<(OwnedFd, Rc<LocalListener>)>,
    slab: Slab<Box<Connection>>,
    /// Lowest event token of this table; its upper bits are the prefix of all tokens of the table.
    first_token: u64,
    tokens: ConnectionTokens,
    /// Whether accepting is paused: `max-connections` is reached, or file descriptors are short.
    is_full: bool,
    /// Timer that ends the pause in accepting.
    accept_timer: TimerKey,
}

impl Connections {
    /// Creates a table without connections, which accepts from the listeners of the first configuration of the worker.
    pub(crate) fn new(
        context: Rc<Context>,
        registry: Registry,
        first_token: u64,
        first: &mut LocalGeneration,
    ) -> Self {
        let accept_event = timer_event(first_token | u64::from(ACCEPT_SLOT));
        let mut table = Self {
            accept_timer: context.worker.timers.add(accept_event),
            context,
            registry,
            listeners: Slab::new(),
            slab: Slab::new(),
            first_token,
            tokens: ConnectionTokens::new(first_token),
            is_full: false,
        };
        table.adopt_listeners(first);
        table
    }

    /// Listens on the sockets of the next configuration, and closes the sockets whose listeners that configuration does not have.
    fn adopt_listeners(&mut self, next: &mut LocalGeneration) {
        let known: Vec<usize> = self.listeners.iter().map(|(index, _)| index).collect();
        let mut is_kept = vec![false; next.listeners.len()];
        for index in known {
            let Some((_, listener)) = self.listeners.get_mut(index) else {
                continue;
            };
            let same = |next: &NextListener| next.listener.endpoint == listener.endpoint;
            match next.listeners.iter().position(same) {
                Some(at) => {
                    *listener = Rc::clone(&next.listeners[at].listener);
                    is_kept[at] = true;
                }
                None => self.close_listener(index),
            }
        }
        for (next, is_kept) in next.listeners.iter_mut().zip(is_kept) {
            if is_kept || matches!(*next.listener.endpoint, Endpoint::Udp(_)) {
                continue;
            }
            let Some(socket) = next.socket.take() else {
                continue;
            };
            let index = self.listeners.insert((socket, Rc::clone(&next.listener)));
            if !self.is_full {
                self.watch_listener(index);
            }
        }
    }

    /// Accepts the connections that wait at a listening socket, and closes the socket.
    fn close_listener(&mut self, index: usize) {
        // Connections that are still in the accept queue are accepted first: the kernel would reset them when the socket is closed.
        while self.accept(index) {}
        if let Some((socket, _)) = self.listeners.try_remove(index) {
            self.registry.remove(&socket);
        }
    }

    fn watch_listener(&self, index: usize) {
        let Some((socket, _)) = self.listeners.get(index) else {
            return;
        };
        let token = self.listener_token(index);
        if let Err(error) = self.registry.add_listener(socket, token) {
            h2o_log::report!(
                error,
                "failed to add a listener to epoll, this thread accepts no more connections on it: {}",
                reason(&error)
            );
        }
    }

    const fn listener_token(&self, index: usize) -> u64 {
        self.first_token | SOCKET_BIT | index as u64
    }

    /// Runs one connection. A panic ends only that connection.
    fn run_connection(&mut self, token: u64, run: impl FnOnce(&mut Connection, &Context) -> Flow) {
        let key = slot_of(token);
        let Some(connection) = self
            .slab
            .get_mut(key as usize)
            .filter(|connection| connection.state.token == token)
        else {
            return;
        };
        let context = &self.context;
        let result = catch_unwind(AssertUnwindSafe(|| run(connection, context)));
        match result {
            Ok(Flow::Continue | Flow::Wait) => {
                connection.settle_account(context);
                if let Some(deadline) = connection.deadline()
                    && connection.state.timer_at.is_none_or(|at| deadline < at)
                {
                    connection.state.timer_at = Some(deadline);
                    (context.worker.timers).set(connection.state.timer, Some(deadline));
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
        // A second panic is caught, too: the log lines of the requests may be made from the same broken data.
        let _ = catch_unwind(AssertUnwindSafe(|| connection.abandon()));
        connection.close_account(&self.context);
        (self.context.worker.timers).remove(connection.state.timer);
        self.context.worker.shared.descriptors.end_client();
        if self.slab.is_empty() {
            self.slab.shrink_to_fit();
        }
        if self.is_full {
            self.set_full(false);
        }
    }

    /// Accepts a batch of connections at a listening socket. Returns whether more connections may be waiting.
    fn accept(&mut self, index: usize) -> bool {
        for _ in 0..ACCEPT_BATCH {
            let shared = Arc::clone(&self.context.worker.shared);
            let is_full = shared.connections() >= shared.limits.max();
            if is_full || !shared.descriptors.may_accept() {
                self.set_full(true);
                self.context.wanted.set(shared.connections() + 1);
                return false;
            }
            let Some((fd, listener)) = self.listeners.get(index) else {
                return false;
            };
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            // The peer's address comes from `accept` itself: `getpeername` fails if the client has reset the connection
            // since.
            let (fd, peer) = match rustix::net::acceptfrom_with(fd, flags) {
                Ok(accepted) => accepted,
                Err(rustix::io::Errno::AGAIN) => return false,
                // The client's connection was lost before it was accepted.
                Err(
                    rustix::io::Errno::INTR
                    | rustix::io::Errno::CONNABORTED
                    | rustix::io::Errno::PROTO,
                ) => continue,
                Err(error) => {
                    // The process is out of file descriptors or memory: it accepts no connections until some have closed.
                    h2o_log::report!(
                        warning,
                        "failed to accept a connection, trying again in 0.2 seconds: {error}"
                    );
                    self.set_full(true);
                    return false;
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
            let listener = Rc::clone(listener);
            self.add(listener, socket, peer);
            // Cached file metadata is checked again for the next client, because that client may know of a change made after the
            // last request was answered.
            self.context.worker.clock.begin_round();
        }
        true
    }

    fn add(&mut self, listener: Rc<LocalListener>, socket: Socket, peer: Address) {
        let entry = self.slab.vacant_entry();
        let Some(token) = self.tokens.next(entry.key()) else {
            return;
        };
        if let Err(error) = self.registry.add_connection(&socket, token) {
            h2o_log::report!(
                warning,
                "closed a new connection, failed to add it to epoll: {}",
                reason(&error)
            );
            return;
        }
        let now = self.context.worker.clock.now();
        let connection = Connection::new(&self.context, token, listener, socket, peer, now);
        connection.open_account(&self.context);
        entry.insert(Box::new(connection));
        self.context.worker.shared.descriptors.begin_client();
        self.context.worker.counters.count(Counter::Sessions);
        let shared = &self.context.worker.shared;
        let is_above = shared.connections() > shared.limits.soft();
        self.context.wanted.set(shared.connections());
        if is_above {
            // Above the soft limit, idle connections are closed before the new one runs.
            self.context.unfinished.borrow_mut().push(token);
        } else {
            // The connection is run at once: listeners use deferred accept, so that its first bytes have usually arrived.
            self.run_connection(token, |connection, context| connection.run(context));
        }
    }

    fn set_full(&mut self, is_full: bool) {
        if self.is_full == is_full {
            return;
        }
        self.is_full = is_full;
        let worker = &self.context.worker;
        let end = is_full.then(|| worker.clock.now() + ACCEPT_PAUSE);
        worker.timers.set(self.accept_timer, end);
        for (index, (socket, _)) in &self.listeners {
            if is_full {
                self.registry.remove(socket);
            } else {
                self.watch_listener(index);
            }
        }
    }

    /// The tokens of all connections.
    fn tokens(&self) -> Vec<u64> {
        let connections = self.slab.iter();
        connections
            .map(|(_, connection)| connection.state.token)
            .collect()
    }
}

impl ConnectionTable for Connections {
    fn on_ready(&mut self, event: &Readiness) {
        if event.token & SOCKET_BIT != 0 {
            // Events are level-triggered: if connections are left in the accept queue, the event is reported again.
            let _ = self.accept(slot_of(event.token) as usize);
        } else {
            self.run_connection(event.token, |connection, context| {
                connection.on_ready(context, event)
            });
        }
    }

    fn run(&mut self, token: u64) {
        self.run_connection(token, |connection, context| connection.run(context));
    }

    fn wake(&mut self, woken: &[WakeTarget]) {
        let Some(&(token, _)) = woken.first() else {
            return;
        };
        self.run_connection(token, |connection, context| {
            for &(_, stream) in woken {
                connection.wake(stream);
            }
            connection.run(context)
        });
    }

    fn on_timeout(&mut self, slot: u32, now: Instant) {
        if slot == ACCEPT_SLOT {
            self.set_full(false);
        } else if let Some(connection) = self.slab.get_mut(slot as usize) {
            connection.state.timer_at = None;
            let token = connection.state.token;
            self.run_connection(token, |connection, context| {
                connection.on_timeout(context, now)
            });
        }
    }

    fn len(&self) -> usize {
        self.slab.len()
    }

    fn drain(&mut self) {
        let listeners: Vec<usize> = self.listeners.iter().map(|(index, _)| index).collect();
        for index in listeners {
            // As when a reload closes a listener: who waits in the accept queue is served, and not reset.
            while self.accept(index) {}
        }
        for (fd, _) in self.listeners.drain() {
            self.registry.remove(&fd);
        }
        for token in self.tokens() {
            self.run_connection(token, |connection, context| {
                connection.shut_down();
                connection.run(context)
            });
        }
    }

    fn close_all(&mut self) {
        for token in self.tokens() {
            let key = slot_of(token);
            let Some(connection) = self.slab.get_mut(key as usize) else {
                continue;
            };
            // The close_notify alert tells TLS clients that the server has ended the connection, and not an attacker
            // (RFC 8446 §6.1).
            let _ = catch_unwind(AssertUnwindSafe(|| connection.state.io.close_notify()));
            self.remove(key);
        }
    }

    fn list_idle(&self, accepted_by: Instant, idle: &mut Vec<(Instant, u64)>) {
        let connections = self.slab.iter().map(|(_, connection)| connection);
        let old = connections
            .filter(|connection| connection.is_idle() && connection.state.accepted <= accepted_by);
        idle.extend(old.map(|connection| (connection.state.accepted, connection.state.token)));
    }

    fn close_idle(&mut self, token: u64) {
        let key = slot_of(token);
        let Some(connection) = self.slab.get_mut(key as usize) else {
            return;
        };
        if connection.is_multiplexed() {
            // In HTTP/2 the client gets GOAWAY, and requests that it has already sent are still served.
            self.run_connection(token, |connection, context| {
                connection.shut_down();
                connection.run(context)
            });
        } else {
            connection.state.io.close_notify();
            self.remove(key);
        }
    }

    fn costliest(&self) -> Option<(u64, usize)> {
        let connections = self.slab.iter();
        connections
            .map(|(_, connection)| (connection.state.token, connection.charged()))
            .filter(|(_, bytes)| *bytes > 0)
            .max_by_key(|(_, bytes)| *bytes)
    }

    fn evict(&mut self, token: u64) {
        self.context.worker.counters.count(Counter::MemoryClosed);
        self.remove(slot_of(token));
    }

    fn adopt(&mut self, next: &mut LocalGeneration) {
        self.adopt_listeners(next);
        for token in self.tokens() {
            let Some(connection) = self.slab.get_mut(slot_of(token) as usize) else {
                continue;
            };
            let listener = next.successor(&connection.state.listener);
            let ends = listener.is_closing && !connection.state.listener.is_closing;
            connection.state.listener = listener;
            if ends && connection.is_multiplexed() {
                self.run_connection(token, |connection, context| {
                    connection.shut_down();
                    connection.run(context)
                });
            }
        }
    }

    #[cfg(test)]
    fn run_all(&mut self) {
        for token in self.tokens() {
            self.run(token);
        }
    }
}

fn set_buffers(socket: &OwnedFd, (send, receive): (Option<usize>, Option<usize>)) {
    use rustix::net::sockopt;
    // A failure is ignored: the kernel clamps or refuses buffer sizes beyond its own limits.
    if let Some(size) = send {
        let _ = sockopt::set_socket_send_buffer_size(socket, size);
    }
    if let Some(size) = receive {
        let _ = sockopt::set_socket_recv_buffer_size(socket, size);
    }
}
