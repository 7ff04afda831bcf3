//! The request side: heads, and content that is collected or pulled by a handler.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{RequestBody, Response, Timings};
use h2o_http::BodyLength;
use h2o_http1::{Answer, Received};

use super::{Active, Discarding, Http1, Input, Step, TURN_OCTETS, Went, upgrade};
use crate::admission::{self, Admission, Pending};
use crate::budget::Cost;
use crate::collect::{CannotCollect, Collector, NotCollected};
use crate::context::Context;
use crate::http2::Http2;
use crate::io::Read;
use crate::link::Link;
use crate::serve;

impl Http1 {
    pub(super) fn receive_head(
        &mut self,
        context: &Context,
        link: &mut Link,
        input: &mut Input<'_>,
    ) -> Went {
        if input.at == input.buffer.len() {
            return fill(context, link, input);
        }
        let now = context.worker.clock.now();
        let spare = context.worker.spare_exchange();
        let received = self.engine.receive(
            &input.buffer[input.at..],
            now,
            &mut spare.borrow_mut().request,
        );
        match received {
            Ok(Received::Request { taken }) => {
                input.at += taken;
                let info = link.info();
                context.worker.begin(&spare, &context.site, &info);
                {
                    let exchange = &mut *spare.borrow_mut();
                    exchange.timings =
                        Timings::starting(self.engine.first_octet_at().unwrap_or(now));
                    exchange.timings.head = Some(now);
                    exchange.http1_index = self.engine.request_index();
                    serve::route(exchange, &context.listeners[link.listener]);
                }
                if context.http1.upgrade_to_http2 && upgrade::is_wanted(&spare.borrow(), link) {
                    return self.upgrade(context, link, spare);
                }
                self.active = Some(Active::new(context, spare));
                self.begin(context, link, input)
            }
            Ok(Received::NeedMore { taken }) => {
                context.worker.put_back(spare);
                input.at += taken;
                fill(context, link, input)
            }
            Ok(Received::Http2Preface) => {
                context.worker.put_back(spare);
                self.successor = Some(Box::new(Http2::new(context, link, now)));
                Went::Over
            }
            Ok(Received::Data { .. } | Received::BodyEnd { .. }) => {
                // They belong to a request.
                debug_assert!(false, "an event without a request");
                Went::Over
            }
            Err(error) if matches!(error.answer(), Answer::CloseSilently) => {
                context.worker.put_back(spare);
                self.is_closing = true;
                Went::On
            }
            Err(error) => {
                self.begin_unparsed(context, link, &spare, now);
                if !spare.borrow().request.target().is_empty() {
                    // Understood, and refused for what it asks: its line is logged.
                    let listener = &context.listeners[link.listener];
                    serve::route(&mut spare.borrow_mut(), listener);
                }
                self.active = Some(Active::new(context, spare));
                self.refuse(context, link, error)
            }
        }
    }

