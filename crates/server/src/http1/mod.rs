//! The HTTP/1 driver of one connection: it moves bytes and events between the protocol engine, the request table and the socket.

mod reading;
mod refusing;
mod splice;
mod streams;
mod upgrade;

use std::time::Instant;

use h2o_exchange::Counter;
use h2o_http::{Scheme, TimeLimit};
use h2o_http1::{Next, ServerConnection};

use crate::context::{Context, per_turn};
use crate::flow::{Flow, Turn};
use crate::http2::Http2;
use crate::pace::TransferState;
use crate::request::serve;
use crate::request::{PullResult, Requests, SlotId, Stage};
use crate::setup::Setup;
use reading::{DISCARD_TIME, DiscardedBody, Input};
use streams::Http1Streams;

/// Number of bytes of one response's body that a connection sends before other connections run.
const SEND_TURN: usize = per_turn(1024 * 1024);
/// Number of bytes of response bodies, over all its requests, that a connection sends before other connections run.
const TURN_BYTES: usize = per_turn(1024 * 1024);
/// Number of pipelined requests that a connection answers before other connections run.
const TURN_REQUESTS: usize = 32;

/// The HTTP/1 driver of one connection.
pub(crate) struct Http1 {
    /// The requests of the connection: one at a time, in [`SlotId::ONLY`].
    requests: Requests,
    streams: Http1Streams,
    /// The rest of a request's body; present while the server reads and drops it after the response.
    discarding: Option<DiscardedBody>,
    /// The driver of HTTP/2, if the connection goes on with HTTP/2.
    successor: Option<Box<Http2>>,
    /// Number of bytes of the connection's output that the socket has taken.
    written: u64,
    /// Number of sent bytes that the client had not acknowledged when the socket was last found full, or when the write timer last
    /// fired.
    unacknowledged: usize,
    /// When to check next whether the client is fast enough.
    look_at: Option<Instant>,
}

impl Http1 {
    pub(crate) fn new(context: &Context, setup: &Setup, scheme: Scheme, now: Instant) -> Self {
        let mut engine = ServerConnection::new(setup.http1.clone(), scheme, now);
        if context.worker.shutting_down.get() {
            engine.shut_down();
        }
        Self {
            requests: Requests::new(context, false),
            streams: Http1Streams::new(engine),
            discarding: None,
            successor: None,
            written: 0,
            unacknowledged: 0,
            look_at: None,
        }
    }

    /// Processes input, runs the requests whose wakers have fired, and sends, until only the socket, a waker or a timer can
    /// continue.
    pub(crate) fn run(&mut self, turn: &mut Turn<'_>) -> Flow {
        let owned = !turn.connection.input.is_empty();
        let mut buffer = if owned {
            std::mem::take(&mut turn.connection.input)
        } else {
            turn.context.scratch.input.take()
        };
        let mut input = Input::new(&mut buffer);
        let mut flow = self.run_woken(turn);
        while flow == Flow::Continue {
            flow = self.step(turn, &mut input);
        }
        let at = input.at;
        if at < buffer.len() && owned {
            buffer.drain(..at);
            turn.connection.input = buffer;
        } else {
            if at < buffer.len() {
                turn.connection.input = buffer[at..].to_vec();
            }
            turn.context.scratch.input.give_back(buffer);
        }
        if flow == Flow::Close {
            self.abandon();
        }
        self.plan_look(turn.now);
        flow
    }

    /// Takes the driver of HTTP/2, if the connection goes on with HTTP/2.
    pub(crate) fn take_successor(&mut self) -> Option<Box<Http2>> {
        self.successor.take()
    }

    fn run_woken(&mut self, turn: &mut Turn<'_>) -> Flow {
        let waits_for_handler = matches!(
            self.requests.stage(SlotId::ONLY),
            Stage::Running | Stage::Sending
        );
        // If the client has reset the connection, the request ends at once and frees what its handler holds, such as a connection to a
        // backend. A handler that has nothing to send would otherwise hold it for long.
        if waits_for_handler && turn.connection.io.is_broken() {
            return Flow::Close;
        }
        self.requests.run_woken(&mut self.streams, turn);
        self.send_output(turn)
    }

    /// Sends the output that a step of the connection has written.
    fn send_output(&mut self, turn: &mut Turn<'_>) -> Flow {
        if !turn.out.is_empty() {
            if turn.send().is_err() {
                return Flow::Close;
            }
            self.report_written(turn, false);
        }
        if self.streams.is_over {
            return Flow::Close;
        }
        Flow::Continue
    }

