//! Tests of TLS early data: requests in it are answered before the handshake is complete, unless a handler answers 425.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod identity;
mod tls_client;
mod trick;

use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2o_config::Directive;
use h2o_exchange::{Body, BodyUse, Exchange, Handler, Outcome, RequestBody, Response, Scope};
use h2o_http::{Headers, StatusCode};
use h2o_testkit::http2::{Frame, code, encode, flag};
use h2o_testkit::tls::{Client, client_config};
use tls_client::{Running, content, get, preface, with_ticket};
use trick::{Tricks, paths_of_tricks, tricks};

/// The behaviours of the test handler.
#[derive(Clone, Copy)]
enum Trick {
    /// Answers requests from TLS early data with 425, and other requests with their own body.
    Careful,
    /// Answers 425 to a request from early data like [`Trick::Careful`], but pulls the request body while it arrives.
    Pulling,
    /// Answers 425 to a request from early data like [`Trick::Careful`], and counts in [`ASKED`] how often the handler runs.
    Counted,
    /// Answers 425 to a request from early data like [`Trick::Careful`], once the test allows that by [`MAY_ANSWER`].
    CarefulLater,
    /// Answers 425 to a request from early data like [`Trick::Careful`], once the test allows that by [`SLOW_MAY_ANSWER`].
    Slow,
    /// Answers whether the request came as TLS early data.
    Tell,
    /// Never answers.
    Never,
}

/// Whether the handler of [`Trick::CarefulLater`] may answer now.
static MAY_ANSWER: AtomicBool = AtomicBool::new(false);
/// Whether the handler of [`Trick::Slow`] may answer now.
static SLOW_MAY_ANSWER: AtomicBool = AtomicBool::new(false);

/// How often the handler of [`Trick::Counted`] ran.
static ASKED: AtomicU32 = AtomicU32::new(0);

fn answer(status: StatusCode, text: impl Into<Bytes>) -> Outcome {
    let body = Body::Bytes(text.into());
    Outcome::Done(Response::new(status, Headers::new(), body))
}

fn careful(is_early: bool, body: RequestBody) -> Outcome {
    let text = match body {
        RequestBody::Bytes(content) => content,
        _ => "done".into(),
    };
    if is_early {
        answer(StatusCode::TOO_EARLY, "not now")
    } else {
        answer(StatusCode::OK, text)
    }
}

impl Handler for Trick {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let (is_early, worker) = (exchange.is_early, Rc::clone(&exchange.worker));
        match self {
            Self::Careful | Self::Pulling => careful(is_early, std::mem::take(&mut exchange.body)),
            Self::Slow => Outcome::Later(Box::pin(async move {
                while !SLOW_MAY_ANSWER.load(Ordering::SeqCst) {
                    worker.sleep(Duration::from_millis(1)).await;
                }
                careful(is_early, RequestBody::None)
            })),
            Self::Counted => {
                ASKED.fetch_add(1, Ordering::SeqCst);
                careful(is_early, std::mem::take(&mut exchange.body))
            }
            Self::CarefulLater => {
                let body = std::mem::take(&mut exchange.body);
                Outcome::Later(Box::pin(async move {
                    while !MAY_ANSWER.load(Ordering::SeqCst) {
                        worker.sleep(Duration::from_millis(1)).await;
                    }
                    careful(is_early, body)
                }))
            }
            Self::Tell => answer(StatusCode::OK, if is_early { "early" } else { "late" }),
            Self::Never => Outcome::Later(Box::pin(std::future::pending())),
        }
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        let streams = matches!(self, Self::Pulling);
        if streams {
            BodyUse::Stream
        } else {
            BodyUse::Whole
        }
    }
}

impl Tricks for Trick {
    const ALL: &[(&str, Self)] = &[
        ("careful", Self::Careful),
        ("careful-later", Self::CarefulLater),
        ("counted", Self::Counted),
        ("pulling", Self::Pulling),
        ("slow", Self::Slow),
        ("tell", Self::Tell),
        ("never", Self::Never),
    ];
}

