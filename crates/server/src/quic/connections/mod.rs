//! The table of a worker's QUIC connections: it receives datagrams from the UDP sockets, finds the connection of each, and sends
//! the connections' output.
//!
//! All datagrams of a turn are processed before any is answered: a connection runs once for all datagrams received for it, and its
//! output leaves in a few large system calls.

mod forwarding;
mod ports;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use h2o_exchange::{Address, Counter, LiveCounters, TimerKey};
use h2o_http3::ErrorCode;
use h2o_log::reason;
use h2o_quic::forward::{MAX_HOPS, is_forwarded};
use h2o_quic::udp::{ReceiveBuffers, UdpSocket};
use h2o_quic::{
    Admission, ConnectionIndex, Datagram, Endpoint as QuicEndpoint, Received, Transmit,
};
use h2o_tls::Resumption;
use slab::Slab;

use super::connection::QuicConnection;
use super::endpoint;
use super::endpoint::QuicShared;
use super::mail::{Mail, Mailbox};
use super::transport::Endpoints;
use crate::ServerSettings;
use crate::budget::Budget;
use crate::connection_state::ConnectionState;
use crate::context::{Context, per_turn};
use crate::event::event_loop::ConnectionTable;
use crate::event::reactor::{Readiness, Registry};
use crate::event::socket::{Socket, unmapped};
use crate::event::token::{ConnectionTokens, MAIL_BIT, MAX_SLOT, SOCKET_BIT, slot_of, timer_event};
use crate::event::wake_queue::WakeTarget;
use crate::flow::Flow;
use crate::generation::LocalGeneration;
use crate::io::Io;
use crate::listener::LocalListener;
use crate::site::quic_settings::QuicSettings;

/// Largest number of batches of datagrams that are received from a socket before the server sends its answers.
const BATCHES: usize = 4;
/// Largest number of bytes that a connection may send per turn of the event loop.
const SEND_TURN: usize = per_turn(256 * 1024);
/// Largest number of datagrams that are sent by one system call, if their lengths allow so many.
const MAX_SEGMENTS: usize = 64;
/// Timer slot of the periodic check for new keys for connection ids and tokens. The slots of connections are lower.
const KEY_SLOT: u32 = MAX_SLOT;
/// Interval of the check for new keys. It is shorter than the minute between the generation of a ticket key and its first use.
const KEY_INTERVAL: Duration = Duration::from_secs(20);
/// Stands for "no slot" in the list of slots of a socket.
const NO_SLOT: u32 = u32::MAX;

/// The table of a worker's QUIC connections.
pub(crate) struct QuicConnections {
    context: Rc<Context>,
    /// Timer of the check for new keys of connection ids and tokens.
    key_timer: TimerKey,
    registry: Registry,
    sockets: Slab<Port>,
    /// The QUIC endpoints, one for each socket.
    endpoints: Rc<Endpoints>,
    slab: Slab<Box<QuicConnection>>,
    /// Number of connections in the table that are not closed.
    open: usize,
    /// Lowest event token of this table; its upper bits are the prefix of all tokens of the table.
    first_token: u64,
    tokens: ConnectionTokens,
    /// Tokens of the connections to run in this turn.
    listed: Vec<u64>,
    is_draining: bool,
    /// Whether this worker has left datagrams in the sockets, because another generation of the server reads them.
    has_left_datagrams: bool,
    shared: QuicShared,
    settings: Arc<ServerSettings>,
    resumption: Arc<Resumption>,
    buffers: ReceiveBuffers,
    /// The datagrams of the batch that was received last.
    batch: Vec<Datagram>,
    /// Buffer for the datagrams to send next.
    buffer: Vec<u8>,
}

/// A UDP socket with its connections.
struct Port {
    socket: Rc<Socket>,
    udp: UdpSocket,
    endpoint: Rc<RefCell<QuicEndpoint>>,
    listener: Rc<LocalListener>,
    settings: Rc<QuicSettings>,
    address: SocketAddr,
    max_segments: usize,
    /// The slot in the table of each connection of the socket, by the connection's index in the QUIC endpoint.
    slots: Vec<u32>,
    /// Datagrams that the socket has refused because its buffer was full; they are sent first when there is room.
    unsent: Option<(Transmit, Vec<u8>)>,
    /// Tokens of the connections that must wait until `unsent` was sent; each is in the list once.
    blocked: Vec<u64>,
}

