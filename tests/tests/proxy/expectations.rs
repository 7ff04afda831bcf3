//! Expectations that the back end is to meet.

use h2o_tests::{Backend, FINE};

use super::kit::proxy;

#[test]
fn an_expectation_that_is_forwarded_is_the_back_ends_to_meet() {
    let backend = Backend::start(|talk| {
        let request = talk.read_head().expect("there is a request");
        assert_eq!(request.field("expect"), Some("100-continue"));
        talk.send("HTTP/1.1 100 Continue\r\n\r\n");
        let body = talk.read_exactly(5).expect("there is content");
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
