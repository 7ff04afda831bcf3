//! Tunnels (CONNECT, upgrades, extended CONNECT), and the directions of a stream that end one after the other.
//!
//! The body of the response goes to the client as it is; what the client sends goes into the pipe that the handler was given
//! with the request. Either direction ends without the other (RFC 9113 §8.5).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Context as TaskContext;
use std::time::Duration;

use h2o_exchange::{BodyPipe, Counter, Exchange, ExchangeRef, RequestBody, Response};

use super::content::{Content, Source};
use super::slots::{Mark, Phase};
use super::upload::Upload;
use super::{CloseReason, Requests, SlotId, StopReason, Streams, Window};
use crate::flow::Turn;

/// The receive window of a tunnel, bytes: what a handler that takes nothing makes the server hold.
const WINDOW: u32 = 1024 * 1024;
/// Tunnels of one connection that get so much; others keep the window that streams begin with.
const WIDE: usize = 16;
/// How long a client may take to end its direction of a stream whose other one is over.
const GRACE: Duration = Duration::from_secs(5);

impl Requests {
    /// Hands a request for a tunnel to its handlers. It does not wait for a place (H2O compatibility: H2O does not count
    /// tunnels among the concurrent requests).
    pub(super) fn start_tunnel<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
    ) {
        let pipe = Rc::new(BodyPipe::default());
        exchange.borrow_mut().body = RequestBody::Stream(Rc::clone(&pipe));
        let slot = self.slots.occupy(id);
        pipe.set_owner(slot.waker(turn, id));
        slot.upload = Some(Upload::new(pipe));
        if self.slots.count(Mark::Tunnel) < WIDE {
            streams.open_window(turn, id, Window::Tunnel(WINDOW));
        }
        self.slots.mark(id, Mark::Tunnel, true);
        self.start(streams, turn, id, exchange);
    }

    /// The response to a request for a tunnel is about to be sent. If it opens none, what the client may have sent ahead has
    /// no use. Returns whether it opens one.
    pub(super) fn prepare_tunnel<S: Streams>(
        &mut self,
        streams: &mut S,
        id: SlotId,
        exchange: &mut Exchange,
        response: &Response,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.is(Mark::Tunnel)) else {
            return false;
        };
        if exchange.request.is_tunnel_opened_by(response.status) {
            // From now on only the reader of the tunnel holds the pipe: see [`Requests::keep_half_open`].
            exchange.body = RequestBody::None;
            return true;
        }
        streams.stop_input(id, StopReason::NoTunnel);
        if let Some(upload) = slot.upload.take() {
            upload.pipe.finish(Ok(()));
            upload.pipe.abandon();
        }
        self.slots.mark(id, Mark::Tunnel, false);
        false
    }

    /// The response has been sent to its end, and the client has not ended its direction. Keeps the request while its body is
    /// read: by the handler of a tunnel, or by a backend that has answered before it had all of it (RFC 9113 §8.1 allows that).
    pub(super) fn keep_half_open(&mut self, id: SlotId) -> bool {
        if let Some(early) = &mut self.early {
            early.forget(id);
        }
        let Some(slot) = self.slots.get_mut(id) else {
            return false;
        };
        let phase = std::mem::replace(&mut slot.phase, Phase::InStep);
        let Some(upload) = slot.upload.as_ref().filter(|_| !slot.awaits_continue) else {
            return false;
        };
        if let Some(exchange) = &slot.exchange
            && let Ok(mut exchange) = exchange.try_borrow_mut()
        {
            // From now on only the reader holds the pipe, besides the slot.
            exchange.body = RequestBody::None;
        }
        let reader = match phase {
            // The source of a tunnel goes first, or the reader's end would not be noticed.
            Phase::Sending(Content {
                source: Source::Stream(source),
                ..
            }) if !slot.is(Mark::Tunnel) => Some(source),
            _ => None,
        };
        let is_read = Rc::strong_count(&upload.pipe) > 1 && !upload.pipe.is_abandoned();
        if is_read {
            slot.phase = Phase::HalfClosed(reader);
        }
        is_read
    }

    /// Continues with a body that comes behind the response.
    pub(super) fn read_on<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>, id: SlotId) {
        let is_half_open = streams.is_input_open(id);
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        let waker = slot.waker(turn, id);
        let Phase::HalfClosed(reader) = &mut slot.phase else {
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let is_abandoned = (slot.upload.as_ref()).is_none_or(|upload| upload.pipe.is_abandoned());
        let is_read = match reader {
            _ if is_abandoned => false,
            // It ends when it has sent the body to the backend.
            Some(source) => catch_unwind(AssertUnwindSafe(|| source.poll_next(&mut task, 1)))
                .inspect_err(|_| turn.context.worker.counters.count(Counter::Panics))
                .is_ok_and(|next| next.is_pending()),
            None => is_half_open,
        };
        if is_read {
            // From the client's end on, it is the reader that has to do something next.
            self.slots.mark(id, Mark::Waiting, !is_half_open);
            self.credit_upload(streams, turn, id);
        } else {
            self.leave(streams, turn, id);
        }
    }

    /// The request is over, but the client has not ended its direction. Keeps the stream for [`GRACE`], in which what comes is
    /// dropped: an early reset makes some clients report a failure.
    pub(super) fn begin_grace(&mut self, turn: &Turn<'_>, id: SlotId) {
        self.slots.occupy(id).phase = Phase::InGrace;
        self.graces.push_back((turn.now + GRACE, id));
    }

    /// Time has passed: ends the streams whose client has not ended its direction in time.
    pub(crate) fn on_timeout<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>) {
        while let Some(&(until, id)) = self.graces.front()
            && until <= turn.now
        {
            self.end_grace(streams, turn, id);
        }
        self.resets.end_delay(turn.now);
    }

    /// Ends a stream that was kept for the end of the client's direction.
    pub(super) fn end_grace<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) {
        self.close(streams, turn, id, CloseReason::EnoughRead);
    }

    /// The handler may have ended the client's direction of a tunnel, or both. Returns whether the request is over.
    pub(crate) fn check_tunnel<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) -> bool {
        let Some(slot) = self.slots.get(id).filter(|slot| slot.is(Mark::Tunnel)) else {
            return false;
        };
        let Some(upload) = &slot.upload else {
            return false;
        };
        if let Some(reason) = upload.pipe.given_up() {
            if let Some(exchange) = &slot.exchange {
                exchange.borrow_mut().note_error("core", reason);
            }
            self.close(streams, turn, id, CloseReason::TunnelBroken);
            return true;
        }
        if matches!(slot.phase, Phase::HalfClosed(_)) && upload.pipe.is_abandoned() {
            self.close(streams, turn, id, CloseReason::EnoughRead);
            return true;
        }
        false
    }
}
