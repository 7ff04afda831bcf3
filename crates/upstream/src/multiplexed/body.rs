//! The body of a response over HTTP/2 or HTTP/3, as the client's side pulls it.

use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{BodyError, BodySource, Trailers};

use super::engine::Engine;
use super::owned_stream::OwnedStream;
use super::stream::{Response, Stream, StreamFailure};
use crate::read_ahead::Origin;

/// The body of a response. Dropping it before the end cancels the stream.
pub(super) struct ResponseBody<E: Engine> {
    owned: OwnedStream<E>,
}

impl<E: Engine> ResponseBody<E> {
    pub(super) const fn new(owned: OwnedStream<E>) -> Self {
        Self { owned }
    }
}

impl<E: Engine> Origin for ResponseBody<E> {
    fn remaining(&self) -> Option<u64> {
        let state = self.owned.connection.state.borrow();
        let stream = state.streams.get(self.owned.key.0);
        stream.and_then(Option::as_ref).and_then(Stream::left)
    }

    /// Limit of the bytes that may arrive in memory without being read: the whole flow-control window, unless the response has
    /// ended.
    fn max_held(&self) -> usize {
        let state = self.owned.connection.state.borrow();
        let stream = state.streams.get(self.owned.key.0);
        let is_open = stream.and_then(Option::as_ref).is_some_and(Stream::is_open);
        if is_open {
            state.engine.stream_window()
        } else {
            0
        }
    }

    fn watch(&mut self, task: &Context<'_>) {
        if let Some(stream) = (self.owned.connection.state.borrow_mut()).stream(self.owned.key) {
            stream.watch(task);
        }
    }
}

impl<E: Engine> BodySource for ResponseBody<E> {
    fn poll_next(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let key = self.owned.key;
        let state = &mut *self.owned.connection.state.borrow_mut();
        let Some(stream) = state.streams.get_mut(key.0).and_then(Option::as_mut) else {
            debug_assert!(false, "the stream exists as long as its body");
            let text = StreamFailure::Io.text().to_owned();
            return Poll::Ready(Some(Err(BodyError::Failed(text))));
        };
        if stream.queued() > 0 {
            let piece = stream.take_content(max);
            let queued = stream.queued();
            state.moved_at = state.clock.now();
            if state.engine.release_content(key, piece.len(), queued) {
                state.wake_task();
            }
            return Poll::Ready(Some(Ok(piece)));
        }
        match &stream.response {
            Response::Ended(Ok(_)) if stream.awaits_upload() => {
                stream.watch(task);
                Poll::Pending
            }
            Response::Ended(Ok(_)) => Poll::Ready(None),
            Response::Ended(Err(failure)) => {
                if !stream.is_tunnel {
                    self.owned.connection.report_failure(*failure);
                }
                Poll::Ready(Some(Err(BodyError::Failed(failure.text().to_owned()))))
            }
            Response::Expected | Response::Head(..) | Response::Content => {
                stream.watch(task);
                Poll::Pending
            }
        }
    }

    /// Has the client's connection woken when data arrives: the data takes memory although it is not read, and that connection
    /// accounts for it.
    fn poll_ahead(&mut self, task: &mut Context<'_>) {
        self.watch(task);
    }

    fn retained(&self) -> usize {
        let state = self.owned.connection.state.borrow();
        let stream = state.streams.get(self.owned.key.0);
        stream.and_then(Option::as_ref).map_or(0, Stream::retained)
    }

    fn trailers(&mut self) -> Trailers {
        let mut state = self.owned.connection.state.borrow_mut();
        let Some(stream) = state.stream(self.owned.key) else {
            return Trailers::None;
        };
        match &mut stream.response {
            Response::Ended(Ok(trailers)) => {
                trailers.take().map_or(Trailers::None, Trailers::Fields)
            }
            Response::Ended(Err(_))
            | Response::Expected
            | Response::Head(..)
            | Response::Content => Trailers::Unknown,
        }
    }
}
