//! Sockets of handlers, such as those to backends, which the event loop of a worker watches together with its connections.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A function that has the event loop watch a socket, edge-triggered, for input and for space for output. Its events are reported with the
/// number.
pub type WatchSocket = dyn Fn(BorrowedFd<'_>, u32) -> io::Result<()>;

/// The sockets of handlers. The event loop of the worker watches them, so that an event of a client and one of a backend cost one system call
/// together. On a thread without an event loop the async runtime of the thread watches them.
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
    /// Sets the function by which the event loop watches a socket.
    pub fn set(&self, watch: Box<WatchSocket>) {
        // The result is ignored: a worker has one event loop.
        let _ = self.watch.set(watch);
    }

    /// Has the event loop watch a socket. The value is to be dropped together with the socket.
    ///
    /// Without an event loop, this must be called within a runtime of tokio that runs on this thread.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&self, socket: BorrowedFd<'_>) -> io::Result<WatchedSocket> {
        let Some(watch) = self.watch.get() else {
            return WatchedSocket::by_runtime(socket.try_clone_to_owned()?);
        };
        let readiness = Rc::new(Readiness {
            input: Direction::default(),
            output: Direction::default(),
            has_ended: Cell::new(false),
        });
        let number = self.sockets.borrow_mut().insert(Rc::clone(&readiness));
        let watched = WatchedSocket(Watcher::EventLoop {
            readiness,
            number,
            sockets: Rc::clone(&self.sockets),
        });
        let number = u32::try_from(number).map_err(|_| io::ErrorKind::OutOfMemory)?;
        watch(socket, number)?;
        Ok(watched)
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

/// What is known of a socket that is watched. The kernel ends the watch when the socket is closed.
pub struct WatchedSocket(Watcher);

enum Watcher {
    /// The event loop reports the events of the socket under the number, which is free when this value is dropped.
    EventLoop {
        readiness: Rc<Readiness>,
        number: usize,
        sockets: Rc<RefCell<Slab<Rc<Readiness>>>>,
    },
    /// The runtime has a descriptor of the socket of its own.
    Runtime(AsyncFd<OwnedFd>),
}

impl WatchedSocket {
    fn by_runtime(socket: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        #[expect(
            unsafe_code,
            reason = "the caller promises that the descriptor stays open while the runtime uses it"
        )]
        // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives, and it lives in the registration.
        let socket = unsafe { AsyncFd::register_with_interest(socket, interest) }?;
        Ok(Self(Watcher::Runtime(socket)))
    }

    /// Ready when a read may succeed.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Watcher::EventLoop { readiness, .. } => readiness.input.poll(context),
            // An error, that the runtime has ended, is ignored: nobody polls any more then.
            Watcher::Runtime(socket) => socket.poll_read_ready(context).map(|_| ()),
        }
    }

    /// Ready when a write may succeed.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Watcher::EventLoop { readiness, .. } => readiness.output.poll(context),
            Watcher::Runtime(socket) => socket.poll_write_ready(context).map(|_| ()),
        }
    }

    /// Whether a read may succeed.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        match &self.0 {
            Watcher::EventLoop { readiness, .. } => readiness.input.is_ready.get(),
            Watcher::Runtime(socket) => {
                let mut nobody = Context::from_waker(Waker::noop());
                socket.poll_read_ready(&mut nobody).is_ready()
            }
        }
    }

    /// Notes that a read has taken all that has arrived: it would have blocked, or it brought less than was asked for.
    pub fn note_drained(&self) {
        match &self.0 {
            Watcher::EventLoop { readiness, .. } if readiness.has_ended.get() => {}
            Watcher::EventLoop { readiness, .. } => readiness.input.is_ready.set(false),
            Watcher::Runtime(socket) => clear_input(socket),
        }
    }

    /// Notes that a read would have blocked.
    pub fn note_unreadable(&self) {
        match &self.0 {
            Watcher::EventLoop { readiness, .. } => {
                readiness.has_ended.set(false);
                readiness.input.is_ready.set(false);
            }
            Watcher::Runtime(socket) => clear_input(socket),
        }
    }

    /// Notes that the socket has not taken all of what was written.
    pub fn note_full(&self) {
        match &self.0 {
            Watcher::EventLoop { readiness, .. } => readiness.output.is_ready.set(false),
            Watcher::Runtime(socket) => {
                let mut nobody = Context::from_waker(Waker::noop());
                if let Poll::Ready(Ok(mut guard)) = socket.poll_write_ready(&mut nobody) {
                    guard.clear_ready();
                }
            }
        }
    }
}

/// Tells the runtime that a read has taken all that has arrived. The runtime runs on this thread, so that it has reported nothing since the
/// read; it keeps in mind that the input has ended.
fn clear_input(socket: &AsyncFd<OwnedFd>) {
    let mut nobody = Context::from_waker(Waker::noop());
    if let Poll::Ready(Ok(mut guard)) = socket.poll_read_ready(&mut nobody) {
        guard.clear_ready();
    }
}

impl Drop for WatchedSocket {
    fn drop(&mut self) {
        if let Watcher::EventLoop {
            number, sockets, ..
        } = &self.0
        {
            sockets.borrow_mut().try_remove(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
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
        let is_ready = || {
            let mut task = Context::from_waker(&waker);
            let readable = watched.poll_readable(&mut task).is_ready();
            (readable, watched.poll_writable(&mut task).is_ready())
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
        assert!(third.is_ok());
        assert_eq!(*numbers.borrow(), [0, 1, 0]);
    }

    #[test]
    fn without_an_event_loop_the_runtime_watches_a_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime starts");
        runtime.block_on(async {
            let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
            near.set_nonblocking(true).expect("an open socket");
            let watched = SocketWatch::default().watch(near.as_fd());
            let watched = watched.expect("the socket is watched");
            poll_fn(|task| watched.poll_writable(task)).await;
            for text in [&b"one"[..], b"another"] {
                far.write_all(text).expect("the socket has space");
                let mut read = Vec::new();
                while read.len() < text.len() {
                    poll_fn(|task| watched.poll_readable(task)).await;
                    let mut space = [0; 2];
                    match (&near).read(&mut space) {
                        Ok(len) => read.extend_from_slice(&space[..len]),
                        Err(_) => watched.note_unreadable(),
                    }
                }
                assert_eq!(read, text);
            }
            while (&near).write(&[0; 4096]).is_ok() {}
            watched.note_full();
            let is_full = poll_fn(|task| Poll::Ready(watched.poll_writable(task).is_pending()));
            assert!(is_full.await);
            std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()));
            poll_fn(|task| watched.poll_writable(task)).await;
        });
    }

    #[test]
    fn a_socket_that_the_kernel_refuses_to_watch_leaves_no_number() {
        let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
        let refusing = SocketWatch::default();
        refusing.set(Box::new(|_, _| Err(io::ErrorKind::OutOfMemory.into())));
        assert!(refusing.watch(socket.as_fd()).is_err());
        assert!(refusing.sockets.borrow().is_empty());
    }
}
