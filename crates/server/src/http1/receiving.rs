//! The request side: heads, and content that is collected or pulled by a handler.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{RequestBody, Response, Timings};
use h2o_http::BodyLength;
use h2o_http1::{Answer, Received};

use super::{Active, Discarding, Http1, Input, Step, TURN_OCTETS, upgrade};
use crate::admission::{self, Admission, Pending};
use crate::budget::Cost;
use crate::collect::{CannotCollect, Collector, NotCollected};
use crate::flow::{Flow, Turn};
use crate::http2::Http2;
use crate::io::Read;
use crate::serve;

impl Http1 {
    pub(super) fn receive_head(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        if input.at == input.buffer.len() {
            return fill(turn, input);
        }
        let now = turn.now;
        let spare = turn.context.worker.spare_exchange();
        let received = self.engine.receive(
            &input.buffer[input.at..],
            now,
            &mut spare.borrow_mut().request,
        );
        match received {
            Ok(Received::Request { taken }) => {
                input.at += taken;
                let info = turn.connection.info();
                turn.context.worker.begin(&spare, &turn.context.site, &info);
                {
                    let exchange = &mut *spare.borrow_mut();
                    exchange.timings =
                        Timings::starting(self.engine.first_octet_at().unwrap_or(now));
                    exchange.timings.head = Some(now);
                    exchange.http1_index = self.engine.request_index();
                    serve::route(exchange, &turn.connection.listener);
                }
                if turn.context.http1.upgrade_to_http2 && upgrade::is_wanted(&spare.borrow(), turn)
                {
                    return self.upgrade(turn, spare);
                }
                self.active = Some(Active::new(turn.context, spare));
                self.begin(turn, input)
            }
            Ok(Received::NeedMore { taken }) => {
                turn.context.worker.put_back(spare);
                input.at += taken;
                fill(turn, input)
            }
            Ok(Received::Http2Preface) => {
                turn.context.worker.put_back(spare);
                self.successor = Some(Box::new(Http2::new(turn.context, turn.connection, now)));
                Flow::Close
            }
            Ok(Received::Data { .. } | Received::BodyEnd { .. }) => {
                // They belong to a request.
                debug_assert!(false, "an event without a request");
                Flow::Close
            }
            Err(error) if matches!(error.answer(), Answer::CloseSilently) => {
                turn.context.worker.put_back(spare);
                self.is_closing = true;
                Flow::Continue
            }
            Err(error) => {
                self.begin_unparsed(turn, &spare, now);
                if !spare.borrow().request.target().is_empty() {
                    // Understood, and refused for what it asks: its line is logged.
                    let listener = &turn.connection.listener;
                    serve::route(&mut spare.borrow_mut(), listener);
                }
                self.active = Some(Active::new(turn.context, spare));
                self.refuse(turn, error)
            }
        }
    }

