//! Tunnels to UDP sockets. A UDP payload is an HTTP datagram (RFC 9297) of the client's connection if the connection
//! can carry them, and otherwise a capsule in the stream. Clients may send capsules in both cases.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2o_exchange::{
    Body, BodyError, BodyPipe, BodySource, Counter, Counters, DatagramPipe, Descriptor,
    SocketWatch, WatchedSocket, Worker,
};

use super::capsule::{self, CapsuleReader, Format};
use super::tunnel::{Sink, Tunnel, broken};

/// Longest UDP payload from the target that is passed to the client. H2O compatibility: H2O drops longer ones.
const MAX_PAYLOAD: usize = 1500;
/// Most bytes of capsules that are collected for the client at a time.
const BATCH: usize = 16 * 1024;
/// Most datagrams that are moved in each direction before other tasks run.
const TURN: usize = 64;

/// Opens a UDP tunnel between a client and `socket`, which is connected to the target. Returns the response body with
/// the datagrams that `socket` receives; the datagrams from `pipe` are sent to the target. If the client accepts HTTP
/// datagrams, `datagrams` carries the payloads, and the body is empty but lasts as long as the tunnel. Must be called
/// where tasks of the worker can be [spawned](Worker::spawn).
pub(super) fn open(
    worker: &Rc<Worker>,
    socket: TargetSocket,
    descriptor: Descriptor,
    format: Format,
    pipe: Rc<BodyPipe>,
    datagrams: Option<Rc<DatagramPipe>>,
    io_timeout: Duration,
) -> Body {
    let far = Rc::new(FarEnd {
        socket,
        worker: Rc::clone(worker),
    });
    let has_datagrams = datagrams.is_some();
    let upload = DatagramSink {
        far: Rc::clone(&far),
        format,
        capsules: CapsuleReader::new(format),
        datagrams,
        payload: None,
        unsent: None,
    };
    let tunnel = Tunnel::open(worker, upload, descriptor, pipe, io_timeout);
    Body::Stream(if has_datagrams {
        Box::new(EmptyBody(tunnel))
    } else {
        Box::new(CapsuleBody {
            tunnel,
            far,
            format,
            capsules: BytesMut::new(),
        })
    })
}

/// A UDP socket that is connected to the target.
pub(super) struct TargetSocket {
    watch: WatchedSocket,
    socket: UdpSocket,
}

impl TargetSocket {
    /// # Errors
    /// The error of the system.
    pub(super) fn connect(worker: &Worker, target: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            watch: worker.local::<SocketWatch>().watch(socket.as_fd())?,
            socket,
        })
    }
}

/// The far end of the tunnel.
struct FarEnd {
    socket: TargetSocket,
    worker: Rc<Worker>,
}

/// A buffer for a payload, with one byte more than the limit so that longer payloads are noticed.
type Buffer = [u8; MAX_PAYLOAD + 1];

/// The result of [`FarEnd::receive`].
enum Received<'b> {
    Payload(&'b [u8]),
    /// The payload was too long and was dropped, or the socket reported an error that says nothing about the next
    /// payload.
    Useless,
    /// The socket has no payload now.
    Nothing,
}

impl FarEnd {
    fn counters(&self) -> &Counters {
        &self.worker.counters
    }

    fn receive<'b>(&self, buffer: &'b mut Buffer) -> io::Result<Received<'b>> {
        match self.socket.socket.recv(buffer) {
            Ok(len) if len > MAX_PAYLOAD => {
                self.counters().count(Counter::UdpDropped);
                Ok(Received::Useless)
            }
            Ok(len) => Ok(Received::Payload(&buffer[..len])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.socket.watch.note_unreadable();
                Ok(Received::Nothing)
            }
            // No program listens at the target's port at the moment. The tunnel stays open, because a program may
            // listen there later.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Received::Useless),
            Err(error) => Err(error),
        }
    }

    /// Sends a payload. A payload that the system does not send is dropped, as UDP permits. Returns false if the socket
    /// had no room for it now.
    fn send(&self, payload: &[u8]) -> bool {
        match self.socket.socket.send(payload) {
            Ok(_) => self.counters().count(Counter::UdpSent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.socket.watch.note_full();
                return false;
            }
            Err(_) => self.counters().count(Counter::UdpDropped),
        }
        true
    }
}

/// The body of a tunnel whose payloads travel in HTTP datagrams and not on the request's stream: it stays empty, and
/// lasts as long as the tunnel.
struct EmptyBody(Tunnel);

impl BodySource for EmptyBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        _max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.0.may_wait(context) {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }

    fn retained(&self) -> usize {
        0
    }
}

