//! Tests of the order in which content is sent (RFC 7540 §5.3 and RFC 9218), also for pushed responses.

use h2o_http::priority::PriorityField;
use h2o_http2::{SchedulingHint, Settings};

use crate::kit::client::request;
use crate::kit::frames::*;
use crate::kit::server::Conversation;

const FRAME: usize = 16_384;

/// A connection whose flow control windows are so large that they never limit the content.
fn wide() -> Conversation {
    let mut talk = Conversation::unopened(Settings::default());
    talk.open(&[(4, 1 << 30)])
        .client_sends(window_update(0, 1 << 30));
    talk
}

fn get_after(stream: u32, on: u32, weight: u16, is_exclusive: bool) -> Vec<u8> {
    let payload = [dependency(on, weight, is_exclusive), block(GET)].concat();
    frame(HEADERS, WITH_PRIORITY | WHOLE, stream, &payload)
}

fn get_with_priority(stream: u32, value: &str) -> Vec<u8> {
    headers(stream, WHOLE, &[GET, &[("priority", value)]].concat())
}

fn count(turns: &[u32], id: u32) -> usize {
    turns.iter().filter(|turn| **turn == id).count()
}

#[test]
fn streams_without_priorities_take_turns() {
    let mut talk = wide();
    talk.client_sends([get(1), get(3), get(5)].concat());
    for id in [1, 3, 5] {
        talk.respond_long(id, 2 * FRAME);
    }
    assert_eq!(talk.send(9), [1, 3, 5, 1, 3, 5]);
}

#[test]
fn the_groups_of_firefox_share_by_weight() {
    // Firefox gives idle streams places as groups of its requests: stream 3 stands for leaders (weight 201), 11 for
    // followers (weight 1, below 3), 5 for unblocked requests (101), and 7 for background ones (1).
    let mut talk = wide();
    talk.client_sends(
        [
            priority(3, 0, 201, false),
            priority(5, 0, 101, false),
            priority(7, 0, 1, false),
            priority(9, 7, 1, false),
            priority(11, 3, 1, false),
            get_after(13, 3, 32, false),
            get_after(15, 5, 32, false),
            get_after(17, 11, 22, false),
            get_after(19, 9, 2, false),
        ]
        .concat(),
    );
    for id in [13, 15, 17, 19] {
        talk.respond_long(id, 1000 * FRAME);
    }
    let turns = talk.send(606);
    let (leader, unblocked) = (count(&turns, 13) + count(&turns, 17), count(&turns, 15));
    assert!(
        (390..=410).contains(&leader),
        "leaders get 201 of 303 turns: {leader}"
    );
    assert!(
        (190..=212).contains(&unblocked),
        "unblocked streams get 101 of 303 turns: {unblocked}"
    );
    assert!(
        count(&turns, 17) >= 10,
        "followers get 1 of 33 turns: {}",
        count(&turns, 17)
    );
    assert!(
        (1..=4).contains(&count(&turns, 19)),
        "background streams get 1 of 303 turns"
    );
}

#[test]
fn the_chain_of_chromium_is_sent_in_order() {
    let mut talk = wide();
    // Each stream depends exclusively on the previous one; the last, more urgent stream is put between them.
    talk.client_sends(
        [
            get_after(1, 0, 256, true),
            get_after(3, 1, 220, true),
            get_after(5, 1, 256, true),
        ]
        .concat(),
    );
    for id in [3, 5, 1] {
        talk.respond_long(id, 2 * FRAME);
    }
    assert_eq!(talk.send(9), [1, 1, 5, 5, 3, 3]);
}

#[test]
fn a_stream_that_cannot_send_leaves_its_share_to_those_that_depend_on_it() {
    let mut talk = wide();
    talk.client_sends([get_after(1, 0, 256, true), get_after(3, 1, 16, true)].concat());
    talk.respond_long(3, 2 * FRAME).respond_long(1, FRAME);
    talk.connection.set_content(talk.key(1), false);
    assert_eq!(talk.send(1), [3]);
    talk.connection.set_content(talk.key(1), true);
    assert_eq!(talk.send(9), [1, 3]);
}

#[test]
fn urgencies_go_first_and_incremental_ones_take_turns() {
    let mut talk = wide();
    talk.client_sends(
        [
            get_with_priority(1, "u=5"),
            get_with_priority(3, "u=3, i"),
            get_with_priority(5, "u=3, i"),
            get_with_priority(7, "u=0"),
            get_with_priority(9, "u=0"),
        ]
        .concat(),
    );
    for id in [1, 3, 5, 7, 9] {
        talk.respond_long(id, 2 * FRAME);
    }
    assert_eq!(
        talk.send(99),
        [7, 7, 9, 9, 3, 5, 3, 5, 1, 1],
        "RFC 9218 §10"
    );
}

#[test]
fn priorities_can_be_changed_before_and_after_the_request() {
    let mut talk = wide();
    talk.client_sends(
        [
            priority_update(3, "u=1"),
            get_with_priority(1, "u=2"),
            get(3),
            get(5),
        ]
        .concat(),
    );
    for id in [1, 3, 5] {
        talk.respond_long(id, 2 * FRAME);
    }
    assert_eq!(
        talk.send(1),
        [3],
        "RFC 9218 §7: the priority was known before the request"
    );
    talk.client_sends(priority_update(5, "u=0"));
    assert_eq!(talk.send(99), [5, 5, 3, 1, 1]);
    talk.client_sends(priority_update(0, "u=0"));
    talk.expect_output_last(
        "RFC 9218 §7.1: stream 0",
        "GOAWAY 5 PROTOCOL_ERROR invalid PRIORITY_UPDATE frame",
    );
}

