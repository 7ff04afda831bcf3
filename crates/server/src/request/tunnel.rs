//! Tunnels (CONNECT, upgrades, extended CONNECT), and streams whose two directions end at different times.
//!
//! A tunnel's client gets the body of the response unchanged; the bytes that the client sends go into the pipe that the handler got
//! with the request. Either direction can end before the other (RFC 9113 §8.5).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Context as TaskContext;
use std::time::Duration;

use h2o_exchange::{BodyPipe, Counter, Exchange, ExchangeRef, RequestBody, Response};
use h2o_http::StatusCode;

use super::content::{Content, Source};
use super::slots::{Mark, Phase};
use super::upload::Upload;
use super::{CloseReason, Requests, SlotId, StopReason, Streams, Window};
use crate::flow::Turn;

/// Receive window of a tunnel, in bytes: the most that the server buffers for a handler that reads nothing.
const WINDOW: u32 = 1024 * 1024;
/// Number of tunnels per connection that get the receive window [`WINDOW`]; further tunnels keep the initial window of a stream.
const WIDE: usize = 16;
/// How long the server waits for the client's END_STREAM after the response has ended.
const GRACE: Duration = Duration::from_secs(5);

impl Requests {
    /// Runs the handlers of a request for a tunnel. Such a request never waits in the queue. H2O compatibility: H2O does not count
    /// tunnels among the concurrent requests.
    pub(super) fn start_tunnel<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: ExchangeRef,
    ) {
        let slot = self.slots.occupy(id);
        let waker = slot.waker(turn, id);
        let datagrams = streams.open_datagrams(id, waker.clone());
        let pipe = Rc::new(BodyPipe::of_tunnel(datagrams));
        exchange.borrow_mut().body = RequestBody::Stream(Rc::clone(&pipe));
        pipe.set_owner(waker);
        slot.upload = Some(Upload::new(pipe));
        if self.slots.count(Mark::Tunnel) < WIDE {
            streams.open_window(turn, id, Window::Tunnel(WINDOW));
        }
        self.slots.mark(id, Mark::Tunnel, true);
        self.start(streams, turn, id, exchange);
    }

    /// Called before the response to a request for a tunnel is sent. Returns whether the response opens the tunnel, and if so
    /// changes its status to the one that opens tunnels in this HTTP version. If the response opens no tunnel, the bytes that the
    /// client has already sent into the tunnel are dropped.
    pub(super) fn prepare_tunnel<S: Streams>(
        &mut self,
        streams: &mut S,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.is(Mark::Tunnel)) else {
            return false;
        };
        if exchange.request.is_tunnel_opened_by(response.status) {
            // From here on only the reader of the tunnel and the slot hold the pipe, which [`Requests::keep_half_open`] relies on.
            exchange.body = RequestBody::None;
            if !S::RULES.switches_protocols {
                if response.status == StatusCode::SWITCHING_PROTOCOLS {
                    response.status = StatusCode::OK;
                    response.reason = None;
                }
                // The bytes that follow belong to the tunnel and are no content with a length.
                response.length = None;
            }
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

    /// Called when the response is complete and the client has not sent END_STREAM. Keeps the request and returns `true` while the
    /// request's body is still being read: by the handler of a tunnel, or by a backend that has answered before it had the whole
    /// body (RFC 9113 §8.1 allows that).
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
            // From here on only the slot and the reader of the request body hold its pipe.
            exchange.body = RequestBody::None;
        }
        let reader = match phase {
            // The source of a tunnel's response also holds the pipe, so it must be dropped: otherwise the number of references to the pipe
            // would never show that the reader has ended.
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

    /// Goes on receiving a request's body after the response has ended.
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
            // The source of the response ends once it has sent the request's body to the backend.
            Some(source) => catch_unwind(AssertUnwindSafe(|| source.poll_next(&mut task, 1)))
                .inspect_err(|_| turn.context.worker.counters.count(Counter::Panics))
                .is_ok_and(|next| next.is_pending()),
            None => is_half_open,
        };
        if is_read {
            // After the client's END_STREAM, only the reader of the pipe can bring the request further.
            self.slots.mark(id, Mark::Waiting, !is_half_open);
            self.credit_upload(streams, turn, id);
        } else {
            self.leave(streams, turn, id);
        }
    }

    /// Keeps the stream of a request that is over until the client sends END_STREAM, for [`GRACE`] at most. Data that the client
    /// sends until then is dropped. The stream is not reset at once because some clients would report a failure.
    pub(super) fn begin_grace(&mut self, turn: &Turn<'_>, id: SlotId) {
        self.slots.occupy(id).phase = Phase::InGrace;
        self.graces.push_back((turn.now + GRACE, id));
    }

    /// Ends the streams whose client has not sent END_STREAM in time.
    pub(crate) fn on_timeout<S: Streams>(&mut self, streams: &mut S, turn: &mut Turn<'_>) {
        while let Some(&(until, id)) = self.graces.front()
            && until <= turn.now
        {
            self.end_grace(streams, turn, id);
        }
        self.resets.end_delay(turn.now);
    }

    /// Ends a stream that was kept for the client's END_STREAM.
    pub(super) fn end_grace<S: Streams>(
        &mut self,
        streams: &mut S,
        turn: &mut Turn<'_>,
        id: SlotId,
    ) {
        self.close(streams, turn, id, CloseReason::EnoughRead);
    }

    /// Ends the request if the handler has closed its tunnel, and returns whether it has.
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
                exchange.borrow_mut().note_tunnel_error(reason);
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