impl QuicConnections {
    /// Makes a table without connections, on the UDP sockets of the worker's first configuration.
    pub(crate) fn new(
        context: Rc<Context>,
        registry: Registry,
        first_token: u64,
        first: &mut LocalGeneration,
        shared: QuicShared,
    ) -> io::Result<Self> {
        let worker = &context.worker;
        let endpoints = Rc::<Endpoints>::default();
        let published = Rc::clone(&endpoints);
        (worker.local::<LiveCounters>()).add(move |counters| published.publish(counters));
        if let Some(mailbox) = shared.mailboxes.get(worker.index) {
            mailbox.set_waker(context.waker(first_token | MAIL_BIT, 0));
        }
        let mut table = Self {
            key_timer: (worker.timers).add(timer_event(first_token | u64::from(KEY_SLOT))),
            context,
            registry,
            sockets: Slab::new(),
            endpoints,
            slab: Slab::new(),
            open: 0,
            first_token,
            tokens: ConnectionTokens::new(first_token),
            listed: Vec::new(),
            is_draining: false,
            has_left_datagrams: false,
            shared,
            settings: Arc::clone(&first.settings),
            resumption: Arc::clone(&first.resumption),
            buffers: ReceiveBuffers::default(),
            batch: Vec::new(),
            buffer: Vec::new(),
        };
        table.adopt_listeners(first)?;
        Ok(table)
    }

    /// Processes the datagrams received by a socket, and runs the connections that they belong to.
    fn receive(&mut self, index: usize) {
        if self.shared.other_generations.is_silent() {
            self.has_left_datagrams = true;
            return;
        }
        let Some(port) = self.sockets.get(index) else {
            return;
        };
        let (socket, mut is_empty) = (Rc::clone(&port.socket), false);
        let mut batch = std::mem::take(&mut self.batch);
        let mut received = 0;
        for _ in 0..BATCHES {
            let Some(Port { udp, .. }) = self.sockets.get(index) else {
                break;
            };
            let result = udp.receive(&socket, &mut self.buffers, |datagram| batch.push(datagram));
            is_empty = match result {
                Ok(may_have_more) => !may_have_more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                // The kernel reports errors about datagrams that were sent earlier (ICMP). More datagrams may wait after them, so
                // the loop continues.
                Err(_) => {
                    is_empty = true;
                    continue;
                }
            };
            for datagram in batch.drain(..) {
                received += datagram.data.len();
                self.take_in(index, datagram, MAX_HOPS);
            }
            if is_empty {
                break;
            }
        }
        self.batch = batch;
        if received > 0 {
            let counters = &self.context.worker.counters;
            counters.add(Counter::BytesReceived, received as u64);
        }
        self.run_listed();
        if !is_empty {
            let token = self.first_token | SOCKET_BIT | index as u64;
            self.context.unfinished.borrow_mut().push(token);
        }
    }

    /// Passes a received datagram to its connection. `hops` is the number of times that the datagram may still be forwarded from
    /// server to server.
    fn take_in(&mut self, index: usize, datagram: Datagram, hops: u8) {
        if is_forwarded(&datagram.data) && self.is_from_node(index, datagram.remote) {
            self.take_forwarded(index, &datagram.data);
            return;
        }
        let node = self.node();
        if let Some(owner) = self.shared.other_generations.owner(node, &datagram.data) {
            self.hand_over(index, &owner, &datagram, hops);
            return;
        }
        let mut admission = self.admission();
        let Some(port) = self.sockets.get_mut(index) else {
            return;
        };
        if port.listener.is_closing {
            admission = Admission::Closed;
        }
        let now = self.context.worker.clock.now();
        let (remote, local, ecn) = (datagram.remote, datagram.local, datagram.ecn);
        let received = {
            let mut endpoint = port.endpoint.borrow_mut();
            endpoint.set_admission(admission);
            endpoint.receive(now, datagram, &mut self.buffer)
        };
        match received {
            Received::Connection(connection) => self.list(index, connection),
            Received::Accepted(connection) => {
                let local =
                    local.map_or(port.address, |ip| SocketAddr::new(ip, port.address.port()));
                self.add(index, connection, remote, local);
                self.list(index, connection);
            }
            Received::Answered(transmit) => {
                // An error is ignored: the effect is as if the answer (such as Retry or Version Negotiation) had been lost in the network,
                // and the client sends its datagram again.
                let data = &self.buffer[..transmit.len];
                if port.udp.send(&port.socket, &transmit, data).is_ok() {
                    let counters = &self.context.worker.counters;
                    counters.add(Counter::BytesSent, transmit.len as u64);
                }
            }
            Received::Elsewhere(placement, data) => {
                let datagram = Datagram {
                    remote,
                    local,
                    ecn,
                    data,
                };
                if self.forward(index, placement, datagram, hops) {
                    let counters = &self.context.worker.counters;
                    counters.count(Counter::QuicForwarded);
                }
            }
            Received::Ignored => {
                if admission == Admission::Full {
                    let context = &self.context;
                    context.wanted.set(context.worker.shared.connections() + 1);
                }
            }
        }
    }

