//! The streams of HTTP/2, as the request table uses them.

use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2o_exchange::{
    Body, BodyError, Counter, Exchange, ExchangeRef, FileReader, Response, StreamPriority,
};
use h2o_http::mime::MimeAttributes;
use h2o_http::priority::PriorityField;
use h2o_http::{Headers, Known, ResponseHead, StatusCode};
use h2o_http2::{ErrorCode, SchedulingHint, ServerConnection, State, StreamKey};

use super::pushing::Pushing;
use crate::flow::Turn;
use crate::request::{CloseReason, Requests, SlotId, Streams};
use crate::setup::Setup;
use crate::site::http2_settings::Http2Settings;
use crate::site::http2_settings::ReprioritizesBlockingAssets;

/// Bodies up to this size are sent at once, behind their heads, as long as no other stream waits to send. Larger ones go
/// through the scheduler, so that a later request can overtake them.
const AT_ONCE: usize = 8 * 1024;
/// Output behind which nothing is sent at once any more.
const AT_ONCE_BEHIND: usize = 48 * 1024;

/// The engine of a connection, with what decides about its streams.
pub(super) struct Http2Streams {
    pub(super) engine: ServerConnection,
    /// Present once something was to be pushed.
    pub(super) pushing: Option<Box<Pushing>>,
    resets: ResetBudget,
    /// Whether the connection has used up its budget with requests that were answered with errors.
    is_overdrawn: bool,
}

/// How often clients may reset streams before new requests are delayed (H2O compatibility: so does H2O).
struct ResetBudget {
    left: usize,
    delay_until: Option<Instant>,
}

/// The engine's name for the stream of a request.
pub(super) const fn stream(id: SlotId) -> StreamKey {
    StreamKey::from_index(id.index())
}

/// The slot of a stream's request.
pub(super) fn slot(stream: StreamKey) -> SlotId {
    SlotId::new(u32::try_from(stream.index()).unwrap_or(u32::MAX))
}

impl Http2Streams {
    pub(super) const fn new(settings: &Http2Settings, engine: ServerConnection) -> Self {
        Self {
            engine,
            pushing: None,
            resets: ResetBudget {
                left: settings.max_concurrent_requests,
                delay_until: None,
            },
            is_overdrawn: false,
        }
    }

    /// Bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        let pushing = (self.pushing.as_ref()).map_or(0, |pushing| pushing.retained());
        self.engine.retained() + pushing
    }

    /// The client has reset a stream, or made the server do it.
    pub(super) fn on_reset(&mut self, turn: &Turn<'_>) {
        let delay = turn.connection.listener.setup.http2.dos_delay;
        self.resets.left = self.resets.left.saturating_sub(1);
        if self.resets.left == 0 && self.resets.delay_until.is_none() && !delay.is_zero() {
            self.resets.delay_until = Some(turn.now + delay);
        }
    }

    /// When new requests are no longer delayed.
    pub(super) const fn delayed_until(&self) -> Option<Instant> {
        self.resets.delay_until
    }

    /// Whether the budget was used up since the last call.
    pub(super) const fn take_overdrawn(&mut self) -> bool {
        std::mem::replace(&mut self.is_overdrawn, false)
    }

    /// Whether new requests are delayed because earlier ones were reset.
    fn is_delayed(&mut self, now: Instant) -> bool {
        match self.resets.delay_until {
            Some(until) if until > now => true,
            Some(_) => {
                self.resets.delay_until = None;
                false
            }
            None => false,
        }
    }

    /// Whether a body of that length may go straight behind its head, to output of `out_len` bytes.
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

impl Streams for Http2Streams {
    const ENDS_WHEN_FLUSHED: bool = false;
    const ENDS_WITH_SOURCE: bool = false;
    const READS_ON_DEMAND: bool = false;
    const ALWAYS_CONTINUES: bool = false;

    fn may_run(&mut self, turn: &Turn<'_>, running: usize, streaming: Option<usize>) -> bool {
        let limits = &turn.connection.listener.setup.http2;
        running < limits.max_concurrent_requests
            && streaming.is_none_or(|count| count < limits.max_concurrent_streaming_requests)
            && !self.is_delayed(turn.now)
    }

    fn on_streaming(&self, turn: &Turn<'_>) {
        let counters = &turn.context.worker.counters;
        counters.count(Counter::Http2StreamingRequests);
    }

    fn informs(&self, setup: &Setup) -> bool {
        setup.sends_informational
    }

    fn before_interim(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
    ) {
        if !exchange.pushes.is_empty() {
            self.push_early(table, turn, stream(id), exchange);
        }
    }

    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize {
        self.engine
            .inform(stream(id), status, headers, &mut turn.out)
    }

    #[inline]
    fn amend(
        &mut self,
        table: &mut Requests,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) -> bool {
        let is_plain = self.pushing.is_none()
            && exchange.pushes.is_empty()
            && exchange
                .protocol
                .http2()
                .is_none_or(|http2| http2.debug_state.is_none());
        is_plain || self.add_http2_fields(table, turn, stream(id), exchange, response)
    }

