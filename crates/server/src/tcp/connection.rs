//! One TCP or Unix connection: PROXY header and TLS handshake, then HTTP, then the lingering close.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::{Address, Counter};
use h2o_http::Scheme;
use h2o_log::{LineLimit, reason, report};

use crate::budget::Budget;
use crate::connection_state::{ConnectionState, ConnectionStatus, HttpVersion};
use crate::context::{Context, per_turn};
use crate::event::reactor::Readiness;
use crate::event::socket::Socket;
use crate::event::token::timer_event;
use crate::flow::{Flow, Turn};
use crate::http1::Http1;
use crate::http2::Http2;
use crate::io::{Io, Read};
use crate::listener::LocalListener;
use crate::request::SlotId;
use crate::site::listen::ProxyProtocol;
use crate::tcp::proxy_protocol::{self, ParseResult};
use h2o_tls::TlsError;

/// Lingering close: after its last byte the server keeps reading until the client has been silent for this long. If it closed at
/// once, the kernel would answer further input from the client with a reset, and the client might lose the response.
const LINGER_SILENCE: Duration = Duration::from_secs(2);
/// Longest duration of a lingering close.
const LINGER: Duration = Duration::from_secs(30);
/// Largest number of bytes that a lingering close reads and drops in all.
const LINGER_BYTES: usize = 64 * 1024 * 1024;
/// Largest number of bytes that a lingering close reads and drops per turn of the connection.
const LINGER_TURN: usize = per_turn(1024 * 1024);

/// Limits the number of lines about failed handshakes in the error log, since clients can cause any number of failures.
static FAILED_HANDSHAKES: LineLimit = LineLimit::per_minute(20);

/// One connection of a worker over TCP or a Unix socket.
pub(crate) struct Connection {
    pub(crate) state: ConnectionState,
    /// Number of bytes that the worker's memory account holds for this connection.
    charged: usize,
    /// The state (such as idle or active) under which the worker counts this connection.
    status: ConnectionStatus,
    phase: Phase,
}

enum Phase {
    /// The connection waits for the PROXY header and the TLS handshake. The HTTP engine is created afterwards.
    Opening {
        until: Instant,
        expects_proxy_header: bool,
    },
    Http1(Box<Http1>),
    Http2(Box<Http2>),
    /// The server has sent all its output, and still reads and drops what the client sends.
    Lingering {
        until: Instant,
        end: Instant,
        left: usize,
    },
}

impl Connection {
    pub(crate) fn new(
        context: &Context,
        token: u64,
        listener: Rc<LocalListener>,
        socket: Socket,
        peer: Address,
        now: Instant,
    ) -> Self {
        let mut io = Io::new(Rc::new(socket));
        let expects_proxy_header = listener.proxy_protocol != ProxyProtocol::Off;
        let (status, phase) = if expects_proxy_header || listener.tls.is_some() {
            if !expects_proxy_header {
                io.tls = listener
                    .tls
                    .as_ref()
                    .map(|slot| Box::new(slot.current().accept()));
            }
            let phase = Phase::Opening {
                until: now + listener.setup.handshake_timeout,
                expects_proxy_header,
            };
            (ConnectionStatus::Opening, phase)
        } else {
            let http1 = Http1::new(context, &listener.setup, Scheme::Http, now);
            let status = ConnectionStatus::Active(HttpVersion::Http1);
            (status, Phase::Http1(Box::new(http1)))
        };
        let budget = Budget::new(listener.setup.budget);
        let mut connection = Self {
            state: ConnectionState {
                token,
                timer: context.worker.timers.add(timer_event(token)),
                timer_at: None,
                id: 0,
                accepted: now,
                listener,
                peer,
                io,
                input: Vec::new(),
                is_quic_early: false,
                budget,
                info: None,
            },
            charged: 0,
            status,
            phase,
        };
        if matches!(connection.phase, Phase::Http1(_)) {
            connection.state.take_number();
        }
        connection
    }

    /// Runs the connection after an event of its socket.
    pub(crate) fn on_ready(&mut self, context: &Context, ready: &Readiness) -> Flow {
        if let ConnectionStatus::Idle(version) = self.status {
            // Updates the counters before the run, so that a client that requests the status page sees its own
            // connection as active.
            self.status.set(context, ConnectionStatus::Active(version));
        }
        self.state.io.on_ready(ready);
        self.run(context)
    }

