//! The request side: frames in, requests out to the handlers, content to those who want it.

use std::rc::Rc;
use std::task::Context as TaskContext;

use bytes::Bytes;
use h2o_exchange::{
    Counter, ExchangeRef, Http2Stream, RequestBody, Response, StreamPriority, Timings, Worker,
};
use h2o_http::BodyLength;
use h2o_http::field_section::Refusal;
use h2o_http2::{ErrorCode, PeerError, Received, StreamKey};

use super::content::Collecting;
use super::{Http2, Step, Work};
use crate::admission::{self, Admission, Pending};
use crate::context::Context;
use crate::flow::Turn;
use crate::serve::{self, Progress};

impl Http2 {
    /// Takes in all complete frames of the input.
    pub(super) fn receive(&mut self, turn: &mut Turn<'_>, input: &[u8], at: &mut usize) {
        let now = turn.now;
        let mut spare = self.take_spare(turn.context);
        while !self.is_closing {
            let step = self.engine.receive(
                &input[*at..],
                &mut spare.borrow_mut().request,
                now,
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
            let costs = self.engine.take_costs();
            if costs > 0 && turn.connection.pay_units(turn.context, costs).is_err() {
                self.fail(turn, PeerError::Overdrawn);
            }
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
                    let exchange = spare;
                    self.on_request(turn, stream, exchange, end_stream, refusal);
                    spare = self.take_spare(turn.context);
                }
                Received::Data {
                    stream,
                    data,
                    end_stream,
                } => {
                    let piece = &input[start + data.start..start + data.end];
                    self.on_data(turn, stream, piece, end_stream);
                }
                Received::Trailers { stream } => {
                    // Nobody has vouched for what stands behind the content: it never becomes a field of the head
                    // (RFC 9110 §6.5.1). HTTP/1 drops trailers, too.
                    spare.borrow_mut().request.clear();
                    self.on_data(turn, stream, &[], true);
                }
                Received::Reset {
                    stream,
                    code,
                    by_us,
                } => self.on_reset(turn, stream, code, by_us),
            }
        }
        spare.borrow_mut().request.clear();
        let is_begun = turn
            .connection
            .info
            .as_ref()
            .is_some_and(|info| Rc::ptr_eq(&spare.borrow().connection, info));
        if is_begun {
            turn.context.worker.release(spare);
        } else {
            turn.context.worker.put_back(spare);
        }
    }

    /// The exchange for the next request.
    fn take_spare(&mut self, context: &Context) -> ExchangeRef {
        self.spare
            .take()
            .unwrap_or_else(|| context.worker.spare_exchange())
    }

    fn exchange(&self, stream: StreamKey) -> Option<&ExchangeRef> {
        self.works.get(stream.index())?.exchange.as_ref()
    }

    /// The place for what goes on for a stream.
    pub(super) fn work(&mut self, stream: StreamKey) -> &mut Work {
        let index = stream.index();
        if self.works.len() <= index {
            self.works.resize_with(index + 1, Work::new);
        }
        let work = &mut self.works[index];
        work.key = Some(stream);
        work
    }

    fn on_request(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: ExchangeRef,
        end_stream: bool,
        refusal: Option<Refusal>,
    ) {
        self.requests += 1;
        let info = turn.connection.info();
        if !Worker::is_begun(&exchange.borrow(), &turn.context.site, &info) {
            turn.context
                .worker
                .begin(&exchange, &turn.context.site, &info);
        }
        let now = turn.now;
        {
            let exchange = &mut *exchange.borrow_mut();
            exchange.timings = Timings::starting(now);
            exchange.timings.head = Some(now);
            exchange.http2 = Some(Http2Stream {
                id: self.engine.stream_id(stream).get(),
                ..Http2Stream::default()
            });
            serve::route(exchange, &turn.connection.listener);
        }
        if let Some(refusal) = refusal {
            let (status, reason, text) = refusal.answer();
            turn.context.worker.counters.count_status(status);
            let response = Response::error(status, reason, text);
            self.answer(turn, stream, exchange, response);
            return;
        }
        let (admission, expects_continue) = {
            let exchange = &mut *exchange.borrow_mut();
            if end_stream && matches!(exchange.request.body, BodyLength::Known(_)) {
                // An empty body was announced.
                exchange.body = RequestBody::Bytes(Bytes::new());
            }
            let expects_continue = !end_stream && !exchange.request.expect().is_empty();
            let pending = (!end_stream).then_some(Pending {
                expects_continue,
                has_begun: false,
            });
            let admission = admission::admit(turn.context, exchange, pending);
            (admission, expects_continue)
        };
        match admission {
            Admission::Refuse(response) => {
                self.answer(turn, stream, exchange, response);
            }
            Admission::Start | Admission::StartUnwanted => {
                self.admit(turn, stream, exchange);
            }
            Admission::Tunnel => self.start_tunnel(turn, stream, exchange),
            Admission::StreamOnceAsked => {
                self.await_content(stream, exchange, Step::AwaitingUpload);
                self.work(stream).is_held = true;
                // Its handler is asked as if the first piece, an empty one, were there.
                self.on_upload(turn, stream, &[], false);
            }
            Admission::Stream => {
                if expects_continue {
                    self.send_continue(turn, stream, &mut exchange.borrow_mut());
                }
                self.await_content(stream, exchange, Step::AwaitingUpload);
            }
            Admission::Collect(collector) => {
                if expects_continue {
                    self.send_continue(turn, stream, &mut exchange.borrow_mut());
                }
                let collecting = Collecting::new(collector);
                self.await_content(stream, exchange, Step::Collecting(collecting));
            }
        }
    }

    /// A response that no handler makes; filters see it all the same.
    pub(super) fn answer(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: ExchangeRef,
        response: Response,
    ) {
        let now = turn.now;
        {
            let timings = &mut exchange.borrow_mut().timings;
            timings.processed = Some(now);
            timings.processed_at = turn.context.worker.clock.unix();
        }
        let progress = serve::answer(turn.context, &exchange, response);
        self.on_progress(turn, stream, exchange, progress);
    }

    /// Hands a request to the handlers, or lets it wait for its turn.
    pub(super) fn admit(&mut self, turn: &mut Turn<'_>, stream: StreamKey, exchange: ExchangeRef) {
        let streams = matches!(exchange.borrow().body, RequestBody::Stream(_));
        if self.queue.is_empty() && self.has_place(turn.context, streams) {
            self.start(turn, stream, exchange);
            return;
        }
        let work = self.work(stream);
        work.exchange = Some(exchange);
        work.step = Step::Queued;
        self.queue.push_back(stream);
    }

    pub(super) fn has_place(&mut self, context: &Context, streams: bool) -> bool {
        let settings = &context.http2;
        self.at_work < settings.max_concurrent_requests
            && (!streams || self.streaming < settings.max_concurrent_streaming_requests)
            && !self.is_delayed(context)
    }

    /// True while requests are held up because earlier ones were taken back.
    fn is_delayed(&mut self, context: &Context) -> bool {
        match self.resets.delay_until {
            Some(until) if until > context.worker.clock.now() => true,
            Some(_) => {
                self.resets.delay_until = None;
                false
            }
            None => false,
        }
    }

    /// Starts requests whose turn has come.
    pub(super) fn start_queued(&mut self, turn: &mut Turn<'_>) {
        let mut from = 0;
        while let Some(at) = self.next_startable(turn.context, from) {
            from = at;
            let Some(stream) = self.queue.remove(at) else {
                return;
            };
            let work = self.work(stream);
            work.step = Step::Moving;
            if let Some(exchange) = work.exchange.take() {
                self.start(turn, stream, exchange);
            }
        }
    }

    /// The position in the queue of the next request that may be handed to a handler, from position `from` on.
    pub(super) fn next_startable(&mut self, context: &Context, from: usize) -> Option<usize> {
        if from >= self.queue.len() || !self.has_place(context, false) {
            return None;
        }
        // Other requests need not wait for one that streams.
        let may_stream = self.has_place(context, true);
        (from..self.queue.len()).find(|&at| may_stream || !self.is_streaming(self.queue[at]))
    }

    /// Whether the content of a request streams to its handler.
    fn is_streaming(&self, stream: StreamKey) -> bool {
        let exchange = self.exchange(stream);
        exchange.is_some_and(|exchange| matches!(exchange.borrow().body, RequestBody::Stream(_)))
    }

    pub(super) fn start(&mut self, turn: &mut Turn<'_>, stream: StreamKey, exchange: ExchangeRef) {
        let streams = {
            let exchange = &mut *exchange.borrow_mut();
            exchange.is_early = turn.connection.io.is_early();
            if exchange.is_early {
                self.keep_content(stream, &exchange.body);
            }
            exchange.timings.processed = Some(turn.now);
            exchange.timings.processed_at = turn.context.worker.clock.unix();
            matches!(exchange.body, RequestBody::Stream(_))
        };
        if streams && exchange.borrow().request.body != BodyLength::Tunnel {
            // Its window opens now that somebody wants it.
            self.engine.accept_content(stream, &mut turn.out);
            // Its handler takes the content out of the exchange.
            if !std::mem::replace(&mut self.work(stream).is_streaming, true) {
                self.streaming += 1;
            }
            turn.context
                .worker
                .counters
                .count(Counter::Http2StreamingRequests);
        }
        let progress = serve::start(turn.context, &exchange);
        self.on_progress(turn, stream, exchange, progress);
        if streams {
            // A client that has used up its window sends nothing that would make us look at the pipe.
            self.credit_upload(turn, stream);
        }
    }

    pub(super) fn on_progress(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: ExchangeRef,
        progress: Progress,
    ) {
        match progress {
            Progress::Response(response) => {
                self.respond(turn, stream, exchange, response);
            }
            Progress::TooEarly(response) => {
                self.on_too_early(turn, stream, exchange, response);
            }
            Progress::Waiting(waiting) => {
                let work = self.work(stream);
                work.exchange = Some(exchange);
                work.step = Step::Waiting(waiting);
                if !std::mem::replace(&mut work.is_at_work, true) {
                    self.at_work += 1;
                }
                self.set_waits(stream, true);
                self.resume(turn, stream);
            }
        }
    }

    /// Asks the handler that a stream waits for.
    pub(super) fn resume(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        let work = self.work(stream);
        let waker = waker_of(work, turn, stream);
        let Step::Waiting(waiting) = std::mem::replace(&mut work.step, Step::Moving) else {
            return;
        };
        let Some(exchange) = work.exchange.take() else {
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let progress = serve::resume(turn.context, &exchange, waiting, &mut task);
        self.push_early(turn, stream, &mut exchange.borrow_mut());
        self.inform(turn, stream, &mut exchange.borrow_mut());
        match progress {
            Progress::Waiting(waiting) => {
                let work = self.work(stream);
                work.exchange = Some(exchange);
                work.step = Step::Waiting(waiting);
                self.credit_upload(turn, stream);
            }
            progress @ (Progress::Response(_) | Progress::TooEarly(_)) => {
                self.set_waits(stream, false);
                self.on_progress(turn, stream, exchange, progress);
            }
        }
    }

    /// Whether a stream waits for something on our side.
    pub(super) fn set_waits(&mut self, stream: StreamKey, waits: bool) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        if std::mem::replace(&mut work.waits, waits) {
            self.waiting -= 1;
        }
        self.waiting += usize::from(waits);
    }

    /// Goes on with the streams for which something has happened.
    pub(super) fn run_woken(&mut self, turn: &mut Turn<'_>) {
        let woken = std::mem::take(&mut self.woken);
        for &index in &woken {
            let work = self.works.get(index as usize);
            let Some((key, step)) = work.and_then(|work| Some((work.key?, &work.step))) else {
                continue;
            };
            match step {
                Step::Waiting(_) => self.resume(turn, key),
                Step::Sending(_) => {
                    if self.on_tunnel_woken(turn, key) {
                        continue;
                    }
                    self.set_waits(key, false);
                    self.list_ahead(key);
                    self.engine.set_content(key, true);
                    self.credit_upload(turn, key);
                }
                Step::Receiving(_) => {
                    if !self.on_tunnel_woken(turn, key) {
                        self.read_on(turn, key);
                    }
                }
                Step::Collecting(_) => self.collect(turn, key),
                Step::Moving
                | Step::AwaitingUpload
                | Step::Queued
                | Step::Answered(_)
                | Step::Parting => {}
            }
        }
        // The memory is kept.
        if self.woken.is_empty() {
            self.woken = woken;
            self.woken.clear();
        }
    }

    /// A stream is over before its response was.
    fn on_reset(&mut self, turn: &mut Turn<'_>, stream: StreamKey, code: ErrorCode, by_us: bool) {
        if by_us {
            turn.context.worker.counters.count_http2_error(code.0);
        }
        self.drop_stream(turn, stream);
        self.resets.left = self.resets.left.saturating_sub(1);
        if self.resets.left == 0
            && self.resets.delay_until.is_none()
            && !turn.context.http2.dos_delay.is_zero()
        {
            self.resets.delay_until = Some(turn.now + turn.context.http2.dos_delay);
        }
    }

    /// Ends a stream whose response was not sent to its end.
    pub(super) fn drop_stream(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        if let Some(at) = self.queue.iter().position(|&queued| queued == stream) {
            let _ = self.queue.remove(at);
        }
        if let Some(pushing) = &mut self.pushing {
            pushing.forget(stream);
        }
        self.end_work(stream);
        self.engine.release(stream, &mut turn.out);
    }

    /// Ends what goes on for a stream.
    pub(super) fn end_work(&mut self, stream: StreamKey) {
        if let Some(early) = &mut self.early {
            early.forget(stream);
        }
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        if std::mem::take(&mut work.is_at_work) {
            self.at_work -= 1;
        }
        if std::mem::take(&mut work.waits) {
            self.waiting -= 1;
        }
        if std::mem::take(&mut work.is_streaming) {
            self.streaming -= 1;
        }
        if std::mem::take(&mut work.is_tunnel) {
            self.tunnels -= 1;
        }
        if matches!(work.step, Step::Parting) {
            self.partings.retain(|(_, parting)| *parting != stream);
        }
        if let Some(exchange) = work.exchange.take() {
            self.note_priorities(stream, &exchange);
            self.works[stream.index()].exchange = Some(exchange);
        }
        self.works[stream.index()].end();
    }

    /// Leaves the place of a stream where the log finds it.
    pub(super) fn note_priorities(&self, stream: StreamKey, exchange: &ExchangeRef) {
        if let Some((received, actual)) = self.engine.priorities(stream)
            && let Ok(mut exchange) = exchange.try_borrow_mut()
            && let Some(http2) = &mut exchange.http2
        {
            http2.received = StreamPriority {
                exclusive: received.exclusive,
                parent: received.dependency,
                weight: received.weight,
            };
            http2.actual = StreamPriority {
                exclusive: false,
                parent: actual.parent,
                weight: actual.weight,
            };
        }
    }
}

/// The waker of a stream, made once.
pub(super) fn waker_of(work: &mut Work, turn: &Turn<'_>, stream: StreamKey) -> std::task::Waker {
    let index = u32::try_from(stream.index()).unwrap_or(u32::MAX);
    work.waker
        .get_or_insert_with(|| turn.context.waker(turn.connection.token, index))
        .clone()
}
