//! HTTP datagrams of a tunnel (RFC 9297 §2), between the driver of the connection and the handler of the tunnel.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

/// Most bytes of datagrams that the pipe queues in one direction. While the queue is full it drops further datagrams,
/// as a socket with a full buffer does.
const CAPACITY: usize = 64 * 1024;
/// Bytes that each queued datagram counts in addition to its length, so that the number of empty ones is limited, too.
const OVERHEAD: usize = 64;

/// Carries the HTTP datagrams of a tunnel in both directions. Each direction has a queue, and drops datagrams while it
/// is full.
///
/// Only connections whose transport carries datagrams (HTTP/3) create such a pipe. Whether the client accepts HTTP
/// datagrams is known once its SETTINGS have arrived.
pub struct DatagramPipe {
    agreement: RefCell<Agreement>,
    /// The waker of the handler, which waits for the client's settings and then for datagrams.
    reader: Cell<Option<Waker>>,
    /// The waker of the connection, which is woken when the handler sends.
    owner: Waker,
    is_open: Cell<bool>,
    received: Queue,
    to_send: Queue,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
}

/// Whether the client accepts HTTP datagrams, as its SETTINGS say.
enum Agreement {
    /// The client's settings have not arrived.
    Unknown,
    Refused,
    /// The client accepts datagrams. Every datagram that is sent to it begins with these bytes, which identify the
    /// tunnel on its connection.
    Accepted(Box<[u8]>),
}

#[derive(Default)]
struct Queue {
    datagrams: RefCell<VecDeque<Bytes>>,
    len: Cell<usize>,
}

impl Queue {
    fn has_room(&self, len: usize) -> bool {
        self.len.get() + len + OVERHEAD <= CAPACITY
    }

    /// Appends a datagram to the queue of one direction. Returns whether the queue was empty.
    fn push(&self, datagram: Bytes) -> bool {
        let before = self.len.get();
        self.len.set(before + datagram.len() + OVERHEAD);
        self.datagrams.borrow_mut().push_back(datagram);
        before == 0
    }

    fn pop(&self) -> Option<Bytes> {
        let datagram = self.datagrams.borrow_mut().pop_front()?;
        self.len.set(self.len.get() - datagram.len() - OVERHEAD);
        Some(datagram)
    }

    fn clear(&self) {
        *self.datagrams.borrow_mut() = VecDeque::new();
        self.len.set(0);
    }
}

impl DatagramPipe {
    /// Creates the pipe of a new request. `owner` is the waker of the connection, which is woken when the handler
    /// sends. Called by the connection.
    #[must_use]
    pub fn new(owner: Waker) -> Self {
        Self {
            agreement: RefCell::new(Agreement::Unknown),
            reader: Cell::default(),
            owner,
            is_open: Cell::new(false),
            received: Queue::default(),
            to_send: Queue::default(),
            received_bytes: Cell::new(0),
            sent_bytes: Cell::new(0),
        }
    }

    /// Tells the pipe that the client's settings have arrived. `Some`: the client accepts datagrams, each of which
    /// begins with `prefix`; `None`: it accepts none. Called by the connection.
    pub fn settle(&self, prefix: Option<&[u8]>) {
        *self.agreement.borrow_mut() = match prefix {
            Some(prefix) => Agreement::Accepted(prefix.into()),
            None => Agreement::Refused,
        };
        self.wake_reader();
    }

