//! Sockets of handlers that the event loop of a worker watches together with its connections.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// A function that has the event loop watch a socket, edge-triggered, for input and for space for output. Its events are reported with the
/// number.
pub type WatchSocket = dyn Fn(BorrowedFd<'_>, u32) -> io::Result<()>;

/// The sockets of handlers, such as those to backends, that the event loop of a worker watches. Compared with a registration in the async
/// runtime, an event of a client and one of a backend cost one system call together, and an event that wakes a request need not go through the runtime.
#[derive(Default)]
pub struct SocketWatch {
    watch: OnceCell<Box<WatchSocket>>,
    sockets: Rc<RefCell<Slab<Rc<Readiness>>>>,
}

/// What is known of a socket, and who waits for it.
struct Readiness {
    /// Whether a read may succeed.
    input: Direction,
    /// Whether a write may succeed.
    output: Direction,
    /// Whether the peer has ended its direction, or the connection is broken, so that the end of the input is still to be read.
    has_ended: Cell<bool>,
}

/// One direction of a socket. It counts as ready until a system call has shown that it is not.
struct Direction {
    is_ready: Cell<bool>,
    waiting: Cell<Option<Waker>>,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            is_ready: Cell::new(true),
            waiting: Cell::default(),
        }
    }
}

impl Direction {
    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_ready.get() {
            return Poll::Ready(());
        }
        let waker = match self.waiting.take() {
            Some(waker) if waker.will_wake(context.waker()) => waker,
            _ => context.waker().clone(),
        };
        self.waiting.set(Some(waker));
        Poll::Pending
    }

    fn set_ready(&self) {
        self.is_ready.set(true);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

impl SocketWatch {
    /// Sets the function by which the event loop watches a socket. Until it is set, no socket is watched.
    pub fn set(&self, watch: Box<WatchSocket>) {
        // The result is ignored: a worker has one event loop.
        let _ = self.watch.set(watch);
    }

    /// Has the event loop watch a socket; `None` if the worker has no event loop, or the kernel refuses. The value is to be
    /// dropped together with the socket.
    #[must_use]
    pub fn watch(&self, socket: BorrowedFd<'_>) -> Option<WatchedSocket> {
        let watch = self.watch.get()?;
        let readiness = Rc::new(Readiness {
            input: Direction::default(),
            output: Direction::default(),
            has_ended: Cell::new(false),
        });
        let number = self.sockets.borrow_mut().insert(Rc::clone(&readiness));
        let watched = WatchedSocket {
            readiness,
            number,
            sockets: Rc::clone(&self.sockets),
        };
        watch(socket, u32::try_from(number).ok()?).ok()?;
        Some(watched)
    }

    /// Called by the event loop for each event of a socket.
    pub fn on_ready(&self, number: u32, readable: bool, writable: bool, ended: bool) {
        // The socket may have been closed after the event, and the number may belong to another one: then a system call shows that the
        // socket is not ready.
        let readiness = self.sockets.borrow().get(number as usize).map(Rc::clone);
        let Some(readiness) = readiness else {
            return;
        };
        if ended {
            readiness.has_ended.set(true);
        }
        if readable || ended {
            readiness.input.set_ready();
        }
        if writable {
            readiness.output.set_ready();
        }
    }
}

/// What is known of a socket that the event loop watches. The kernel ends the watch when the socket is closed; its number is free when this
/// value is dropped.
pub struct WatchedSocket {
    readiness: Rc<Readiness>,
    number: usize,
    sockets: Rc<RefCell<Slab<Rc<Readiness>>>>,
}

impl WatchedSocket {
    /// Ready when a read may succeed.
    pub fn poll_readable(&self, context: &Context<'_>) -> Poll<()> {
        self.readiness.input.poll(context)
    }

    /// Ready when a write may succeed.
    pub fn poll_writable(&self, context: &Context<'_>) -> Poll<()> {
        self.readiness.output.poll(context)
    }

    /// Whether a read may succeed.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readiness.input.is_ready.get()
    }

    /// Notes that a read has taken all that has arrived: it would have blocked, or it brought less than was asked for.
    pub fn note_drained(&self) {
        if !self.readiness.has_ended.get() {
            self.readiness.input.is_ready.set(false);
        }
    }

    /// Notes that a read would have blocked.
    pub fn note_unreadable(&self) {
        self.readiness.has_ended.set(false);
        self.readiness.input.is_ready.set(false);
    }

    /// Notes that the socket has not taken all of what was written.
    pub fn note_full(&self) {
        self.readiness.output.is_ready.set(false);
    }
}

impl Drop for WatchedSocket {
    fn drop(&mut self) {
        self.sockets.borrow_mut().try_remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn watch() -> (SocketWatch, Rc<RefCell<Vec<u32>>>) {
        let (watch, numbers) = (SocketWatch::default(), Rc::<RefCell<Vec<u32>>>::default());
        let noted = Rc::clone(&numbers);
        watch.set(Box::new(move |_, number| {
            noted.borrow_mut().push(number);
            Ok(())
        }));
        (watch, numbers)
    }

    #[test]
    fn a_socket_is_ready_until_a_system_call_shows_otherwise() {
        let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
        let (watch, _) = watch();
        let watched = watch.watch(socket.as_fd()).expect("the socket is watched");
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let task = Context::from_waker(&waker);
        let is_ready = || {
            let readable = watched.poll_readable(&task).is_ready();
            (readable, watched.poll_writable(&task).is_ready())
        };
        let woken = || count.0.swap(0, Relaxed);
        assert_eq!(is_ready(), (true, true));
        watched.note_drained();
        assert_eq!((is_ready(), watched.is_readable()), ((false, true), false));
        watched.note_full();
        assert_eq!((is_ready(), woken()), ((false, false), 0));
        watch.on_ready(0, true, false, false);
        assert_eq!((is_ready(), woken()), ((true, false), 1));
        watch.on_ready(0, false, true, false);
        assert_eq!((is_ready(), woken()), ((true, true), 1));
        // Nobody waits any more.
        watch.on_ready(0, true, true, false);
        assert_eq!(woken(), 0);
    }

    #[test]
    fn the_end_of_the_input_stays_readable() {
        let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
        let (watch, _) = watch();
        let watched = watch.watch(socket.as_fd()).expect("the socket is watched");
        watched.note_drained();
        assert!(!watched.is_readable());
        watch.on_ready(0, false, false, true);
        watched.note_drained();
        assert!(watched.is_readable());
        watched.note_unreadable();
        assert!(!watched.is_readable());
    }

    #[test]
    fn numbers_belong_to_sockets_until_they_are_dropped() {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let (watch, numbers) = watch();
        let [first, second] = [&one, &other].map(|socket| watch.watch(socket.as_fd()));
        let second = second.expect("the socket is watched");
        second.note_drained();
        drop(first);
        // An event of a socket that was dropped after the event.
        watch.on_ready(0, true, true, true);
        assert!(!second.is_readable());
        let third = watch.watch(one.as_fd());
        assert!(third.is_some());
        assert_eq!(*numbers.borrow(), [0, 1, 0]);
    }

    #[test]
    fn without_an_event_loop_no_socket_is_watched() {
        let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
        assert!(SocketWatch::default().watch(socket.as_fd()).is_none());
        let refusing = SocketWatch::default();
        refusing.set(Box::new(|_, _| Err(io::ErrorKind::OutOfMemory.into())));
        assert!(refusing.watch(socket.as_fd()).is_none());
        assert!(refusing.sockets.borrow().is_empty());
    }
}