    fn amend_tunnel(&mut self, _exchange: &Exchange, response: &mut Response, is_open: bool) {
        if !is_open {
            return;
        }
        // HTTP/2 has no 101 (RFC 9113 §8.6), and a response that opens a tunnel has no length.
        if response.status == StatusCode::SWITCHING_PROTOCOLS {
            response.status = StatusCode::OK;
            response.reason = None;
        }
        response.length = None;
    }

    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &Exchange,
        response: &Response,
        has_body: bool,
    ) -> (usize, bool) {
        if is_urgent(exchange) {
            let hint = scheduling_hint(exchange, &response.headers);
            self.engine.schedule(stream(id), hint);
        }
        let head = ResponseHead {
            status: response.status,
            reason: None,
            headers: &response.headers,
            length: response.length,
            server: turn
                .connection
                .listener
                .setup
                .server_field
                .as_deref()
                .map(str::as_bytes),
        };
        let len = self
            .engine
            .respond(stream(id), &head, !has_body, &mut turn.out);
        (len, has_body)
    }

    fn send_at_once(&mut self, turn: &mut Turn<'_>, id: SlotId, body: &mut Body) -> Option<u64> {
        let Body::Bytes(bytes) = body else {
            return None;
        };
        if !self.may_send_at_once(stream(id), bytes.len(), turn.out.len()) {
            return None;
        }
        self.engine
            .send_data(stream(id), bytes, true, &mut turn.out);
        Some(bytes.len() as u64)
    }

    fn schedule(&mut self, id: SlotId, exchange: &Exchange) {
        if !is_urgent(exchange) {
            let hint = scheduling_hint(exchange, &exchange.sent.headers);
            self.engine.schedule(stream(id), hint);
        }
    }

    fn set_ready(&mut self, id: SlotId, is_ready: bool) {
        self.engine.set_content(stream(id), is_ready);
    }

    fn send_data(&mut self, turn: &mut Turn<'_>, id: SlotId, piece: &Bytes, is_end: bool) {
        self.engine
            .send_data(stream(id), piece, is_end, &mut turn.out);
    }

    fn send_file_data(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        max: usize,
        reader: &mut FileReader,
        task: &mut TaskContext<'_>,
    ) -> Result<Option<(usize, bool)>, BodyError> {
        self.engine
            .send_data_with(stream(id), max, &mut turn.out, |out| {
                match reader.poll_append(task, max, out) {
                    Poll::Pending => Ok(None),
                    Poll::Ready(Ok(len)) => Ok(Some((len, reader.remaining() == 0))),
                    Poll::Ready(Err(error)) => Err(error),
                }
            })
    }

    fn finish(&mut self, turn: &mut Turn<'_>, id: SlotId, trailers: Option<Headers>) {
        self.engine
            .finish(stream(id), trailers.as_ref(), &mut turn.out);
    }

    fn on_finished(&mut self, turn: &Turn<'_>) {
        if self.resets.left < turn.connection.listener.setup.http2.max_concurrent_requests {
            self.resets.left += 1;
        }
    }

    fn reset(&mut self, turn: &mut Turn<'_>, id: SlotId, reason: CloseReason) {
        let code = match reason {
            CloseReason::Complete | CloseReason::EnoughRead | CloseReason::Reset => return,
            // RFC 9113 §8.7.
            CloseReason::Refused => ErrorCode::REFUSED_STREAM,
            CloseReason::TooSlow => ErrorCode::CANCEL,
            // RFC 9113 §8.5: as if the connection that the tunnel leads to had been reset.
            CloseReason::TunnelBroken => ErrorCode::CONNECT_ERROR,
            CloseReason::PushCancelled | CloseReason::BodyLost => ErrorCode::INTERNAL_ERROR,
            CloseReason::BodyBroken => ErrorCode::PROTOCOL_ERROR,
        };
        turn.context.worker.counters.count_http2_error(code.0);
        self.engine.reset(stream(id), code, &mut turn.out);
    }

    fn before_log(&self, id: SlotId, exchange: &ExchangeRef) {
        let Some((received, actual)) = self.engine.priorities(stream(id)) else {
            return;
        };
        if let Ok(mut exchange) = exchange.try_borrow_mut()
            && let Some(http2) = exchange.protocol.http2_mut()
        {
            http2.received = StreamPriority {
                exclusive: received.exclusive,
                parent: received.dependency,
                weight: received.weight,
            };
            http2.actual = StreamPriority {
                exclusive: false,
                parent: actual.parent,
                weight: actual.weight,
            };
        }
    }

    fn release(&mut self, turn: &mut Turn<'_>, id: SlotId) {
        if let Some(pushing) = &mut self.pushing {
            pushing.forget(stream(id));
        }
        self.engine.release(stream(id), &mut turn.out);
    }

    fn is_input_open(&self, id: SlotId) -> bool {
        self.engine.state(stream(id)) == State::HalfClosedLocal
    }

    fn open_window(&mut self, turn: &mut Turn<'_>, id: SlotId, limit: Option<u32>) {
        match limit {
            None => self.engine.accept_content(stream(id), &mut turn.out),
            Some(limit) => (self.engine).accept_content_up_to(stream(id), limit, &mut turn.out),
        }
    }

    fn credit(&mut self, turn: &mut Turn<'_>, id: SlotId, len: usize) {
        self.engine.release_content(stream(id), len, &mut turn.out);
    }

    fn drop_rest(&mut self) {}

    fn stop_reading(&mut self) {}

    fn on_overdrawn(&mut self) {
        self.is_overdrawn = true;
    }
}

/// Whether the handler knows that the response is to be sent before others.
fn is_urgent(exchange: &Exchange) -> bool {
    exchange.mime.is_some_and(|mime| mime.highest_priority)
}

/// How the response wants to be scheduled.
pub(super) fn scheduling_hint(exchange: &Exchange, headers: &Headers) -> SchedulingHint {
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

/// Whether the type of the response, whose fields are `headers`, blocks rendering.
pub(super) fn blocks_rendering(exchange: &Exchange, headers: &Headers) -> bool {
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
