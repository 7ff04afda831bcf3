//! Datagrams that the kernel delivered to a worker other than that of their connection: after a change of the client's
//! address it chooses anew.

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use bytes::BytesMut;
use h2o_quic::Datagram;

use crate::listener::ListenerId;

/// Most datagrams waiting for a worker. Further ones are dropped, as by a full receive buffer of the kernel.
const MAX_WAITING: usize = 1024;

/// A datagram for the connection of another worker.
pub(crate) enum Mail {
    /// Another worker of this process has received it.
    Received {
        /// The listener that it was sent to.
        listener: ListenerId,
        datagram: Datagram,
        /// How often it may be forwarded to another server.
        hops: u8,
    },
    /// Another generation of this server has received it, and wrapped it as one for another server.
    Wrapped(BytesMut),
}

/// Datagrams from other workers.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<(Vec<Mail>, Option<Waker>)>);

impl Mailbox {
    /// Sets the waker of the worker that empties the box.
    pub(crate) fn set_waker(&self, waker: Waker) {
        self.lock().1 = Some(waker);
    }

    /// Hands a datagram over. Returns whether there was room.
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

    /// Has the worker look at what else has changed for it.
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
