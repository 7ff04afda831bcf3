//! Benchmark of one exchange in the HTTP/2 engine: a HEADERS frame is received, a response head written, the stream
//! released.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

mod fields;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::{Headers, RequestHead, ResponseHead, StatusCode};
use h2o_http2::hpack::Encoder;
use h2o_http2::{Received, ServerConnection, Settings};

use fields::{BROWSER, H2LOAD, RESPONSE, request};

fn main() {
    let bench = kit::Bench::from_arguments();
    for (name, title, fields, paths) in [
        (
            "exchange-h2load",
            "HTTP/2 exchange, the same request again",
            H2LOAD,
            ["/1k.txt", "/1k.txt"],
        ),
        (
            "exchange-browser",
            "HTTP/2 exchange with a browser, two paths in turn",
            BROWSER,
            ["/a.css", "/b.css"],
        ),
    ] {
        bench.case(name, title, || {
            let mut encoder = Encoder::new();
            let mut connection = Connection::new();
            connection.exchange(&request(&mut encoder, "/", fields));
            let blocks = paths.map(|path| request(&mut encoder, path, fields));
            let mut number = 0;
            move || {
                number += 1;
                connection.exchange(&blocks[number % 2]);
            }
        });
    }
}

struct Connection {
    engine: ServerConnection,
    now: Instant,
    head: RequestHead,
    response: Headers,
    next_stream: u32,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Connection {
    /// A connection on which both sides have sent their prefaces.
    fn new() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the benchmark may begin at any instant"
        )]
        let now = Instant::now();
        let mut engine = ServerConnection::new(Arc::new(Settings::default()), None, now);
        let mut head = RequestHead::default();
        let mut out = Vec::new();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let step = engine.receive(preface, &mut head, now, &mut out);
        assert_eq!(
            step.expect("the preface is valid").received,
            Received::NeedMore
        );
        let mut response = Headers::new();
        // The first field of `RESPONSE` is `server`, which the engine adds by itself.
        for &(name, value) in &RESPONSE[1..] {
            response.push(name, value.as_bytes());
        }
        Self {
            engine,
            now,
            head,
            response,
            next_stream: 1,
            input: Vec::new(),
            out,
        }
    }

    fn exchange(&mut self, block: &[u8]) {
        let high = u8::try_from(block.len() >> 8).expect("the field block is shorter than 64 KiB");
        let [low, ..] = block.len().to_le_bytes();
        self.input.clear();
        // The length, type and flags of a HEADERS frame with END_HEADERS and END_STREAM.
        self.input.extend_from_slice(&[0, high, low, 1, 5]);
        self.input
            .extend_from_slice(&self.next_stream.to_be_bytes());
        self.input.extend_from_slice(block);
        self.next_stream += 2;
        self.out.clear();
        self.head.clear();
        let input = black_box(&self.input);
        let step = self
            .engine
            .receive(input, &mut self.head, self.now, &mut self.out);
        let Ok(Received::Request { stream, .. }) = step.map(|step| step.received) else {
            panic!("the engine reads a request");
        };
        black_box(self.head.path());
        let response = ResponseHead {
            status: StatusCode::OK,
            reason: None,
            headers: black_box(&self.response),
            length: Some(1024),
            server: Some(b"h2o"),
        };
        self.engine.respond(stream, &response, true, &mut self.out);
        self.engine.release(stream, &mut self.out);
        black_box(self.engine.take_costs());
        black_box(&self.out);
    }
}
