//! Tunnels: CONNECT, and extended CONNECT (RFC 8441), which is an upgrade to the handlers.
//!
//! Either direction ends with END_STREAM and leaves the other one alone (RFC 9113 §8.5).

use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::{BodyPipe, Exchange, ExchangeRef, RequestBody, Response};
use h2o_http::StatusCode;
use h2o_http2::{ErrorCode, State, StreamKey};

use super::receiving::waker_of;
use super::{Http2, Step, Upload};
use crate::context::Context;
use crate::link::Link;

/// The receive window of a tunnel, octets: what a handler that takes nothing makes us hold of it.
const WINDOW: u32 = 1024 * 1024;
/// Tunnels of one connection that get so much; others keep the window that streams begin with.
const WIDE: usize = 16;

/// How long a client may take to end its direction of a tunnel whose other one is over.
const PARTING: Duration = Duration::from_secs(5);

impl Http2 {
    /// A request for a tunnel. It waits for nobody (H2O compatibility).
    pub(super) fn start_tunnel(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        exchange: ExchangeRef,
        out: &mut Vec<u8>,
    ) {
        let pipe = Rc::new(BodyPipe::default());
        exchange.borrow_mut().body = RequestBody::Stream(Rc::clone(&pipe));
        let work = self.work(stream);
        pipe.set_owner(waker_of(work, context, link, stream));
        work.upload = Some(Upload { pipe, queued: 0 });
        work.is_tunnel = true;
        if self.tunnels < WIDE {
            self.engine.accept_content_up_to(stream, WINDOW, out);
        }
        self.tunnels += 1;
        self.start(context, link, stream, exchange, out);
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

    /// Our direction of a stream has ended. True if the client's goes on: somebody takes what comes, or the client is given
    /// time to end it, too. A client that is told to stop at once may take that for the failure of all.
    pub(super) fn goes_on(&mut self, context: &Context, stream: StreamKey) -> bool {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return false;
        };
        if !work.is_tunnel || self.engine.state(stream) != State::HalfClosedLocal {
            return false;
        }
        // What made our content goes first: it may have been the one who took.
        work.step = Step::Receiving;
        let is_taken = (work.upload.as_ref()).is_some_and(|upload| {
            Rc::strong_count(&upload.pipe) > 1 && !upload.pipe.is_abandoned()
        });
        if !is_taken {
            work.step = Step::Parting;
            // Its silence counts as that of any other stream.
            work.is_tunnel = false;
            self.tunnels -= 1;
            let until = context.worker.clock.now() + PARTING;
            self.partings.push_back((until, stream));
        }
        true
    }

    /// When the next client has had its time to end its direction of a tunnel.
    pub(super) fn parting_deadline(&self) -> Option<Instant> {
        self.partings.front().map(|(until, _)| *until)
    }

    /// Streams whose client has not ended its direction of a tunnel in time.
    pub(super) fn end_partings(&mut self, now: Instant, out: &mut Vec<u8>) {
        while let Some(&(until, stream)) = self.partings.front()
            && until <= now
        {
            self.end_work(stream);
            self.engine.release(stream, out);
        }
    }

    /// The handler has said something about the client's direction of a tunnel. True if the stream is over.
    pub(super) fn on_tunnel_woken(
        &mut self,
        context: &Context,
        stream: StreamKey,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(work) = self.works.get(stream.index()) else {
            return false;
        };
        let Some(upload) = work.upload.as_ref().filter(|_| work.is_tunnel) else {
            return false;
        };
        let is_receiving = matches!(work.step, Step::Receiving);
        if let Some(reason) = upload.pipe.given_up() {
            if let Some(exchange) = &work.exchange {
                exchange.borrow_mut().note_error("core", reason);
            }
            // RFC 9113 §8.5: as if the connection that the tunnel leads to had been reset.
            let code = ErrorCode::CONNECT_ERROR;
            context.worker.counters.count_http2_error(code.0);
            self.engine.reset(stream, code, out);
            self.end_work(stream);
            self.engine.release(stream, out);
            return true;
        }
        if is_receiving && upload.pipe.is_abandoned() {
            self.end_work(stream);
            self.engine.release(stream, out);
            return true;
        }
        false
    }
}