static DIRECTIVES: [Directive<Scope>; 1] = [tricks::<Trick>()];

fn start(settings: &str) -> Running {
    let mut paths = paths_of_tricks::<Trick>();
    paths.push_str("      /status: { status: ON }\n      /: { file.dir: FOLDER }\n");
    let server = Running::start(&DIRECTIVES, settings, &paths);
    std::fs::write(server.folder.path().join("file.txt"), "from a file").unwrap();
    server
}

/// Opens a TLS connection that sends `text` as early data and nothing afterwards, so that the handshake stays incomplete.
fn early(server: &Running, alpn: &[u8], text: &[u8]) -> Client {
    let config = with_ticket(server, alpn);
    let mut client = Client::new(&config, server.connect());
    client.send_early(text);
    client
}

fn http2(server: &Running, requests: &[Vec<u8>]) -> Client {
    early(server, b"h2", &[preface(), requests.concat()].concat())
}

/// Encodes the HEADERS and DATA frames of a POST request whose length is not announced.
fn post(stream: u32, path: &str, text: &str) -> Vec<u8> {
    post_with(stream, path, text, &[])
}

/// As [`post`], with these fields in addition.
fn post_with(stream: u32, path: &str, text: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let head = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", path),
    ];
    let head = encode(&[&head, fields].concat());
    let mut bytes = Frame::request_with_content(stream, head).bytes();
    bytes.extend(Frame::data(stream, flag::END_STREAM, text).bytes());
    bytes
}

fn text(client: &Client, stream: u32) -> String {
    String::from_utf8(content(&client.received, stream).0).unwrap()
}

