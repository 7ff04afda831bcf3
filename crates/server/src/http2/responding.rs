//! The response side: heads, and what can be sent at once behind them.

use h2o_exchange::{Body, Exchange, ExchangeRef, FileReader, Response};
use h2o_http::mime::MimeAttributes;
use h2o_http::priority::PriorityField;
use h2o_http::{BodyLength, Headers, Known, Method, ResponseHead, StatusCode};
use h2o_http2::{ErrorCode, SchedulingHint, State, StreamKey};

use super::sending::{Content, Sending};
use super::{Http2, Step, log, retire};
use crate::flow::Turn;
use crate::serve;
use crate::site::http2_settings::ReprioritizesBlockingAssets;

/// Content up to this size is sent at once, behind its head, as long as nobody else waits to send. What is more goes
/// through the scheduler, so that a later request can overtake it.
const AT_ONCE: usize = 8 * 1024;
/// Output behind which nothing is sent at once any more.
const AT_ONCE_BEHIND: usize = 48 * 1024;
/// Units of the connection's budget that a request earns when it was served.
const EARNED_BY_REQUEST: u32 = 2;

impl Http2 {
    /// Sends the interim responses that a handler has left behind, to clients that are to get them.
    pub(super) fn inform(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: &mut Exchange,
    ) {
        let interims = std::mem::take(&mut exchange.informational);
        if turn.context.sends_informational && serve::wants_informational(exchange) {
            for (status, headers) in &interims {
                if *status == StatusCode::CONTINUE
                    && let Some(work) = self.works.get_mut(stream.index())
                {
                    work.is_held = false;
                }
                let len = self.engine.inform(stream, *status, headers, &mut turn.out);
                exchange.sent.header_bytes += len as u64;
            }
        }
    }

    /// Sends the response of a stream, or makes it one of those that wait to be sent.
    pub(super) fn respond(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: ExchangeRef,
        mut response: Response,
    ) {
        if response.is_refusal {
            self.refuse(turn, stream, exchange);
            return;
        }
        let mut guard = exchange.borrow_mut();
        let this = &mut *guard;
        if self.tunnels > 0 && this.request.body == BodyLength::Tunnel {
            self.prepare_tunnel(stream, this, &mut response);
        }
        let is_plain = self.pushing.is_none()
            && this.pushes.is_empty()
            && this.http2.is_none_or(|http2| http2.debug_state.is_none());
        if !is_plain && !self.dress(turn, stream, this, &mut response) {
            drop(guard);
            self.cancel_push(turn, stream, exchange);
            return;
        }
        serve::date(&turn.context.worker, &mut response);
        this.timings.response_start = Some(turn.now);
        this.sent.status = Some(response.status);
        let has_body = !response.status.is_bodyless()
            && *this.original_method() != Method::Head
            && !matches!(response.body, Body::Empty);
        let length = if response.status.is_bodyless() {
            None
        } else {
            response.length
        };
        let is_empty =
            !has_body || matches!(&response.body, Body::Bytes(bytes) if bytes.is_empty());
        let (body, unsent) = if is_empty {
            (Body::Empty, response.body)
        } else {
            (response.body, Body::Empty)
        };
        let is_urgent = this.mime.is_some_and(|mime| mime.highest_priority);
        if is_urgent {
            let hint = scheduling_hint(this, &response.headers);
            self.engine.schedule(stream, hint);
        }
        let head = ResponseHead {
            status: response.status,
            reason: None,
            headers: &response.headers,
            length,
            server: turn.context.server_field.as_deref().map(str::as_bytes),
        };
        let header_bytes = self.engine.respond(stream, &head, is_empty, &mut turn.out);
        this.sent.header_bytes += header_bytes as u64;
        this.sent.headers = response.headers;
        let at_once = match &body {
            Body::Empty => true,
            Body::Bytes(bytes) if self.may_send_at_once(stream, bytes.len(), turn.out.len()) => {
                self.engine.send_data(stream, bytes, true, &mut turn.out);
                this.sent.body_bytes = bytes.len() as u64;
                self.sent += bytes.len() as u64;
                true
            }
            Body::Bytes(_) | Body::File(_) | Body::Stream(_) => false,
        };
        if at_once {
            drop(guard);
            if let Body::Stream(source) = unsent
                && self.has_work(stream)
            {
                // It may be what reads the content of the request.
                self.work(stream).step = Step::Sending(Sending::new(Content::Stream(source), None));
            }
            self.finish(turn, stream, Some(exchange));
            return;
        }
        let hint = (!is_urgent).then(|| scheduling_hint(this, &this.sent.headers));
        drop(guard);
        let content = match body {
            Body::Empty => return,
            Body::Bytes(bytes) => Content::Bytes(bytes),
            Body::File(range) => Content::File(FileReader::new(range)),
            Body::Stream(source) => Content::Stream(source),
        };
        let work = self.work(stream);
        work.exchange = Some(exchange);
        work.step = Step::Sending(Sending::new(content, length));
        self.list_ahead(stream);
        if let Some(hint) = hint {
            self.engine.schedule(stream, hint);
        }
        self.engine.set_content(stream, true);
    }

