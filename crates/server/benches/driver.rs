//! Benchmark of a request through the whole server: event loop, driver, engine, request table, handler. The cost includes this program's
//! own client.
//!
//! The server runs in a thread of this process. The client sends over a Unix-domain socket, and waits for all responses, so that every
//! request takes the same steps. How often the event loop waits in between depends on how the kernel schedules the two threads: the numbers
//! of instructions vary by several per cent on a busy machine, so this benchmark has no recorded results to compare with.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use h2o_config::Memory;
use h2o_server::Server;
use tempfile::TempDir;

/// Content of the file that the client requests.
const BODY: &[u8] = b"hello\n";
/// Number of requests per measured operation over HTTP/1. Collecting entropy at the start of the server takes a number of
/// instructions that varies by a million: the cost of a single request would be lost in that noise.
const REQUESTS: u32 = 32;
/// Number of requests per measured operation over HTTP/2; the client sends them all at once.
const STREAMS: u32 = 16;

fn main() {
    let bench = kit::Bench::from_arguments();
    bench.case(
        "http1-32",
        "Thirty-two requests over HTTP/1, one after the other, 6 bytes each",
        http1,
    );
    bench.case(
        "http2-16",
        "Sixteen requests over HTTP/2 at once, 6 bytes each",
        http2,
    );
}

/// A running server, and a client's connection to it.
struct Connection {
    stream: UnixStream,
    /// Read buffer, zeroed once and reused, because on some processors zeroing takes an instruction per byte, which would distort
    /// the measurement.
    buffer: Box<[u8]>,
    _server: Server,
    _folder: TempDir,
}

impl Connection {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let root = folder.path().to_str().expect("the path is UTF-8");
        std::fs::write(folder.path().join("6.txt"), BODY).expect("the file can be written");
        let socket = folder.path().join("socket");
        let text = format!(
            "num-threads: 1\nhttp1-request-timeout: 3600\nhttp2-idle-timeout: 3600\n\
             listen: {{type: unix, port: {root}/socket}}\n\
             hosts: {{www.example.com: {{paths: {{/: {{file.dir: {root}}}}}}}}}\n"
        );
        let loaded = h2o_server::load("bench.conf", &Memory::new().file("bench.conf", text));
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
        let sockets = h2o_server::bind(&loaded, 1).expect("the server can bind a port");
        let server = Server::start(&loaded, sockets, |_| {}).expect("the server starts");
        Self {
            stream: UnixStream::connect(socket).expect("the server listens"),
            buffer: vec![0; 64 * 1024].into(),
            _server: server,
            _folder: folder,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream
            .write_all(bytes)
            .expect("the connection is open");
    }

    /// Reads from the connection and appends the bytes to `input`.
    fn receive(&mut self, input: &mut Vec<u8>) {
        let len = self
            .stream
            .read(&mut self.buffer)
            .expect("the server answers");
        assert!(len > 0, "the server does not close the connection");
        input.extend_from_slice(&self.buffer[..len]);
    }
}

fn http1() -> impl FnMut() {
    const REQUEST: &[u8] =
        b"GET /6.txt HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: h2load nghttp2/1.52.0\r\n\r\n";
    let mut connection = Connection::new();
    let mut input = Vec::new();
    move || {
        for _ in 0..REQUESTS {
            connection.send(REQUEST);
            input.clear();
            while !input.ends_with(BODY) {
                connection.receive(&mut input);
            }
            assert!(input.starts_with(b"HTTP/1.1 200 "));
        }
    }
}

/// Types of HTTP/2 frames (RFC 9113 §6), and their flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The connection preface, SETTINGS, and WINDOW_UPDATE that enlarges the connection's window to nearly 2^31 bytes.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x04\x08\0\0\0\0\0\x7f\xfe\0\0";
/// HPACK: the field section of a first request, which leaves its fields in the dynamic table, and of later ones (RFC 7541 §6).
const FIRST: &[u8] = b"\x82\x86\x44\x06/6.txt\x41\x0fwww.example.com\x7a\x15h2load nghttp2/1.52.0";
const LATER: &[u8] = b"\x82\x86\xc0\xbf\xbe";

fn http2() -> impl FnMut() {
    let mut connection = Connection::new();
    connection.send(OPENING);
    let mut next = 1;
    let mut output = Vec::new();
    push_request(&mut output, &mut next, FIRST);
    connection.send(&output);
    let mut input = Vec::new();
    receive_responses(&mut connection, &mut input, 1);
    move || {
        output.clear();
        for _ in 0..STREAMS {
            push_request(&mut output, &mut next, LATER);
        }
        connection.send(&output);
        receive_responses(&mut connection, &mut input, STREAMS);
    }
}

fn push_request(output: &mut Vec<u8>, next: &mut u32, block: &[u8]) {
    let len = u8::try_from(block.len()).expect("the field block is shorter than 256 bytes");
    output.extend_from_slice(&[0, 0, len, HEADERS, END_STREAM | END_HEADERS]);
    output.extend_from_slice(&next.to_be_bytes());
    output.extend_from_slice(block);
    *next += 2;
}

/// Receives frames until `missing` complete responses have come.
fn receive_responses(connection: &mut Connection, input: &mut Vec<u8>, mut missing: u32) {
    while missing > 0 {
        connection.receive(input);
        let mut rest = &input[..];
        while let Some((head, payload)) = rest.split_at_checked(9) {
            let len = usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some((payload, others)) = payload.split_at_checked(len) else {
                break;
            };
            if head[3] == DATA {
                assert_eq!((head[4], payload), (END_STREAM, BODY));
                missing -= 1;
            }
            rest = others;
        }
        let taken = input.len() - rest.len();
        input.drain(..taken);
    }
}