#[test]
fn responses_may_say_better() {
    let mut talk = wide();
    talk.client_sends([get_with_priority(1, "u=3"), get_with_priority(3, "u=3")].concat());
    let hint = SchedulingHint {
        priority: Some(PriorityField::parse(b"u=1")),
        ..SchedulingHint::default()
    };
    talk.respond_long(1, FRAME).respond_long(3, FRAME);
    talk.schedule(3, hint);
    assert_eq!(talk.send(9), [3, 1], "RFC 9218 §8");
}

#[test]
fn a_stream_cannot_depend_on_itself() {
    let mut talk = wide();
    talk.client_sends(priority(1, 1, 16, false));
    talk.expect_output_last(
        "RFC 7540 §5.3.1",
        "GOAWAY 0 PROTOCOL_ERROR stream cannot depend on itself",
    );
}

#[test]
fn placeholders_are_limited() {
    let mut talk = wide();
    for stream in 0..1000 {
        talk.client_sends(priority(2 * stream + 1, 0, 16, false));
        if !talk.events.is_empty() {
            break;
        }
    }
    talk.expect(
        "priorities for too many idle streams",
        &["error TooManyIdle"],
    );
    talk.expect_output_last(
        "H2O compatibility",
        "GOAWAY 0 ENHANCE_YOUR_CALM too many streams in idle/closed state",
    );
}

#[test]
fn pushes_are_promised_while_the_client_takes_them() {
    let mut talk = wide();
    talk.client_sends(get(1)).respond(1, 200, false);
    talk.output();
    let head = request("GET", "/style.css", "a.example");
    let parent = talk.key(1);
    let key = talk
        .connection
        .promise(parent, &head, &mut talk.out)
        .expect("the client allows a push");
    talk.keys.insert(2, key);
    talk.expect_output(
        "RFC 9113 §8.4.1",
        &["PUSH_PROMISE 1 2 :method=GET :scheme=http :authority=a.example :path=/style.css"],
    );
    talk.respond_long(2, 5);
    assert_eq!(talk.send(9), [2]);
    talk.expect_output(
        "the pushed response is sent on its own stream",
        &["HEADERS 2 :status=200", "DATA 2 5 END"],
    );
    talk.release(2);

    let key = talk
        .connection
        .promise(parent, &head, &mut talk.out)
        .expect("the client allows a push");
    talk.keys.insert(4, key);
    talk.output();
    talk.client_sends(rst_stream(4, 8)).expect(
        "the client resets the pushed stream",
        &["1 GET / a.example END", "4 reset CANCEL"],
    );
    talk.respond(4, 200, false)
        .expect_output("no content is sent on the stream that was reset", &[]);
    talk.release(4);

    talk.client_sends(settings(&[(3, 0)]));
    assert!(
        talk.connection
            .promise(parent, &head, &mut talk.out)
            .is_none(),
        "§5.1.2: the client allows no pushed streams"
    );
    talk.client_sends(settings(&[(3, 1)]));
    assert!(talk.connection.can_push());
    talk.client_sends(settings(&[(2, 0)]));
    assert!(!talk.connection.can_push(), "§6.5.2: off");
    talk.client_sends(settings(&[(2, 1)]));
    talk.client_sends(goaway(0, 0));
    assert!(
        !talk.connection.can_push(),
        "§6.8: a client that has sent GOAWAY gets no pushes"
    );
}

#[test]
fn pushed_streams_are_not_the_clients_to_send_on() {
    let begin = || {
        let mut talk = wide();
        talk.client_sends(get(1)).respond(1, 200, false);
        let head = request("GET", "/", "a.example");
        let key = talk
            .connection
            .promise(talk.key(1), &head, &mut talk.out)
            .expect("the client allows a push");
        talk.keys.insert(2, key);
        talk
    };
    let headers_id = [
        "error HeadersStreamId",
        "GOAWAY 1 PROTOCOL_ERROR invalid stream id in HEADERS frame",
    ];
    crate::kit::server::check(
        begin,
        &[
            (
                "§5.1: reserved (local): DATA",
                data(2, 0, b"a"),
                &["2 reset by us STREAM_CLOSED", "RST_STREAM 2 STREAM_CLOSED"],
            ),
            ("HEADERS", headers(2, WHOLE, &[("x", "y")]), &headers_id),
            ("WINDOW_UPDATE", window_update(2, 1), &[]),
            ("RST_STREAM", rst_stream(2, 8), &["2 reset CANCEL"]),
            ("PRIORITY", priority(2, 0, 1, false), &[]),
            (
                "idle: WINDOW_UPDATE",
                window_update(4, 1),
                &[
                    "error IdleStream(FrameType(8))",
                    "GOAWAY 1 PROTOCOL_ERROR invalid stream id in WINDOW_UPDATE frame",
                ],
            ),
        ],
    );
}
