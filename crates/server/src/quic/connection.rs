//! One QUIC connection: its handshake, then HTTP/3, then its closing.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use h2o_exchange::{Address, ConnectionInfo, Counter};
use h2o_http3::ErrorCode;
use h2o_log::{LineLimit, report};
use h2o_quic::{CloseReason, ConnectionIndex, Endpoint, Event};

use super::qlog::QlogFile;
use super::transport::QuicTransport;
use crate::connection_state::{ConnectionState, ConnectionStatus, HttpVersion};
use crate::context::Context;
use crate::event::socket::unmapped;
use crate::flow::{Flow, Turn};
use crate::http3::Http3;
use crate::request::SlotId;
use crate::site::quic_settings::QuicSettings;

/// Limits the number of lines about failed handshakes in the error log, since clients can cause any number of failures.
static FAILED_HANDSHAKES: LineLimit = LineLimit::per_minute(20);

/// One QUIC connection of a worker.
pub(crate) struct QuicConnection {
    pub(crate) state: ConnectionState,
    pub(crate) endpoint: Rc<RefCell<Endpoint>>,
    pub(crate) index: ConnectionIndex,
    /// The listener at which the connection arrived: its index among the QUIC listeners.
    pub(crate) listener: usize,
    /// Whether the connection is in the list of those to run in this turn.
    pub(crate) is_listed: bool,
    /// Whether the connection is in the list of those that continue to send once the socket is writable.
    pub(crate) waits_for_socket: bool,
    settings: Rc<QuicSettings>,
    /// The server's address of the connection.
    local: std::net::SocketAddr,
    phase: Phase,
    /// Error code and text for CONNECTION_CLOSE, which is sent after the rest of the output.
    closing: Option<(u64, &'static str)>,
    status: ConnectionStatus,
    trace: Option<Box<QlogFile>>,
    /// Bytes of memory that the worker's memory account holds for this connection.
    charged: usize,
}

enum Phase {
    /// TLS has not negotiated its parameters yet.
    Handshake,
    Http3(Box<Http3>),
    /// HTTP/3 has ended, or the connection is closed. The QUIC transport sends the remaining packets and forgets the connection.
    Closed,
}

impl QuicConnection {
    pub(crate) fn new(
        context: &Context,
        state: ConnectionState,
        endpoint: Rc<RefCell<Endpoint>>,
        index: ConnectionIndex,
        listener: usize,
        settings: Rc<QuicSettings>,
        local: std::net::SocketAddr,
    ) -> Self {
        let status = ConnectionStatus::Opening;
        context.worker.counters.count(status.counter());
        Self {
            state,
            endpoint,
            index,
            listener,
            is_listed: false,
            waits_for_socket: false,
            settings,
            local,
            phase: Phase::Handshake,
            closing: None,
            status,
            trace: None,
            charged: 0,
        }
    }

    /// Begins the trace file (qlog) of the connection, if the listener has traces turned on.
    pub(crate) fn begin_trace(&mut self) {
        let Some(directory) = &self.settings.qlog else {
            return;
        };
        let mut endpoint = self.endpoint.borrow_mut();
        let Some(connection) = endpoint.connection(self.index) else {
            return;
        };
        let name = connection.trace_name();
        let trace = name.and_then(|name| QlogFile::create(directory, name));
        self.trace = trace.map(Box::new);
        if self.trace.is_none() {
            connection.stop_trace();
        }
    }

    /// Writes the events of this turn to the trace file.
    pub(crate) fn write_trace(&mut self, now: Instant) {
        let Some(trace) = &mut self.trace else {
            return;
        };
        if let Some(connection) = self.endpoint.borrow_mut().connection(self.index) {
            trace.write(connection.take_trace(now));
        }
    }

    /// Processes the transport's events, and runs HTTP/3 as far as possible. Returns [`Flow::Close`] if the transport has forgotten
    /// the connection.
    pub(crate) fn run(&mut self, context: &Context) -> Flow {
        if let Phase::Http3(http3) = &self.phase {
            http3.fit_send_window();
        }
        while let Some(event) = self.next_event(context) {
            match event {
                Event::HandshakeAgreed => self.begin(context),
                Event::Connected => self.on_connected(context),
                Event::Closed(reason) => self.on_closed(context, &reason),
                Event::Drained => return Flow::Close,
                // Events of streams are dropped before HTTP/3 begins and after it has ended.
                _ => {}
            }
        }
        self.follow_client();
        if let Phase::Http3(http3) = &mut self.phase {
            let mut turn = Turn::new(context, &mut self.state);
            let flow = http3.run(&mut turn);
            turn.end();
            if flow == Flow::Close {
                self.closing = http3.closing();
                if let Some(counter) = http3.error_counter() {
                    context.worker.counters.count(counter);
                }
                self.phase = Phase::Closed;
            }
        }
        Flow::Wait
    }

