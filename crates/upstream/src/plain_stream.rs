//! The socket of a connection to a backend, or to another server that a handler asks.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use h2o_exchange::{Descriptor, SocketWatch, WatchedSocket, Worker};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::pipe::SpliceFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

/// A connected stream socket that the event loop of the worker watches.
pub struct PlainStream {
    watch: WatchedSocket,
    socket: OwnedFd,
    /// Counts the socket among the open descriptors of the process.
    _descriptor: Option<Descriptor>,
}

impl PlainStream {
    /// Connects to a TCP port. Whole messages are written to such connections, so that delaying pieces of them (Nagle's algorithm) would
    /// gain nothing and is off.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn connect(worker: &Worker, address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = open(family)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let begun = rustix::net::connect(&socket, &address);
        Self::connected(worker, socket, begun).await
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) async fn connect_unix(worker: &Worker, path: &Path) -> io::Result<Self> {
        let socket = open(AddressFamily::UNIX)?;
        let begun = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
        Self::connected(worker, socket, begun).await
    }

    /// Waits until a connection that has begun to open is open.
    async fn connected(
        worker: &Worker,
        socket: OwnedFd,
        begun: rustix::io::Result<()>,
    ) -> io::Result<Self> {
        match begun {
            Ok(()) => Self::watched(worker, socket),
            // The system opens the connection even if a signal has ended the call.
            Err(Errno::INPROGRESS | Errno::INTR) => {
                let stream = Self::watched(worker, socket)?;
                stream.watch.note_full();
                poll_fn(|context| stream.watch.poll_writable(context)).await;
                sockopt::socket_error(&stream.socket)??;
                Ok(stream)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Has the event loop of the worker watch a connected socket, which does not block.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watched(worker: &Worker, socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            watch: worker.local::<SocketWatch>().watch(socket.as_fd())?,
            socket,
            _descriptor: None,
        })
    }

    /// Has the stream hold `descriptor`, by which its file descriptor is counted against the limit of the process until the stream is
    /// dropped.
    pub(crate) fn counted(self, descriptor: Descriptor) -> Self {
        Self {
            _descriptor: Some(descriptor),
            ..self
        }
    }

    /// Reads into the unfilled part of `buffer`. Like a socket of tokio, it lets other tasks run from time to time, however much there
    /// is to read.
    ///
    /// # Errors
    /// The error of the system.
    pub fn poll_receive(
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

    /// Writes as much of `bytes` as the socket takes, and returns the number of bytes.
    ///
    /// # Errors
    /// The error of the system.
    pub fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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

    /// What has happened while the connection was idle. Asks the kernel only if an event of the socket has reported something.
    pub(crate) fn check_readiness(&self) -> IdleState {
        let is_readable = self.watch.is_readable();
        let received = is_readable.then(|| self.receive(&mut [MaybeUninit::uninit()]));
        let received = received.flatten();
        IdleState::from_read(received.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into())))
    }

    /// Asks the kernel whether bytes or the end of the connection have arrived.
    pub(crate) fn ask_kernel(&self) -> IdleState {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let read = rustix::net::recv(self, &mut byte[..], flags).map(|(read, _)| read);
        IdleState::from_read(read.map_err(Into::into))
    }

    /// Ready when a read may succeed.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.watch.poll_readable(context)
    }

    /// Splices up to `max` received bytes into a pipe; returns 0 at the end of the input.
    pub(crate) fn poll_splice(
        &self,
        context: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(self.poll_readable(context));
            let flags = SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(self, None, pipe, None, max, flags) {
                Err(Errno::WOULDBLOCK) => self.watch.note_unreadable(),
                Err(Errno::INTR) => {}
                moved => return Poll::Ready(moved.map_err(Into::into)),
            }
        }
    }
}

/// Opens a stream socket that does not block.
fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
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

impl fmt::Debug for PlainStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("PlainStream")
            .field(&self.socket)
            .finish()
    }
}

impl AsFd for PlainStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_receive(context, buffer)
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = rustix::net::shutdown(&self.socket, Shutdown::Write);
        Poll::Ready(ended.map_err(Into::into))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::task::Waker;

    use super::*;

    const READABLE: [bool; 3] = [true, false, false];
    const WRITABLE: [bool; 3] = [false, true, false];
    const ENDED: [bool; 3] = [true, true, true];

    /// Runs a test on a socket that a worker watches, with its peer. The test reports the events itself.
    fn on_watched(test: impl FnOnce(PlainStream, UnixStream, &dyn Fn([bool; 3]))) {
        let worker = Worker::new(0, Arc::default(), Arc::default());
        let watch = worker.local::<SocketWatch>();
        watch.set(Box::new(|_, _| Ok(())));
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("an open socket");
        let ours = PlainStream::watched(&worker, ours.into());
        let ours = ours.expect("the event loop takes every socket");
        let tell = |[readable, writable, ended]: [bool; 3]| {
            watch.on_ready(0, readable, writable, ended);
        };
        test(ours, theirs, &tell);
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
