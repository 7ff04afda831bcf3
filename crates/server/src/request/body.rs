//! Request bodies: the server collects them, or pipes them to a handler that pulls them.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use h2o_exchange::{ExchangeRef, RequestBody};

use super::collect::{BodyCollection, CollectError, StorageError};
use super::slots::{Mark, Phase, StreamSlot};
use super::upload::Upload;
use super::{Requests, SlotId, StopReason, Streams, Window};
use crate::flow::Turn;

impl Requests {
    /// Takes in a received piece of a request body; `is_end` says whether it is the last piece.
    pub(crate) fn on_data<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        piece: &[u8],
        is_end: bool,
    ) {
        let is_collected = |slot: &StreamSlot| matches!(slot.phase, Phase::Collecting(_));
        let others = match self.slots.get(id).is_some_and(is_collected) {
            true => self.slots.retained_by_others(id),
            false => 0,
        };
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        slot.awaits_continue = false;
        if let Some(exchange) = &slot.exchange
            && let Ok(mut exchange) = exchange.try_borrow_mut()
        {
            exchange.request_body_bytes += piece.len() as u64;
        }
        match &mut slot.phase {
            Phase::Collecting(collecting) => {
                match collecting.collector.push(turn.context, piece, others) {
                    Ok(()) => {}
                    Err(CollectError::Unwanted) => {
                        let owed = collecting.owed + piece.len();
                        streams.open_window(turn, id, Window::Credit(owed));
                        streams.stop_input(id, StopReason::Unwanted);
                        self.start_collected(streams, turn, id);
                        return;
                    }
                    Err(CollectError::Failed(error)) => {
                        self.on_uncollected(streams, turn, id, &error);
                        return;
                    }
                }
                collecting.owed += piece.len();
                collecting.is_complete = is_end;
                self.collect(streams, turn, id);
            }
            Phase::AwaitingBody(_) => {
                self.push_upload(streams, turn, id, piece, is_end);
                if !S::RULES.reads_on_demand && self.pass_guards(streams, turn, id) {
                    self.start_awaiting(streams, turn, id);
                }
            }
            Phase::Queued | Phase::Running(_) | Phase::Sending(_) if slot.upload.is_some() => {
                self.push_upload(streams, turn, id, piece, is_end);
            }
            // No handler reads the rest of the body, so the piece is dropped.
            Phase::Queued | Phase::Running(_) | Phase::Sending(_) | Phase::Flushing => {
                streams.open_window(turn, id, Window::Credit(piece.len()));
            }
            Phase::HalfClosed(_) => {
                self.push_upload(streams, turn, id, piece, is_end);
                if is_end {
                    self.read_on(streams, turn, id);
                }
            }
            Phase::InGrace if is_end => self.end_grace(streams, turn, id),
            Phase::InGrace => streams.open_window(turn, id, Window::Credit(piece.len())),
            // A client cannot send anything on a stream that the server has promised (RFC 9113 §5.1).
            Phase::InStep | Phase::Promised(_) => {}
        }
    }

    /// Whether a driver that reads on demand should read more of a request body now.
    pub(crate) fn poll_body_room(&mut self, turn: &Turn<'_>, id: SlotId) -> BodyRoom {
        let Some(slot) = self.slots.get_mut(id) else {
            return BodyRoom::Unwanted;
        };
        match &slot.phase {
            Phase::Collecting(_) | Phase::AwaitingBody(Some(_)) if slot.is(Mark::Waiting) => {
                BodyRoom::Full
            }
            Phase::Collecting(_) | Phase::AwaitingBody(_) if slot.upload.is_none() => {
                BodyRoom::Free
            }
            _ => {
                let waker = slot.waker(turn, id);
                let Some(upload) = &slot.upload else {
                    return BodyRoom::Unwanted;
                };
                match upload.pipe.poll_room(&mut TaskContext::from_waker(&waker)) {
                    Poll::Ready(_) => BodyRoom::Free,
                    Poll::Pending => BodyRoom::Full,
                }
            }
        }
    }

    /// Tells the handler that pulls a request body that the rest of the body will not come.
    pub(crate) fn break_off_body(&self, id: SlotId, reason: &str) {
        if let Some(upload) = self.slots.get(id).and_then(|slot| slot.upload.as_ref()) {
            upload.break_off(reason);
        }
    }

    /// Whether the first bytes of the request body have come, for which the request waited, so that it can start.
    pub(crate) fn has_begun_body(&self, id: SlotId) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|slot| {
            matches!(slot.phase, Phase::AwaitingBody(None)) && slot.upload.is_some()
        })
    }

    /// Continues to collect a request body: raises the client's flow-control window by the bytes that have been stored, and runs
    /// the handlers once the body is complete.
    pub(super) fn collect<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>, id: SlotId) {
        if !self.pass_guards(streams, turn, id) {
            return;
        }
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        let Phase::Collecting(BodyCollection { collector, .. }) = &slot.phase else {
            return;
        };
        let (needs_disk, is_unwanted) = (collector.needs_disk(), collector.is_unwanted());
        let waker = if needs_disk {
            slot.waker(turn, id)
        } else {
            Waker::noop().clone()
        };
        let Phase::Collecting(collecting) = &mut slot.phase else {
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let polled = if collecting.is_complete {
            collecting.collector.poll_whole(&mut task).map_ok(Some)
        } else {
            collecting.collector.poll_room(&mut task).map_ok(|()| None)
        };
        match polled {
            Poll::Pending => self.slots.mark(id, Mark::Waiting, true),
            Poll::Ready(Ok(None)) => {
                let owed = std::mem::take(&mut collecting.owed);
                self.slots.mark(id, Mark::Waiting, false);
                if !is_unwanted {
                    streams.open_window(turn, id, Window::Body);
                }
                streams.open_window(turn, id, Window::Credit(owed));
            }
            Poll::Ready(Ok(Some(body))) => {
                if let Some(exchange) = &slot.exchange {
                    exchange.borrow_mut().body = body;
                }
                self.slots.mark(id, Mark::Waiting, false);
                self.start_collected(streams, turn, id);
            }
            Poll::Ready(Err(error)) => self.on_uncollected(streams, turn, id, &error),
        }
    }

    /// Takes the exchange out of the slot for the next step of its request.
    pub(super) fn take_exchange(&mut self, id: SlotId) -> Option<ExchangeRef> {
        let slot = self.slots.get_mut(id)?;
        slot.phase = Phase::InStep;
        slot.exchange.take()
    }

    /// Runs the handlers of a request after its body was collected, or after no handler wants the body any more.
    fn start_collected<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>, id: SlotId) {
        if let Some(exchange) = self.take_exchange(id) {
            self.queue_or_start(streams, turn, id, exchange);
        }
    }

    fn on_uncollected<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        error: &StorageError,
    ) {
        let response = (self.exchange(id))
            .map(|exchange| error.answer(turn.context, &mut exchange.borrow_mut()));
        if let Some(response) = response {
            self.refuse(streams, turn, id, response, StopReason::Refused);
        }
    }

    /// Runs the handlers of a request that has waited for the first bytes of its body.
    pub(crate) fn start_awaiting<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        if !matches!(slot.phase, Phase::AwaitingBody(None)) {
            return;
        }
        let upload = slot
            .upload
            .get_or_insert_with(|| Upload::new(Rc::default()));
        let pipe = Rc::clone(&upload.pipe);
        if let Some(exchange) = self.take_exchange(id) {
            exchange.borrow_mut().body = RequestBody::Stream(pipe);
            self.queue_or_start(streams, turn, id, exchange);
        }
    }

    /// Pushes a received piece of a request body to the handler that pulls the body.
    fn push_upload<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        piece: &[u8],
        is_end: bool,
    ) {
        let slot = self.slots.occupy(id);
        let upload = slot
            .upload
            .get_or_insert_with(|| Upload::new(Rc::default()));
        upload.pipe.push(piece);
        upload.queued += piece.len();
        if is_end {
            upload.pipe.finish(Ok(()));
        }
        self.credit_upload(streams, turn, id);
    }

    /// Raises the client's flow-control window by the bytes that a handler has taken out of the pipe of the request body.
    pub(super) fn credit_upload<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) {
        if S::RULES.reads_on_demand {
            return;
        }
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        let is_pulled = matches!(
            slot.phase,
            Phase::Running(_) | Phase::Sending(_) | Phase::HalfClosed(_)
        );
        if slot.upload.is_none() || !is_pulled {
            return;
        }
        let waker = slot.waker(turn, id);
        let Some(upload) = &mut slot.upload else {
            return;
        };
        upload.pipe.watch(&mut TaskContext::from_waker(&waker));
        let queued = upload.pipe.queued();
        let taken = upload.queued.saturating_sub(queued);
        upload.queued = queued;
        streams.open_window(turn, id, Window::Credit(taken));
    }
}

/// Whether the server has room for more bytes of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRoom {
    Free,
    /// There is no room now; the waker of the request fires once there is.
    Full,
    /// No handler reads the body of the request.
    Unwanted,
}
