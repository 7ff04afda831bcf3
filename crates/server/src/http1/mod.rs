//! The HTTP/1 driver: between the engine, the handlers and the socket of one connection.

mod receiving;
mod responding;
mod tunnel;
mod upgrade;

use std::rc::Rc;
use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use h2o_exchange::{BodyPipe, Counter, ExchangeRef};
use h2o_http::{Scheme, TimeLimit};
use h2o_http1::ServerConnection;

use crate::collect::Collector;
use crate::context::{Context, per_turn};
use crate::flow::{Flow, Turn};
use crate::http2::Http2;
use crate::pace::{ClientRate, Look, Pace};
use crate::sending::Sending;
use crate::serve::{self, Progress, Waiting};

/// The HTTP/1 side of a connection.
pub(crate) struct Http1 {
    engine: ServerConnection,
    active: Option<Box<Active>>,
    /// No further request is taken; the connection ends when everything is written.
    is_closing: bool,
    /// The client was refused, or has more to say than is read: it must get to see our last octets.
    lingers: bool,
    /// The response has come before all of the request's content, the rest of which is read and dropped.
    discarding: Option<Discarding>,
    /// What the connection goes on as.
    successor: Option<Box<Http2>>,
    /// Octets that have left.
    written: u64,
    /// When the paces of the request in progress are to be looked at.
    look_at: Option<Instant>,
}

/// Content that nobody wants any more, in the way of the next request.
#[derive(Clone, Copy)]
struct Discarding {
    /// Octets of content that had come with the response.
    before: u64,
    until: Instant,
}

/// The request in progress.
pub(crate) struct Active {
    exchange: ExchangeRef,
    step: Step,
    /// A body on its way to a handler that pulls it.
    upload: Option<Rc<BodyPipe>>,
    /// `upload` is a tunnel's, or will be if the handler opens one.
    is_tunnel: bool,
    /// What the kernel had not got rid of when the socket took no more, or the write timer last rang.
    unacknowledged: usize,
    /// How fast the client sends its content, and takes ours. Made when the request is first looked at.
    paces: Option<[Pace; 2]>,
    waker: Option<Waker>,
    /// The exchange has been given back.
    is_over: bool,
}

/// Boxes kept for the next requests, so that a request allocates nothing for its own state.
const KEPT_ACTIVES: usize = 128;

impl Active {
    fn new(context: &Context, exchange: ExchangeRef) -> Box<Self> {
        if let Some(mut kept) = context.actives.borrow_mut().pop() {
            kept.exchange = exchange;
            kept.is_over = false;
            return kept;
        }
        Box::new(Self {
            exchange,
            step: Step::Moving,
            upload: None,
            is_tunnel: false,
            unacknowledged: 0,
            paces: None,
            waker: None,
            is_over: false,
        })
    }

    /// The waker of what the request waits for besides the socket.
    fn waker(&mut self, turn: &Turn<'_>) -> Waker {
        self.waker
            .get_or_insert_with(|| turn.context.waker(turn.connection.token, 0))
            .clone()
    }

    /// The request is over: it is logged, its exchange given back, and the box kept.
    fn retire(mut self: Box<Self>, context: &Context) {
        self.end();
        let mut kept = context.actives.borrow_mut();
        if kept.len() < KEPT_ACTIVES {
            kept.push(self);
        }
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        // What a handler or a body holds goes before the log line is written.
        self.step = Step::Moving;
        self.waker = None;
        self.is_tunnel = false;
        self.paces = None;
        if let Some(pipe) = self.upload.take() {
            pipe.finish(Err("the connection was closed".into()));
        }
        let worker = {
            let Ok(mut exchange) = self.exchange.try_borrow_mut() else {
                return;
            };
            exchange.timings.response_end = Some(exchange.worker.clock.now());
            serve::log(&exchange);
            Rc::clone(&exchange.worker)
        };
        worker.release(Rc::clone(&self.exchange));
    }
}

/// However a request ends, a panic included, it is logged and its exchange given back.
impl Drop for Active {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the request in progress waits for.
enum Step {
    /// Its content.
    Collecting(Collector),
    /// The first octets of content that its handler will pull.
    AwaitingUpload,
    /// A handler.
    Waiting(Waiting),
    /// Room in the socket, or more content of the response.
    Sending(Sending),
    /// Everything is handed over; the last octets have not left yet.
    Flushing,
    /// In transition.
    Moving,
}

/// Received octets with the position of the first one not taken.
struct Input<'a> {
    buffer: &'a mut Vec<u8>,
    at: usize,
    /// Octets received and requests finished in this turn.
    received: usize,
    finished: usize,
    /// Octets of large content sent in this turn, whichever request they belong to.
    sent: u64,
}

/// Octets received from one connection, or sent to it behind heads, before others get their turn.
const TURN_OCTETS: usize = per_turn(1024 * 1024);
/// Pipelined requests of one connection before others get their turn.
const TURN_REQUESTS: usize = 32;

