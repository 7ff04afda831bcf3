//! The request table: what happens to a request between the engine of its protocol version and the handlers, written once for
//! all versions.
//!
//! A driver reports what its engine receives (a request, pieces of its body, a reset), which wakers have fired, and when the
//! client can take more; the table admits requests, collects or pipes their bodies, runs their handlers, and answers through
//! [`Streams`], which each protocol version implements. A request that is answered at once never has a slot, unless the version
//! keeps it until its last byte has left.

mod admission;
mod answers;
pub(crate) mod blocking;
mod body;
mod collect;
mod content;
mod early;
mod error_page;
mod push;
mod reroute;
mod resets;
mod respond;
pub(crate) mod routing;
mod run;
pub(crate) mod serve;
mod slots;
mod streams;
mod tunnel;
mod upload;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use h2o_exchange::{ExchangeRef, Response};

use crate::context::Context;
use crate::flow::Turn;
use crate::pace::{ClientRate, Look, Pace};
pub(crate) use admission::Pending;
pub(crate) use body::BodyRoom;
pub(crate) use content::{Content, Pulled, Source};
use early::Early;
use push::Pushes;
use resets::Resets;
pub(crate) use run::Arrived;
use slots::{Mark, Phase, SlotPool, Slots, retire};
pub(crate) use streams::{
    CloseReason, HeadSent, RequestLimits, ResponseShape, SlotId, StopReason, Streams, VersionRules,
    Window,
};

/// The requests of one connection.
pub(crate) struct Requests {
    slots: Slots,
    /// Requests that wait to be handed to handlers, in order of arrival.
    queue: VecDeque<SlotId>,
    /// Slots whose waker has fired.
    woken: Vec<SlotId>,
    /// Responses whose source may have more than what could be sent.
    ahead: Vec<SlotId>,
    /// Requests that are over but for the client's END_STREAM, and until when they are kept for it.
    graces: VecDeque<(Instant, SlotId)>,
    /// Present until the requests of TLS early data are answered.
    early: Option<Box<Early>>,
    /// Present once something was to be pushed.
    pushes: Option<Box<Pushes>>,
    /// How often the client has reset requests.
    resets: Resets,
    /// Whether the connection has used up its budget with requests that were answered with errors.
    is_overdrawn: bool,
    /// The exchange of a request that was answered at once, and is over when its last bytes have left. In a slot as soon as they
    /// have to wait.
    flushing: Option<ExchangeRef>,
    /// The exchange of a request that was answered at once, for the next one.
    spare: Option<ExchangeRef>,
    /// Bytes of response bodies that were sent, and how many of them have earned something.
    sent: u64,
    earned: u64,
}

/// What a driver has to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing: there is no request.
    Free,
    /// Receive the body.
    Receiving,
    /// Wait for a waker.
    Running,
    /// Have the body of the response pulled.
    Sending,
    /// Write what is left of the output.
    Flushing,
}

impl Requests {
    /// A table for a new connection. `is_early`: its TLS handshake is not complete.
    pub(crate) fn new(context: &Context, is_early: bool) -> Self {
        Self {
            slots: Slots::new(context.worker.local::<SlotPool>()),
            queue: VecDeque::new(),
            woken: Vec::new(),
            ahead: Vec::new(),
            graces: VecDeque::new(),
            early: is_early.then(Box::default),
            pushes: None,
            resets: Resets::default(),
            is_overdrawn: false,
            flushing: None,
            spare: None,
            sent: 0,
            earned: 0,
        }
    }

