//! For tests of HTTP/2 to backends: a server made of our engine, a server made of raw frames, and requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodyPipe, BodySource, RequestBody, Worker};
use h2o_http::{BodyLength, Headers, Method, RequestHead, ResponseHead, Scheme, StatusCode};
use h2o_http2::frame::{self, HEADER_LEN};
use h2o_http2::{
    ErrorCode, FrameHeader, FrameType, Received, ServerConnection, Settings, StreamKey,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::http2::{Http2, driver};
use crate::multiplexed::{Connection as Multiplexed, StreamSettings};
use crate::{Failure, Reply};

pub(crate) use crate::multiplexed::tests::kit::{ask, call, settings};

pub(crate) type Connection = Multiplexed<Http2>;

/// Number of bytes that the link in memory buffers per direction.
const LINK: usize = 1 << 20;

thread_local! {
    static WORKER: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// The worker of the test that [`run`] runs.
pub(crate) fn worker() -> Rc<Worker> {
    WORKER.with_borrow(|worker| {
        worker
            .clone()
            .expect("the function is called within a test")
    })
}

/// Runs a test on a worker, on tokio's paused clock.
pub(crate) fn run(test: impl Future<Output = ()>) {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .expect("a runtime starts")
        .block_on(async {
            let limit = Duration::from_secs(3600);
            let worker = Worker::new(0, Arc::default(), Arc::default());
            WORKER.set(Some(Rc::clone(&worker)));
            tokio::time::timeout(limit, worker.run(test))
                .await
                .expect("the test ends within its time limit");
        });
}

pub(crate) fn with_window(window: u32) -> StreamSettings {
    StreamSettings {
        window,
        ..settings()
    }
}

/// Makes a client connection, and returns it with the server's end of its link in memory.
pub(crate) fn link(settings: StreamSettings) -> (Rc<Connection>, DuplexStream) {
    let (ours, theirs) = duplex(LINK);
    let (connection, driver) = driver::open(settings, 7, ours, Rc::default(), &worker().timers);
    worker().spawn(driver);
    (connection, theirs)
}

/// Makes a client connection, and the server at its other end.
pub(crate) fn start(settings: StreamSettings) -> (Rc<Connection>, Server) {
    let (connection, socket) = link(settings);
    (connection, Server::new(socket))
}

/// Makes a client connection, and the server at its other end, whose SETTINGS the client has received.
pub(crate) async fn open(settings: StreamSettings) -> (Rc<Connection>, Server) {
    let (connection, mut server) = start(settings);
    let seen = tokio::time::timeout(Duration::from_millis(5), server.next()).await;
    assert!(seen.is_err(), "the client has sent SETTINGS only");
    settle().await;
    (connection, server)
}

pub(crate) fn get(path: &str) -> RequestHead {
    let mut head = RequestHead::default();
    head.scheme = Scheme::Https;
    let target = head.headers.store(path.as_bytes());
    head.set_target(target);
    let authority = head.headers.store(b"backend.test");
    head.set_authority(authority);
    head
}

pub(crate) fn post(body: BodyLength) -> RequestHead {
    let mut head = get("/up");
    (head.method, head.body) = (Method::Post, body);
    head
}

/// Sends a request as [`call`] does, for a client whose connection carries one request at a time.
pub(crate) fn call_that_ends_with_its_upload(
    connection: &Rc<Connection>,
    head: &RequestHead,
    body: RequestBody,
) -> JoinHandle<Result<Reply, Failure>> {
    let request = connection.request(head, body, false, Headers::new());
    tokio::task::spawn_local(async move {
        let request = request?;
        request.end_with_upload();
        request.response(&mut None, None).await
    })
}

pub(crate) async fn reply(call: JoinHandle<Result<Reply, Failure>>) -> Reply {
    match call.await.expect("the task does not panic") {
        Ok(reply) => reply,
        Err(failure) => panic!("{failure:?}"),
    }
}

pub(crate) async fn failure(call: JoinHandle<Result<Reply, Failure>>) -> Failure {
    match call.await.expect("the task does not panic") {
        Ok(reply) => panic!(
            "a response arrived in place of an error: {}",
            reply.status.as_u16()
        ),
        Err(failure) => failure,
    }
}

/// Waits for the next piece of a body.
pub(crate) async fn piece(source: &mut Box<dyn BodySource>) -> Option<Result<Bytes, BodyError>> {
    std::future::poll_fn(|task| source.poll_next(task, 16_384)).await
}

/// Reads a body to its end.
pub(crate) async fn content(source: &mut Box<dyn BodySource>) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(piece) = piece(source).await {
        all.extend_from_slice(&piece.map_err(|error| error.to_string())?);
    }
    Ok(all)
}

pub(crate) fn source(body: Body) -> Box<dyn BodySource> {
    match body {
        Body::Stream(source) => source,
        Body::Empty => panic!("the body is empty"),
        Body::Bytes(bytes) => panic!("the body is in memory: {bytes:?}"),
        Body::File(_) => panic!("the body is a file"),
    }
}

pub(crate) fn pipe() -> (Rc<BodyPipe>, RequestBody) {
    let pipe = Rc::new(BodyPipe::default());
    (Rc::clone(&pipe), RequestBody::Stream(pipe))
}

/// Whether a pipe takes more data now.
pub(crate) fn has_room(pipe: &BodyPipe) -> bool {
    let mut task = Context::from_waker(Waker::noop());
    matches!(pipe.poll_room(&mut task), Poll::Ready(_))
}

/// Lets all tasks run until all of them wait.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Something that the client has done, as the server sees it.
#[derive(Debug)]
pub(crate) enum ServerEvent {
    Request(StreamKey, Box<RequestHead>),
    Data(StreamKey, Vec<u8>, bool),
    Reset(StreamKey, ErrorCode),
    Closed,
}

/// An HTTP/2 server made of our engine.
pub(crate) struct Server {
    pub(crate) engine: ServerConnection,
    socket: DuplexStream,
    input: Vec<u8>,
    pub(crate) out: Vec<u8>,
}

impl Server {
    pub(crate) fn new(socket: DuplexStream) -> Self {
        let now = Instant::now().into_std();
        let settings = Settings {
            input_window: 65_535,
            ..Settings::default()
        };
        Self {
            engine: ServerConnection::new(Arc::new(settings), None, now),
            socket,
            input: Vec::new(),
            out: Vec::new(),
        }
    }

    pub(crate) async fn flush(&mut self) {
        self.socket
            .write_all(&self.out)
            .await
            .expect("the client reads what the server sends");
        self.out.clear();
    }

    /// Waits for the client's next action.
    pub(crate) async fn next(&mut self) -> ServerEvent {
        let mut head = RequestHead::default();
        loop {
            let now = Instant::now().into_std();
            let step = self
                .engine
                .receive(&self.input, &mut head, now, &mut self.out)
                .expect("the client sends valid HTTP/2");
            let seen = match step.received {
                Received::NeedMore => None,
                Received::Charged => {
                    self.engine.take_costs();
                    self.input.drain(..step.taken);
                    continue;
                }
                Received::Request {
                    stream, refusal, ..
                } => {
                    assert_eq!(refusal, None);
                    Some(ServerEvent::Request(stream, Box::new(head.clone())))
                }
                Received::Data {
                    stream,
                    data,
                    end_stream,
                } => Some(ServerEvent::Data(
                    stream,
                    self.input[data].to_vec(),
                    end_stream,
                )),
                Received::Trailers { .. } => panic!("the client sent trailers"),
                Received::Reset { stream, code, .. } => Some(ServerEvent::Reset(stream, code)),
            };
            self.input.drain(..step.taken);
            self.flush().await;
            if let Some(seen) = seen {
                return seen;
            }
            let read = self.socket.read_buf(&mut self.input).await;
            if !matches!(read, Ok(1..)) {
                return ServerEvent::Closed;
            }
        }
    }

    pub(crate) async fn request(&mut self) -> (StreamKey, Box<RequestHead>) {
        match self.next().await {
            ServerEvent::Request(stream, head) => (stream, head),
            other => panic!("{other:?} instead of a request"),
        }
    }

    pub(crate) async fn data(&mut self, stream: StreamKey) -> (Vec<u8>, bool) {
        match self.next().await {
            ServerEvent::Data(of, data, end) if of == stream => (data, end),
            other => panic!("{other:?} instead of content"),
        }
    }

    pub(crate) async fn reset(&mut self, stream: StreamKey) -> ErrorCode {
        match self.next().await {
            ServerEvent::Reset(of, code) if of == stream => code,
            other => panic!("{other:?} instead of a reset"),
        }
    }

    /// Sends the head of a response; `end` if the response has no body.
    pub(crate) fn respond(
        &mut self,
        stream: StreamKey,
        status: u16,
        fields: &[(&str, &str)],
        end: bool,
    ) {
        self.respond_with(stream, status, fields, None, end);
    }

    pub(crate) fn respond_with(
        &mut self,
        stream: StreamKey,
        status: u16,
        fields: &[(&str, &str)],
        length: Option<u64>,
        end: bool,
    ) {
        let headers = fields_of(fields);
        let head = head_of(status, &headers, length);
        self.engine.respond(stream, &head, end, &mut self.out);
        if end {
            self.engine.release(stream, &mut self.out);
        }
    }

    pub(crate) fn send(&mut self, stream: StreamKey, data: &[u8], end: bool) {
        self.engine.send_data(stream, data, end, &mut self.out);
        if end {
            self.engine.release(stream, &mut self.out);
        }
    }

    /// Sends a response with status 200 and this text.
    pub(crate) async fn answer(&mut self, stream: StreamKey, text: &str) {
        self.respond(stream, 200, &[], false);
        self.send(stream, text.as_bytes(), true);
        self.flush().await;
    }
}

/// The head of a response, with the length of its content if that is announced.
pub(crate) fn head_of(status: u16, headers: &Headers, length: Option<u64>) -> ResponseHead<'_> {
    ResponseHead {
        status: StatusCode::new(status).expect("the number is a valid status code"),
        reason: None,
        headers,
        length,
        server: None,
    }
}

