//! Interim responses of back ends.

use std::time::Duration;

use h2o_tests::Backend;
use h2o_tests::http2::{Frame, Http2, Received, encode, flag, get, kind, post, setting};

use super::kit::proxy;

#[test]
fn hints_come_before_the_answer() {
    let backend = Backend::answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nx-hint: 2\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
    );
    let server = proxy("", &backend);
    let mut client = Http2::open(server.port(), &[(setting::ENABLE_PUSH, 0)]);
    let answer = client.ask(1, &get("/"));
    assert_eq!(answer.text(), "fine");
    let status = (":status".to_owned(), "103".to_owned());
    assert_eq!(answer.interim.len(), 2, "{:?}", answer.interim);
    assert!(answer.interim.iter().all(|fields| fields.contains(&status)));
    assert!(answer.interim[1].contains(&("x-hint".to_owned(), "2".to_owned())));
    // HTTP/1 clients get them only where that is configured.
    server.ask("GET /").must_be("200 OK\n\nfine");
    let server = proxy("send-informational: all", &backend);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    for want in ["link: </a>; rel=preload", "x-hint: 2"] {
        let hint = client.read_response("GET");
        assert_eq!(hint.code(), 103, "{hint}");
        hint.must_be(&format!("{}\n{want}", hint.status));
    }
    client.read_response("GET").must_be("200 OK\n\nfine");
}

#[test]
fn the_size_of_heads_in_the_access_log_does_not_leave_interim_ones_out() {
    let backend = Backend::answering(
        "HTTP/1.1 103 Early Hints\r\nx-hint: 1\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
    );
    let settings = "send-informational: all\naccess-log: { path: @DIR@/log, format: '%{response-header-bytes}x' }";
    let server = proxy(settings, &backend);
    let mut client = server.connect();
    client.send(
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\nConnection: close\r\n\r\n",
    );
    let mut heads = client.read_until(b"\r\n\r\n");
    assert!(heads.starts_with(b"HTTP/1.1 100 "));
    client.send("x");
    heads.extend(client.read_to_end());
    let want = heads.len() - b"fine".len();
    let log = server.read_until("log", "\n");
    assert_eq!(log, format!("{want}\n"));

    let mut client = Http2::open(server.port(), &[(setting::ENABLE_PUSH, 0)]);
    let section = [post("/"), encode(&[("expect", "100-continue")])].concat();
    client.send_frames(&[
        Frame::request_with_content(1, section),
        Frame::data(1, flag::END_STREAM, "x"),
    ]);
    let (mut len, mut heads) = (0, 0);
    while !client.answer(1).is_over() {
        match client.read(Duration::from_secs(20)) {
            Received::Frame(frame) if frame.kind == kind::HEADERS => {
                len += frame.payload.len();
                heads += 1;
            }
            Received::Frame(_) => {}
            end @ (Received::Closed | Received::Nothing) => panic!("{end:?}"),
        }
    }
    assert_eq!(heads, 3);
    let log = server.read_until("log", &format!("\n{len}"));
    assert_eq!(log, format!("{want}\n{len}\n"));
}