impl Http1 {
    pub(crate) fn new(context: &Context, scheme: Scheme, now: Instant) -> Self {
        let mut engine = ServerConnection::new(context.http1.clone(), scheme, now);
        if context.worker.shutting_down.get() {
            engine.shut_down();
        }
        Self {
            engine,
            active: None,
            is_closing: false,
            lingers: false,
            discarding: None,
            successor: None,
            written: 0,
            look_at: None,
        }
    }

    /// Goes on as far as possible.
    pub(crate) fn run(&mut self, turn: &mut Turn<'_>) -> Flow {
        let owned = !turn.connection.input.is_empty();
        let mut buffer = if owned {
            std::mem::take(&mut turn.connection.input)
        } else {
            turn.context.scratch.input.take()
        };
        let mut input = Input {
            buffer: &mut buffer,
            at: 0,
            received: 0,
            sent: 0,
            finished: 0,
        };
        let flow = loop {
            match self.step(turn, &mut input) {
                Flow::Continue => {}
                flow @ (Flow::Wait | Flow::Close) => break flow,
            }
        };
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
        self.plan_look(turn.context);
        flow
    }

    /// The connection in its next protocol version, if that is why it ended.
    pub(crate) fn take_successor(&mut self) -> Option<Box<Http2>> {
        self.successor.take()
    }

    /// Requests that are not answered at once are looked at from time to time.
    #[inline]
    fn plan_look(&mut self, context: &Context) {
        match &self.active {
            Some(active) if !self.engine.is_tunnel() => {
                if self.look_at.is_none() {
                    let rate = ClientRate::of(&active.exchange.borrow());
                    self.look_at = Some(rate.next_look(context.worker.clock.now()));
                }
            }
            Some(_) | None => self.look_at = None,
        }
    }

    /// Whether the client sends its content, and takes ours, as fast as it has to.
    fn keeps_up(&mut self, turn: &Turn<'_>, now: Instant) -> bool {
        let Some(active) = &mut self.active else {
            return true;
        };
        if self.look_at.is_none_or(|at| at > now) {
            return true;
        }
        let rate = ClientRate::of(&active.exchange.borrow());
        self.look_at = Some(rate.next_look(now));
        let (reads, writes) = self.engine.waits_for_client();
        let taken = self
            .written
            .saturating_sub(turn.connection.io.socket.unacknowledged() as u64);
        let look = |octets, waits_for_client| Look {
            now,
            octets,
            waits_for_client,
        };
        let [sent, received] = active.paces.get_or_insert_with(|| [Pace::new(now); 2]);
        sent.keeps_up(look(self.engine.body_received(), reads), &rate)
            && received.keeps_up(look(taken, writes), &rate)
    }

    fn step(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        if self.engine.is_tunnel() && self.is_given_up(turn) {
            return Flow::Close;
        }
        if turn.connection.io.has_output() {
            if turn.connection.io.flush().is_err() {
                return Flow::Close;
            }
            self.report_written(turn);
            if turn.connection.io.has_output() {
                self.read_ahead(turn);
                return self.upload(turn, input).unwrap_or(Flow::Wait);
            }
        }
        let Some(active) = &mut self.active else {
            if self.is_closing {
                return Flow::Close;
            }
            if let Some(discarding) = self.discarding {
                return self.discard(turn, input, discarding);
            }
            if input.finished >= TURN_REQUESTS || input.sent >= TURN_OCTETS as u64 {
                turn.context
                    .unfinished
                    .borrow_mut()
                    .push(turn.connection.token);
                return Flow::Wait;
            }
            return self.receive_head(turn, input);
        };
        if matches!(active.step, Step::Flushing) {
            input.finished += 1;
            return self.finish(turn);
        }
        match std::mem::replace(&mut active.step, Step::Moving) {
            Step::Collecting(collector) => self.collect(turn, input, collector),
            Step::AwaitingUpload => self.await_upload(turn, input),
            // Nobody is there to be answered: what the handler holds goes with it, such as a connection to a backend.
            Step::Waiting(_) if turn.connection.io.is_broken() => Flow::Close,
            Step::Waiting(waiting) => {
                let waker = active.waker(turn);
                let progress = serve::resume(
                    turn.context,
                    &active.exchange,
                    waiting,
                    &mut TaskContext::from_waker(&waker),
                );
                if matches!(self.inform(turn), Flow::Close) {
                    return Flow::Close;
                }
                let waits = matches!(progress, Progress::Waiting(_));
                let went = self.on_progress(turn, progress);
                if waits {
                    self.upload(turn, input).unwrap_or(Flow::Wait)
                } else {
                    went
                }
            }
            Step::Sending(sending) => self.send(turn, input, sending),
            Step::Flushing | Step::Moving => {
                unreachable!("dealt with above; and every step leaves the next one behind")
            }
        }
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        {
            let exchange = &mut *active.exchange.borrow_mut();
            exchange.is_early = turn.connection.io.is_early();
            exchange.timings.processed = Some(turn.now);
            exchange.timings.processed_at = turn.context.worker.clock.unix();
        }
        let progress = serve::start(turn.context, &active.exchange);
        self.on_progress(turn, progress)
    }

