//! The content of requests: collected, or handed to a handler that pulls it.

use std::rc::Rc;
use std::task::Context as TaskContext;

use h2o_exchange::{ExchangeRef, RequestBody, Response};
use h2o_http::StatusCode;
use h2o_http2::StreamKey;

use super::receiving::waker_of;
use super::{Http2, Step, Upload};
use crate::collect::Collector;
use crate::context::Context;
use crate::link::Link;
use crate::serve;

impl Http2 {
    /// A request whose content is still to come.
    pub(super) fn expect_content(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        exchange: ExchangeRef,
        is_tunnel: bool,
        out: &mut Vec<u8>,
    ) {
        let (streams, waits) = {
            let exchange = &mut *exchange.borrow_mut();
            let expects = !exchange.request.expect().is_empty();
            let waits = !(expects && serve::meets_expectations(exchange));
            if expects && waits {
                let fields = h2o_http::Headers::new();
                exchange.informational.push((StatusCode::CONTINUE, fields));
                self.inform(context, stream, exchange, out);
            }
            (serve::streams_body(exchange), waits)
        };
        if is_tunnel {
            self.start_tunnel(context, link, stream, exchange, out);
            return;
        }
        let step = if streams {
            Step::AwaitingUpload
        } else {
            Step::Collecting(Collector::default())
        };
        let work = self.work(stream);
        work.exchange = Some(exchange);
        work.step = step;
        if !waits {
            // Its handler is asked as if the first piece, an empty one, were there.
            self.on_upload(context, link, stream, &[], false, out);
        }
    }

    pub(super) fn on_data(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        piece: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
    ) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        if let Some(exchange) = &work.exchange
            && let Ok(mut exchange) = exchange.try_borrow_mut()
        {
            exchange.request_body_bytes += piece.len() as u64;
        }
        match &mut work.step {
            Step::Collecting(collector) => {
                let kept = collector.push(context, piece);
                if let Err(error) = kept {
                    self.on_full_disk(context, link, stream, &error, out);
                    return;
                }
                if end_stream {
                    self.on_collected(context, link, stream, out);
                } else {
                    // The whole is waited for: whoever sends it is never held up by us.
                    self.engine.accept_content(stream, out);
                    self.engine.release_content(stream, piece.len(), out);
                }
            }
            Step::AwaitingUpload | Step::Queued | Step::Waiting(_) | Step::Sending(_) => {
                self.on_upload(context, link, stream, piece, end_stream, out);
            }
            Step::Receiving => {
                self.on_upload(context, link, stream, piece, end_stream, out);
                if end_stream {
                    self.finish(context, link, stream, None, out);
                }
            }
            Step::Parting if end_stream => self.finish(context, link, stream, None, out),
            Step::Parting => {}
            // Promised streams bring no content (RFC 9113 §5.1).
            Step::Moving | Step::Answered(_) => {}
        }
    }

    pub(super) fn on_full_disk(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        error: &std::io::Error,
        out: &mut Vec<u8>,
    ) {
        let work = self.work(stream);
        work.step = Step::Moving;
        let Some(exchange) = work.exchange.take() else {
            return;
        };
        exchange
            .borrow_mut()
            .note_error("core", &format!("failed to keep the request body:{error}"));
        let status = StatusCode::BAD_GATEWAY;
        context.worker.counters.count_status(status);
        let response = Response::error(status, "Bad Gateway", "Bad Gateway");
        self.answer(context, link, stream, exchange, response, out);
    }

    pub(super) fn on_collected(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        out: &mut Vec<u8>,
    ) {
        let work = self.work(stream);
        let Step::Collecting(collector) = std::mem::replace(&mut work.step, Step::Moving) else {
            return;
        };
        let Some(exchange) = work.exchange.take() else {
            return;
        };
        exchange.borrow_mut().body = collector.finish();
        self.admit(context, link, stream, exchange, out);
    }

    /// Content for a handler that pulls it.
    pub(super) fn on_upload(
        &mut self,
        context: &Context,
        link: &mut Link,
        stream: StreamKey,
        piece: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
    ) {
        let work = self.work(stream);
        let upload = work.upload.get_or_insert_with(|| Upload {
            pipe: Rc::default(),
            queued: 0,
        });
        upload.pipe.push(piece);
        upload.queued += piece.len();
        if end_stream {
            upload.pipe.finish(Ok(()));
        }
        let pipe = Rc::clone(&upload.pipe);
        if matches!(work.step, Step::AwaitingUpload) {
            work.step = Step::Moving;
            if let Some(exchange) = work.exchange.take() {
                exchange.borrow_mut().body = RequestBody::Stream(pipe);
                self.admit(context, link, stream, exchange, out);
            }
        } else {
            self.credit_upload(context, link, stream, out);
        }
    }

    /// Gives the client window for what a handler has taken out of its pipe.
    pub(super) fn credit_upload(
        &mut self,
        context: &Context,
        link: &Link,
        stream: StreamKey,
        out: &mut Vec<u8>,
    ) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        let is_pulled = matches!(
            work.step,
            Step::Waiting(_) | Step::Sending(_) | Step::Receiving
        );
        if work.upload.is_none() || !is_pulled {
            return;
        }
        let waker = waker_of(work, context, link, stream);
        let Some(upload) = &mut work.upload else {
            return;
        };
        upload.pipe.watch(&mut TaskContext::from_waker(&waker));
        let queued = upload.pipe.queued();
        let taken = upload.queued.saturating_sub(queued);
        upload.queued = queued;
        self.engine.release_content(stream, taken, out);
    }
}