    fn step(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        if self.streams.engine.is_tunnel()
            && (self.requests).check_tunnel(&mut self.streams, turn, SlotId::ONLY)
        {
            return Flow::Close;
        }
        if turn.connection.io.has_output() {
            if turn.connection.io.flush().is_err() {
                return Flow::Close;
            }
            self.report_written(turn, false);
            if turn.connection.io.has_output() {
                self.requests.on_blocked(SlotId::ONLY);
                self.requests.read_ahead(turn);
                return self.read_body(turn, input);
            }
        }
        match self.requests.stage(SlotId::ONLY) {
            Stage::Free => self.step_between_requests(turn, input),
            Stage::Receiving | Stage::Running => self.read_body(turn, input),
            Stage::Sending => self.pump(turn, input),
            Stage::Flushing => {
                input.finished += 1;
                self.finish(turn)
            }
        }
    }

    fn step_between_requests(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        if self.streams.is_closing {
            return Flow::Close;
        }
        if let Some(discarding) = self.discarding {
            return self.discard(turn, input, discarding);
        }
        if input.finished >= TURN_REQUESTS || input.sent >= TURN_BYTES {
            turn.context
                .unfinished
                .borrow_mut()
                .push(turn.connection.token);
            return Flow::Wait;
        }
        self.receive_head(turn, input)
    }

    /// Sends as much of a response's body as the socket takes, up to [`SEND_TURN`].
    fn pump(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        let mut sent = 0;
        let pulled = loop {
            if turn.connection.io.has_output() {
                break PullResult::Blocked;
            }
            if sent >= SEND_TURN {
                turn.context
                    .unfinished
                    .borrow_mut()
                    .push(turn.connection.token);
                break PullResult::Waiting;
            }
            let pulled = self.requests.pull_by(
                &mut self.streams,
                turn,
                SlotId::ONLY,
                |content, streams, turn, task| streams.pull(content, turn, task),
            );
            if turn.send().is_err() || self.streams.is_over {
                return Flow::Close;
            }
            match pulled {
                Some(PullResult::Data { len, is_end }) => {
                    sent += len;
                    input.sent += len;
                    if is_end {
                        break PullResult::Data { len, is_end };
                    }
                }
                Some(pulled @ (PullResult::Waiting | PullResult::Blocked)) => break pulled,
                // The request is over, because the body of its response cannot be completed.
                None => {
                    self.report_written(turn, false);
                    return Flow::Continue;
                }
            }
        };
        let is_blocked = pulled == PullResult::Blocked;
        if is_blocked {
            self.requests.read_ahead(turn);
        }
        self.report_written(turn, is_blocked);
        match pulled {
            PullResult::Data { .. } => Flow::Continue,
            PullResult::Waiting | PullResult::Blocked => self.read_body(turn, input),
        }
    }

    /// Tells the engine how many bytes the socket has taken. `is_blocked` says whether the socket is full.
    fn report_written(&mut self, turn: &mut Turn<'_>, is_blocked: bool) {
        let io = &mut turn.connection.io;
        let written = io.take_written();
        self.written += written as u64;
        let is_pending = is_blocked || io.has_output();
        self.streams
            .engine
            .on_written(written, is_pending, turn.now);
        if is_pending {
            self.unacknowledged = io.socket.unacknowledged();
        }
    }

    /// Ends the request: the socket has taken the whole response.
    fn finish(&mut self, turn: &mut Turn<'_>) -> Flow {
        self.requests
            .on_flushed(&mut self.streams, turn, SlotId::ONLY);
        self.requests.earn_by_bodies(turn);
        self.unacknowledged = 0;
        let engine = &self.streams.engine;
        if engine.can_discard() && !self.streams.is_rest_long() {
            self.discarding = Some(DiscardedBody {
                before: engine.body_received(),
                until: turn.now + DISCARD_TIME,
            });
        } else {
            self.turn_to_next(turn.now);
        }
        Flow::Continue
    }

    /// Prepares for the next request, if the connection may carry one.
    fn turn_to_next(&mut self, now: Instant) {
        let engine = &mut self.streams.engine;
        self.streams.lingers |= !engine.is_body_done();
        match engine.next(now) {
            Next::Request => {}
            Next::Close => self.streams.is_closing = true,
        }
    }

    /// Sets the time of the next check whether the client of the request in progress is fast enough.
    #[inline]
    fn plan_look(&mut self, now: Instant) {
        let is_timed = !self.streams.engine.is_tunnel();
        match self.requests.client_rate(SlotId::ONLY) {
            Some(rate) if is_timed => {
                self.look_at.get_or_insert_with(|| rate.next_check(now));
            }
            Some(_) | None => self.look_at = None,
        }
    }

