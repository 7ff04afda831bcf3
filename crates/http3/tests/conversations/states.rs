//! Tests every state of a request stream of the server role with every event that the stream can meet.

use h2o_http3::{ErrorCode, StreamState};

use crate::kit::server::Conversation;
use crate::kit::{GET, POST, data, headers};

const CANCELLED: u64 = 0x10c;

/// The name of an event of a stream, and the calls that make it happen.
type Happening = (&'static str, fn(&mut Conversation));

const HAPPENINGS: [Happening; 7] = [
    ("DATA", |talk| {
        talk.sends(0, data(b"a"));
    }),
    ("the end", |talk| {
        talk.ends(0, b"");
    }),
    ("trailers", |talk| {
        talk.ends(0, headers(&[("x", "y")]));
    }),
    ("RESET_STREAM", |talk| {
        talk.resets(0, CANCELLED);
    }),
    ("STOP_SENDING", |talk| {
        talk.stops(0, CANCELLED);
    }),
    ("our reset", |talk| {
        let key = talk.key(0);
        talk.connection.reset(key, ErrorCode::INTERNAL_ERROR);
        talk.sends(0, b"");
    }),
    ("release", |talk| {
        talk.release(0);
    }),
];

const TORN: &str = "0 reset H3_REQUEST_CANCELLED; STOP_SENDING 0 H3_REQUEST_CANCELLED; RESET_STREAM 0 H3_REQUEST_CANCELLED";
const UP: &str = "0 reset H3_REQUEST_CANCELLED; STOP_SENDING 0 H3_REQUEST_CANCELLED";
const DOWN: &str = "0 reset H3_REQUEST_CANCELLED; RESET_STREAM 0 H3_REQUEST_CANCELLED";

#[track_caller]
fn check(state: StreamState, begin: fn(&mut Conversation), want: [(&str, StreamState); 7]) {
    for ((what, happens), (said, after)) in HAPPENINGS.iter().zip(want) {
        let mut talk = Conversation::new();
        begin(&mut talk);
        talk.events.clear();
        let key = talk.key(0);
        assert_eq!(talk.connection.state(key), state);
        happens(&mut talk);
        assert_eq!(
            talk.events.join("; "),
            said,
            "{what} on a stream that is {state:?}"
        );
        assert_eq!(
            talk.connection.state(key),
            after,
            "{what} on a stream that is {state:?}"
        );
        // In any state the stream can be released, even twice, and the connection stays usable.
        talk.connection.release(key);
        talk.connection.release(key);
        talk.events.clear();
        talk.ends(4, headers(GET));
        assert!(
            talk.events
                .last()
                .is_some_and(|event| event.starts_with("4 GET"))
        );
    }
}

#[test]
fn a_stream_takes_what_its_state_allows() {
    use StreamState::{Closed, HalfClosedLocal, HalfClosedRemote, Open};
    check(
        Open,
        |talk| {
            talk.sends(0, headers(POST));
        },
        [
            ("0 data a", Open),
            ("0 data  END", HalfClosedRemote),
            ("0 trailers x=y", HalfClosedRemote),
            (TORN, Closed),
            (TORN, Closed),
            (
                "STOP_SENDING 0 H3_INTERNAL_ERROR; RESET_STREAM 0 H3_INTERNAL_ERROR",
                Closed,
            ),
            (
                "STOP_SENDING 0 H3_INTERNAL_ERROR; RESET_STREAM 0 H3_INTERNAL_ERROR",
                Closed,
            ),
        ],
    );
    check(
        HalfClosedLocal,
        |talk| {
            talk.sends(0, headers(POST));
            talk.responds(0, 200, &[], None, true);
        },
        [
            ("0 data a", HalfClosedLocal),
            ("0 data  END", Closed),
            ("0 trailers x=y", Closed),
            (UP, Closed),
            ("", HalfClosedLocal),
            ("STOP_SENDING 0 H3_INTERNAL_ERROR", Closed),
            // The response is complete before the request: the client is told that the rest is not needed.
            ("STOP_SENDING 0 H3_NO_ERROR", Closed),
        ],
    );
    check(
        HalfClosedRemote,
        |talk| {
            talk.ends(0, headers(GET));
        },
        [
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            (DOWN, Closed),
            ("RESET_STREAM 0 H3_INTERNAL_ERROR", Closed),
            ("RESET_STREAM 0 H3_INTERNAL_ERROR", Closed),
        ],
    );
    check(
        Closed,
        |talk| {
            talk.ends(0, headers(GET));
            talk.responds(0, 200, &[], None, true);
        },
        [("", Closed); 7],
    );
}

#[test]
fn calls_for_streams_that_may_not_send_do_nothing() {
    let mut talk = Conversation::new();
    talk.gets(0);
    assert!(!talk.responds(0, 200, &[], None, true).is_empty());
    assert!(
        talk.responds(0, 200, &[], None, false).is_empty(),
        "a second final head is not sent"
    );
    let key = talk.key(0);
    let mut out = Vec::new();
    talk.connection.send_data(key, b"a", false, &mut out);
    talk.connection.finish(key, None, &mut out);
    talk.connection.set_ready(key, true);
    assert!(!talk.connection.begin_data(key, 1, false, &mut out));
    assert_eq!((out.len(), talk.connection.poll_send()), (0, None));
    talk.release(0);
    assert!(!talk.connection.begin_data(key, 1, true, &mut out));
    assert!(!talk.connection.begin_datagram(key, &mut out));
    assert_eq!(talk.connection.stream_id(key), None);
    assert_eq!(out.len(), 0);
}

#[test]
fn streams_given_up_before_their_request_leave_nothing() {
    let mut talk = Conversation::new();
    let head = headers(GET);
    talk.sends(0, &head[..9]).resets(0, CANCELLED);
    talk.sends(4, &head[..9]).stops(4, CANCELLED);
    talk.resets(8, CANCELLED);
    let want: Vec<String> = [0, 4, 8]
        .into_iter()
        .flat_map(|id| {
            ["STOP_SENDING", "RESET_STREAM"].map(|what| format!("{what} {id} H3_REQUEST_CANCELLED"))
        })
        .collect();
    let want: Vec<&str> = want.iter().map(String::as_str).collect();
    talk.expect(
        "streams given up before their request cause no other events",
        &want,
    );
    assert!(!talk.connection.has_streams());
}