    /// Runs the connection until it has to wait for an event, or ends.
    pub(crate) fn run(&mut self, context: &Context) -> Flow {
        let flow = loop {
            let now = context.worker.clock.now();
            if self.state.io.is_early() && self.continue_handshake(context, now) == Flow::Close {
                break Flow::Close;
            }
            match &mut self.phase {
                Phase::Opening { .. } => match self.open(context, now) {
                    Flow::Continue => {}
                    Flow::Wait => return Flow::Wait,
                    Flow::Close => break Flow::Close,
                },
                Phase::Http1(http1) => {
                    let mut turn = Turn::new(context, &mut self.state);
                    let flow = http1.run(&mut turn);
                    turn.end();
                    match flow {
                        Flow::Continue | Flow::Wait => break Flow::Wait,
                        Flow::Close => match http1.take_successor() {
                            Some(http2) => self.phase = Phase::Http2(http2),
                            None => match self.end(now) {
                                Flow::Continue | Flow::Wait => {}
                                Flow::Close => break Flow::Close,
                            },
                        },
                    }
                }
                Phase::Http2(http2) => {
                    let mut turn = Turn::new(context, &mut self.state);
                    let flow = http2.run(&mut turn);
                    turn.end();
                    match flow {
                        Flow::Continue | Flow::Wait => break Flow::Wait,
                        Flow::Close => match self.end(now) {
                            Flow::Continue | Flow::Wait => {}
                            Flow::Close => break Flow::Close,
                        },
                    }
                }
                Phase::Lingering { .. } => break self.linger(context),
            }
        };
        // With many connections open, an idle connection in clear text drops `info`, which is built again when a handler or log asks for
        // it.
        if self.state.io.tls.is_none()
            && self.state.info.is_some()
            && self.is_idle()
            && context.has_many_connections()
        {
            self.state.info = None;
        }
        flow
    }

    /// Reads the PROXY header, or continues the TLS handshake.
    fn open(&mut self, context: &Context, now: Instant) -> Flow {
        let Phase::Opening {
            expects_proxy_header,
            ..
        } = &mut self.phase
        else {
            return Flow::Continue;
        };
        let local = Rc::clone(&self.state.listener);
        if *expects_proxy_header {
            match self.state.io.read(context, &mut self.state.input) {
                Ok(Read::Data) => {}
                Ok(Read::Blocked) => return Flow::Wait,
                Ok(Read::Eof) | Err(_) => return Flow::Close,
            }
            let taken = match proxy_protocol::parse(&self.state.input) {
                ParseResult::Incomplete => return Flow::Continue,
                ParseResult::Absent if local.proxy_protocol == ProxyProtocol::Required => {
                    return Flow::Close;
                }
                ParseResult::Absent => 0,
                // The header does not count: the peer is not a proxy that the configuration trusts to name the client.
                ParseResult::Header { .. } if !local.believes_proxy_header(self.state.peer) => {
                    if local.proxy_protocol == ProxyProtocol::Required {
                        return Flow::Close;
                    }
                    0
                }
                ParseResult::Header { len, source } => {
                    self.state.peer = source.map_or(self.state.peer, Address::Ip);
                    len
                }
            };
            *expects_proxy_header = false;
            self.state.input.drain(..taken);
            if let Some(slot) = &local.tls {
                self.state
                    .io
                    .push_back(&std::mem::take(&mut self.state.input));
                self.state.io.tls = Some(Box::new(slot.current().accept()));
            }
        }
        if local.tls.is_some() {
            return self.shake_hands(context, now);
        }
        self.state.take_number();
        self.phase = Phase::Http1(Box::new(Http1::new(
            context,
            &local.setup,
            Scheme::Http,
            now,
        )));
        Flow::Continue
    }

