//! Tests every state of a request stream of the client role with every event that the stream can meet.

use h2o_http3::{ErrorCode, StreamState};

use crate::kit::client::Conversation;
use crate::kit::{Fields, data, headers};

const OK: Fields<'static> = &[(":status", "200")];
const CANCELLED: u64 = 0x10c;

type Happening = (&'static str, fn(&mut Conversation));

const HAPPENINGS: [Happening; 8] = [
    ("a response", |talk| {
        talk.server_sends(0, headers(OK));
    }),
    ("DATA", |talk| {
        talk.server_sends(0, data(b"a"));
    }),
    ("trailers", |talk| {
        talk.server_ends(0, headers(&[("x", "y")]));
    }),
    ("the end", |talk| {
        talk.server_ends(0, b"");
    }),
    ("RESET_STREAM", |talk| {
        talk.server_resets(0, 0x102);
    }),
    ("STOP_SENDING", |talk| {
        talk.server_stops(0, 0x100);
    }),
    ("our reset", |talk| {
        let key = talk.key(0);
        talk.connection.reset(key, ErrorCode(CANCELLED));
        talk.after_call();
    }),
    ("release", |talk| {
        talk.release(0);
    }),
];

#[track_caller]
fn check(
    state: StreamState,
    begin: fn(&mut Conversation),
    want: [(&str, StreamState); HAPPENINGS.len()],
) {
    for ((what, happens), (said, after)) in HAPPENINGS.iter().zip(want) {
        let mut talk = Conversation::new();
        begin(&mut talk);
        talk.events.clear();
        let key = talk.key(0);
        assert_eq!(talk.connection.state(key), state);
        happens(&mut talk);
        let got = talk.events.join("; ");
        assert_eq!(got, said, "{what} on a stream that is {state:?}");
        assert_eq!(
            talk.connection.state(key),
            after,
            "{what} on a stream that is {state:?}"
        );
        talk.connection.release(key);
        talk.connection.release(key);
        assert_eq!(talk.connection.open_streams(), 0);
    }
}

const UNEXPECTED: &str = "close H3_FRAME_UNEXPECTED";
const STOPPED: &str = "0 stopped H3_NO_ERROR; RESET_STREAM 0 H3_REQUEST_CANCELLED";
const BOTH: &str = "STOP_SENDING 0 H3_REQUEST_CANCELLED; RESET_STREAM 0 H3_REQUEST_CANCELLED";
const RECV: &str = "STOP_SENDING 0 H3_REQUEST_CANCELLED";
const SEND: &str = "RESET_STREAM 0 H3_REQUEST_CANCELLED";

#[test]
fn before_the_response() {
    use StreamState::{Closed, HalfClosedLocal, Open};
    let missing = "0 reset by us H3_MESSAGE_ERROR; STOP_SENDING 0 H3_MESSAGE_ERROR";
    let reset = format!("0 reset H3_INTERNAL_ERROR; {RECV}");
    let reset_both = format!("0 reset H3_INTERNAL_ERROR; {BOTH}");
    let missing_both = format!("{missing}; RESET_STREAM 0 H3_MESSAGE_ERROR");
    check(
        Open,
        |talk| {
            talk.posts();
        },
        [
            ("0 200 Unknown", Open),
            (UNEXPECTED, Open),
            ("close H3_MESSAGE_ERROR protocol violation", Open),
            (&missing_both, Closed),
            (&reset_both, Closed),
            (STOPPED, HalfClosedLocal),
            (BOTH, Closed),
            (BOTH, Closed),
        ],
    );
    check(
        HalfClosedLocal,
        |talk| {
            talk.gets();
        },
        [
            ("0 200 Unknown", HalfClosedLocal),
            (UNEXPECTED, HalfClosedLocal),
            ("close H3_MESSAGE_ERROR protocol violation", HalfClosedLocal),
            (missing, Closed),
            (&reset, Closed),
            ("", HalfClosedLocal),
            (RECV, Closed),
            (RECV, Closed),
        ],
    );
}

#[test]
fn behind_the_head_of_the_response() {
    use StreamState::{Closed, HalfClosedLocal, HalfClosedRemote, Open};
    let reset = format!("0 reset H3_INTERNAL_ERROR; {RECV}");
    let reset_both = format!("0 reset H3_INTERNAL_ERROR; {BOTH}");
    // A second head is read as trailers, which must not have pseudo-header fields.
    let second = "close H3_MESSAGE_ERROR protocol violation";
    check(
        Open,
        |talk| {
            talk.posts();
            talk.server_sends(0, headers(OK));
        },
        [
            (second, Open),
            ("0 data a", Open),
            ("0 trailers x=y", HalfClosedRemote),
            ("0 data  END", HalfClosedRemote),
            (&reset_both, Closed),
            (STOPPED, HalfClosedLocal),
            (BOTH, Closed),
            (BOTH, Closed),
        ],
    );
    check(
        HalfClosedLocal,
        |talk| {
            talk.gets();
            talk.server_sends(0, headers(OK));
        },
        [
            (second, HalfClosedLocal),
            ("0 data a", HalfClosedLocal),
            ("0 trailers x=y", Closed),
            ("0 data  END", Closed),
            (&reset, Closed),
            ("", HalfClosedLocal),
            (RECV, Closed),
            (RECV, Closed),
        ],
    );
}

#[test]
fn behind_the_response() {
    use StreamState::{Closed, HalfClosedRemote};
    check(
        HalfClosedRemote,
        |talk| {
            talk.posts();
            talk.server_ends(0, headers(OK));
        },
        [
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            ("", HalfClosedRemote),
            (STOPPED, Closed),
            (SEND, Closed),
            (SEND, Closed),
        ],
    );
    check(
        Closed,
        |talk| {
            talk.gets();
            talk.server_ends(0, headers(OK));
        },
        [("", Closed); HAPPENINGS.len()],
    );
}