    /// Whether the client's settings have arrived: [`DatagramPipe::settle`] was called.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !matches!(*self.agreement.borrow(), Agreement::Unknown)
    }

    /// Queues a datagram that has arrived from the client. Returns false if the pipe has dropped it, because it is full
    /// or no handler takes datagrams. Called by the connection.
    pub fn receive(&self, datagram: Bytes) -> bool {
        if !self.is_open.get() || !self.received.has_room(datagram.len()) {
            return false;
        }
        self.received_bytes
            .set(self.received_bytes.get() + datagram.len() as u64);
        if self.received.push(datagram) {
            self.wake_reader();
        }
        true
    }

    /// Takes the next datagram to send to the client, with its prefix. Called by the connection.
    pub fn next_to_send(&self) -> Option<Bytes> {
        self.to_send.pop()
    }

    /// Declares that the handler takes datagrams. Datagrams that arrived before this call were dropped. Called by the
    /// handler.
    pub fn open(&self) {
        self.is_open.set(true);
    }

    /// Drops all queued datagrams, and those that arrive later. Called by the handler.
    pub fn close(&self) {
        self.is_open.set(false);
        self.received.clear();
        self.to_send.clear();
    }

    /// Waits for the client's settings. Ready with whether the client accepts datagrams. Called by the handler.
    pub fn poll_accepted(&self, context: &mut Context<'_>) -> Poll<bool> {
        match *self.agreement.borrow() {
            Agreement::Unknown => {
                self.reader.set(Some(context.waker().clone()));
                Poll::Pending
            }
            Agreement::Refused => Poll::Ready(false),
            Agreement::Accepted(_) => Poll::Ready(true),
        }
    }

    /// Takes the next datagram from the client. Called by the handler.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Bytes> {
        if let Some(datagram) = self.received.pop() {
            return Poll::Ready(datagram);
        }
        self.reader.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Queues a datagram for the client that consists of `head` and `payload`. Returns false if the pipe has dropped
    /// it, because it is full or the client accepts no datagrams. Called by the handler.
    pub fn send(&self, head: &[u8], payload: &[u8]) -> bool {
        let Agreement::Accepted(prefix) = &*self.agreement.borrow() else {
            return false;
        };
        let len = prefix.len() + head.len() + payload.len();
        if !self.is_open.get() || !self.to_send.has_room(len) {
            return false;
        }
        let mut datagram = BytesMut::with_capacity(len);
        for part in [prefix, head, payload] {
            datagram.extend_from_slice(part);
        }
        self.sent_bytes
            .set(self.sent_bytes.get() + (len - prefix.len()) as u64);
        if self.to_send.push(datagram.freeze()) {
            self.owner.wake_by_ref();
        }
        true
    }

    /// Total bytes of the datagrams from the client that the pipe has queued for the handler, without their prefixes.
    #[must_use]
    pub const fn received_bytes(&self) -> u64 {
        self.received_bytes.get()
    }

    /// Total bytes of the datagrams that the handler has queued for the client, without their prefixes.
    #[must_use]
    pub const fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Number of bytes of memory that the pipe holds.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.received.len.get() + self.to_send.len.get()
    }

    fn wake_reader(&self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_bounded() {
        for len in [0, 1200] {
            let pipe = DatagramPipe::new(Waker::noop().clone());
            pipe.settle(Some(&[4]));
            pipe.open();
            let most = CAPACITY / (len + OVERHEAD);
            let payload = vec![7; len];
            let received = (0..2 * most).filter(|_| pipe.receive(payload.clone().into()));
            assert_eq!(received.count(), most);
            let sent = (0..2 * most).filter(|_| pipe.send(&[], &payload)).count();
            assert_eq!(sent, CAPACITY / (1 + len + OVERHEAD));
            assert!(pipe.retained() <= 2 * CAPACITY);
            // After a datagram was taken, the queue has room for another one.
            let mut context = Context::from_waker(Waker::noop());
            assert!(pipe.poll_next(&mut context).is_ready());
            assert!(pipe.receive(payload.clone().into()));
            assert!(!pipe.receive(payload.into()));
            pipe.close();
            assert_eq!(pipe.retained(), 0);
            assert!(!pipe.receive(Bytes::new()) && !pipe.send(&[], &[]));
        }
    }

    #[test]
    fn datagrams_are_sent_only_to_clients_that_accept_them() {
        let mut context = Context::from_waker(Waker::noop());
        let pipe = DatagramPipe::new(Waker::noop().clone());
        // No handler takes datagrams yet, so the pipe drops them.
        assert!(!pipe.receive("early".into()));
        pipe.open();
        assert!(pipe.poll_accepted(&mut context).is_pending());
        assert!(!pipe.send(&[0], b"early"));
        pipe.settle(None);
        assert_eq!(pipe.poll_accepted(&mut context), Poll::Ready(false));
        assert!(!pipe.send(&[0], b"unwanted"));
        pipe.settle(Some(&[9]));
        assert_eq!(pipe.poll_accepted(&mut context), Poll::Ready(true));
        assert!(pipe.send(&[0], b"wanted"));
        assert_eq!(pipe.next_to_send(), Some("\u{9}\0wanted".into()));
        assert_eq!(pipe.next_to_send(), None);
    }
}
