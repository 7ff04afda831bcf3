//! The request table: everything that happens to a request between the engine of its protocol version and its handlers, written
//! once for all versions.
//!
//! A driver reports what its engine receives (a request, pieces of its body, a reset), which wakers have fired, and when the
//! client can take more. The table admits requests, collects or pipes their bodies, runs their handlers, and answers through
//! [`Streams`], which each protocol version implements. A request has a slot only while it waits for something.

mod admission;
mod answers;
pub(crate) mod blocking;
mod body;
mod collect;
mod content;
mod early;
mod error_page;
mod guards;
pub(crate) mod paces;
mod push;
mod repeat;
mod reroute;
mod resets;
mod respond;
pub(crate) mod routing;
mod run;
pub(crate) mod serve;
mod slots;
mod streams;
pub(crate) mod sub_request;
mod tunnel;
mod upload;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use h2o_exchange::{ExchangeRef, Response};

use crate::context::Context;
use crate::flow::Turn;
use crate::pace::{ClientRate, Pace, TransferState};
pub(crate) use admission::Pending;
pub(crate) use body::BodyRoom;
pub(crate) use content::{Content, PullResult, Source};
use early::EarlyRequests;
use push::Pushes;
use repeat::Latest;
use resets::Resets;
pub(crate) use run::{Arrived, StreamRequest};
use slots::{Mark, Phase, SlotPool, Slots, retire};
pub(crate) use streams::{
    CloseReason, HeadSent, KeptNumber, RequestLimits, ResponseShape, SlotId, StopReason, Streams,
    VersionRules, Window,
};

/// The requests of one connection.
pub(crate) struct Requests {
    slots: Slots,
    /// Requests whose handlers have not started, in order of arrival.
    queue: VecDeque<SlotId>,
    /// Requests whose wakers have fired.
    woken: Vec<SlotId>,
    /// Responses whose body source can [read ahead](Requests::read_ahead).
    ahead: Vec<SlotId>,
    /// Requests whose responses are complete and that only wait for the client's END_STREAM, each with the time at which that wait
    /// ends.
    graces: VecDeque<(Instant, SlotId)>,
    /// State of the requests from TLS early data; present until they are answered.
    early: Option<Box<EarlyRequests>>,
    /// State of the server pushes; present from the first push on.
    pushes: Option<Box<Pushes>>,
    /// The latest response, for a request that comes again.
    latest: Latest,
    /// Counts how often the client has reset requests.
    resets: Resets,
    /// Whether requests that were answered with errors have used up the abuse budget.
    is_overdrawn: bool,
    /// The exchange of a request that was answered at once, until the socket has taken the response. If the socket is full, the
    /// exchange moves to a slot.
    flushing: Option<ExchangeRef>,
    /// The exchange of a request that was answered at once, for reuse by the next one.
    spare: Option<ExchangeRef>,
    /// Number of bytes of response bodies that were sent, and in the next field how many of these have restored units of the abuse
    /// budget.
    sent: u64,
    earned: u64,
}

/// What a driver must do next for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Do nothing: the slot has no request.
    Free,
    /// Receive the request's body.
    Receiving,
    /// Wait until the waker of the request fires.
    Running,
    /// Pull the response's body and send it.
    Sending,
    /// Send the rest of the output of the complete response.
    Flushing,
}

impl Requests {
    /// The table of the requests of a new connection. `is_early` says whether its first requests come as TLS early data.
    pub(crate) fn new(context: &Context, is_early: bool) -> Self {
        Self {
            slots: Slots::new(context.worker.local::<SlotPool>()),
            queue: VecDeque::new(),
            woken: Vec::new(),
            ahead: Vec::new(),
            graces: VecDeque::new(),
            early: is_early.then(Box::default),
            pushes: None,
            latest: Latest::Nothing,
            resets: Resets::default(),
            is_overdrawn: false,
            flushing: None,
            spare: None,
            sent: 0,
            earned: 0,
        }
    }

    /// What the driver must do next for the request in slot `id`.
    #[inline]
    pub(crate) fn stage(&self, id: SlotId) -> Stage {
        match self.slots.get(id).map(|slot| &slot.phase) {
            None if self.flushing.is_some() => Stage::Flushing,
            None => Stage::Free,
            Some(Phase::Collecting(_) | Phase::AwaitingBody(_)) => Stage::Receiving,
            Some(Phase::Sending(_)) => Stage::Sending,
            Some(Phase::Flushing) => Stage::Flushing,
            Some(
                Phase::InStep
                | Phase::Queued
                | Phase::Running(_)
                | Phase::Promised(_)
                | Phase::HalfClosed(_)
                | Phase::InGrace,
            ) => Stage::Running,
        }
    }

