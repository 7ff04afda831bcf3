//! The queue of connections that must run although their sockets have no event: the wakers of their requests add them.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// The token of a connection, and the index of the request on it that can go on.
pub(crate) type WakeTarget = (u64, u32);

/// The connections whose wakers have fired. Any thread may add to the queue.
#[derive(Default)]
pub(crate) struct WakeQueue {
    inner: Mutex<(Vec<WakeTarget>, Option<Waker>)>,
}

impl WakeQueue {
    /// Sets the waker of the runtime's task that runs the connections.
    pub(crate) fn set_task(&self, waker: &Waker) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.1.as_ref().is_some_and(|old| old.will_wake(waker)) {
            inner.1 = Some(waker.clone());
        }
    }

    /// Moves all entries of the queue to `woken`.
    pub(crate) fn take(&self, woken: &mut Vec<WakeTarget>) {
        woken.append(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner).0);
    }

    /// Makes a waker that adds `woken` to the queue when it fires.
    pub(crate) fn waker(queue: &Arc<Self>, woken: WakeTarget) -> Waker {
        Arc::new(QueueWaker {
            woken,
            queue: Arc::clone(queue),
        })
        .into()
    }
}

/// The implementation of a waker that adds one entry to the queue when it fires.
struct QueueWaker {
    woken: WakeTarget,
    queue: Arc<WakeQueue>,
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        let task = {
            let mut inner = self
                .queue
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
