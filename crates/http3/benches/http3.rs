//! Benchmarks of HTTP/3: decoding the field sections of requests, encoding those of responses, and whole exchanges in the
//! engine. The requests and the response are those of the benchmarks of HTTP/2.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

#[path = "../../../bench/micro/heads.rs"]
mod heads;

use std::hint::black_box;
use std::sync::Arc;

use h2o_http::{Headers, Name, RequestHead, ResponseHead, StatusCode};
use h2o_http3::qpack::{DecodedField, Decoder, Encoder, FieldName, Pseudo, QpackError};
use h2o_http3::{LocalStream, Received, ServerConnection, Settings, StreamId, frame};

use heads::{BROWSER, Fields, H2LOAD, RESPONSE};

/// Size in bytes of the QPACK tables of both sides.
const CAPACITY: u32 = 16_384;
const STREAM: StreamId = StreamId::new(0);

fn main() {
    let bench = kit::Bench::from_arguments();
    decoding(&bench);
    encoding(&bench);
    exchanges(&bench);
}

fn decoding(bench: &kit::Bench) {
    bench.case(
        "decode-browser-first",
        "QPACK: first request of a browser decoded",
        || {
            let mut pair = Pair::new();
            let section = pair.request("/assets/app.css?v=3", BROWSER);
            let mut sink = Sink::default();
            move || sink.decode(&mut Decoder::new(CAPACITY), &section)
        },
    );
    for (name, title, fields) in [
        (
            "decode-browser-later",
            "QPACK: later request of a browser decoded",
            BROWSER,
        ),
        (
            "decode-h2load",
            "QPACK: later request of h2load decoded",
            H2LOAD,
        ),
    ] {
        bench.case(name, title, || {
            let mut pair = Pair::new();
            let section = pair.later("/assets/app.css?v=3", fields);
            let mut sink = Sink::default();
            move || sink.decode(&mut pair.decoder, &section)
        });
    }
}

fn encoding(bench: &kit::Bench) {
    bench.case(
        "encode-first",
        "QPACK: first response of a connection encoded",
        || {
            let mut out = Vec::new();
            move || {
                out.clear();
                encode_response(&mut Pair::new().encoder, &mut out);
                black_box(&out);
            }
        },
    );
    bench.case("encode-later", "QPACK: later response encoded", || {
        let mut pair = Pair::new();
        let mut out = Vec::new();
        for _ in 0..3 {
            pair.acknowledged(|encoder, instructions| {
                let mut section = encoder.section(&mut out, Some(instructions));
                response(|name, value| section.field(name, value));
                section.finish(STREAM);
            });
        }
        move || {
            out.clear();
            encode_response(&mut pair.encoder, &mut out);
            black_box(&out);
        }
    });
}

fn exchanges(bench: &kit::Bench) {
    for (name, title, fields, paths) in [
        (
            "exchange-h2load",
            "HTTP/3 exchange, the same request again",
            H2LOAD,
            ["/1k.txt", "/1k.txt"],
        ),
        (
            "exchange-browser",
            "HTTP/3 exchange with a browser, two paths in turn",
            BROWSER,
            ["/a.css", "/b.css"],
        ),
    ] {
        bench.case(name, title, || {
            let mut connection = Connection::new();
            let mut pair = Pair::new();
            pair.later("/", fields);
            connection.receive(6, &pair.instructions);
            let requests = paths.map(|path| {
                let section = pair.request(path, fields);
                let mut request = Vec::new();
                frame::write(h2o_http3::FrameType::HEADERS, &section, &mut request);
                request
            });
            let mut number = 0;
            move || {
                number += 1;
                connection.exchange(&requests[number % 2]);
            }
        });
    }
}

/// The encoder of one side and the decoder of its peer, which receives what the encoder writes.
struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    /// All bytes that were sent on the encoder stream, beginning with the type of the stream.
    instructions: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let mut encoder = Encoder::new(CAPACITY);
        encoder.set_peer_capacity(u64::from(CAPACITY));
        Self {
            encoder,
            decoder: Decoder::new(CAPACITY),
            instructions: vec![2],
        }
    }

    /// Lets the encoder write a section, and the decoder acknowledge the insertions.
    fn acknowledged(&mut self, write: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
        let (mut instructions, mut told) = (Vec::new(), Vec::new());
        write(&mut self.encoder, &mut instructions);
        let received = self.decoder.receive(&instructions, &mut told);
        received.expect("the instructions are valid");
        // A section that refers to the table is cancelled instead of acknowledged, since the benchmark does not decode it.
        h2o_http::prefixed::encode(0x40, 6, 0, &mut told);
        self.encoder
            .receive(&told)
            .expect("the acknowledgements are valid");
        self.instructions.extend(instructions);
    }

    /// The field section of a GET request.
    fn request(&mut self, path: &str, fields: &Fields) -> Vec<u8> {
        let mut out = Vec::new();
        self.acknowledged(|encoder, instructions| {
            let mut section = encoder.section(&mut out, Some(instructions));
            section.pseudo(Pseudo::Method, b"GET");
            section.pseudo(Pseudo::Path, path.as_bytes());
            section.pseudo(Pseudo::Scheme, b"https");
            section.pseudo(Pseudo::Authority, b"www.example.com");
            for &(name, value) in fields {
                section.field(Name::Known(name), value.as_bytes());
            }
            section.finish(STREAM);
        });
        out
    }

    /// The field section of a request whose fields are in the table already.
    fn later(&mut self, path: &str, fields: &Fields) -> Vec<u8> {
        self.request("/", fields);
        self.request("/", fields);
        self.request(path, fields)
    }
}