/// The response body of a tunnel whose payloads travel in capsules.
struct CapsuleBody {
    tunnel: Tunnel,
    far: Rc<FarEnd>,
    format: Format,
    /// Capsules that were not pulled yet. An idle tunnel holds no buffer.
    capsules: BytesMut,
}

impl CapsuleBody {
    /// Receives payloads until the socket has none, or a batch is full. Returns whether there may be more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; MAX_PAYLOAD + 1];
        for _ in 0..TURN {
            let payload = match self.far.receive(&mut buffer)? {
                Received::Payload(payload) => payload,
                Received::Useless => continue,
                Received::Nothing => return Ok(false),
            };
            self.tunnel.on_received();
            self.far.counters().count(Counter::UdpReceived);
            if self.capsules.capacity() - self.capsules.len() < capsule::MAX_HEAD + payload.len() {
                self.capsules.reserve(BATCH);
            }
            capsule::begin(self.format, payload.len(), &mut self.capsules);
            self.capsules.extend_from_slice(payload);
            if self.capsules.len() >= BATCH {
                break;
            }
        }
        Ok(true)
    }
}

impl BodySource for CapsuleBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        while self.capsules.is_empty() {
            let has_more = match self.receive() {
                Ok(has_more) => has_more,
                Err(error) => return Poll::Ready(Some(Err(broken(&error)))),
            };
            if self.capsules.is_empty() {
                self.capsules = BytesMut::new();
                if !self.tunnel.may_wait(context) {
                    return Poll::Ready(None);
                }
                if has_more {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                ready!(self.far.socket.watch.poll_readable(context));
            }
        }
        let len = max.min(self.capsules.len());
        Poll::Ready(Some(Ok(self.capsules.split_to(len).freeze())))
    }

    fn retained(&self) -> usize {
        self.capsules.capacity()
    }
}

/// The receiver of the client's datagrams, which also moves the HTTP datagrams to the client.
struct DatagramSink {
    far: Rc<FarEnd>,
    format: Format,
    capsules: CapsuleReader,
    datagrams: Option<Rc<DatagramPipe>>,
    /// The payload of a capsule that the socket has not taken yet.
    payload: Option<Bytes>,
    /// The payload of an HTTP datagram of `datagrams` that the socket has not taken yet.
    unsent: Option<Bytes>,
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
            if !self.far.send(&payload) {
                self.payload = Some(payload);
                ready!(self.far.socket.watch.poll_writable(context));
            }
        }
    }

    fn move_datagrams(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let Some(datagrams) = &self.datagrams else {
            return Ok(false);
        };
        let (mut sent, mut received) = (0, 0);
        while sent < TURN {
            let payload = match self.unsent.take() {
                Some(payload) => payload,
                None => {
                    let Poll::Ready(datagram) = datagrams.poll_next(context) else {
                        break;
                    };
                    sent += 1;
                    let Some(payload) = capsule::datagram_payload(self.format, datagram) else {
                        self.far.counters().count(Counter::UdpDropped);
                        continue;
                    };
                    payload
                }
            };
            if !self.far.send(&payload) {
                self.unsent = Some(payload);
                if self.far.socket.watch.poll_writable(context).is_pending() {
                    break;
                }
            }
        }
        let mut buffer = [0; MAX_PAYLOAD + 1];
        while received < TURN {
            let payload = match self.far.receive(&mut buffer)? {
                Received::Payload(payload) => payload,
                Received::Useless => {
                    received += 1;
                    continue;
                }
                Received::Nothing => {
                    if self.far.socket.watch.poll_readable(context).is_pending() {
                        break;
                    }
                    continue;
                }
            };
            received += 1;
            let is_sent = datagrams.send(self.format.context_id(), payload);
            self.far.counters().count(if is_sent {
                Counter::UdpReceived
            } else {
                Counter::UdpDropped
            });
        }
        if sent == TURN || received == TURN {
            context.waker().wake_by_ref();
        }
        Ok(sent + received > 0)
    }
}

