//! A worker's UDP sockets for HTTP/3 connections to backends. The task of a socket receives datagrams for all connections over it,
//! runs the connections that have something to do, and sends their datagrams.

use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use h2o_exchange::{Descriptor, SocketWatch, Timer, WatchedSocket, Worker};
use h2o_http3::{ErrorCode, PeerError};
use h2o_quic::udp::{self, ReceiveBuffers};
use h2o_quic::{
    ClientTls, ConnectError, ConnectionIndex, Datagram, Endpoint, EndpointConfig, Event, Received,
    SharedConnection, Transmit, TransportSettings,
};

use super::engine::{Handshake, Http3, receive_window};
use super::liveness::KEEP_ALIVE;
use crate::multiplexed::{Activity, Connection, Engine, State, StreamFailure, StreamSettings};

/// Limit of the batches of datagrams that are received per poll of the task.
const BATCHES: usize = 4;
/// Limit of the bytes that a connection sends per poll of the task; it sends more at the next poll.
const SEND_TURN: usize = 1024 * 1024;
/// If no packet arrives from a backend for this time, the connection counts as lost (RFC 9000 §10.1).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the unidirectional streams that a backend may open: three for HTTP/3, and some of unknown types (RFC 9114 §6.2).
const MAX_UNIDIRECTIONAL: u64 = 10;

/// Limit in bytes of the received QUIC datagrams (RFC 9221) that wait until they are dropped.
const DATAGRAM_BUFFER: usize = 2048;

/// The UDP sockets of a worker, opened at first use.
#[derive(Default)]
pub(crate) struct Sockets {
    ipv4: OnceCell<Rc<Socket>>,
    ipv6: OnceCell<Rc<Socket>>,
}

/// A UDP socket, as seen by code that opens connections and makes requests.
pub(super) struct Socket {
    endpoint: Rc<RefCell<Endpoint>>,
    /// The connections, indexed by [`ConnectionIndex`].
    entries: RefCell<Vec<Option<Entry>>>,
    /// Connections to which a request has given something to do.
    changed: Rc<RefCell<Vec<ConnectionIndex>>>,
    /// The waker of the socket's task, which is woken for new connections.
    task: RefCell<Option<Waker>>,
}

/// An HTTP/3 connection over the socket.
struct Entry {
    connection: Rc<Connection<Http3>>,
    activity: Activity,
    /// When the connection was last run, `made` bytes of frames had been made, and `read` bytes had been read from its streams.
    made: u64,
    read: u64,
    /// Whether a datagram was received for the connection in this poll of the socket's task.
    is_heard: bool,
    /// When the connection must be run next even if nothing is received or sent before: the time of its earliest timer.
    deadline: Option<Instant>,
    is_closing: bool,
}

/// The task of a UDP socket, which drives all connections over it.
struct Driver {
    socket: Rc<Socket>,
    udp: udp::UdpSocket,
    watch: WatchedSocket,
    io: UdpSocket,
    _descriptor: Descriptor,
    worker: Rc<Worker>,
    timer: Timer,
    buffers: ReceiveBuffers,
    batch: Vec<Datagram>,
    /// The connections that are to be run in this poll of the task.
    listed: Vec<ConnectionIndex>,
    buffer: Vec<u8>,
    /// Datagrams that the full socket has not taken.
    unsent: Option<(Transmit, Vec<u8>)>,
}

