//! Backends that answer before they have read the whole request, and then read the rest.

use std::sync::mpsc::{Sender, channel};

use h2o_tests::http2::{Frame, Http2, code, encode, flag, get, kind, post};
use h2o_tests::{Backend, FINE, Raw, Server, Talk};

use super::http2_upstream::Frames;
use super::kit::proxy;
use super::streaming::{gate, pattern};

const HTTP2: &str = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";
const PATIENT: &str = "http2-idle-timeout: 60";

/// A backend that answers with `answer` as soon as it has the head of a request. After `pass` returns it reads the content, and sends it to
/// the channel `read`, or `None` if the content was cut off.
fn over_http1(
    answer: String,
    pass: impl Fn() + Send + Sync + 'static,
    read: Sender<Option<Vec<u8>>>,
) -> Backend {
    Backend::start(move |talk: &mut Talk| {
        let Some(head) = talk.read_head() else { return };
        if head.method() != "POST" {
            talk.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother");
            return;
        }
        talk.send(&answer);
        pass();
        let _ = read.send(talk.read_chunks());
    })
}

/// Like [`over_http1`], for a connection over HTTP/2.
fn over_http2(
    is_bodyless: bool,
    pass: impl Fn() + Send + Sync + 'static,
    read: Sender<Option<Vec<u8>>>,
) -> Backend {
    Backend::start(move |talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        let Some((stream, _)) = connection.read_request() else {
            return;
        };
        let status = if is_bodyless { "204" } else { "200" };
        let head = encode(&[(":status", status)]);
        if is_bodyless {
            connection.send(&[Frame::request(stream, head)]);
        } else {
            let content = Frame::data(stream, flag::END_STREAM, "early");
            connection.send(&[Frame::request_with_content(stream, head), content]);
        }
        pass();
        let mut content = Vec::new();
        let whole = loop {
            let Some(frame) = connection.read() else {
                break None;
            };
            match frame.kind {
                kind::DATA => {
                    let len = u32::try_from(frame.payload.len()).unwrap_or(u32::MAX);
                    content.extend_from_slice(&frame.payload);
                    if frame.has(flag::END_STREAM) {
                        break Some(content);
                    }
                    if len > 0 {
                        connection.send(&[
                            Frame::window_update(0, len),
                            Frame::window_update(stream, len),
                        ]);
                    }
                }
                kind::RST_STREAM => break None,
                _ => {}
            }
        };
        let _ = read.send(whole);
        while let Some((stream, _)) = connection.read_request() {
            let content = Frame::data(stream, flag::END_STREAM, "other");
            let head = encode(&[(":status", "200")]);
            connection.send(&[Frame::request_with_content(stream, head), content]);
        }
    })
}

/// Sends the rest of a request's content on stream 1, as far as the windows allow.
fn send_rest(client: &mut Http2, mut content: &[u8]) {
    while !content.is_empty() {
        client.read_until("flow-control window for more content", |client| {
            client.allowed(1) > 0 || client.answer(1).is_over()
        });
        assert_eq!(client.answer(1).reset, None, "{}", client.story());
        let len = client.allowed(1).min(content.len()).min(16_384);
        let (now, later) = content.split_at(len);
        content = later;
        let flags = if content.is_empty() {
            flag::END_STREAM
        } else {
            0
        };
        client.send_frame(&Frame::data(1, flags, now));
    }
}

/// Sends the beginning of an upload, waits for the end of the response, and sends the rest.
fn upload(server: &Server, status: u16, body: &str, open: &Sender<()>) -> Http2 {
    let content = pattern(600_000);
    let (first, rest) = content.split_at(10_000);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frames(&[
        Frame::request_with_content(1, post("/")),
        Frame::data(1, 0, first),
    ]);
    client.read_until("the answer", |client| {
        let answer = client.answer(1);
        answer.body.len() == body.len() && answer.is_ended
    });
    assert_eq!(client.answer(1).status(), status);
    assert_eq!(client.answer(1).text(), body);
    open.send(()).unwrap_or_default();
    send_rest(&mut client, rest);
    client
}

