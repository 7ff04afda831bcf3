//! Receives request heads and bodies, and drops the rest of a body after its response.

use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::Protocol;
use h2o_http1::{Answer, Received};

use super::{Http1, Http1Streams, upgrade};
use crate::context::per_turn;
use crate::flow::{Flow, Turn};
use crate::http2::Http2;
use crate::io::Read;
use crate::request::Pending;
use crate::request::routing;
use crate::request::{Arrived, BodyRoom, Requests, SlotId};

/// Largest number of bytes of a request's body that are read and dropped after the response, so that the connection can be used
/// again. `DISCARD_TIME` is the time limit for that.
pub(super) const MAX_DISCARDED: u64 = 64 * 1024;
pub(super) const DISCARD_TIME: Duration = Duration::from_secs(30);
/// Number of bytes that are received from one connection before other connections run.
const READ_TURN: usize = per_turn(1024 * 1024);

/// Received bytes of a connection, and counts of the work done in this turn.
pub(super) struct Input<'a> {
    buffer: &'a mut Vec<u8>,
    pub(super) at: usize,
    received: usize,
    /// Number of requests that were answered in this turn.
    pub(super) finished: usize,
    /// Number of bytes of response bodies that were sent in this turn.
    pub(super) sent: usize,
}

/// The rest of a request's body, which the server drops to get to the next request.
#[derive(Clone, Copy)]
pub(super) struct DiscardedBody {
    /// Number of bytes of the body that had come when the response was complete.
    pub(super) before: u64,
    pub(super) until: Instant,
}

impl<'a> Input<'a> {
    pub(super) const fn new(buffer: &'a mut Vec<u8>) -> Self {
        Self {
            buffer,
            at: 0,
            received: 0,
            finished: 0,
            sent: 0,
        }
    }

    /// Reads more bytes from the connection and appends them.
    fn fill(&mut self, turn: &mut Turn<'_>) -> Flow {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        if self.received >= READ_TURN {
            turn.context
                .unfinished
                .borrow_mut()
                .push(turn.connection.token);
            return Flow::Wait;
        }
        let had = self.buffer.len();
        let read = turn.connection.io.read(turn.context, self.buffer);
        let came = self.buffer.len() - had;
        self.received += came;
        match read {
            // The buffer held an incomplete message before this read. A client that sends a few bytes at a time pays for such reads with
            // its abuse budget.
            Ok(Read::Data) if had > 0 => match turn.pay_for_fragment(came) {
                Ok(()) => Flow::Continue,
                Err(_) => Flow::Close,
            },
            Ok(Read::Data) => Flow::Continue,
            Ok(Read::Blocked) => Flow::Wait,
            Ok(Read::Eof) | Err(_) => Flow::Close,
        }
    }
}

impl Http1 {
    pub(super) fn receive_head(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        if input.at == input.buffer.len() {
            return input.fill(turn);
        }
        let spare = turn.context.worker.spare_exchange();
        let received = self.streams.engine.receive(
            &input.buffer[input.at..],
            turn.now,
            &mut spare.borrow_mut().request,
        );
        match received {
            Ok(Received::Request { taken }) => {
                input.at += taken;
                if turn.connection.listener.is_closing {
                    self.streams.engine.shut_down();
                }
                let engine = &self.streams.engine;
                let (begun, has_body) = (engine.first_byte_at(), !engine.is_body_done());
                let begun = begun.unwrap_or(turn.now);
                let mut kept = None;
                if !has_body {
                    kept = (self.requests).take_kept::<Http1Streams>(turn, &spare.borrow().request);
                }
                Requests::begin(turn, &spare, begun);
                spare.borrow_mut().protocol = Protocol::Http1 {
                    index: engine.request_index(),
                };
                if let Some(kept) = kept {
                    (self.requests).repeat(&mut self.streams, turn, SlotId::ONLY, spare, kept);
                    return self.send_output(turn);
                }
                routing::route(&mut spare.borrow_mut(), &turn.connection.listener);
                if turn.connection.listener.setup.http1.upgrade_to_http2
                    && upgrade::is_wanted(&spare.borrow(), turn)
                {
                    return self.upgrade(turn, spare);
                }
                let engine = &self.streams.engine;
                let pending = has_body.then(|| Pending {
                    expects_continue: engine.wants_continue(),
                    has_begun: input.at < input.buffer.len(),
                });
                let arrived = Arrived {
                    exchange: spare,
                    pending,
                    refusal: None,
                };
                self.requests
                    .receive(&mut self.streams, turn, SlotId::ONLY, arrived);
                self.send_output(turn)
            }
            Ok(Received::NeedMore { taken }) => {
                turn.context.worker.put_back(spare);
                input.at += taken;
                input.fill(turn)
            }
            Ok(Received::Http2Preface) => {
                turn.context.worker.put_back(spare);
                let http2 = Http2::new(turn.context, turn.connection, turn.now);
                self.successor = Some(Box::new(http2));
                Flow::Close
            }
            Ok(Received::Data { .. } | Received::BodyEnd { .. }) => {
                // This cannot happen: the protocol engine reports content only within a request, and no request is in progress here.
                debug_assert!(false, "an event of request content without a request");
                Flow::Close
            }
            Err(error) if matches!(error.answer(), Answer::CloseSilently) => {
                turn.context.worker.put_back(spare);
                self.streams.is_closing = true;
                Flow::Continue
            }
            Err(error) => {
                self.begin_unparsed(turn, &spare);
                if !spare.borrow().request.target().is_empty() {
                    // The request is well-formed, but the engine refuses it: it is routed so that its log line names its host.
                    let listener = &turn.connection.listener;
                    routing::route(&mut spare.borrow_mut(), listener);
                }
                self.requests.enter(SlotId::ONLY, spare);
                self.refuse(turn, error)
            }
        }
    }

