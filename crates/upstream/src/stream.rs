//! The byte stream of a connection to a backend, in clear text or over TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use h2o_exchange::TlsInfo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::plain_stream::{IdleState, PlainStream};
use crate::tls_stream::TlsStream;

/// The byte stream of a connection to a backend.
pub(crate) enum UpstreamStream {
    Plain(PlainStream),
    Tls(Box<TlsStream>),
}

impl UpstreamStream {
    /// The TLS parameters; `None` for clear text.
    pub(crate) fn tls_info(&self) -> Option<TlsInfo> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream.tls().info()),
        }
    }

    /// The protocol that the backend chose by ALPN; `None` if it chose none, or if the connection is in clear text.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.tls().alpn(),
        }
    }

    /// What happened on the connection while it was idle. With `thoroughly` the kernel is asked; otherwise the
    /// events of the socket decide.
    pub(crate) fn check(&mut self, thoroughly: bool) -> IdleState {
        match self {
            Self::Plain(socket) if thoroughly => socket.ask_kernel(),
            Self::Plain(socket) => socket.check_readiness(),
            Self::Tls(stream) => {
                // A backend may send TLS session tickets at any time; this read processes them.
                let mut byte = [0];
                let mut buffer = ReadBuf::new(&mut byte);
                let mut context = Context::from_waker(Waker::noop());
                match Pin::new(stream).poll_read(&mut context, &mut buffer) {
                    Poll::Pending => IdleState::Quiet,
                    Poll::Ready(read) => IdleState::from_read(read.map(|()| buffer.filled().len())),
                }
            }
        }
    }

    /// Ready when a read may succeed.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => socket.poll_readable(context),
            Self::Tls(stream) => stream.poll_readable(context),
        }
    }

    /// Reads into `buffer`. Returns the number of bytes; 0 at the end of the input.
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        Pin::new(self)
            .poll_read(context, &mut buffer)
            .map_ok(|()| buffer.filled().len())
    }

    /// Writes as much of `bytes` as the connection takes.
    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(context, bytes)
    }

    /// Sends close_notify over TLS, if the socket takes it at once.
    pub(crate) fn send_close_notify(&mut self) {
        if let Self::Tls(stream) = self {
            let mut context = Context::from_waker(Waker::noop());
            let _ = Pin::new(stream).poll_shutdown(&mut context);
        }
    }

    /// Sends TLS records that the socket has not taken yet.
    pub(crate) fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