    /// What is to be done for a request.
    #[inline]
    pub(crate) fn stage(&self, id: SlotId) -> Stage {
        match self.slots.get(id).map(|slot| &slot.phase) {
            None if self.flushing.is_some() => Stage::Flushing,
            None => Stage::Free,
            Some(Phase::Collecting(_) | Phase::AwaitingBody) => Stage::Receiving,
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

    /// The exchange of a request that waits.
    pub(crate) fn exchange(&self, id: SlotId) -> Option<&ExchangeRef> {
        self.slots.get(id)?.exchange.as_ref()
    }

    /// The exchange for the next request.
    pub(crate) fn take_spare(&mut self, context: &Context) -> ExchangeRef {
        self.spare
            .take()
            .unwrap_or_else(|| context.worker.spare_exchange())
    }

    /// Gives back an exchange kept for the next request of a batch, as the batch is done.
    pub(crate) fn give_back_spare(&mut self) {
        if let Some(spare) = self.spare.take() {
            let worker = Rc::clone(&spare.borrow().worker);
            worker.release(spare);
        }
    }

    /// The waker of a request has fired.
    pub(crate) fn wake(&mut self, id: SlotId) {
        self.woken.push(id);
    }

    /// Whether requests wait for a place.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether there is a tunnel, or a request for one.
    pub(crate) const fn has_tunnel(&self) -> bool {
        self.slots.count(Mark::Tunnel) > 0
    }

    /// Whether some handler, or what makes some content, is at work on its own: not if all of them can only wait for
    /// bodies that the client does not send.
    pub(crate) fn waits_for_handlers(&self) -> bool {
        self.slots.count(Mark::Waiting) > 0
            && self.slots.iter().any(|slot| {
                let is_starved = slot.is(Mark::Streaming)
                    && (slot.upload.as_ref()).is_some_and(|upload| upload.is_starved());
                slot.is(Mark::Waiting) && !is_starved
            })
    }

    /// When there is something to be done: a request that waits for the client's END_STREAM is to be ended, or one in the queue
    /// is no longer delayed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let grace = self.graces.front().map(|(until, _)| *until);
        let delay = self.resets.delay_until().filter(|_| self.has_queue());
        grace.into_iter().chain(delay).min()
    }

    /// Whether the budget was used up since the last call, by requests that were answered with errors.
    pub(crate) const fn take_overdrawn(&mut self) -> bool {
        std::mem::replace(&mut self.is_overdrawn, false)
    }

    /// Bytes of memory held.
    pub(crate) fn retained(&self) -> usize {
        let pushes = self.pushes.as_ref().map_or(0, |pushes| pushes.retained());
        self.slots.retained() + pushes
    }

    /// Gives memory back that can be allocated again. There are no requests.
    pub(crate) fn shrink(&mut self) {
        self.slots.shrink();
        self.queue = VecDeque::new();
        self.woken = Vec::new();
        self.ahead = Vec::new();
    }

    /// Ends all requests: the connection is gone.
    pub(crate) fn abandon(&mut self) {
        self.give_back_spare();
        if let Some(exchange) = self.flushing.take() {
            retire(&exchange);
        }
        self.slots.clear();
        self.graces.clear();
        self.queue.clear();
        self.pushes = None;
    }

    /// Ends a request, and logs it.
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
                | Phase::AwaitingBody
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

    /// As [`Requests::close`], of a request whose exchange is not in its slot.
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

    /// Answers a request of which no more is read. The filters of its path see the response.
    pub(crate) fn refuse<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        response: Response,
    ) {
        self.slots.mark(id, Mark::Waiting, false);
        if let Some(exchange) = self.take_exchange(id) {
            streams.stop_input(id, StopReason::Refused);
            self.answer(streams, turn, id, exchange, response);
        }
    }

    /// Whether the handler that pulled a body does not want the rest.
    fn is_body_abandoned(&self, id: SlotId) -> bool {
        let upload = self.slots.get(id).and_then(|slot| slot.upload.as_ref());
        upload.is_some_and(|upload| upload.pipe.is_abandoned())
    }

    /// Notes an answer that the engine has written by itself.
    pub(crate) fn answered_by_engine(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.phase = Phase::Flushing;
        }
    }

    /// Takes a slot for a request of which nothing is known but what the log tells.
    pub(crate) fn enter(&mut self, id: SlotId, exchange: ExchangeRef) {
        self.slots.occupy(id).exchange = Some(exchange);
    }

    /// The rate at which the client of a request has to send and take bytes.
    pub(crate) fn client_rate(&self, id: SlotId) -> Option<ClientRate> {
        let exchange = self.slots.get(id)?.exchange.as_ref()?;
        Some(*ClientRate::of(&exchange.borrow()))
    }

    /// Whether the body of a response is there to be sent.
    pub(crate) fn has_content(&self, id: SlotId) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|slot| matches!(slot.phase, Phase::Sending(_)) && !slot.is(Mark::Waiting))
    }

    /// Whether the client has to send the body of a request. Once the response has begun, the two may talk as they like.
    pub(crate) fn expects_body(&self, id: SlotId) -> bool {
        let Some(slot) = self.slots.get(id) else {
            return false;
        };
        let is_expected = match slot.phase {
            Phase::Collecting(_)
            | Phase::AwaitingBody
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

    /// Whether the client of a request keeps up, in what it sends and in what it takes.
    pub(crate) fn keeps_up(
        &mut self,
        id: SlotId,
        received: Look,
        taken: Look,
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
