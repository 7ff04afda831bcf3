//! One request with its response, as the connection keeps it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use h2o_exchange::{ByteQueue, Clock, Trace};
use h2o_http::{BodyLength, ClientResponse, Headers, StatusCode};
use h2o_http2::{ErrorCode, PeerError, StreamKey};

use super::upload::Upload;

/// Informational responses that are kept for a call which does not take them: more are left out.
const MAX_INFORMATIONAL: usize = 64;

/// Bytes of a frame's header (RFC 9113 §4.1).
const FRAME_HEADER: usize = 9;

/// The trace of a request, with the clock its times are from.
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
    /// The server has not looked at the request (RFC 9113 §8.7).
    Refused,
    /// The server reset the stream or closed the connection.
    Io,
    /// The content of the request cannot be completed: the client is gone, or a file cannot be read.
    Content,
    /// The server broke the protocol.
    Protocol,
    /// More content came than the window allows.
    FlowControl,
    /// No response began in time.
    FirstByteTimeout,
    /// Nothing came or went in time.
    IoTimeout,
    /// The server does not take extended CONNECT (RFC 8441 §3).
    NoExtendedConnect,
}

impl StreamFailure {
    /// What the log says, and the client if there is no response yet (H2O compatibility).
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Refused => "refused stream",
            Self::Io | Self::Content => "I/O error",
            Self::Protocol => "protocol violation",
            Self::FlowControl => "flow control error",
            Self::FirstByteTimeout => "first byte timeout",
            Self::IoTimeout => "I/O timeout",
            Self::NoExtendedConnect => "extended CONNECT is not supported by the server",
        }
    }
}

impl From<PeerError> for StreamFailure {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::WindowExceeded | PeerError::WindowOverflow | PeerError::SettingsWindow => {
                Self::FlowControl
            }
            _ => Self::Protocol,
        }
    }
}

impl StreamFailure {
    /// The stream was reset with `code`, `by_us` for what the server did.
    pub(super) fn of_reset(code: ErrorCode, by_us: bool) -> Self {
        match (by_us, code) {
            (true, ErrorCode::FLOW_CONTROL_ERROR) => Self::FlowControl,
            (true, _) => Self::Protocol,
            (false, _) => Self::Io,
        }
    }
}

/// The head of a response.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: Headers,
    pub(super) length: Option<u64>,
    pub(super) is_tunnel: bool,
}

/// The end of a response: its trailers if there are any, or why it failed.
pub(super) type End = Result<Option<Headers>, StreamFailure>;

/// How far the response has come.
pub(super) enum Response {
    /// Informational responses at most have come.
    Expected,
    /// The head is there for the call to take, and maybe the end, too.
    Head(Box<Head>, Option<End>),
    /// Content comes in.
    Content,
    /// Nothing comes any more.
    Ended(End),
}

/// A request that is not over, or whose end its owner has not seen.
pub(super) struct Stream {
    pub(super) key: StreamKey,
    /// Memory for the fields of the response.
    spare: Headers,
    pub(super) response: Response,
    /// Informational responses that the call has not seen yet.
    informational: VecDeque<(StatusCode, Headers)>,
    /// Content that its owner has not taken. The stream's window bounds it.
    content: ByteQueue,
    /// Bytes that are missing of the announced length.
    missing: Option<u64>,
    /// Content on its way to the server.
    pub(super) upload: Option<Upload>,
    /// The owner, which waits for something.
    waker: Option<Waker>,
    /// When the stream fails, and why, unless something comes before.
    pub(super) deadline: Option<(Instant, StreamFailure)>,
    /// The response was taken as a whole; the upload goes on, or the end is still to come.
    pub(super) is_detached: bool,
    /// A tunnel was asked for.
    pub(super) asks_for_tunnel: bool,
    /// Bytes go both ways as they are, for as long as there are any.
    pub(super) is_tunnel: bool,
    /// Timing trace, if an access log or filter asked for one.
    pub(super) trace: Option<TimedTrace>,
}

impl Stream {
    pub(super) fn new(key: StreamKey, upload: Option<Upload>, spare: Headers) -> Self {
        Self {
            key,
            spare,
            informational: VecDeque::new(),
            response: Response::Expected,
            content: ByteQueue::default(),
            missing: None,
            upload,
            waker: None,
            deadline: None,
            is_detached: false,
            asks_for_tunnel: false,
            is_tunnel: false,
            trace: None,
        }
    }

