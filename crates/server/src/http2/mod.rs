//! The HTTP/2 driver: between the engine, the handlers and the socket of one connection.
//!
//! Everything that arrived in one read is answered in one write: frames are taken in first, what can be answered at
//! once goes straight behind the other output, the rest is pulled in the order the engine's scheduler says.

mod content;
mod debug;
mod early;
mod paces;
mod pushing;
mod receiving;
mod responding;
mod sending;
mod tunnel;

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use h2o_exchange::{BodyPipe, BodySource, Counter, Exchange, ExchangeRef, Http2Stream, Response};
use h2o_http::TimeLimit;
use h2o_http2::{PeerError, ServerConnection, StreamKey};

use crate::connection_state::ConnectionState;
use crate::context::{Context, per_turn};
use crate::flow::{Flow, Turn};
use crate::io::Read;
use crate::latency::Latency;
use crate::serve::{self, Waiting};
use content::Collecting;
use early::Early;
use paces::{Paces, StreamPaces};
use pushing::Pushing;
use sending::Sending;

/// Octets received from one connection before it is answered.
const READ_TURN: usize = per_turn(256 * 1024);
/// Octets sent on one connection before others get their turn.
const SEND_TURN: usize = per_turn(1024 * 1024);
/// Reading stops while more octets than this wait for a client that does not take them (H2O compatibility).
const MAX_BACKLOG: usize = per_turn(512 * 1024);
/// Octets of output collected before they are sent even though more could be answered.
const FULL: usize = per_turn(192 * 1024);
/// With more connections than this, idle ones let go of what can be made again.
const MANY: usize = 256;
/// Fewer octets than this that complete no frame are a fragment.
const FRAGMENT: usize = 256;

/// The HTTP/2 side of a connection.
pub(crate) struct Http2 {
    engine: ServerConnection,
    /// By [`StreamKey::index`].
    works: Vec<Work>,
    /// Requests that wait to be handed to handlers, in order of arrival.
    queue: VecDeque<StreamKey>,
    /// The exchange of a request that was answered at once, for the next one.
    spare: Option<ExchangeRef>,
    /// Streams something that they wait for is ready for, by index.
    woken: Vec<u32>,
    /// Responses whose source may have more than what could be sent ([`Sending::is_ahead`]).
    ahead: Vec<StreamKey>,
    /// Requests that handlers have not answered at once, and that are not over.
    at_work: usize,
    /// Streams that wait for a handler, or for what makes their content.
    waiting: usize,
    /// Of these, requests whose content streams in.
    streaming: usize,
    /// Requests for tunnels, and tunnels.
    tunnels: usize,
    /// Streams that are [`Step::Parting`], and until when they may.
    partings: VecDeque<(Instant, StreamKey)>,
    resets: ResetBudget,
    /// Present once something was to be pushed.
    pushing: Option<Box<Pushing>>,
    /// What came before the TLS handshake was complete.
    early: Option<Box<Early>>,
    /// Octets of output per write.
    round: usize,
    /// The kernel keeps no more than that unsent, so that a new response can overtake; 0: what it likes.
    low_water: u32,
    latency: Latency,
    /// No further request is taken; the connection ends when everything is written.
    is_closing: bool,
    wants_shutdown: bool,
    paces: Paces,
    /// Octets of content sent, and how many of them have earned something.
    sent: u64,
    earned: u64,
    requests: u64,
}

/// How often requests may be taken back before new ones are made to wait (H2O compatibility).
struct ResetBudget {
    left: u32,
    delay_until: Option<Instant>,
}

/// What goes on for one stream.
pub(crate) struct Work {
    key: Option<StreamKey>,
    exchange: Option<ExchangeRef>,
    step: Step,
    /// A body on its way to a handler that pulls it, and how many octets went into it.
    upload: Option<Upload>,
    waker: Option<Waker>,
    /// Counted in [`Http2::at_work`].
    is_at_work: bool,
    /// Counted in [`Http2::streaming`].
    is_streaming: bool,
    /// Counted in [`Http2::waiting`].
    waits: bool,
    /// Counted in [`Http2::tunnels`].
    is_tunnel: bool,
    /// The client waits to be told that it may send its content.
    is_held: bool,
    /// Made when the stream is first looked at.
    paces: Option<Box<StreamPaces>>,
}

