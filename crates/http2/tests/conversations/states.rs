//! Tests every state of a stream with every frame (RFC 9113 §5.1).

use crate::kit::frames::*;
use crate::kit::{client, server};

/// Frames on a stream whose meaning depends on the stream's state.
fn frames_of_streams(id: u32) -> [(&'static str, Vec<u8>); 6] {
    let head = [(":status", "200")];
    // HEADERS with END_STREAM look like trailers, which both roles accept.
    let trailers = headers(id, WHOLE, &[("x", "y")]);
    [
        ("DATA", data(id, 0, b"a")),
        ("DATA END", data(id, END_STREAM, b"a")),
        ("HEADERS", headers(id, END_HEADERS, &head)),
        ("HEADERS END", trailers),
        ("RST_STREAM", rst_stream(id, 8)),
        ("WINDOW_UPDATE", window_update(id, 1)),
    ]
}

/// Frames that must not be on a stream, or that continue nothing: errors of the connection in any state of the stream.
fn misplaced_frames(id: u32) -> [(&'static str, Vec<u8>); 6] {
    let promise = frame(PUSH_PROMISE, END_HEADERS, id, b"\0\0\0\x02\x82");
    [
        ("SETTINGS", frame(SETTINGS, 0, id, b"")),
        ("PUSH_PROMISE", promise),
        ("PING", frame(PING, 0, id, b"12345678")),
        ("GOAWAY", frame(GOAWAY, 0, id, b"12345678")),
        ("CONTINUATION", frame(CONTINUATION, END_HEADERS, id, b"")),
        (
            "PRIORITY_UPDATE",
            frame(PRIORITY_UPDATE, 0, id, b"\0\0\0\x01"),
        ),
    ]
}

/// Frames that are valid in any state of the stream.
fn harmless_frames(id: u32) -> [(&'static str, Vec<u8>); 2] {
    [
        ("PRIORITY", priority(id, 0, 16, false)),
        ("unknown", frame(0xee, 0xff, id, b"x")),
    ]
}

/// The result without details that other tests cover: the texts of errors and the last stream of GOAWAY.
fn brief((said, _): (Vec<String>, u32)) -> String {
    let brief = said
        .iter()
        .filter(|words| !words.starts_with("error"))
        .map(|words| match words.strip_prefix("GOAWAY ") {
            Some(rest) => format!(
                "GOAWAY {}",
                rest.split(' ')
                    .nth(1)
                    .expect("GOAWAY is shown with an error code")
            ),
            None => words.clone(),
        });
    brief.collect::<Vec<_>>().join("; ")
}

fn check(state: &str, id: u32, want: [&str; 6], play: impl Fn(&[u8]) -> String) {
    for ((name, input), want) in frames_of_streams(id).iter().zip(want) {
        assert_eq!(play(input), want, "{name} on a stream that is {state}");
    }
    for (name, input) in misplaced_frames(id) {
        assert_eq!(play(&input), "GOAWAY PROTOCOL_ERROR", "{name}, {state}");
    }
    for (name, input) in harmless_frames(id) {
        assert_eq!(play(&input), "", "{name}, {state}");
    }
}

const PROTOCOL: &str = "GOAWAY PROTOCOL_ERROR";
const CLOSED: &str = "GOAWAY STREAM_CLOSED";

#[test]
fn the_server_role_takes_each_frame_as_the_state_says() {
    use server::Conversation;
    let check = |state: &str, id, begin: &dyn Fn(&mut Conversation), want| {
        check(state, id, want, |input| {
            let begin = || {
                let mut talk = Conversation::new();
                begin(&mut talk);
                talk
            };
            brief(server::outcome(begin, input))
        });
    };
    let malformed = "RST_STREAM 1 PROTOCOL_ERROR";
    check(
        "idle",
        1,
        &|_| {},
        [PROTOCOL, PROTOCOL, PROTOCOL, malformed, PROTOCOL, PROTOCOL],
    );
    check(
        "idle, with a stream id of the server",
        2,
        &|_| {},
        [PROTOCOL; 6],
    );
    check(
        "open",
        1,
        &|talk| {
            talk.client_sends(post(1));
        },
        [
            "1 data a",
            "1 data a END",
            PROTOCOL,
            "1 trailers x=y",
            "1 reset CANCEL",
            "",
        ],
    );
    let late = "1 reset by us STREAM_CLOSED; RST_STREAM 1 STREAM_CLOSED";
    check(
        "half-closed (remote)",
        1,
        &|talk| {
            talk.client_sends(get(1));
        },
        [late, late, PROTOCOL, PROTOCOL, "1 reset CANCEL", ""],
    );
    // Only tunnels get into the state "half-closed (local)": if the response of any other stream ends before its request,
    // the whole stream ends.
    check(
        "half-closed (local)",
        1,
        &|talk| {
            talk.client_sends(headers(1, END_HEADERS, CONNECT))
                .respond(1, 200, true);
        },
        [
            "1 data a",
            "1 data a END",
            PROTOCOL,
            PROTOCOL,
            "1 reset CANCEL",
            "",
        ],
    );
    let closed = "RST_STREAM 1 STREAM_CLOSED";
    check(
        "closed by END_STREAM",
        1,
        &|talk| {
            talk.client_sends(get(1)).answer(1);
        },
        [closed, closed, CLOSED, CLOSED, "", ""],
    );
    check(
        "closed by the client's RST_STREAM",
        1,
        &|talk| {
            talk.client_sends(post(1)).client_sends(rst_stream(1, 8));
        },
        [closed, closed, CLOSED, CLOSED, "", ""],
    );
    check(
        "passed over",
        1,
        &|talk| {
            talk.client_sends(get(3));
        },
        [closed, closed, CLOSED, CLOSED, "", ""],
    );
}

#[test]
fn the_client_role_takes_each_frame_as_the_state_says() {
    use client::Conversation;
    let check = |state: &str, id, begin: &dyn Fn(&mut Conversation), want| {
        check(state, id, want, |input| {
            let begin = || {
                let mut talk = Conversation::new();
                begin(&mut talk);
                talk
            };
            brief(client::outcome(begin, input))
        });
    };
    let begun = headers(1, END_HEADERS, &[(":status", "200")]);
    let complete = headers(1, WHOLE, &[(":status", "200")]);
    let malformed = "1 reset by us PROTOCOL_ERROR; RST_STREAM 1 PROTOCOL_ERROR";
    let late = "1 reset by us STREAM_CLOSED; RST_STREAM 1 STREAM_CLOSED";
    let answer = "1 200 Unknown";
    let awaited = [malformed, malformed, answer, PROTOCOL, "1 reset CANCEL", ""];
    let answered = [
        "1 data a",
        "1 data a END",
        PROTOCOL,
        "1 trailers x=y",
        "1 reset CANCEL",
        "",
    ];
    check("idle", 1, &|_| {}, [PROTOCOL; 6]);
    check(
        "idle, with a stream id of the server",
        2,
        &|_| {},
        [PROTOCOL; 6],
    );
    check(
        "open",
        1,
        &|talk| {
            talk.posts();
        },
        awaited,
    );
    check(
        "open and answered",
        1,
        &|talk| {
            talk.posts();
            talk.server_sends(&begun);
        },
        answered,
    );
    check(
        "half-closed (local)",
        1,
        &|talk| {
            talk.gets();
        },
        awaited,
    );
    check(
        "half-closed (local) and answered",
        1,
        &|talk| {
            talk.gets();
            talk.server_sends(&begun);
        },
        answered,
    );
    check(
        "half-closed (remote)",
        1,
        &|talk| {
            talk.posts();
            talk.server_sends(&complete);
        },
        [late, late, late, late, "1 reset CANCEL", ""],
    );
    // The server may have sent frames for a stream before it knew that the client had closed it: the engine discards them.
    check(
        "closed",
        1,
        &|talk| {
            talk.gets();
            talk.server_sends(&complete);
        },
        [""; 6],
    );
    check(
        "cancelled",
        1,
        &|talk| {
            talk.gets();
            talk.release(1);
        },
        [""; 6],
    );
    check(
        "reset",
        1,
        &|talk| {
            talk.gets();
            talk.server_sends(rst_stream(1, 2));
        },
        [""; 6],
    );
}

#[test]
fn what_was_sent_before_the_client_could_know_of_a_reset_is_discarded() {
    let begun = |talk: &mut server::Conversation| {
        talk.client_sends(post(1));
    };
    // Ways in which the server ends a stream: by a response that does not need the rest of the request, by an error, and
    // before any handler saw the request.
    let ways: [&dyn Fn(&mut server::Conversation); 3] = [
        &|talk| {
            begun(talk);
            talk.respond(1, 413, true).release(1);
        },
        &|talk| {
            begun(talk);
            talk.client_sends(window_update(1, 0));
        },
        &|talk| {
            talk.client_sends(headers(1, END_HEADERS, &[(":method", "GET")]));
        },
    ];
    let late = [
        data(1, 0, &[0; 1000]).repeat(70),
        // The late HEADERS frame enters a field into the dynamic table, to which a later section refers.
        frame(HEADERS, WHOLE, 1, b"\x40\x01a\x01b"),
        post(3),
        frame(HEADERS, WHOLE, 3, b"\xbe"),
    ];
    for begin in ways {
        let begin = || {
            let mut talk = server::Conversation::new();
            begin(&mut talk);
            talk
        };
        let (said, costs) = server::outcome(begin, &late.concat());
        assert_eq!(
            said,
            ["3 POST / a.example", "3 trailers a=b"],
            "RFC 9113 §5.1"
        );
        assert!(costs <= 1, "uploads that are refused cost nothing: {costs}");
    }
}

#[test]
fn a_released_tunnel_ends_without_an_error() {
    let mut talk = server::Conversation::new();
    talk.client_sends(headers(1, END_HEADERS, CONNECT))
        .respond(1, 200, true)
        .release(1);
    talk.expect_output(
        "RFC 9113 §8.1",
        &["HEADERS 1 END :status=200", "RST_STREAM 1 NO_ERROR"],
    );
}
