//! The event loop as a future in an async runtime, whose clock tests can pause.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::event::event_loop::EventLoop;

/// The epoll set of an event loop, of whose events the runtime tells.
pub(crate) struct WatchedSet(AsyncFd<OwnedFd>);

impl WatchedSet {
    pub(crate) fn of(event_loop: &EventLoop) -> io::Result<Self> {
        let set = event_loop.reactor().as_fd().try_clone_to_owned()?;
        #[expect(
            unsafe_code,
            reason = "the caller promises that the descriptor stays open while the runtime uses it"
        )]
        // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives, and it lives in the registration.
        let set = unsafe { AsyncFd::register_with_interest(set, Interest::READABLE) }?;
        Ok(Self(set))
    }
}

impl EventLoop {
    /// Runs turns of the loop until it has to wait, and has the runtime wait for the rest: for events of `set`, and for the next timer.
    pub(crate) fn poll_in_runtime(&mut self, set: &WatchedSet, task: &mut Context<'_>) -> Poll<()> {
        loop {
            self.wait(Some(Duration::ZERO));
            if self.poll_turn(task).is_ready() {
                return Poll::Ready(());
            }
            let mut is_over = true;
            while let Poll::Ready(guard) = set.0.poll_read_ready(task) {
                guard.expect("the epoll set is open").clear_ready();
                is_over = false;
            }
            if self.worker().timers.poll_next(task).is_ready() {
                is_over = false;
            }
            if is_over {
                return Poll::Pending;
            }
        }
    }
}