    fn admission(&self) -> Admission {
        let shared = &self.context.worker.shared;
        if self.is_draining {
            Admission::Closed
        } else if self.context.memory.is_exceeded()
            || shared.connections() >= shared.limits.max()
            || shared.quic_connections.load(Relaxed)
                >= self.settings.max_quic_connections.unwrap_or(usize::MAX)
        {
            Admission::Full
        } else {
            Admission::Open
        }
    }

    fn add(
        &mut self,
        listener: usize,
        index: ConnectionIndex,
        remote: SocketAddr,
        local: SocketAddr,
    ) {
        let Some(port) = self.sockets.get_mut(listener) else {
            return;
        };
        let entry = self.slab.vacant_entry();
        let Some(token) = self.tokens.next(entry.key()) else {
            return;
        };
        if port.slots.len() <= index.0 {
            port.slots.resize(index.0 + 1, NO_SLOT);
        }
        port.slots[index.0] = slot_of(token);
        let context = &self.context;
        let state = ConnectionState {
            token,
            timer: context.worker.timers.add(timer_event(token)),
            timer_at: None,
            id: 0,
            accepted: context.worker.clock.now(),
            listener: Rc::clone(&port.listener),
            peer: Address::Ip(unmapped(remote)),
            // All connections share the UDP socket. The table of connections reads and writes its datagrams, so this `Io` does neither.
            io: Io::new(Rc::clone(&port.socket)),
            input: Vec::new(),
            is_quic_early: false,
            budget: Budget::new(port.listener.setup.budget),
            info: None,
        };
        let connection = entry.insert(Box::new(QuicConnection::new(
            context,
            state,
            Rc::clone(&port.endpoint),
            index,
            listener,
            Rc::clone(&port.settings),
            unmapped(local),
        )));
        connection.begin_trace();
        self.open += 1;
        let shared = &context.worker.shared;
        shared.quic_connections.fetch_add(1, Relaxed);
        context.wanted.set(shared.connections());
        context.worker.counters.count(Counter::Sessions);
    }

    /// Lists a connection to be run once all datagrams of the turn are processed.
    fn list(&mut self, listener: usize, index: ConnectionIndex) {
        let slots = self.sockets.get(listener).map(|port| &port.slots);
        let slot = slots.and_then(|slots| slots.get(index.0).copied());
        let connection = slot.and_then(|slot| self.slab.get_mut(slot as usize));
        if let Some(connection) = connection
            && !std::mem::replace(&mut connection.is_listed, true)
        {
            self.listed.push(connection.state.token);
        }
    }

    fn run_listed(&mut self) {
        let mut listed = std::mem::take(&mut self.listed);
        for token in listed.drain(..) {
            self.run_connection(token, |_, _| {});
        }
        self.listed = listed;
    }

    fn find(&mut self, token: u64) -> Option<&mut QuicConnection> {
        let connection = self.slab.get_mut(slot_of(token) as usize)?;
        (connection.state.token == token).then_some(&mut **connection)
    }