    /// The exchange of the request in slot `id`.
    pub(crate) fn exchange(&self, id: SlotId) -> Option<&ExchangeRef> {
        self.slots.get(id)?.exchange.as_ref()
    }

    /// Returns an exchange for the next request.
    pub(crate) fn take_spare(&mut self, context: &Context) -> ExchangeRef {
        self.spare
            .take()
            .unwrap_or_else(|| context.worker.spare_exchange())
    }

    /// Gives back an exchange from [`Requests::take_spare`] for which no request came.
    pub(crate) fn give_back_unused(turn: &Turn<'_>, spare: ExchangeRef) {
        spare.borrow_mut().request.clear();
        let info = turn.connection.info.as_ref();
        if info.is_some_and(|info| Rc::ptr_eq(&spare.borrow().connection, info)) {
            turn.context.worker.release(spare);
        } else {
            turn.context.worker.put_back(spare);
        }
    }

    /// Keeps an exchange from [`Requests::take_spare`] for which no request came, for the rest of the turn.
    pub(crate) fn keep_unused(&mut self, spare: ExchangeRef) {
        spare.borrow_mut().request.clear();
        if self.spare.is_some() {
            let worker = Rc::clone(&spare.borrow().worker);
            worker.release(spare);
        } else {
            self.spare = Some(spare);
        }
    }

    /// Gives the exchange that this turn has kept for reuse back to the worker.
    pub(crate) fn give_back_spare(&mut self) {
        if let Some(spare) = self.spare.take() {
            let worker = Rc::clone(&spare.borrow().worker);
            worker.release(spare);
        }
    }

    /// Notes that the waker of a request has fired.
    pub(crate) fn wake(&mut self, id: SlotId) {
        self.woken.push(id);
    }

    /// Whether requests are queued.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a tunnel is open, or a request asks for one.
    pub(crate) const fn has_tunnel(&self) -> bool {
        self.slots.count(Mark::Tunnel) > 0
    }

    /// Whether a handler, or the source of a response's body, can continue without the client. A request that waits for its
    /// body does not count, unless the configuration allows its client to be silent (`client-min-rate: 0`): in a stream of messages in
    /// both directions, such as a call of gRPC, either side may pause.
    pub(crate) fn waits_for_handlers(&self) -> bool {
        self.slots.count(Mark::Waiting) > 0
            && self.slots.iter().any(|slot| {
                let is_starved = || {
                    slot.is(Mark::Streaming)
                        && (slot.upload.as_ref()).is_some_and(|upload| upload.is_starved())
                        && !slot.may_be_silent()
                };
                slot.is(Mark::Waiting) && !is_starved()
            })
    }

