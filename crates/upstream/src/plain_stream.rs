//! The socket of a connection to a backend.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use h2o_exchange::{Descriptor, SocketWatch, WatchedSocket, Worker};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::SpliceFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop;

/// A socket that is counted among the open descriptors of the process.
pub(crate) struct PlainStream {
    socket: Socket,
    _descriptor: Option<Descriptor>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Watched(Watched),
}

/// A socket that the event loop of the worker watches.
struct Watched {
    watch: WatchedSocket,
    socket: OwnedFd,
}

impl Watched {
    /// Reads into the unfilled part of `buffer`. Like a socket of the runtime, it lets other tasks run from time to time, however much there
    /// is to read.
    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let budget = std::task::ready!(coop::poll_proceed(context));
        loop {
            std::task::ready!(self.watch.poll_readable(context));
            #[expect(
                unsafe_code,
                reason = "the caller promises not to make initialised bytes uninitialised"
            )]
            // SAFETY: the bytes go to `receive`, which only lets the kernel write.
            let unfilled = unsafe { buffer.unfilled_mut() };
            let Some(received) = self.receive(unfilled) else {
                continue;
            };
            budget.made_progress();
            let len = received?;
            #[expect(
                unsafe_code,
                reason = "the caller promises that the bytes are initialised"
            )]
            // SAFETY: the kernel has written this many bytes.
            unsafe {
                buffer.assume_init(len);
            }
            buffer.advance(len);
            return Poll::Ready(Ok(()));
        }
    }

    /// Reads once; `None` if the read would have blocked. Returns the number of bytes that were written to the beginning of `buffer`.
    fn receive(&self, buffer: &mut [MaybeUninit<u8>]) -> Option<io::Result<usize>> {
        let received = retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()).map(|(_, len)| len)
        });
        match received {
            Ok(len) if len < buffer.len() => self.watch.note_drained(),
            Err(Errno::WOULDBLOCK) => {
                self.watch.note_unreadable();
                return None;
            }
            Ok(_) | Err(_) => {}
        }
        Some(received.map_err(Into::into))
    }

    fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let budget = std::task::ready!(coop::poll_proceed(context));
        loop {
            std::task::ready!(self.watch.poll_writable(context));
            let sent =
                retry_on_intr(|| rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL));
            match sent {
                Ok(len) if len < bytes.len() => self.watch.note_full(),
                Err(Errno::WOULDBLOCK) => {
                    self.watch.note_full();
                    continue;
                }
                Ok(_) | Err(_) => {}
            }
            budget.made_progress();
            return Poll::Ready(sent.map_err(Into::into));
        }
    }

    /// Reads a byte, but without a system call if nothing can have arrived.
    fn check(&self) -> io::Result<usize> {
        let is_readable = self.watch.is_readable();
        let received = is_readable.then(|| self.receive(&mut [MaybeUninit::uninit()]));
        received
            .flatten()
            .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }
}

/// What has happened on a connection while it was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleState {
    /// Nothing has arrived on the idle connection.
    Quiet,
    /// The backend has closed the connection, or it is broken.
    Closed,
    /// The backend has sent bytes without a request, which would be taken for the next response.
    Unexpected,
}

impl From<TcpStream> for PlainStream {
    fn from(socket: TcpStream) -> Self {
        Self {
            socket: Socket::Tcp(socket),
            _descriptor: None,
        }
    }
}

impl From<UnixStream> for PlainStream {
    fn from(socket: UnixStream) -> Self {
        Self {
            socket: Socket::Unix(socket),
            _descriptor: None,
        }
    }
}

impl PlainStream {
    /// Has the stream hold `descriptor`, by which its file descriptor is counted against the limit of the process until the stream is
    /// dropped.
    pub(crate) fn counted(self, descriptor: Descriptor) -> Self {
        Self {
            _descriptor: Some(descriptor),
            ..self
        }
    }

    /// Has the event loop of the worker watch the socket in place of the runtime, if it can.
    pub(crate) fn watched(self, worker: &Worker) -> io::Result<Self> {
        let Some(watch) = worker.local::<SocketWatch>().watch(self.as_fd()) else {
            return Ok(self);
        };
        let socket = match self.socket {
            Socket::Tcp(socket) => socket.into_std()?.into(),
            Socket::Unix(socket) => socket.into_std()?.into(),
            Socket::Watched(_) => return Ok(self),
        };
        Ok(Self {
            socket: Socket::Watched(Watched { watch, socket }),
            _descriptor: self._descriptor,
        })
    }

    /// Asks the kernel only if an event of the socket has reported something.
    pub(crate) fn check_readiness(&self) -> IdleState {
        let mut byte = [0];
        let read = match &self.socket {
            Socket::Tcp(socket) => socket.try_read(&mut byte),
            Socket::Unix(socket) => socket.try_read(&mut byte),
            Socket::Watched(socket) => socket.check(),
        };
        IdleState::from_read(read)
    }

    /// Asks the kernel whether bytes or the end of the connection have arrived.
    pub(crate) fn ask_kernel(&self) -> IdleState {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let read = rustix::net::recv(self, &mut byte[..], flags).map(|(read, _)| read);
        IdleState::from_read(read.map_err(Into::into))
    }

