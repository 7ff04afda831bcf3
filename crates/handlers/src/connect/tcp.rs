//! Tunnels for clients to TCP connections with targets that they choose.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2o_exchange::{Body, BodyError, BodyPipe, BodySource, Descriptor, Worker};
use h2o_upstream::PlainStream;
use tokio::io::ReadBuf;

use super::tunnel::{Sink, Tunnel, broken};

/// Most bytes that one read from the target returns, and most bytes that the tunnel holds for the client. H2O
/// compatibility: H2O reads as much at once.
const READ_SIZE: usize = 64 * 1024;
/// If a buffer has less free space than this, a new buffer is allocated for the next read.
const MIN_READ: usize = 4096;

/// Opens a tunnel: returns a response body with the bytes received from `stream`, and sends the bytes from `pipe` to
/// `stream`.
pub(super) fn open(
    worker: &Worker,
    stream: PlainStream,
    descriptor: Descriptor,
    pipe: Rc<BodyPipe>,
    io_timeout: Duration,
) -> Body {
    let stream = Rc::new(stream);
    Body::Stream(Box::new(TcpBody {
        tunnel: Tunnel::open(worker, Rc::clone(&stream), descriptor, pipe, io_timeout),
        stream,
        buffer: BytesMut::new(),
    }))
}

/// The response body of a tunnel, with the bytes from the target.
struct TcpBody {
    tunnel: Tunnel,
    stream: Rc<PlainStream>,
    /// Bytes read from the target and not yet pulled. An idle tunnel holds no buffer.
    buffer: BytesMut,
}

impl TcpBody {
    /// Reads into the free space of the buffer, and returns the number of bytes; 0 at the end of the input.
    fn receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::uninit(self.buffer.spare_capacity_mut());
        ready!(self.stream.poll_receive(context, &mut space))?;
        let len = space.filled().len();
        #[expect(
            unsafe_code,
            reason = "the caller promises that the bytes are initialised"
        )]
        // SAFETY: the read has filled this many bytes of the buffer's free space.
        unsafe {
            self.buffer.advance_mut(len);
        }
        Poll::Ready(Ok(len))
    }
}

impl BodySource for TcpBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        while self.buffer.is_empty() {
            if self.buffer.capacity() < MIN_READ {
                self.buffer.reserve(READ_SIZE);
            }
            match self.receive(context) {
                Poll::Ready(Ok(0)) => {
                    self.tunnel.on_end();
                    return Poll::Ready(None);
                }
                Poll::Ready(Ok(_)) => self.tunnel.on_received(),
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(broken(&error)))),
                Poll::Pending => {
                    self.buffer = BytesMut::new();
                    return if self.tunnel.may_wait(context) {
                        Poll::Pending
                    } else {
                        Poll::Ready(None)
                    };
                }
            }
        }
        let len = max.min(self.buffer.len());
        Poll::Ready(Some(Ok(self.buffer.split_to(len).freeze())))
    }

    fn retained(&self) -> usize {
        self.buffer.capacity()
    }
}

