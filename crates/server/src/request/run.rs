//! Takes a request from its complete head to its handlers, and polls the handlers.

use std::task::Context as TaskContext;
use std::time::Instant;

use bytes::Bytes;
use h2o_exchange::{Exchange, ExchangeRef, Protocol, RequestBody, Response, Timings, Worker};
use h2o_http::field_section::Refusal;
use h2o_http::{BodyLength, Headers, StatusCode};

use super::admission::{self, Admission, Pending};
use super::collect::BodyCollection;
use super::guards::Guarded;
use super::serve::{self, Progress};
use super::slots::{Mark, Phase};
use super::{CloseReason, Requests, SlotId, StopReason, Streams, Window, routing};
use crate::flow::Turn;

/// A request whose head has come completely, as a driver passes it to the request table.
pub(crate) struct Arrived {
    pub(crate) exchange: ExchangeRef,
    /// The state of the request's body; present if the body has not come completely.
    pub(crate) pending: Option<Pending>,
    /// The response to a request that the protocol engine has found to be malformed.
    pub(crate) refusal: Option<Response>,
}

/// A request on a stream of a protocol version with many streams per connection, as the protocol engine delivers it.
pub(crate) struct StreamRequest {
    /// The exchange, whose request head is filled in.
    pub(crate) exchange: ExchangeRef,
    pub(crate) protocol: Protocol,
    /// Whether the request ends with its head and has no body.
    pub(crate) end_stream: bool,
    /// Why the protocol engine does not accept the request.
    pub(crate) refusal: Option<Refusal>,
}

impl Requests {
    /// Begins an exchange on this connection; its request head is already filled in. `begun` is the time at which the first byte of
    /// the request came.
    #[inline]
    pub(crate) fn begin(turn: &mut Turn<'_>, exchange: &ExchangeRef, begun: Instant) {
        let info = turn.connection.info();
        let site = &turn.connection.listener.setup.site;
        if !Worker::is_begun(&exchange.borrow(), site, &info) {
            turn.context.worker.begin(exchange, site, &info);
        }
        let exchange = &mut *exchange.borrow_mut();
        exchange.timings = Timings::starting(begun);
        exchange.timings.head = Some(turn.now);
    }

