//! The server role of one HTTP/1 connection.

mod receive;
mod respond;

use std::sync::Arc;
use std::time::Instant;

use h2o_http::{BodyLength, Method, RequestHead, Scheme, TimeLimit, Version};

pub use receive::Received;

use crate::Settings;
use crate::chunked::ChunkedReader;
use crate::encode::BodyWriter;
use crate::field_lines::HeadScan;
use crate::request_head::RequestOptions;
use crate::timers::Timers;

/// What follows a response on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// The connection waits for the next request, whose bytes may have arrived already (pipelining).
    Request,
    /// The caller closes the connection.
    Close,
}

/// What the connection expects to receive from the client.
#[derive(Clone, Copy, Debug)]
enum ReceiveState {
    Head(HeadScan),
    /// A body with `Content-Length`, of which `left` bytes are to come.
    Sized {
        left: u64,
    },
    Chunked(ChunkedReader),
    /// The request is complete. Further input belongs to the next request and stays with the caller.
    Complete,
    /// Bytes of a tunnel, which are passed through.
    Tunnel,
    /// The client violated the protocol; the rest of its input is ignored.
    Failed,
}

/// How far the response has been written.
#[derive(Clone, Copy, Debug)]
enum SendState {
    /// The final response has not begun.
    Awaited,
    Body(BodyWriter),
    Tunnel,
    Complete,
}

/// Whether the client waits for 100 Continue (RFC 9110 §10.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    None,
    /// The client does not send its body until it receives 100 Continue or a final response.
    Waiting,
}

/// The properties of the current request that affect its response and the connection.
#[derive(Clone, Copy, Debug)]
struct RequestState {
    is_http10: bool,
    /// Whether the method is HEAD: the response has no content, whatever its fields say.
    is_head: bool,
    is_connect: bool,
    offers_upgrade: bool,
    is_persistent: bool,
    expectation: Expectation,
}

/// The server role of one HTTP/1 connection: bytes and time go in, events and bytes come out.
///
/// The caller owns the buffers. It passes all bytes received and not yet removed, removes the bytes that a step took, and
/// calls again while a step makes progress.
#[derive(Debug)]
pub struct ServerConnection {
    settings: Arc<Settings>,
    receiving: ReceiveState,
    sending: SendState,
    request: RequestState,
    timers: Timers,
    first_byte_at: Option<Instant>,
    body_received: u64,
    requests: u64,
    scheme: Scheme,
    is_shutting_down: bool,
}

impl RequestState {
    /// The state without a request, or with one that could not be read: the response to it must suit any client, and is the
    /// last one on the connection.
    const NONE: Self = Self {
        is_http10: true,
        is_head: false,
        is_connect: false,
        offers_upgrade: false,
        is_persistent: false,
        expectation: Expectation::None,
    };

    fn new(head: &RequestHead, options: RequestOptions) -> Self {
        Self {
            is_http10: head.version == Version::Http10,
            is_head: head.method == Method::Head,
            is_connect: head.body == BodyLength::Tunnel,
            offers_upgrade: !head.upgrade().is_empty(),
            is_persistent: options.is_persistent,
            // A client whose request has an empty body has nothing to send after 100 Continue, so the engine does not treat
            // it as waiting.
            expectation: if options.expects_continue && head.body != BodyLength::Known(0) {
                Expectation::Waiting
            } else {
                Expectation::None
            },
        }
    }
}

impl ServerConnection {
    /// The engine for a connection that was accepted at `now` and waits for its first request.
    #[must_use]
    pub fn new(settings: Arc<Settings>, scheme: Scheme, now: Instant) -> Self {
        let mut timers = Timers::new();
        timers.await_head(&settings, now);
        Self {
            settings,
            receiving: ReceiveState::Head(HeadScan::default()),
            sending: SendState::Awaited,
            request: RequestState::NONE,
            timers,
            first_byte_at: None,
            body_received: 0,
            requests: 0,
            scheme,
            is_shutting_down: false,
        }
    }

    /// Whether the response is written to `out` completely or was aborted.
    #[must_use]
    pub const fn is_response_done(&self) -> bool {
        matches!(self.sending, SendState::Complete)
    }

    /// Whether the request's body is complete, or no more of it will be received.
    #[must_use]
    pub const fn is_body_done(&self) -> bool {
        matches!(
            self.receiving,
            ReceiveState::Complete | ReceiveState::Failed
        )
    }