#[test]
fn a_file_is_sent_before_the_clients_finished_comes() {
    let server = start("");
    let mut client = http2(&server, &[get(1, "/file.txt", &[]), get(3, "/tell", &[])]);
    client.receive_until(|received| content(received, 1).1 && content(received, 3).1);
    assert!(client.tls.is_early_data_accepted());
    assert_eq!(text(&client, 1), "from a file");
    assert_eq!(text(&client, 3), "early");
    // The client completes the handshake.
    client.send(&get(5, "/tell", &[]));
    client.receive_until(|received| content(received, 5).1);
    assert_eq!(text(&client, 5), "late");

    let request = b"GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\nGET /tell HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut client = early(&server, b"http/1.1", request);
    client.receive_until(|received| received.ends_with(b"\r\n\r\nearly"));
    assert_eq!(client.received.matches("from a file"), 1);
    client.send(b"GET /tell HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    client.receive_until(|received| received.ends_with(b"\r\n\r\nlate"));
}

trait Matches {
    fn matches(&self, text: &str) -> usize;
}

impl Matches for Vec<u8> {
    fn matches(&self, text: &str) -> usize {
        String::from_utf8_lossy(self).matches(text).count()
    }
}

#[test]
fn a_client_of_http2_does_not_see_that_it_was_too_early() {
    let server = start("");
    let requests = [
        get(1, "/counted", &[]),
        post(3, "/counted", "content"),
        // The client cancels this request while it waits for the handshake: RST_STREAM (CANCEL).
        get(5, "/counted", &[]),
        Frame::rst_stream(5, code::CANCEL).bytes(),
        get(7, "/tell", &[]),
    ];
    let mut client = http2(&server, &requests);
    client.receive_until(|received| content(received, 7).1);
    assert_eq!(text(&client, 7), "early");
    assert_eq!(ASKED.load(Ordering::SeqCst), 3);
    let of = |client: &Client, stream| {
        let frames = Frame::parse_all(&client.received).into_iter();
        frames.filter(move |frame| frame.stream == stream).count()
    };
    assert_eq!([1, 3, 5].map(|stream| of(&client, stream)), [0; 3]);
    client.flush();
    client.receive_until(|received| content(received, 1).1 && content(received, 3).1);
    // Each response came exactly once, as HEADERS and DATA; a stream with a request body may also have a WINDOW_UPDATE.
    assert_eq!(text(&client, 1), "done");
    assert_eq!(text(&client, 3), "content");
    assert_eq!(of(&client, 1), 2);
    assert_eq!(ASKED.load(Ordering::SeqCst), 5);
}

#[test]
fn a_handler_that_says_so_after_the_handshake_is_asked_again() {
    let server = start("");
    let requests = [
        get(1, "/careful-later", &[]),
        post(3, "/careful-later", "content"),
        get(5, "/tell", &[]),
    ];
    let mut client = http2(&server, &requests);
    client.receive_until(|received| content(received, 5).1);
    client.send(&get(7, "/tell", &[]));
    client.receive_until(|received| content(received, 7).1);
    assert_eq!(text(&client, 7), "late");
    MAY_ANSWER.store(true, Ordering::SeqCst);
    client.receive_until(|received| content(received, 1).1 && content(received, 3).1);
    assert_eq!(
        (&*text(&client, 1), &*text(&client, 3)),
        ("done", "content")
    );
}

#[test]
fn a_short_body_of_announced_length_is_kept_for_the_second_run() {
    let server = start("");
    let requests = [
        post_with(1, "/pulling", "content", &[("content-length", "7")]),
        get(3, "/tell", &[]),
    ];
    let mut client = http2(&server, &requests);
    client.receive_until(|received| content(received, 3).1);
    assert_eq!(text(&client, 3), "early");
    client.flush();
    client.receive_until(|received| content(received, 1).1);
    assert_eq!(text(&client, 1), "content");
}

#[test]
fn who_has_to_ask_again_gets_to_see_that_it_was_too_early() {
    let server = start("");
    // A proxy that has passed early data on (`early-data: 1`) gets 425, since it has to repeat the request itself.
    let mut client = http2(&server, &[get(1, "/careful", &[("early-data", "1")])]);
    client.receive_until(|received| content(received, 1).1);
    assert_eq!(text(&client, 1), "not now");

    // A client gets 425 also if its request body is no longer available for a rerun: it has no announced length.
    let requests = [post(1, "/pulling", "content"), get(3, "/pulling", &[])];
    let mut client = http2(&server, &requests);
    client.receive_until(|received| content(received, 1).1);
    assert_eq!(text(&client, 1), "not now");
    client.flush();
    client.receive_until(|received| content(received, 3).1);
    assert_eq!(text(&client, 3), "done");

    // Over HTTP/1 the server does not run the request again after the handshake: the client gets the 425 and sends the request again.
    let request = b"GET /careful HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut client = early(&server, b"http/1.1", request);
    client.receive_until(|received| received.ends_with(b"not now"));
    assert!(client.received.starts_with(b"HTTP/1.1 425 "));
    client.send(request);
    client.receive_until(|received| received.ends_with(b"done"));
    assert_eq!(client.received.matches("HTTP/1.1 200 OK\r\n"), 1);
}

#[test]
fn a_response_in_early_data_may_be_the_last_one() {
    let server = start("");
    let request = b"GET /tell HTTP/1.0\r\n\r\n";
    let mut client = early(&server, b"http/1.1", request);
    client.receive_rest();
    assert!(client.received.ends_with(b"\r\n\r\nearly"));
    // The server has ended the connection with close_notify.
    assert_eq!(client.tls.reader().read(&mut [0]).unwrap(), 0);
    // The server must not fail if the client still completes the handshake.
    client.flush();
}

/// Returns the value of a counter in the status report.
fn count(server: &Running, name: &str) -> u64 {
    let mut client = Client::new(&client_config(b"http/1.1"), server.connect());
    client.handshake();
    client.send(b"GET /status/json?show=events,ssl HTTP/1.0\r\n\r\n");
    client.receive_rest();
    let received = String::from_utf8_lossy(&client.received).into_owned();
    let (_, rest) = received.split_once(&format!("\"{name}\": ")).unwrap();
    let digits = rest.split(|byte: char| !byte.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

#[test]
fn a_handshake_that_fails_ends_what_it_began_and_that_is_logged() {
    let server = start("access-log: FOLDER/access\n");
    let resumed = count(&server, "ssl.handshake.resume");
    let log = server.folder.path().join("access");
    for alpn in [&b"h2"[..], b"http/1.1"] {
        let mut client = if alpn == b"h2" {
            http2(&server, &[get(1, "/never", &[]), get(3, "/careful", &[])])
        } else {
            let request =
                b"GET /tell HTTP/1.1\r\nHost: x\r\n\r\nGET /never HTTP/1.1\r\nHost: x\r\n\r\n";
            early(&server, alpn, request)
        };
        // Waits for the server's first response, or for its SETTINGS.
        client.receive_until(|received| !received.is_empty());
        // Sends a record that does not decrypt, where the client's Finished message is expected.
        client.socket.write_all(&[23, 3, 3, 0, 20]).unwrap();
        client.socket.write_all(&[0; 20]).unwrap();
        let mut rest = Vec::new();
        // The result is ignored: the server may close or reset the connection after the record that does not decrypt.
        let _ = client.socket.read_to_end(&mut rest);
    }
    let lines = std::fs::read_to_string(&log).unwrap();
    assert_eq!(lines.matches("GET /never HTTP/2").count(), 1, "{lines}");
    assert_eq!(lines.matches("GET /careful HTTP/2").count(), 1, "{lines}");
    assert_eq!(lines.matches("GET /never HTTP/1.1").count(), 1, "{lines}");
    assert_eq!(count(&server, "ssl.errors"), 2);
    assert_eq!(count(&server, "ssl.handshake.resume"), resumed);
    // The server counts a successful handshake when it is complete, not before.
    let mut client = http2(&server, &[get(1, "/tell", &[])]);
    client.receive_until(|received| content(received, 1).1);
    assert_eq!(count(&server, "ssl.handshake.resume"), resumed);
    client.send(&get(3, "/tell", &[]));
    client.receive_until(|received| content(received, 3).1);
    assert_eq!(count(&server, "ssl.handshake.resume"), resumed + 1);
}

/// Sends `request` as TLS early data and never completes the handshake. Waits until the server closes the connection.
fn wait_for_the_end(settings: &str, alpn: &[u8], request: &[u8]) {
    let server = start(settings);
    let mut client = early(&server, alpn, request);
    client.receive_rest();
}

#[test]
fn a_client_that_keeps_its_finished_back_is_not_waited_for() {
    let short_handshake =
        "handshake-timeout: 1\nhttp2-idle-timeout: 60\nhttp1-request-timeout: 60\n";
    // With these settings the idle timeout of HTTP/2 is short; it also runs while the server waits for the client's Finished message.
    let short_idle = "handshake-timeout: 60\nhttp2-idle-timeout: 1\n";
    std::thread::scope(|scope| {
        for (settings, path) in [
            (short_handshake, "/tell"),
            (short_handshake, "/never"),
            (short_idle, "/never"),
            (short_idle, "/careful"),
        ] {
            let request = [preface(), get(1, path, &[])].concat();
            scope.spawn(move || wait_for_the_end(settings, b"h2", &request));
        }
        for path in ["/tell", "/never"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            scope.spawn(move || wait_for_the_end(short_handshake, b"http/1.1", request.as_bytes()));
        }
    });
}

#[test]
fn a_handshake_goes_on_while_a_response_is_made() {
    let server = start("handshake-timeout: 1\n");
    let request = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut client = early(&server, b"http/1.1", request);
    // The client reads the server's handshake messages, but sends no Finished.
    while client.tls.is_handshaking() {
        client.receive();
    }
    client.send(b"GET /tell HTTP/1.1\r\nHost: x\r\n\r\n");
    // The handler takes longer than `handshake-timeout`. The server closes the connection of a client that does not complete the
    // handshake before the handler answers.
    let mut idle = server.connect();
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    SLOW_MAY_ANSWER.store(true, Ordering::SeqCst);
    client.receive_until(|received| received.ends_with(b"\r\n\r\nlate"));
    assert_eq!(client.received.matches("HTTP/1.1 425 "), 1);
}
