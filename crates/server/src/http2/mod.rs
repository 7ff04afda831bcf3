//! The HTTP/2 driver of one connection: it moves bytes and events between the protocol engine, the request table and the socket.
//!
//! Requests that arrive in one read are answered in one write: all frames are received first, short responses are written at once,
//! and other bodies are pulled in the order of the engine's scheduler.

mod debug;
mod paces;
mod streams;
mod writer;

use std::time::Instant;

use h2o_exchange::{Counter, ExchangeRef};
use h2o_http::TimeLimit;
use h2o_http2::{PeerError, Received, ServerConnection, StreamKey};

use crate::connection_state::ConnectionState;
use crate::context::{Context, per_turn};
use crate::flow::{Flow, Turn};
use crate::io::Read;
use crate::request::{Requests, SlotId, StreamRequest};
use paces::Paces;
use streams::protocol;
use writer::Writer;

/// Largest number of bytes that are read from one connection before the requests in them are answered.
const READ_TURN: usize = per_turn(256 * 1024);
/// Largest number of bytes that are sent on one connection before other connections run.
const SEND_TURN: usize = per_turn(1024 * 1024);
/// Reading stops while more bytes of output than this are queued. H2O compatibility: H2O has the same limit.
const MAX_BACKLOG: usize = per_turn(512 * 1024);
/// When this many bytes of output are waiting, the driver sends them before it answers more requests.
const FULL: usize = per_turn(192 * 1024);

/// The HTTP/2 driver of one connection.
pub(crate) struct Http2 {
    requests: Requests,
    engine: ServerConnection,
    writer: Writer,
    paces: Paces,
    /// Whether no further request is taken, and the connection ends when all output is written.
    is_closing: bool,
    wants_shutdown: bool,
    /// Whether the connection has received a request.
    is_used: bool,
    /// Whether the transport has been told the round-trip time: how long the client took to acknowledge the server's SETTINGS
    /// frame.
    is_rtt_noted: bool,
}

/// The key by which the protocol engine names the stream of the request in slot `id`.
const fn stream(id: SlotId) -> StreamKey {
    StreamKey::from_index(id.index())
}

/// The slot of the request on `stream`.
fn slot(stream: StreamKey) -> SlotId {
    SlotId::new(u32::try_from(stream.index()).unwrap_or(u32::MAX))
}

/// The error that the client is gone, or that the socket has failed.
struct ConnectionLost;

impl Http2 {
    pub(crate) fn new(context: &Context, connection: &ConnectionState, now: Instant) -> Self {
        let origins = connection.listener.origins.clone();
        let engine =
            ServerConnection::new(connection.listener.setup.http2_engine.clone(), origins, now);
        let mut http2 = Self::with_engine(context, engine, connection.io.is_early());
        http2.wants_shutdown |= connection.listener.is_closing;
        http2
    }

    /// Takes over the connection of an HTTP/1.1 request, which becomes stream 1. Returns `None` if the request's `HTTP2-Settings`
    /// are invalid.
    pub(crate) fn upgraded(
        turn: &mut Turn<'_>,
        settings: &[u8],
        exchange: &ExchangeRef,
    ) -> Option<Self> {
        let limits = turn.connection.listener.setup.http2_engine.clone();
        let (engine, stream) =
            ServerConnection::upgraded(limits, settings, turn.now, &mut turn.out).ok()?;
        exchange.borrow_mut().protocol = protocol(&engine, stream);
        let mut http2 = Self::with_engine(turn.context, engine, false);
        http2.is_used = true;
        let id = slot(stream);
        http2.requests.hold(id, ExchangeRef::clone(exchange));
        http2.requests.queue(id);
        Some(http2)
    }

    fn with_engine(context: &Context, engine: ServerConnection, is_early: bool) -> Self {
        Self {
            requests: Requests::new(context, is_early),
            engine,
            writer: Writer::new(),
            paces: Paces::new(context.worker.clock.now()),
            is_closing: false,
            wants_shutdown: context.worker.shutting_down.get(),
            is_used: false,
            is_rtt_noted: false,
        }
    }

    /// Processes input, runs the requests whose wakers have fired, and sends, until only the socket, a waker or a timer can
    /// continue.
    pub(crate) fn run(&mut self, turn: &mut Turn<'_>) -> Flow {
        let is_owned = !turn.connection.input.is_empty();
        let mut input = if is_owned {
            std::mem::take(&mut turn.connection.input)
        } else {
            turn.context.scratch.input.take()
        };
        let mut at = 0;
        let flow = self.advance(turn, &mut input, &mut at);
        if at < input.len() && flow == Flow::Wait {
            if is_owned {
                input.drain(..at);
                turn.connection.input = input;
            } else {
                turn.connection.input = input[at..].to_vec();
                turn.context.scratch.input.give_back(input);
            }
        } else {
            turn.context.scratch.input.give_back(input);
        }
        if flow == Flow::Close {
            self.abandon();
        } else {
            self.shrink_if_idle(turn.context);
            self.paces.plan_look(&self.engine, turn);
        }
        flow
    }