    /// A request head is complete: decides what happens to the content.
    pub(super) fn begin(&mut self, context: &Context, link: &mut Link, input: &Input<'_>) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
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
            admission::admit(context, exchange, pending)
        };
        active.step = match admission {
            Admission::Refuse(response) => return self.refuse_request(context, link, response),
            Admission::Tunnel => return self.start_tunnel(context, link),
            Admission::Start => return self.start(context, link),
            Admission::StartUnwanted => return self.start_unwanted(context, link),
            Admission::StreamOnceAsked => {
                let pipe = Rc::clone(active.upload.get_or_insert_default());
                active.exchange.borrow_mut().body = RequestBody::Stream(pipe);
                return self.start(context, link);
            }
            Admission::Stream => Step::AwaitingUpload,
            Admission::Collect(collector) => Step::Collecting(collector),
        };
        if expects_continue {
            let mut out = Vec::new();
            self.engine
                .send_continue(&mut out, context.worker.clock.now());
            active.exchange.borrow_mut().sent.header_bytes += out.len() as u64;
            if link.io.send(context, &out).is_err() {
                return Went::Over;
            }
        }
        Went::On
    }

    pub(super) fn collect(
        &mut self,
        context: &Context,
        link: &mut Link,
        input: &mut Input<'_>,
        mut collector: Collector,
    ) -> Went {
        let now = context.worker.clock.now();
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let exchange = Rc::clone(&active.exchange);
        loop {
            let waker = if collector.needs_disk() {
                active.waker(context, link)
            } else {
                Waker::noop().clone()
            };
            let mut task = TaskContext::from_waker(&waker);
            if self.engine.is_body_done() {
                return match collector.poll_whole(&mut task) {
                    Poll::Pending => {
                        active.step = Step::Collecting(collector);
                        Went::Wait
                    }
                    Poll::Ready(Ok(body)) => {
                        exchange.borrow_mut().body = body;
                        self.start(context, link)
                    }
                    Poll::Ready(Err(error)) => self.on_uncollected(context, link, &error),
                };
            }
            match collector.poll_room(&mut task) {
                Poll::Pending => {
                    self.engine.pause_reading();
                    active.step = Step::Collecting(collector);
                    return Went::Wait;
                }
                Poll::Ready(Ok(())) => self.engine.resume_reading(now),
                Poll::Ready(Err(error)) => return self.on_uncollected(context, link, &error),
            }
            let received = self.engine.receive(
                &input.buffer[input.at..],
                now,
                &mut exchange.borrow_mut().request,
            );
            match received {
                Ok(Received::Data { taken, data }) => {
                    let piece = &input.buffer[input.at + data.start..input.at + data.end];
                    let pushed = collector.push(context, piece);
                    input.at += taken;
                    match pushed {
                        Ok(()) => {}
                        Err(NotCollected::Unwanted) => return self.start_unwanted(context, link),
                        Err(NotCollected::Failed(error)) => {
                            return self.on_uncollected(context, link, &error);
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
                    return fill(context, link, input);
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Went::Over,
                Err(error) => return self.refuse(context, link, error),
            }
        }
    }

    /// Handlers are asked, none of which has a use for the content that is still to come. It is read and dropped while the
    /// client gets its response, the last one of the connection.
    fn start_unwanted(&mut self, context: &Context, link: &mut Link) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        active.upload.get_or_insert_default().abandon();
        self.engine.shut_down();
        self.start(context, link)
    }

    fn on_uncollected(
        &mut self,
        context: &Context,
        link: &mut Link,
        error: &CannotCollect,
    ) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let response = error.answer(context, &mut active.exchange.borrow_mut());
        self.refuse_request(context, link, response)
    }

    /// The request is answered, and nothing of it that may still come is read: the connection ends.
    pub(super) fn refuse_request(
        &mut self,
        context: &Context,
        link: &mut Link,
        response: Response,
    ) -> Went {
        self.engine.shut_down();
        self.lingers = true;
        self.answer(context, link, response)
    }

    /// Reads and drops content that nobody wants any more: where it is not long the connection can be used again.
    pub(super) fn discard(
        &mut self,
        context: &Context,
        link: &mut Link,
        input: &mut Input<'_>,
        discarding: Discarding,
    ) -> Went {
        let now = context.worker.clock.now();
        let spare = context.worker.spare_exchange();
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
        context.worker.put_back(spare);
        if taken.is_err() {
            return fill(context, link, input);
        }
        self.discarding = None;
        self.turn_to_next(now);
        Went::On
    }

    /// A handler that pulls its content is asked when the first octets are there.
    pub(super) fn await_upload(
        &mut self,
        context: &Context,
        link: &mut Link,
        input: &mut Input<'_>,
    ) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        active.step = Step::AwaitingUpload;
        let pipe = Rc::clone(active.upload.get_or_insert_default());
        let before = self.engine.body_received();
        if let Some(went) = self.upload(context, link, input) {
            // Refused, or gone.
            return went;
        }
        let arrived = self.engine.body_received() != before || self.engine.is_body_done();
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        if !arrived {
            return if self.is_closing {
                Went::On
            } else {
                Went::Wait
            };
        }
        active.exchange.borrow_mut().body = RequestBody::Stream(pipe);
        self.start(context, link)
    }

    /// Moves content from the socket to a handler that pulls it. `None`: nothing to do for now.
    pub(super) fn upload(
        &mut self,
        context: &Context,
        link: &mut Link,
        input: &mut Input<'_>,
    ) -> Option<Went> {
        let now = context.worker.clock.now();
        let active = self.active.as_mut()?;
        let pipe = Rc::clone(active.upload.as_ref()?);
        let is_tunnel = active.is_tunnel;
        let waker = active.waker(context, link);
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
                    match fill(context, link, input) {
                        Went::On => {}
                        Went::Wait => return None,
                        // The client may go on listening: what becomes of the tunnel is the handler's to say.
                        Went::Over if is_tunnel && link.io.has_ended() => {
                            self.engine.recv_end();
                            pipe.finish(Ok(()));
                        }
                        Went::Over => {
                            pipe.finish(Err("the client closed the connection".into()));
                            return Some(Went::Over);
                        }
                    }
                }
                Ok(Received::Request { .. } | Received::Http2Preface) => return Some(Went::Over),
                Err(error) => {
                    pipe.finish(Err(error.name().into()));
                    return Some(self.refuse(context, link, error));
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
fn fill(context: &Context, link: &mut Link, input: &mut Input<'_>) -> Went {
    if input.at == input.buffer.len() {
        input.buffer.clear();
        input.at = 0;
    }
    if input.received >= TURN_OCTETS {
        context.again.borrow_mut().push(link.token);
        return Went::Wait;
    }
    let had = input.buffer.len();
    let read = link.io.read(context, input.buffer);
    input.received += input.buffer.len() - had;
    match read {
        // What is still incomplete was made so by few octets: a client that drips pays for it.
        Ok(Read::Data) if had > 0 && input.buffer.len() - had < FRAGMENT => {
            link.pay(context, Cost::Fragment)
        }
        Ok(Read::Data) => Went::On,
        Ok(Read::Blocked) => Went::Wait,
        Ok(Read::Eof) | Err(_) => Went::Over,
    }
}
