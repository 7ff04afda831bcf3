//! Tests of request bodies that the server collects before a handler runs, and bodies that no handler reads, over HTTP/1 and
//! HTTP/2.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod http2_client;
mod trick;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{
    Body, BodyUse, Exchange, FileReader, Handler, Outcome, RequestBody, Response, Scope,
};
use h2o_http::{Headers, StatusCode};
use h2o_testkit::{Deadline, eventually};
use http2_client::Client;
use trick::{Tricks, paths_of_tricks, tricks};

/// The behaviours of the test handler.
#[derive(Clone, Copy)]
enum Trick {
    /// Answers with the place of the body (memory or file), its length, and the sum of its bytes.
    Sum,
    /// Answers without reading the body.
    Plain,
    /// Declines the request without reading its body.
    Pass,
    /// Answers whether the server streams the body to the handler.
    Pull,
    /// Blocks all disk threads until [`Trick::Free`] is requested.
    Block,
    Free,
    /// Keeps the body unread until the test releases the handler.
    Keep,
}

/// How often the handler of [`Trick::Keep`] ran.
static KEPT: AtomicUsize = AtomicUsize::new(0);
static GO_ON: tokio::sync::Notify = tokio::sync::Notify::const_new();

/// The state that releases the disk threads which [`Trick::Block`] blocks.
static IS_FREE: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());

/// Number of disk threads of a worker.
const DISK_THREADS: usize = 4;

fn text(text: String) -> Response {
    Response::new(StatusCode::OK, Headers::new(), Body::Bytes(text.into()))
}

fn sum(content: &[u8]) -> u64 {
    content.iter().map(|&byte| u64::from(byte)).sum()
}

impl Handler for Trick {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        match self {
            Self::Sum => match std::mem::take(&mut exchange.body) {
                RequestBody::None => Outcome::Done(text("none".to_owned())),
                RequestBody::Bytes(content) => {
                    let sum = sum(&content);
                    Outcome::Done(text(format!("memory {} {sum}", content.len())))
                }
                RequestBody::File(range) => Outcome::Later(Box::pin(async move {
                    let mut reader = FileReader::new(range);
                    let (mut len, mut total) = (0, 0);
                    let mut piece = vec![0; 65_536];
                    loop {
                        let read = std::future::poll_fn(|task| reader.poll_read(task, &mut piece));
                        match read.await.unwrap() {
                            0 => break,
                            read => {
                                len += read;
                                total += sum(&piece[..read]);
                            }
                        }
                    }
                    Outcome::Done(text(format!("file {len} {total}")))
                })),
                RequestBody::Stream(_) => {
                    panic!("the body was collected, so the handler gets no stream")
                }
            },
            Self::Pass => Outcome::Declined,
            Self::Pull => Outcome::Done(text(match &exchange.body {
                RequestBody::Stream(_) => "streams".to_owned(),
                RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => {
                    "collected".to_owned()
                }
            })),
            Self::Plain => Outcome::Done(text("plain".to_owned())),
            Self::Block => {
                *IS_FREE.0.lock().unwrap() = false;
                for _ in 0..DISK_THREADS {
                    tokio::task::spawn_blocking(|| {
                        let free = IS_FREE.0.lock().unwrap();
                        drop(IS_FREE.1.wait_while(free, |is_free| !*is_free).unwrap());
                    });
                }
                Outcome::Done(text("blocked".to_owned()))
            }
            Self::Free => {
                *IS_FREE.0.lock().unwrap() = true;
                IS_FREE.1.notify_all();
                Outcome::Done(text("free".to_owned()))
            }
            Self::Keep => {
                assert!(matches!(exchange.body, RequestBody::Bytes(_)));
                KEPT.fetch_add(1, Relaxed);
                Outcome::Later(Box::pin(async {
                    GO_ON.notified().await;
                    Outcome::Done(text("kept".to_owned()))
                }))
            }
        }
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        match self {
            Self::Sum | Self::Keep => BodyUse::Whole,
            Self::Pull => BodyUse::Stream,
            Self::Plain | Self::Pass | Self::Block | Self::Free => BodyUse::None,
        }
    }
}

impl Tricks for Trick {
    const ALL: &[(&str, Self)] = &[
        ("sum", Self::Sum),
        ("plain", Self::Plain),
        ("pass", Self::Pass),
        ("pull", Self::Pull),
        ("block", Self::Block),
        ("free", Self::Free),
        ("keep", Self::Keep),
    ];
}

static DIRECTIVES: [Directive<Scope>; 1] = [tricks::<Trick>()];