    /// Begins, routes and takes in a request of a protocol version with many streams per connection.
    pub(crate) fn receive_on_stream<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        request: StreamRequest,
    ) {
        let StreamRequest {
            exchange,
            protocol,
            end_stream,
            refusal,
        } = request;
        let mut kept = None;
        if end_stream && refusal.is_none() {
            kept = self.take_kept::<S>(turn, &exchange.borrow().request);
        }
        let now = turn.now;
        Self::begin(turn, &exchange, now);
        exchange.borrow_mut().protocol = protocol;
        if let Some(kept) = kept {
            self.repeat(streams, turn, id, exchange, kept);
            return;
        }
        let expects_continue = {
            let exchange = &mut *exchange.borrow_mut();
            routing::route(exchange, &turn.connection.listener);
            !end_stream && !exchange.request.expect().is_empty()
        };
        let arrived = Arrived {
            exchange,
            pending: (!end_stream).then_some(Pending {
                expects_continue,
                has_begun: false,
            }),
            refusal: refusal.map(|refusal| {
                let (status, reason, text) = refusal.answer();
                turn.context.worker.counters.count_status(status);
                Response::error(status, reason, text)
            }),
        };
        self.receive(streams, turn, id, arrived);
    }

    /// Takes in a request whose exchange was begun and routed.
    pub(crate) fn receive<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        arrived: Arrived,
    ) {
        let Arrived {
            exchange,
            pending,
            refusal,
        } = arrived;
        if let Some(response) = refusal {
            self.answer(streams, turn, id, exchange, response);
            return;
        }
        let expects_continue = pending.is_some_and(|pending| pending.expects_continue);
        let admission = {
            let exchange = &mut *exchange.borrow_mut();
            if pending.is_none() && matches!(exchange.request.body, BodyLength::Known(_)) {
                // The request announces a body of zero bytes.
                exchange.body = RequestBody::Bytes(Bytes::new());
            }
            exchange.is_early = self.early.is_some() && turn.connection.is_early();
            admission::admit(
                turn.context,
                &turn.connection.listener.setup,
                exchange,
                pending,
            )
        };
        match admission {
            Admission::Refuse(response) => {
                streams.stop_input(id, StopReason::Refused);
                self.answer(streams, turn, id, exchange, response);
            }
            Admission::Answered(response) => {
                streams.stop_input(id, StopReason::of_guard(expects_continue));
                self.answer(streams, turn, id, exchange, response);
            }
            Admission::Start => self.queue_or_start(streams, turn, id, exchange),
            Admission::StartUnwanted => {
                streams.stop_input(id, StopReason::Unwanted);
                self.queue_or_start(streams, turn, id, exchange);
            }
            Admission::Tunnel => self.start_tunnel(streams, turn, id, exchange),
            Admission::StreamOnceAsked => {
                self.await_body(id, exchange, Phase::AwaitingBody(None));
                if let Some(slot) = self.slots.get_mut(id) {
                    slot.awaits_continue = true;
                }
                self.start_awaiting(streams, turn, id);
            }
            Admission::Stream => {
                if expects_continue {
                    send_continue(streams, turn, id, &exchange);
                }
                self.await_body(id, exchange, Phase::AwaitingBody(None));
            }
            Admission::StreamOnceGuarded(step) => {
                self.await_body(id, exchange, Phase::AwaitingBody(Some(step)));
                if let Some(slot) = self.slots.get_mut(id) {
                    slot.awaits_continue = expects_continue;
                }
                self.pass_guards(streams, turn, id);
            }
            Admission::Collect(collector) => {
                if expects_continue {
                    send_continue(streams, turn, id, &exchange);
                }
                let collecting = BodyCollection::new(collector, None);
                self.await_body(id, exchange, Phase::Collecting(collecting));
            }
            Admission::CollectOnceGuarded(collector, step) => {
                let collecting = BodyCollection::new(collector, Some(step));
                self.await_body(id, exchange, Phase::Collecting(collecting));
                if let Some(slot) = self.slots.get_mut(id) {
                    slot.awaits_continue = expects_continue;
                }
                self.collect(streams, turn, id);
            }
        }
    }

    /// Polls the step that a request waits for, if any, such as a guard, before more of the request's body is collected or the handlers run
    /// that pull it. Returns whether the body may be read.
    pub(super) fn pass_guards<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id) else {
            return false;
        };
        let Some(awaited) = slot.phase.awaited_step() else {
            return false;
        };
        let Some(step) = awaited.take() else {
            return true;
        };
        let waker = slot.waker(turn, id);
        let Some(exchange) = slot.exchange.clone() else {
            return false;
        };
        match step.poll(&exchange, &mut TaskContext::from_waker(&waker)) {
            Guarded::Waiting(step) => {
                if let Some(awaited) = slot.phase.awaited_step() {
                    *awaited = Some(step);
                }
                // The request now waits for the guard and not for the client, who may be unable to send more of the body before the guard
                // decides.
                self.slots.mark(id, Mark::Waiting, true);
                false
            }
            Guarded::Answered(response) => {
                let reason = StopReason::of_guard(slot.awaits_continue);
                self.refuse(streams, turn, id, response, reason);
                false
            }
            Guarded::Passed => {
                if std::mem::take(&mut slot.awaits_continue) {
                    send_continue(streams, turn, id, &exchange);
                }
                self.slots.mark(id, Mark::Waiting, false);
                true
            }
        }
    }

    fn await_body(&mut self, id: SlotId, exchange: ExchangeRef, phase: Phase) {
        let slot = self.slots.occupy(id);
        slot.exchange = Some(exchange);
        slot.phase = phase;
    }

    /// Answers a request without running its handlers; the filters of its path run.
    pub(crate) fn answer<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        response: Response,
    ) {
        note_processed(turn, &exchange);
        let progress = serve::answer(&turn.context.worker, &exchange, response);
        self.on_progress(streams, turn, id, exchange, progress);
    }

    /// Runs the handlers of a request, or queues it while too many other requests run.
    pub(super) fn queue_or_start<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
    ) {
        let is_streaming = is_streaming(&exchange.borrow());
        if self.queue.is_empty() && self.has_place::<S>(turn, is_streaming) {
            self.start(streams, turn, id, exchange);
            return;
        }
        self.hold(id, exchange);
        self.queue(id);
    }

    /// Has a request wait in its slot until [`Requests::queue`] adds it to the queue.
    pub(crate) fn hold(&mut self, id: SlotId, exchange: ExchangeRef) {
        let slot = self.slots.occupy(id);
        slot.exchange = Some(exchange);
        slot.phase = Phase::Queued;
    }

    /// Adds a request that waits in its slot to the queue.
    pub(crate) fn queue(&mut self, id: SlotId) {
        self.queue.push_back(id);
    }

    /// Whether one more request may run. `is_streaming` says whether its handler pulls the request's body: fewer of those may run.
    #[inline]
    pub(super) fn has_place<S: Streams>(&self, turn: &Turn<'_>, is_streaming: bool) -> bool {
        let limits = S::limits(&turn.connection.listener.setup);
        self.slots.count(Mark::Running) < limits.running
            && (!is_streaming || self.slots.count(Mark::Streaming) < limits.streaming)
            && !self.resets.is_delaying(turn.now)
    }

    /// Starts the queued requests that may run now.
    pub(crate) fn start_queued<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>) {
        let mut from = 0;
        while let Some(at) = self.next_startable::<S>(turn, from) {
            from = at;
            let Some(id) = self.queue.remove(at) else {
                return;
            };
            let slot = self.slots.occupy(id);
            slot.phase = Phase::InStep;
            if let Some(exchange) = slot.exchange.take() {
                self.start(streams, turn, id, exchange);
            }
        }
    }

    /// Whether one of the queued requests may run now.
    pub(crate) fn may_start<S: Streams>(&self, turn: &Turn<'_>) -> bool {
        self.next_startable::<S>(turn, 0).is_some()
    }

    /// Position in the queue of the first request at or after position `from` that may run now.
    fn next_startable<S: Streams>(&self, turn: &Turn<'_>, from: usize) -> Option<usize> {
        if from >= self.queue.len() || !self.has_place::<S>(turn, false) {
            return None;
        }
        // A request that has to wait because its body is streamed does not hold up the other requests behind it.
        let may_stream = self.has_place::<S>(turn, true);
        (from..self.queue.len()).find(|&at| {
            let exchange = self.exchange(self.queue[at]);
            may_stream || !exchange.is_some_and(|exchange| is_streaming(&exchange.borrow()))
        })
    }

    pub(super) fn start<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
    ) {
        note_processed(turn, &exchange);
        let is_streaming = {
            let exchange = &mut *exchange.borrow_mut();
            exchange.is_early = turn.connection.is_early();
            if exchange.is_early {
                self.keep_body(id, &exchange.body);
            }
            is_streaming(exchange)
        };
        if is_streaming && !self.slots.get(id).is_some_and(|slot| slot.is(Mark::Tunnel)) {
            // A handler will pull the body, so the client's flow-control window is raised.
            streams.open_window(turn, id, Window::Body);
            self.slots.mark(id, Mark::Streaming, true);
            if let Some(counter) = S::RULES.streaming_counter {
                turn.context.worker.counters.count(counter);
            }
        }
        let progress = serve::start(&turn.context.worker, &exchange);
        self.send_interims(streams, turn, id, &exchange);
        self.on_progress(streams, turn, id, exchange, progress);
        if is_streaming {
            // A client without a flow-control window sends nothing, so that no later event would make the driver check the pipe of
            // the request body.
            self.credit_upload(streams, turn, id);
        }
    }

    pub(super) fn on_progress<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        progress: Progress,
    ) {
        match progress {
            Progress::Response(response) => self.respond(streams, turn, id, exchange, response),
            Progress::TooEarly(response) => {
                self.on_too_early(streams, turn, id, exchange, response);
            }
            Progress::Waiting(waiting) => {
                let slot = self.slots.occupy(id);
                slot.exchange = Some(exchange);
                slot.phase = Phase::Running(waiting);
                self.slots.mark(id, Mark::Running, true);
                self.slots.mark(id, Mark::Waiting, true);
                self.resume(streams, turn, id);
            }
        }
    }

    /// Polls the handler that a request waits for.
    pub(super) fn resume<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>, id: SlotId) {
        let slot = self.slots.occupy(id);
        let waker = slot.waker(turn, id);
        let Phase::Running(waiting) = std::mem::replace(&mut slot.phase, Phase::InStep) else {
            return;
        };
        let Some(exchange) = slot.exchange.take() else {
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let progress = serve::resume(&turn.context.worker, &exchange, waiting, &mut task);
        self.send_interims(streams, turn, id, &exchange);
        match progress {
            Progress::Waiting(waiting) => {
                let slot = self.slots.occupy(id);
                slot.exchange = Some(exchange);
                slot.phase = Phase::Running(waiting);
                self.credit_upload(streams, turn, id);
            }
            progress @ (Progress::Response(_) | Progress::TooEarly(_)) => {
                self.slots.mark(id, Mark::Waiting, false);
                self.on_progress(streams, turn, id, exchange, progress);
            }
        }
    }

    /// Sends the interim responses that a handler has added, if the client accepts any.
    fn send_interims<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &ExchangeRef,
    ) {
        let exchange = &mut *exchange.borrow_mut();
        if exchange.informational.is_empty() {
            return;
        }
        self.push_ordered(streams, turn, id, exchange);
        let interims = std::mem::take(&mut exchange.informational);
        if !gets_interims::<S>(turn, exchange) {
            return;
        }
        for (status, headers) in &interims {
            if *status == StatusCode::CONTINUE
                && let Some(slot) = self.slots.get_mut(id)
            {
                slot.awaits_continue = false;
            }
            let len = streams.send_interim(turn, id, *status, headers);
            exchange.sent.header_bytes += len as u64;
        }
    }

    /// Continues the requests whose wakers have fired.
    pub(crate) fn run_woken<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>) {
        let woken = std::mem::take(&mut self.woken);
        for &id in &woken {
            let Some(slot) = self.slots.get(id) else {
                continue;
            };
            match slot.phase {
                Phase::Running(_) => self.resume(streams, turn, id),
                Phase::Sending(_) => {
                    if self.check_tunnel(streams, turn, id) {
                        continue;
                    }
                    self.slots.mark(id, Mark::Waiting, false);
                    self.list_ahead(id);
                    streams.set_ready(id, true);
                    self.credit_upload(streams, turn, id);
                }
                Phase::HalfClosed(_) => {
                    if !self.check_tunnel(streams, turn, id) {
                        self.read_on(streams, turn, id);
                    }
                }
                Phase::Collecting(_) => self.collect(streams, turn, id),
                Phase::AwaitingBody(Some(_)) => {
                    if self.pass_guards(streams, turn, id) && self.has_begun_body(id) {
                        self.start_awaiting(streams, turn, id);
                    }
                }
                Phase::InStep
                | Phase::AwaitingBody(None)
                | Phase::Queued
                | Phase::Promised(_)
                | Phase::Flushing
                | Phase::InGrace => {}
            }
        }
        // The emptied vector is kept, so that its memory is used again.
        if self.woken.is_empty() {
            self.woken = woken;
            self.woken.clear();
        }
    }

    /// Called when the client or the protocol engine has reset the stream of a request.
    pub(crate) fn on_reset<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) {
        self.close(streams, turn, id, CloseReason::Reset);
        let limits = S::limits(&turn.connection.listener.setup);
        self.resets.on_reset(&limits, turn.now);
    }
}

