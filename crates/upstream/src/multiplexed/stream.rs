//! A stream of an HTTP/2 or HTTP/3 connection: one request with its response.

use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use h2o_exchange::{ByteQueue, Clock, Trace};
use h2o_http::{BodyLength, ClientResponse, Headers, StatusCode};

use super::engine::StreamIndex;
use super::upload::Upload;

/// How many informational responses a backend may send to a request, as over HTTP/1.
const MAX_INFORMATIONAL: u32 = 100;

/// The times of a request for logs, and the clock that they are read from.
pub(super) struct TimedTrace {
    pub(super) trace: Rc<Trace>,
    pub(super) clock: Rc<Clock>,
}

impl TimedTrace {
    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl Deref for TimedTrace {
    type Target = Trace;

    fn deref(&self) -> &Trace {
        &self.trace
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFailure {
    /// The backend did not process the request (RFC 9113 §8.7, RFC 9114 §4.1.1).
    Refused,
    /// The backend closed the connection.
    Io,
    /// The backend reset the stream.
    Reset,
    /// The request body cannot be completed: the client disconnected, or a file cannot be read.
    Content,
    /// The backend violated the protocol.
    Protocol,
    /// The backend has sent more than the flow-control window allows.
    FlowControl,
    /// `proxy.timeout.first_byte` has passed.
    FirstByteTimeout,
    /// The backend made no progress for `proxy.timeout.io`.
    IoTimeout,
    /// The backend does not support extended CONNECT (RFC 8441 §3, RFC 9220 §3).
    NoExtendedConnect,
}

impl StreamFailure {
    /// The message for the log, and for the client if there is no response yet. H2O compatibility: the texts are H2O's.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Refused => "refused stream",
            Self::Io | Self::Reset | Self::Content => "I/O error",
            Self::Protocol => "protocol violation",
            Self::FlowControl => "flow control error",
            Self::FirstByteTimeout => "first byte timeout",
            Self::IoTimeout => "I/O timeout",
            Self::NoExtendedConnect => "extended CONNECT is not supported by the server",
        }
    }
}

/// The head of a response, until the request takes it.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: Headers,
    pub(super) length: Option<u64>,
    pub(super) is_tunnel: bool,
}

/// The end of a response: its trailers, if any, or why it failed.
pub(super) type End = Result<Option<Headers>, StreamFailure>;

/// How far the response to a request has arrived.
pub(super) enum Response {
    /// No final response has arrived yet.
    Expected,
    /// The head of the response has arrived, but the request has not taken it. The second value is the end of the response, if
    /// that has arrived, too.
    Head(Box<Head>, Option<End>),
    /// The request has taken the head, and the body is being received.
    Content,
    /// The response has ended.
    Ended(End),
}

/// A stream that is open, or whose owner (the request or response body that holds it) has not noticed its end.
pub(super) struct Stream {
    pub(super) key: StreamIndex,
    /// Memory for the fields of the response.
    spare: Headers,
    pub(super) response: Response,
    /// Informational responses that the request has not read yet.
    informational: VecDeque<(StatusCode, Headers)>,
    /// How many informational responses have been received.
    informational_count: u32,
    /// Bytes of the response body that the client's side has not taken, limited by the stream's window (HTTP/2) or by how much is
    /// read (HTTP/3).
    content: ByteQueue,
    /// Number of body bytes still to come, if the response has announced its length.
    missing: Option<u64>,
    /// The request body that is being sent; `None` once it was sent.
    pub(super) upload: Option<Upload>,
    /// The waker of the stream's owner: of its request or response body.
    waker: Option<Waker>,
    /// The time at which the stream fails if there is no progress, and the failure.
    pub(super) deadline: Option<(Instant, StreamFailure)>,
    /// Whether the body of the response ends only when the upload does ([`crate::Call::ends_with_upload`]).
    pub(super) ends_with_upload: bool,
    /// Whether the stream's request or response body has taken the whole response and was dropped, while the upload continues or
    /// the end of the stream is awaited.
    pub(super) is_detached: bool,
    /// Whether the request asks for a tunnel.
    pub(super) asks_for_tunnel: bool,
    /// Whether a tunnel is open.
    pub(super) is_tunnel: bool,
    /// The times of the request, if an access log or filter has asked for them.
    pub(super) trace: Option<TimedTrace>,
}

