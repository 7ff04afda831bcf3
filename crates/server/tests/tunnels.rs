//! Tests of tunnels over HTTP/1 and HTTP/2: bytes in both directions, how tunnels end, and how a slow side affects the other.
//!
//! The first label of the host in a CONNECT, or the first segment of an upgrade's path, selects the test handler.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod echo;
mod embedded;
mod http2_client;
mod trick;

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use echo::Echo;
use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{
    Body, BodyError, BodyPipe, BodySource, BodyUse, Exchange, Handler, Outcome, RequestBody,
    Response, Scope,
};
use h2o_http::{Headers, Method, StatusCode};
use h2o_testkit::{eventually, patient};
use http2_client::{Client, WINDOW};
use trick::handlers;

struct Tunnels;

/// Number of bytes that [`Flood`] has returned.
static FLOODED: AtomicUsize = AtomicUsize::new(0);
/// The bytes that the handler `hello` received from the client after the handler had ended its own direction.
static TOLD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

impl Handler for Tunnels {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let request = &exchange.request;
        let path = String::from_utf8_lossy(request.path()).into_owned();
        let what = path[1..].split([':', '/', '.']).next().unwrap().to_owned();
        let is_upgrade = !request.upgrade().is_empty();
        let RequestBody::Stream(pipe) = std::mem::take(&mut exchange.body) else {
            return Outcome::Done(text(StatusCode::OK, "the request asks for no tunnel"));
        };
        assert!(is_upgrade || exchange.request.method == Method::Connect);
        let status = if is_upgrade {
            StatusCode::SWITCHING_PROTOCOLS
        } else {
            StatusCode::OK
        };
        let open = move |source: Box<dyn BodySource>| {
            Outcome::Done(Response::new(status, Headers::new(), Body::Stream(source)))
        };
        let worker = Rc::clone(&exchange.worker);
        match &*what {
            "echo" => open(Box::new(Echo::new(pipe))),
            "later" => Outcome::Later(Box::pin(async move {
                worker.sleep(Duration::from_millis(50)).await;
                open(Box::new(Echo::new(pipe)))
            })),
            "refuse" => Outcome::Done(text(StatusCode::FORBIDDEN, "not you")),
            "ordinary" => Outcome::Done(text(StatusCode::NOT_FOUND, "nothing here")),
            // This handler sends a text, ends its direction, and reads the bytes that come later.
            "hello" => {
                tokio::task::spawn_local(async move {
                    while let Some(Ok(piece)) = poll_fn(|task| pipe.poll_next(task)).await {
                        TOLD.lock().unwrap().extend_from_slice(&piece);
                        if piece.ends_with(b"!") {
                            pipe.abandon();
                        }
                    }
                    TOLD.lock().unwrap().extend_from_slice(b"<end>");
                });
                open(Box::new(Once(Some("hello".into()))))
            }
            "bye" => open(Box::new(Once(Some("bye".into())))),
            "silent" => {
                let limited = Rc::clone(&pipe);
                tokio::task::spawn_local(async move {
                    worker.sleep(Duration::from_secs(5)).await;
                    limited.give_up("nothing will ever happen");
                });
                open(Box::new(Silent(pipe)))
            }
            "flood" => open(Box::new(Flood(pipe))),
            // This handler aborts the tunnel when the client sends something.
            "quitter" => {
                let told = Rc::clone(&pipe);
                tokio::task::spawn_local(async move {
                    let _ = poll_fn(|task| told.poll_next(task)).await;
                    told.give_up("I/O timeout");
                });
                open(Box::new(Flood(pipe)))
            }
            other => panic!("the test has no behaviour {other}"),
        }
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Stream
    }
}

/// A handler that lets every request through, and gets the bodies of requests as a whole, as scripts do.
struct Doorkeeper;

impl Handler for Doorkeeper {
    fn on_request(&self, _: &mut Exchange) -> Outcome {
        Outcome::Declined
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Whole
    }
}

fn text(status: StatusCode, text: &'static str) -> Response {
    Response::new(status, Headers::new(), Body::Bytes(text.into()))
}

struct Once(Option<Bytes>);