    /// Has HTTP/3 handle the events of streams, until an event is not about a stream, and returns that event. Without HTTP/3, returns the
    /// next event of any kind; `None` if there is none.
    fn next_event(&mut self, context: &Context) -> Option<Event> {
        let next = || self.endpoint.borrow_mut().poll_event(self.index);
        let Phase::Http3(http3) = &mut self.phase else {
            return next();
        };
        let mut turn = Turn::new(context, &mut self.state);
        let event = loop {
            match next() {
                Some(event) if event.is_about_streams() => http3.on_event(&mut turn, event),
                event => break event,
            }
        };
        turn.end();
        event
    }

    /// Records the client's address, which may have changed by migration (RFC 9000 §9): once the client has answered at the new address.
    fn follow_client(&mut self) {
        let mut endpoint = self.endpoint.borrow_mut();
        let Some(connection) = endpoint.connection(self.index) else {
            return;
        };
        let peer = Address::Ip(unmapped(connection.validated_address()));
        if peer == self.state.peer {
            return;
        }
        self.state.peer = peer;
        if let Some(info) = &self.state.info {
            self.state.info = Some(Rc::new(ConnectionInfo {
                id: info.id,
                peer,
                accepted: info.accepted,
                tls: info.tls.clone(),
                transport: Rc::clone(&info.transport),
                listener: Rc::clone(&info.listener),
            }));
        }
    }

    /// Called when TLS has negotiated all parameters. HTTP/3 begins, although the handshake may be incomplete, so that requests may
    /// be TLS early data.
    fn begin(&mut self, context: &Context) {
        let handshake = {
            let mut endpoint = self.endpoint.borrow_mut();
            endpoint
                .connection(self.index)
                .and_then(|connection| connection.handshake())
        };
        let (Some(handshake), Phase::Handshake) = (handshake, &self.phase) else {
            return;
        };
        self.state.take_number();
        self.state.is_quic_early = true;
        self.state.info = Some(Rc::new(ConnectionInfo {
            id: self.state.id,
            peer: self.state.peer,
            accepted: self.state.accepted,
            tls: Some(Box::new(handshake.tls.clone())),
            transport: Rc::new(QuicTransport {
                endpoint: Rc::clone(&self.endpoint),
                index: self.index,
                local: self.local,
                version: handshake.version,
                controller: self.settings.controller,
            }),
            listener: Rc::clone(&self.state.listener.endpoint),
        }));
        let http3 = Http3::new(
            context,
            &self.state,
            Rc::clone(&self.endpoint),
            self.index,
            &self.settings,
        );
        http3.fit_send_window();
        self.phase = Phase::Http3(Box::new(http3));
    }

    fn on_connected(&mut self, context: &Context) {
        if matches!(self.phase, Phase::Handshake) {
            self.begin(context);
        }
        self.state.is_quic_early = false;
        let tls = self.state.info.as_ref().and_then(|info| info.tls.as_ref());
        let is_resumed = tls.is_some_and(|tls| tls.resumed);
        (self.state).count_handshake(context, context.worker.clock.now(), is_resumed);
    }

    fn on_closed(&mut self, context: &Context, reason: &CloseReason) {
        if matches!(reason, CloseReason::PeerError { .. }) {
            context.worker.counters.count(Counter::Http3ErrorTransport);
        }
        let now = context.worker.clock.now();
        if let Some(connection) = self.endpoint.borrow_mut().connection(self.index) {
            connection.trace_close(now, reason);
        }
        // The trace is written now, since the transport may forget the connection in this turn.
        self.write_trace(now);
        // A client whose request was answered from early data may close the connection before the handshake is complete: this does
        // not count as a failed handshake.
        let is_wanted = match reason {
            CloseReason::Local => true,
            CloseReason::ClosedByApplication { .. } => matches!(self.phase, Phase::Http3(_)),
            _ => false,
        };
        if self.is_shaking() && !is_wanted {
            context.worker.counters.count(Counter::SslErrors);
            if let Some(held_back) = FAILED_HANDSHAKES.admit() {
                let peer = self.state.peer;
                report!(
                    notice,
                    "QUIC handshake with {peer} failed: {reason}{held_back}"
                );
            }
        }
        self.abandon();
    }

    /// Ends HTTP/3 in any state, as the connection is gone. Requests in progress get their log lines.
    pub(crate) fn abandon(&mut self) {
        if let Phase::Http3(http3) = &mut self.phase {
            http3.abandon();
        }
        self.phase = Phase::Closed;
    }