/// Starts a server with one worker and a path for each test behaviour, that has the behaviour's name. A field of the responses
/// shows whether the path's filters were applied.
fn start(settings: &str) -> Embedded {
    let paths = paths_of_tricks::<Trick>();
    Embedded::start(&DIRECTIVES, |port| {
        format!(
            "num-threads: 1\n{settings}\nlisten: {{ host: 127.0.0.1, port: {port} }}\nheader.add: 'link: <passed>'\nhosts:\n  default:\n    paths:\n      /two: [ test.trick: pass, test.trick: pull ]\n      /three: [ test.trick: pass, test.trick: sum, test.trick: pull ]\n{paths}"
        )
    })
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).unwrap();
    stream
}

/// Reads the next HTTP/1 response. Returns its status, whether the path's filters were applied, and its body.
fn response(stream: &mut TcpStream) -> (u16, bool, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head[9..12].parse().unwrap();
    let length = head.split("content-length: ").nth(1);
    let length = length.map_or(0, |rest| rest.split('\r').next().unwrap().parse().unwrap());
    let mut content = vec![0; length];
    stream.read_exact(&mut content).unwrap();
    let content = String::from_utf8(content).unwrap();
    (status, head.contains("link: <passed>"), content)
}

fn get(server: &Embedded, path: &str) -> String {
    let mut stream = connect(server.port);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    response(&mut stream).2
}

/// Sends a body over HTTP/2 as fast as the server enlarges the window. Returns the frames that came meanwhile.
fn send_all(client: &mut Client, stream: u32, content: &[u8]) -> Vec<String> {
    send(client, stream, content, true)
}

/// Like [`send_all`]; `is_end` says whether the body ends with these bytes.
fn send(client: &mut Client, stream: u32, content: &[u8], is_end: bool) -> Vec<String> {
    let mut seen = Vec::new();
    let mut left = content;
    while !left.is_empty() && !seen.iter().any(|frame: &String| frame.contains(" bytes.")) {
        let window = client.window(stream).min(client.window(0));
        let len = left.len().min(usize::try_from(window).unwrap());
        let (now, later) = left.split_at(len);
        left = later;
        if !now.is_empty() {
            client.send(stream, now, is_end && left.is_empty());
        }
        seen.extend(client.settle());
    }
    seen
}

/// The two ways to send a body: whether the client announces its length.
const WAYS: [bool; 2] = [true, false];

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect()
}

fn upload_over_http1(port: u16, path: &str, is_announced: bool, content: &[u8]) -> TcpStream {
    let mut stream = connect(port);
    let framing = if is_announced {
        format!("Content-Length: {}", content.len())
    } else {
        "Transfer-Encoding: chunked".to_owned()
    };
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"
    )
    .unwrap();
    if is_announced {
        // An error is ignored: the server may refuse the body and close the connection while the client sends it.
        let _ = stream.write_all(content);
    } else {
        for piece in content.chunks(100_000) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            if stream.write_all(&chunk).is_err() {
                break;
            }
        }
        let _ = stream.write_all(b"0\r\n\r\n");
    }
    stream
}

fn upload_over_http2(
    server: &Embedded,
    path: &str,
    is_announced: bool,
    content: &[u8],
) -> (Client, u32, Vec<String>) {
    let mut client = Client::connect(server.port);
    let length = content.len().to_string();
    let field = [("content-length", length.as_str())];
    let fields = if is_announced { &field[..] } else { &[] };
    let stream = client.post_with(path, fields);
    let seen = send_all(&mut client, stream, content);
    (client, stream, seen)
}

/// Reads the HTTP/2 response on a stream up to its end; `seen` holds the frames that have come before.
fn answer(client: &mut Client, stream: u32, mut seen: Vec<String>) -> (String, String) {
    let is_end = |frame: &String| frame.starts_with(&format!("{stream} ")) && frame.ends_with('.');
    while !seen.iter().any(is_end) {
        seen.extend(client.next());
    }
    let head = seen
        .iter()
        .find(|frame| frame.starts_with(&format!("{stream} ")));
    let content = String::from_utf8(client.content(stream).to_vec()).unwrap();
    (head.cloned().unwrap_or_default(), content)
}