    fn shake_hands(&mut self, context: &Context, now: Instant) -> Flow {
        let mut input = context.scratch.input.take();
        input.append(&mut self.state.input);
        let read = self.state.io.read(context, &mut input);
        self.state.input.extend_from_slice(&input);
        context.scratch.input.give_back(input);
        if self.state.io.flush().is_err() {
            return Flow::Close;
        }
        match read {
            Ok(Read::Eof) => {
                self.report_unfinished("the client closed the connection");
                return Flow::Close;
            }
            Err(error) => {
                context.worker.counters.count(Counter::SslErrors);
                let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
                match cause {
                    Some(TlsError::ClearText) => {
                        return self.refuse_clear_text(context, now);
                    }
                    Some(cause) => self.report_failure(cause),
                    None => self.report_unfinished(&reason(&error)),
                }
                return Flow::Close;
            }
            Ok(Read::Data | Read::Blocked) => {}
        }
        if let Some(tls) = self.state.io.tls.as_ref()
            && tls.awaits_session()
        {
            tls.wake_when_looked_up(context.waker(self.state.token, 0));
        }
        let is_established = self.state.io.is_established();
        if !is_established && !self.state.io.is_early() {
            return match read {
                Ok(Read::Data) => Flow::Continue,
                Ok(Read::Blocked | Read::Eof) | Err(_) => Flow::Wait,
            };
        }
        self.state.take_number();
        let protocol = if is_established {
            self.count_handshake(context, now)
        } else {
            let info = self.state.info();
            info.tls.as_ref().and_then(|tls| tls.alpn)
        };
        if protocol == Some(h2o_tls::ALPN_CHALLENGE) {
            // A connection by which an ACME authority checks a name is closed once its handshake is complete (RFC 8737 §3).
            self.state.io.close_notify();
            return Flow::Close;
        }
        self.phase = if protocol.is_some_and(|name| name.starts_with("h2")) {
            Phase::Http2(Box::new(Http2::new(context, &self.state, now)))
        } else {
            Phase::Http1(Box::new(Http1::new(
                context,
                &self.state.listener.setup,
                Scheme::Https,
                now,
            )))
        };
        Flow::Continue
    }

    /// Answers a clear-text HTTP request on a TLS port. The request appears in the access log, so the error log gets no line.
    fn refuse_clear_text(&mut self, context: &Context, now: Instant) -> Flow {
        self.state.io.tls = None;
        self.state.info = None;
        self.state.take_number();
        let mut http1 = Http1::new(context, &self.state.listener.setup, Scheme::Https, now);
        let mut turn = Turn::new(context, &mut self.state);
        http1.refuse_clear_text(&mut turn);
        turn.end();
        self.phase = Phase::Http1(Box::new(http1));
        Flow::Continue
    }

    /// Writes a line about a failed TLS handshake to the error log.
    fn report_failure(&self, reason: &(impl fmt::Display + ?Sized)) {
        if let Some(held_back) = FAILED_HANDSHAKES.admit() {
            let peer = self.state.peer;
            report!(
                notice,
                "TLS handshake with {peer} failed: {reason}{held_back}"
            );
        }
    }

    /// Logs that the connection ended during the handshake, if the client has begun the handshake. Health checks of load balancers
    /// connect and send nothing; they are not logged.
    fn report_unfinished(&self, reason: &str) {
        let tls = self.state.io.tls.as_ref();
        if tls.is_some_and(|tls| tls.is_handshaking()) {
            self.report_failure(reason);
        }
    }

    /// Continues a handshake while a request from early data is already being served (RFC 8446 §2.3). Application data that arrives
    /// together with the end of the handshake is left to the driver.
    #[cold]
    fn continue_handshake(&mut self, context: &Context, now: Instant) -> Flow {
        while self.state.io.is_early() {
            let read = self.state.io.read_early(context, &mut self.state.input);
            match read {
                Ok(Read::Data) => {}
                // The driver of the HTTP version handles the end of input.
                Ok(Read::Blocked | Read::Eof) => break,
                Err(error) => {
                    context.worker.counters.count(Counter::SslErrors);
                    self.report_failure(&reason(&error));
                    return Flow::Close;
                }
            }
        }
        if self.state.io.is_established() {
            let _ = self.count_handshake(context, now);
        }
        Flow::Wait
    }

