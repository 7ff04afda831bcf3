//! TLS over the socket of a backend: `h2o_tls` handles the records, this file moves the bytes.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use h2o_tls::{ClientConnection, OutputBuffer, PlainSink, Progress, TlsError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::plain_stream::PlainStream;

/// Limit in bytes of one read, and of the plaintext of one call of encryption.
const PIECE: usize = 64 * 1024;
/// Least space in bytes for a read: one record with its overhead.
const MIN_READ: usize = 17 * 1024;
/// Space in bytes for the overhead of records, in addition to that for their payload.
const OVERHEAD: usize = 512;

/// Buffers shared by the TLS connections of a worker: an idle connection has none.
#[derive(Default)]
pub(crate) struct TlsScratch {
    /// The buffer for received bytes, kept at its full length: newly allocated memory is cleared once.
    input: Cell<Vec<u8>>,
    output: Cell<OutputBuffer>,
}

/// A TLS connection to a backend.
pub(crate) struct TlsStream {
    socket: PlainStream,
    tls: ClientConnection,
    /// Plaintext that did not fit the reader's buffer.
    unread: Unread,
    /// Records that the socket has not taken yet.
    backlog: Vec<u8>,
    /// Number of bytes of `backlog` that have been sent.
    sent: usize,
    /// Whether nothing more can be received: after close_notify or an error.
    is_ended: bool,
    /// An error that is reported once the plaintext received before it has been read.
    error: Option<io::Error>,
    scratch: Rc<TlsScratch>,
}

#[derive(Default)]
struct Unread {
    plain: Vec<u8>,
    /// Number of bytes of `plain` that have been read.
    taken: usize,
}

/// Receives plaintext: into the reader's buffer, and the rest into `unread`.
struct Received<'a, 'b> {
    buffer: &'a mut ReadBuf<'b>,
    rest: &'a mut Vec<u8>,
}

impl PlainSink for Received<'_, '_> {
    fn append(&mut self, plain: &[u8]) {
        let (now, later) = plain.split_at(plain.len().min(self.buffer.remaining()));
        self.buffer.put_slice(now);
        self.rest.extend_from_slice(later);
    }
}

impl Unread {
    /// Moves plaintext to the reader's `buffer`. Returns whether there was any.
    fn read(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let rest = &self.plain[self.taken..];
        let now = &rest[..rest.len().min(buffer.remaining())];
        buffer.put_slice(now);
        self.taken += now.len();
        let is_read = !now.is_empty();
        if self.taken == self.plain.len() {
            *self = Self::default();
        }
        is_read
    }
}