impl BodySource for Once {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn retained(&self) -> usize {
        0
    }
}

/// The source of a tunnel's response that never sends and never reads.
struct Silent(
    #[expect(dead_code, reason = "the pipe must stay open while the response lasts")] Rc<BodyPipe>,
);

impl BodySource for Silent {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Pending
    }

    fn retained(&self) -> usize {
        0
    }
}

/// The source of a tunnel's response that sends as much as possible and never reads.
struct Flood(
    #[expect(dead_code, reason = "the pipe must stay open while the response lasts")] Rc<BodyPipe>,
);

impl BodySource for Flood {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        FLOODED.fetch_add(max, SeqCst);
        Poll::Ready(Some(Ok(vec![b'f'; max].into())))
    }

    fn retained(&self) -> usize {
        0
    }
}

const DIRECTIVES: &[Directive<Scope>] = &[handlers("test.tunnels", |scope, command| {
    if command.node.as_str() == Some("GUARDED") {
        scope.handlers.push(Box::new(Doorkeeper));
    }
    scope.handlers.push(Box::new(Tunnels));
    Ok(())
})];

/// Starts the server; its `header.add` marks the responses that have passed the filters.
fn start(settings: &str) -> Embedded {
    start_with("ON", settings)
}

/// Like [`start`]; if `value` is `GUARDED`, requests go through a [`Doorkeeper`] first.
fn start_with(value: &str, settings: &str) -> Embedded {
    Embedded::start(DIRECTIVES, |port| {
        format!(
            "num-threads: 1\n{settings}\nheader.add: 'x-filtered: yes'\nlisten: {{ host: 127.0.0.1, port: {port} }}\nhosts:\n  default:\n    paths:\n      /: {{ test.tunnels: {value} }}\n"
        )
    })
}

fn connect(server: &Embedded) -> TcpStream {
    patient(TcpStream::connect(("127.0.0.1", server.port)).unwrap())
}

fn connect_request(what: &str) -> String {
    format!("CONNECT {what}.test:1 HTTP/1.1\r\nHost: {what}.test:1\r\n\r\n")
}

fn upgrade_request(what: &str) -> String {
    format!(
        "GET /{what}/x HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: foo/2\r\n\r\n"
    )
}

/// Reads the head of the response, and returns it in lower case.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

fn read(stream: &mut TcpStream, want: &str) {
    let mut got = vec![0; want.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), want);
}

fn read_to_end(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    String::from_utf8(rest).unwrap()
}

/// A way to open a tunnel over HTTP/1: a function that makes the request, and the beginning of the response.
type Way = (fn(&str) -> String, &'static str);

/// The two ways to open a tunnel over HTTP/1: CONNECT and upgrade.
const WAYS: [Way; 2] = [
    (connect_request, "http/1.1 200 ok\r\nconnection: close\r\n"),
    (
        upgrade_request,
        "http/1.1 101 switching protocols\r\nconnection: upgrade\r\n",
    ),
];

#[test]
fn http_1_tunnels_carry_what_comes_from_the_first_byte_to_the_last() {
    for (value, (request, answer)) in ["ON", "GUARDED"]
        .into_iter()
        .flat_map(|value| WAYS.map(|way| (value, way)))
    {
        let server = start_with(value, "");
        for what in ["echo", "later"] {
            let mut stream = connect(&server);
            // The client sends data without waiting for the response.
            let request = request(what) + "early\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let head = read_head(&mut stream);
            assert!(head.starts_with(answer), "{head}");
            for field in ["x-filtered", "content-length", "transfer-encoding"] {
                assert!(!head.contains(field), "{head}");
            }
            let token = head.contains("\r\nupgrade: foo/2\r\n");
            assert_eq!(token, answer.contains("101"), "{head}");
            read(&mut stream, "early\r\n\r\n");
            for word in ["\0\x01", "GET / HTTP/1.1\r\n\r\n"] {
                stream.write_all(word.as_bytes()).unwrap();
                read(&mut stream, word);
            }
            // The client ends its direction: the handler sees the end, and echoes what arrived before.
            stream.write_all(b"bye").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_to_end(&mut stream), "bye");
        }
    }
}

