//! Implements [`Streams`] for HTTP/2, whose protocol engine holds the streams.

use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use h2o_exchange::{
    Body, BodyError, Counter, Exchange, ExchangeRef, FileReader, Http2Stream, Protocol, Response,
    StreamPriority,
};
use h2o_http::priority::PriorityField;
use h2o_http::{Headers, Known, RequestHead, ResponseHead, StatusCode};
use h2o_http2::{ErrorCode, SchedulingHint, ServerConnection, StreamKey, StreamState};

use super::{debug, slot, stream};
use crate::flow::Turn;
use crate::request::blocking::goes_first;
use crate::request::{
    CloseReason, HeadSent, RequestLimits, Requests, ResponseShape, SlotId, StopReason, Streams,
    VersionRules, Window,
};
use crate::setup::Setup;

/// Response bodies up to this size are sent together with their heads if no other stream waits to send. Larger bodies go through
/// the scheduler, so that a later request can overtake them.
const AT_ONCE: usize = 8 * 1024;
/// When more bytes of output than this are waiting, all response bodies go through the scheduler.
const AT_ONCE_BEHIND: usize = 48 * 1024;

/// Whether a response body of `len` bytes may be sent together with its head; `out_len` is the number of bytes of output so far.
#[inline]
fn may_send_at_once(
    engine: &ServerConnection,
    stream: StreamKey,
    len: usize,
    out_len: usize,
) -> bool {
    len <= AT_ONCE
        && out_len <= AT_ONCE_BEHIND
        && !engine.has_sendable()
        && len <= engine.sendable(stream)
}

impl Streams for ServerConnection {
    const RULES: VersionRules = VersionRules {
        ends_when_flushed: false,
        ends_with_source: false,
        reads_on_demand: false,
        always_continues: false,
        switches_protocols: false,
        stops_bodies_at_once: false,
        streaming_counter: Some(Counter::Http2StreamingRequests),
    };

    #[inline]
    fn limits(setup: &Setup) -> RequestLimits {
        RequestLimits {
            running: setup.http2.max_concurrent_requests,
            streaming: setup.http2.max_concurrent_streaming_requests,
            resets: setup.http2.max_concurrent_requests,
            reset_delay: setup.http2.dos_delay,
            sends_interims: setup.sends_informational,
        }
    }

    fn send_interim(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        status: StatusCode,
        headers: &Headers,
    ) -> usize {
        self.send_informational(stream(id), status, headers, &mut turn.out)
    }

    fn send_head(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        exchange: &Exchange,
        response: &mut Response,
        shape: ResponseShape,
    ) -> HeadSent {
        let stream = stream(id);
        // Whether the response is sent before others because of its media type, which the handler has set.
        let is_urgent = exchange.mime.is_some_and(|mime| mime.highest_priority);
        // A short response is sent at once, but the log tells its priority, too.
        let is_scheduled = is_urgent || response.headers.get(Known::Priority).is_some();
        if is_scheduled {
            self.schedule(stream, scheduling_hint(exchange, &response.headers));
        }
        let head = ResponseHead {
            status: response.status,
            reason: None,
            headers: &response.headers,
            length: response.length,
            server: exchange.site.server_field.as_deref(),
        };
        let head_len = self.respond(stream, &head, !shape.has_body, &mut turn.out);
        let body_len = match &response.body {
            _ if !shape.has_body => Some(0),
            Body::Bytes(bytes)
                if !shape.is_behind_push
                    && may_send_at_once(self, stream, bytes.len(), turn.out.len()) =>
            {
                self.send_data(stream, bytes, true, &mut turn.out);
                Some(bytes.len())
            }
            Body::Empty | Body::Bytes(_) | Body::File(_) | Body::Stream(_) => None,
        };
        if body_len.is_none() && !is_scheduled {
            self.schedule(stream, scheduling_hint(exchange, &response.headers));
        }
        HeadSent { head_len, body_len }
    }

    fn set_ready(&mut self, id: SlotId, is_ready: bool) {
        self.set_content(stream(id), is_ready);
    }

    fn send_data(&mut self, turn: &mut Turn<'_>, id: SlotId, piece: &Bytes, is_end: bool) {
        self.send_data(stream(id), piece, is_end, &mut turn.out);
    }