    fn advance(&mut self, turn: &mut Turn<'_>, input: &mut Vec<u8>, at: &mut usize) -> Flow {
        if std::mem::take(&mut self.wants_shutdown) {
            self.engine.shut_down(turn.now, &mut turn.out);
        }
        if self.requests.is_early_over(turn) {
            // Data that came together with the end of the TLS handshake was received before this turn, and counts as activity of
            // the client.
            self.engine.on_activity(turn.now);
            self.requests.end_early();
        }
        self.requests.run_woken(&mut self.engine, turn);
        let mut sent = 0;
        loop {
            if turn.connection.io.flush().is_err() {
                return Flow::Close;
            }
            if let Err(ConnectionLost) = self.take_in(turn, input, at) {
                let counters = &turn.context.worker.counters;
                counters.count(Counter::Http2ReadClosed);
                return Flow::Close;
            }
            self.requests.start_queued(&mut self.engine, turn);
            if !self.is_closing {
                self.requests.send_pushes(&mut self.engine, turn);
                if !turn.connection.io.has_output() {
                    self.pump(turn);
                }
            }
            let had = turn.out.len();
            if had > 0 {
                if turn.send().is_err() {
                    return Flow::Close;
                }
                sent += had;
            }
            self.on_written(turn);
            let is_blocked = turn.connection.io.has_output();
            if !is_blocked && (self.is_closing || self.engine.is_over()) {
                if turn.out.is_empty() {
                    return Flow::Close;
                }
                // Completed responses have overdrawn the abuse budget: the client is told by GOAWAY.
                continue;
            }
            // A response that was just completed may have made room to let a queued request run.
            let may_start = !self.is_closing && self.requests.may_start::<ServerConnection>(turn);
            let has_more = self.engine.has_sendable() || turn.connection.io.may_have_input();
            let may_send = had > 0 && has_more;
            if !may_start && (is_blocked || !may_send) {
                self.requests.read_ahead(turn);
                return Flow::Wait;
            }
            if sent >= SEND_TURN {
                turn.context
                    .unfinished
                    .borrow_mut()
                    .push(turn.connection.token);
                return Flow::Wait;
            }
        }
    }

    /// Reads from the socket, and takes in the HTTP/2 frames that have come.
    fn take_in(
        &mut self,
        turn: &mut Turn<'_>,
        input: &mut Vec<u8>,
        at: &mut usize,
    ) -> Result<(), ConnectionLost> {
        let mut received = 0;
        if *at < input.len() {
            self.receive(turn, input, at);
        }
        while !self.is_closing
            && turn.connection.io.queued() <= MAX_BACKLOG
            && turn.out.len() < FULL
        {
            if received >= READ_TURN {
                turn.context
                    .unfinished
                    .borrow_mut()
                    .push(turn.connection.token);
                break;
            }
            if *at == input.len() {
                input.clear();
                *at = 0;
            }
            let had = input.len();
            match turn.connection.io.read(turn.context, input) {
                Ok(Read::Data) => {}
                Ok(Read::Blocked) => break,
                Ok(Read::Eof) | Err(_) => return Err(ConnectionLost),
            }
            let came = input.len() - had;
            received += came;
            self.engine.on_activity(turn.now);
            let before = *at;
            self.receive(turn, input, at);
            if *at == before && turn.pay_for_fragment(came).is_err() {
                self.fail(turn, PeerError::Overdrawn);
            }
        }
        if !self.is_rtt_noted
            && let Some(rtt) = self.engine.settings_rtt()
        {
            self.is_rtt_noted = true;
            turn.connection.io.socket.note_settings_rtt(rtt);
        }
        Ok(())
    }

