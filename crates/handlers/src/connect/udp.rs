//! Tunnels to UDP sockets: each datagram is a capsule.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2o_exchange::{Body, BodyError, BodyPipe, BodySource, Descriptor, Worker};
use tokio::net::UdpSocket;

use super::capsule::{self, CapsuleReader, Format};
use super::tunnel::{Sink, Tunnel, broken};

/// Longest payload from the network that is passed on. H2O compatibility: H2O drops longer ones.
const MAX_PAYLOAD: usize = 1500;
/// Most bytes of capsules that are collected before they are sent.
const BATCH: usize = 16 * 1024;

/// Opens a tunnel: returns a response body with the datagrams that `socket`, which is connected, receives, and sends the
/// datagrams from `pipe`. Must be called within the worker's runtime.
pub(super) fn open(
    worker: &Worker,
    socket: UdpSocket,
    descriptor: Descriptor,
    format: Format,
    pipe: Rc<BodyPipe>,
    io_timeout: Duration,
) -> Body {
    let socket = Rc::new(socket);
    let upload = DatagramSink {
        socket: Rc::clone(&socket),
        capsules: CapsuleReader::new(format),
        payload: None,
    };
    Body::Stream(Box::new(UdpBody {
        tunnel: Tunnel::open(worker, upload, descriptor, pipe, io_timeout),
        socket,
        format,
        capsules: BytesMut::new(),
    }))
}

/// Datagrams from the far end, as a body.
struct UdpBody {
    tunnel: Tunnel,
    socket: Rc<UdpSocket>,
    format: Format,
    /// Bytes that were not pulled yet. An idle tunnel holds none.
    capsules: BytesMut,
}

impl UdpBody {
    /// Receives datagrams until there are none, or a batch is full.
    fn receive(&mut self) -> io::Result<()> {
        // One byte more than the limit, to detect longer ones.
        let mut payload = [0; MAX_PAYLOAD + 1];
        while self.capsules.len() < BATCH {
            let len = match self.socket.try_recv(&mut payload) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The port is closed at the moment; that may change.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            self.tunnel.on_received();
            if len > MAX_PAYLOAD {
                continue;
            }
            if self.capsules.capacity() - self.capsules.len() < capsule::MAX_HEAD + len {
                self.capsules.reserve(BATCH);
            }
            capsule::begin(self.format, len, &mut self.capsules);
            self.capsules.extend_from_slice(&payload[..len]);
        }
        Ok(())
    }
}

impl BodySource for UdpBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        while self.capsules.is_empty() {
            if let Err(error) = self.receive() {
                return Poll::Ready(Some(Err(broken(&error))));
            }
            if self.capsules.is_empty() {
                self.capsules = BytesMut::new();
                if !self.tunnel.may_wait(context) {
                    return Poll::Ready(None);
                }
                match self.socket.poll_recv_ready(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(broken(&error)))),
                }
            }
        }
        let len = max.min(self.capsules.len());
        Poll::Ready(Some(Ok(self.capsules.split_to(len).freeze())))
    }

    fn retained(&self) -> usize {
        self.capsules.capacity()
    }
}

/// Datagrams from the client.
struct DatagramSink {
    socket: Rc<UdpSocket>,
    capsules: CapsuleReader,
    /// The datagram that is not sent yet.
    payload: Option<Bytes>,
}

impl Sink for DatagramSink {
    fn poll_send(&mut self, piece: &mut Bytes, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let payload = match self.payload.take() {
                Some(payload) => payload,
                None => match self.capsules.next(piece) {
                    Ok(Some(payload)) => payload,
                    Ok(None) => return Poll::Ready(Ok(())),
                    // RFC 9298 §5: a payload longer than UDP allows is malformed.
                    Err(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
                },
            };
            match self.socket.try_send(&payload) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.payload = Some(payload);
                    match self.socket.poll_send_ready(context) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    }
                }
                // A datagram that cannot be sent is dropped, as UDP permits.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

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

    /// A tunnel, and its far end.
    async fn tunnel(
        worker: &Worker,
        format: Format,
    ) -> (Box<dyn BodySource>, Rc<BodyPipe>, UdpSocket) {
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        near.connect(far.local_addr().unwrap()).await.unwrap();
        far.connect(near.local_addr().unwrap()).await.unwrap();
        let pipe = Rc::new(BodyPipe::default());
        let descriptor = worker.shared.descriptors.open().unwrap();
        let body = open(worker, near, descriptor, format, Rc::clone(&pipe), LIMIT);
        (body.into_source(), pipe, far)
    }

    async fn next(source: &mut Box<dyn BodySource>, max: usize) -> Option<Bytes> {
        let piece = poll_fn(|context| source.poll_next(context, max)).await;
        piece.map(|piece| piece.unwrap())
    }

    #[test]
    fn datagrams_go_both_ways() {
        for (format, head) in [(Format::ContextId, "\0\x05\0"), (Format::Bare, "\0\x04")] {
            run(async |worker| {
                let (mut source, pipe, far) = tunnel(worker, format).await;
                // In two pieces.
                pipe.push(format!("{head}pi"));
                pipe.push("ng");
                let mut received = [0; 2000];
                assert_eq!(far.recv(&mut received).await.unwrap(), 4);
                assert_eq!(&received[..4], b"ping");
                far.send(b"pong").await.unwrap();
                assert_eq!(
                    next(&mut source, 9000).await.unwrap(),
                    format!("{head}pong")
                );
                // What is too long is dropped, what is just not is not.
                far.send(&[b'x'; 1501]).await.unwrap();
                far.send(&[b'y'; 1500]).await.unwrap();
                let mut capsule = next(&mut source, 9000).await.unwrap();
                assert!(capsule.ends_with(&[b'y'; 1500]) && !capsule.contains(&b'x'));
                // No more than is asked for.
                far.send(b"piece").await.unwrap();
                capsule = next(&mut source, 6).await.unwrap();
                assert_eq!(capsule.len(), 6);
                assert!(next(&mut source, 6).await.unwrap().ends_with(b"e"));
                // The client's end is that of the tunnel.
                pipe.finish(Ok(()));
                assert_eq!(next(&mut source, 6).await, None);
            });
        }
    }

    #[test]
    fn nonsense_ends_the_tunnel() {
        run(async |worker| {
            let (_source, pipe, _far) = tunnel(worker, Format::ContextId).await;
            pipe.push(vec![0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0]);
            while pipe.given_up().is_none() {
                tokio::task::yield_now().await;
            }
        });
    }
}