    /// Number of bytes of the request's body that are announced and not received yet; `None` if the length is not
    /// announced.
    #[must_use]
    pub const fn body_left(&self) -> Option<u64> {
        match self.receiving {
            ReceiveState::Sized { left } => Some(left),
            ReceiveState::Chunked(_) | ReceiveState::Tunnel => None,
            ReceiveState::Head(_) | ReceiveState::Complete | ReceiveState::Failed => Some(0),
        }
    }

    /// Whether the connection can serve another request once the rest of the body has been received and dropped.
    #[must_use]
    pub const fn can_discard(&self) -> bool {
        !self.is_body_done()
            && matches!(self.sending, SendState::Complete)
            && self.request.is_persistent
            && !self.is_shutting_down
    }

    /// Whether the connection is a tunnel.
    #[must_use]
    pub const fn is_tunnel(&self) -> bool {
        matches!(self.sending, SendState::Tunnel)
    }

    /// Decides whether the connection serves another request, once the response is written and the body read. If the
    /// handler left a part of the body unread, the connection closes instead of receiving the rest.
    pub fn next(&mut self, now: Instant) -> Next {
        let is_over = matches!(
            (&self.sending, &self.receiving),
            (SendState::Complete, ReceiveState::Complete)
        );
        if !is_over || !self.request.is_persistent || self.is_shutting_down {
            self.timers.stop_reading();
            return Next::Close;
        }
        self.receiving = ReceiveState::Head(HeadScan::default());
        self.sending = SendState::Awaited;
        self.request = RequestState::NONE;
        self.first_byte_at = None;
        self.body_received = 0;
        self.timers.await_head(&self.settings, now);
        Next::Request
    }

    /// Reports that the socket accepted `written` bytes of the engine's output since the last call, and whether more output
    /// is `pending`. To be called after every attempt to write, and when the kernel's send queue has shrunk: this progress
    /// decides whether the client is too slow.
    pub fn on_written(&mut self, written: usize, pending: bool, now: Instant) {
        if !self.is_tunnel() {
            self.timers
                .on_written(written, pending, &self.settings, now);
        }
    }

    /// Reports that the caller stops reading the body for now, so that the client's time limit is suspended.
    pub fn pause_reading(&mut self) {
        self.timers.pause_body();
    }

    /// Reports that the caller continues to read the body.
    pub fn resume_reading(&mut self, now: Instant) {
        if !self.wants_continue() {
            self.timers.resume_body(&self.settings, now);
        }
    }

    /// Whether the connection waits for content from the client, and whether output waits until the client reads.
    #[must_use]
    pub const fn waits_for_client(&self) -> (bool, bool) {
        (self.timers.is_reading_body(), self.timers.is_writing())
    }

    /// When to call [`ServerConnection::on_timeout`] next, unless input or output changes it before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The time limit that has expired at `now`, if any. The caller then closes the connection without an answer.
    #[must_use]
    pub fn on_timeout(&mut self, now: Instant) -> Option<TimeLimit> {
        let first_request = self.requests == 0;
        let passed = self.timers.passed(first_request, now)?;
        self.request.is_persistent = false;
        self.timers.stop();
        Some(match passed {
            TimeLimit::Head { .. } if self.first_byte_at.is_none() => TimeLimit::Idle,
            passed => passed,
        })
    }

    /// Begins the graceful shutdown: responses have `Connection: close`, and no further request is read. The caller can
    /// close an idle connection at once.
    pub const fn shut_down(&mut self) {
        self.is_shutting_down = true;
    }

    /// Whether [`ServerConnection::shut_down`] was called.
    #[must_use]
    pub const fn is_shutting_down(&self) -> bool {
        self.is_shutting_down
    }

    /// Whether the connection waits for a request of which no byte has arrived.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        matches!(self.receiving, ReceiveState::Head(_)) && self.first_byte_at.is_none()
    }

    /// Number of the current request on this connection, from 1; 0 before the first head is complete.
    #[must_use]
    pub const fn request_index(&self) -> u64 {
        self.requests
    }

    /// When the first byte of the current request was received; `None` before that.
    #[must_use]
    pub const fn first_byte_at(&self) -> Option<Instant> {
        self.first_byte_at
    }

    /// Number of content bytes of the current request received so far.
    #[must_use]
    pub const fn body_received(&self) -> u64 {
        self.body_received
    }
}
