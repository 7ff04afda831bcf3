//! The content of requests: collected, or handed to a handler that pulls it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use h2o_exchange::{Counter, Exchange, ExchangeRef, RequestBody};
use h2o_http::StatusCode;
use h2o_http2::{State, StreamKey};

use super::receiving::waker_of;
use super::sending::{Content, Sending};
use super::{Http2, Step, Upload};
use crate::collect::{CannotCollect, Collector, NotCollected};
use crate::flow::Turn;

/// Content on its way into a [`Collector`].
pub(crate) struct Collecting {
    collector: Collector,
    /// Octets for which the client has not been given window again, as the disk does not keep up.
    owed: usize,
    /// All of the content has come.
    is_complete: bool,
}

impl Collecting {
    pub(super) const fn new(collector: Collector) -> Self {
        Self {
            collector,
            owed: 0,
            is_complete: false,
        }
    }

    /// Octets of memory held.
    pub(super) fn retained(&self) -> usize {
        self.collector.retained()
    }
}

impl Http2 {
    /// A request waits for its content.
    pub(super) fn await_content(&mut self, stream: StreamKey, exchange: ExchangeRef, step: Step) {
        let work = self.work(stream);
        work.exchange = Some(exchange);
        work.step = step;
    }

    /// Tells the client that it may send its content, if it is to be told.
    pub(super) fn send_continue(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        exchange: &mut Exchange,
    ) {
        let fields = h2o_http::Headers::new();
        exchange.informational.push((StatusCode::CONTINUE, fields));
        self.inform(turn, stream, exchange);
    }