    /// Calls `prepare` on a connection, runs it, and sends its output. A panic ends that connection only.
    fn run_connection(&mut self, token: u64, prepare: impl FnOnce(&mut QuicConnection, &Context)) {
        let context = Rc::clone(&self.context);
        let Some(connection) = self.find(token) else {
            return;
        };
        connection.is_listed = false;
        let was_over = connection.is_over();
        let run = catch_unwind(AssertUnwindSafe(|| {
            prepare(connection, &context);
            connection.run(&context)
        }));
        let flow = run.unwrap_or_else(|_| {
            context.worker.counters.count(Counter::Panics);
            // A second panic is caught, too: the log lines of the requests may be made from the same broken data.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                connection.evict(context.worker.clock.now());
            }));
            Flow::Wait
        });
        self.settle(token, flow, was_over);
    }

    /// Sends the output of a connection, and sets its timer. If `flow` is [`Flow::Close`], the connection is removed.
    fn settle(&mut self, token: u64, flow: Flow, was_over: bool) {
        let context = Rc::clone(&self.context);
        if flow != Flow::Close {
            self.send(token);
            let now = context.worker.clock.now();
            let connection = self.find(token);
            if connection.is_some_and(|connection| connection.finish_close(now)) {
                self.send(token);
            }
        }
        let Some(connection) = self.find(token) else {
            return;
        };
        connection.write_trace(context.worker.clock.now());
        connection.settle_account(&context);
        let is_over = flow == Flow::Close || connection.is_over();
        if is_over && !was_over {
            // The connection no longer counts towards the limits of connections, so that another client may be accepted.
            self.open -= 1;
            let quic_connections = &context.worker.shared.quic_connections;
            quic_connections.fetch_sub(1, Relaxed);
        }
        if flow == Flow::Close {
            self.remove(token);
        } else if let Some(connection) = self.find(token) {
            let (timer, deadline) = (connection.state.timer, connection.deadline());
            context.worker.timers.set(timer, deadline);
        }
    }

    fn remove(&mut self, token: u64) {
        let mut connection = self.slab.remove(slot_of(token) as usize);
        let _ = catch_unwind(AssertUnwindSafe(|| connection.abandon()));
        connection.close_account(&self.context);
        self.context.worker.timers.remove(connection.state.timer);
        let slots = (self.sockets.get_mut(connection.listener)).map(|port| &mut port.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(connection.index.0)) {
            *slot = NO_SLOT;
        }
        self.close_if_unused(connection.listener);
        if self.slab.is_empty() {
            self.slab.shrink_to_fit();
        }
    }

    /// Sends the output of a connection, as far as the socket takes it.
    fn send(&mut self, token: u64) {
        let Some(connection) = self.slab.get_mut(slot_of(token) as usize) else {
            return;
        };
        let (index, listener) = (connection.index, connection.listener);
        let Some(port) = self.sockets.get_mut(listener) else {
            return;
        };
        if port.unsent.is_some() {
            if !std::mem::replace(&mut connection.waits_for_socket, true) {
                port.blocked.push(token);
            }
            return;
        }
        let socket_token = self.first_token | SOCKET_BIT | listener as u64;
        let now = self.context.worker.clock.now();
        let mut sent = 0;
        loop {
            if sent >= SEND_TURN {
                self.context.unfinished.borrow_mut().push(token);
                break;
            }
            self.buffer.clear();
            let transmit = port.endpoint.borrow_mut().transmit(
                index,
                now,
                port.max_segments,
                &mut self.buffer,
            );
            let Some(transmit) = transmit else { break };
            let data = &self.buffer[..transmit.len];
            match port.udp.send(&port.socket, &transmit, data) {
                Ok(()) => sent += transmit.len,
                // If the socket cannot be watched, the datagram counts as lost, too.
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && (self.registry)
                            .watch_output(&*port.socket, socket_token, true)
                            .is_ok() =>
                {
                    port.unsent = Some((transmit, std::mem::take(&mut self.buffer)));
                    connection.waits_for_socket = true;
                    port.blocked.push(token);
                    break;
                }
                // A failed datagram counts as lost in the network.
                Err(_) => sent += transmit.len,
            }
        }
        if sent > 0 {
            let counters = &self.context.worker.counters;
            counters.add(Counter::BytesSent, sent as u64);
        }
    }

    /// Called when a socket is writable again.
    fn on_writable(&mut self, index: usize) {
        let Some(port) = self.sockets.get_mut(index) else {
            return;
        };
        let Some((transmit, data)) = port.unsent.take() else {
            return;
        };
        let token = self.first_token | SOCKET_BIT | index as u64;
        let result = port.udp.send(&port.socket, &transmit, &data);
        if let Err(error) = result
            && error.kind() == io::ErrorKind::WouldBlock
        {
            port.unsent = Some((transmit, data));
            return;
        }
        // The result is ignored: the call fails only for a socket that is not watched, and then costs some needless events.
        let _ = (self.registry).watch_output(&*port.socket, token, false);
        for token in std::mem::take(&mut port.blocked) {
            if let Some(connection) = self.find(token) {
                connection.waits_for_socket = false;
            }
            self.run_connection(token, |_, _| {});
        }
    }

    /// Processes datagrams that other workers have received for connections of this worker.
    fn take_mail(&mut self) {
        let mailbox = self.shared.mailboxes.get(self.context.worker.index);
        let mail = mailbox.map(Mailbox::take).unwrap_or_default();
        for mail in mail {
            match mail {
                Mail::Received {
                    listener,
                    datagram,
                    hops,
                } => {
                    let counters = &self.context.worker.counters;
                    counters.count(Counter::QuicForwardedReceived);
                    let mut sockets = self.sockets.iter();
                    let meant = sockets.find(|(_, port)| port.listener.id == listener);
                    if let Some((index, _)) = meant {
                        self.take_in(index, datagram, hops);
                    }
                }
                Mail::Wrapped(wrapped) => {
                    let any = self.sockets.iter().next().map(|(index, _)| index);
                    if let Some(index) = any {
                        self.take_forwarded(index, &wrapped);
                    }
                }
            }
        }
        self.run_listed();
        if self.has_left_datagrams && !self.shared.other_generations.is_silent() {
            self.has_left_datagrams = false;
            let sockets: Vec<usize> = self.sockets.iter().map(|(index, _)| index).collect();
            for index in sockets {
                self.receive(index);
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

impl ConnectionTable for QuicConnections {
    fn on_ready(&mut self, event: &Readiness) {
        let index = slot_of(event.token) as usize;
        if event.writable {
            self.on_writable(index);
        }
        if event.readable {
            self.receive(index);
        }
    }

    fn run(&mut self, token: u64) {
        if token & SOCKET_BIT != 0 {
            self.receive(slot_of(token) as usize);
        } else {
            self.run_connection(token, |_, _| {});
        }
    }

    fn wake(&mut self, woken: &[WakeTarget]) {
        let Some(&(token, _)) = woken.first() else {
            return;
        };
        if token == self.first_token | MAIL_BIT {
            self.take_mail();
            return;
        }
        self.run_connection(token, |connection, _| {
            for &(_, stream) in woken {
                connection.wake(stream);
            }
        });
    }

    fn on_timeout(&mut self, slot: u32, now: Instant) {
        if slot == KEY_SLOT {
            let keys = endpoint::keys(&self.resumption);
            for (_, port) in &self.sockets {
                port.endpoint.borrow_mut().set_keys(&keys);
            }
            self.plan_keys();
            return;
        }
        if let Some(connection) = self.slab.get(slot as usize) {
            let token = connection.state.token;
            self.run_connection(token, |connection, context| {
                connection.on_timeout(context, now);
            });
        }
    }

    fn len(&self) -> usize {
        self.open
    }

    fn drain(&mut self) {
        // The sockets stay open until the last connection has closed, but new connections are refused.
        self.is_draining = true;
        for token in self.tokens() {
            self.run_connection(token, |connection, _| connection.shut_down());
        }
    }

    fn close_all(&mut self) {
        for token in self.tokens() {
            self.run_connection(token, |connection, context| {
                connection.abandon();
                connection.close(context.worker.clock.now(), ErrorCode::NO_ERROR.0);
            });
        }
    }

    fn list_idle(&self, accepted_by: Instant, idle: &mut Vec<(Instant, u64)>) {
        let connections = self.slab.iter().map(|(_, connection)| connection);
        let old = connections
            .filter(|connection| connection.is_idle() && connection.state.accepted <= accepted_by);
        idle.extend(old.map(|connection| (connection.state.accepted, connection.state.token)));
    }

    fn close_idle(&mut self, token: u64) {
        self.run_connection(token, |connection, _| connection.shut_down());
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
        self.run_connection(token, |connection, context| {
            connection.evict(context.worker.clock.now());
        });
    }

    fn adopt(&mut self, next: &mut LocalGeneration) {
        if let Err(error) = self.adopt_listeners(next) {
            h2o_log::report!(
                error,
                "failed to set up a socket for QUIC, this thread does not serve QUIC: {}",
                reason(&error)
            );
        }
        for token in self.tokens() {
            let Some(connection) = self.find(token) else {
                continue;
            };
            let listener = next.successor(&connection.state.listener);
            let ends = listener.is_closing && !connection.state.listener.is_closing;
            connection.state.listener = listener;
            if ends {
                self.run_connection(token, |connection, _| connection.shut_down());
            }
        }
        let known: Vec<usize> = self.sockets.iter().map(|(index, _)| index).collect();
        for index in known {
            self.close_if_unused(index);
        }
    }

    #[cfg(test)]
    fn run_all(&mut self) {
        let now = self.context.worker.clock.now();
        for token in self.tokens() {
            // A timer may fire a little late: a connection whose deadline has passed is not run here, because its timer will run
            // it.
            let deadline = self
                .find(token)
                .and_then(|connection| connection.deadline());
            if deadline.is_none_or(|at| at > now) {
                self.run(token);
            }
        }
    }
}