    /// Closes the connection at once, because it holds too much memory.
    pub(crate) fn evict(&mut self, now: Instant) {
        self.abandon();
        self.close(now, ErrorCode::EXCESSIVE_LOAD.0);
    }

    /// Closes the connection at once with the HTTP/3 error code `code`.
    pub(crate) fn close(&mut self, now: Instant, code: u64) {
        self.closing = Some((code, ""));
        self.finish_close(now);
    }

    /// Closes the connection if that was decided before and the output before it has now been sent. Returns whether the connection
    /// was closed.
    pub(crate) fn finish_close(&mut self, now: Instant) -> bool {
        let Some((code, text)) = self.closing.take() else {
            return false;
        };
        if let Some(connection) = self.endpoint.borrow_mut().connection(self.index) {
            connection.close(now, code, text.as_bytes());
        }
        true
    }

    /// Begins graceful shutdown: announces the end to the client, and lets the requests in progress finish.
    pub(crate) fn shut_down(&mut self) {
        if let Phase::Http3(http3) = &mut self.phase {
            http3.shut_down();
        }
    }

    /// Called when the waker of a request has fired.
    pub(crate) fn wake(&mut self, stream: u32) {
        if let Phase::Http3(http3) = &mut self.phase {
            http3.wake(SlotId::new(stream));
        }
    }

    /// When the event loop must call [`QuicConnection::on_timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.endpoint.borrow_mut().timeout(self.index),
            match &self.phase {
                Phase::Http3(http3) => http3.deadline(),
                Phase::Handshake | Phase::Closed => None,
            },
            self.is_shaking().then(|| self.state.handshake_end()),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the TLS handshake is not complete; requests that came as TLS early data may already be in progress.
    const fn is_shaking(&self) -> bool {
        match self.phase {
            Phase::Handshake => true,
            Phase::Http3(_) => self.state.is_quic_early,
            Phase::Closed => false,
        }
    }

    /// Called when the connection's timer has fired. The caller must call [`QuicConnection::run`] afterwards.
    pub(crate) fn on_timeout(&mut self, context: &Context, now: Instant) {
        self.endpoint.borrow_mut().on_timeout(self.index, now);
        if self.is_shaking() && self.state.handshake_end() <= now {
            self.on_closed(context, &CloseReason::HandshakeTimeout);
            self.close(now, 0);
            return;
        }
        if let Phase::Http3(http3) = &mut self.phase {
            let mut turn = Turn::new(context, &mut self.state);
            http3.on_timeout(&mut turn);
            turn.end();
        }
    }

    /// Whether HTTP/3 has ended, so that the server has nothing more to do for the client.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Bytes of memory that the worker's memory account holds for this connection.
    pub(crate) const fn charged(&self) -> usize {
        self.charged
    }

    /// Whether the connection has had a request, and none is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.phase {
            Phase::Http3(http3) => http3.is_idle(),
            Phase::Handshake | Phase::Closed => false,
        }
    }

    fn retained(&self) -> usize {
        let http3 = match &self.phase {
            Phase::Http3(http3) => http3.retained(),
            Phase::Handshake => 0,
            // The connection counts as holding no memory: to close it would not free its memory any sooner.
            Phase::Closed => return 0,
        };
        let mut endpoint = self.endpoint.borrow_mut();
        let transport = endpoint.connection(self.index);
        http3 + transport.map_or(0, |transport| transport.retained())
    }

    /// Updates the worker's counters of connections, memory and traffic by the state of this connection.
    pub(crate) fn settle_account(&mut self, context: &Context) {
        let status = match &self.phase {
            Phase::Handshake => ConnectionStatus::Opening,
            Phase::Http3(http3) if http3.is_shutting_down() => {
                ConnectionStatus::Shutdown(HttpVersion::Http3)
            }
            Phase::Http3(http3) if http3.is_idle() => ConnectionStatus::Idle(HttpVersion::Http3),
            Phase::Http3(_) => ConnectionStatus::Active(HttpVersion::Http3),
            Phase::Closed => ConnectionStatus::Closing,
        };
        self.status.set(context, status);
        let retained = self.retained();
        let used = &context.memory.used;
        used.set(used.get() + retained - self.charged);
        self.charged = retained;
    }

    /// Removes a closed connection from the worker's counters.
    pub(crate) fn close_account(&mut self, context: &Context) {
        context.worker.counters.uncount(self.status.counter());
        let used = &context.memory.used;
        used.set(used.get() - std::mem::take(&mut self.charged));
    }
}
