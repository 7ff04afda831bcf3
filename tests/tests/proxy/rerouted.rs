//! Requests that are sent to another server (`reproxy`) while their content is still arriving.

use std::sync::mpsc::channel;
use std::time::Duration;

use h2o_tests::http2::{Frame, encode, flag, kind};
use h2o_tests::{Backend, FINE, Raw, Setup, Talk};

use super::http2_upstream::Frames;
use super::kit::config;
use super::streaming::pattern;

const HTTP2: &str = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";

fn chunk(content: &[u8]) -> Vec<u8> {
    let size = format!("{:x}\r\n", content.len());
    [size.as_bytes(), content, b"\r\n"].concat()
}

fn post(fields: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{fields}\r\n")
}

#[test]
fn content_has_one_reader_when_an_http2_backend_has_answered_early() {
    let content = pattern(300_000);
    for (status, method) in [("307", "POST"), ("200", "GET")] {
        let target = Backend::answering(FINE);
        let (frames, seen) = channel();
        let url = target.url("/there");
        let backend = Backend::start(move |talk: &mut Talk| {
            let Some(mut connection) = Frames::new(talk) else {
                return;
            };
            connection.send(&[Frame::settings(&[])]);
            let Some((stream, _)) = connection.read_request() else {
                return;
            };
            let head = encode(&[(":status", status), ("x-reproxy-url", &url)]);
            connection.send(&[Frame::request(stream, head)]);
            // Each frame is answered with a PING, so that the connection stays busy.
            while let Some(frame) = connection.read() {
                connection.send(&[Frame::ping([1; 8])]);
                let ends = frame.kind == kind::DATA && frame.has(flag::END_STREAM);
                let _ = frames.send((frame.kind, ends));
            }
        });
        let settings = format!("reproxy: ON\n{HTTP2}");
        let server = Setup::new(&config(&settings, &backend.url("/"))).start();
        let mut client: Raw = server.connect();
        client.send(post(""));
        let mut pieces = content.chunks(10_000);
        let first = pieces.next().unwrap_or_default();
        client.send(chunk(first));
        target.wait_for(&format!("{method} /there HTTP/1.1\r\n"));
        // When the client has its response, the server may close the connection, so the result is ignored.
        for piece in pieces {
            let _ = client.try_send(chunk(piece));
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = client.try_send("0\r\n\r\n");
        assert_eq!(client.read_response("POST").text(), "fine", "{status}");
        drop((server, backend));
        let got = target.received_by_all();
        let wanted: Vec<u8> = if method == "POST" {
            content.clone()
        } else {
            Vec::new()
        };
        assert!(content_of(&got) == wanted, "{status}: the content differs");
        let seen: Vec<_> = seen.iter().collect();
        assert!(seen.iter().all(|&(_, ends)| !ends), "{status}: {seen:?}");
        assert!(
            seen.iter().any(|&(seen, _)| seen == kind::RST_STREAM),
            "{status}: {seen:?}"
        );
    }
}

/// The content of a request, without chunk framing if it is chunked.
fn content_of(request: &[u8]) -> Vec<u8> {
    let head = request.windows(4).position(|end| end == b"\r\n\r\n");
    let mut rest = &request[head.expect("a request has come") + 4..];
    let mut content = Vec::new();
    while let Some(line) = rest.windows(2).position(|end| end == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..line]).into_owned();
        let size =
            usize::from_str_radix(&size, 16).expect("a chunk begins with its size in hexadecimal");
        content.extend_from_slice(&rest[line + 2..][..size]);
        rest = &rest[line + 2 + size + 2..];
    }
    content
}

#[test]
fn a_client_that_waits_for_a_word_is_not_kept_waiting() {
    let target = Backend::answering(FINE);
    let url = target.url("/there");
    let answer = format!("HTTP/1.1 307 Go\r\nx-reproxy-url: {url}\r\ncontent-length: 0\r\n\r\n");
    let backend = Backend::start(move |talk: &mut Talk| {
        let _ = talk.read_head();
        talk.send(&answer);
        talk.read_to_end();
    });
    let settings = "reproxy: ON\nproxy.expect: FORWARD";
    let server = Setup::new(&config(settings, &backend.url("/"))).start();
    let mut client = server.connect();
    client.send(post("expect: 100-continue\r\n"));
    assert_eq!(client.read_response("POST").code(), 502);
    server.wait_for_message("still waits for 100 Continue");
    assert_eq!(target.connections(), 0);
}

#[test]
fn the_answer_to_connect_is_not_replaced() {
    let target = Backend::answering(FINE);
    let url = target.url("/there");
    let answer = format!(
        "HTTP/1.1 302 Go\r\nx-reproxy-url: {url}\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n"
    );
    let backend = Backend::answering(answer);
    let settings = "reproxy: ON\nproxy.tunnel: ON";
    let server = Setup::new(&config(settings, &backend.url("/"))).start();
    let mut client = server.connect();
    client.send("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n");
    let response = client.read_response("CONNECT");
    assert_eq!(response.code(), 302, "{response}");
    assert_eq!(target.connections(), 0);
}
