//! Tests of handlers that answer later, stream in either direction, fail or panic, in a running server over HTTP/1.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod trick;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{
    Body, BodyError, BodySource, BodyUse, Exchange, Handler, LinkHeaderUse, Outcome, RequestBody,
    Response, Scope, Timer,
};
use h2o_http::{Headers, Known, StatusCode};
use trick::{Tricks, paths_of_tricks, tricks};

/// The behaviours of the test handler.
#[derive(Clone, Copy)]
enum Trick {
    Decline,
    Later,
    LaterDecline,
    Panic,
    LaterPanic,
    Stream,
    StreamFails,
    StreamPanics,
    Collected,
    Echo,
    Slow,
    LinkHeaderUse,
    Interim,
    Last,
}

impl Handler for Trick {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let worker = Rc::clone(&exchange.worker);
        let ok = |body: Body| Response::new(StatusCode::OK, Headers::new(), body);
        match self {
            Self::Decline => Outcome::Declined,
            Self::Later => Outcome::Later(Box::pin(async move {
                worker.sleep(Duration::from_millis(20)).await;
                Outcome::Done(ok(Body::Bytes("later".into())))
            })),
            Self::LaterDecline => Outcome::Later(Box::pin(async {
                tokio::task::yield_now().await;
                Outcome::Declined
            })),
            Self::Panic => panic!("this panic is part of the test"),
            Self::LaterPanic => Outcome::Later(Box::pin(async {
                tokio::task::yield_now().await;
                panic!("this later panic is part of the test")
            })),
            Self::Stream => Outcome::Done(ok(Body::Stream(Box::new(Pieces {
                left: 5,
                last: Last::End,
                rest: false,
            })))),
            Self::StreamFails => Outcome::Done(ok(Body::Stream(Box::new(Pieces {
                left: 2,
                last: Last::Fail,
                rest: false,
            })))),
            Self::StreamPanics => Outcome::Done(ok(Body::Stream(Box::new(Pieces {
                left: 2,
                last: Last::Panic,
                rest: false,
            })))),
            Self::Collected => match std::mem::take(&mut exchange.body) {
                RequestBody::Bytes(bytes) => Outcome::Done(ok(Body::Bytes(bytes))),
                RequestBody::File(range) => Outcome::Done(ok(Body::File(range))),
                RequestBody::None => Outcome::Done(ok(Body::Bytes("none".into()))),
                RequestBody::Stream(_) => panic!("this handler cannot stream"),
            },
            Self::Echo => match std::mem::take(&mut exchange.body) {
                RequestBody::Stream(pipe) => {
                    Outcome::Done(ok(Body::Stream(Box::new(EchoSource(pipe)))))
                }
                _ => Outcome::Done(ok(Body::Bytes("no stream".into()))),
            },
            Self::Slow => {
                SLOW_ASKED.fetch_add(1, Ordering::SeqCst);
                let pause = Timer::new(&worker.timers);
                pause.set_after(SLOW);
                Outcome::Done(ok(Body::Stream(Box::new(SlowPieces { left: 5, pause }))))
            }
            Self::Interim => {
                let reference = exchange.reference().unwrap();
                Outcome::Later(Box::pin(async move {
                    for link in ["</a>", "</b>"] {
                        let mut hints = Headers::new();
                        hints.push(Known::Link, link.as_bytes());
                        let interim = (StatusCode::EARLY_HINTS, hints);
                        reference.borrow_mut().informational.push(interim);
                        tokio::task::yield_now().await;
                    }
                    Outcome::Done(Response::new(StatusCode::OK, Headers::new(), Body::Empty))
                }))
            }
            Self::Last => {
                let mut response = ok(Body::Empty);
                response.closes = true;
                Outcome::Done(response)
            }
            Self::LinkHeaderUse => {
                let mut response = ok(Body::Empty);
                let link = b"</a>; rel=preload, </b>; rel=preload; x-http2-push-only";
                response.headers.push(Known::Link, link);
                response.links = LinkHeaderUse::PushAndFilter;
                Outcome::Done(response)
            }
        }
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        let streams = matches!(self, Self::Echo | Self::Slow);
        if streams {
            BodyUse::Stream
        } else {
            BodyUse::Whole
        }
    }
}