impl Sockets {
    /// The socket for connections to `remote`, which is opened if necessary.
    ///
    /// # Errors
    /// The kernel refuses the socket, or no file descriptor is left.
    pub(super) fn of(&self, worker: &Rc<Worker>, remote: SocketAddr) -> io::Result<&Rc<Socket>> {
        let (cell, local) = match remote {
            SocketAddr::V4(_) => (&self.ipv4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            SocketAddr::V6(_) => (&self.ipv6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        };
        if let Some(socket) = cell.get() {
            return Ok(socket);
        }
        let socket = Socket::open(worker, local)?;
        Ok(cell.get_or_init(|| socket))
    }
}

impl Socket {
    fn open(worker: &Rc<Worker>, local: SocketAddr) -> io::Result<Rc<Self>> {
        let descriptor = (worker.shared.descriptors.open()).ok_or_else(|| {
            io::Error::other("no file descriptor is left for a QUIC socket (RLIMIT_NOFILE)")
        })?;
        let io = UdpSocket::bind(local)?;
        let udp = udp::UdpSocket::new(&io)?;
        io.set_nonblocking(true)?;
        let watch = worker.local::<SocketWatch>().watch(io.as_fd())?;
        let endpoint = Endpoint::new(EndpointConfig::client(!udp.may_fragment()));
        let socket = Rc::new(Self {
            endpoint: Rc::new(RefCell::new(endpoint)),
            entries: RefCell::default(),
            changed: Rc::default(),
            task: RefCell::default(),
        });
        let mut driver = Driver {
            socket: Rc::clone(&socket),
            udp,
            watch,
            io,
            _descriptor: descriptor,
            worker: Rc::clone(worker),
            timer: Timer::new(&worker.timers),
            buffers: ReceiveBuffers::default(),
            batch: Vec::new(),
            listed: Vec::new(),
            buffer: Vec::new(),
            unsent: None,
        };
        worker.spawn(async move {
            poll_fn(|task| {
                driver.run(task);
                Poll::<()>::Pending
            })
            .await;
        });
        Ok(socket)
    }

    /// Begins to open a connection to a backend.
    ///
    /// # Errors
    /// No connection can be opened to that address, or with that name.
    pub(super) fn connect(
        &self,
        worker: &Worker,
        backend: usize,
        remote: SocketAddr,
        tls: ClientTls,
        settings: StreamSettings,
        ecn: bool,
    ) -> Result<Rc<Connection<Http3>>, ConnectError> {
        let now = worker.clock.now();
        let transport = TransportSettings {
            idle_timeout: IDLE_TIMEOUT,
            keep_alive: Some(KEEP_ALIVE),
            stream_receive_window: receive_window(settings.window).into(),
            max_streams_bidi: 0,
            max_streams_uni: MAX_UNIDIRECTIONAL,
            // Accepts QUIC datagrams, although none is expected: a backend may announce HTTP datagrams only if both sides accept
            // QUIC datagrams (RFC 9297 §2.1.1).
            datagram_receive_buffer: Some(DATAGRAM_BUFFER),
            ecn: ecn.into(),
            ..TransportSettings::default()
        };
        let index = (self.endpoint.borrow_mut()).connect(now, remote, tls, &transport)?;
        let quic = SharedConnection::new(Rc::clone(&self.endpoint), index);
        let engine = Http3::new(&settings, quic, Rc::clone(&self.changed), &worker.clock);
        let connection = Connection::new(settings, backend, Rc::clone(&worker.clock), engine);
        let connection = Rc::new(connection);
        let mut entries = self.entries.borrow_mut();
        if entries.len() <= index.0 {
            entries.resize_with(index.0 + 1, || None);
        }
        entries[index.0] = Some(Entry {
            connection: Rc::clone(&connection),
            activity: Activity::new(now),
            made: 0,
            read: 0,
            is_heard: false,
            deadline: Some(now),
            is_closing: false,
        });
        self.changed.borrow_mut().push(index);
        if let Some(task) = self.task.take() {
            task.wake();
        }
        Ok(connection)
    }
}

impl Driver {
    /// Does the work of one poll of the task: receives datagrams, then runs each connection that has something to do once, and
    /// sends its datagrams.
    fn run(&mut self, task: &mut Context<'_>) {
        let now = self.worker.clock.now();
        self.flush_unsent(task);
        self.receive(task, now);
        self.list_due(now);
        self.listed.append(&mut self.socket.changed.borrow_mut());
        self.listed.sort_unstable();
        self.listed.dedup();
        for index in std::mem::take(&mut self.listed) {
            self.run_connection(index, task, now);
        }
        let socket = Rc::clone(&self.socket);
        let entries = socket.entries.borrow();
        let deadlines = entries.iter().flatten().filter_map(|entry| entry.deadline);
        match deadlines.min() {
            Some(deadline) => self.timer.set(deadline),
            None => self.timer.clear(),
        }
        // The result is ignored: the call only registers the waker. Even a timer that is due fires later, from the worker's event
        // loop.
        let _ = self.timer.poll_fired(task);
        *socket.task.borrow_mut() = Some(task.waker().clone());
    }

    /// Receives datagrams that have arrived, and assigns them to connections.
    fn receive(&mut self, task: &mut Context<'_>, now: Instant) {
        for _ in 0..BATCHES {
            match self.poll_receive(task) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                // The error is about a datagram that was sent earlier. Datagrams may have arrived as well, and no event will
                // announce them, so the task runs again.
                Poll::Ready(Err(_)) => break,
            }
            let mut endpoint = self.socket.endpoint.borrow_mut();
            for datagram in self.batch.drain(..) {
                match endpoint.receive(now, datagram, &mut self.buffer) {
                    Received::Connection(index) => {
                        self.listed.push(index);
                        let mut entries = self.socket.entries.borrow_mut();
                        if let Some(Some(entry)) = entries.get_mut(index.0) {
                            entry.is_heard = true;
                        }
                    }
                    Received::Answered(transmit) => {
                        // If the answer is lost, the backend sends its datagram again.
                        let data = self.buffer.get(..transmit.len).unwrap_or_default();
                        let _ = self.udp.send(&self.io, &transmit, data);
                    }
                    Received::Accepted(_) | Received::Elsewhere(..) | Received::Ignored => {}
                }
            }
        }
        task.waker().wake_by_ref();
    }

    /// Receives one batch of datagrams.
    fn poll_receive(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.watch.poll_readable(task));
            let Self {
                io,
                udp,
                buffers,
                batch,
                ..
            } = self;
            match udp.receive(io, buffers, |datagram| batch.push(datagram)) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.watch.note_unreadable();
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Lists the connections whose timers are due, or whose clients may have sent more of a request.
    fn list_due(&mut self, now: Instant) {
        // The loop over all connections is short: there are a few per backend.
        for (index, entry) in self.socket.entries.borrow().iter().enumerate() {
            let Some(entry) = entry else { continue };
            let is_due = entry.deadline.is_some_and(|deadline| deadline <= now);
            if is_due || entry.connection.state.borrow().has_starved() {
                self.listed.push(ConnectionIndex(index));
            }
        }
    }

    fn run_connection(&mut self, index: ConnectionIndex, task: &mut Context<'_>, now: Instant) {
        let socket = Rc::clone(&self.socket);
        let mut entries = socket.entries.borrow_mut();
        let Some(slot) = entries.get_mut(index.0) else {
            return;
        };
        let Some(entry) = slot else { return };
        let connection = Rc::clone(&entry.connection);
        let state = &mut *connection.state.borrow_mut();
        // While the task runs, its own changes of the connection's state need not wake it.
        state.task = None;
        if std::mem::take(&mut entry.is_heard) {
            state.engine.liveness.on_received(now);
        }
        self.on_quic_timeout(index, now);
        // Before the events are taken: one of them may say that streams can be written to again.
        state.engine.quic.with(|quic| {
            let room = quic.send_room();
            quic.set_send_window(room);
        });
        if self.take_events(index, entry, state, now) {
            *slot = None;
            return;
        }
        if !entry.is_closing {
            let next = Self::advance(entry, state, task, now);
            match next {
                Ok(Some(next)) => entry.deadline = Some(next),
                Ok(None) => self.close(index, entry, state, ErrorCode::NO_ERROR, "", now),
                Err(error) => {
                    state.fail_all(StreamFailure::Protocol);
                    let (code, reason) = error.answer();
                    self.close(index, entry, state, code, reason, now);
                }
            }
        }
        self.send(index, task, now);
        let timeout = self.socket.endpoint.borrow_mut().timeout(index);
        entry.deadline = [entry.deadline.filter(|_| !entry.is_closing), timeout]
            .into_iter()
            .flatten()
            .min();
        state.task = Some(task.waker().clone());
    }

    fn on_quic_timeout(&self, index: ConnectionIndex, now: Instant) {
        let mut endpoint = self.socket.endpoint.borrow_mut();
        if endpoint.timeout(index).is_some_and(|at| at <= now) {
            endpoint.on_timeout(index, now);
        }
    }

    /// Processes the events of a QUIC connection. Returns whether the connection is drained, so that its entry can be deleted.
    fn take_events(
        &self,
        index: ConnectionIndex,
        entry: &mut Entry,
        state: &mut State<Http3>,
        now: Instant,
    ) -> bool {
        loop {
            let event = self.socket.endpoint.borrow_mut().poll_event(index);
            match event {
                None => return false,
                Some(Event::Drained) => return true,
                Some(Event::Connected) => {
                    let handshake = state.engine.quic.with(|quic| quic.handshake()).flatten();
                    if let Some(handshake) = handshake {
                        entry.connection.set_tls(handshake.tls.clone());
                    }
                    entry.activity.note(now);
                    // The event `Connected` brings no bytes of the backend, so it cannot report a violation of the protocol.
                    let _ = state.on_event(Event::Connected, now);
                }
                Some(event) => {
                    entry.is_closing |= matches!(event, Event::Closed(_));
                    if let Err(error) = state.on_event(event, now) {
                        state.fail_all(StreamFailure::Protocol);
                        let (code, reason) = error.answer();
                        self.close(index, entry, state, code, reason, now);
                    }
                }
            }
        }
    }

    /// Takes all steps that a connection can take now. Returns when to call this next; `None` if the connection is to be closed.
    fn advance(
        entry: &mut Entry,
        state: &mut State<Http3>,
        task: &mut Context<'_>,
        now: Instant,
    ) -> Result<Option<Instant>, PeerError> {
        while let Some(id) = state.engine.readable.pop() {
            state.read(id, now)?;
        }
        state.check_starved();
        state.pump(task, now);
        let made = state.engine.bytes_made();
        if std::mem::replace(&mut entry.made, made) != made {
            entry.activity.note(now);
            state.engine.liveness.on_sent(now);
        }
        let read = state.engine.bytes_read;
        if std::mem::replace(&mut entry.read, read) != read {
            entry.activity.note(now);
        }
        state.on_written(now);
        let mut next = entry.activity.check(state, now);
        if state.is_busy() && state.engine.handshake == Handshake::Done {
            let ends = state.engine.liveness.ends();
            if ends <= now {
                entry.connection.is_lost.set(true);
                return Ok(None);
            }
            next = next.map(|next| next.min(ends));
        }
        if !state.is_busy() {
            state.engine.shrink();
        }
        state.engine.flush();
        Ok(next)
    }

    /// Closes a connection with this error code and reason, and fails its requests.
    fn close(
        &self,
        index: ConnectionIndex,
        entry: &mut Entry,
        state: &mut State<Http3>,
        code: ErrorCode,
        reason: &str,
        now: Instant,
    ) {
        if !state.is_over {
            state.fail_all(StreamFailure::Io);
        }
        entry.is_closing = true;
        if let Some(quic) = self.socket.endpoint.borrow_mut().connection(index) {
            quic.close(now, code.0, reason.as_bytes());
        }
    }

    /// Sends the datagrams of a connection, as far as the socket takes them.
    fn send(&mut self, index: ConnectionIndex, task: &mut Context<'_>, now: Instant) {
        let mut sent = 0;
        while self.unsent.is_none() {
            if sent >= SEND_TURN {
                self.socket.changed.borrow_mut().push(index);
                task.waker().wake_by_ref();
                return;
            }
            self.buffer.clear();
            let segments = self.udp.max_segments();
            let transmit = (self.socket.endpoint.borrow_mut()).transmit(
                index,
                now,
                segments,
                &mut self.buffer,
            );
            let Some(transmit) = transmit else { return };
            sent += transmit.len;
            self.unsent = Some((transmit, std::mem::take(&mut self.buffer)));
            self.flush_unsent(task);
        }
        // The connection continues to send when the socket has room.
        self.socket.changed.borrow_mut().push(index);
    }

    /// Sends the datagrams that the full socket had not taken, if it takes them now.
    fn flush_unsent(&mut self, task: &mut Context<'_>) {
        let Some((transmit, data)) = self.unsent.take() else {
            return;
        };
        let bytes = data.get(..transmit.len).unwrap_or_default();
        loop {
            if self.watch.poll_writable(task).is_pending() {
                self.unsent = Some((transmit, data));
                return;
            }
            match self.udp.send(&self.io, &transmit, bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.watch.note_full(),
                // If sending fails, the datagram counts as lost in the network.
                Ok(()) | Err(_) => break,
            }
        }
        self.buffer = data;
    }
}

/// When the task ends, with the runtime or by a panic, the backends are told that the connections are closed, and all requests
/// fail, so that none keeps waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        let now = self.worker.clock.now();
        let Ok(entries) = self.socket.entries.try_borrow() else {
            return;
        };
        for (index, entry) in entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if let Ok(mut state) = entry.connection.state.try_borrow_mut() {
                state.fail_all(StreamFailure::Io);
            }
            let index = ConnectionIndex(index);
            let Ok(mut endpoint) = self.socket.endpoint.try_borrow_mut() else {
                return;
            };
            if let Some(quic) = endpoint.connection(index) {
                quic.close(now, ErrorCode::NO_ERROR.0, b"");
            }
            self.buffer.clear();
            if let Some(transmit) = endpoint.transmit(index, now, 1, &mut self.buffer) {
                let data = self.buffer.get(..transmit.len).unwrap_or_default();
                let _ = self.udp.send(&self.io, &transmit, data);
            }
        }
    }
}