#[test]
fn large_content_is_in_a_file_and_small_content_in_memory_and_neither_is_changed() {
    let server = start("temp-buffer-threshold: 1048576");
    for (len, place) in [
        (1, "memory"),
        (300_000, "memory"),
        (1_048_575, "memory"),
        (1_048_576, "file"),
        (5_000_000, "file"),
    ] {
        let content = content(len);
        let want = format!("{place} {len} {}", sum(&content));
        for is_announced in WAYS {
            let mut stream = upload_over_http1(server.port, "/sum", is_announced, &content);
            assert_eq!(response(&mut stream), (200, true, want.clone()));
            // The server keeps the connection open for another request after the upload.
            write!(stream, "GET /plain HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert_eq!(response(&mut stream).2, "plain");
            let (mut client, stream, seen) =
                upload_over_http2(&server, "/sum", is_announced, &content);
            assert_eq!(answer(&mut client, stream, seen).1, want);
        }
    }
}

#[test]
fn all_bodies_of_a_connection_together_take_no_more_memory_than_one_may() {
    let server = start("temp-buffer-threshold: 1048576");
    let mut client = Client::connect(server.port);
    let bodies = [(600_000, "memory"), (600_000, "file"), (30_000, "memory")]
        .map(|(len, place)| (client.post_with("/sum", &[]), content(len), place));
    for (stream, content, _) in &bodies {
        // The last byte is held back until all bodies have come.
        send(&mut client, *stream, &content[..content.len() - 1], false);
    }
    // The second body ends first, so that no piece of it waits for the disk any more when the first one ends.
    let [first, second, third] = bodies;
    for (stream, content, place) in [second, third, first] {
        client.send(stream, &content[content.len() - 1..], true);
        let want = format!("{place} {} {}", content.len(), sum(&content));
        assert_eq!(answer(&mut client, stream, Vec::new()).1, want);
    }
}

#[test]
fn content_is_not_collected_for_a_handler_that_pulls_it_behind_one_that_has_no_use_for_it() {
    let server = start("");
    for (path, want) in [
        ("/pull", "streams"),
        ("/two", "streams"),
        ("/three", "memory 5 335"),
    ] {
        for is_announced in WAYS {
            let mut stream = upload_over_http1(server.port, path, is_announced, b"ABCDE");
            assert_eq!(response(&mut stream).2, want, "{path}");
            let (mut client, stream, seen) =
                upload_over_http2(&server, path, is_announced, b"ABCDE");
            assert_eq!(answer(&mut client, stream, seen).1, want, "{path}");
        }
    }
}

#[test]
fn content_for_which_there_is_no_room_is_refused_past_the_same_filters() {
    for (setting, status, text) in [
        (
            "temp-buffer-max-size: 2000000",
            413,
            "request entity is too large",
        ),
        (
            "temp-buffer-threshold: OFF\ntemp-buffer-max-size: 2000000",
            413,
            "request entity is too large",
        ),
        (
            "temp-buffer-max-total: 2000000",
            503,
            "please try again later",
        ),
        ("temp-buffer-path: /proc", 502, "Bad Gateway"),
    ] {
        let server = start(&format!("temp-buffer-threshold: 1048576\n{setting}"));
        let content = content(3_000_000);
        for is_announced in WAYS {
            let mut stream = upload_over_http1(server.port, "/sum", is_announced, &content);
            let want = (status, true, text.to_owned());
            assert_eq!(response(&mut stream), want, "{setting}");
            let (mut client, stream, seen) =
                upload_over_http2(&server, "/sum", is_announced, &content);
            let (head, content) = answer(&mut client, stream, seen);
            assert_eq!(
                head,
                format!("{stream} {status} link=<passed>"),
                "{setting}"
            );
            assert_eq!(content, text);
        }
        // A refused request frees its space in the temporary files once the disk thread has finished its write.
        let patience = Deadline::after_secs(20);
        let is_there = loop {
            let mut stream = upload_over_http1(server.port, "/sum", true, &content[..1_500_000]);
            let is_there = response(&mut stream).0 == 200;
            if is_there || status != 503 || patience.has_passed() {
                break is_there;
            }
        };
        assert_eq!(is_there, status != 502, "{setting}");
    }
}

#[test]
fn a_disk_that_does_not_answer_does_not_stop_other_requests() {
    let server = start("temp-buffer-threshold: 1048576");
    let content = content(3_000_000);
    assert_eq!(get(&server, "/block"), "blocked");
    let port = server.port;
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            let mut stream = upload_over_http1(port, "/sum", true, &content);
            response(&mut stream)
        });
        let mut client = Client::connect(server.port);
        let stream = client.post("/sum");
        let (first, rest) = content.split_at(usize::try_from(http2_client::WINDOW).unwrap());
        client.send(stream, first, false);
        let mut seen = Vec::new();
        // The client sends as much of the body as the server's memory takes.
        let mut left = rest;
        loop {
            seen.extend(client.settle());
            let window = client.window(stream).min(client.window(0));
            let len = left.len().min(usize::try_from(window).unwrap());
            if len == 0 {
                break;
            }
            let (now, later) = left.split_at(len);
            left = later;
            client.send(stream, now, left.is_empty());
        }
        assert_eq!(
            seen, [""; 0],
            "the content is not complete, as the disk has not taken it"
        );
        let other = client.ask("/plain", &[]);
        client.until(&format!("{other} 5 bytes."));
        for _ in 0..10 {
            assert_eq!(get(&server, "/plain"), "plain");
        }
        assert_eq!(get(&server, "/free"), "free");
        let want = format!("file {} {}", content.len(), sum(&content));
        assert_eq!(one.join().unwrap(), (200, true, want.clone()));
        let mut seen = send_all(&mut client, stream, left);
        seen.retain(|frame| frame.starts_with(&format!("{stream} ")));
        assert_eq!(answer(&mut client, stream, seen).1, want);
    });
}

