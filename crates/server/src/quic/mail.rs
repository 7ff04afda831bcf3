//! Passes QUIC datagrams between workers. After a client's address has changed, the kernel may deliver its datagrams to another
//! worker than the one with the connection, since the kernel chooses the socket by addresses.

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use bytes::BytesMut;
use h2o_quic::Datagram;

use crate::listener::ListenerId;

/// Largest number of datagrams that wait for one worker. Further datagrams are dropped, as the kernel does when a receive buffer is
/// full.
const MAX_WAITING: usize = 1024;

/// A datagram for this worker that another worker or process has read from a socket.
pub(crate) enum Mail {
    /// Another worker of this process has received the datagram.
    Received {
        /// The listener to whose address the datagram was sent.
        listener: ListenerId,
        datagram: Datagram,
        /// How often the datagram may still be forwarded to another server.
        hops: u8,
    },
    /// Another generation of this server has received the datagram, and has wrapped it in the format that is also used between
    /// servers.
    Wrapped(BytesMut),
}

/// Datagrams that others have passed to one worker, with the waker of that worker.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<(Vec<Mail>, Option<Waker>)>);

impl Mailbox {
    /// Sets the waker of the worker that takes the datagrams.
    pub(crate) fn set_waker(&self, waker: Waker) {
        self.lock().1 = Some(waker);
    }

    /// Adds a datagram, and wakes the worker. Returns `false` if the mailbox is full.
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

    /// Wakes the worker, so that it notices a change other than a datagram: that it may read its UDP sockets again.
    pub(crate) fn wake(&self) {
        let waker = self.lock().1.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes all datagrams that are waiting.
    pub(crate) fn take(&self) -> Vec<Mail> {
        std::mem::take(&mut self.lock().0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<Mail>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