#[test]
fn http_1_a_client_that_ends_before_the_answer_gets_it() {
    let server = start("");
    for (request, answer) in WAYS {
        let mut stream = connect(&server);
        let request = request("later") + "all";
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(read_head(&mut stream).starts_with(answer));
        assert_eq!(read_to_end(&mut stream), "all");
    }
}

#[test]
fn http_1_the_end_of_the_response_is_that_of_the_connection() {
    let server = start("");
    let mut stream = connect(&server);
    stream.write_all(connect_request("bye").as_bytes()).unwrap();
    assert!(read_head(&mut stream).starts_with("http/1.1 200"));
    assert_eq!(read_to_end(&mut stream), "bye");
}

#[test]
fn http_1_what_opens_no_tunnel_is_the_last_response() {
    let server = start("");
    let (connect_request, upgrade_request) = (connect_request, upgrade_request);
    for (request, status, text) in [
        (connect_request("refuse"), "403 forbidden", "not you"),
        (upgrade_request("refuse"), "403 forbidden", "not you"),
        (upgrade_request("ordinary"), "404 not found", "nothing here"),
    ] {
        let mut stream = connect(&server);
        // Bytes that the client sends before the response belong to the protocol that it has asked for: the server does not read
        // them as the next request, even if they look like one.
        let request = request + "GET /ordinary HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
        assert!(head.contains("\r\nx-filtered: yes\r\n"), "{head}");
        assert_eq!(read_to_end(&mut stream), text);
    }
    // A request that asks for no tunnel gets its response, and the connection stays open.
    let mut stream = connect(&server);
    let request = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    for _ in 0..2 {
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.contains("\r\nconnection: keep-alive\r\n"), "{head}");
        read(&mut stream, "the request asks for no tunnel");
    }
}

#[test]
fn no_time_limit_of_http_concerns_tunnels() {
    let server =
        start("http1-request-io-timeout: 1\nhttp1-request-timeout: 1\nhttp2-idle-timeout: 1");
    let mut streams: Vec<_> = WAYS
        .iter()
        .map(|(request, _)| {
            let mut stream = connect(&server);
            stream.write_all(request("echo").as_bytes()).unwrap();
            read_head(&mut stream);
            stream
        })
        .collect();
    let mut client = Client::connect(server.port);
    let silent = client.connect_to("/echo", "websocket");
    client.until(&format!("{silent} 200"));
    // The client of this tunnel does not enlarge its flow-control window, so the tunnel's response has to wait.
    let mut shut = Client::connect(server.port);
    let flood = shut.connect_to("/flood", "websocket");
    shut.until_content(flood, 65_535);
    // The open tunnels must outlive two timeouts: in each round the server closes two other connections by its timeout.
    for _ in 0..2 {
        let mut idle = Client::connect(server.port);
        let mut slow = connect(&server);
        slow.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
        read_to_end(&mut slow);
        idle.until_closed();
    }
    for stream in &mut streams {
        stream.write_all(b"still there?").unwrap();
        read(stream, "still there?");
    }
    client.send(silent, b"and you?", false);
    client.until(&format!("{silent} 8 bytes"));
    shut.allow(flood, 1000);
    shut.until_content(flood, 66_535);
}

/// Writes to `stream` until the server takes no more bytes.
fn fill(server: &Embedded, stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let mut taken = 0;
    until_nothing_moves(server, || {
        loop {
            match stream.write(&[b'x'; 16_384]) {
                Ok(len) => taken += len,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return taken;
                }
            }
            assert!(
                taken < 64 << 20,
                "the server reads from the client without limit"
            );
        }
    });
    stream.set_nonblocking(false).unwrap();
}

/// Waits until a turn of the worker's event loop moves no more bytes.
fn until_nothing_moves(server: &Embedded, mut moved: impl FnMut() -> usize) {
    let mut before = moved();
    loop {
        server.turn();
        let now = moved();
        if now == before {
            return;
        }
        before = now;
    }
}

fn until_flood_stops(server: &Embedded) {
    until_nothing_moves(server, || {
        let flooded = FLOODED.load(SeqCst);
        assert!(
            flooded < 256 << 20,
            "the server reads from the handler without limit"
        );
        flooded
    });
}