impl TlsStream {
    /// Completes the handshake that `tls` began with `hello`.
    ///
    /// # Errors
    /// The errors of the socket, [`io::ErrorKind::UnexpectedEof`] if the backend closes the connection, and a [`TlsError`] in an
    /// [`io::Error`].
    pub(crate) async fn handshake(
        socket: PlainStream,
        tls: ClientConnection,
        hello: &[u8],
        scratch: Rc<TlsScratch>,
    ) -> io::Result<Self> {
        let mut stream = Self {
            socket,
            tls,
            unread: Unread::default(),
            backlog: hello.to_vec(),
            sent: 0,
            is_ended: false,
            error: None,
            scratch,
        };
        poll_fn(|context| stream.poll_handshake(context)).await?;
        Ok(stream)
    }

    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut is_done = false;
        loop {
            // Records of the handshake that are not sent yet are sent with the first request.
            let flushed = self.poll_backlog(context)?;
            if is_done {
                return Poll::Ready(Ok(()));
            }
            ready!(flushed);
            let mut plain = std::mem::take(&mut self.unread.plain);
            let received = self.poll_receive(context, PIECE, &mut plain);
            self.unread.plain = plain;
            let progress = match ready!(received) {
                Ok(progress) => progress,
                Err(error) => {
                    // Sends the TLS alert, if the backend still reads.
                    let _ = self.poll_backlog(context);
                    return Poll::Ready(Err(error));
                }
            };
            is_done = progress.handshake_done_now;
            self.is_ended = progress.closed_by_peer;
            if self.is_ended && !is_done {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Ready when a read may succeed: plaintext, the end of input, or bytes in the socket.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.unread.plain.is_empty() && !self.is_ended {
            self.socket.poll_readable(context)
        } else {
            Poll::Ready(())
        }
    }

    /// The TLS state of the connection.
    pub(crate) const fn tls(&self) -> &ClientConnection {
        &self.tls
    }

    /// Reads the socket once; `room` is the space for plaintext in bytes. Records that TLS sends in reply are added to the
    /// backlog.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        plain: &mut impl PlainSink,
    ) -> Poll<io::Result<Progress>> {
        let mut input = self.scratch.input.take();
        let len = (room + OVERHEAD).clamp(MIN_READ, PIECE);
        if input.len() < len {
            input.resize(len, 0);
        }
        let mut cipher = ReadBuf::new(&mut input[..len]);
        let received = match Pin::new(&mut self.socket).poll_read(context, &mut cipher) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The connection ends without close_notify, so an attacker may have truncated it (RFC 8446 §6.1).
            Poll::Ready(Ok(())) if cipher.filled().is_empty() => {
                Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
            }
            Poll::Ready(Ok(())) => {
                let mut answer = OutputBuffer::default();
                let received = self.tls.receive(cipher.filled_mut(), plain, &mut answer);
                self.backlog.extend_from_slice(&answer);
                Poll::Ready(received.map_err(tls_error))
            }
        };
        self.scratch.input.set(input);
        received
    }

    /// Sends the records in the backlog, as far as the socket takes them.
    fn poll_backlog(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.backlog.len() {
            let rest = &self.backlog[self.sent..];
            match ready!(Pin::new(&mut self.socket).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        if self.sent > 0 {
            self.backlog = Vec::new();
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }
}

fn tls_error(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let had = buffer.filled().len();
        if this.unread.read(buffer) || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while buffer.filled().len() == had {
            if let Some(error) = this.error.take() {
                return Poll::Ready(Err(error));
            }
            if this.is_ended {
                break;
            }
            let room = buffer.remaining();
            let mut rest = std::mem::take(&mut this.unread.plain);
            let mut plain = Received {
                buffer,
                rest: &mut rest,
            };
            let received = this.poll_receive(context, room, &mut plain);
            this.unread.plain = rest;
            match ready!(received) {
                Ok(progress) => this.is_ended = progress.closed_by_peer,
                Err(error) => {
                    this.is_ended = true;
                    this.error = Some(error);
                }
            }
            if !this.backlog.is_empty() {
                // If sending fails, the next write reports the error.
                let _ = this.poll_backlog(context);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_backlog(context))?;
        let now = &bytes[..bytes.len().min(PIECE)];
        let mut out = this.scratch.output.take();
        out.clear();
        let written = match this.tls.encrypt(now, &mut out) {
            Err(error) => Err(tls_error(error)),
            Ok(()) => match Pin::new(&mut this.socket).poll_write(context, &out) {
                Poll::Pending => Ok(0),
                Poll::Ready(written) => written,
            },
        };
        if let Ok(written) = written {
            this.backlog.extend_from_slice(&out[written..]);
        }
        this.scratch.output.set(out);
        Poll::Ready(written.map(|_| now.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_backlog(context)
    }

    /// Sends close_notify, and closes this side's direction of the connection.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut alert = OutputBuffer::default();
        this.tls.close_notify(&mut alert);
        this.backlog.extend_from_slice(&alert);
        ready!(this.poll_backlog(context))?;
        Pin::new(&mut this.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread::JoinHandle;

    use h2o_tls::{TlsClient, TlsClientSettings};
    use rcgen::{CertificateParams, KeyPair};
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    type Server = StreamOwned<ServerConnection, UnixStream>;

    fn config() -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["name.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key);
        Arc::new(config.unwrap())
    }

    /// Connects to a server that `serve` runs in its own thread.
    async fn connected<T: Send + 'static>(
        serve: impl FnOnce(Server) -> T + Send + 'static,
    ) -> (TlsStream, JoinHandle<T>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let tls = ServerConnection::new(config()).unwrap();
        let server = std::thread::spawn(move || serve(StreamOwned::new(tls, theirs)));
        let client = TlsClient::new(TlsClientSettings {
            verify_peer: false,
            ca_file: None,
            session_cache: None,
        });
        let mut hello = OutputBuffer::default();
        let tls = client.unwrap().connect("name.example", "", &[], &mut hello);
        ours.set_nonblocking(true).unwrap();
        let worker = h2o_exchange::Worker::new(0, Arc::default(), Arc::default());
        let socket = PlainStream::watched(&worker, ours.into()).unwrap();
        let stream = TlsStream::handshake(socket, tls.unwrap(), &hello, Rc::default()).await;
        (stream.unwrap(), server)
    }

    fn run(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap()
            .block_on(future);
    }

    /// Bytes without repetition, so that bytes at a wrong place are noticed.
    fn content(len: u32) -> Vec<u8> {
        (0..len / 4).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn what_the_socket_does_not_take_is_sent_later() {
        run(async {
            let (read_now, may_read) = std::sync::mpsc::channel();
            let (mut stream, server) = connected(move |mut server| {
                server.conn.complete_io(&mut server.sock).unwrap();
                may_read.recv().unwrap();
                let mut heard = Vec::new();
                server.read_to_end(&mut heard).unwrap();
                heard
            })
            .await;
            let text = content(4 << 20);
            let mut sent = 0;
            // Data is written until the socket is full.
            poll_fn(|context| {
                while sent < text.len() {
                    match Pin::new(&mut stream).poll_write(context, &text[sent..]) {
                        Poll::Pending => break,
                        Poll::Ready(written) => sent += written.unwrap(),
                    }
                }
                Poll::Ready(())
            })
            .await;
            assert!(sent < text.len());
            read_now.send(()).unwrap();
            stream.write_all(&text[sent..]).await.unwrap();
            stream.shutdown().await.unwrap();
            assert_eq!(server.join().unwrap(), text);
        });
    }

    #[test]
    fn readers_with_little_room_get_the_rest_later() {
        run(async {
            let text = content(100_000);
            let said = text.clone();
            let (mut stream, server) = connected(move |mut server| {
                server.write_all(&said).unwrap();
                server.conn.send_close_notify();
                server.flush().unwrap();
            })
            .await;
            let mut heard = Vec::new();
            let mut room = [0; 999];
            loop {
                let read = stream.read(&mut room).await.unwrap();
                heard.extend_from_slice(&room[..read]);
                if read == 0 {
                    break;
                }
            }
            assert_eq!(heard, text);
            assert_eq!(stream.read(&mut room).await.unwrap(), 0);
            server.join().unwrap();
        });
    }

    #[test]
    fn a_connection_that_was_cut_off_does_not_look_complete() {
        run(async {
            let (mut stream, server) = connected(|mut server| {
                server.write_all(b"some").unwrap();
                server.flush().unwrap();
            })
            .await;
            let mut heard = Vec::new();
            let error = stream.read_to_end(&mut heard).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(heard, b"some");
            server.join().unwrap();
        });
    }

    #[test]
    fn what_came_before_a_broken_record_is_read_before_the_error() {
        run(async {
            let (mut stream, server) = connected(|mut server| {
                server.conn.complete_io(&mut server.sock).unwrap();
                let mut bytes = Vec::new();
                server.conn.writer().write_all(b"good").unwrap();
                server.conn.write_tls(&mut bytes).unwrap();
                bytes.extend_from_slice(&[23, 3, 3, 0, 20]);
                bytes.extend_from_slice(&[0; 20]);
                server.sock.write_all(&bytes).unwrap();
                let mut heard = Vec::new();
                server.read_to_end(&mut heard).unwrap_err().to_string()
            })
            .await;
            let mut room = [0; 100];
            assert_eq!(stream.read(&mut room).await.unwrap(), 4);
            let error = stream.read(&mut room).await.unwrap_err();
            assert_eq!(error.to_string(), TlsError::BadRecordMac.to_string());
            assert_eq!(stream.read(&mut room).await.unwrap(), 0);
            let heard = server.join().unwrap();
            assert!(heard.contains("BadRecordMac"), "{heard}");
        });
    }

    #[test]
    fn a_reader_is_told_when_there_is_nothing_to_read() {
        run(async {
            let (mut stream, server) = connected(|mut server| {
                server.write_all(b"two").unwrap();
                server.flush().unwrap();
                server
            })
            .await;
            let server = server.join().unwrap();
            let mut room = [0; 1];
            let read = stream.read(&mut room).await.unwrap();
            poll_fn(|context| {
                assert_eq!(read, 1);
                assert!(
                    stream.poll_readable(context).is_ready(),
                    "decrypted bytes make the stream readable"
                );
                let mut room = [0; 10];
                let mut room = ReadBuf::new(&mut room);
                while Pin::new(&mut stream)
                    .poll_read(context, &mut room)
                    .is_ready()
                {}
                assert_eq!(room.filled(), b"wo");
                assert!(stream.poll_readable(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(server);
            poll_fn(|context| stream.poll_readable(context)).await;
            let error = stream.read(&mut room).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            poll_fn(|context| stream.poll_readable(context)).await;
        });
    }

    #[test]
    fn idle_connections_hold_no_buffers() {
        run(async {
            let (mut stream, server) = connected(|mut server| {
                let mut question = [0; 5000];
                server.read_exact(&mut question).unwrap();
                server.write_all(&question).unwrap();
                server.flush().unwrap();
                server
            })
            .await;
            stream.write_all(&[7; 5000]).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = [0; 10];
            for _ in 0..500 {
                stream.read_exact(&mut answer).await.unwrap();
            }
            assert_eq!(stream.unread.plain.capacity(), 0);
            assert_eq!(stream.backlog.capacity(), 0);
            server.join().unwrap();
        });
    }
}