struct Upload {
    pipe: Rc<BodyPipe>,
    /// Octets in the pipe when it was last looked at.
    queued: usize,
}

/// What a stream waits for.
enum Step {
    /// Nothing goes on, or the step is being taken.
    Moving,
    /// Its content.
    Collecting(Collecting),
    /// The first octets of content that its handler will pull.
    AwaitingUpload,
    /// Its turn.
    Queued,
    /// A handler.
    Waiting(Waiting),
    /// The end of the head of the response that it was promised with.
    Answered(Box<Response>),
    /// Its turn to send, window, or more content of the response.
    Sending(Sending),
    /// The end of the client's direction; ours has ended. Besides the handler of a tunnel, it may be what made the content of the
    /// response that reads on, and is polled for that.
    Receiving(Option<Box<dyn BodySource>>),
    /// The end of the client's direction; the request is over, and what comes is dropped.
    Parting,
}

impl Work {
    const fn new() -> Self {
        Self {
            key: None,
            exchange: None,
            step: Step::Moving,
            upload: None,
            waker: None,
            is_at_work: false,
            is_streaming: false,
            waits: false,
            is_tunnel: false,
            is_held: false,
            paces: None,
        }
    }

    /// The stream is over: its exchange is logged and given back.
    fn end(&mut self) {
        // What a handler or a body holds goes before the log line is written.
        self.step = Step::Moving;
        self.waker = None;
        self.key = None;
        self.is_held = false;
        self.paces = None;
        if let Some(upload) = self.upload.take() {
            upload.pipe.finish(Err("the stream was closed".into()));
        }
        if let Some(exchange) = self.exchange.take() {
            retire(&exchange);
        }
    }
}

/// However a stream ends, a panic included, its exchange is logged and given back.
impl Drop for Work {
    fn drop(&mut self) {
        self.end();
    }
}

/// The response has left, or will not: the log line is written.
fn log(exchange: &mut Exchange) {
    exchange.timings.response_end = Some(exchange.worker.clock.now());
    serve::log(exchange);
}

/// Logs an exchange and gives it back.
fn retire(reference: &ExchangeRef) {
    let worker = {
        let Ok(mut exchange) = reference.try_borrow_mut() else {
            return;
        };
        log(&mut exchange);
        Rc::clone(&exchange.worker)
    };
    worker.release(Rc::clone(reference));
}

impl Http2 {
    pub(crate) fn new(context: &Context, connection: &ConnectionState, now: Instant) -> Self {
        let origins = connection.listener.origins.clone();
        let engine = ServerConnection::new(context.http2.engine.clone(), origins, now);
        let mut http2 = Self::with_engine(context, engine);
        http2.early = connection.io.is_early().then(Box::default);
        http2
    }

    /// Goes on from an HTTP/1.1 request, which becomes stream 1. `None`: the settings it brought are none.
    pub(crate) fn upgraded(
        turn: &mut Turn<'_>,
        settings: &[u8],
        exchange: &ExchangeRef,
    ) -> Option<Self> {
        let _now = turn.now;
        let limits = turn.context.http2.engine.clone();
        let (engine, stream) =
            ServerConnection::upgraded(limits, settings, turn.now, &mut turn.out).ok()?;
        exchange.borrow_mut().http2 = Some(Http2Stream {
            id: engine.stream_id(stream).get(),
            ..Http2Stream::default()
        });
        let mut http2 = Self::with_engine(turn.context, engine);
        http2.requests = 1;
        let work = http2.work(stream);
        work.exchange = Some(ExchangeRef::clone(exchange));
        work.step = Step::Queued;
        http2.queue.push_back(stream);
        Some(http2)
    }

    fn with_engine(context: &Context, engine: ServerConnection) -> Self {
        Self {
            engine,
            works: Vec::new(),
            queue: VecDeque::new(),
            spare: None,
            woken: Vec::new(),
            ahead: Vec::new(),
            at_work: 0,
            waiting: 0,
            streaming: 0,
            tunnels: 0,
            partings: VecDeque::new(),
            resets: ResetBudget {
                left: context.http2.reset_budget,
                delay_until: None,
            },
            pushing: None,
            early: None,
            round: sending::FIRST_ROUND,
            low_water: 0,
            latency: Latency::Unknown,
            is_closing: false,
            wants_shutdown: context.worker.shutting_down.get(),
            paces: Paces::new(context.worker.clock.now()),
            sent: 0,
            earned: 0,
            requests: 0,
        }
    }

