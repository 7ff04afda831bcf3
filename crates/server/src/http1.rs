//! The HTTP/1 driver: between the engine, the handlers and the socket of one connection.

use std::rc::Rc;
use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use bytes::Bytes;
use h2o_exchange::{BodyPipe, Counter, Exchange, ExchangeRef, RequestBody, Response, Timings};
use h2o_http::{BodyLength, Scheme};
use h2o_http1::{
    Answer, BodyMode, Next, PeerError, Received, ResponseHead, ServerConnection, TimedOut,
};

use crate::budget::Cost;
use crate::collect::Collector;
use crate::connection::{Connection, Fate};
use crate::context::Context;
use crate::io::Read;
use crate::sending::{self, Broken, Pumped, Sending};
use crate::serve::{self, Progress, Waiting};

/// The HTTP/1 side of a connection.
pub(crate) struct Http1 {
    engine: ServerConnection,
    active: Option<Box<Active>>,
    /// No further request is taken; the connection ends when everything is written.
    is_closing: bool,
    /// The client was refused, or has more to say than is read: it must get to see our last octets.
    lingers: bool,
}

/// The request in progress.
struct Active {
    exchange: ExchangeRef,
    step: Step,
    /// A body on its way to a handler that pulls it.
    upload: Option<Rc<BodyPipe>>,
    /// What the kernel had not got rid of when the socket took no more, or the write timer last rang.
    unacknowledged: usize,
    waker: Option<Waker>,
}

impl Active {
    fn new(exchange: ExchangeRef) -> Box<Self> {
        Box::new(Self {
            exchange,
            step: Step::Moving,
            upload: None,
            unacknowledged: 0,
            waker: None,
        })
    }
}