pub(crate) fn fields_of(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in fields {
        headers.push(h2o_http::Name::from_lower(name), value.as_bytes());
    }
    headers
}

/// A frame that a [`Bare`] server has received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameType,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// An HTTP/2 server that knows only frames, and follows no rules.
pub(crate) struct Bare {
    pub(crate) socket: DuplexStream,
    input: Vec<u8>,
}

impl Bare {
    /// Makes the server. It reads the client's preface and the frames up to the first HEADERS, and sends empty SETTINGS.
    pub(crate) async fn new(socket: DuplexStream) -> Self {
        let mut bare = Self {
            socket,
            input: Vec::new(),
        };
        while bare.input.len() < frame::PREFACE.len() {
            assert!(bare.read().await, "the client closed the connection");
        }
        assert!(bare.input.starts_with(frame::PREFACE));
        bare.input.drain(..frame::PREFACE.len());
        let mut out = Vec::new();
        frame::settings(&mut out, &[]);
        bare.send(&out).await;
        bare
    }

    async fn read(&mut self) -> bool {
        matches!(self.socket.read_buf(&mut self.input).await, Ok(1..))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.socket
            .write_all(bytes)
            .await
            .expect("the client reads what the server sends");
    }

    /// Sends bytes; fails if the client has closed the connection.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes).await
    }

    /// Reads the next frame of the client; `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(header) = FrameHeader::parse(&self.input)
                && self.input.len() >= HEADER_LEN + header.len
            {
                let rest = self.input.split_off(HEADER_LEN + header.len);
                let payload = std::mem::replace(&mut self.input, rest).split_off(HEADER_LEN);
                return Some(Frame {
                    kind: header.kind,
                    stream: header.stream.get(),
                    payload,
                });
            }
            if !self.read().await {
                return None;
            }
        }
    }

    /// Reads frames of the client up to the next one of this type.
    pub(crate) async fn find(&mut self, kind: FrameType) -> Frame {
        while let Some(frame) = self.frame().await {
            if frame.kind == kind {
                return frame;
            }
        }
        panic!("the client closed the connection without {kind:?}");
    }
}
