//! The queue of connections that must run although their sockets have no event: the wakers of their requests add them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The token of a connection, and the index of the request on it that can go on.
pub(crate) type WakeTarget = (u64, u32);

/// The connections whose wakers have fired. Any thread may add to the queue.
#[derive(Default)]
pub(crate) struct WakeQueue {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    woken: Vec<WakeTarget>,
    /// The waker of the event loop.
    event_loop: Option<Waker>,
    /// Whether the event loop is in a turn: it looks at the queue before it waits, so that it need not be woken.
    is_running: bool,
}

impl WakeQueue {
    /// Notes that a turn of the event loop begins.
    pub(crate) fn begin_turn(&self) {
        self.lock().is_running = true;
    }

    /// Notes that the turn of the event loop, of which this is the waker, ends. Returns whether there are entries; if not, the next one wakes
    /// the loop.
    pub(crate) fn end_turn(&self, waker: &Waker) -> bool {
        let mut inner = self.lock();
        if !(inner.event_loop.as_ref()).is_some_and(|old| old.will_wake(waker)) {
            inner.event_loop = Some(waker.clone());
        }
        inner.is_running = false;
        !inner.woken.is_empty()
    }

    /// Moves all entries of the queue to `woken`.
    pub(crate) fn take(&self, woken: &mut Vec<WakeTarget>) {
        woken.append(&mut self.lock().woken);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
        let event_loop = {
            let mut inner = self.queue.lock();
            inner.woken.push(self.woken);
            (inner.event_loop.as_ref())
                .filter(|_| !inner.is_running)
                .cloned()
        };
        if let Some(event_loop) = event_loop {
            event_loop.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn the_event_loop_is_woken_only_while_it_waits() {
        let queue = Arc::<WakeQueue>::default();
        let count = Arc::<Count>::default();
        let task = Waker::from(Arc::clone(&count));
        let wake = |token| WakeQueue::waker(&queue, (token, 0)).wake();
        let take = || {
            let mut woken = Vec::new();
            queue.take(&mut woken);
            woken
        };
        queue.begin_turn();
        wake(1);
        assert_eq!(take(), [(1, 0)]);
        assert!(!queue.end_turn(&task));
        assert_eq!(count.0.load(Relaxed), 0);
        wake(2);
        wake(3);
        assert_eq!(count.0.load(Relaxed), 2);
        queue.begin_turn();
        assert_eq!(take(), [(2, 0), (3, 0)]);
        // Fires after the queue was looked at, so that another turn has to follow.
        wake(4);
        assert!(queue.end_turn(&task));
        assert_eq!((count.0.load(Relaxed), take()), (2, vec![(4, 0)]));
    }
}