impl Stream {
    pub(super) fn new(key: StreamIndex, upload: Option<Upload>, spare: Headers) -> Self {
        Self {
            key,
            spare,
            informational: VecDeque::new(),
            informational_count: 0,
            response: Response::Expected,
            content: ByteQueue::default(),
            missing: None,
            upload,
            waker: None,
            deadline: None,
            ends_with_upload: false,
            is_detached: false,
            asks_for_tunnel: false,
            is_tunnel: false,
            trace: None,
        }
    }

    /// Registers the waker of the stream's request or response body, which is woken when something arrives for the stream.
    pub(super) fn watch(&mut self, task: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(task.waker()),
            None => self.waker = Some(task.waker().clone()),
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Records in the trace that request frames of this many bytes were made.
    pub(super) fn note_sent(&self, bytes: u64) {
        if let Some(trace) = &self.trace {
            trace.sent.set(trace.sent.get() + bytes);
        }
    }

    /// Records in the trace that the whole request was written.
    pub(super) fn note_request_end(&self) {
        if let Some(trace) = &self.trace {
            trace.request_ended.set(Some(trace.now()));
        }
    }

    /// Records in the trace that a frame of this many bytes was received.
    pub(super) fn note_received(&self, bytes: usize) {
        if let Some(trace) = &self.trace {
            trace.received.set(trace.received.get() + bytes as u64);
        }
    }

    /// Records in the trace that a field section was received in a frame of this many bytes; CONTINUATION frames are not counted
    /// separately.
    pub(super) fn note_section(&self, bytes: usize) {
        self.note_received(bytes);
        if let Some(trace) = &self.trace {
            trace
                .received_head
                .set(trace.received_head.get() + bytes as u64);
        }
    }

    /// Keeps an informational response until the request reads it. Returns false if the backend has sent too many of them.
    pub(super) fn on_informational(&mut self, status: StatusCode, headers: Headers) -> bool {
        self.informational_count += 1;
        if self.informational_count > MAX_INFORMATIONAL {
            return false;
        }
        self.informational.push_back((status, headers));
        self.wake();
        true
    }

    /// Takes the oldest informational response that the request has not read.
    pub(super) fn take_informational(&mut self) -> Option<(StatusCode, Headers)> {
        self.informational.pop_front()
    }

    /// Stores the head of the final response, whose frame had `len` bytes. Buffers are swapped, so that memory is reused.
    pub(super) fn on_head(&mut self, received: &mut ClientResponse, len: usize) {
        self.deadline = None;
        self.note_section(len);
        if let Some(trace) = &self.trace {
            trace.response_begun.set(Some(trace.now()));
        }
        self.is_tunnel = received.body == BodyLength::Tunnel;
        self.missing = match received.body {
            BodyLength::Known(length) => Some(length),
            BodyLength::None | BodyLength::Unknown | BodyLength::Tunnel => None,
        };
        let mut headers = std::mem::take(&mut self.spare);
        std::mem::swap(&mut headers, &mut received.headers);
        let head = Head {
            status: received.status,
            headers,
            length: received.length,
            is_tunnel: self.is_tunnel,
        };
        self.response = Response::Head(Box::new(head), None);
        self.wake();
    }

    pub(super) fn on_content(&mut self, piece: &[u8]) {
        self.content.push(piece);
        if let Some(missing) = &mut self.missing {
            // The engine has checked that the body is not longer than its announced length.
            *missing = missing.saturating_sub(piece.len() as u64);
        }
        self.wake();
    }

    /// Records that the response is complete or has failed. Only the first call counts.
    pub(super) fn on_end(&mut self, end: End) {
        if let Some(trace) = &self.trace
            && end.is_ok()
        {
            trace.response_ended.set(Some(trace.now()));
        }
        match &mut self.response {
            Response::Expected | Response::Content => self.response = Response::Ended(end),
            Response::Head(_, known) => {
                known.get_or_insert(end);
            }
            Response::Ended(_) => {}
        }
        self.deadline = None;
        self.wake();
    }

    /// Whether the response is neither complete nor failed.
    pub(super) const fn is_open(&self) -> bool {
        match &self.response {
            Response::Expected | Response::Content => true,
            Response::Head(_, end) => end.is_none(),
            Response::Ended(_) => false,
        }
    }

    /// Whether no final response has begun.
    pub(super) const fn is_headless(&self) -> bool {
        matches!(self.response, Response::Expected)
    }

    /// Takes the head of the response, if it has arrived; the body is received from then on.
    pub(super) fn take_head(&mut self) -> Option<Head> {
        match std::mem::replace(&mut self.response, Response::Content) {
            Response::Head(head, end) => {
                if let Some(end) = end {
                    self.response = Response::Ended(end);
                }
                Some(*head)
            }
            other @ (Response::Expected | Response::Content | Response::Ended(_)) => {
                self.response = other;
                None
            }
        }
    }

    /// Number of bytes of the response body that the client's side has not taken.
    pub(super) fn queued(&self) -> usize {
        self.content.len()
    }

    /// Number of bytes of memory held by the bodies of request and response.
    pub(super) fn retained(&self) -> usize {
        self.queued() + self.upload.as_ref().map_or(0, Upload::retained)
    }

    /// Number of bytes of the response body that the client's side has not taken, including those still to come; `None` if unknown.
    pub(super) fn left(&self) -> Option<u64> {
        let queued = self.queued() as u64;
        if self.is_open() {
            self.missing.map(|missing| missing + queued)
        } else {
            Some(queued)
        }
    }

    /// Takes at most `max` bytes of the body, and at least one if there are any.
    pub(super) fn take_content(&mut self, max: usize) -> Bytes {
        self.content.take(max)
    }

    /// Takes the whole body in one piece; `None` unless it is complete, contiguous, and without trailers.
    pub(super) fn take_whole(&mut self) -> Option<Bytes> {
        (self.is_complete() && !self.awaits_upload())
            .then(|| self.content.take_whole())
            .flatten()
    }

    /// Whether the response has ended without a failure and has no trailers.
    pub(super) const fn is_complete(&self) -> bool {
        matches!(self.response, Response::Ended(Ok(None)))
    }

    /// Whether the response body may end only after the upload, although the response may have ended.
    pub(super) const fn awaits_upload(&self) -> bool {
        self.ends_with_upload && !self.asks_for_tunnel && self.upload.is_some()
    }

    /// Records that the request is complete in the output.
    pub(super) fn on_upload_end(&mut self) {
        self.upload = None;
        if self.ends_with_upload && !self.is_open() {
            self.wake();
        }
    }

    /// Whether the client's side has taken the whole response, though END_STREAM may still be to come.
    pub(super) fn is_taken(&self) -> bool {
        let is_all = match self.response {
            Response::Content => self.missing == Some(0),
            Response::Ended(Ok(_)) => true,
            Response::Expected | Response::Head(..) | Response::Ended(Err(_)) => false,
        };
        is_all && self.content.is_empty()
    }

    /// Whether the stream can be forgotten: its request or response body was dropped, and upload and response are over.
    pub(super) const fn is_forgettable(&self) -> bool {
        self.is_detached && self.upload.is_none() && !self.is_open()
    }

    /// Whether no content of the request can be sent now: none is left, the backend has not opened the tunnel yet, or the
    /// content is held back until the backend answers.
    pub(super) fn is_sent(&self) -> bool {
        (self.upload.as_ref()).is_none_or(|upload| self.asks_for_tunnel || upload.is_held())
    }

    /// Whether progress depends on the backend alone.
    pub(super) fn waits_for_server(&self) -> bool {
        let is_blocked = (self.upload.as_ref()).is_some_and(|upload| !upload.waits_for_client());
        is_blocked
            || match self.response {
                Response::Expected => self.upload.is_none(),
                Response::Content => self.content.is_empty(),
                Response::Head(..) | Response::Ended(_) => false,
            }
    }
}
