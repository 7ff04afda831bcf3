//! A request in progress over HTTP/2 or HTTP/3: from sending its head to receiving the head of the response.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use h2o_exchange::{Body, RequestBody, Trace};
use h2o_http::{Headers, Method, RequestHead, StatusCode};

use super::body::ResponseBody;
use super::connection::Connection;
use super::engine::Engine;
use super::owned_stream::OwnedStream;
use super::stream::{Head, Response, StreamFailure, TimedTrace};
use crate::balancer::InUse;
use crate::read_ahead::{self, Buffering};
use crate::{Failure, FailureCause, OnInformational, Reply};

/// A request that was begun on a stream.
pub(crate) struct Request<E: Engine> {
    owned: OwnedStream<E>,
    is_head: bool,
    expects_continue: bool,
    /// Length in bytes of the frames of the request's head.
    head_len: usize,
}

impl<E: Engine> Connection<E> {
    /// Begins a request. The connection must [accept](Connection::can_request) one, and for extended CONNECT the backend's
    /// [SETTINGS](Connection::poll_settings) must have arrived.
    ///
    /// With `expects_continue`, the body is held back until the backend responds. `headers` is memory for the fields of the
    /// response.
    ///
    /// # Errors
    /// [`Failure`] if the request cannot be begun.
    pub(crate) fn request(
        self: &Rc<Self>,
        head: &RequestHead,
        body: RequestBody,
        expects_continue: bool,
        headers: Headers,
    ) -> Result<Request<E>, Failure> {
        let mut state = self.state.borrow_mut();
        let (key, head_len) = state
            .begin(head, body, expects_continue, headers)
            .map_err(|failure| failure_of(failure, false))?;
        Ok(Request {
            owned: OwnedStream {
                connection: Rc::clone(self),
                key,
                in_use: None,
            },
            is_head: head.method == Method::Head,
            expects_continue,
            head_len,
        })
    }
}

impl<E: Engine> Request<E> {
    /// Records the times of the request in `trace` from now on. Must be called before the request can make progress.
    pub(crate) fn observe(&self, trace: &Rc<Trace>) {
        let connection = &self.owned.connection;
        let mut state = connection.state.borrow_mut();
        let clock = Rc::clone(&state.clock);
        let head_len = self.head_len as u64;
        trace.begin_request(clock.now(), head_len, connection.tls().cloned());
        trace.sent.set(head_len);
        if let Some(stream) = state.stream(self.owned.key) {
            let trace = Rc::clone(trace);
            stream.trace = Some(TimedTrace { trace, clock });
        }
    }

    /// Makes the body of the response end only when the upload does ([`crate::Call::ends_with_upload`]). Must be called before the
    /// request can make progress.
    pub(crate) fn end_with_upload(&self) {
        let mut state = self.owned.connection.state.borrow_mut();
        if let Some(stream) = state.stream(self.owned.key) {
            stream.ends_with_upload = true;
        }
    }

    /// Counts the request for the balancer until the response is dropped.
    pub(crate) fn count(&mut self, in_use: Option<InUse>) {
        self.owned.in_use = in_use;
    }

    /// Waits for the head of the response. Dropping the future, or later the body of the reply, cancels the request.
    /// With `buffering` the body is read ahead of a slow client.
    ///
    /// # Errors
    /// [`Failure`] if no response arrives.
    pub(crate) async fn response(
        self,
        tell: &mut Option<OnInformational<'_>>,
        buffering: Option<Buffering>,
    ) -> Result<Reply, Failure> {
        let head = poll_fn(|task| self.poll_head(task, tell)).await;
        let head = head.map_err(|failure| failure_of(failure, true))?;
        Ok(self.reply(head, buffering))
    }

    fn poll_head(
        &self,
        task: &Context<'_>,
        tell: &mut Option<OnInformational<'_>>,
    ) -> Poll<Result<Head, StreamFailure>> {
        loop {
            let mut state = self.owned.connection.state.borrow_mut();
            let Some(stream) = state.stream(self.owned.key) else {
                return Poll::Ready(Err(StreamFailure::Io));
            };
            if let Some((status, headers)) = stream.take_informational() {
                // The state must not be borrowed during the callback, which may use the connection.
                drop(state);
                let is_ours = self.expects_continue && status == StatusCode::CONTINUE;
                if let Some(tell) = tell.as_mut().filter(|_| !is_ours) {
                    tell(status, &headers);
                }
                continue;
            }
            match &stream.response {
                Response::Expected => {
                    stream.watch(task);
                    return Poll::Pending;
                }
                Response::Head(..) => {
                    return Poll::Ready(stream.take_head().ok_or(StreamFailure::Io));
                }
                Response::Ended(Err(failure)) => return Poll::Ready(Err(*failure)),
                Response::Content | Response::Ended(Ok(_)) => {
                    debug_assert!(false, "the head of a response is taken once");
                    return Poll::Ready(Err(StreamFailure::Io));
                }
            }
        }
    }

    fn reply(self, head: Head, buffering: Option<Buffering>) -> Reply {
        let connection = Rc::clone(&self.owned.connection);
        let has_length = !self.is_head && !head.status.is_bodyless();
        let mut length = head.length;
        let whole = {
            let mut state = connection.state.borrow_mut();
            let stream = state.stream(self.owned.key);
            stream.and_then(|stream| {
                if has_length && stream.is_complete() {
                    length = stream.left();
                }
                stream.take_whole()
            })
        };
        let body = match whole {
            Some(bytes) if bytes.is_empty() => Body::Empty,
            Some(bytes) => Body::Bytes(bytes),
            None if head.is_tunnel => Body::Stream(Box::new(ResponseBody::new(self.owned))),
            None => read_ahead::body(ResponseBody::new(self.owned), buffering),
        };
        Reply {
            status: head.status,
            // HTTP/2 and HTTP/3 have no reason phrase (RFC 9113 §8.3.2, RFC 9114 §4.3.2).
            reason: Some(Box::default()),
            headers: head.headers,
            length,
            body,
            backend: connection.backend(),
            closes: false,
            is_chunked: false,
            is_tunnel: head.is_tunnel,
            protocol: E::PROTOCOL,
        }
    }
}

fn failure_of(failure: StreamFailure, reached: bool) -> Failure {
    Failure {
        refused: failure == StreamFailure::Refused,
        cause: match failure {
            StreamFailure::Refused => FailureCause::NotSent,
            StreamFailure::Io if reached => FailureCause::Silent,
            StreamFailure::Io => FailureCause::NotSent,
            // The connection is still open, so that the backend has chosen not to answer this request.
            StreamFailure::Reset => FailureCause::NotAnswered,
            StreamFailure::FirstByteTimeout | StreamFailure::IoTimeout => FailureCause::TimedOut,
            StreamFailure::Content => FailureCause::Client,
            StreamFailure::Protocol
            | StreamFailure::FlowControl
            | StreamFailure::NoExtendedConnect => FailureCause::Other,
        },
        ..Failure::sent(failure.text())
    }
}