/// However a request ends, a panic included, it is logged and its exchange given back.
impl Drop for Active {
    fn drop(&mut self) {
        // What a handler or a body holds goes before the log line is written.
        self.step = Step::Moving;
        if let Some(pipe) = &self.upload {
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

/// How far one step got.
pub(crate) enum Went {
    /// Something changed: go on.
    On,
    /// The socket or a waker has to ring first.
    Wait,
    /// The connection is over.
    Over,
}

/// Received octets with the position of the first one not taken.
struct Input<'a> {
    buffer: &'a mut Vec<u8>,
    at: usize,
    /// Octets received and requests finished in this turn.
    received: usize,
    finished: usize,
}

/// Octets received from one connection before others get their turn.
const TURN_OCTETS: usize = 1024 * 1024;
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
        }
    }

    /// Goes on as far as possible.
    pub(crate) fn run(&mut self, context: &Context, connection: &mut Connection) -> Fate {
        let owned = !connection.input.is_empty();
        let mut buffer = if owned {
            std::mem::take(&mut connection.input)
        } else {
            context.scratch.input.take()
        };
        let mut input = Input {
            buffer: &mut buffer,
            at: 0,
            received: 0,
            finished: 0,
        };
        let fate = loop {
            match self.step(context, connection, &mut input) {
                Went::On => {}
                Went::Wait => break Fate::Keep,
                Went::Over => break Fate::Close,
            }
        };
        let at = input.at;
        if at < buffer.len() && owned {
            buffer.drain(..at);
            connection.input = buffer;
        } else {
            if at < buffer.len() {
                connection.input = buffer[at..].to_vec();
            }
            context.scratch.input.give_back(buffer);
        }
        if fate == Fate::Close {
            self.abandon();
        }
        fate
    }

    fn step(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        input: &mut Input<'_>,
    ) -> Went {
        if connection.io.has_output() {
            if connection.io.flush().is_err() {
                return Went::Over;
            }
            self.report_written(context, connection);
            if connection.io.has_output() {
                return self
                    .upload(context, connection, input)
                    .unwrap_or(Went::Wait);
            }
        }
        let Some(active) = &mut self.active else {
            if self.is_closing {
                return Went::Over;
            }
            if input.finished >= TURN_REQUESTS {
                context.again.borrow_mut().push(connection.token);
                return Went::Wait;
            }
            return self.receive_head(context, connection, input);
        };
        match std::mem::replace(&mut active.step, Step::Moving) {
            Step::Collecting(collector) => self.collect(context, connection, input, collector),
            Step::AwaitingUpload => self.await_upload(context, connection, input),
            Step::Waiting(waiting) => {
                let waker = active
                    .waker
                    .get_or_insert_with(|| context.waker(connection.token))
                    .clone();
                let progress = serve::resume(
                    context,
                    &active.exchange,
                    waiting,
                    &mut TaskContext::from_waker(&waker),
                );
                let waits = matches!(progress, Progress::Waiting(_));
                let went = self.on_progress(context, connection, progress);
                if waits {
                    self.upload(context, connection, input)
                        .unwrap_or(Went::Wait)
                } else {
                    went
                }
            }
            Step::Sending(sending) => self.send(context, connection, input, sending),
            Step::Flushing => {
                input.finished += 1;
                self.finish(context, connection)
            }
            Step::Moving => unreachable!("every step leaves the next one behind"),
        }
    }

    fn receive_head(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        input: &mut Input<'_>,
    ) -> Went {
        let now = context.worker.clock.now();
        let mut head = context.scratch.head.take();
        head.clear();
        let received = self
            .engine
            .receive(&input.buffer[input.at..], now, &mut head);
        let went = match received {
            Ok(Received::Request { taken }) => {
                input.at += taken;
                let info = connection.info();
                let exchange = context.worker.exchange(&context.site, &info);
                {
                    let exchange = &mut *exchange.borrow_mut();
                    std::mem::swap(&mut exchange.request, &mut head);
                    exchange.timings =
                        Timings::starting(self.engine.first_octet_at().unwrap_or(now));
                    exchange.timings.head = Some(now);
                    exchange.http1_index = self.engine.request_index();
                    serve::route(exchange, &context.listeners[connection.listener].hosts);
                }
                self.active = Some(Active::new(exchange));
                self.begin(context, connection)
            }
            Ok(Received::NeedMore { taken }) => {
                input.at += taken;
                fill(context, connection, input)
            }
            Ok(Received::Data { .. } | Received::BodyEnd { .. } | Received::Http2Preface) => {
                // HTTP/2 is switched off in the engine; the others belong to a request.
                debug_assert!(false, "an event without a request");
                Went::Over
            }
            Err(error) if matches!(error.answer(), Answer::CloseSilently) => {
                self.is_closing = true;
                Went::On
            }
            Err(error) => {
                let exchange = self.unparsed(context, connection, now);
                if !head.target().is_empty() {
                    // Understood, and refused for what it asks: its line is logged.
                    let exchange = &mut *exchange.borrow_mut();
                    std::mem::swap(&mut exchange.request, &mut head);
                    serve::route(exchange, &context.listeners[connection.listener].hosts);
                }
                self.active = Some(Active::new(exchange));
                self.refuse(context, connection, error)
            }
        };
        context.scratch.head.put(head);
        went
    }

    /// A request head is complete: decides what happens to the content.
    fn begin(&mut self, context: &Context, connection: &mut Connection) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        if context.memory.is_tight() {
            return self.refuse_with(context, connection, NO_MEMORY);
        }
        if self.engine.is_body_done() {
            // An empty body may have been announced.
            let exchange = &mut *active.exchange.borrow_mut();
            if matches!(exchange.request.body, BodyLength::Known(_)) {
                exchange.body = RequestBody::Bytes(Bytes::new());
            }
        }
        let is_complete = self.engine.is_body_done()
            || matches!(
                active.exchange.borrow().request.body,
                BodyLength::None | BodyLength::Tunnel
            );
        if is_complete {
            return self.start(context, connection);
        }
        if self.engine.wants_continue() {
            let mut out = Vec::new();
            self.engine
                .send_continue(&mut out, context.worker.clock.now());
            if connection.io.send(context, &out).is_err() {
                return Went::Over;
            }
        }
        active.step = if serve::streams_body(&active.exchange.borrow()) {
            Step::AwaitingUpload
        } else {
            Step::Collecting(Collector::default())
        };
        Went::On
    }

    fn collect(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        input: &mut Input<'_>,
        mut collector: Collector,
    ) -> Went {
        let now = context.worker.clock.now();
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let exchange = Rc::clone(&active.exchange);
        loop {
            let mut exchange = exchange.borrow_mut();
            let received =
                self.engine
                    .receive(&input.buffer[input.at..], now, &mut exchange.request);
            match received {
                Ok(Received::Data { taken, data }) => {
                    let piece = &input.buffer[input.at + data.start..input.at + data.end];
                    if let Err(error) = collector.push(context, piece) {
                        exchange.note_error(
                            "core",
                            &format!("failed to keep the request body:{error}"),
                        );
                        drop(exchange);
                        return self.refuse_with(context, connection, BAD_GATEWAY);
                    }
                    input.at += taken;
                }
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    exchange.request_body_bytes = self.engine.body_received();
                    exchange.body = collector.finish();
                    drop(exchange);
                    return self.start(context, connection);
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    drop(exchange);
                    active.step = Step::Collecting(collector);
                    return fill(context, connection, input);
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Went::Over,
                Err(error) => {
                    drop(exchange);
                    return self.refuse(context, connection, error);
                }
            }
        }
    }

    /// A handler that pulls its content is asked when the first octets are there.
    fn await_upload(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        input: &mut Input<'_>,
    ) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        active.step = Step::AwaitingUpload;
        let pipe = Rc::clone(active.upload.get_or_insert_default());
        let before = self.engine.body_received();
        if let Some(Went::Over) = self.upload(context, connection, input) {
            return Went::Over;
        }
        let arrived = self.engine.body_received() != before || self.engine.is_body_done();
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        if !arrived {
            return if self.is_closing {
                Went::On
            } else {
                Went::Wait
            };
        }
        active.exchange.borrow_mut().body = RequestBody::Stream(pipe);
        self.start(context, connection)
    }

    /// Moves content from the socket to a handler that pulls it. `None`: nothing to do for now.
    fn upload(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        input: &mut Input<'_>,
    ) -> Option<Went> {
        let now = context.worker.clock.now();
        let active = self.active.as_mut()?;
        let pipe = Rc::clone(active.upload.as_ref()?);
        let waker = active
            .waker
            .get_or_insert_with(|| context.waker(connection.token))
            .clone();
        let exchange = Rc::clone(&active.exchange);
        while !self.engine.is_body_done() {
            if pipe
                .poll_room(&mut TaskContext::from_waker(&waker))
                .is_pending()
            {
                self.engine.pause_reading(now);
                return None;
            }
            self.engine.resume_reading(now);
            let received = self.engine.receive(
                &input.buffer[input.at..],
                now,
                &mut exchange.borrow_mut().request,
            );
            match received {
                Ok(Received::Data { taken, data }) => {
                    pipe.push(Bytes::copy_from_slice(
                        &input.buffer[input.at + data.start..input.at + data.end],
                    ));
                    input.at += taken;
                }
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    exchange.borrow_mut().request_body_bytes = self.engine.body_received();
                    pipe.finish(Ok(()));
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    match fill(context, connection, input) {
                        Went::On => {}
                        Went::Wait => return None,
                        Went::Over => {
                            pipe.finish(Err("the client closed the connection".into()));
                            return Some(Went::Over);
                        }
                    }
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Some(Went::Over),
                Err(error) => {
                    pipe.finish(Err(error.name().into()));
                    return Some(self.refuse(context, connection, error));
                }
            }
        }
        None
    }

    fn start(&mut self, context: &Context, connection: &mut Connection) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        {
            let timings = &mut active.exchange.borrow_mut().timings;
            timings.processed = Some(context.worker.clock.now());
            timings.processed_at = context.worker.clock.unix();
        }
        let progress = serve::start(context, &active.exchange);
        self.on_progress(context, connection, progress)
    }

    fn on_progress(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        progress: Progress,
    ) -> Went {
        match progress {
            Progress::Response(response) => self.respond(context, connection, response),
            Progress::Waiting(waiting) => {
                // Polled at once by the next step; from then on its waker rings.
                let Some(active) = &mut self.active else {
                    return Went::Over;
                };
                active.step = Step::Waiting(waiting);
                Went::On
            }
        }
    }

    fn respond(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        response: Response,
    ) -> Went {
        let now = context.worker.clock.now();
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let mut guard = active.exchange.borrow_mut();
        let exchange = &mut *guard;
        exchange.timings.response_start = Some(now);
        exchange.sent.status = Some(response.status);
        let mut out = context.scratch.output.take();
        let head = ResponseHead {
            status: response.status,
            reason: response.reason.as_deref(),
            headers: &response.headers,
            length: response.length,
            server: context.server_field.as_deref().map(str::as_bytes),
        };
        let mode = self.engine.respond(&head, &mut out, now);
        exchange.sent.header_bytes = out.len() as u64;
        exchange.sent.headers = response.headers;
        let body = match mode {
            BodyMode::None => h2o_exchange::Body::Empty,
            BodyMode::Identity(_) | BodyMode::Chunked | BodyMode::UntilClose => response.body,
        };
        let (out, result) = sending::begin(
            context,
            &mut connection.io,
            &mut self.engine,
            out,
            body,
            &mut exchange.sent.body_bytes,
        );
        context.scratch.output.give_back(out);
        drop(guard);
        active.step = match result {
            Ok(None) => Step::Flushing,
            Ok(Some(sending)) => Step::Sending(sending),
            Err(_) => return Went::Over,
        };
        self.report_written(context, connection);
        Went::On
    }

    fn send(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        input: &mut Input<'_>,
        mut sending: Sending,
    ) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let waker = match &sending {
            Sending::Bytes(_) => Waker::noop().clone(),
            Sending::File(_) | Sending::Stream(_) => active
                .waker
                .get_or_insert_with(|| context.waker(connection.token))
                .clone(),
        };
        let mut written = active.exchange.borrow().sent.body_bytes;
        let pumped = sending.pump(
            context,
            &mut connection.io,
            &mut self.engine,
            &mut TaskContext::from_waker(&waker),
            &mut written,
        );
        active.exchange.borrow_mut().sent.body_bytes = written;
        let is_blocked = matches!(pumped, Ok(Pumped::Blocked));
        let went = match pumped {
            Ok(Pumped::Done) => {
                active.step = Step::Flushing;
                Went::On
            }
            Ok(Pumped::Blocked) => {
                active.step = Step::Sending(sending);
                Went::Wait
            }
            Ok(Pumped::Waiting) => {
                active.step = Step::Sending(sending);
                Went::Wait
            }
            Ok(Pumped::Again) => {
                active.step = Step::Sending(sending);
                context.again.borrow_mut().push(connection.token);
                Went::Wait
            }
            Err(Broken::Socket) => return Went::Over,
            Err(Broken::Body(error)) => {
                active
                    .exchange
                    .borrow_mut()
                    .note_error("core", &error.to_string());
                let mut out = Vec::new();
                self.engine.abort(&mut out);
                if connection.io.send(context, &out).is_err() {
                    return Went::Over;
                }
                active.step = Step::Flushing;
                Went::On
            }
        };
        self.report_sending(context, connection, is_blocked);
        match went {
            Went::Wait => self
                .upload(context, connection, input)
                .unwrap_or(Went::Wait),
            other => other,
        }
    }

    fn report_written(&mut self, context: &Context, connection: &mut Connection) {
        let pending = connection.io.has_output();
        self.report_sending(context, connection, pending);
    }

    fn report_sending(&mut self, context: &Context, connection: &mut Connection, is_blocked: bool) {
        let written = connection.io.take_written();
        let pending = is_blocked || connection.io.has_output();
        self.engine
            .on_written(written, pending, context.worker.clock.now());
        if pending && let Some(active) = &mut self.active {
            active.unacknowledged = connection.io.socket.unacknowledged();
        }
    }

    /// The response has left as a whole: logs the exchange and turns to the next request.
    fn finish(&mut self, context: &Context, connection: &mut Connection) -> Went {
        let now = context.worker.clock.now();
        let status = self
            .active
            .as_ref()
            .and_then(|active| active.exchange.borrow().sent.status);
        let is_error = status.is_some_and(|status| status.as_u16() >= 400);
        self.active = None;
        self.lingers |= !self.engine.is_body_done();
        match self.engine.next(now) {
            Next::Request => {}
            Next::Close => self.is_closing = true,
        }
        if is_error {
            return connection.pay(context, Cost::Refusal);
        }
        connection.earn(context);
        Went::On
    }

    fn refuse(&mut self, context: &Context, connection: &mut Connection, error: PeerError) -> Went {
        self.refuse_with(context, connection, error.answer())
    }

    /// Answers a request that cannot be served, past all filters, and closes.
    fn refuse_with(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        answer: Answer,
    ) -> Went {
        let now = context.worker.clock.now();
        let mut out = Vec::new();
        self.engine.error_response(
            answer,
            context.server_field.as_deref().map(str::as_bytes),
            &mut out,
        );
        self.is_closing = true;
        self.lingers = true;
        let Answer::Respond { status, body, .. } = answer else {
            self.active = None;
            return Went::On;
        };
        context.worker.counters.count_status(status);
        if let Some(active) = &mut self.active {
            let exchange = &mut *active.exchange.borrow_mut();
            if !out.is_empty() {
                exchange.sent.status = Some(status);
                exchange.sent.first_status = Some(status);
                exchange.sent.body_bytes = body.len() as u64;
                exchange.sent.header_bytes = (out.len() - body.len().min(out.len())) as u64;
                exchange.timings.response_start = Some(now);
            }
            active.step = Step::Flushing;
        }
        if connection.io.send(context, &out).is_err() {
            return Went::Over;
        }
        self.report_written(context, connection);
        Went::On
    }

    /// An exchange for a request that was never understood, for the log.
    fn unparsed(
        &self,
        context: &Context,
        connection: &mut Connection,
        now: Instant,
    ) -> ExchangeRef {
        let info = connection.info();
        let exchange = context.worker.exchange(&context.site, &info);
        {
            let exchange: &mut Exchange = &mut exchange.borrow_mut();
            exchange.timings = Timings::starting(self.engine.first_octet_at().unwrap_or(now));
            exchange.timings.processed = Some(now);
            exchange.timings.processed_at = context.worker.clock.unix();
            exchange.http1_index = self.engine.request_index() + 1;
            exchange.request.scheme = context.listeners[connection.listener].scheme();
            serve::route_unparsed(exchange, &context.listeners[connection.listener].hosts);
        }
        exchange
    }

    /// Octets of memory held for the request in progress.
    pub(crate) fn retained(&self) -> usize {
        self.active.as_ref().map_or(0, |active| match &active.step {
            Step::Collecting(collector) => collector.retained(),
            Step::AwaitingUpload
            | Step::Waiting(_)
            | Step::Sending(_)
            | Step::Flushing
            | Step::Moving => {
                // An upload is held up at the capacity of its pipe.
                active.upload.as_ref().map_or(0, |_| BodyPipe::CAPACITY)
            }
        })
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.engine.next_timeout()
    }

    pub(crate) fn on_timeout(
        &mut self,
        context: &Context,
        connection: &mut Connection,
        now: Instant,
    ) -> Fate {
        self.see_progress(connection, now);
        let Some(passed) = self.engine.on_timeout(now) else {
            return Fate::Keep;
        };
        let counter = match passed {
            TimedOut::Head { .. } => Counter::Http1RequestTimeout,
            TimedOut::Read | TimedOut::BodyRate | TimedOut::Write => Counter::Http1RequestIoTimeout,
        };
        if self.active.is_some() || self.engine.first_octet_at().is_some() {
            context.worker.counters.count(counter);
        }
        if let (
            TimedOut::Head {
                first_request: true,
            },
            None,
        ) = (passed, &self.active)
        {
            let exchange = self.unparsed(context, connection, now);
            serve::log(&exchange.borrow());
            context.worker.release(exchange);
        }
        self.abandon();
        Fate::Close
    }

    /// The kernel holds a good deal of what we wrote; a client that takes it makes progress although the
    /// socket does not ring for each octet.
    fn see_progress(&mut self, connection: &Connection, now: Instant) {
        if let Some(active) = &mut self.active
            && matches!(active.step, Step::Sending(_) | Step::Flushing)
        {
            let before = std::mem::replace(
                &mut active.unacknowledged,
                connection.io.socket.unacknowledged(),
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
        self.active.is_none() && !self.is_closing
    }

    pub(crate) const fn lingers(&self) -> bool {
        self.lingers
    }

    /// Ends the request in progress, if there is one.
    pub(crate) fn abandon(&mut self) {
        self.active = None;
    }
}

/// The answer to new work while `max-memory` is nearly used up.
const NO_MEMORY: Answer = Answer::Respond {
    status: h2o_http::StatusCode::SERVICE_UNAVAILABLE,
    reason: "Service Unavailable",
    body: "please try again later",
};
const BAD_GATEWAY: Answer = Answer::Respond {
    status: h2o_http::StatusCode::BAD_GATEWAY,
    reason: "Bad Gateway",
    body: "Bad Gateway",
};

/// Fewer octets than this behind an incomplete piece are a fragment.
const FRAGMENT: usize = 256;

/// Receives more octets behind those not taken yet.
fn fill(context: &Context, connection: &mut Connection, input: &mut Input<'_>) -> Went {
    if input.at == input.buffer.len() {
        input.buffer.clear();
        input.at = 0;
    }
    if input.received >= TURN_OCTETS {
        context.again.borrow_mut().push(connection.token);
        return Went::Wait;
    }
    let had = input.buffer.len();
    let read = connection.io.read(context, input.buffer);
    input.received += input.buffer.len() - had;
    match read {
        // What is still incomplete was made so by few octets: a client that drips pays for it.
        Ok(Read::Data) if had > 0 && input.buffer.len() - had < FRAGMENT => {
            connection.pay(context, Cost::Fragment)
        }
        Ok(Read::Data) => Went::On,
        Ok(Read::Blocked) => Went::Wait,
        Ok(Read::Eof) | Err(_) => Went::Over,
    }
}