#[test]
fn an_upload_is_not_cut_when_its_backend_has_answered_and_reads_on() {
    let content = pattern(600_000);
    for (answer, status, body) in [
        ("200 OK\r\ncontent-length: 5\r\n\r\nearly", 200, "early"),
        ("200 OK\r\ncontent-length: 0\r\n\r\n", 200, ""),
        ("204 No Content\r\n\r\n", 204, ""),
        (
            "200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n0\r\n\r\n",
            200,
            "early",
        ),
    ] {
        for settings in ["", "proxy.max-buffer-size: 100000"] {
            let (open, pass) = gate();
            let (read, seen) = channel();
            let whole = format!("HTTP/1.1 {answer}");
            let backend = over_http1(whole, pass, read);
            let server = proxy(&format!("{PATIENT}\n{settings}"), &backend);
            let mut client = upload(&server, status, body, &open);
            let seen = seen.recv().ok().flatten();
            assert!(seen.is_some_and(|seen| seen == content), "{answer}");
            client.read_until("the end of the response", |client| {
                client.answer(1).is_ended
            });
            assert_eq!(client.answer(1).reset, None, "{}", client.story());
        }
    }
    for is_bodyless in [false, true] {
        let (open, pass) = gate();
        let (read, seen) = channel();
        let backend = over_http2(is_bodyless, pass, read);
        let server = proxy(&format!("{PATIENT}\n{HTTP2}"), &backend);
        let (status, body) = if is_bodyless {
            (204, "")
        } else {
            (200, "early")
        };
        let client = upload(&server, status, body, &open);
        let seen = seen.recv().ok().flatten();
        assert!(seen.is_some_and(|seen| seen == content), "{is_bodyless}");
        assert_eq!(client.answer(1).reset, None, "{}", client.story());
    }
}

fn send_chunk(client: &mut Raw, chunk: &[u8]) {
    client.send(format!("{:x}\r\n", chunk.len()));
    client.send(chunk);
    client.send("\r\n");
}

