//! Sends responses: heads, short bodies together with their heads, longer bodies by pulling them from their sources. Ends requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context as TaskContext, Waker};

use h2o_exchange::{Body, BodyError, Counter, Exchange, ExchangeRef, RequestBody, Response};
use h2o_http::{BodyLength, Method, StatusCode};

use super::content::{Content, PullResult, Source};
use super::slots::{Mark, Phase, log, retire};
use super::{CloseReason, Requests, ResponseShape, SlotId, StopReason, Streams};
use crate::budget::Cost;
use crate::flow::Turn;
use crate::request::serve;

/// Units of the abuse budget that the connection gets back for a request that was served.
pub(super) const EARNED_BY_REQUEST: u32 = 2;
/// Bytes of response bodies that restore one unit of the abuse budget, since the client's window updates for these bytes cost about
/// one unit.
const BYTES_PER_UNIT: u64 = 2048;

impl Requests {
    /// Sends the head of a response, and its body either at once or later by pulling it.
    pub(super) fn respond<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        mut response: Response,
    ) {
        if response.is_refusal {
            self.close_with(streams, turn, id, exchange, CloseReason::Refused);
            return;
        }
        let mut guard = exchange.borrow_mut();
        let this = &mut *guard;
        let opens_tunnel =
            self.has_tunnel() && self.prepare_tunnel(streams, id, this, &mut response);
        if !self.amend(streams, turn, id, this, &mut response) {
            drop(guard);
            self.close_with(streams, turn, id, exchange, CloseReason::PushCancelled);
            return;
        }
        if response.status.as_u16() >= 400 && turn.pay(Cost::Refusal.units()).is_err() {
            self.is_overdrawn = true;
            streams.stop_input(id, StopReason::Overdrawn);
        }
        if !opens_tunnel {
            drop_unread_body(this);
        }
        if self.is_body_abandoned(id) {
            streams.stop_input(id, StopReason::Abandoned);
        }
        serve::add_date(&turn.context.worker, &mut response);
        // A status like 101 (Switching Protocols) allows no body, but if the response opens a tunnel, the bytes of the tunnel are its body
        // here.
        let is_bodyless = response.status.is_bodyless() && !opens_tunnel;
        let has_body = !is_bodyless
            && *this.original_method() != Method::Head
            && match &response.body {
                Body::Empty => false,
                Body::Bytes(bytes) => !bytes.is_empty(),
                Body::File(_) | Body::Stream(_) => true,
            };
        // A response with 304 may name the length of the content that the client has (RFC 9110 §8.6).
        if is_bodyless && response.status != StatusCode::NOT_MODIFIED {
            response.length = None;
        }
        let shape = ResponseShape {
            has_body,
            opens_tunnel,
            is_behind_push: self
                .pushes
                .as_ref()
                .is_some_and(|pushes| pushes.has_urgent()),
            kept: None,
        };
        if let Some(premise) = this.premise.take() {
            self.note_latest(turn, this, &response, shape, &premise);
        }
        let sent = self.send_head(streams, turn, id, this, &mut response, shape);
        this.sent.headers = response.headers;
        drop(guard);
        self.send_rest(
            streams,
            turn,
            id,
            exchange,
            response.body,
            response.length,
            sent,
        );
    }

    /// Sends the head of a response, and its body if that can be sent at once. Returns the length of the body in bytes if the whole
    /// response was written.
    #[inline]
    pub(super) fn send_head<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
        shape: ResponseShape,
    ) -> Option<usize> {
        exchange.timings.response_start = Some(turn.now);
        let sent = streams.send_head(turn, id, exchange, response, shape);
        exchange.sent.status = Some(response.status);
        exchange.sent.header_bytes += sent.head_len as u64;
        if let Some(len) = sent.body_len {
            exchange.sent.body_bytes = len as u64;
            self.sent += len as u64;
        }
        sent.body_len
    }

    /// Ends a response if its head was `sent` with the whole body; otherwise has the driver pull the body.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a response come from two places"
    )]
    pub(super) fn send_rest<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        body: Body,
        length: Option<u64>,
        sent: Option<usize>,
    ) {
        if sent.is_some() {
            if let Body::Stream(_) = body
                && let Some(slot) = self.slots.get_mut(id)
                && let Some(content) = Content::new(body, None)
            {
                // The response's body source is polled even if the response has no body left: it may be what reads the body of the
                // request.
                slot.phase = Phase::Sending(content);
            }
            self.on_written(streams, turn, id, Some(exchange));
            return;
        }
        let Some(content) = Content::new(body, length) else {
            return;
        };
        let slot = self.slots.occupy(id);
        slot.exchange = Some(exchange);
        slot.phase = Phase::Sending(content);
        self.list_ahead(id);
        streams.set_ready(id, true);
    }

    /// Called when the whole response has been written.
    #[inline]
    fn on_written<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: Option<ExchangeRef>,
    ) {
        if !S::RULES.ends_when_flushed {
            self.finish(streams, turn, id, exchange);
        } else if let Some(slot) = self.slots.get_mut(id) {
            slot.phase = Phase::Flushing;
            if exchange.is_some() {
                slot.exchange = exchange;
            }
        } else {
            self.flushing = exchange;
        }
    }

    /// Keeps the exchange until the socket takes the last bytes of its response. Called when the socket's buffer is full.
    #[cold]
    pub(crate) fn on_blocked(&mut self, id: SlotId) {
        if let Some(exchange) = self.flushing.take() {
            let slot = self.slots.occupy(id);
            slot.exchange = Some(exchange);
            slot.phase = Phase::Flushing;
        }
    }

    /// Called when the socket has taken the last bytes of a response.
    #[inline]
    pub(crate) fn on_flushed<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) {
        let exchange = self.flushing.take();
        self.finish(streams, turn, id, exchange);
    }

    /// Called when the response is complete. Ends the request, or has it wait for the client's END_STREAM.
    #[inline]
    pub(super) fn finish<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: Option<ExchangeRef>,
    ) {
        match exchange {
            Some(exchange) if self.slots.get(id).is_none() && !streams.is_input_open(id) => {
                self.finish_without_slot(streams, turn, id, exchange);
            }
            exchange => self.finish_slot(streams, turn, id, exchange),
        }
    }

    /// Ends a request that was answered at once and never had a slot.
    #[inline]
    fn finish_without_slot<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
    ) {
        earn_by(turn, &exchange);
        self.resets.on_finished();
        if is_logged(&exchange) {
            streams.before_log(id, &exchange);
        }
        if S::RULES.ends_when_flushed || self.spare.is_some() {
            retire(&exchange);
        } else {
            self.keep_spare(exchange);
        }
        if let Some(early) = &mut self.early {
            early.forget(id);
        }
        streams.close(turn, id, CloseReason::Complete);
    }

    fn finish_slot<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: Option<ExchangeRef>,
    ) {
        let is_half_open = streams.is_input_open(id);
        if let Some(exchange) = exchange {
            let slot = self.slots.occupy(id);
            slot.exchange = Some(exchange);
        }
        let is_refused_tunnel = is_half_open && self.is_refused_tunnel(id);
        if is_half_open && self.keep_half_open(id) {
            self.read_on(streams, turn, id);
        } else if is_refused_tunnel {
            self.end(streams, turn, id, CloseReason::EnoughRead);
        } else {
            self.leave(streams, turn, id);
        }
    }

    /// Whether a request asked for a tunnel that its response did not open. Such a request has no body, so its stream can be reset
    /// at once.
    fn is_refused_tunnel(&self, id: SlotId) -> bool {
        let Some(slot) = self.slots.get(id) else {
            return false;
        };
        let exchange = slot.exchange.as_ref();
        !slot.is(Mark::Tunnel)
            && exchange.is_some_and(|exchange| exchange.borrow().request.body == BodyLength::Tunnel)
    }

    /// Ends a request whose response is complete.
    fn end<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        reason: CloseReason,
    ) {
        self.resets.on_finished();
        if let Some(exchange) = self.exchange(id) {
            earn_by(turn, exchange);
        }
        self.close(streams, turn, id, reason);
    }

    /// Ends a request whose response is complete. Its stream ends once the client has sent END_STREAM, or when the wait for that
    /// times out.
    pub(super) fn leave<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>, id: SlotId) {
        if !streams.is_input_open(id) {
            self.end(streams, turn, id, CloseReason::Complete);
            return;
        }
        if S::RULES.stops_bodies_at_once {
            self.end(streams, turn, id, CloseReason::EnoughRead);
            return;
        }
        self.resets.on_finished();
        if let Some(exchange) = self.exchange(id) {
            earn_by(turn, exchange);
        }
        self.end_exchange(streams, id);
        self.begin_grace(turn, id);
    }

    /// Writes the log line of a request that is over, while its stream is kept.
    fn end_exchange<S: Streams>(&mut self, streams: &S, id: SlotId) {
        if let Some(early) = &mut self.early {
            early.forget(id);
        }
        if let Some(exchange) = self.exchange(id) {
            streams.before_log(id, exchange);
        }
        self.slots.vacate(id);
    }

    /// Writes the log line of a request that is over, and keeps its exchange for the next request of this turn.
    fn keep_spare(&mut self, exchange: ExchangeRef) {
        {
            let exchange = &mut *exchange.borrow_mut();
            log(exchange);
            exchange.rewind();
            exchange.request.clear();
        }
        self.spare = Some(exchange);
    }

    /// Moves up to `max` bytes of a response's body from its source to the client.
    pub(crate) fn pull<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        max: usize,
    ) -> Option<PullResult> {
        self.pull_by(streams, turn, id, |content, streams, turn, task| {
            content.pull(streams, turn, id, max, task)
        })
    }

    /// Moves bytes of a response's body to the client by the function `pull`. Returns `None` if the request is over, or has no body
    /// to pull.
    pub(crate) fn pull_by<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        pull: impl FnOnce(
            &mut Content,
            &mut S,
            &mut Turn<'_>,
            &mut TaskContext<'_>,
        ) -> Result<PullResult, BodyError>,
    ) -> Option<PullResult> {
        let Some(slot) = self.slots.get_mut(id) else {
            streams.set_ready(id, false);
            return None;
        };
        let waker = match &slot.phase {
            Phase::Sending(content) if !content.needs_waker() => Waker::noop().clone(),
            _ => slot.waker(turn, id),
        };
        let Phase::Sending(content) = &mut slot.phase else {
            streams.set_ready(id, false);
            return None;
        };
        let mut task = TaskContext::from_waker(&waker);
        let pulled = if matches!(content.source, Source::Stream(_)) {
            // If the source of a body panics, only its response ends.
            let pull = || pull(content, streams, turn, &mut task);
            catch_unwind(AssertUnwindSafe(pull)).unwrap_or_else(|_| {
                turn.context.worker.counters.count(Counter::Panics);
                Err(BodyError::Failed(
                    "panic while the response body was produced".into(),
                ))
            })
        } else {
            pull(content, streams, turn, &mut task)
        };
        match pulled {
            Ok(PullResult::Data { len, is_end }) => {
                self.sent += len as u64;
                if let Some(exchange) = &slot.exchange {
                    exchange.borrow_mut().sent.body_bytes += len as u64;
                }
                if is_end {
                    self.on_written(streams, turn, id, None);
                } else {
                    self.list_ahead(id);
                }
            }
            Ok(PullResult::Waiting) => {
                // The source of the body has just been polled, so it need not read ahead.
                content.is_listed = false;
                streams.set_ready(id, false);
                self.slots.mark(id, Mark::Waiting, true);
            }
            Ok(PullResult::Blocked) => {}
            Err(error) => {
                self.break_off(streams, turn, id, &error);
                return None;
            }
        }
        pulled.ok()
    }

    /// Ends a response whose body cannot be completed, in a way by which the client notices the truncation.
    fn break_off<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        error: &BodyError,
    ) {
        let Some(slot) = self.slots.get(id) else {
            return;
        };
        let reason = match error {
            _ if slot.is(Mark::Tunnel) => CloseReason::TunnelBroken,
            BodyError::Local(_) => CloseReason::BodyLost,
            BodyError::Failed(_) | BodyError::Reported(_) => CloseReason::BodyBroken,
        };
        if let Some(exchange) = &slot.exchange {
            exchange.borrow_mut().note_body_error(error);
        }
        self.close(streams, turn, id, reason);
    }

    /// Notes that the source of the response's body can [read ahead](Requests::read_ahead).
    pub(super) fn list_ahead(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(id)
            && let Phase::Sending(content) = &mut slot.phase
            && matches!(content.source, Source::Stream(_))
            && !std::mem::replace(&mut content.is_listed, true)
        {
            self.ahead.push(id);
        }
    }

    /// Polls the sources of response bodies, so that they read ahead while the client cannot take more.
    pub(crate) fn read_ahead(&mut self, turn: &Turn<'_>) {
        let mut ahead = std::mem::take(&mut self.ahead);
        for id in ahead.drain(..) {
            let Some(slot) = self.slots.get_mut(id) else {
                continue;
            };
            let waker = slot.waker(turn, id);
            if let Phase::Sending(content) = &mut slot.phase
                && std::mem::take(&mut content.is_listed)
                && let Source::Stream(source) = &mut content.source
            {
                source.poll_ahead(&mut TaskContext::from_waker(&waker));
            }
        }
        // The emptied vector is kept, so that its memory is used again.
        self.ahead = ahead;
    }

    /// Restores units of the connection's abuse budget for bytes of response bodies that were sent.
    pub(crate) fn earn_by_bodies(&mut self, turn: &mut Turn<'_>) {
        let unearned = self.sent - self.earned;
        if unearned >= BYTES_PER_UNIT {
            let units = u32::try_from(unearned / BYTES_PER_UNIT).unwrap_or(u32::MAX);
            self.earned = self.sent - unearned % BYTES_PER_UNIT;
            turn.earn(units);
        }
    }

    /// Number of bytes of response bodies that were sent on this connection.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }
}

/// Restores units of the abuse budget for a request that was served. A request that was answered with an error restores none: it
/// has cost units.
fn earn_by(turn: &mut Turn<'_>, exchange: &ExchangeRef) {
    let status = exchange.borrow().sent.status;
    if status.is_some_and(|status| status.as_u16() < 400) {
        turn.earn(EARNED_BY_REQUEST);
    }
}

/// Whether a log gets a line for this request.
#[inline]
fn is_logged(exchange: &ExchangeRef) -> bool {
    let exchange = exchange.borrow();
    !exchange.site.path(exchange.route).loggers.is_empty()
}

/// Abandons the request's body if nobody pulls it: a handler that does not use the body has answered, before the one for which the body
/// streams.
fn drop_unread_body(exchange: &mut Exchange) {
    // The slot of the request and the exchange have a handle each; whoever pulls the body has a third one.
    if let RequestBody::Stream(pipe) = &exchange.body
        && Rc::strong_count(pipe) <= 2
    {
        pipe.abandon();
        exchange.body = RequestBody::None;
    }
}