impl Sink for Rc<PlainStream> {
    fn poll_send(&mut self, piece: &mut Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !piece.is_empty() {
            let written = ready!(PlainStream::poll_send(self, context, piece))?;
            piece.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use h2o_testkit::{on_standing_clock, pass};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Opens a tunnel. Returns its response body, the pipe of its request body, and the target's connection.
    async fn tunnel(
        worker: &Worker,
        io_timeout: Duration,
    ) -> (Box<dyn BodySource>, Rc<BodyPipe>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let near = PlainStream::connect(worker, address).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let pipe = Rc::new(BodyPipe::default());
        let descriptor = worker.shared.descriptors.open().unwrap();
        let body = open(worker, near, descriptor, Rc::clone(&pipe), io_timeout);
        (body.into_source(), pipe, far)
    }

    fn run(test: impl AsyncFnOnce(&Worker)) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap()
            .block_on(async {
                let worker = Worker::new(0, Arc::default(), Arc::default());
                let test = worker.timeout(LIMIT, test(&worker));
                worker.run(test).await.unwrap();
            });
    }

    async fn next(source: &mut Box<dyn BodySource>) -> Result<Bytes, String> {
        match poll_fn(|context| source.poll_next(context, 5)).await {
            Some(Ok(piece)) => Ok(piece),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("end".into()),
        }
    }

    #[test]
    fn bytes_go_both_ways_and_the_destination_may_end_first() {
        run(async |worker| {
            let (mut source, pipe, mut far) = tunnel(worker, LIMIT).await;
            pipe.push("hello");
            let mut read = [0; 5];
            far.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"hello");
            far.write_all(b"to you").await.unwrap();
            assert_eq!(
                next(&mut source).await.unwrap(),
                "to yo",
                "a piece is not longer than was asked for"
            );
            assert_eq!(next(&mut source).await.unwrap(), "u");
            far.shutdown().await.unwrap();
            assert_eq!(next(&mut source).await.unwrap_err(), "end");
            drop(source);
            // The client may continue to send after the target has ended its direction.
            pipe.push("still here");
            let mut read = [0; 10];
            far.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"still here");
            pipe.finish(Ok(()));
            assert_eq!(far.read(&mut read).await.unwrap(), 0);
        });
    }

    #[test]
    fn the_end_of_what_the_client_sends_is_that_of_the_tunnel() {
        run(async |worker| {
            let (mut source, pipe, mut far) = tunnel(worker, LIMIT).await;
            far.write_all(b"abc").await.unwrap();
            pipe.push("last words");
            pipe.finish(Ok(()));
            let mut read = [0; 10];
            far.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"last words");
            // Bytes that the target sent before the client ended its direction still reach the client.
            assert_eq!(next(&mut source).await.unwrap(), "abc");
            assert_eq!(next(&mut source).await.unwrap_err(), "end");
            drop(source);
            assert_eq!(far.read(&mut read).await.unwrap(), 0);
        });
    }

    #[test]
    fn a_client_that_is_gone_closes_the_connection() {
        run(async |worker| {
            let (source, pipe, mut far) = tunnel(worker, LIMIT).await;
            pipe.push("x");
            let mut read = [0; 10];
            assert_eq!(far.read(&mut read).await.unwrap(), 1);
            drop(source);
            assert_eq!(far.read(&mut read).await.unwrap(), 0);
            assert!(pipe.is_abandoned());
        });
    }

    #[test]
    fn a_destination_that_breaks_off_is_no_clean_end() {
        run(async |worker| {
            let (mut source, pipe, far) = tunnel(worker, LIMIT).await;
            far.set_zero_linger().unwrap();
            drop(far);
            assert_eq!(next(&mut source).await.unwrap_err(), "I/O error");
            // After the target has reset the connection, no task reads the client's bytes.
            pipe.push("x");
            while !pipe.is_abandoned() {
                tokio::task::yield_now().await;
            }
            assert_eq!(pipe.given_up(), None);
        });
    }

    #[test]
    fn a_tunnel_in_which_nothing_moves_is_given_up() {
        let limit = Duration::from_millis(400);
        let moment = Duration::from_millis(50);
        let test = async |worker: &Worker| {
            let (mut source, pipe, mut far) = tunnel(worker, limit).await;
            // Bytes in either direction keep the tunnel alive.
            for byte in b"xyxy" {
                pass(limit - moment).await;
                if *byte == b'x' {
                    pipe.push("x");
                    far.read_exact(&mut [0]).await.unwrap();
                } else {
                    far.write_all(b"y").await.unwrap();
                    next(&mut source).await.unwrap();
                }
                assert_eq!(pipe.given_up(), None);
            }
            pass(limit - moment).await;
            assert_eq!(pipe.given_up(), None);
            pass(4 * moment).await;
            assert_eq!(pipe.given_up(), Some("I/O timeout"));
            drop(source);
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        };
        on_standing_clock(async {
            let worker = Worker::new(0, Arc::default(), Arc::default());
            worker.run(test(&worker)).await;
        });
    }

    #[test]
    fn a_destination_that_does_not_read_fills_the_pipe_and_no_more() {
        run(async |worker| {
            let (_source, pipe, mut far) = tunnel(worker, LIMIT).await;
            let mut pushed = 0;
            let full = async {
                loop {
                    poll_fn(|context| pipe.poll_room(context)).await;
                    pipe.push(vec![b'x'; 16 * 1024]);
                    pushed += 16 * 1024;
                }
            };
            let held_up = tokio::time::timeout(Duration::from_millis(300), full).await;
            assert!(held_up.is_err());
            assert!((BodyPipe::CAPACITY..2 * BodyPipe::CAPACITY).contains(&pipe.queued()));
            let mut all = vec![0; pushed];
            far.read_exact(&mut all).await.unwrap();
            assert!(all.iter().all(|byte| *byte == b'x'));
        });
    }
}
