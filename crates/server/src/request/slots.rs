//! The slots in which the requests of one connection wait, and the number of requests in each state.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use h2o_exchange::{BodySource, Exchange, ExchangeRef, Response};

use super::collect::BodyCollection;
use super::content::Content;
use super::guards::WaitingStep;
use super::streams::SlotId;
use super::upload::Upload;
use crate::flow::Turn;
use crate::pace::{ClientRate, Pace};
use crate::request::serve::{self, WaitingHandler};

/// State of a request that cannot be answered at once, because it has to wait for something.
pub(crate) struct StreamSlot {
    /// The request's exchange; `None` while a step of the request has taken it.
    pub(super) exchange: Option<ExchangeRef>,
    pub(super) phase: Phase,
    /// The request body on its way to a handler; present if a handler pulls the body, or may open a tunnel.
    pub(super) upload: Option<Upload>,
    /// Whether the client waits for 100 (Continue) before it sends the body.
    pub(super) awaits_continue: bool,
    /// Progress of the transfers of the request's body and of the response's body; created at the first check for slow clients.
    pub(super) paces: Option<Box<[Pace; 2]>>,
    waker: Option<Waker>,
    marks: [bool; Mark::COUNT],
}

/// What a request in a slot waits for.
pub(super) enum Phase {
    /// The slot has no request, or the request is being worked on.
    InStep,
    /// The request waits until the server has collected its whole body.
    Collecting(BodyCollection),
    /// The request waits for the first bytes of its body, which its handler will pull; before that for this step, if there is one.
    AwaitingBody(Option<WaitingStep>),
    /// The request waits until fewer requests run, or the TLS handshake has ended.
    Queued,
    /// The request waits for the response of this handler.
    Running(WaitingHandler),
    /// The response of a push waits until the head of the response that it was promised with is sent.
    Promised(Box<Response>),
    /// The request waits for the scheduler, for space in the socket, or for more of the response's body.
    Sending(Content),
    /// The request waits for the socket, which has not taken the last bytes of the response.
    Flushing,
    /// The response is complete, and the request waits for the client's END_STREAM. The request's body is still being read: by the
    /// handler of a tunnel, or by this source of the response's body, which must be polled for that.
    HalfClosed(Option<Box<dyn BodySource>>),
    /// The response was sent, and the request waits for the client's END_STREAM: until it comes, the rest of the request's body
    /// is read and dropped.
    InGrace,
}

impl Phase {
    /// The place of the step, such as a guard, that a request waits for before its body is read; `None` in other phases.
    pub(super) const fn awaited_step(&mut self) -> Option<&mut Option<WaitingStep>> {
        match self {
            Self::Collecting(collecting) => Some(&mut collecting.awaited),
            Self::AwaitingBody(step) => Some(step),
            Self::InStep
            | Self::Queued
            | Self::Running(_)
            | Self::Promised(_)
            | Self::Sending(_)
            | Self::Flushing
            | Self::HalfClosed(_)
            | Self::InGrace => None,
        }
    }
}

/// Properties of requests; the table counts how many requests have each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A handler of the request did not answer at once, and the request is not over.
    Running,
    /// Only a handler, or the source of the response's body, can continue the request.
    Waiting,
    /// A handler pulls the body of the request.
    Streaming,
    /// The request asks for a tunnel, or has opened one.
    Tunnel,
    /// The request comes from a server push, not from the client.
    Promised,
}

impl Mark {
    const COUNT: usize = 5;
}

impl StreamSlot {
    /// Whether the configuration sets no minimum rate for the client.
    pub(super) fn may_be_silent(&self) -> bool {
        let exchange = self
            .exchange
            .as_ref()
            .and_then(|exchange| exchange.try_borrow().ok());
        exchange.is_some_and(|exchange| ClientRate::of(&exchange).is_off())
    }

    fn new() -> Box<Self> {
        Box::new(Self {
            exchange: None,
            phase: Phase::InStep,
            upload: None,
            awaits_continue: false,
            paces: None,
            waker: None,
            marks: [false; Mark::COUNT],
        })
    }

    pub(super) const fn is(&self, mark: Mark) -> bool {
        self.marks[mark as usize]
    }

    /// The waker of the request; created on first use, for all requests in the slot's place.
    pub(super) fn waker(&mut self, turn: &Turn<'_>, id: SlotId) -> Waker {
        self.waker
            .get_or_insert_with(|| turn.context.waker(turn.connection.token, id.index()))
            .clone()
    }

    /// Bytes of memory that the slot holds.
    pub(super) fn retained(&self) -> usize {
        let exchange = self.exchange.as_ref().map_or(0, |exchange| {
            exchange
                .try_borrow()
                .map_or(0, |exchange| exchange.retained())
        });
        let body = match &self.phase {
            Phase::Collecting(collecting) => collecting.retained(),
            Phase::Sending(content) => content.retained(),
            Phase::Promised(response) => response.body.retained(),
            Phase::HalfClosed(Some(source)) => source.retained(),
            Phase::InStep
            | Phase::AwaitingBody(_)
            | Phase::Queued
            | Phase::Running(_)
            | Phase::Flushing
            | Phase::HalfClosed(None)
            | Phase::InGrace => 0,
        };
        let upload = self.upload.as_ref().map_or(0, Upload::retained);
        exchange + body + upload
    }

    /// Ends the request: logs its exchange and gives it back for reuse.
    fn end(&mut self) {
        // The handler and the bodies are dropped before the log line is written.
        self.phase = Phase::InStep;
        self.waker = None;
        self.awaits_continue = false;
        self.paces = None;
        if let Some(upload) = self.upload.take() {
            upload.break_off("the stream was closed");
        }
        if let Some(exchange) = self.exchange.take() {
            retire(&exchange);
        }
    }
}