    /// A request head is complete: decides what happens to the content.
    pub(super) fn begin(&mut self, turn: &mut Turn<'_>, input: &Input<'_>) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        let expects_continue = self.engine.wants_continue();
        let pending = (!self.engine.is_body_done()).then_some(Pending {
            expects_continue,
            has_begun: input.at < input.buffer.len(),
        });
        let admission = {
            let exchange = &mut *active.exchange.borrow_mut();
            if pending.is_none() && matches!(exchange.request.body, BodyLength::Known(_)) {
                // An empty body was announced.
                exchange.body = RequestBody::Bytes(Bytes::new());
            }
            admission::admit(turn.context, exchange, pending)
        };
        active.step = match admission {
            Admission::Refuse(response) => return self.refuse_request(turn, response),
            Admission::Tunnel => return self.start_tunnel(turn),
            Admission::Start => return self.start(turn),
            Admission::StartUnwanted => return self.start_unwanted(turn),
            Admission::StreamOnceAsked => {
                let pipe = Rc::clone(active.upload.get_or_insert_default());
                active.exchange.borrow_mut().body = RequestBody::Stream(pipe);
                return self.start(turn);
            }
            Admission::Stream => Step::AwaitingUpload,
            Admission::Collect(collector) => Step::Collecting(collector),
        };
        if expects_continue {
            self.engine.send_continue(&mut turn.out, turn.now);
            active.exchange.borrow_mut().sent.header_bytes += turn.out.len() as u64;
            if turn.send().is_err() {
                return Flow::Close;
            }
        }
        Flow::Continue
    }

    pub(super) fn collect(
        &mut self,
        turn: &mut Turn<'_>,
        input: &mut Input<'_>,
        mut collector: Collector,
    ) -> Flow {
        let now = turn.now;
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        let exchange = Rc::clone(&active.exchange);
        loop {
            let waker = if collector.needs_disk() {
                active.waker(turn)
            } else {
                Waker::noop().clone()
            };
            let mut task = TaskContext::from_waker(&waker);
            if self.engine.is_body_done() {
                return match collector.poll_whole(&mut task) {
                    Poll::Pending => {
                        active.step = Step::Collecting(collector);
                        Flow::Wait
                    }
                    Poll::Ready(Ok(body)) => {
                        exchange.borrow_mut().body = body;
                        self.start(turn)
                    }
                    Poll::Ready(Err(error)) => self.on_uncollected(turn, &error),
                };
            }
            match collector.poll_room(&mut task) {
                Poll::Pending => {
                    self.engine.pause_reading();
                    active.step = Step::Collecting(collector);
                    return Flow::Wait;
                }
                Poll::Ready(Ok(())) => self.engine.resume_reading(now),
                Poll::Ready(Err(error)) => return self.on_uncollected(turn, &error),
            }
            let received = self.engine.receive(
                &input.buffer[input.at..],
                now,
                &mut exchange.borrow_mut().request,
            );
            match received {
                Ok(Received::Data { taken, data }) => {
                    let piece = &input.buffer[input.at + data.start..input.at + data.end];
                    let pushed = collector.push(turn.context, piece);
                    input.at += taken;
                    match pushed {
                        Ok(()) => {}
                        Err(NotCollected::Unwanted) => return self.start_unwanted(turn),
                        Err(NotCollected::Failed(error)) => {
                            return self.on_uncollected(turn, &error);
                        }
                    }
                }
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    exchange.borrow_mut().request_body_bytes = self.engine.body_received();
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    active.step = Step::Collecting(collector);
                    return fill(turn, input);
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Flow::Close,
                Err(error) => return self.refuse(turn, error),
            }
        }
    }

    /// Handlers are asked, none of which has a use for the content that is still to come. It is read and dropped while the
    /// client gets its response, the last one of the connection.
    fn start_unwanted(&mut self, turn: &mut Turn<'_>) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        active.upload.get_or_insert_default().abandon();
        self.engine.shut_down();
        self.start(turn)
    }

    fn on_uncollected(&mut self, turn: &mut Turn<'_>, error: &CannotCollect) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        let response = error.answer(turn.context, &mut active.exchange.borrow_mut());
        self.refuse_request(turn, response)
    }

    /// The request is answered, and nothing of it that may still come is read: the connection ends.
    pub(super) fn refuse_request(&mut self, turn: &mut Turn<'_>, response: Response) -> Flow {
        self.engine.shut_down();
        self.lingers = true;
        self.answer(turn, response)
    }

    /// Reads and drops content that nobody wants any more: where it is not long the connection can be used again.
    pub(super) fn discard(
        &mut self,
        turn: &mut Turn<'_>,
        input: &mut Input<'_>,
        discarding: Discarding,
    ) -> Flow {
        let now = turn.now;
        let spare = turn.context.worker.spare_exchange();
        let taken = loop {
            if self.engine.body_received() - discarding.before > MAX_DISCARDED {
                break Ok(());
            }
            let received = self.engine.receive(
                &input.buffer[input.at..],
                now,
                &mut spare.borrow_mut().request,
            );
            match received {
                Ok(Received::Data { taken, .. }) => input.at += taken,
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    break Ok(());
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    break Err(());
                }
                Ok(Received::Request { .. } | Received::Http2Preface) | Err(_) => break Ok(()),
            }
        };
        turn.context.worker.put_back(spare);
        if taken.is_err() {
            return fill(turn, input);
        }
        self.discarding = None;
        self.turn_to_next(now);
        Flow::Continue
    }

    /// A handler that pulls its content is asked when the first octets are there.
    pub(super) fn await_upload(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        active.step = Step::AwaitingUpload;
        let pipe = Rc::clone(active.upload.get_or_insert_default());
        let before = self.engine.body_received();
        if let Some(went) = self.upload(turn, input) {
            // Refused, or gone.
            return went;
        }
        let arrived = self.engine.body_received() != before || self.engine.is_body_done();
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        if !arrived {
            return if self.is_closing {
                Flow::Continue
            } else {
                Flow::Wait
            };
        }
        active.exchange.borrow_mut().body = RequestBody::Stream(pipe);
        self.start(turn)
    }

    /// Moves content from the socket to a handler that pulls it. `None`: nothing to do for now.
    pub(super) fn upload(&mut self, turn: &mut Turn<'_>, input: &mut Input<'_>) -> Option<Flow> {
        let now = turn.now;
        let active = self.active.as_mut()?;
        let pipe = Rc::clone(active.upload.as_ref()?);
        let is_tunnel = active.is_tunnel;
        let waker = active.waker(turn);
        let exchange = Rc::clone(&active.exchange);
        while !self.engine.is_body_done() {
            if pipe
                .poll_room(&mut TaskContext::from_waker(&waker))
                .is_pending()
            {
                self.engine.pause_reading();
                return None;
            }
            self.engine.resume_reading(now);
            let received = self.engine.receive(
                &input.buffer[input.at..],
                now,
                &mut exchange.borrow_mut().request,
            );
            match received {
                Ok(Received::Data { taken, data }) => {
                    if is_tunnel {
                        exchange.borrow_mut().request_body_bytes += data.len() as u64;
                    }
                    pipe.push(&input.buffer[input.at + data.start..input.at + data.end]);
                    input.at += taken;
                }
                Ok(Received::BodyEnd { taken }) => {
                    input.at += taken;
                    exchange.borrow_mut().request_body_bytes = self.engine.body_received();
                    pipe.finish(Ok(()));
                }
                Ok(Received::NeedMore { taken }) => {
                    input.at += taken;
                    match fill(turn, input) {
                        Flow::Continue => {}
                        Flow::Wait => return None,
                        // The client may go on listening: what becomes of the tunnel is the handler's to say.
                        Flow::Close if is_tunnel && turn.connection.io.has_ended() => {
                            self.engine.recv_end();
                            pipe.finish(Ok(()));
                        }
                        Flow::Close => {
                            pipe.finish(Err("the client closed the connection".into()));
                            return Some(Flow::Close);
                        }
                    }
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Some(Flow::Close),
                Err(error) => {
                    pipe.finish(Err(error.name().into()));
                    return Some(self.refuse(turn, error));
                }
            }
        }
        None
    }
}

