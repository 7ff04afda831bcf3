//! `Expect: 100-continue` that the backend is to fulfil.

use h2o_tests::http2::{Frame, Http2, encode, flag};
use h2o_tests::{Backend, FINE};

use super::kit::proxy;

#[test]
fn an_expectation_that_is_forwarded_is_the_back_ends_to_meet() {
    let backend = Backend::start(|talk| {
        let request = talk.read_head().expect("a request has come");
        assert_eq!(request.field("expect"), Some("100-continue"));
        talk.send("HTTP/1.1 100 Continue\r\n\r\n");
        let body = talk.read_exactly(5).expect("content has come");
        assert_eq!(body, b"hello");
        talk.send(FINE);
        talk.read_to_end();
    });
    let server = proxy("proxy.expect: FORWARD\nsend-informational: all", &backend);
    let mut client = server.connect();
    client.send(
        "POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.read_head().code(), 100);
    client.send("hello");
    client.read_response("POST").must_be("200 OK\n\nfine");
}

#[test]
fn the_100_of_a_back_end_is_handed_on_although_the_content_has_been_sent() {
    let backend = Backend::start(|talk| {
        while let Some(request) = talk.read_request() {
            assert_eq!(request.field("expect"), Some("100-continue"));
            assert_eq!(request.body, b"hello");
            talk.send("HTTP/1.1 100 Continue\r\n\r\n");
            talk.send(FINE);
        }
    });
    let settings = "proxy.expect: FORWARD\nsend-informational: ";
    let server = proxy(&format!("{settings}all"), &backend);
    let mut client = server.connect();
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello";
    for _ in 0..2 {
        client.send(request);
        let interim = client.read_head();
        assert_eq!(interim.status, "100 Continue");
        client.read_response("POST").must_be("200 OK\n\nfine");
    }
    let mut client = Http2::open(server.port(), &[]);
    let section = encode(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
        ("expect", "100-continue"),
        ("content-length", "5"),
    ]);
    client.send_frames(&[
        Frame::request_with_content(1, section),
        Frame::data(1, flag::END_STREAM, "hello"),
    ]);
    let answer = client.read_answer(1);
    let statuses = answer.interim.iter().map(|fields| &*fields[0].1);
    let statuses: Vec<_> = statuses.collect();
    assert_eq!((statuses, answer.text()), (vec!["100"], "fine".to_owned()));
    // With `except-h1`, clients of HTTP/1 do not get the backend's 100 (Continue).
    let server = proxy(&format!("{settings}except-h1"), &backend);
    let mut client = server.connect();
    client.send(request);
    client.read_response("POST").must_be("200 OK\n\nfine");
}
