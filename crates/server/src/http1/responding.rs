//! The response side: heads, content as the socket takes it, refusals.

use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use h2o_exchange::{Exchange, ExchangeRef, Response, Timings};
use h2o_http::{ResponseHead, StatusCode};
use h2o_http1::{Answer, BodyMode, Next, PeerError};

use super::receiving::{DISCARD_TIME, MAX_DISCARDED};
use super::{Active, Discarding, Http1, Input, Step};
use crate::budget::Cost;
use crate::flow::{Flow, Turn};
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
    pub(crate) fn refuse_clear_text(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let exchange = turn.context.worker.spare_exchange();
        self.begin_unparsed(turn, &exchange, now);
        self.active = Some(Active::new(turn.context, exchange));
        // If it cannot be sent, the next step finds the connection closed.
        let _ = self.refuse_with(turn, CLEAR_TEXT);
    }

    pub(super) fn respond(&mut self, turn: &mut Turn<'_>, mut response: Response) -> Flow {
        let now = turn.now;
        if self.active.as_ref().is_some_and(|active| active.is_tunnel) {
            self.prepare_tunnel(&mut response);
        }
        let is_rest_long = self.is_rest_long();
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        if response.is_refusal {
            return Flow::Close;
        }
        if response.status.as_u16() >= 400
            && matches!(
                turn.connection.pay(turn.context, Cost::Refusal),
                Flow::Close
            )
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
        serve::date(&turn.context.worker, &mut response);
        let head = ResponseHead {
            status: response.status,
            reason: response.reason.as_deref(),
            headers: &response.headers,
            length: response.length,
            server: turn.context.server_field.as_deref().map(str::as_bytes),
        };
        let mode = self.engine.respond(&head, &mut turn.out, now);
        exchange.sent.header_bytes += turn.out.len() as u64;
        exchange.sent.headers = response.headers;
        let body = match mode {
            BodyMode::None => h2o_exchange::Body::Empty,
            BodyMode::Identity(_) | BodyMode::Chunked | BodyMode::UntilClose => response.body,
        };
        let result = sending::begin(
            turn,
            &mut self.engine,
            mode,
            body,
            &mut exchange.sent.body_bytes,
        );
        drop(guard);
        active.step = match result {
            Ok(None) => Step::Flushing,
            Ok(Some(sending)) => Step::Sending(sending),
            Err(_) => return Flow::Close,
        };
        self.report_written(turn);
        Flow::Continue
    }

    /// Sends the interim responses that the handler has left behind, to clients that are to get them.
    pub(super) fn inform(&mut self, turn: &mut Turn<'_>) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        let interims = std::mem::take(&mut active.exchange.borrow_mut().informational);
        if interims.is_empty() {
            return Flow::Continue;
        }
        if turn.context.informs_http1 && serve::wants_informational(&active.exchange.borrow()) {
            let now = turn.now;
            for (status, headers) in &interims {
                match *status {
                    StatusCode::CONTINUE if self.engine.wants_continue() => {
                        self.engine.send_continue(&mut turn.out, now);
                    }
                    status => self
                        .engine
                        .send_informational(status, headers, &mut turn.out),
                }
            }
        }
        active.exchange.borrow_mut().sent.header_bytes += turn.out.len() as u64;
        if !turn.out.is_empty() && turn.send().is_err() {
            return Flow::Close;
        }
        Flow::Continue
    }

    pub(super) fn send(
        &mut self,
        turn: &mut Turn<'_>,
        input: &mut Input<'_>,
        mut sending: Sending,
    ) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        let waker = match &sending {
            Sending::Bytes(_) => Waker::noop().clone(),
            Sending::File(_) | Sending::Stream(_) | Sending::Splice(_) => active.waker(turn),
        };
        let mut written = active.exchange.borrow().sent.body_bytes;
        let pumped = sending.pump(
            turn,
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
                Flow::Continue
            }
            Ok(Pumped::Blocked) => {
                active.step = Step::Sending(sending);
                Flow::Wait
            }
            Ok(Pumped::Waiting) => {
                active.step = Step::Sending(sending);
                Flow::Wait
            }
            Ok(Pumped::Again) => {
                active.step = Step::Sending(sending);
                turn.context
                    .unfinished
                    .borrow_mut()
                    .push(turn.connection.token);
                Flow::Wait
            }
            Err(Broken::Socket) => return Flow::Close,
            Err(Broken::Body(error)) => {
                active.exchange.borrow_mut().note_body_error(&error);
                self.engine.abort(&mut turn.out);
                turn.connection.io.is_cut_off = true;
                if turn.send().is_err() {
                    return Flow::Close;
                }
                active.step = Step::Flushing;
                Flow::Continue
            }
        };
        self.report_sending(turn, is_blocked);
        match went {
            Flow::Wait => self.upload(turn, input).unwrap_or(Flow::Wait),
            other => other,
        }
    }

    /// The socket takes nothing for now; whoever makes the content may not have to wait for that.
    pub(super) fn read_ahead(&mut self, turn: &Turn<'_>) {
        let Some(active) = &mut self.active else {
            return;
        };
        if let Step::Sending(sending) = &mut active.step {
            let waker =
                (active.waker).get_or_insert_with(|| turn.context.waker(turn.connection.token, 0));
            sending.poll_ahead(&mut TaskContext::from_waker(waker));
        }
    }

    pub(super) fn report_written(&mut self, turn: &mut Turn<'_>) {
        let pending = turn.connection.io.has_output();
        self.report_sending(turn, pending);
    }

    pub(super) fn report_sending(&mut self, turn: &mut Turn<'_>, is_blocked: bool) {
        let written = turn.connection.io.take_written();
        self.written += written as u64;
        let pending = is_blocked || turn.connection.io.has_output();
        self.engine.on_written(written, pending, turn.now);
        if pending && let Some(active) = &mut self.active {
            active.unacknowledged = turn.connection.io.socket.unacknowledged();
        }
    }

    /// The response has left as a whole: logs the exchange and turns to the next request.
    pub(super) fn finish(&mut self, turn: &mut Turn<'_>) -> Flow {
        let now = turn.now;
        let mut is_error = false;
        if let Some(active) = self.active.take() {
            let status = active.exchange.borrow().sent.status;
            is_error = status.is_some_and(|status| status.as_u16() >= 400);
            active.retire(turn.context);
        }
        // What errors cost was paid when they were answered.
        if !is_error {
            turn.connection.earn(turn.context);
        }
        if self.engine.can_discard() && !self.is_rest_long() {
            self.discarding = Some(Discarding {
                before: self.engine.body_received(),
                until: now + DISCARD_TIME,
            });
        } else {
            self.turn_to_next(now);
        }
        Flow::Continue
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
    pub(super) fn refuse(&mut self, turn: &mut Turn<'_>, error: PeerError) -> Flow {
        match error.answer() {
            Answer::Respond {
                status,
                reason,
                body,
            } if error.is_of_content() && self.engine.awaits_response() => {
                turn.context.worker.counters.count_status(status);
                let response = Response::error(status, reason, body);
                self.refuse_request(turn, response)
            }
            answer => self.refuse_with(turn, answer),
        }
    }

    /// Answers a request that cannot be served, past all filters, and closes.
    pub(super) fn refuse_with(&mut self, turn: &mut Turn<'_>, answer: Answer) -> Flow {
        let now = turn.now;
        self.engine.error_response(
            answer,
            turn.context.server_field.as_deref().map(str::as_bytes),
            Some(&turn.context.worker.clock.date()),
            &mut turn.out,
        );
        self.is_closing = true;
        self.lingers = true;
        let Answer::Respond { status, body, .. } = answer else {
            self.active = None;
            return Flow::Continue;
        };
        if turn.out.is_empty() {
            // A response has begun. It goes on to its end.
            return Flow::Continue;
        }
        turn.context.worker.counters.count_status(status);
        if let Some(active) = &mut self.active {
            let exchange = &mut *active.exchange.borrow_mut();
            // HEAD: the text is left turn.out.
            let body_len = if turn.out.ends_with(body.as_bytes()) {
                body.len()
            } else {
                0
            };
            exchange.sent.status = Some(status);
            exchange.sent.first_status = Some(status);
            exchange.sent.body_bytes = body_len as u64;
            exchange.sent.header_bytes += (turn.out.len() - body_len) as u64;
            exchange.timings.response_start = Some(now);
            active.step = Step::Flushing;
        }
        if turn.send().is_err() {
            return Flow::Close;
        }
        self.report_written(turn);
        Flow::Continue
    }

    /// Makes `exchange` one for a request that was never understood, for the log.
    pub(super) fn begin_unparsed(&self, turn: &mut Turn<'_>, exchange: &ExchangeRef, now: Instant) {
        let info = turn.connection.info();
        turn.context
            .worker
            .begin(exchange, &turn.context.site, &info);
        let exchange: &mut Exchange = &mut exchange.borrow_mut();
        exchange.timings = Timings::starting(self.engine.first_octet_at().unwrap_or(now));
        exchange.timings.processed = Some(now);
        exchange.timings.processed_at = turn.context.worker.clock.unix();
        exchange.http1_index = self.engine.request_index() + 1;
        exchange.request.scheme = turn.connection.listener.scheme();
        serve::route_unparsed(exchange, &turn.connection.listener.hosts);
    }
}