    /// Counts a completed TLS handshake. Returns the protocol that ALPN has chosen.
    fn count_handshake(&mut self, context: &Context, now: Instant) -> Option<&'static str> {
        let info = self.state.info();
        let is_resumed = info.tls.as_ref().is_some_and(|tls| tls.resumed);
        self.state.count_handshake(context, now, is_resumed);
        let counters = &context.worker.counters;
        let protocol = info.tls.as_ref().and_then(|tls| tls.alpn);
        match protocol {
            Some("http/1.1") => counters.count(Counter::SslAlpnH1),
            Some(h2o_tls::ALPN_CHALLENGE) => {}
            Some(_) => counters.count(Counter::SslAlpnH2),
            None => {}
        }
        protocol
    }

    /// Called when all output is written: closes the connection, after a lingering close if the client might still be sending.
    fn end(&mut self, now: Instant) -> Flow {
        let must_linger = match &self.phase {
            Phase::Http1(http1) => {
                // No lingering close for a client that has used up its abuse budget: it gets no more time than its last
                // response needs.
                let is_charged = self.state.budget.is_overdrawn();
                let has_input = !self.state.input.is_empty() || self.state.io.may_have_input();
                http1.lingers() || has_input && !is_charged || self.state.io.is_early()
            }
            // GOAWAY tells the client which streams were not served; a lingering close makes sure that the client
            // receives it.
            Phase::Http2(_) => true,
            Phase::Opening { .. } | Phase::Lingering { .. } => false,
        };
        self.state.io.close_notify();
        if !must_linger {
            return Flow::Close;
        }
        self.state.io.forget_early();
        self.state.io.socket.shut_down_write();
        self.state.input = Vec::new();
        self.state.info = None;
        self.phase = Phase::Lingering {
            until: now + LINGER_SILENCE,
            end: now + LINGER,
            left: LINGER_BYTES,
        };
        Flow::Wait
    }

    fn linger(&mut self, context: &Context) -> Flow {
        let Phase::Lingering { until, end, left } = &mut self.phase else {
            return Flow::Close;
        };
        let goal = left.saturating_sub(LINGER_TURN);
        // The lingering close drops input without decrypting it.
        self.state.io.tls = None;
        let mut dropped = context.scratch.input.take();
        let flow = loop {
            dropped.clear();
            if *left < goal {
                context.unfinished.borrow_mut().push(self.state.token);
                break Flow::Wait;
            }
            match self.state.io.read(context, &mut dropped) {
                Ok(Read::Data) if *left > dropped.len() => {
                    *left -= dropped.len();
                    *until = (context.worker.clock.now() + LINGER_SILENCE).min(*end);
                }
                Ok(Read::Blocked) => break Flow::Wait,
                Ok(Read::Data | Read::Eof) | Err(_) => break Flow::Close,
            }
        };
        context.scratch.input.give_back(dropped);
        flow
    }

    /// Bytes of memory that this connection holds in buffers.
    fn retained(&self) -> usize {
        let protocol = match &self.phase {
            Phase::Http1(http1) => http1.retained(),
            Phase::Http2(http2) => http2.retained(),
            Phase::Opening { .. } | Phase::Lingering { .. } => 0,
        };
        self.state.retained() + protocol
    }

    /// Updates the worker's counters of connections, memory and traffic by the state of this connection.
    pub(crate) fn settle_account(&mut self, context: &Context) {
        let status = self.current_status();
        self.status.set(context, status);
        self.state.io.settle_traffic(context);
        let retained = self.retained();
        if retained != self.charged {
            context
                .memory
                .used
                .set(context.memory.used.get() + retained - self.charged);
            self.charged = retained;
        }
    }

    /// Adds a new connection to the worker's counters.
    pub(crate) fn open_account(&self, context: &Context) {
        context.worker.counters.count(self.status.counter());
    }

    /// Removes a closed connection from the worker's counters.
    pub(crate) fn close_account(&mut self, context: &Context) {
        context.worker.counters.uncount(self.status.counter());
        self.state.io.settle_traffic(context);
        let used = &context.memory.used;
        used.set(used.get() - std::mem::take(&mut self.charged));
    }

    /// Bytes that the worker's memory account holds for this connection.
    pub(crate) const fn charged(&self) -> usize {
        self.charged
    }

    /// When the event loop must call [`Connection::on_timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadline = match &self.phase {
            Phase::Opening { until, .. } | Phase::Lingering { until, .. } => Some(*until),
            Phase::Http1(http1) => http1.deadline(),
            Phase::Http2(http2) => http2.deadline(&self.state),
        };
        if self.state.io.is_early() {
            return deadline
                .into_iter()
                .chain([self.state.handshake_end()])
                .min();
        }
        deadline
    }

    /// Runs the connection after its timer has fired.
    pub(crate) fn on_timeout(&mut self, context: &Context, now: Instant) -> Flow {
        let is_idle = self.is_idle();
        if self.state.io.is_early() && self.state.handshake_end() <= now {
            self.report_unfinished("handshake-timeout has passed");
            return Flow::Close;
        }
        match &mut self.phase {
            Phase::Opening { until, .. } if *until <= now => {
                self.report_unfinished("handshake-timeout has passed");
                Flow::Close
            }
            Phase::Lingering { until, .. } if *until <= now => Flow::Close,
            Phase::Opening { .. } | Phase::Lingering { .. } => Flow::Wait,
            Phase::Http1(http1) => {
                let flow = {
                    let mut turn = Turn::new(context, &mut self.state);
                    let flow = http1.on_timeout(&mut turn);
                    turn.end();
                    flow
                };
                // TLS close_notify is sent only if no request was in progress. Otherwise the response is truncated, and the client notices
                // that by the missing close_notify.
                if flow == Flow::Close && is_idle {
                    self.state.io.close_notify();
                }
                flow
            }
            Phase::Http2(http2) => {
                let flow = {
                    let mut turn = Turn::new(context, &mut self.state);
                    let flow = http2.on_timeout(&mut turn);
                    turn.end();
                    flow
                };
                if flow == Flow::Close && !self.state.io.has_output() {
                    return self.end(now);
                }
                flow
            }
        }
    }

    /// Begins graceful shutdown: announces the end to the client, and lets the requests in progress finish.
    pub(crate) const fn shut_down(&mut self) {
        match &mut self.phase {
            Phase::Http1(http1) => http1.shut_down(),
            Phase::Http2(http2) => http2.shut_down(),
            Phase::Opening { .. } | Phase::Lingering { .. } => {}
        }
    }

    /// Called when the waker of a stream (HTTP/2), or of the connection (HTTP/1), has fired.
    pub(crate) fn wake(&mut self, stream: u32) {
        let id = SlotId::new(stream);
        match &mut self.phase {
            Phase::Http1(http1) => http1.wake(id),
            Phase::Http2(http2) => http2.wake(id),
            Phase::Opening { .. } | Phase::Lingering { .. } => {}
        }
    }

    /// Whether the client may have several requests in progress at the same time.
    pub(crate) const fn is_multiplexed(&self) -> bool {
        matches!(self.phase, Phase::Http2(_))
    }

    /// Whether no request is in progress on the connection.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.phase {
            Phase::Http1(http1) => http1.is_idle() && self.state.input.is_empty(),
            Phase::Http2(http2) => http2.is_idle(),
            Phase::Opening { .. } | Phase::Lingering { .. } => false,
        }
    }

    /// The state under which the worker counts the connection now.
    fn current_status(&self) -> ConnectionStatus {
        let (version, is_shutting_down) = match &self.phase {
            Phase::Opening { .. } => return ConnectionStatus::Opening,
            Phase::Http1(http1) => (HttpVersion::Http1, http1.is_shutting_down()),
            Phase::Http2(http2) => (HttpVersion::Http2, http2.is_shutting_down()),
            Phase::Lingering { .. } => return ConnectionStatus::Closing,
        };
        if is_shutting_down {
            ConnectionStatus::Shutdown(version)
        } else if self.is_idle() {
            ConnectionStatus::Idle(version)
        } else {
            ConnectionStatus::Active(version)
        }
    }

    /// Ends the connection in any state. Requests in progress get their log lines.
    pub(crate) fn abandon(&mut self) {
        match &mut self.phase {
            Phase::Http1(http1) => http1.abandon(),
            Phase::Http2(http2) => http2.abandon(),
            Phase::Opening { .. } | Phase::Lingering { .. } => {}
        }
    }
}