#[test]
fn content_that_no_handler_takes_is_refused_before_it_is_sent() {
    let server = start("");
    for path in ["/plain", "/none"] {
        let want = if path == "/none" { 404 } else { 200 };
        for field in [("x-any", "1"), ("expect", "100-continue")] {
            // The client sends only the head of the request.
            let mut stream = connect(server.port);
            let (name, value) = field;
            write!(
                stream,
                "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n{name}: {value}\r\n\r\n"
            )
            .unwrap();
            assert_eq!(response(&mut stream).0, want, "{path} {name}");
            let mut client = Client::connect(server.port);
            let fields = [("content-length", "60000000"), field];
            let stream = client.post_with(path, &fields);
            let (head, _) = answer(&mut client, stream, Vec::new());
            assert_eq!(
                head,
                format!("{stream} {want} link=<passed>"),
                "{path} {name}"
            );
        }
        // A client that expects 100 Continue does not get one for a body that no handler reads, however small.
        let mut stream = connect(server.port);
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        .unwrap();
        assert_eq!(response(&mut stream).0, want, "{path}");
        // A body whose length the client does not announce counts as small until much of it has arrived.
        let content = content(100_000);
        let mut stream = upload_over_http1(server.port, path, false, &content);
        assert_eq!(response(&mut stream).0, want, "{path}");
        let (mut client, stream, seen) = upload_over_http2(&server, path, false, &content);
        let (head, _) = answer(&mut client, stream, seen);
        assert_eq!(head, format!("{stream} {want} link=<passed>"), "{path}");
    }
}

#[test]
fn a_little_content_that_no_handler_takes_does_not_end_the_connection() {
    let server = start("");
    let mut stream = connect(server.port);
    for _ in 0..3 {
        write!(
            stream,
            "POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"
        )
        .unwrap();
        stream.write_all(&content(60_000)).unwrap();
        assert_eq!(response(&mut stream).2, "plain");
        stream
            .write_all(b"POST /none HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwords\r\n0\r\n\r\n")
            .unwrap();
        assert_eq!(response(&mut stream).0, 404);
    }
}

/// A client that sends its whole body before it reads must not lose the response to a reset.
#[test]
fn a_client_that_sends_content_that_nobody_takes_gets_its_answer() {
    let server = start("");
    let content = content(20_000_000);
    for is_announced in WAYS {
        let mut stream = upload_over_http1(server.port, "/plain", is_announced, &content);
        assert_eq!(response(&mut stream).2, "plain");
        // The client reads nothing until it has sent the whole body.
        let mut client = Client::connect(server.port);
        let stream = client.post("/plain");
        let mut left = &content[..5_000_000];
        while !left.is_empty() {
            let window = client.window(stream).min(client.window(0));
            let (now, later) = left.split_at(left.len().min(usize::try_from(window).unwrap()));
            left = later;
            client.send(stream, now, false);
            client.settle();
        }
        client.send(stream, b"", true);
        client.settle();
        assert_eq!(client.content(stream), b"plain");
    }
}

#[test]
fn a_body_that_takes_most_of_max_memory_is_moved_to_a_file() {
    // The eighth of the limit that is left when the body is moved is more than the kernel holds of it, which one turn may receive.
    let server = start("max-memory: 60800000");
    let content = content(60_000_000);
    for is_announced in WAYS {
        let mut stream = upload_over_http1(server.port, "/sum", is_announced, &content);
        let want = format!("file {} {}", content.len(), sum(&content));
        assert_eq!(response(&mut stream).2, want);
    }
}

#[test]
fn content_that_waits_for_its_handler_is_not_left_out_of_max_memory() {
    let server = start("max-memory: 8000000\ntemp-buffer-threshold: OFF");
    let content = content(7_200_000);
    let status = || {
        let mut stream = connect(server.port);
        write!(stream, "GET /plain HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        response(&mut stream).0
    };
    let go_on = || {
        eventually("the handler to be called", || {
            (KEPT.load(Relaxed) != 0).then_some(())
        });
        let now = status();
        KEPT.store(0, Relaxed);
        GO_ON.notify_waiters();
        assert_eq!(now, 503);
    };
    let mut stream = upload_over_http1(server.port, "/keep", true, &content);
    go_on();
    assert_eq!(response(&mut stream).2, "kept");
    assert_eq!(status(), 200);
    let (mut client, stream, seen) = upload_over_http2(&server, "/keep", true, &content);
    go_on();
    assert_eq!(answer(&mut client, stream, seen).1, "kept");
    assert_eq!(status(), 200);
}
