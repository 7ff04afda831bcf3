//! What the server records about a request that it forwards to a backend, for logs, filters and error messages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use crate::TlsInfo;

/// The setting `send-server-name: preserve`: whether the `server` field of a backend's response is forwarded to the
/// client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepsServerField(pub bool);

/// The name of this server, which FastCGI applications and scripts get as `SERVER_SOFTWARE`.
#[derive(Clone, Debug, Default)]
pub struct ServerSoftware {
    /// The value of `server-name`; `None` for the default.
    pub name: Option<std::sync::Arc<str>>,
    /// Whether clients are not told the name (`send-server-name` is not `ON`). FastCGI applications then get an empty one.
    pub is_hidden: bool,
}

/// Buffers for authority and target up to this many bytes are kept for the next request; longer ones are freed.
const KEPT: usize = 1024;

/// Authority and target of the request as sent to a backend. The memory is kept for the next request.
#[derive(Default)]
pub struct ForwardedRequest {
    authority: Vec<u8>,
    target: Vec<u8>,
    /// Times and sizes of the request to the backend, recorded if a log or filter uses them.
    pub trace: Option<Rc<Trace>>,
}

/// Times and sizes of a request to a backend, by the worker's coarse clock.
#[derive(Debug, Default)]
pub struct Trace {
    /// When the request was handed to the upstream client.
    pub started: Cell<Option<Instant>>,
    /// When the connection to the backend was ready, just before the request head was written.
    pub request_begun: Cell<Option<Instant>>,
    /// When the head and the body of the request were written completely.
    pub request_ended: Cell<Option<Instant>>,
    /// When the head of the backend's final response was received.
    pub response_begun: Cell<Option<Instant>>,
    /// When the body of the backend's response was received completely.
    pub response_ended: Cell<Option<Instant>>,
    /// Number of bytes written to the backend, without TLS overhead.
    pub sent: Cell<u64>,
    /// How many of the sent bytes are the request head.
    pub sent_head: Cell<u64>,
    /// Number of bytes read from the backend, without TLS overhead.
    pub received: Cell<u64>,
    /// How many of the received bytes are response heads, including those of interim (1xx) responses.
    pub received_head: Cell<u64>,
    /// TLS parameters of the connection to the backend; `None` for clear text.
    pub tls: RefCell<Option<TlsInfo>>,
}

impl Trace {
    /// Records the start of an attempt to send the request, whose head has `head` bytes. Clears the values of an
    /// earlier attempt.
    pub fn begin_request(&self, now: Instant, head: u64, tls: Option<TlsInfo>) {
        self.request_begun.set(Some(now));
        for later in [
            &self.request_ended,
            &self.response_begun,
            &self.response_ended,
        ] {
            later.set(None);
        }
        for count in [&self.sent, &self.received, &self.received_head] {
            count.set(0);
        }
        self.sent_head.set(head);
        *self.tls.borrow_mut() = tls;
    }
}

impl ForwardedRequest {
    /// Label of backends' errors in the error log. H2O compatibility: it is H2O's label, since users' scripts search
    /// logs for it.
    pub const LABEL: &str = "lib/core/proxy.c";

    /// Clears the record of the last request, and keeps the memory for the next one.
    pub(crate) fn clear(&mut self) {
        self.trace = None;
        self.forget_place();
    }

    /// Clears authority and target, because the request goes elsewhere after an internal redirect, or is over.
    pub fn forget_place(&mut self) {
        for text in [&mut self.authority, &mut self.target] {
            text.clear();
            // A buffer that has grown long is freed, because few requests need it.
            if text.capacity() > KEPT {
                *text = Vec::new();
            }
        }
    }

    /// Sets authority and target as sent to the backend; the target is given in pieces, which are joined.
    pub fn set<'p>(&mut self, authority: &[u8], target: impl IntoIterator<Item = &'p [u8]>) {
        self.forget_place();
        self.authority.extend_from_slice(authority);
        for piece in target {
            self.target.extend_from_slice(piece);
        }
    }

    /// Authority and target as sent to the backend; `None` if the request was not forwarded.
    #[must_use]
    pub fn place(&self) -> Option<(&[u8], &[u8])> {
        let is_set = !self.authority.is_empty() || !self.target.is_empty();
        is_set.then_some((&self.authority, &self.target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_attempt_begins_with_nothing() {
        let now = crate::Clock::default().now();
        let trace = Trace::default();
        trace.started.set(Some(now));
        for head in [7, 8] {
            trace.begin_request(now, head, None);
            let left = [&trace.sent, &trace.received, &trace.received_head].map(Cell::get);
            assert_eq!((trace.sent_head.get(), left), (head, [0; 3]));
            assert_eq!(trace.response_ended.get(), None);
            trace.sent.set(9);
            trace.received.set(9);
            trace.response_ended.set(Some(now));
        }
        assert_eq!(trace.started.get(), Some(now));
    }

    #[test]
    fn the_place_is_known_until_the_next_request() {
        let mut forwarded = ForwardedRequest::default();
        assert_eq!(forwarded.place(), None);
        forwarded.set(b"h:1", [&b"/a"[..], b"/b"]);
        assert_eq!(forwarded.place(), Some((&b"h:1"[..], &b"/a/b"[..])));
        forwarded.set(b"i", [&b"/"[..]]);
        assert_eq!(forwarded.place(), Some((&b"i"[..], &b"/"[..])));
        forwarded.clear();
        assert_eq!(forwarded.place(), None);
        forwarded.set(b"i", [&[b'/'; KEPT + 1][..]]);
        forwarded.clear();
        assert_eq!(forwarded.target.capacity(), 0);
    }
}