    /// Goes on as far as possible.
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
            self.rest(turn.context);
            self.plan_look(turn);
        }
        flow
    }

    fn advance(&mut self, turn: &mut Turn<'_>, input: &mut Vec<u8>, at: &mut usize) -> Flow {
        let now = turn.now;
        if std::mem::take(&mut self.wants_shutdown) {
            self.engine.shut_down(now, &mut turn.out);
        }
        if self.is_early_over(turn) {
            self.end_early(now);
        }
        self.run_woken(turn);
        let mut sent = 0;
        loop {
            if turn.connection.io.flush().is_err() {
                return Flow::Close;
            }
            match self.take_in(turn, input, at) {
                Ok(()) => {}
                Err(Gone) => {
                    turn.context.worker.counters.count(Counter::Http2ReadClosed);
                    return Flow::Close;
                }
            }
            self.start_queued(turn);
            if self.pushing.is_some() && !self.is_closing {
                self.send_pushes(turn);
            }
            if !self.is_closing && !turn.connection.io.has_output() {
                self.pump(turn);
            }
            let had = turn.out.len();
            if !turn.out.is_empty() {
                if turn.send().is_err() {
                    return Flow::Close;
                }
                sent += had;
            }
            self.see_written(turn);
            let is_blocked = turn.connection.io.has_output();
            if !is_blocked && (self.is_closing || self.engine.is_over()) {
                return Flow::Close;
            }
            // A response that has just been sent to its end may have made room for a request in the queue.
            let may_start = !self.is_closing && self.next_startable(turn.context, 0).is_some();
            let may_send =
                had > 0 && (self.engine.has_sendable() || turn.connection.io.may_have_input());
            if !may_start && (is_blocked || !may_send) {
                self.read_ahead(turn);
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

    /// Receives and takes in what has come.
    fn take_in(
        &mut self,
        turn: &mut Turn<'_>,
        input: &mut Vec<u8>,
        at: &mut usize,
    ) -> Result<(), Gone> {
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
                Ok(Read::Eof) | Err(_) => return Err(Gone),
            }
            let came = input.len() - had;
            received += came;
            self.engine.on_activity(turn.now);
            let before = *at;
            self.receive(turn, input, at);
            if *at == before
                && came < FRAGMENT
                && turn.connection.pay_units(turn.context, 1).is_err()
            {
                self.fail(turn, PeerError::Overdrawn);
            }
        }
        Ok(())
    }

    /// The socket has taken some of our output.
    fn see_written(&mut self, turn: &mut Turn<'_>) {
        let written = turn.connection.io.take_written();
        if written > 0 {
            self.paces.written += written as u64;
            self.engine.on_activity(turn.now);
        }
        if !turn.connection.io.has_output() {
            if written >= self.round {
                self.round = (2 * self.round).min(sending::LAST_ROUND);
            }
        } else {
            self.round = sending::FIRST_ROUND;
        }
    }

    /// Ends the connection for what the client did.
    fn fail(&mut self, turn: &mut Turn<'_>, error: PeerError) {
        if let Some((code, _)) = error.answer() {
            turn.context.worker.counters.count_http2_error(code.0);
        }
        self.engine.fail(error, &mut turn.out);
        self.is_closing = true;
    }

    /// An exchange kept for the next request of a batch goes back when the batch is done.
    fn give_back_spare(&mut self) {
        if let Some(spare) = self.spare.take() {
            let worker = Rc::clone(&spare.borrow().worker);
            worker.release(spare);
        }
    }

    /// Nothing goes on: memory that can be made again is given back where connections are many.
    fn rest(&mut self, context: &Context) {
        self.give_back_spare();
        if self.engine.has_streams() || context.worker.shared.connections() <= MANY {
            return;
        }
        self.works = Vec::new();
        self.queue = VecDeque::new();
        self.woken = Vec::new();
        self.ahead = Vec::new();
        self.engine.shrink();
    }

    /// Something that stream waits for is ready.
    pub(crate) fn wake(&mut self, stream: u32) {
        self.woken.push(stream);
    }

    /// True if the client need not do anything for us to go on. Tunnels may be silent, and held up, for as long as their
    /// handlers like. A handshake it has to complete, whatever we do (H2O
    /// compatibility).
    fn is_waiting_for_us(&self, connection: &ConnectionState) -> bool {
        !connection.io.is_early()
            && (self.is_waiting_for_handlers()
                || self.tunnels > 0
                || !self.queue.is_empty()
                || connection.io.has_output()
                || self.engine.has_sendable())
    }

    /// True if some handler, or what makes some content, is at work on its own: not if all of them can only wait for
    /// content that the client does not send.
    fn is_waiting_for_handlers(&self) -> bool {
        self.waiting > 0
            && self.works.iter().any(|work| {
                let is_starved = work.is_streaming
                    && (work.upload.as_ref()).is_some_and(|upload| upload.pipe.is_starved());
                work.waits && !is_starved
            })
    }

    pub(crate) fn deadline(&self, connection: &ConnectionState) -> Option<Instant> {
        let engine = self.engine.next_timeout(self.is_waiting_for_us(connection));
        let delay = self.resets.delay_until.filter(|_| !self.queue.is_empty());
        let parting = self.parting_deadline();
        [engine, self.paces.look_at, delay, parting]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn on_timeout(&mut self, turn: &mut Turn<'_>) -> Flow {
        if self.look_at_paces(turn) == Flow::Close {
            turn.context
                .worker
                .counters
                .count(Counter::Http2WriteClosed);
            self.abandon();
            return Flow::Close;
        }
        self.end_partings(turn);
        let waits = self.is_waiting_for_us(turn.connection);
        let passed = self.engine.on_timeout(turn.now, waits, &mut turn.out);
        if passed == Some(TimeLimit::Idle) {
            turn.context
                .worker
                .counters
                .count(Counter::Http2IdleTimeout);
        }
        if turn.send().is_err() || passed.is_some() {
            self.abandon();
            return Flow::Close;
        }
        // A delay may have passed, or the last stream may be gone.
        self.run(turn)
    }

    /// The process is to end: clients are told (RFC 9113 §6.8).
    pub(crate) const fn shut_down(&mut self) {
        self.wants_shutdown = true;
    }

    /// True while no request is in progress, after the first one.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests > 0 && !self.is_closing && !self.engine.has_streams()
    }

    /// True once the client has been told that the connection ends.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.is_closing || self.engine.is_shutting_down()
    }

    /// Octets of memory held.
    pub(crate) fn retained(&self) -> usize {
        let works: usize = self.works.iter().map(Work::retained).sum();
        let pushing = (self.pushing.as_ref()).map_or(0, |pushing| pushing.retained());
        works + self.works.capacity() * size_of::<Work>() + pushing + self.engine.retained()
    }

    /// Ends everything in progress.
    pub(crate) fn abandon(&mut self) {
        self.give_back_spare();
        self.works.clear();
        self.pushing = None;
        self.at_work = 0;
        self.waiting = 0;
        self.streaming = 0;
        self.tunnels = 0;
        self.partings.clear();
    }
}

impl Work {
    fn retained(&self) -> usize {
        let exchange = self.exchange.as_ref().map_or(0, |exchange| {
            exchange
                .try_borrow()
                .map_or(0, |exchange| exchange.retained())
        });
        let content = match &self.step {
            Step::Collecting(collecting) => collecting.retained(),
            Step::Sending(sending) => sending.retained(),
            Step::Answered(response) => response.body.retained(),
            Step::Receiving(Some(source)) => source.retained(),
            Step::Moving
            | Step::AwaitingUpload
            | Step::Queued
            | Step::Waiting(_)
            | Step::Receiving(None)
            | Step::Parting => 0,
        };
        let upload = self.upload.as_ref();
        let upload = upload.map_or(0, |upload| upload.queued + upload.pipe.kept());
        exchange + content + upload
    }
}

/// The client is gone, or the socket failed.
struct Gone;
