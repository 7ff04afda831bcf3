//! Tests of priorities (RFC 9218): the `priority` field, PRIORITY_UPDATE before and after the request, and which stream
//! sends next.

use h2o_http::priority::{PriorityField, PriorityParameters};
use h2o_testkit::http3::{Frame, kind};

use crate::kit::server::{Conversation, outcome};
use crate::kit::{CONNECT, CONTROL, GET, assert_said, frame, headers};

fn update(stream: u64, value: &str) -> Vec<u8> {
    Frame::priority_update(stream, value).bytes()
}

fn get(talk: &mut Conversation, id: u64, priority: &str) {
    let fields = [GET, &[("priority", priority)]].concat();
    talk.ends(id, headers(&fields));
    talk.events.clear();
}

fn priority(talk: &Conversation, id: u64) -> (u8, bool) {
    let PriorityParameters {
        urgency,
        incremental,
    } = talk.connection.priority(talk.key(id));
    (urgency, incremental)
}

/// Lets the streams send one piece of content each time, and returns their identifiers in this order.
fn turns(talk: &mut Conversation, count: usize) -> Vec<u64> {
    (0..count)
        .map_while(|_| {
            let key = talk.connection.poll_send()?;
            let mut out = Vec::new();
            talk.connection.send_data(key, b"piece", false, &mut out);
            Some(talk.connection.stream_id(key)?.get())
        })
        .collect()
}

#[test]
fn the_field_of_the_request_says_how_urgent_it_is() {
    let mut talk = Conversation::new();
    get(&mut talk, 0, "u=5, i");
    get(&mut talk, 4, "");
    talk.sends(8, headers(CONNECT));
    assert_eq!(priority(&talk, 0), (5, true));
    assert_eq!(priority(&talk, 4), (3, false));
    assert_eq!(priority(&talk, 8), (3, true), "a tunnel is incremental");
}

#[test]
fn an_update_replaces_the_field_whenever_it_comes() {
    let mut talk = Conversation::new();
    talk.sends(CONTROL, update(4, "u=1"));
    talk.sends(CONTROL, update(4, "u=2"));
    get(&mut talk, 4, "u=6, i");
    assert_eq!(
        priority(&talk, 4),
        (2, false),
        "the later of two updates before the request counts"
    );
    talk.sends(CONTROL, update(4, "i"));
    talk.expect(
        "a PRIORITY_UPDATE after the request",
        &["4 priority u=3 i=true"],
    );
    // The PRIORITY_UPDATE arrives between the first bytes of the stream and the end of its head.
    let head = headers(&[GET, &[("priority", "u=7")]].concat());
    talk.sends(8, &head[..4]);
    talk.sends(CONTROL, update(8, "u=0"));
    talk.ends(8, &head[4..]);
    assert_eq!(priority(&talk, 8), (0, false));
    // A PRIORITY_UPDATE for a stream that has ended is ignored.
    talk.release(4);
    talk.events.clear();
    talk.sends(CONTROL, update(4, "u=0"));
    talk.expect("a PRIORITY_UPDATE for a stream that has ended", &[]);
}

#[test]
fn updates_that_are_wrong_end_the_connection() {
    let id = ["close H3_ID_ERROR"];
    let malformed = ["close H3_FRAME_ERROR invalid PRIORITY_UPDATE frame"];
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        (
            "PRIORITY_UPDATE of a stream that is not for requests",
            update(2, "u=1"),
            &id,
        ),
        (
            "PRIORITY_UPDATE of a stream of the server",
            update(1, "u=1"),
            &id,
        ),
        (
            "PRIORITY_UPDATE of a stream beyond the limit",
            update(400, "u=1"),
            &id,
        ),
        (
            "PRIORITY_UPDATE of the last stream within the limit",
            update(396, "u=1"),
            &[],
        ),
        (
            "PRIORITY_UPDATE without a stream id",
            frame(kind::PRIORITY_UPDATE, b""),
            &malformed,
        ),
        (
            "PRIORITY_UPDATE with half a stream id",
            frame(kind::PRIORITY_UPDATE, b"\x40"),
            &malformed,
        ),
        (
            "PRIORITY_UPDATE of a push",
            frame(kind::PRIORITY_UPDATE_PUSH, b"\0u=1"),
            &["close H3_GENERAL_PROTOCOL_ERROR"],
        ),
        (
            "PRIORITY_UPDATE with an invalid value",
            update(0, "\u{1}"),
            &[],
        ),
    ];
    for (why, input, want) in cases {
        assert_said(
            &outcome(Conversation::new, CONTROL, input, false),
            want,
            why,
        );
    }
    let mut talk = Conversation::new();
    for stream in 0..17 {
        talk.sends(CONTROL, update(4 * stream, "u=1"));
    }
    let want = ["close H3_EXCESSIVE_LOAD the abuse budget is used up"];
    talk.expect(
        "priorities for seventeen streams that are not opened",
        &want,
    );
}

#[test]
fn streams_take_turns_by_urgency() {
    let mut talk = Conversation::new();
    for (id, field) in [
        (0, "u=5"),
        (4, "u=3"),
        (8, "u=1, i"),
        (12, "u=1, i"),
        (16, ""),
    ] {
        get(&mut talk, id, field);
        talk.responds(id, 200, &[], None, false);
        let key = talk.key(id);
        talk.connection.set_ready(key, true);
        talk.connection.set_ready(key, true);
    }
    assert_eq!(
        turns(&mut talk, 4),
        [8, 12, 8, 12],
        "the most urgent incremental streams share the turns"
    );
    for id in [8, 12] {
        let key = talk.key(id);
        talk.connection.set_ready(key, false);
    }
    assert_eq!(
        turns(&mut talk, 2),
        [4, 4],
        "streams that are not incremental are sent one after the other"
    );
    let (key, mut out) = (talk.key(4), Vec::new());
    talk.connection.finish(key, None, &mut out);
    assert_eq!(turns(&mut talk, 1), [16]);
    // A PRIORITY_UPDATE changes the order at once.
    talk.sends(CONTROL, update(0, "u=0"));
    assert_eq!(turns(&mut talk, 1), [0]);
    // The `priority` field of a response changes the order, too.
    let key = talk.key(16);
    talk.connection
        .schedule(key, PriorityField::parse(b"u=0, i"));
    assert_eq!(priority(&talk, 16), (0, true));
    let key = talk.key(0);
    talk.connection.schedule(key, PriorityField::parse(b"u=7"));
    assert_eq!(turns(&mut talk, 2), [16, 16]);
    // A stream that is cancelled or released does not get a turn any more.
    talk.stops(16, 0x10c);
    assert_eq!(turns(&mut talk, 1), [0]);
    talk.release(0);
    assert_eq!(turns(&mut talk, 1), [0; 0]);
}
