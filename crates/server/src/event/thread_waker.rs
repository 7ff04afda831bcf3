//! Wakers of a worker's thread: they have the event loop run another turn, from any thread and while the thread waits for events.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// A thread that waits for events, and can be woken by an eventfd, which is one of them.
pub(crate) struct WaitingThread {
    /// Whether the thread waits or is about to wait.
    is_waiting: AtomicBool,
    eventfd: OwnedFd,
}

/// A waker of the thread, which remembers that it has fired.
pub(crate) struct ThreadWaker {
    has_fired: AtomicBool,
    thread: Arc<WaitingThread>,
}

impl WaitingThread {
    /// # Errors
    /// No file descriptor is left.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            is_waiting: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    /// The descriptor that becomes readable when a waker fires while the thread waits.
    pub(crate) const fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Makes a waker of the thread.
    pub(crate) fn waker(self: &Arc<Self>) -> Arc<ThreadWaker> {
        Arc::new(ThreadWaker {
            has_fired: AtomicBool::new(false),
            thread: Arc::clone(self),
        })
    }

    /// Announces that the thread is about to wait. If a waker [has fired](ThreadWaker::has_fired) before, the eventfd does not tell it, so
    /// the wakers must be asked afterwards.
    pub(crate) fn begin_wait(&self) {
        self.is_waiting.store(true, SeqCst);
    }

    /// Notes that the thread does not wait any more.
    pub(crate) fn end_wait(&self) {
        self.is_waiting.store(false, SeqCst);
    }
}

impl ThreadWaker {
    /// Whether the waker has fired since it was [asked](Self::take).
    pub(crate) fn has_fired(&self) -> bool {
        self.has_fired.load(SeqCst)
    }

    /// Returns whether the waker has fired since the last call.
    pub(crate) fn take(&self) -> bool {
        self.has_fired() && self.has_fired.swap(false, SeqCst)
    }

    /// The waker for futures.
    pub(crate) fn of(waker: &Arc<Self>) -> Waker {
        Arc::clone(waker).into()
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_fired.store(true, SeqCst);
        // The order of all four accesses (SeqCst) makes sure that either the thread sees that the waker has fired before it waits, or this
        // call sees that the thread waits.
        if self.thread.is_waiting.swap(false, SeqCst) {
            // The result is ignored: the write fails only if the counter of the eventfd is full, which takes 2^64 calls.
            let _ = rustix::io::write(&self.thread.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eventfd_is_written_only_while_the_thread_waits() {
        let thread = WaitingThread::new().unwrap();
        let [first, second] = [thread.waker(), thread.waker()];
        let written = || {
            let mut count = [0; 8];
            match rustix::io::read(&thread.eventfd, &mut count) {
                Ok(_) => u64::from_ne_bytes(count),
                Err(_) => 0,
            }
        };
        let wake = |waker: &Arc<ThreadWaker>| ThreadWaker::of(waker).wake();
        wake(&first);
        assert_eq!((first.has_fired(), second.has_fired()), (true, false));
        assert_eq!((first.take(), first.take(), written()), (true, false, 0));
        thread.begin_wait();
        wake(&second);
        wake(&first);
        assert_eq!((first.take(), second.take(), written()), (true, true, 1));
        thread.begin_wait();
        thread.end_wait();
        wake(&first);
        assert_eq!((first.take(), written()), (true, 0));
    }
}
