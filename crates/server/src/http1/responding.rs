//! The response side: heads, content as the socket takes it, refusals.

use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use h2o_exchange::{Exchange, ExchangeRef, Response, Timings};
use h2o_http::StatusCode;
use h2o_http1::{Answer, BodyMode, Next, PeerError, ResponseHead};

use super::receiving::{DISCARD_TIME, MAX_DISCARDED};
use super::{Active, Discarding, Http1, Input, Step, Went};
use crate::budget::Cost;
use crate::context::Context;
use crate::link::Link;
use crate::sending::{self, Broken, Pumped, Sending};
use crate::serve;

/// The answer to requests in clear text on a listener with TLS.
const CLEAR_TEXT: Answer = Answer::Respond {
    status: h2o_http::StatusCode::BAD_REQUEST,
    reason: "Bad Request",
    body: "this port speaks HTTPS, and the request came in plain HTTP: use https:// in the URL\n",
};

impl Http1 {
    /// Answers a client that speaks clear text where TLS is expected, whatever it asks for.
    pub(crate) fn refuse_clear_text(&mut self, context: &Context, link: &mut Link, now: Instant) {
        let exchange = context.worker.spare_exchange();
        self.begin_unparsed(context, link, &exchange, now);
        self.active = Some(Active::new(context, exchange));
        // If it cannot be sent, the next step finds the connection closed.
        let _ = self.refuse_with(context, link, CLEAR_TEXT);
    }

    pub(super) fn respond(
        &mut self,
        context: &Context,
        link: &mut Link,
        mut response: Response,
    ) -> Went {
        let now = context.worker.clock.now();
        if self.active.as_ref().is_some_and(|active| active.is_tunnel) {
            self.prepare_tunnel(&mut response);
        }
        let is_rest_long = self.is_rest_long();
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        if response.is_refusal {
            return Went::Over;
        }
        if response.status.as_u16() >= 400 && matches!(link.pay(context, Cost::Refusal), Went::Over)
        {
            // The client is told that this response is the last one.
            self.engine.shut_down();
            self.lingers = true;
        }
        let is_abandoned = (active.upload.as_ref()).is_some_and(|pipe| pipe.is_abandoned());
        if response.closes || is_abandoned && is_rest_long {
            self.engine.shut_down();
        }
        let mut guard = active.exchange.borrow_mut();
        let exchange = &mut *guard;
        exchange.timings.response_start = Some(now);
        exchange.sent.status = Some(response.status);
        serve::date(&context.worker, &mut response);
        let mut out = context.scratch.output.take();
        let head = ResponseHead {
            status: response.status,
            reason: response.reason.as_deref(),
            headers: &response.headers,
            length: response.length,
            server: context.server_field.as_deref().map(str::as_bytes),
        };
        let mode = self.engine.respond(&head, &mut out, now);
        exchange.sent.header_bytes += out.len() as u64;
        exchange.sent.headers = response.headers;
        let body = match mode {
            BodyMode::None => h2o_exchange::Body::Empty,
            BodyMode::Identity(_) | BodyMode::Chunked | BodyMode::UntilClose => response.body,
        };
        let (out, result) = sending::begin(
            context,
            &mut link.io,
            &mut self.engine,
            out,
            mode,
            body,
            &mut exchange.sent.body_bytes,
        );
        context.scratch.output.give_back(out);
        drop(guard);
        active.step = match result {
            Ok(None) => Step::Flushing,
            Ok(Some(sending)) => Step::Sending(sending),
            Err(_) => return Went::Over,
        };
        self.report_written(context, link);
        Went::On
    }