impl Drop for DatagramSink {
    fn drop(&mut self) {
        if let Some(datagrams) = &self.datagrams {
            datagrams.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Waker;

    use tokio::net::UdpSocket;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn run(test: impl AsyncFnOnce(&Rc<Worker>)) {
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

    /// Opens a tunnel. Returns its response body, the pipe of its request body, and the target's socket.
    async fn tunnel(
        worker: &Rc<Worker>,
        format: Format,
    ) -> (Box<dyn BodySource>, Rc<BodyPipe>, UdpSocket) {
        tunnel_with(worker, format, None).await
    }

    async fn tunnel_with(
        worker: &Rc<Worker>,
        format: Format,
        datagrams: Option<Rc<DatagramPipe>>,
    ) -> (Box<dyn BodySource>, Rc<BodyPipe>, UdpSocket) {
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let near = TargetSocket::connect(worker, far.local_addr().unwrap()).unwrap();
        far.connect(near.socket.local_addr().unwrap())
            .await
            .unwrap();
        let pipe = Rc::new(BodyPipe::default());
        let descriptor = worker.shared.descriptors.open().unwrap();
        let body = open(
            worker,
            near,
            descriptor,
            format,
            Rc::clone(&pipe),
            datagrams,
            LIMIT,
        );
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
                // The capsule arrives in two pieces.
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
                // A payload one byte above the limit is dropped; one of exactly the limit is passed on.
                far.send(&[b'x'; 1501]).await.unwrap();
                far.send(&[b'y'; 1500]).await.unwrap();
                let mut capsule = next(&mut source, 9000).await.unwrap();
                assert!(capsule.ends_with(&[b'y'; 1500]) && !capsule.contains(&b'x'));
                // One pull returns no more bytes than it asks for.
                far.send(b"piece").await.unwrap();
                capsule = next(&mut source, 6).await.unwrap();
                assert_eq!(capsule.len(), 6);
                assert!(next(&mut source, 6).await.unwrap().ends_with(b"e"));
                // When the client ends its direction, the tunnel ends.
                pipe.finish(Ok(()));
                assert_eq!(next(&mut source, 6).await, None);
            });
        }
    }

    #[test]
    fn datagrams_go_past_the_stream_where_the_client_takes_them() {
        for (format, context) in [(Format::ContextId, "\0"), (Format::Bare, "")] {
            run(async |worker| {
                let datagrams = Rc::new(DatagramPipe::new(Waker::noop().clone()));
                datagrams.open();
                datagrams.settle(Some(b"9"));
                let (mut source, pipe, far) =
                    tunnel_with(worker, format, Some(Rc::clone(&datagrams))).await;
                let counted = |counter| worker.counters.get(counter);
                let mut received = [0; 2000];
                // A datagram with another context identifier is dropped; an empty payload is sent to the target.
                datagrams.receive("\u{2}other".into());
                datagrams.receive(context.into());
                datagrams.receive(format!("{context}ping").into());
                if format == Format::Bare {
                    assert_eq!(far.recv(&mut received).await.unwrap(), 6);
                } else {
                    assert_eq!(
                        counted(Counter::UdpDropped),
                        0,
                        "the tunnel has not run yet, so no datagram was dropped"
                    );
                }
                assert_eq!(far.recv(&mut received).await.unwrap(), 0);
                assert_eq!(far.recv(&mut received).await.unwrap(), 4);
                // A payload that the client sends in a capsule reaches the target, too, although the tunnel uses HTTP
                // datagrams.
                let len = context.len() + 5;
                pipe.push(
                    [
                        &[0, u8::try_from(len).unwrap()],
                        context.as_bytes(),
                        b"again",
                    ]
                    .concat(),
                );
                assert_eq!(far.recv(&mut received).await.unwrap(), 5);
                far.send(&[b'x'; 1501]).await.unwrap();
                far.send(b"pong").await.unwrap();
                let datagram = loop {
                    if let Some(datagram) = datagrams.next_to_send() {
                        break datagram;
                    }
                    tokio::task::yield_now().await;
                };
                assert_eq!(datagram, format!("9{context}pong"));
                // The response body of a tunnel with HTTP datagrams has no bytes, but lasts as long as the tunnel.
                let mut task = Context::from_waker(Waker::noop());
                assert!(source.poll_next(&mut task, 9000).is_pending());
                pipe.finish(Ok(()));
                assert_eq!(next(&mut source, 9000).await, None);
                drop(source);
                let is_bare = u64::from(format == Format::Bare);
                assert_eq!(counted(Counter::UdpSent), 3 + is_bare);
                assert_eq!(counted(Counter::UdpReceived), 1);
                assert_eq!(counted(Counter::UdpDropped), 2 - is_bare);
            });
        }
    }

    #[test]
    fn what_the_connection_does_not_take_is_dropped() {
        run(async |worker| {
            let datagrams = Rc::new(DatagramPipe::new(Waker::noop().clone()));
            datagrams.open();
            datagrams.settle(Some(b"9"));
            let (_source, _pipe, far) =
                tunnel_with(worker, Format::ContextId, Some(Rc::clone(&datagrams))).await;
            let dropped = || worker.counters.get(Counter::UdpDropped);
            while dropped() == 0 {
                far.send(&[b'x'; 1000]).await.unwrap();
                tokio::task::yield_now().await;
            }
            let kept = datagrams.retained();
            assert!(kept <= 64 * 1024 && kept > 60 * 1024, "{kept}");
        });
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
