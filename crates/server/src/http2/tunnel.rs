//! Tunnels: CONNECT, and extended CONNECT (RFC 8441), which is an upgrade to the handlers.
//!
//! Either direction ends with END_STREAM and leaves the other one alone (RFC 9113 §8.5).

use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::{BodyPipe, Exchange, ExchangeRef, RequestBody, Response};
use h2o_http::StatusCode;
use h2o_http2::{ErrorCode, StreamKey};

use super::receiving::waker_of;
use super::{Http2, Step, Upload};
use crate::context::Context;
use crate::flow::Turn;

/// The receive window of a tunnel, octets: what a handler that takes nothing makes us hold of it.
const WINDOW: u32 = 1024 * 1024;
/// Tunnels of one connection that get so much; others keep the window that streams begin with.
const WIDE: usize = 16;

/// How long a client may take to end its direction of a stream whose other one is over.
const PARTING: Duration = Duration::from_secs(5);

impl Http2 {
    /// A request for a tunnel. It waits for nobody (H2O compatibility).
    pub(super) fn start_tunnel(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: ExchangeRef,
    ) {
        let pipe = Rc::new(BodyPipe::default());
        exchange.borrow_mut().body = RequestBody::Stream(Rc::clone(&pipe));
        let work = self.work(stream);
        pipe.set_owner(waker_of(work, turn, stream));
        work.upload = Some(Upload { pipe, queued: 0 });
        work.is_tunnel = true;
        if self.tunnels < WIDE {
            self.engine
                .accept_content_up_to(stream, WINDOW, &mut turn.out);
        }
        self.tunnels += 1;
        self.start(turn, stream, exchange);
    }

    /// A response to a request for a tunnel is about to be sent: HTTP/2 has no 101 (RFC 9113 §8.6), and what opens a
    /// tunnel has no length. If none is opened, nobody wants what the client may have sent ahead.
    pub(super) fn prepare_tunnel(
        &mut self,
        stream: StreamKey,
        exchange: &mut Exchange,
        response: &mut Response,
    ) {
        if exchange.request.is_tunnel_opened_by(response.status) {
            // Whoever holds the pipe besides us takes what comes: see `goes_on`.
            exchange.body = RequestBody::None;
            if response.status == StatusCode::SWITCHING_PROTOCOLS {
                response.status = StatusCode::OK;
                response.reason = None;
            }
            response.length = None;
            return;
        }
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        if std::mem::take(&mut work.is_tunnel) {
            self.tunnels -= 1;
        }
        if let Some(upload) = &work.upload {
            upload.pipe.finish(Ok(()));
            upload.pipe.abandon();
        }
    }

    /// The request is over, but the client has not sent END_STREAM. Keeps the stream for [`PARTING`], in which what comes is
    /// dropped: an early RST_STREAM makes some clients report a failure.
    pub(super) fn part(&mut self, context: &Context, stream: StreamKey) {
        self.work(stream).step = Step::Parting;
        let until = context.worker.clock.now() + PARTING;
        self.partings.push_back((until, stream));
    }

    /// When the time of the first [`Step::Parting`] is over.
    pub(super) fn parting_deadline(&self) -> Option<Instant> {
        self.partings.front().map(|(until, _)| *until)
    }

    /// Ends the streams whose client has not ended its direction in time.
    pub(super) fn end_partings(&mut self, turn: &mut Turn<'_>) {
        while let Some(&(until, stream)) = self.partings.front()
            && until <= turn.now
        {
            self.end_parting(turn, stream);
        }
    }

    /// The stream is over.
    pub(super) fn end_parting(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        self.end_work(stream);
        self.engine.release(stream, &mut turn.out);
    }

    /// The handler has said something about the client's direction of a tunnel. True if the stream is over.
    pub(super) fn on_tunnel_woken(&mut self, turn: &mut Turn<'_>, stream: StreamKey) -> bool {
        let Some(work) = self.works.get(stream.index()) else {
            return false;
        };
        let Some(upload) = work.upload.as_ref().filter(|_| work.is_tunnel) else {
            return false;
        };
        let is_receiving = matches!(work.step, Step::Receiving(_));
        if let Some(reason) = upload.pipe.given_up() {
            if let Some(exchange) = &work.exchange {
                exchange.borrow_mut().note_error("core", reason);
            }
            // RFC 9113 §8.5: as if the connection that the tunnel leads to had been reset.
            let code = ErrorCode::CONNECT_ERROR;
            turn.context.worker.counters.count_http2_error(code.0);
            self.engine.reset(stream, code, &mut turn.out);
            self.end_work(stream);
            self.engine.release(stream, &mut turn.out);
            return true;
        }
        if is_receiving && upload.pipe.is_abandoned() {
            self.end_work(stream);
            self.engine.release(stream, &mut turn.out);
            return true;
        }
        false
    }
}