    /// Tells the client that nobody has looked at its request (RFC 9113 §8.7).
    #[cold]
    fn refuse(&mut self, turn: &mut Turn<'_>, stream: StreamKey, exchange: ExchangeRef) {
        let code = ErrorCode::REFUSED_STREAM;
        turn.context.worker.counters.count_http2_error(code.0);
        self.engine.reset(stream, code, &mut turn.out);
        self.work(stream).exchange = Some(exchange);
        self.end_work(stream);
        self.engine.release(stream, &mut turn.out);
    }

    /// The response has left as a whole, as far as we are concerned.
    pub(super) fn finish(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: Option<ExchangeRef>,
    ) {
        let is_half_open = self.engine.state(stream) == State::HalfClosedLocal;
        if self.has_work(stream) {
            if let Some(exchange) = exchange {
                self.work(stream).exchange = Some(exchange);
            }
            if is_half_open && self.reads_on(stream) {
                self.read_on(turn, stream);
                return;
            }
            self.end_work(stream);
        } else if let Some(exchange) = exchange {
            self.note_priorities(stream, &exchange);
            self.keep_or_retire(exchange);
        }
        self.leave(turn, stream);
    }

    /// The request is over, its log line written.
    pub(super) fn leave(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        if self.engine.state(stream) == State::HalfClosedLocal {
            self.part(turn.context, stream);
        } else {
            self.engine.release(stream, &mut turn.out);
        }
        if self.resets.left < turn.context.http2.reset_budget {
            self.resets.left += 1;
        }
        turn.connection.earn_units(turn.context, EARNED_BY_REQUEST);
    }

    /// Logs an exchange that is over, and keeps it for the next request of the batch, or gives it back.
    fn keep_or_retire(&mut self, exchange: ExchangeRef) {
        if self.spare.is_some() {
            retire(&exchange);
            return;
        }
        {
            let exchange = &mut *exchange.borrow_mut();
            log(exchange);
            exchange.rewind();
            exchange.request.clear();
        }
        self.spare = Some(exchange);
    }

    fn has_work(&self, stream: StreamKey) -> bool {
        self.works
            .get(stream.index())
            .is_some_and(|work| work.key.is_some())
    }

    /// True if content of that length may go straight behind its head, to output of `out_len` octets.
    #[inline]
    fn may_send_at_once(&self, stream: StreamKey, len: usize, out_len: usize) -> bool {
        len <= AT_ONCE
            && out_len <= AT_ONCE_BEHIND
            && !self.engine.has_sendable()
            && !self
                .pushing
                .as_ref()
                .is_some_and(|pushing| pushing.is_ahead())
            && len <= self.engine.sendable(stream)
    }
}

/// How the response wants to be scheduled.
pub(super) fn scheduling_hint(
    exchange: &h2o_exchange::Exchange,
    headers: &Headers,
) -> SchedulingHint {
    let priority = headers.get(Known::Priority).map(PriorityField::parse);
    let is_wanted = blocks_rendering(exchange, headers) && {
        let path = exchange.site.path(exchange.route);
        path.settings
            .peek::<ReprioritizesBlockingAssets>()
            .is_none_or(|setting| setting.0)
    };
    SchedulingHint {
        priority,
        blocks_rendering: is_wanted,
        is_critical: false,
    }
}

/// True if the type of the response, whose fields are `headers`, blocks rendering.
pub(super) fn blocks_rendering(exchange: &h2o_exchange::Exchange, headers: &Headers) -> bool {
    exchange.mime.map_or_else(
        || {
            headers
                .get(Known::ContentType)
                .and_then(|value| std::str::from_utf8(value).ok())
                .is_some_and(|value| MimeAttributes::of(value).highest_priority)
        },
        |mime| mime.highest_priority,
    )
}