    /// The owner is woken when something comes.
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

    /// Frames of the request were made, of so many bytes.
    pub(super) fn note_sent(&self, bytes: usize) {
        if let Some(trace) = &self.trace {
            trace.sent.set(trace.sent.get() + bytes as u64);
        }
    }

    /// All of the request was written.
    pub(super) fn note_request_end(&self) {
        if let Some(trace) = &self.trace {
            trace.request_ended.set(Some(trace.now()));
        }
    }

    /// A frame has come, with so many bytes behind its header.
    pub(super) fn note_received(&self, bytes: usize) {
        if let Some(trace) = &self.trace {
            let bytes = (bytes + FRAME_HEADER) as u64;
            trace.received.set(trace.received.get() + bytes);
        }
    }

    /// A field section has come, with so many bytes. That it may have been in several frames is passed over.
    pub(super) fn note_section(&self, bytes: usize) {
        self.note_received(bytes);
        if let Some(trace) = &self.trace {
            let bytes = (bytes + FRAME_HEADER) as u64;
            trace.received_head.set(trace.received_head.get() + bytes);
        }
    }

    pub(super) fn on_informational(&mut self, status: StatusCode, headers: Headers) {
        if self.informational.len() < MAX_INFORMATIONAL {
            self.informational.push_back((status, headers));
            self.wake();
        }
    }

    /// The next informational response for the call to see.
    pub(super) fn take_informational(&mut self) -> Option<(StatusCode, Headers)> {
        self.informational.pop_front()
    }

    /// The final head. Its memory goes to the response, that of the response to whoever receives the next head.
    pub(super) fn on_head(&mut self, received: &mut ClientResponse) {
        self.deadline = None;
        self.note_section(received.section_len as usize);
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
        self.note_received(piece.len());
        self.content.push(piece);
        if let Some(missing) = &mut self.missing {
            // The engine has seen to it that it is not more.
            *missing = missing.saturating_sub(piece.len() as u64);
        }
        self.wake();
    }

    /// The response is complete, or has failed. The first call counts.
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

    /// True until the response is complete or has failed.
    pub(super) const fn is_open(&self) -> bool {
        match &self.response {
            Response::Expected | Response::Content => true,
            Response::Head(_, end) => end.is_none(),
            Response::Ended(_) => false,
        }
    }

    /// True if no final response has begun.
    pub(super) const fn is_headless(&self) -> bool {
        matches!(self.response, Response::Expected)
    }

    /// The head, once it is there; what follows it is what the response is from then on.
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

    /// Bytes that the owner has not taken.
    pub(super) fn queued(&self) -> usize {
        self.content.len()
    }

    /// Bytes of memory held for what neither side has taken.
    pub(super) fn retained(&self) -> usize {
        self.queued() + self.upload.as_ref().map_or(0, Upload::retained)
    }

    /// Bytes that the owner has not taken, those that are still to come among them; `None` if that is not known.
    pub(super) fn left(&self) -> Option<u64> {
        let queued = self.queued() as u64;
        if self.is_open() {
            self.missing.map(|missing| missing + queued)
        } else {
            Some(queued)
        }
    }

    /// At most `max` of them, at least one if there are any.
    pub(super) fn take_content(&mut self, max: usize) -> Bytes {
        self.content.take(max)
    }

    /// All of the content, if it is complete, in one piece, and nothing follows it.
    pub(super) fn take_whole(&mut self) -> Option<Bytes> {
        matches!(self.response, Response::Ended(Ok(None)))
            .then(|| self.content.take_whole())
            .flatten()
    }

    /// True if the owner has had all of the response, though its end may still be to come.
    pub(super) fn is_taken(&self) -> bool {
        let is_all = match self.response {
            Response::Content => self.missing == Some(0),
            Response::Ended(Ok(_)) => true,
            Response::Expected | Response::Head(..) | Response::Ended(Err(_)) => false,
        };
        is_all && self.content.is_empty()
    }

    /// True if nobody has anything to do with the stream any more.
    pub(super) const fn is_left(&self) -> bool {
        self.is_detached && self.upload.is_none() && !self.is_open()
    }

    /// True if nothing is sent any more until the server says something.
    pub(super) fn is_sent(&self) -> bool {
        (self.upload.as_ref()).is_none_or(|upload| self.asks_for_tunnel || upload.is_held())
    }

    /// True if nothing can go on before the server does something.
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