    pub(super) fn on_data(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        piece: &[u8],
        end_stream: bool,
    ) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        work.is_held = false;
        if let Some(exchange) = &work.exchange
            && let Ok(mut exchange) = exchange.try_borrow_mut()
        {
            exchange.request_body_bytes += piece.len() as u64;
        }
        match &mut work.step {
            Step::Collecting(collecting) => {
                match collecting.collector.push(turn.context, piece) {
                    Ok(()) => {}
                    Err(NotCollected::Unwanted) => {
                        let owed = collecting.owed + piece.len();
                        self.engine.release_content(stream, owed, &mut turn.out);
                        self.start_collected(turn, stream);
                        return;
                    }
                    Err(NotCollected::Failed(error)) => {
                        self.on_uncollected(turn, stream, &error);
                        return;
                    }
                }
                collecting.owed += piece.len();
                collecting.is_complete = end_stream;
                self.collect(turn, stream);
            }
            Step::AwaitingUpload => {
                self.on_upload(turn, stream, piece, end_stream);
            }
            Step::Queued | Step::Waiting(_) | Step::Sending(_) if work.upload.is_some() => {
                self.on_upload(turn, stream, piece, end_stream);
            }
            // No handler has a use for the content, which is dropped.
            Step::Queued | Step::Waiting(_) | Step::Sending(_) => {
                self.engine
                    .release_content(stream, piece.len(), &mut turn.out);
            }
            Step::Receiving(_) => {
                self.on_upload(turn, stream, piece, end_stream);
                if end_stream {
                    self.read_on(turn, stream);
                }
            }
            Step::Parting if end_stream => self.end_parting(turn, stream),
            Step::Parting => self
                .engine
                .release_content(stream, piece.len(), &mut turn.out),
            // Promised streams bring no content (RFC 9113 §5.1).
            Step::Moving | Step::Answered(_) => {}
        }
    }

    /// Goes on with content that is collected: the client may send as much again as there is room for, and the handlers are
    /// asked when all of it is there.
    pub(super) fn collect(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        let (needs_disk, is_unwanted) = match &work.step {
            Step::Collecting(Collecting { collector, .. }) => {
                (collector.needs_disk(), collector.is_unwanted())
            }
            _ => return,
        };
        let waker = if needs_disk {
            waker_of(work, turn, stream)
        } else {
            Waker::noop().clone()
        };
        let Step::Collecting(collecting) = &mut work.step else {
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let polled = if collecting.is_complete {
            collecting.collector.poll_whole(&mut task).map_ok(Some)
        } else {
            collecting.collector.poll_room(&mut task).map_ok(|()| None)
        };
        match polled {
            Poll::Pending => self.set_waits(stream, true),
            Poll::Ready(Ok(None)) => {
                let owed = std::mem::take(&mut collecting.owed);
                self.set_waits(stream, false);
                if !is_unwanted {
                    self.engine.accept_content(stream, &mut turn.out);
                }
                self.engine.release_content(stream, owed, &mut turn.out);
            }
            Poll::Ready(Ok(Some(body))) => {
                if let Some(exchange) = &work.exchange {
                    exchange.borrow_mut().body = body;
                }
                self.set_waits(stream, false);
                self.start_collected(turn, stream);
            }
            Poll::Ready(Err(error)) => self.on_uncollected(turn, stream, &error),
        }
    }

    /// The handlers are asked; what is still to come of the content, if anything is, they have no use for.
    fn start_collected(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        let work = self.work(stream);
        work.step = Step::Moving;
        if let Some(exchange) = work.exchange.take() {
            self.admit(turn, stream, exchange);
        }
    }

    fn on_uncollected(&mut self, turn: &mut Turn<'_>, stream: StreamKey, error: &CannotCollect) {
        self.set_waits(stream, false);
        let work = self.work(stream);
        work.step = Step::Moving;
        if let Some(exchange) = work.exchange.take() {
            let response = error.answer(turn.context, &mut exchange.borrow_mut());
            self.answer(turn, stream, exchange, response);
        }
    }

    /// Content for a handler that pulls it.
    pub(super) fn on_upload(
        &mut self,
        turn: &mut Turn<'_>,
        stream: StreamKey,
        piece: &[u8],
        end_stream: bool,
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
                self.admit(turn, stream, exchange);
            }
        } else {
            self.credit_upload(turn, stream);
        }
    }

    /// We have sent END_STREAM, the client has not. Keeps the stream while somebody still reads: the handler of a tunnel, or a
    /// backend that has answered before it had all of the content (RFC 9113 §8.1 allows that).
    pub(super) fn reads_on(&mut self, stream: StreamKey) -> bool {
        if let Some(early) = &mut self.early {
            early.forget(stream);
        }
        let work = self.work(stream);
        let step = std::mem::replace(&mut work.step, Step::Moving);
        let Some(upload) = work.upload.as_ref().filter(|_| !work.is_held) else {
            return false;
        };
        if let Some(exchange) = &work.exchange
            && let Ok(mut exchange) = exchange.try_borrow_mut()
        {
            // Whoever holds the pipe besides us now takes what comes.
            exchange.body = RequestBody::None;
        }
        let reader = match step {
            // What made the content of a tunnel goes first, or its end would not be noticed.
            Step::Sending(Sending {
                content: Content::Stream(source),
                ..
            }) if !work.is_tunnel => Some(source),
            _ => None,
        };
        let is_read = Rc::strong_count(&upload.pipe) > 1 && !upload.pipe.is_abandoned();
        if is_read {
            work.step = Step::Receiving(reader);
        }
        is_read
    }

    /// Goes on with content that comes behind the response.
    pub(super) fn read_on(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        let is_half_open = self.engine.state(stream) == State::HalfClosedLocal;
        let work = self.work(stream);
        let waker = waker_of(work, turn, stream);
        let Step::Receiving(reader) = &mut work.step else {
            return;
        };
        let mut task = TaskContext::from_waker(&waker);
        let is_abandoned = (work.upload.as_ref()).is_none_or(|upload| upload.pipe.is_abandoned());
        let is_read = match reader {
            _ if is_abandoned => false,
            // It ends when it has sent the content to where it goes.
            Some(source) => catch_unwind(AssertUnwindSafe(|| source.poll_next(&mut task, 1)))
                .inspect_err(|_| turn.context.worker.counters.count(Counter::Panics))
                .is_ok_and(|next| next.is_pending()),
            None => is_half_open,
        };
        if is_read {
            // From the client's end on, it is us who are waited for.
            self.set_waits(stream, !is_half_open);
            self.credit_upload(turn, stream);
        } else {
            self.end_work(stream);
            self.leave(turn, stream);
        }
    }

    /// Gives the client window for what a handler has taken out of its pipe.
    pub(super) fn credit_upload(&mut self, turn: &mut Turn<'_>, stream: StreamKey) {
        let Some(work) = self.works.get_mut(stream.index()) else {
            return;
        };
        let is_pulled = matches!(
            work.step,
            Step::Waiting(_) | Step::Sending(_) | Step::Receiving(_)
        );
        if work.upload.is_none() || !is_pulled {
            return;
        }
        let waker = waker_of(work, turn, stream);
        let Some(upload) = &mut work.upload else {
            return;
        };
        upload.pipe.watch(&mut TaskContext::from_waker(&waker));
        let queued = upload.pipe.queued();
        let taken = upload.queued.saturating_sub(queued);
        upload.queued = queued;
        self.engine.release_content(stream, taken, &mut turn.out);
    }
}
