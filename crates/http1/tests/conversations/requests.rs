//! Tests of how the server role handles the requests that a client sends.

use h2o_http1::{FieldError, Next, PeerError, Settings};

use crate::kit::server::{Conversation, Event, data, request};
use crate::{GET, SECOND, post};

#[test]
fn requests_follow_one_another() {
    let mut talk = Conversation::new();
    assert!(talk.connection.is_idle());
    talk.client_sends(GET)
        .expect("the first request is read", &[request("GET / a.example")]);
    assert!(talk.connection.is_body_done() && !talk.connection.is_idle());
    assert_eq!(talk.answer("hello"), Next::Request);
    talk.expect_output(
        "fields in H2O's order",
        "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert!(talk.connection.is_idle());
    talk.client_sends(GET)
        .expect("the second request is read", &[request("GET / a.example")]);
    assert_eq!(talk.connection.request_index(), 2);
}

#[test]
fn pipelined_requests_wait_for_the_response_before() {
    let mut talk = Conversation::new();
    talk.client_sends(format!("{GET}{}", GET.replace("/ ", "/b ")));
    talk.expect(
        "the second request waits for the response to the first",
        &[request("GET / a.example")],
    );
    assert!(!talk.step());
    assert_eq!(
        talk.connection.next(talk.now),
        Next::Close,
        "a request without a response closes the connection"
    );

    let mut talk = Conversation::new();
    talk.client_sends(format!("{GET}{}", GET.replace("/ ", "/b ")))
        .events
        .clear();
    talk.respond(200, None);
    assert!(
        !talk.step(),
        "the next request is not read while the response is in progress"
    );
    talk.send("x").finish();
    assert!(
        !talk.step(),
        "the next request is not read before the caller asks for it"
    );
    assert_eq!(talk.connection.next(talk.now), Next::Request);
    assert!(!talk.connection.is_idle() || talk.step());
    talk.expect("the second request is read", &[request("GET /b a.example")]);
}

#[test]
fn the_first_byte_starts_the_request() {
    let mut talk = Conversation::new();
    assert_eq!(talk.connection.first_byte_at(), None);
    talk.wait(SECOND);
    let started = talk.now;
    talk.client_sends("G");
    talk.wait(SECOND);
    talk.client_sends(&GET[1..]);
    assert_eq!(talk.connection.first_byte_at(), Some(started));
    assert_eq!(talk.answer(""), Next::Request);
    assert_eq!(talk.connection.first_byte_at(), None);
}

#[test]
fn bodies_of_known_length() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Content-Length: 5")).expect(
        "the head is reported before the body",
        &[request("POST / a.example")],
    );
    assert!(!talk.connection.is_body_done());
    talk.client_sends("abc")
        .expect("a part of the body is reported", &[data("abc")]);
    talk.client_sends("deGET").expect(
        "the rest of the body is reported",
        &[data("de"), Event::BodyEnd],
    );
    assert!(talk.connection.is_body_done());
    assert_eq!(talk.left(), b"GET");
    assert_eq!(talk.connection.body_received(), 5);
    assert_eq!(talk.answer(""), Next::Request);
    assert_eq!(talk.connection.body_received(), 0);
}

#[test]
fn chunked_bodies_drop_extensions_and_trailers() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Transfer-Encoding: chunked"));
    talk.client_sends("3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\nGET");
    talk.expect(
        "only the content of chunks is reported",
        &[request("POST / a.example"), data("abcde"), Event::BodyEnd],
    );
    assert_eq!(talk.left(), b"GET");
}

#[test]
fn nonsense_is_refused_before_the_head_is_complete() {
    let cases: &[(&[u8], PeerError)] = &[
        (b"\x16\x03\x01", PeerError::MethodInvalid),
        (b"G\0", PeerError::MethodInvalid),
        (b"\r\n\x80", PeerError::MethodInvalid),
        (b"GET /\r\n", PeerError::VersionInvalid),
        (
            b"GET / HTTP/1.1\r\nA: b\r\nC\r\n",
            PeerError::Field(FieldError::NameInvalid),
        ),
        (
            b"GET / HTTP/1.1\r\nA: b\r\n c\r\n",
            PeerError::Field(FieldError::Folded),
        ),
        (b"\r\n\r\n", PeerError::BlankInput),
        (b"\n\r", PeerError::BlankInput),
        (b"INVALID CONNECTION PREFACE\r\n\r\n", PeerError::NotHttp),
        (b"GET NOTHING NOW\r\n\r\n", PeerError::NotHttp),
        (b"NOTHING\r\n\r\n", PeerError::MethodInvalid),
        (b"GET / NOW\r\n\r\n", PeerError::VersionInvalid),
        (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", PeerError::MethodInvalid),
    ];
    for (input, error) in cases {
        let mut talk = Conversation::new();
        talk.client_sends(input);
        let why = input.escape_ascii().to_string();
        talk.expect(&why, &[Event::Error(*error)]);
    }
    for input in [
        &b"\r"[..],
        b"\r\n",
        b"\n",
        b"G",
        b"PRI * HTTP/",
        b"GET / HTTP/1.1\r\nA",
    ] {
        let mut talk = Conversation::new();
        talk.client_sends(input)
            .expect("the head is not wrong yet", &[]);
        assert_eq!(talk.left(), input);
    }
}

#[test]
fn the_http_2_preface_is_reported_at_the_start_only() {
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for cut in 0..preface.len() {
        let mut talk = Conversation::new();
        talk.client_sends(&preface[..cut]);
        let known = talk.events.clone();
        talk.client_sends(&preface[cut..]);
        assert_eq!(talk.events.first(), Some(&Event::Http2), "{cut} {known:?}");
        assert_eq!(
            talk.left(),
            preface.as_bytes(),
            "the HTTP/2 preface is left for the HTTP/2 connection"
        );
    }
    let refused = [Event::Error(PeerError::VersionInvalid)];
    let mut talk = Conversation::with(Settings {
        upgrade_to_http2: false,
        ..Settings::default()
    });
    talk.client_sends(preface)
        .expect("the HTTP/2 preface where HTTP/2 is not allowed", &refused);
    let mut talk = Conversation::new();
    talk.client_sends(GET).events.clear();
    assert_eq!(talk.answer(""), Next::Request);
    talk.client_sends(preface)
        .expect("the HTTP/2 preface after a request", &refused);
}