    /// A response that no handler makes; filters see it all the same.
    fn answer(&mut self, turn: &mut Turn<'_>, response: h2o_exchange::Response) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        {
            let timings = &mut active.exchange.borrow_mut().timings;
            timings.processed = Some(turn.now);
            timings.processed_at = turn.context.worker.clock.unix();
        }
        let progress = serve::answer(turn.context, &active.exchange, response);
        self.on_progress(turn, progress)
    }

    fn on_progress(&mut self, turn: &mut Turn<'_>, progress: Progress) -> Flow {
        match progress {
            // No request of HTTP/1 is held, so the second kind of answer does not come up.
            Progress::Response(response) | Progress::TooEarly(response) => {
                self.respond(turn, response)
            }
            Progress::Waiting(waiting) => {
                // Polled at once by the next step; from then on its waker rings.
                let Some(active) = &mut self.active else {
                    return Flow::Close;
                };
                active.step = Step::Waiting(waiting);
                Flow::Continue
            }
        }
    }

    /// Octets of memory held for the request in progress.
    pub(crate) fn retained(&self) -> usize {
        let Some(active) = &self.active else {
            return 0;
        };
        let exchange = active
            .exchange
            .try_borrow()
            .map_or(0, |exchange| exchange.retained());
        let content = match &active.step {
            Step::Collecting(collector) => collector.retained(),
            Step::Sending(sending) => sending.retained(),
            Step::AwaitingUpload | Step::Waiting(_) | Step::Flushing | Step::Moving => 0,
        };
        // An upload is held up at the capacity of its pipe.
        let upload = active.upload.as_ref();
        let upload = upload.map_or(0, |pipe| BodyPipe::CAPACITY + pipe.kept());
        exchange + content + upload
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let discarding = self.discarding.map(|discarding| discarding.until);
        let limits = [self.engine.next_timeout(), self.look_at, discarding];
        limits.into_iter().flatten().min()
    }

    pub(crate) fn on_timeout(&mut self, turn: &mut Turn<'_>) -> Flow {
        let now = turn.now;
        self.see_progress(turn, now);
        let Some(passed) = self.engine.on_timeout(now) else {
            if (self.discarding).is_some_and(|discarding| discarding.until <= now) {
                return Flow::Close;
            }
            if self.keeps_up(turn, now) {
                return Flow::Wait;
            }
            turn.context
                .worker
                .counters
                .count(Counter::Http1RequestIoTimeout);
            self.abandon();
            return Flow::Close;
        };
        let counter = match passed {
            TimeLimit::Head { .. } => Some(Counter::Http1RequestTimeout),
            TimeLimit::Read | TimeLimit::Write => Some(Counter::Http1RequestIoTimeout),
            TimeLimit::Idle | TimeLimit::Shutdown => None,
        };
        if let Some(counter) = counter
            && (self.active.is_some() || self.engine.first_octet_at().is_some())
        {
            turn.context.worker.counters.count(counter);
        }
        let is_first = TimeLimit::Head {
            first_request: true,
        };
        // Browsers open connections that they never use: these leave no line in the log (H2O compatibility: nor do they there).
        if passed == is_first && self.active.is_none() {
            let exchange = turn.context.worker.spare_exchange();
            self.begin_unparsed(turn, &exchange, now);
            serve::log(&exchange.borrow());
            turn.context.worker.release(exchange);
        }
        self.abandon();
        Flow::Close
    }

    /// The kernel holds a good deal of what we wrote; a client that takes it makes progress although the
    /// socket does not ring for each octet.
    fn see_progress(&mut self, turn: &Turn<'_>, now: Instant) {
        if let Some(active) = &mut self.active
            && matches!(active.step, Step::Sending(_) | Step::Flushing)
        {
            let before = std::mem::replace(
                &mut active.unacknowledged,
                turn.connection.io.socket.unacknowledged(),
            );
            if active.unacknowledged < before {
                self.engine
                    .on_written(before - active.unacknowledged, true, now);
            }
        }
    }

    pub(crate) const fn shut_down(&mut self) {
        self.engine.shut_down();
    }

    pub(crate) const fn is_idle(&self) -> bool {
        self.active.is_none() && self.discarding.is_none() && !self.is_closing
    }

    /// True if no request follows the one under way.
    pub(crate) const fn is_shutting_down(&self) -> bool {
        self.is_closing || self.engine.is_shutting_down()
    }

    pub(crate) const fn lingers(&self) -> bool {
        self.lingers
    }

    /// Ends the request in progress, if there is one.
    pub(crate) fn abandon(&mut self) {
        self.active = None;
    }
}