    /// Sends the interim responses that the handler has left behind, to clients that are to get them.
    pub(super) fn inform(&mut self, context: &Context, link: &mut Link) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let interims = std::mem::take(&mut active.exchange.borrow_mut().informational);
        if interims.is_empty() {
            return Went::On;
        }
        let mut out = Vec::new();
        if context.informs_http1 && serve::wants_informational(&active.exchange.borrow()) {
            let now = context.worker.clock.now();
            for (status, headers) in &interims {
                match *status {
                    StatusCode::CONTINUE if self.engine.wants_continue() => {
                        self.engine.send_continue(&mut out, now);
                    }
                    status => self.engine.send_informational(status, headers, &mut out),
                }
            }
        }
        active.exchange.borrow_mut().sent.header_bytes += out.len() as u64;
        if !out.is_empty() && link.io.send(context, &out).is_err() {
            return Went::Over;
        }
        Went::On
    }

    pub(super) fn send(
        &mut self,
        context: &Context,
        link: &mut Link,
        input: &mut Input<'_>,
        mut sending: Sending,
    ) -> Went {
        let Some(active) = &mut self.active else {
            return Went::Over;
        };
        let waker = match &sending {
            Sending::Bytes(_) => Waker::noop().clone(),
            Sending::File(_) | Sending::Stream(_) | Sending::Splice(_) => {
                active.waker(context, link)
            }
        };
        let mut written = active.exchange.borrow().sent.body_bytes;
        let pumped = sending.pump(
            context,
            &mut link.io,
            &mut self.engine,
            &mut TaskContext::from_waker(&waker),
            &mut written,
        );
        {
            let sent = &mut active.exchange.borrow_mut().sent;
            input.sent += written - sent.body_bytes;
            sent.body_bytes = written;
        }
        let is_blocked = matches!(pumped, Ok(Pumped::Blocked));
        if is_blocked {
            sending.poll_ahead(&mut TaskContext::from_waker(&waker));
        }
        let went = match pumped {
            Ok(Pumped::Done) => {
                active.step = Step::Flushing;
                Went::On
            }
            Ok(Pumped::Blocked) => {
                active.step = Step::Sending(sending);
                Went::Wait
            }
            Ok(Pumped::Waiting) => {
                active.step = Step::Sending(sending);
                Went::Wait
            }
            Ok(Pumped::Again) => {
                active.step = Step::Sending(sending);
                context.again.borrow_mut().push(link.token);
                Went::Wait
            }
            Err(Broken::Socket) => return Went::Over,
            Err(Broken::Body(error)) => {
                active.exchange.borrow_mut().note_body_error(&error);
                let mut out = Vec::new();
                self.engine.abort(&mut out);
                link.io.is_cut_off = true;
                if link.io.send(context, &out).is_err() {
                    return Went::Over;
                }
                active.step = Step::Flushing;
                Went::On
            }
        };
        self.report_sending(context, link, is_blocked);
        match went {
            Went::Wait => self.upload(context, link, input).unwrap_or(Went::Wait),
            other => other,
        }
    }

    /// The socket takes nothing for now; whoever makes the content may not have to wait for that.
    pub(super) fn read_ahead(&mut self, context: &Context, link: &Link) {
        let Some(active) = &mut self.active else {
            return;
        };
        if let Step::Sending(sending) = &mut active.step {
            let waker = (active.waker).get_or_insert_with(|| context.waker(link.token, 0));
            sending.poll_ahead(&mut TaskContext::from_waker(waker));
        }
    }

    pub(super) fn report_written(&mut self, context: &Context, link: &mut Link) {
        let pending = link.io.has_output();
        self.report_sending(context, link, pending);
    }

    pub(super) fn report_sending(&mut self, context: &Context, link: &mut Link, is_blocked: bool) {
        let written = link.io.take_written();
        self.written += written as u64;
        let pending = is_blocked || link.io.has_output();
        self.engine
            .on_written(written, pending, context.worker.clock.now());
        if pending && let Some(active) = &mut self.active {
            active.unacknowledged = link.io.socket.unacknowledged();
        }
    }

    /// The response has left as a whole: logs the exchange and turns to the next request.
    pub(super) fn finish(&mut self, context: &Context, link: &mut Link) -> Went {
        let now = context.worker.clock.now();
        let mut is_error = false;
        if let Some(active) = self.active.take() {
            let status = active.exchange.borrow().sent.status;
            is_error = status.is_some_and(|status| status.as_u16() >= 400);
            active.retire(context);
        }
        // What errors cost was paid when they were answered.
        if !is_error {
            link.earn(context);
        }
        if self.engine.can_discard() && !self.is_rest_long() {
            self.discarding = Some(Discarding {
                before: self.engine.body_received(),
                until: now + DISCARD_TIME,
            });
        } else {
            self.turn_to_next(now);
        }
        Went::On
    }

    /// The connection goes on with its next request, if it goes on.
    pub(super) fn turn_to_next(&mut self, now: Instant) {
        self.lingers |= !self.engine.is_body_done();
        match self.engine.next(now) {
            Next::Request => {}
            Next::Close => self.is_closing = true,
        }
    }

    /// Whether more content is known to come than is worth being read for the sake of the next request.
    fn is_rest_long(&self) -> bool {
        (self.engine.body_left()).is_some_and(|left| left > MAX_DISCARDED)
    }

    /// Answers a request that is wrong, and closes.
    pub(super) fn refuse(&mut self, context: &Context, link: &mut Link, error: PeerError) -> Went {
        match error.answer() {
            Answer::Respond {
                status,
                reason,
                body,
            } if error.is_of_content() && self.engine.awaits_response() => {
                context.worker.counters.count_status(status);
                let response = Response::error(status, reason, body);
                self.refuse_request(context, link, response)
            }
            answer => self.refuse_with(context, link, answer),
        }
    }

    /// Answers a request that cannot be served, past all filters, and closes.
    pub(super) fn refuse_with(
        &mut self,
        context: &Context,
        link: &mut Link,
        answer: Answer,
    ) -> Went {
        let now = context.worker.clock.now();
        let mut out = Vec::new();
        self.engine.error_response(
            answer,
            context.server_field.as_deref().map(str::as_bytes),
            Some(&context.worker.clock.date()),
            &mut out,
        );
        self.is_closing = true;
        self.lingers = true;
        let Answer::Respond { status, body, .. } = answer else {
            self.active = None;
            return Went::On;
        };
        if out.is_empty() {
            // A response has begun. It goes on to its end.
            return Went::On;
        }
        context.worker.counters.count_status(status);
        if let Some(active) = &mut self.active {
            let exchange = &mut *active.exchange.borrow_mut();
            // HEAD: the text is left out.
            let body_len = if out.ends_with(body.as_bytes()) {
                body.len()
            } else {
                0
            };
            exchange.sent.status = Some(status);
            exchange.sent.first_status = Some(status);
            exchange.sent.body_bytes = body_len as u64;
            exchange.sent.header_bytes += (out.len() - body_len) as u64;
            exchange.timings.response_start = Some(now);
            active.step = Step::Flushing;
        }
        if link.io.send(context, &out).is_err() {
            return Went::Over;
        }
        self.report_written(context, link);
        Went::On
    }

    /// Makes `exchange` one for a request that was never understood, for the log.
    pub(super) fn begin_unparsed(
        &self,
        context: &Context,
        link: &mut Link,
        exchange: &ExchangeRef,
        now: Instant,
    ) {
        let info = link.info();
        context.worker.begin(exchange, &context.site, &info);
        let exchange: &mut Exchange = &mut exchange.borrow_mut();
        exchange.timings = Timings::starting(self.engine.first_octet_at().unwrap_or(now));
        exchange.timings.processed = Some(now);
        exchange.timings.processed_at = context.worker.clock.unix();
        exchange.http1_index = self.engine.request_index() + 1;
        exchange.request.scheme = context.listeners[link.listener].scheme();
        serve::route_unparsed(exchange, &context.listeners[link.listener].hosts);
    }
}