/// Like [`upload`], with a client of HTTP/1, which then sends another request on the same connection.
fn upload_over_http1(server: &Server, status: &str, body: &str, open: &Sender<()>) {
    let content = pattern(600_000);
    let (first, rest) = content.split_at(10_000);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    send_chunk(&mut client, first);
    client.read_until(format!("HTTP/1.1 {status}").as_bytes());
    client.read_until(format!("\r\n\r\n{body}").as_bytes());
    open.send(()).unwrap_or_default();
    for chunk in rest.chunks(100_000) {
        send_chunk(&mut client, chunk);
    }
    client.send("0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.read_until(b"HTTP/1.1 200");
    client.read_until(b"\r\n\r\nother");
}

#[test]
fn a_client_of_http1_uploads_all_to_a_backend_that_has_answered_and_reads_on() {
    let content = pattern(600_000);
    for (answer, body) in [
        ("200 OK\r\ncontent-length: 5\r\n\r\nearly", "early"),
        ("200 OK\r\ncontent-length: 0\r\n\r\n", ""),
        ("204 No Content\r\n\r\n", ""),
        (
            "200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n0\r\n\r\n",
            "5\r\nearly\r\n0\r\n\r\n",
        ),
    ] {
        for settings in ["", "proxy.max-buffer-size: 100000"] {
            let (open, pass) = gate();
            let (read, seen) = channel();
            let backend = over_http1(format!("HTTP/1.1 {answer}"), pass, read);
            let server = proxy(settings, &backend);
            upload_over_http1(&server, &answer[..3], body, &open);
            let seen = seen.recv().ok().flatten();
            assert!(seen.is_some_and(|seen| seen == content), "{answer}");
        }
    }
    for is_bodyless in [false, true] {
        for settings in ["", "proxy.max-buffer-size: 100000"] {
            let (open, pass) = gate();
            let (read, seen) = channel();
            let backend = over_http2(is_bodyless, pass, read);
            let server = proxy(&format!("{settings}\n{HTTP2}"), &backend);
            let (status, body) = if is_bodyless {
                ("204", "")
            } else {
                ("200", "early")
            };
            upload_over_http1(&server, status, body, &open);
            let seen = seen.recv().ok().flatten();
            assert!(seen.is_some_and(|seen| seen == content), "{is_bodyless}");
        }
    }
}

#[test]
fn a_client_that_stalls_behind_its_answer_does_not_hold_the_backend() {
    let (open, pass) = gate();
    let (read, seen) = channel();
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly";
    let backend = over_http1(answer.to_owned(), pass, read);
    let settings = "client-min-rate.grace: 1\nhttp2-idle-timeout: 60";
    let server = proxy(settings, &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frames(&[
        Frame::request_with_content(1, post("/")),
        Frame::data(1, 0, "some"),
    ]);
    client.read_until("the answer", |client| client.answer(1).is_ended);
    open.send(()).unwrap_or_default();
    assert_eq!(
        seen.recv().ok().flatten(),
        None,
        "the backend saw a complete upload"
    );
    // After the cut-off upload, the client's HTTP/2 connection is still usable.
    client.read_until("the reset of the cut-off upload", |client| {
        client.answer(1).reset.is_some()
    });
    assert_eq!(client.ask(3, &get("/")).text(), "other");
}

/// After the grace, the stream ends without an error (RFC 9113 §8.1): its answer is complete.
#[test]
fn an_upload_ends_without_an_error_when_its_backend_has_answered_and_closes() {
    // Each case: the path of the request, the beginning of the answer, and whether the backend closes the connection.
    let cases = [
        ("/a", "HTTP/1.1 200 OK", true),
        ("/b", "HTTP/1.1 200 OK\r\nconnection: close", false),
        ("/c", "HTTP/1.1 200 OK\r\nconnection: close, x", false),
        ("/d", "HTTP/1.0 200 OK", false),
    ];
    let backend = Backend::start(move |talk: &mut Talk| {
        let Some(head) = talk.read_head() else { return };
        let case = cases.iter().find(|(path, ..)| *path == head.target());
        let Some((_, answer, closes)) = case else {
            talk.send(FINE);
            return;
        };
        // If the backend closed the connection with unread bytes, it would be reset before the answer arrives.
        let _ = talk.read_until(b"some\r\n");
        talk.send(format!("{answer}\r\ncontent-length: 5\r\n\r\nearly"));
        if !closes {
            talk.read_to_end();
        }
    });
    let settings = "http2-max-concurrent-streaming-requests-per-connection: 4";
    let server = proxy(&format!("{PATIENT}\n{settings}"), &backend);
    let mut client = Http2::open(server.port(), &[]);
    let streams: Vec<u32> = (1..).step_by(2).take(cases.len()).collect();
    for (stream, (path, ..)) in streams.iter().zip(cases) {
        client.send_frames(&[
            Frame::request_with_content(*stream, post(path)),
            Frame::data(*stream, 0, "some"),
        ]);
    }
    client.read_until("the end of each upload", |client| {
        let mut streams = streams.iter();
        streams.all(|stream| client.answer(*stream).reset.is_some())
    });
    for (stream, (path, ..)) in streams.iter().zip(cases) {
        let answer = client.answer(*stream);
        assert_eq!((answer.status(), answer.text()), (200, "early".into()));
        let end = (answer.is_ended, answer.reset);
        assert_eq!(end, (true, Some(code::NO_ERROR)), "{path}");
    }
    assert_eq!(client.ask(99, &get("/")).text(), "fine");
}

#[test]
fn a_compressed_answer_ends_before_the_upload_behind_it_does() {
    let content = pattern(600_000);
    let (first, rest) = content.split_at(10_000);
    let body = "text ".repeat(100);
    for answer in [
        format!("content-length: 500\r\n\r\n{body}"),
        format!("transfer-encoding: chunked\r\n\r\n1f4\r\n{body}\r\n0\r\n\r\n"),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n{answer}");
        for is_http2 in [true, false] {
            let (open, pass) = gate();
            let (read, seen) = channel();
            let backend = over_http1(answer.clone(), pass, read);
            let server = proxy(&format!("{PATIENT}\ncompress: ON"), &backend);
            if is_http2 {
                let mut client = Http2::open(server.port(), &[]);
                let head = encode(&[
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", "/"),
                    (":authority", "www.example.com"),
                    ("accept-encoding", "gzip"),
                ]);
                client.send_frames(&[
                    Frame::request_with_content(1, head),
                    Frame::data(1, 0, first),
                ]);
                client.read_until("the end of the answer", |client| client.answer(1).is_ended);
                let coding = client
                    .answer(1)
                    .field("content-encoding")
                    .map(str::to_owned);
                assert_eq!(coding.as_deref(), Some("gzip"));
                open.send(()).unwrap_or_default();
                send_rest(&mut client, rest);
            } else {
                let mut client = server.connect();
                client.send(
                    "POST / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
                );
                send_chunk(&mut client, first);
                client.read_until(b"content-encoding: gzip");
                client.read_until(b"\r\n0\r\n\r\n");
                open.send(()).unwrap_or_default();
                send_chunk(&mut client, rest);
                client.send("0\r\n\r\n");
            }
            let seen = seen.recv().ok().flatten();
            assert!(
                seen.is_some_and(|seen| seen == content),
                "{answer} {is_http2}"
            );
        }
    }
}
