//! Benchmark of a proxied request: the handler, the pool, the connection to the backend, the response with its body.
//!
//! The backend is a Unix-domain socket, served by this thread between two polls of the handler's future, so that every request
//! takes the same steps. Its responses are fixed bytes.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

mod site;

use std::future::poll_fn;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::task::{Context, Poll};

use h2o_exchange::{Body, Outcome};
use h2o_http::{Known, Name, StatusCode};
use h2o_http2::hpack::Encoder;
use tokio::runtime::{Builder, LocalOptions};

use site::Setup;

const BODY: [u8; 1024] = [b'a'; 1024];

const FIELDS: &[(Known, &str)] = &[
    (Known::Server, "backend"),
    (Known::Date, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (Known::ContentType, "text/plain"),
    (Known::ContentLength, "1024"),
    (Known::LastModified, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (Known::Etag, "\"2ebc9b71-400\""),
    (Known::AcceptRanges, "bytes"),
];

fn main() {
    let bench = kit::Bench::from_arguments();
    bench.case("http1", "Request to a backend over HTTP/1, 1 KB", || {
        proxied::<Http1>("")
    });
    bench.case("http2", "Request to a backend over HTTP/2, 1 KB", || {
        proxied::<Http2>(", proxy.http2.ratio: 100, proxy.http2.force-cleartext: ON")
    });
}

/// Measures requests over one connection to the backend, which the first of them opens.
fn proxied<P: Protocol>(settings: &str) -> impl FnMut() {
    let url = "proxy.reverse.url: \"http://[unix:@root@/backend]/\"";
    let setup = Setup::new("", &format!("{url}{settings}"));
    let mut backend = Backend::<P>::new(&setup.root.path().join("backend"));
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .expect("a runtime starts");
    move || runtime.block_on(request(&setup, &mut backend))
}

async fn request<P: Protocol>(setup: &Setup, backend: &mut Backend<P>) {
    let reference = setup.request("/1k.txt", &[(Known::UserAgent, "h2load nghttp2/1.52.0")]);
    setup.worker.clock.begin_turn();
    let outcome = {
        let exchange = &mut *reference.borrow_mut();
        let site = exchange.site.clone();
        site.path(exchange.route).handlers[0].on_request(exchange)
    };
    let Outcome::Later(mut later) = outcome else {
        panic!("the handler waits for the backend");
    };
    let outcome = poll_fn(|context| backend.poll(context, |context| later.as_mut().poll(context)));
    let Outcome::Done(response) = outcome.await else {
        panic!("the backend has answered");
    };
    assert_eq!(response.status, StatusCode::OK);
    black_box(&response.headers);
    let mut received = 0;
    match response.body {
        Body::Bytes(bytes) => received += bytes.len(),
        Body::Stream(mut source) => {
            let mut next = |context: &mut Context<'_>| source.poll_next(context, 64 * 1024);
            while let Some(piece) = poll_fn(|context| backend.poll(context, &mut next)).await {
                received += piece.expect("the backend sends all of it").len();
            }
        }
        Body::Empty | Body::File(_) => {}
    }
    assert_eq!(received, BODY.len());
    setup.worker.release(reference);
}

/// The backend, a Unix-domain socket with one connection.
struct Backend<P> {
    listener: UnixListener,
    stream: Option<UnixStream>,
    protocol: P,
    input: Vec<u8>,
}

/// The HTTP version that the backend speaks.
trait Protocol: Default {
    /// Removes complete requests from `input`, and appends the backend's responses to `out`.
    fn receive(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>);
}

impl<P: Protocol> Backend<P> {
    fn new(path: &std::path::Path) -> Self {
        let listener = UnixListener::bind(path).expect("the path of the socket is short enough");
        listener
            .set_nonblocking(true)
            .expect("the descriptor is a socket");
        Self {
            listener,
            stream: None,
            protocol: P::default(),
            input: Vec::new(),
        }
    }

    /// Polls `work`, then lets the backend answer the requests that `work` has sent.
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let polled = work(context);
        // A response of the backend wakes the future. If the backend had nothing to answer, a task of the runtime has yet to send
        // the request, so the future is polled again.
        if polled.is_pending() && !self.serve() {
            context.waker().wake_by_ref();
        }
        polled
    }

    /// Lets the backend answer the requests that have arrived. Returns whether there were any.
    fn serve(&mut self) -> bool {
        if self.stream.is_none()
            && let Ok((stream, _)) = self.listener.accept()
        {
            stream
                .set_nonblocking(true)
                .expect("the descriptor is a socket");
            self.stream = Some(stream);
        }
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(read) => self.input.extend_from_slice(&bytes[..read]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let mut out = Vec::new();
        self.protocol.receive(&mut self.input, &mut out);
        stream.write_all(&out).expect("the connection is open");
        !out.is_empty()
    }
}

struct Http1 {
    response: Vec<u8>,
}

impl Default for Http1 {
    fn default() -> Self {
        let mut response = b"HTTP/1.1 200 OK\r\n".to_vec();
        for (name, value) in FIELDS {
            response.extend_from_slice(format!("{}: {value}\r\n", name.as_str()).as_bytes());
        }
        response.extend_from_slice(b"\r\n");
        response.extend_from_slice(&BODY);
        Self { response }
    }
}

impl Protocol for Http1 {
    fn receive(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>) {
        if input.ends_with(b"\r\n\r\n") {
            input.clear();
            out.extend_from_slice(&self.response);
        }
    }
}

struct Http2 {
    has_preface: bool,
    /// The HPACK field blocks of the backend's responses: of the first response, and of the later ones.
    blocks: [Vec<u8>; 2],
}

impl Default for Http2 {
    fn default() -> Self {
        let mut encoder = Encoder::new();
        let blocks = [(); 2].map(|()| {
            let mut block = Vec::new();
            encoder.begin(&mut block);
            encoder.status(StatusCode::OK, &mut block);
            for &(name, value) in FIELDS {
                encoder.field(Name::Known(name), value.as_bytes(), &mut block);
            }
            block
        });
        Self {
            has_preface: false,
            blocks,
        }
    }
}

impl Http2 {
    const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
    /// Types of HTTP/2 frames (RFC 9113 §6), and their flags.
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const ACK: u8 = 1;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;

    fn push_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: &[u8], payload: &[u8]) {
        let len =
            u32::try_from(payload.len()).expect("the length of the payload fits into 32 bits");
        out.extend_from_slice(&len.to_be_bytes()[1..]);
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(stream);
        out.extend_from_slice(payload);
    }
}

impl Protocol for Http2 {
    fn receive(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>) {
        let mut rest = &input[..];
        if !self.has_preface && rest.len() >= Self::PREFACE {
            self.has_preface = true;
            rest = &rest[Self::PREFACE..];
            Self::push_frame(out, Self::SETTINGS, 0, &[0; 4], &[]);
            Self::push_frame(out, Self::SETTINGS, Self::ACK, &[0; 4], &[]);
        }
        while let Some((head, payload)) = rest.split_at_checked(9) {
            let len = usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some((_, others)) = payload.split_at_checked(len) else {
                break;
            };
            rest = others;
            let stream = &head[5..];
            if head[3] == Self::HEADERS {
                let block = &self.blocks[usize::from(stream != [0, 0, 0, 1])];
                Self::push_frame(out, Self::HEADERS, Self::END_HEADERS, stream, block);
                Self::push_frame(out, Self::DATA, Self::END_STREAM, stream, &BODY);
            }
        }
        let taken = input.len() - rest.len();
        input.drain(..taken);
    }
}