/// Whether the handler of the request will pull its body while it arrives. A body that has come completely meanwhile holds up nobody.
fn is_streaming(exchange: &Exchange) -> bool {
    matches!(&exchange.body, RequestBody::Stream(pipe) if !pipe.is_complete())
}

/// Whether the configuration and the client allow interim (1xx) responses to the request.
fn gets_interims<S: Streams>(turn: &Turn<'_>, exchange: &Exchange) -> bool {
    S::limits(&turn.connection.listener.setup).sends_interims
        && serve::wants_informational(exchange)
}

/// Sends 100 (Continue), if the client waits for it and may get it.
pub(super) fn send_continue<S: Streams>(
    streams: &mut S,
    turn: &mut Turn<'_>,
    id: SlotId,
    exchange: &ExchangeRef,
) {
    let exchange = &mut *exchange.borrow_mut();
    if S::RULES.always_continues || gets_interims::<S>(turn, exchange) {
        let len = streams.send_interim(turn, id, StatusCode::CONTINUE, &Headers::new());
        exchange.sent.header_bytes += len as u64;
    }
}

/// Notes for the logs the time at which the handlers of a request begin to run, or at which the request is answered without them.
pub(super) fn note_processed(turn: &Turn<'_>, exchange: &ExchangeRef) {
    let timings = &mut exchange.borrow_mut().timings;
    timings.processed = Some(turn.now);
    timings.processed_at = turn.context.worker.clock.unix();
}
