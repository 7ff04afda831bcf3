//! Passes datagrams between workers. The kernel delivers a datagram to another worker than the one with its connection
//! after the client's address has changed, since it chooses the socket by address.

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use bytes::BytesMut;
use h2o_quic::Datagram;

use crate::listener::ListenerId;

/// Most datagrams that wait for one worker. Further ones are dropped, as the kernel does when a receive buffer is full.
const MAX_WAITING: usize = 1024;

/// A datagram that this worker did not read from a socket itself.
pub(crate) enum Mail {
    /// Another worker of this process has received the datagram.
    Received {
        /// The listener that it was sent to.
        listener: ListenerId,
        datagram: Datagram,
        /// How often the datagram may be forwarded to another server.
        hops: u8,
    },
    /// Another generation of this server has received the datagram, and wrapped it in the form for forwarding to
    /// another server.
    Wrapped(BytesMut),
}

/// Datagrams from other workers.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<(Vec<Mail>, Option<Waker>)>);

impl Mailbox {
    /// Sets the waker of the worker that takes the datagrams.
    pub(crate) fn set_waker(&self, waker: Waker) {
        self.lock().1 = Some(waker);
    }

    /// Adds a datagram, and wakes the worker. Returns false if the mailbox is full.
    pub(crate) fn put(&self, mail: Mail) -> bool {
        let mut inner = self.lock();
        if inner.0.len() >= MAX_WAITING {
            return false;
        }
        inner.0.push(mail);
        let waker = (inner.0.len() == 1).then(|| inner.1.clone()).flatten();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Wakes the worker, so that it notices other changes, such as that it may read its sockets again.
    pub(crate) fn wake(&self) {
        let waker = self.lock().1.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes all waiting datagrams.
    pub(crate) fn take(&self) -> Vec<Mail> {
        std::mem::take(&mut self.lock().0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<Mail>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
