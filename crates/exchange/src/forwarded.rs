//! Requests that are handed on to upstream servers: what the others of the server need to know of them, or they of those.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use crate::TlsInfo;

/// `send-server-name: preserve`: the `server` field of an upstream server is handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepsServerField(pub bool);

/// Bytes of text that are kept from one request to the next.
const KEPT: usize = 1024;

/// The request as an upstream server got it. Memory is kept from one request to the next.
#[derive(Default)]
pub struct Forwarded {
    authority: Vec<u8>,
    target: Vec<u8>,
    /// When what happened; kept only where somebody wants it.
    pub trace: Option<Rc<Trace>>,
}

/// When what happened to a request at an upstream server, and how much went to and fro. All on the worker's coarse clock.
#[derive(Debug, Default)]
pub struct Trace {
    /// The request was handed to the upstream client.
    pub started: Cell<Option<Instant>>,
    /// The connection was ready, and the head about to be written.
    pub request_begun: Cell<Option<Instant>>,
    /// Head and content were written.
    pub request_ended: Cell<Option<Instant>>,
    /// The head of the final response was there.
    pub response_begun: Cell<Option<Instant>>,
    /// Its content was complete.
    pub response_ended: Cell<Option<Instant>>,
    /// Bytes written, above TLS.
    pub sent: Cell<u64>,
    /// Of these, those of the head.
    pub sent_head: Cell<u64>,
    /// Bytes read, above TLS.
    pub received: Cell<u64>,
    /// Of these, those of heads, interim ones included.
    pub received_head: Cell<u64>,
    /// TLS parameters of the connection; `None` for clear text.
    pub tls: RefCell<Option<TlsInfo>>,
}

impl Trace {
    /// A request of which `head` bytes are the head is about to be written. What an earlier attempt left behind is
    /// forgotten.
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

impl Forwarded {
    /// What errors of upstream servers are labelled with in the error log (H2O compatibility: scripts look for it).
    pub const LABEL: &str = "lib/core/proxy.c";

    /// Forgets everything, keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.trace = None;
        self.forget_place();
    }

    /// The request goes elsewhere.
    pub fn forget_place(&mut self) {
        for text in [&mut self.authority, &mut self.target] {
            text.clear();
            // Requests whose text is longer are rare.
            if text.capacity() > KEPT {
                *text = Vec::new();
            }
        }
    }

    /// The request was handed on with this authority and this target, the latter put together from pieces.
    pub fn set<'p>(&mut self, authority: &[u8], target: impl IntoIterator<Item = &'p [u8]>) {
        self.forget_place();
        self.authority.extend_from_slice(authority);
        for piece in target {
            self.target.extend_from_slice(piece);
        }
    }

    /// The authority and the target it was handed on with; `None` if it was not.
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
        let mut forwarded = Forwarded::default();
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