#[test]
fn http_1_a_slow_side_holds_the_other_one_up() {
    let server = start("error-log.emit-request-errors: OFF");
    for (request, _) in WAYS {
        let mut stream = connect(&server);
        stream.write_all(request("silent").as_bytes()).unwrap();
        read_head(&mut stream);
        // The client sends until the server takes no more: the server's pipe to the handler and the kernel's buffers are full.
        fill(&server, &mut stream);

        let mut stream = connect(&server);
        stream.write_all(request("flood").as_bytes()).unwrap();
        read_head(&mut stream);
        until_flood_stops(&server);
        // While the direction to the client is blocked, the client sends one more byte.
        stream.write_all(b"x").unwrap();
    }
}

#[test]
fn http_1_a_tunnel_that_is_given_up_is_cut_off_although_the_client_does_not_read() {
    let server = start("error-log.emit-request-errors: OFF");
    for (request, _) in WAYS {
        let mut stream = connect(&server);
        stream.write_all(request("quitter").as_bytes()).unwrap();
        read_head(&mut stream);
        // The client does not read: the buffers of the kernel between server and client are full.
        until_flood_stops(&server);
        stream.write_all(b"quit").unwrap();
        let mut buffer = vec![0; 1 << 20];
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break ErrorKind::UnexpectedEof,
                Ok(_) => {}
                Err(error) => break error.kind(),
            }
        };
        assert!(
            matches!(end, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
            "{end}"
        );
    }
}

#[test]
fn tunnels_outlive_the_graceful_end_of_the_server() {
    let mut server = start("");
    let mut stream = connect(&server);
    stream
        .write_all(connect_request("echo").as_bytes())
        .unwrap();
    read_head(&mut stream);
    let mut client = Client::connect(server.port);
    let id = client.connect_to("/echo", "websocket");
    client.until(&format!("{id} 200"));
    server.shut_down();
    assert_eq!(client.until("goaway 0"), ["goaway 0"]);
    // This is the second GOAWAY, which follows the announcement of the graceful shutdown.
    assert_eq!(client.until("goaway 0"), ["goaway 0"]);
    stream.write_all(b"still there?").unwrap();
    read(&mut stream, "still there?");
    client.send(id, b"and you?", false);
    client.until(&format!("{id} 8 bytes"));
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut stream), "");
    client.send(id, b"", true);
    let seen = client.until_closed();
    assert_eq!(seen, [format!("{id} 0 bytes.")]);
    server.stop();
}

#[test]
fn http_2_has_plain_and_extended_connect() {
    for value in ["ON", "GUARDED"] {
        let server = start_with(value, "");
        let mut client = Client::connect(server.port);
        let plain = client.connect_plain("later.test:1");
        let extended = client.connect_to("/later/x", "foo");
        for id in [plain, extended] {
            // The client sends into the tunnel before the response has come. The response is 200 in HTTP/2 where HTTP/1 has 101.
            client.send(id, b"early", false);
        }
        for id in [plain, extended] {
            client.until_content(id, 5);
            client.send(id, b" bird", true);
            client.until_content(id, 10);
            assert_eq!(client.content(id), b"early bird");
        }
        let seen = client.settle().join("; ");
        for id in [plain, extended] {
            assert!(!seen.contains(&format!("{id} reset")), "{seen}");
            assert!(seen.contains(&format!("{id} 0 bytes.")), "{seen}");
        }
    }
}

#[test]
fn http_2_the_client_may_go_on_when_our_side_has_ended() {
    let server = start("");
    let mut client = Client::connect(server.port);
    let id = client.connect_plain("hello.test:1");
    client.until(&format!("{id} 0 bytes."));
    client.send(id, b"one ", false);
    client.send(id, b"two", true);
    let told = |text: &[u8]| {
        let told = std::mem::take(&mut *TOLD.lock().unwrap());
        assert_eq!(
            told.escape_ascii().to_string(),
            text.escape_ascii().to_string()
        );
    };
    // The server does not reset the stream, since the handler still reads what the client sends.
    assert!(client.settle().is_empty());
    until_told_the_end();
    told(b"one two<end>");
    // When the handler of a tunnel stops reading after the end of its own direction, the server resets the stream.
    let id = client.connect_plain("hello.test:1");
    client.until(&format!("{id} 0 bytes."));
    client.send(id, b"that is all!", false);
    assert_eq!(client.until(&format!("{id} reset 0")).len(), 1);
    until_told_the_end();
    told(b"that is all!<end>");
}