/// A response body in pieces, with a short pause before each piece.
struct Pieces {
    left: u32,
    last: Last,
    rest: bool,
}

#[derive(Clone, Copy)]
enum Last {
    End,
    Fail,
    Panic,
}

impl BodySource for Pieces {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.rest = !self.rest;
        if self.rest {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.left == 0 {
            return match self.last {
                Last::End => Poll::Ready(None),
                Last::Fail => Poll::Ready(Some(Err(BodyError::Failed("the well ran dry".into())))),
                Last::Panic => panic!("this panic in a body is part of the test"),
            };
        }
        self.left -= 1;
        Poll::Ready(Some(Ok("0123456789".into())))
    }

    fn retained(&self) -> usize {
        0
    }
}

/// How often the handler of [`Trick::Slow`] ran.
static SLOW_ASKED: AtomicU32 = AtomicU32::new(0);
const SLOW: Duration = Duration::from_millis(100);

/// A response body in pieces, with a pause of a given length before each piece.
struct SlowPieces {
    left: u32,
    pause: Timer,
}

impl BodySource for SlowPieces {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.pause.poll_fired(context).is_pending() {
            return Poll::Pending;
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.pause.set_after(SLOW);
        Poll::Ready(Some(Ok("0123456789".into())))
    }

    fn retained(&self) -> usize {
        0
    }
}

struct EchoSource(std::rc::Rc<h2o_exchange::BodyPipe>);

impl BodySource for EchoSource {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.0.poll_next(context)
    }

    fn retained(&self) -> usize {
        0
    }
}

impl Tricks for Trick {
    const ALL: &[(&str, Self)] = &[
        ("decline", Self::Decline),
        ("later", Self::Later),
        ("later-decline", Self::LaterDecline),
        ("panic", Self::Panic),
        ("later-panic", Self::LaterPanic),
        ("stream", Self::Stream),
        ("stream-fails", Self::StreamFails),
        ("stream-panics", Self::StreamPanics),
        ("collected", Self::Collected),
        ("echo", Self::Echo),
        ("slow", Self::Slow),
        ("links", Self::LinkHeaderUse),
        ("interim", Self::Interim),
        ("last", Self::Last),
    ];
}

static DIRECTIVES: [Directive<Scope>; 1] = [tricks::<Trick>()];

/// A running server, with a path for each test behaviour, that has the behaviour's name.
struct Running(Embedded);

impl Running {
    fn start() -> Self {
        Self::start_with("temp-buffer-threshold: 1048576")
    }

    /// Starts a server with additional global settings.
    fn start_with(settings: &str) -> Self {
        let paths = paths_of_tricks::<Trick>();
        Self(Embedded::start(&DIRECTIVES, |port| {
            format!(
                "num-threads: 1\n{settings}\nlisten: {{ host: 127.0.0.1, port: {port} }}\nhosts:\n  default:\n    paths:\n{paths}      /chain: [ test.trick: decline, test.trick: later-decline, test.trick: later-decline, test.trick: later ]\n      /status: {{ status: ON }}\n"
            )
        }))
    }

    /// Sends `request`, and reads until the server closes the connection.
    fn ask(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.0.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut writer = stream.try_clone().unwrap();
        let request = request.to_vec();
        let sender = std::thread::spawn(move || writer.write_all(&request));
        let mut answer = Vec::new();
        // An error is ignored: after its response the server may reset the connection, if it does not want to read the
        // rest of the request.
        let _ = stream.read_to_end(&mut answer);
        let _ = sender.join().unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, path: &str) -> String {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
    }
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap_or_default().1
}

