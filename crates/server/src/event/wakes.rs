//! Connections to be run because something other than their socket has become ready.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// A connection, by its token, and the index of one of its HTTP/2 streams.
pub(crate) type Woken = (u64, u32);

/// Connections to be run because something they waited for is ready. May be filled from any thread.
#[derive(Default)]
pub(crate) struct Wakes {
    inner: Mutex<(Vec<Woken>, Option<Waker>)>,
}

impl Wakes {
    /// The task that runs the connections.
    pub(crate) fn set_task(&self, waker: &Waker) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.1.as_ref().is_some_and(|old| old.will_wake(waker)) {
            inner.1 = Some(waker.clone());
        }
    }

    /// Moves the woken connections to `tokens`.
    pub(crate) fn take(&self, woken: &mut Vec<Woken>) {
        woken.append(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner).0);
    }

    /// A waker that files `woken` here.
    pub(crate) fn waker(wakes: &Arc<Self>, woken: Woken) -> Waker {
        Arc::new(ConnectionWaker {
            woken,
            wakes: Arc::clone(wakes),
        })
        .into()
    }
}

/// Wakes one connection.
struct ConnectionWaker {
    woken: Woken,
    wakes: Arc<Wakes>,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        let task = {
            let mut inner = self
                .wakes
                .inner
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            inner.0.push(self.woken);
            inner.1.clone()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}
