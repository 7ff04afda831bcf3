//! Tests of the server role's limits of time, rate, size and memory.

use h2o_http::TimeLimit;
use h2o_http1::{Next, PeerError, ServerConnection, Settings};

use crate::kit::server::{Conversation, Event, request};
use crate::{GET, SECOND, post};

#[test]
fn an_idle_connection_is_small() {
    assert!(
        size_of::<ServerConnection>() <= 192,
        "{}",
        size_of::<ServerConnection>()
    );
}

#[test]
fn body_limits_hold_at_their_value_and_one_past() {
    let limited = || {
        Conversation::with(Settings {
            limit_request_body: 10,
            ..Settings::default()
        })
    };
    let refused = Event::Error(PeerError::BodyTooLarge);
    for (length, is_refused) in [(10, false), (11, true)] {
        let mut talk = limited();
        talk.client_sends(post(&format!("Content-Length: {length}")));
        assert_eq!(
            talk.events.last() == Some(&refused),
            is_refused,
            "{length} exceeds 10"
        );
    }
    for (chunks, is_refused) in [
        ("9\r\nabcdefghi\r\n0\r\n\r\n", false),
        ("5\r\nabcde\r\n4\r\nfghi\r\n0\r\n\r\n", false),
        ("a\r\nx", true),
        ("5\r\nabcde\r\n5\r\nx", true),
    ] {
        let mut talk = limited();
        talk.client_sends(post("Transfer-Encoding: chunked"))
            .client_sends(chunks);
        assert_eq!(
            talk.events.last() == Some(&refused),
            is_refused,
            "{chunks:?} reaches 10"
        );
    }
}

#[test]
fn head_limits_hold_at_their_value_and_one_past() {
    let limited = |max_head| {
        Conversation::with(Settings {
            max_head,
            ..Settings::default()
        })
    };
    let mut talk = limited(GET.len());
    talk.client_sends(GET).expect(
        "a request head of the largest allowed length",
        &[request("GET / a.example")],
    );
    let mut talk = limited(GET.len() - 1);
    talk.client_sends(GET).expect(
        "a request head one byte longer than allowed",
        &[Event::Error(PeerError::HeadTooLarge)],
    );
    let mut talk = limited(10);
    talk.client_sends("GET /1234")
        .expect("a head below the limit that is incomplete", &[]);
    talk.client_sends("5").expect(
        "a head that reaches the limit and is incomplete",
        &[Event::Error(PeerError::HeadTooLarge)],
    );
}

#[test]
fn a_body_that_does_not_wait_is_read() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Expect: 100-continue\r\nContent-Length: 3"))
        .client_sends("ab");
    assert!(
        talk.connection.wants_continue(),
        "H2O sends 100 (Continue) although a part of the body has come"
    );
    assert_eq!(talk.wait(100 * SECOND), Some(TimeLimit::Read));

    let mut talk = Conversation::new();
    talk.client_sends(post("Expect: 100-continue\r\nContent-Length: 3"))
        .client_sends("abc");
    assert!(!talk.connection.wants_continue(), "the body is complete");
    assert_eq!(talk.answer(""), Next::Request);
}

#[test]
fn heads_are_limited_in_time() {
    let mut talk = Conversation::new();
    let start = talk.now;
    let passed = GET.as_bytes().chunks(1).find_map(|byte| {
        talk.client_sends(byte);
        talk.wait(SECOND)
    });
    assert_eq!(
        passed,
        Some(TimeLimit::Head {
            first_request: true
        })
    );
    assert_eq!(
        talk.now,
        start + 10 * SECOND,
        "the timeout limits the time of the whole head"
    );

    let mut talk = Conversation::new();
    talk.client_sends(GET);
    assert_eq!(
        talk.wait(100 * SECOND),
        None,
        "no timeout runs while the handler works"
    );
    assert_eq!(talk.answer(""), Next::Request);
    talk.client_sends("G");
    let start = talk.now;
    assert_eq!(
        talk.wait(100 * SECOND),
        Some(TimeLimit::Head {
            first_request: false
        })
    );
    assert_eq!(
        talk.now,
        start + 5 * SECOND,
        "the I/O timeout runs once a head has begun"
    );
}

#[test]
fn a_connection_without_a_request_is_idle_and_not_slow() {
    let mut talk = Conversation::new();
    let start = talk.now;
    assert_eq!(talk.wait(100 * SECOND), Some(TimeLimit::Idle));
    assert_eq!(talk.now, start + 10 * SECOND);

    let mut talk = Conversation::new();
    talk.client_sends(GET);
    assert_eq!(talk.answer(""), Next::Request);
    let start = talk.now;
    assert_eq!(talk.wait(100 * SECOND), Some(TimeLimit::Idle));
    assert_eq!(
        talk.now,
        start + 10 * SECOND,
        "the idle timeout also runs after a request"
    );
}

#[test]
fn bodies_are_limited_in_time() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Content-Length: 1000"));
    assert_eq!(talk.connection.waits_for_client(), (true, false));
    assert_eq!(talk.wait(100 * SECOND), Some(TimeLimit::Read));

    let mut talk = Conversation::new();
    talk.client_sends(post("Content-Length: 60"));
    for _ in 0..60 {
        assert_eq!(
            talk.wait(SECOND),
            None,
            "the connection itself has no minimum rate"
        );
        talk.client_sends("x");
    }
    assert!(talk.connection.is_body_done());
    assert_eq!(talk.connection.waits_for_client(), (false, false));
}

#[test]
fn back_pressure_is_not_held_against_the_client() {
    let mut talk = Conversation::new();
    talk.client_sends(post("Content-Length: 100"))
        .client_sends("abc");
    talk.connection.pause_reading();
    assert_eq!(talk.wait(1000 * SECOND), None);
    talk.connection.resume_reading(talk.now);
    assert_eq!(talk.wait(1000 * SECOND), Some(TimeLimit::Read));
}

#[test]
fn writing_is_timed_while_bytes_wait() {
    let mut talk = Conversation::new();
    talk.client_sends(GET);
    talk.respond(200, None);
    talk.connection.on_written(100, true, talk.now);
    talk.wait(3 * SECOND);
    talk.connection.on_written(50, true, talk.now);
    assert_eq!(
        talk.wait(4 * SECOND),
        None,
        "a write that makes progress restarts the timeout"
    );
    talk.connection.on_written(50, false, talk.now);
    assert_eq!(
        talk.wait(1000 * SECOND),
        None,
        "no timeout runs while nothing waits to be written"
    );
    talk.send("abc");
    talk.connection.on_written(0, true, talk.now);
    assert_eq!(talk.wait(1000 * SECOND), Some(TimeLimit::Write));
    assert_eq!(talk.connection.next(talk.now), Next::Close);
}

#[test]
fn a_head_that_drips_in_is_looked_at_once() {
    let mut talk = Conversation::with(Settings {
        max_head: 500_000,
        ..Settings::default()
    });
    talk.client_sends("GET / HTTP/1.1\r\nX: ");
    for _ in 0..200_000 {
        talk.client_sends("x");
    }
    talk.client_sends("\r\n\r\n")
        .expect("a long head in many pieces is read", &[request("GET / ")]);
}