    /// When [`Requests::on_timeout`] must be called: to end a request that waits for the client's END_STREAM, or to start one
    /// that was delayed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let grace = self.graces.front().map(|(until, _)| *until);
        let delay = self.resets.delay_until().filter(|_| self.has_queue());
        grace.into_iter().chain(delay).min()
    }

    /// Whether requests that were answered with errors have used up the abuse budget of the connection since the last call.
    pub(crate) const fn take_overdrawn(&mut self) -> bool {
        std::mem::replace(&mut self.is_overdrawn, false)
    }

    /// Bytes of memory that the table of requests holds.
    pub(crate) fn retained(&self) -> usize {
        let pushes = self.pushes.as_ref().map_or(0, |pushes| pushes.retained());
        self.slots.retained() + pushes + self.latest.retained()
    }

    /// Frees memory that can be allocated again when it is needed. The connection must have no requests.
    pub(crate) fn shrink(&mut self) {
        self.slots.shrink();
        self.queue = VecDeque::new();
        self.woken = Vec::new();
        self.ahead = Vec::new();
        self.latest = Latest::Nothing;
    }

    /// Ends all requests when the connection is closed.
    pub(crate) fn abandon<S: Streams>(&mut self, streams: &S) {
        self.give_back_spare();
        if let Some(exchange) = self.flushing.take() {
            retire(&exchange);
        }
        for (id, slot) in self.slots.numbered() {
            if let Some(exchange) = &slot.exchange {
                streams.before_log(id, exchange);
            }
        }
        self.slots.clear();
        self.graces.clear();
        self.queue.clear();
        self.pushes = None;
    }

    /// Ends a request and its stream, and logs it.
    pub(crate) fn close<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        reason: CloseReason,
    ) {
        if let Some(early) = &mut self.early {
            early.forget(id);
        }
        if let Some(pushes) = &mut self.pushes {
            pushes.forget(id);
        }
        if let Some(slot) = self.slots.get(id) {
            match slot.phase {
                Phase::InGrace => self.graces.retain(|(_, other)| *other != id),
                Phase::Queued => self.queue.retain(|other| *other != id),
                Phase::InStep
                | Phase::Collecting(_)
                | Phase::AwaitingBody(_)
                | Phase::Running(_)
                | Phase::Promised(_)
                | Phase::Sending(_)
                | Phase::Flushing
                | Phase::HalfClosed(_) => {}
            }
            if let Some(exchange) = &slot.exchange {
                streams.before_log(id, exchange);
            }
        }
        streams.close(turn, id, reason);
        self.slots.vacate(id);
    }

    /// Like [`Requests::close`], for a request whose exchange was taken out of its slot.
    fn close_with<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
        reason: CloseReason,
    ) {
        self.slots.occupy(id).exchange = Some(exchange);
        self.close(streams, turn, id, reason);
    }

    /// Answers a request whose remaining body the server does not read. The filters of the request's path run.
    pub(crate) fn refuse<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        response: Response,
        reason: StopReason,
    ) {
        self.slots.mark(id, Mark::Waiting, false);
        if let Some(exchange) = self.take_exchange(id) {
            streams.stop_input(id, reason);
            self.answer(streams, turn, id, exchange, response);
        }
    }

    /// Whether the handler that pulled the request body has stopped reading it.
    fn is_body_abandoned(&self, id: SlotId) -> bool {
        let upload = self.slots.get(id).and_then(|slot| slot.upload.as_ref());
        upload.is_some_and(|upload| upload.pipe.is_abandoned())
    }

    /// Notes that the protocol engine has written the response to the request by itself.
    pub(crate) fn answered_by_engine(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.phase = Phase::Flushing;
        }
    }

    /// Puts the exchange of a malformed request into its slot, so that a log line is written for it.
    pub(crate) fn enter(&mut self, id: SlotId, exchange: ExchangeRef) {
        self.slots.occupy(id).exchange = Some(exchange);
    }

    /// The minimum rate at which the client must send the request's body and take the response.
    pub(crate) fn client_rate(&self, id: SlotId) -> Option<ClientRate> {
        let exchange = self.slots.get(id)?.exchange.as_ref()?;
        Some(ClientRate::of(&exchange.borrow()))
    }

    /// Whether the response has a piece of its body to send now.
    pub(crate) fn has_content(&self, id: SlotId) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|slot| matches!(slot.phase, Phase::Sending(_)) && !slot.is(Mark::Waiting))
    }

    /// Whether the client must send the body of a request now. Once the response has begun, the client is not held to a minimum
    /// rate for the body.
    pub(crate) fn expects_body(&self, id: SlotId) -> bool {
        let Some(slot) = self.slots.get(id) else {
            return false;
        };
        let is_expected = match slot.phase {
            Phase::Collecting(_)
            | Phase::AwaitingBody(_)
            | Phase::Queued
            | Phase::Running(_)
            | Phase::HalfClosed(_) => true,
            Phase::InStep
            | Phase::Promised(_)
            | Phase::Sending(_)
            | Phase::Flushing
            | Phase::InGrace => false,
        };
        is_expected && !slot.is(Mark::Tunnel) && !slot.awaits_continue
    }

    /// Whether the client of a request is fast enough: in sending the request's body and in taking the response.
    pub(crate) fn keeps_up(
        &mut self,
        id: SlotId,
        received: TransferState,
        taken: TransferState,
        rate: &ClientRate,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id) else {
            return true;
        };
        if slot.paces.is_none() && !received.waits_for_client && !taken.waits_for_client {
            return true;
        }
        let paces = slot
            .paces
            .get_or_insert_with(|| Box::new([Pace::new(received.now); 2]));
        let sends = paces[0].keeps_up(received, rate);
        let takes = paces[1].keeps_up(taken, rate);
        sends && takes
    }
}
