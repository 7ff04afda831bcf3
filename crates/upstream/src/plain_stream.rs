//! The socket of a connection to a backend.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use h2o_exchange::Descriptor;
use rustix::net::RecvFlags;
use rustix::pipe::SpliceFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A socket that is counted among the open descriptors of the process.
pub(crate) struct PlainStream {
    socket: Socket,
    _descriptor: Option<Descriptor>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
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

    /// Checks the socket's readiness in the runtime first, and asks the kernel only if the runtime reports something.
    pub(crate) fn check_readiness(&self) -> IdleState {
        let mut byte = [0];
        let read = match &self.socket {
            Socket::Tcp(socket) => socket.try_read(&mut byte),
            Socket::Unix(socket) => socket.try_read(&mut byte),
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
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