/// However the request ends, even by a panic, its log line is written and its exchange given back.
impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes the log line of a request whose response was sent or cancelled.
pub(super) fn log(exchange: &mut Exchange) {
    exchange.timings.response_end = Some(exchange.worker.clock.now());
    serve::log(exchange);
}

/// Logs an exchange and gives it back to the worker for reuse.
pub(super) fn retire(reference: &ExchangeRef) {
    let worker = {
        let Ok(mut exchange) = reference.try_borrow_mut() else {
            return;
        };
        log(&mut exchange);
        Rc::clone(&exchange.worker)
    };
    worker.release(Rc::clone(reference));
}

/// Unused slots of a worker; a new request takes one, so that none need be allocated.
#[derive(Default)]
pub(super) struct SlotPool {
    #[expect(
        clippy::vec_box,
        reason = "the pool keeps the allocated boxes for later requests"
    )]
    free: RefCell<Vec<Box<StreamSlot>>>,
}

impl SlotPool {
    const KEPT: usize = 128;

    fn take(&self) -> Box<StreamSlot> {
        self.free.borrow_mut().pop().unwrap_or_else(StreamSlot::new)
    }

    fn give_back(&self, slot: Box<StreamSlot>) {
        let mut free = self.free.borrow_mut();
        if free.len() < Self::KEPT {
            free.push(slot);
        }
    }
}

/// The place of a slot on its connection.
#[derive(Default)]
struct Place {
    slot: Option<Box<StreamSlot>>,
    /// The waker of the place's last request, for the next one.
    waker: Option<Waker>,
}

/// The slots of one connection.
pub(super) struct Slots {
    /// The place of the slot [`SlotId::ONLY`]: a connection with one request at a time needs no vector of places.
    first: Place,
    others: Vec<Place>,
    counts: [usize; Mark::COUNT],
    pool: Rc<SlotPool>,
}

impl Slots {
    pub(super) const fn new(pool: Rc<SlotPool>) -> Self {
        Self {
            first: Place {
                slot: None,
                waker: None,
            },
            others: Vec::new(),
            counts: [0; Mark::COUNT],
            pool,
        }
    }

    fn place(&self, id: SlotId) -> Option<&Place> {
        match id.index() {
            0 => Some(&self.first),
            index => self.others.get(index as usize - 1),
        }
    }

    fn place_mut(&mut self, id: SlotId) -> Option<&mut Place> {
        match id.index() {
            0 => Some(&mut self.first),
            index => self.others.get_mut(index as usize - 1),
        }
    }

    #[inline]
    pub(super) fn get(&self, id: SlotId) -> Option<&StreamSlot> {
        self.place(id)?.slot.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut StreamSlot> {
        self.place_mut(id)?.slot.as_deref_mut()
    }

    /// Returns the slot `id`; creates it if there is none.
    pub(super) fn occupy(&mut self, id: SlotId) -> &mut StreamSlot {
        let index = id.index() as usize;
        if self.others.len() < index {
            self.others.resize_with(index, Place::default);
        }
        let place = match index {
            0 => &mut self.first,
            _ => &mut self.others[index - 1],
        };
        place.slot.get_or_insert_with(|| {
            let mut slot = self.pool.take();
            slot.waker = place.waker.take();
            slot
        })
    }

    /// Ends the request in a slot: writes its log line, and frees the slot.
    pub(super) fn vacate(&mut self, id: SlotId) {
        let Some(place) = self.place_mut(id) else {
            return;
        };
        let Some(mut slot) = place.slot.take() else {
            return;
        };
        place.waker = slot.waker.take();
        for (count, mark) in self.counts.iter_mut().zip(&mut slot.marks) {
            *count -= usize::from(std::mem::take(mark));
        }
        slot.end();
        self.pool.give_back(slot);
    }

    /// Sets or clears a mark of a request.
    pub(super) fn mark(&mut self, id: SlotId, mark: Mark, is_set: bool) {
        let Some(slot) = self.get_mut(id) else {
            return;
        };
        let was_set = std::mem::replace(&mut slot.marks[mark as usize], is_set);
        let count = &mut self.counts[mark as usize];
        *count = *count + usize::from(is_set) - usize::from(was_set);
    }

    /// Number of requests that have `mark`.
    #[inline]
    pub(super) const fn count(&self, mark: Mark) -> usize {
        self.counts[mark as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StreamSlot> {
        self.numbered().map(|(_, slot)| slot)
    }

    /// All requests with the numbers of their slots.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (SlotId, &StreamSlot)> {
        let all = std::iter::once(&self.first).chain(&self.others);
        let numbered = (0..).map(SlotId::new).zip(all);
        numbered.filter_map(|(id, place)| Some((id, place.slot.as_deref()?)))
    }

    /// Bytes of memory that the slots hold.
    pub(super) fn retained(&self) -> usize {
        let places = self.others.capacity() * size_of::<Place>();
        let slots = self
            .iter()
            .map(|slot| size_of::<StreamSlot>() + slot.retained());
        places + slots.sum::<usize>()
    }

    /// Bytes of memory that the requests in all slots but one hold.
    pub(super) fn retained_by_others(&self, id: SlotId) -> usize {
        let others = self.numbered().filter(|(other, _)| *other != id);
        others.map(|(_, slot)| slot.retained()).sum()
    }

    /// Frees memory that can be allocated again when it is needed.
    pub(super) fn shrink(&mut self) {
        self.first.waker = None;
        self.others = Vec::new();
    }

    /// Ends the requests in all slots.
    pub(super) fn clear(&mut self) {
        self.first = Place::default();
        self.others.clear();
        self.counts = [0; Mark::COUNT];
    }
}