    /// Ready when a read may succeed.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        let ready = match &self.socket {
            Socket::Tcp(socket) => socket.poll_read_ready(context),
            Socket::Unix(socket) => socket.poll_read_ready(context),
            Socket::Watched(socket) => return socket.watch.poll_readable(context),
        };
        // An error is ignored here, because the next read reports it again.
        ready.map(|_| ())
    }

    /// Splices up to `max` received bytes into a pipe; returns 0 at the end of the input.
    pub(crate) fn poll_splice(
        &self,
        context: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let splice = || {
            let moved = rustix::pipe::splice(self, None, pipe, None, max, SpliceFlags::NONBLOCK);
            moved.map_err(io::Error::from)
        };
        loop {
            std::task::ready!(self.poll_readable(context));
            let moved = match &self.socket {
                Socket::Tcp(socket) => socket.try_io(Interest::READABLE, splice),
                Socket::Unix(socket) => socket.try_io(Interest::READABLE, splice),
                Socket::Watched(socket) => {
                    let moved = splice();
                    if let Err(error) = &moved
                        && error.kind() == io::ErrorKind::WouldBlock
                    {
                        socket.watch.note_unreadable();
                    }
                    moved
                }
            };
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                moved => return Poll::Ready(moved),
            }
        }
    }
}

impl IdleState {
    pub(crate) fn from_read(read: io::Result<usize>) -> Self {
        match read {
            Ok(0) => Self::Closed,
            Ok(_) => Self::Unexpected,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Self::Quiet,
            Err(_) => Self::Closed,
        }
    }
}

impl AsFd for PlainStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Watched(watched) => watched.socket.as_fd(),
        }
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Watched(watched) => watched.poll_receive(context, buffer),
        }
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Watched(socket) => socket.poll_send(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Watched(watched) => {
                let ended = rustix::net::shutdown(&watched.socket, Shutdown::Write);
                Poll::Ready(ended.map_err(Into::into))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::task::Waker;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;

    const READABLE: [bool; 3] = [true, false, false];
    const WRITABLE: [bool; 3] = [false, true, false];
    const ENDED: [bool; 3] = [true, true, true];

    /// Runs a test on a socket that a worker watches, with its peer. The test reports the events itself.
    fn on_watched(
        test: impl FnOnce(PlainStream, std::os::unix::net::UnixStream, &dyn Fn([bool; 3])),
    ) {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .build_local(LocalOptions::default())
            .expect("a runtime starts");
        runtime.block_on(async {
            let worker = Worker::new(0, Arc::default(), Arc::default());
            let watch = worker.local::<SocketWatch>();
            watch.set(Box::new(|_, _| Ok(())));
            let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
            let theirs = theirs.into_std().expect("a socket of the runtime");
            let ours = PlainStream::from(ours).watched(&worker);
            let ours = ours.expect("a socket of the runtime");
            assert!(matches!(ours.socket, Socket::Watched(_)));
            let tell = |[readable, writable, ended]: [bool; 3]| {
                watch.on_ready(0, readable, writable, ended);
            };
            test(ours, theirs, &tell);
        });
    }

    /// Reads once: the number of bytes that came; `None` if none can have come.
    fn read(socket: &mut PlainStream) -> Option<usize> {
        let mut context = Context::from_waker(Waker::noop());
        let mut space = [0; 4];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(socket).poll_read(&mut context, &mut buffer) {
            Poll::Pending => None,
            Poll::Ready(read) => {
                read.expect("the socket is not broken");
                Some(buffer.filled().len())
            }
        }
    }

    #[test]
    fn a_watched_socket_is_read_when_its_events_say_so() {
        on_watched(|mut ours, mut theirs, tell| {
            assert_eq!((read(&mut ours), read(&mut ours)), (None, None));
            theirs.write_all(b"123456").expect("the socket has space");
            assert_eq!(read(&mut ours), None, "the event has not come yet");
            tell(READABLE);
            assert_eq!(read(&mut ours), Some(4));
            assert_eq!(read(&mut ours), Some(2));
            assert_eq!(read(&mut ours), None);
            theirs.write_all(b"7").expect("the socket has space");
            drop(theirs);
            tell(ENDED);
            assert_eq!(read(&mut ours), Some(1));
            assert_eq!(read(&mut ours), Some(0));
        });
    }

    #[test]
    fn a_watched_socket_is_written_until_it_is_full() {
        on_watched(|mut ours, mut theirs, tell| {
            let mut context = Context::from_waker(Waker::noop());
            let mut write = || {
                let piece = [0; 64 * 1024];
                let written = Pin::new(&mut ours).poll_write(&mut context, &piece);
                written.map(|written| written.expect("the socket is not broken"))
            };
            let mut sent = 0;
            while let Poll::Ready(len) = write() {
                sent += len;
            }
            let mut received = vec![0; sent];
            theirs.set_nonblocking(false).expect("an open socket");
            theirs.read_exact(&mut received).expect("all was sent");
            assert!(write().is_pending(), "the event has not come yet");
            tell(WRITABLE);
            assert!(write().is_ready());
        });
    }

    #[test]
    fn an_idle_watched_socket_is_checked_by_its_events() {
        on_watched(|ours, mut theirs, tell| {
            let check = || ours.check_readiness();
            assert_eq!([check(), check()], [IdleState::Quiet; 2]);
            theirs.write_all(b"?").expect("the socket has space");
            assert_eq!(ours.ask_kernel(), IdleState::Unexpected);
            assert_eq!(check(), IdleState::Quiet, "the event has not come yet");
            tell(READABLE);
            assert_eq!(
                [check(), check()],
                [IdleState::Unexpected, IdleState::Quiet]
            );
            drop(theirs);
            tell(ENDED);
            assert_eq!(check(), IdleState::Closed);
        });
    }
}