fn response(mut field: impl FnMut(Name<'_>, &[u8])) {
    for &(name, value) in black_box(RESPONSE) {
        field(Name::Known(name), value.as_bytes());
    }
}

fn encode_response(encoder: &mut Encoder, out: &mut Vec<u8>) {
    let mut section = encoder.section(out, None);
    section.status(StatusCode::OK);
    response(|name, value| section.field(name, value));
    section.finish(STREAM);
    // The peer cancels the section at once, so that the encoder forgets it.
    encoder.receive(&[0x40]).expect("the cancellation is valid");
}

/// Stores the decoded fields of a request, as the engine does.
#[derive(Default)]
struct Sink {
    headers: Headers,
    path: Vec<u8>,
    told: Vec<u8>,
}

impl Sink {
    fn decode(&mut self, decoder: &mut Decoder, section: &[u8]) {
        self.headers.clear();
        self.told.clear();
        let section = black_box(section);
        let sunk = decoder.decode(
            STREAM,
            section,
            &mut self.told,
            |field: DecodedField<'_>| {
                assert!(field.flaws.is_none());
                match field.name {
                    FieldName::Pseudo(Pseudo::Path) => {
                        self.path.clear();
                        self.path.extend_from_slice(field.value);
                    }
                    FieldName::Pseudo(pseudo) => _ = black_box((pseudo, field.value)),
                    FieldName::Known(known) => self.headers.push(known, field.value),
                    FieldName::Other(name) => self.headers.push(Name::Other(name), field.value),
                    FieldName::Invalid(_) => {}
                }
                Ok::<(), QpackError>(())
            },
        );
        assert!(sunk.is_ok());
        black_box(&self.headers);
    }
}

struct Connection {
    engine: ServerConnection,
    head: RequestHead,
    response: Headers,
    next_stream: u64,
    out: Vec<u8>,
    told: Vec<u8>,
}

impl Connection {
    /// A connection on which the client has sent its settings, which allow a QPACK table.
    fn new() -> Self {
        let engine = ServerConnection::new(Arc::new(Settings::default()), false);
        let mut response = Headers::new();
        // The first field of `RESPONSE` is `server`. It is left out here, because the engine adds it.
        for &(name, value) in &RESPONSE[1..] {
            response.push(name, value.as_bytes());
        }
        let mut connection = Self {
            engine,
            head: RequestHead::default(),
            response,
            next_stream: 0,
            out: Vec::new(),
            told: Vec::new(),
        };
        // The client's control stream with SETTINGS that allow a table of 16,384 bytes.
        connection.receive(2, b"\0\x04\x05\x01\x80\0\x40\0");
        connection.receive(10, &[3]);
        connection
    }

    fn receive(&mut self, id: u64, input: &[u8]) {
        let id = StreamId::new(id);
        self.engine.open(id).expect("the stream is open");
        let step = self.engine.receive(id, input, false, &mut self.head);
        step.expect("the engine accepts the input");
    }

    fn exchange(&mut self, request: &[u8]) {
        let id = StreamId::new(self.next_stream);
        self.next_stream += 4;
        self.out.clear();
        self.head.clear();
        self.engine.open(id).expect("the stream is open");
        let input = black_box(request);
        let step = self.engine.receive(id, input, true, &mut self.head);
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
        self.engine.release(stream);
        black_box(self.engine.take_costs());
        assert!(self.engine.poll_command().is_none());
        self.acknowledge(id);
        black_box(&self.out);
    }

    /// Acknowledges the server's encoder instructions and the response on `stream`, as a client does.
    fn acknowledge(&mut self, stream: StreamId) {
        self.told.clear();
        for local in LocalStream::ALL {
            let len = self.engine.pending(local).len();
            if local == LocalStream::QpackEncoder && self.next_stream == 8 {
                // The server inserts all entries with its second response, so the client acknowledges them once. With the
                // first response, the encoder stream has only sent its type.
                let inserted = usize::try_from(self.engine.compression().1.inserted());
                h2o_http::prefixed::encode(
                    0,
                    6,
                    inserted.expect("the number of insertions fits into a usize"),
                    &mut self.told,
                );
            }
            self.engine.advance(local, len);
        }
        // The client sends Stream Cancellation in place of an acknowledgement: a section that refers to no entry of the table
        // must not be acknowledged, but may be cancelled.
        let stream = usize::try_from(stream.get()).expect("the stream id fits into a usize");
        h2o_http::prefixed::encode(0x40, 6, stream, &mut self.told);
        let id = StreamId::new(10);
        let step = self.engine.receive(id, &self.told, false, &mut self.head);
        black_box(step.expect("the engine accepts the input"));
    }
}