/// Octets of content that are read and dropped behind a response, and for how long: the connection can then be used again.
pub(super) const MAX_DISCARDED: u64 = 64 * 1024;
pub(super) const DISCARD_TIME: Duration = Duration::from_secs(30);
/// Fewer octets than this behind an incomplete piece are a fragment.
const FRAGMENT: usize = 256;

/// Receives more octets behind those not taken yet.
fn fill(turn: &mut Turn<'_>, input: &mut Input<'_>) -> Flow {
    if input.at == input.buffer.len() {
        input.buffer.clear();
        input.at = 0;
    }
    if input.received >= TURN_OCTETS {
        turn.context
            .unfinished
            .borrow_mut()
            .push(turn.connection.token);
        return Flow::Wait;
    }
    let had = input.buffer.len();
    let read = turn.connection.io.read(turn.context, input.buffer);
    input.received += input.buffer.len() - had;
    match read {
        // What is still incomplete was made so by few octets: a client that drips pays for it.
        Ok(Read::Data) if had > 0 && input.buffer.len() - had < FRAGMENT => {
            turn.connection.pay(turn.context, Cost::Fragment)
        }
        Ok(Read::Data) => Flow::Continue,
        Ok(Read::Blocked) => Flow::Wait,
        Ok(Read::Eof) | Err(_) => Flow::Close,
    }
}