    /// Takes in all complete frames of `input`, from position `at` on.
    fn receive(&mut self, turn: &mut Turn<'_>, input: &[u8], at: &mut usize) {
        let mut spare = self.requests.take_spare(turn.context);
        while !self.is_closing {
            let step = self.engine.receive(
                &input[*at..],
                &mut spare.borrow_mut().request,
                turn.now,
                &mut turn.out,
            );
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    if let Some((code, _)) = error.answer() {
                        turn.context.worker.counters.count_http2_error(code.0);
                    }
                    self.is_closing = true;
                    break;
                }
            };
            self.pay_costs(turn);
            if let Some(code) = self.engine.take_rejected() {
                turn.context.worker.counters.count_http2_error(code.0);
            }
            let start = *at;
            *at += step.taken;
            match step.received {
                Received::NeedMore => break,
                Received::Charged => {}
                Received::Request {
                    stream,
                    end_stream,
                    refusal,
                } => {
                    self.is_used = true;
                    let request = StreamRequest {
                        exchange: spare,
                        protocol: protocol(&self.engine, stream),
                        end_stream,
                        refusal,
                    };
                    self.requests
                        .receive_on_stream(&mut self.engine, turn, slot(stream), request);
                    spare = self.requests.take_spare(turn.context);
                }
                Received::Data {
                    stream,
                    data,
                    end_stream,
                } => {
                    let piece = &input[start + data.start..start + data.end];
                    self.requests
                        .on_data(&mut self.engine, turn, slot(stream), piece, end_stream);
                }
                Received::Trailers { stream } => {
                    // Trailers of requests are dropped, as over HTTP/1: trailers must not become fields of the head (RFC 9110
                    // §6.5.1).
                    spare.borrow_mut().request.clear();
                    self.requests
                        .on_data(&mut self.engine, turn, slot(stream), &[], true);
                }
                Received::Reset {
                    stream,
                    code,
                    by_us,
                } => {
                    if by_us {
                        turn.context.worker.counters.count_http2_error(code.0);
                    }
                    self.requests.on_reset(&mut self.engine, turn, slot(stream));
                }
            }
            if self.requests.take_overdrawn() {
                self.fail(turn, PeerError::Overdrawn);
            }
        }
        Requests::give_back_unused(turn, spare);
    }

    fn pump(&mut self, turn: &mut Turn<'_>) {
        self.writer.pump(&mut self.requests, &mut self.engine, turn);
        self.requests.earn_by_bodies(turn);
        self.pay_costs(turn);
    }

    /// Charges the connection's abuse budget for the work that the client has caused in the protocol engine.
    #[inline]
    fn pay_costs(&mut self, turn: &mut Turn<'_>) {
        let costs = self.engine.take_costs();
        if costs > 0 && turn.pay(costs).is_err() {
            self.fail(turn, PeerError::Overdrawn);
        }
    }

    /// Tells the parts of the driver how many bytes of output the socket has taken.
    fn on_written(&mut self, turn: &mut Turn<'_>) {
        let written = turn.connection.io.take_written();
        if written > 0 {
            self.paces.on_written(written);
            self.engine.on_activity(turn.now);
        }
        self.writer.on_written(turn, written);
        if self.requests.take_overdrawn() {
            self.fail(turn, PeerError::Overdrawn);
        }
    }

    /// Ends the connection because the client has violated the protocol.
    fn fail(&mut self, turn: &mut Turn<'_>, error: PeerError) {
        if let Some((code, _)) = error.answer() {
            turn.context.worker.counters.count_http2_error(code.0);
        }
        self.engine.fail(error, &mut turn.out);
        self.is_closing = true;
    }

    /// If the worker has many connections and this one has no streams, frees memory that can be allocated again.
    fn shrink_if_idle(&mut self, context: &Context) {
        self.requests.give_back_spare();
        if !self.engine.has_streams() && context.has_many_connections() {
            self.requests.shrink();
            self.engine.shrink();
        }
    }

    /// Notes that the waker of a request has fired.
    pub(crate) fn wake(&mut self, id: SlotId) {
        self.requests.wake(id);
    }

    /// Whether the server can proceed without the client, so that the idle timeout does not apply. Tunnels may be idle for as
    /// long as their handlers allow. A TLS handshake needs the client in any case.
    fn is_waiting_for_us(&self, connection: &ConnectionState) -> bool {
        !connection.io.is_early()
            && (self.requests.waits_for_handlers()
                || self.requests.has_tunnel()
                || self.requests.has_queue()
                || connection.io.has_output()
                || self.engine.has_sendable())
    }

    pub(crate) fn deadline(&self, connection: &ConnectionState) -> Option<Instant> {
        let engine = &self.engine;
        let deadlines = [
            engine.next_timeout(self.is_waiting_for_us(connection)),
            self.paces.deadline(),
            self.requests.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn on_timeout(&mut self, turn: &mut Turn<'_>) -> Flow {
        let counters = &turn.context.worker.counters;
        let paces = &mut self.paces;
        if paces.look(&mut self.requests, &mut self.engine, turn) == Flow::Close {
            counters.count(Counter::Http2WriteClosed);
            self.abandon();
            return Flow::Close;
        }
        self.requests.on_timeout(&mut self.engine, turn);
        let waits = self.is_waiting_for_us(turn.connection);
        let engine = &mut self.engine;
        let passed = engine.on_timeout(turn.now, waits, &mut turn.out);
        if passed == Some(TimeLimit::Idle) {
            counters.count(Counter::Http2IdleTimeout);
        }
        if turn.send().is_err() || passed.is_some() {
            self.abandon();
            return Flow::Close;
        }
        // The timer may have fired for the end of `http2-dos-delay`, so that delayed requests can start, or a timeout may have closed the
        // last stream, so that the connection can end.
        self.run(turn)
    }

    /// Begins graceful shutdown: the client gets GOAWAY (RFC 9113 §6.8).
    pub(crate) const fn shut_down(&mut self) {
        self.wants_shutdown = true;
    }

    /// Whether the connection has had a request, and none is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_used && !self.is_closing && !self.engine.has_streams()
    }

    /// Whether the client has been told that the connection ends.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.is_closing || self.engine.is_shutting_down()
    }

    /// Bytes of memory that the connection's driver holds.
    pub(crate) fn retained(&self) -> usize {
        self.requests.retained() + self.engine.retained()
    }

    /// Ends all requests of the connection.
    pub(crate) fn abandon(&mut self) {
        self.requests.abandon(&self.engine);
    }
}