#[test]
fn handlers_may_answer_later_and_decline_later() {
    let server = Running::start();
    assert_eq!(body(&server.get("/later")), "later");
    assert_eq!(body(&server.get("/chain")), "later");
    assert!(
        server
            .get("/later-decline")
            .starts_with("HTTP/1.1 404 File Not Found\r\n")
    );
    assert!(
        server
            .get("/decline")
            .starts_with("HTTP/1.1 404 File Not Found\r\n")
    );
    // After a delayed response, the connection takes another request.
    let twice = server.ask(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\nGET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(twice.matches("HTTP/1.1 200 OK").count(), 2, "{twice}");
}

#[test]
fn links_that_are_only_for_pushes_are_taken_out_before_the_filters() {
    let server = Running::start_with("header.add: 'link: </c>; x-http2-push-only'");
    let answer = server.get("/links");
    let links: Vec<_> = answer
        .lines()
        .filter(|line| line.starts_with("link"))
        .collect();
    assert_eq!(
        links,
        ["link: </a>; rel=preload", "link: </c>; x-http2-push-only"]
    );
}

#[test]
fn interim_responses_of_handlers_are_sent_to_those_who_are_to_have_them() {
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
                 HTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\nHTTP/1.1 200 OK\r\n";
    let server = Running::start_with("send-informational: all");
    let answer = server.get("/interim");
    assert!(answer.starts_with(hints), "{answer}");
    let unwanted = b"GET /interim HTTP/1.1\r\nno-early-hints: 1\r\nConnection: close\r\n\r\n";
    let old = b"GET /interim HTTP/1.0\r\n\r\n";
    for request in [&unwanted[..], old] {
        let answer = server.ask(request);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    let server = Running::start();
    let answer = server.get("/interim");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn a_handler_may_say_that_its_response_is_the_last_one() {
    let server = Running::start();
    let twice = b"GET /last HTTP/1.1\r\nHost: x\r\n\r\nGET /last HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = server.ask(twice);
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
    assert!(answer.contains("Connection: close\r\n"), "{answer}");
}

#[test]
fn streamed_bodies_are_chunked_and_a_failure_is_not_a_clean_end() {
    let server = Running::start();
    let answer = server.get("/stream");
    assert!(
        answer.contains("transfer-encoding: chunked\r\n"),
        "{answer}"
    );
    assert_eq!(
        body(&answer),
        format!("{}0\r\n\r\n", "a\r\n0123456789\r\n".repeat(5))
    );
    assert_eq!(
        body(&server.get("/stream-fails")),
        format!("{}\r\n1\r\n", "a\r\n0123456789\r\n".repeat(2))
    );
    let old = server.ask(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert!(old.contains("Connection: close\r\n"), "{old}");
    assert_eq!(body(&old), "0123456789".repeat(5));
    let head = server.ask(b"HEAD /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(body(&head), "");
}

#[test]
fn a_panic_ends_one_exchange_and_nothing_else() {
    let server = Running::start();
    let mut other = TcpStream::connect(("127.0.0.1", server.0.port)).unwrap();
    for path in ["/panic", "/later-panic"] {
        let answer = server.get(path);
        assert!(
            answer.starts_with("HTTP/1.1 500 Internal Server Error\r\n"),
            "{answer}"
        );
    }
    let cut = server.get("/stream-panics");
    assert!(!cut.ends_with("0\r\n\r\n"), "{cut}");
    // A connection that was opened before the panic survives, and so does the worker.
    other
        .write_all(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
    // The connection whose handler panicked survives, too.
    let after = server.ask(b"GET /panic HTTP/1.1\r\nHost: x\r\n\r\nGET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(after.ends_with("later"), "{after}");
}

#[test]
fn bodies_are_collected_for_handlers_that_cannot_stream() {
    let server = Running::start();
    assert_eq!(body(&server.get("/collected")), "none");
    let post = |len: usize| {
        [format!("POST /collected HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n").into_bytes(), vec![b'x'; len]].concat()
    };
    for len in [1, 100_000, 3_000_000] {
        let answer = server.ask(&post(len));
        assert_eq!(body(&answer).len(), len);
        assert!(body(&answer).bytes().all(|byte| byte == b'x'));
    }
    let chunked = b"POST /collected HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;ext\r\nde\r\n0\r\nTrailer: x\r\n\r\n";
    assert_eq!(body(&server.ask(chunked)), "abcde");
}

#[test]
fn a_handler_that_streams_gets_the_body_as_it_arrives() {
    let server = Running::start();
    let mut stream = TcpStream::connect(("127.0.0.1", server.0.port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
        .write_all(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        )
        .unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 1024];
    while !seen.contains("3\r\nabc\r\n") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    stream.write_all(b"2\r\nde\r\n0\r\n\r\n").unwrap();
    while !seen.ends_with("0\r\n\r\n") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    assert!(seen.ends_with("2\r\nde\r\n0\r\n\r\n"), "{seen}");
}

#[test]
fn a_large_upload_passes_a_streaming_handler_with_bounded_buffers() {
    let server = Running::start();
    let len = 8_000_000;
    let request = [
        format!(
            "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        )
        .into_bytes(),
        vec![b'y'; len],
    ]
    .concat();
    let answer = server.ask(&request);
    let bytes = body(&answer).bytes().filter(|byte| *byte == b'y').count();
    assert_eq!(bytes, len);
    assert!(answer.ends_with("0\r\n\r\n"));
}

#[test]
fn a_body_that_turns_out_broken_is_refused_before_the_response_and_does_not_cut_it_off_later() {
    let server = Running::start();
    let head = b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    // The body is invalid from its first chunk on, so no handler runs.
    let refused = server.ask(&[head.as_slice(), b"zz\r\n"].concat());
    assert!(
        refused.starts_with("HTTP/1.1 400 Invalid Request\r\n"),
        "{refused}"
    );
    assert_eq!(body(&refused), "broken chunked-encoding");
    assert_eq!(SLOW_ASKED.load(Ordering::SeqCst), 0);
    // The body turns out invalid after the response has begun. The response is completed, and the connection is closed
    // after it.
    let mut stream = TcpStream::connect(("127.0.0.1", server.0.port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
        .write_all(&[head.as_slice(), b"3\r\nabc\r\n"].concat())
        .unwrap();
    let mut answer = vec![0; 15];
    stream.read_exact(&mut answer).unwrap();
    stream.write_all(b"zz\r\n").unwrap();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(
        body(&answer),
        format!("{}0\r\n\r\n", "a\r\n0123456789\r\n".repeat(5))
    );
}

#[test]
fn connections_that_hold_most_go_first_when_memory_runs_out() {
    let server = Running::start_with("max-memory: 1048576\ntemp-buffer-threshold: OFF");
    let connect = |sent: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.0.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let head = "POST /collected HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4000000\r\n\r\n";
        // Errors are ignored: writing may fail once the server has refused the request, which this test expects.
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&vec![b'x'; sent]);
        stream
    };
    let mut modest = connect(100_000);
    let mut greedy = connect(3_000_000);
    // The server closes the connection of the client with more data, without a response.
    let mut answer = Vec::new();
    let _ = greedy.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    // The connection of the client with less data goes on, and new connections are accepted.
    assert_eq!(body(&server.get("/later")), "later");
    modest.write_all(&vec![b'x'; 100_000]).unwrap();
    server.0.turn();
    modest.set_nonblocking(true).unwrap();
    let waiting = modest.read(&mut [0; 16]).unwrap_err();
    assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock, "{waiting}");
}

#[test]
fn a_client_that_drips_overdraws_its_budget() {
    let server = Running::start_with("connection-budget: 50\nconnection-budget.per-second: 0");
    let mut stream = TcpStream::connect(("127.0.0.1", server.0.port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .write_all(b"GET /later HTTP/1.1\r\nHost: x\r\nX: ")
        .unwrap();
    let mut bytes = 0;
    while stream.write_all(b"x").is_ok() {
        bytes += 1;
        assert!(
            bytes < 200,
            "the connection outlives its 50 units, of which each byte costs one"
        );
        // Waits until the server has read the byte. Otherwise the server might read several bytes at once, and charge the abuse
        // budget for one read only.
        server.0.turn();
    }
    let status = server.get("/status/json?show=events");
    assert!(status.contains("\"connections.overdrawn\": 1,"), "{status}");
}
