//! Tests of server pushes with the engine alone, on a connection without a socket.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::RequestHead;
use h2o_http2::{ErrorCode, Received, ServerConnection, Settings, StreamKey};
use h2o_testkit::any_moment;

/// The client's preface, empty SETTINGS, and GET / on stream 1.
const ASKS: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84";

/// A connection on which the client has sent a request, and the stream of that request.
fn asked(max_streams: u32, now: Instant) -> (ServerConnection, StreamKey) {
    let settings = Settings {
        max_streams,
        ..Settings::default()
    };
    let mut connection = ServerConnection::new(Arc::new(settings), None, now);
    let mut head = RequestHead::default();
    let step = connection
        .receive(ASKS, &mut head, now, &mut Vec::new())
        .unwrap();
    let Received::Request { stream, .. } = step.received else {
        panic!("the engine reads the request");
    };
    (connection, stream)
}

fn promised() -> RequestHead {
    let mut head = RequestHead::default();
    let target = head.headers.store(b"/pushed");
    head.set_target(target);
    head
}

#[test]
fn a_client_without_a_limit_gets_as_many_pushes_as_it_may_have_requests() {
    let (mut connection, stream) = asked(2, any_moment());
    let out = &mut Vec::new();
    let first = connection.promise(stream, &promised(), out).unwrap();
    let second = connection.promise(stream, &promised(), out).unwrap();
    assert_eq!(connection.stream_id(second).get(), 4);
    assert!(!connection.can_push());
    assert_eq!(connection.promise(stream, &promised(), out), None);
    connection.reset(first, ErrorCode::CANCEL, out);
    connection.release(first, out);
    assert!(connection.can_push());
}

#[test]
fn a_connection_is_not_over_before_its_pushes_are() {
    let start = any_moment();
    let (mut connection, stream) = asked(100, start);
    let out = &mut Vec::new();
    let pushed = connection.promise(stream, &promised(), out).unwrap();
    connection.reset(stream, ErrorCode::NO_ERROR, out);
    connection.release(stream, out);
    connection.shut_down(start, out);
    assert!(
        !connection.can_push(),
        "no pushed stream begins after GOAWAY"
    );
    assert_eq!(
        connection.on_timeout(start + Duration::from_secs(2), true, out),
        None
    );
    assert!(!connection.is_over());
    connection.reset(pushed, ErrorCode::NO_ERROR, out);
    connection.release(pushed, out);
    assert!(connection.is_over());
}