    fn send_file_data(
        &mut self,
        turn: &mut Turn<'_>,
        id: SlotId,
        max: usize,
        reader: &mut FileReader,
        task: &mut TaskContext<'_>,
    ) -> Result<Option<(usize, bool)>, BodyError> {
        self.send_data_with(stream(id), max, &mut turn.out, |out| {
            match reader.poll_append(task, max, out) {
                Poll::Pending => Ok(None),
                Poll::Ready(Ok(len)) => Ok(Some((len, reader.remaining() == 0))),
                Poll::Ready(Err(error)) => Err(error),
            }
        })
    }

    fn finish(&mut self, turn: &mut Turn<'_>, id: SlotId, trailers: Option<Headers>) {
        self.finish(stream(id), trailers.as_ref(), &mut turn.out);
    }

    fn open_window(&mut self, turn: &mut Turn<'_>, id: SlotId, window: Window) {
        let (stream, out) = (stream(id), &mut turn.out);
        match window {
            Window::Body => self.accept_content(stream, out),
            Window::Tunnel(limit) => self.accept_content_up_to(stream, limit, out),
            Window::Credit(len) => self.release_content(stream, len, out),
        }
    }

    /// Does nothing: the client may use up its flow-control window, and the data is dropped.
    #[inline]
    fn stop_input(&mut self, _id: SlotId, _reason: StopReason) {}

    #[inline]
    fn is_input_open(&self, id: SlotId) -> bool {
        self.state(stream(id)) == StreamState::HalfClosedLocal
    }

    /// Adds the priority of the stream to the exchange: as the client has set it, and as the scheduler uses it.
    fn before_log(&self, id: SlotId, exchange: &ExchangeRef) {
        let Some((received, actual)) = self.priorities(stream(id)) else {
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

    fn close(&mut self, turn: &mut Turn<'_>, id: SlotId, reason: CloseReason) {
        let code = match reason {
            CloseReason::Complete | CloseReason::EnoughRead | CloseReason::Reset => None,
            // The code REFUSED_STREAM tells the client that the request was not processed (RFC 9113 §8.7).
            CloseReason::Refused => Some(ErrorCode::REFUSED_STREAM),
            CloseReason::TooSlow => Some(ErrorCode::CANCEL),
            // The code CONNECT_ERROR tells the client that the connection to the tunnel's destination was reset (RFC 9113 §8.5).
            CloseReason::TunnelBroken => Some(ErrorCode::CONNECT_ERROR),
            CloseReason::PushCancelled | CloseReason::BodyLost => Some(ErrorCode::INTERNAL_ERROR),
            CloseReason::BodyBroken => Some(ErrorCode::PROTOCOL_ERROR),
        };
        if let Some(code) = code {
            turn.context.worker.counters.count_http2_error(code.0);
            self.reset(stream(id), code, &mut turn.out);
        }
        self.release(stream(id), &mut turn.out);
    }

    fn can_promise(&self, id: SlotId) -> bool {
        self.can_push()
            && matches!(
                self.state(stream(id)),
                StreamState::Open | StreamState::HalfClosedRemote
            )
    }

    fn promise(
        &mut self,
        turn: &mut Turn<'_>,
        with: SlotId,
        head: &RequestHead,
        is_critical: bool,
    ) -> Option<(SlotId, Protocol)> {
        let promised = self.promise(stream(with), head, &mut turn.out)?;
        if is_critical {
            let hint = SchedulingHint {
                is_critical: true,
                ..SchedulingHint::default()
            };
            self.schedule(promised, hint);
        }
        Some((slot(promised), protocol(self, promised)))
    }

    fn show_state(
        &self,
        table: &Requests,
        turn: &Turn<'_>,
        id: SlotId,
        exchange: &mut Exchange,
        response: &mut Response,
    ) {
        let asked = exchange.protocol.http2_mut();
        if let Some(detail) = asked.and_then(|http2| http2.debug_state.take()) {
            debug::show_state(self, table, turn, stream(id), detail, exchange, response);
        }
    }
}

/// Returns the protocol of an exchange as handlers and logs see it, with the id of the stream.
pub(super) fn protocol(engine: &ServerConnection, stream: StreamKey) -> Protocol {
    Protocol::Http2(Http2Stream {
        id: engine.stream_id(stream).get(),
        ..Http2Stream::default()
    })
}

/// Returns how the scheduler should treat a response.
fn scheduling_hint(exchange: &Exchange, headers: &Headers) -> SchedulingHint {
    SchedulingHint {
        priority: headers.get(Known::Priority).map(PriorityField::parse),
        blocks_rendering: goes_first(exchange, headers),
        is_critical: false,
    }
}