    /// Moves the request's body from the socket to the request table while the table has room for it.
    pub(super) fn read_body(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        let Some(exchange) = self.requests.exchange(SlotId::ONLY).map(Rc::clone) else {
            return Flow::Wait;
        };
        let stage = self.requests.stage(SlotId::ONLY);
        let mut is_refused = false;
        while !self.streams.engine.is_body_done() {
            match self.requests.poll_body_room(turn, SlotId::ONLY) {
                BodyRoom::Free => {}
                BodyRoom::Unwanted if self.streams.drops_body => {}
                BodyRoom::Unwanted => break,
                BodyRoom::Full => {
                    self.streams.engine.pause_reading();
                    break;
                }
            }
            self.streams.engine.resume_reading(turn.now);
            let received = self.streams.engine.receive(
                &input.buffer[input.at..],
                turn.now,
                &mut exchange.borrow_mut().request,
            );
            let (requests, streams) = (&mut self.requests, &mut self.streams);
            match received {
                Ok(Received::Data { taken, data }) => {
                    let piece = &input.buffer[input.at + data.start..input.at + data.end];
                    requests.on_data(streams, turn, SlotId::ONLY, piece, false);
                    input.at += taken;
                }
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    requests.on_data(streams, turn, SlotId::ONLY, &[], true);
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    match input.fill(turn) {
                        Flow::Continue => {}
                        Flow::Wait => break,
                        // The client has ended its direction but may still read from the tunnel: the handler decides when the
                        // tunnel ends.
                        Flow::Close if requests.has_tunnel() && turn.connection.io.has_ended() => {
                            streams.engine.recv_end();
                            requests.on_data(streams, turn, SlotId::ONLY, &[], true);
                        }
                        Flow::Close => {
                            let reason = "the client closed the connection";
                            requests.break_off_body(SlotId::ONLY, reason);
                            return Flow::Close;
                        }
                    }
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Flow::Close,
                Err(error) => {
                    requests.break_off_body(SlotId::ONLY, error.name());
                    if self.refuse(turn, error) == Flow::Close {
                        return Flow::Close;
                    }
                    is_refused = true;
                    break;
                }
            }
            if self.requests.stage(SlotId::ONLY) != stage {
                // The handlers of the request have run, so the request may need no more of its body.
                break;
            }
        }
        if self.requests.has_begun_body(SlotId::ONLY) {
            self.requests
                .start_awaiting(&mut self.streams, turn, SlotId::ONLY);
        }
        let flow = self.send_output(turn);
        let has_changed = is_refused || self.requests.stage(SlotId::ONLY) != stage;
        if flow == Flow::Continue && !has_changed {
            Flow::Wait
        } else {
            flow
        }
    }

    /// Reads and drops the rest of a request's body, so that the connection can be used again.
    pub(super) fn discard(
        &mut self,
        turn: &mut Turn<'_>,
        input: &mut Input<'_>,
        discarding: DiscardedBody,
    ) -> Flow {
        let spare = turn.context.worker.spare_exchange();
        let is_done = loop {
            let engine = &mut self.streams.engine;
            if engine.body_received() - discarding.before > MAX_DISCARDED {
                break true;
            }
            let received = engine.receive(
                &input.buffer[input.at..],
                turn.now,
                &mut spare.borrow_mut().request,
            );
            match received {
                Ok(Received::Data { taken, .. }) => input.at += taken,
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    break true;
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    break false;
                }
                Ok(Received::Request { .. } | Received::Http2Preface) | Err(_) => break true,
            }
        };
        turn.context.worker.put_back(spare);
        if !is_done {
            return input.fill(turn);
        }
        self.discarding = None;
        self.turn_to_next(turn.now);
        Flow::Continue
    }
}