fn until_told_the_end() {
    eventually("the end of the tunnel at the handler", || {
        TOLD.lock().unwrap().ends_with(b"<end>").then_some(())
    });
}

#[test]
fn http_2_a_client_has_time_to_end_a_tunnel_whose_handler_has_gone() {
    let server = start("");
    let mut client = Client::connect(server.port);
    let ended = client.connect_plain("bye.test:1");
    client.until(&format!("{ended} 0 bytes."));
    client.send(ended, b"what is on its way", false);
    client.send(ended, b"", true);
    let left_open = client.connect_plain("bye.test:1");
    client.until(&format!("{left_open} 0 bytes."));
    client.send(left_open, b"what is on its way", false);
    assert!(client.settle().is_empty(), "a stream was reset");
    // The server's grace period for the client's END_STREAM ends, so the server resets the stream.
    let reset = format!("{left_open} reset 0");
    assert_eq!(client.until(&reset), [reset]);
}

#[test]
fn http_2_a_tunnel_that_is_refused_is_not_wanted_any_more() {
    let server = start("");
    let mut client = Client::connect(server.port);
    let plain = client.connect_plain("refuse.test:1");
    let seen = client.until(&format!("{plain} reset 0"));
    let want = [" 403", " 7 bytes.", " reset 0"];
    assert_eq!(seen, want.map(|text| format!("{plain}{text}")));
    let extended = client.connect_to("/ordinary", "foo");
    client.send(extended, &[b'x'; 1000], false);
    let seen = client.until(&format!("{extended} reset 0"));
    let want = [" 404", " 12 bytes.", " reset 0"];
    assert_eq!(seen, want.map(|text| format!("{extended}{text}")));
    // The connection goes on: it serves another request.
    let id = client.ask("/x", &[]);
    client.until(&format!("{id} 30 bytes."));
}

#[test]
fn http_2_tunnels_have_bounded_windows() {
    let server = start("");
    let mut client = Client::connect(server.port);
    let ids: Vec<_> = (0..18)
        .map(|_| {
            let id = client.connect_plain("silent.test:1");
            client.until(&format!("{id} 200"));
            id
        })
        .collect();
    client.settle();
    let windows = |client: &Client| ids.iter().map(|id| client.window(*id)).collect::<Vec<_>>();
    let (wide, narrow) = (1 << 20, WINDOW);
    let mut want = vec![wide; 16];
    want.extend([narrow; 2]);
    assert_eq!(windows(&client), want);
    // The server does not enlarge the window for bytes that the handler has not read.
    client.send(ids[17], &[b'x'; 65_535], false);
    client.settle();
    assert_eq!(client.window(ids[17]), 0);
    // Tunnels that have ended have freed their places among those with a wide window.
    for id in &ids[3..6] {
        client.reset(*id);
    }
    let id = client.connect_plain("silent.test:1");
    client.until(&format!("{id} 200"));
    client.settle();
    assert_eq!(client.window(id), wide);
}

#[test]
fn http_2_a_tunnel_that_is_given_up_is_reset_although_the_client_does_not_read() {
    let server = start("error-log.emit-request-errors: OFF");
    let mut client = Client::connect(server.port);
    let id = client.connect_plain("quitter.test:1");
    client.until_content(id, 65_535);
    client.send(id, b"quit", false);
    // The server resets the stream with CONNECT_ERROR (10, RFC 9113 §8.5).
    let reset = format!("{id} reset 10");
    assert_eq!(client.until(&reset).last(), Some(&reset));
    // Other streams of the connection go on.
    let id = client.connect_to("/echo", "foo");
    client.until(&format!("{id} 200"));
}