    /// Whether the client is fast enough: in sending the request's body and in taking the response.
    fn keeps_up(&mut self, turn: &Turn<'_>) -> bool {
        let now = turn.now;
        let Some(rate) = self.requests.client_rate(SlotId::ONLY) else {
            return true;
        };
        if self.look_at.is_none_or(|at| at > now) {
            return true;
        }
        self.look_at = Some(rate.next_check(now));
        let (reads, writes) = self.streams.engine.waits_for_client();
        let unacknowledged = turn.connection.io.socket.unacknowledged() as u64;
        let look = |bytes, waits_for_client| TransferState {
            now,
            bytes,
            waits_for_client,
        };
        let received = look(self.streams.engine.body_received(), reads);
        let taken = look(self.written.saturating_sub(unacknowledged), writes);
        self.requests.keeps_up(SlotId::ONLY, received, taken, &rate)
    }

    /// Called when the waker of the request has fired.
    pub(crate) fn wake(&mut self, id: SlotId) {
        self.requests.wake(id);
    }

    /// Bytes of memory that the request in progress holds.
    pub(crate) fn retained(&self) -> usize {
        self.requests.retained()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let discarding = self.discarding.map(|discarding| discarding.until);
        let limits = [self.streams.engine.next_timeout(), self.look_at, discarding];
        limits.into_iter().flatten().min()
    }

    pub(crate) fn on_timeout(&mut self, turn: &mut Turn<'_>) -> Flow {
        let now = turn.now;
        let counters = &turn.context.worker.counters;
        self.see_progress(turn);
        let Some(passed) = self.streams.engine.on_timeout(now) else {
            if (self.discarding).is_some_and(|discarding| discarding.until <= now) {
                return Flow::Close;
            }
            if self.keeps_up(turn) {
                return Flow::Wait;
            }
            counters.count(Counter::Http1RequestIoTimeout);
            self.abandon();
            return Flow::Close;
        };
        let counter = match passed {
            TimeLimit::Head { .. } => Some(Counter::Http1RequestTimeout),
            TimeLimit::Read | TimeLimit::Write => Some(Counter::Http1RequestIoTimeout),
            TimeLimit::Idle | TimeLimit::Shutdown => None,
        };
        let has_request = self.requests.stage(SlotId::ONLY) != Stage::Free;
        let has_bytes = self.streams.engine.first_byte_at().is_some();
        if let Some(counter) = counter
            && (has_request || has_bytes)
        {
            counters.count(counter);
        }
        let is_first = TimeLimit::Head {
            first_request: true,
        };
        // Only a client that began a first request and did not finish it in time gets a line in the access log; H2O compatibility:
        // like H2O, the server logs no connections that browsers open and do not use.
        if passed == is_first && !has_request {
            let exchange = turn.context.worker.spare_exchange();
            self.begin_unparsed(turn, &exchange);
            serve::log(&exchange.borrow());
            turn.context.worker.release(exchange);
        }
        self.abandon();
        Flow::Close
    }

    /// Counts it as progress of the client when the client's TCP has acknowledged data. Free space in the socket would be no sign of
    /// progress: the kernel buffers much.
    fn see_progress(&mut self, turn: &Turn<'_>) {
        let stage = self.requests.stage(SlotId::ONLY);
        if matches!(stage, Stage::Sending | Stage::Flushing) {
            let left = turn.connection.io.socket.unacknowledged();
            let before = std::mem::replace(&mut self.unacknowledged, left);
            if left < before {
                self.streams
                    .engine
                    .on_written(before - left, true, turn.now);
            }
        }
    }

    /// Makes the response in progress the last one of the connection.
    pub(crate) const fn shut_down(&mut self) {
        self.streams.engine.shut_down();
    }

    /// Whether no request is in progress on the connection.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.stage(SlotId::ONLY) == Stage::Free
            && self.discarding.is_none()
            && !self.streams.is_closing
    }

    /// Whether no request follows the one in progress.
    pub(crate) const fn is_shutting_down(&self) -> bool {
        self.streams.is_closing || self.streams.engine.is_shutting_down()
    }

    /// Whether the server goes on reading after the last response, so that a client that is still sending gets to see the response.
    pub(crate) const fn lingers(&self) -> bool {
        self.streams.lingers
    }

    /// Ends the request in progress, if there is one.
    pub(crate) fn abandon(&mut self) {
        self.requests.abandon(&self.streams);
    }
}
