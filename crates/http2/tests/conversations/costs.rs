//! Tests of the costs: useless work that a client causes is charged to its budget, the work to serve its requests is not.

use h2o_http2::Settings;

use crate::kit::frames::*;
use crate::kit::server::{Conversation, outcome};

#[test]
fn hostile_acts_cost_something_and_useful_ones_do_not() {
    let open = || {
        let mut talk = Conversation::new();
        talk.client_sends(post(1));
        talk
    };
    let ping = frame(PING, 0, 0, &[0; 8]);
    let seventeen = settings(&[(0x0a0a, 0); 17]);
    let cases: &[(&str, Vec<u8>, u32)] = &[
        ("a request", get(3), 0),
        ("content", data(1, 0, b"a"), 0),
        ("the end of content", data(1, END_STREAM, b""), 0),
        ("trailers", headers(1, WHOLE, &[("x", "y")]), 0),
        ("PING (CVE-2019-9512)", ping.repeat(2), 2),
        ("SETTINGS (CVE-2019-9515)", settings(&[(3, 1)]), 1),
        (
            "SETTINGS with seventeen values for one setting",
            seventeen,
            2,
        ),
        ("PRIORITY (CVE-2019-9513)", priority(1, 0, 7, false), 1),
        ("PRIORITY_UPDATE", priority_update(1, "u=1"), 1),
        ("WINDOW_UPDATE", window_update(1, 1), 0),
        ("WINDOW_UPDATE of the connection", window_update(0, 1), 0),
        ("unknown frames", frame(0xee, 0, 0, b""), 1),
        (
            "DATA without bytes (CVE-2019-9518)",
            data(1, 0, b"").repeat(3),
            3,
        ),
        ("DATA of padding", frame(DATA, PADDED, 1, b"\x01x"), 1),
        (
            "a request that the client resets (CVE-2023-44487)",
            rst_stream(1, 8),
            5,
        ),
        (
            "a reset of a stream that has ended",
            rst_stream(1, 8).repeat(2),
            10,
        ),
        (
            "a reset by the server that the client brings about (CVE-2025-8671)",
            window_update(1, 0),
            10,
        ),
        (
            "too many fields",
            headers(3, WHOLE, &[GET, &[("x", "y"); 101]].concat()),
            25,
        ),
    ];
    for (why, input, want) in cases {
        assert_eq!(outcome(open, input).1, *want, "{why}");
    }
}

#[test]
fn costs_are_reported_before_a_flood_is_through() {
    let mut talk = Conversation::new();
    let flood = frame(PING, 0, 0, &[0; 8]).repeat(1000);
    let (mut taken, mut reports) = (0, 0);
    loop {
        let step = talk
            .connection
            .receive(&flood[taken..], &mut talk.head, talk.now, &mut talk.out)
            .expect("the frames are valid");
        taken += step.taken;
        let costs = talk.connection.take_costs();
        assert!(costs <= 32, "one call counts at most 32 units of cost");
        if step.received == h2o_http2::Received::NeedMore {
            break;
        }
        reports += 1;
    }
    assert_eq!((taken, reports), (flood.len(), 1000 / 32));
}

#[test]
fn updates_of_windows_cost_nothing_while_content_explains_them() {
    let mut talk = Conversation::new();
    talk.client_sends(get(1)).respond_long(1, 1000);
    talk.client_sends(window_update(0, 1).repeat(256));
    assert_eq!(talk.costs, 0, "frames within the allowance cost nothing");
    talk.client_sends([window_update(0, 1), window_update(1, 1)].concat());
    assert_eq!(
        talk.costs, 2,
        "frames beyond the allowance cost, for the connection and for a stream"
    );
    talk.release(1).client_sends(window_update(1, 1).repeat(3));
    assert_eq!(
        talk.costs, 5,
        "frames beyond the allowance cost for a stream that has ended"
    );
}

#[test]
fn each_data_frame_explains_two_updates() {
    let mut talk = Conversation::new();
    talk.client_sends(get(1)).respond_long(1, 60_000);
    talk.client_sends(window_update(0, 1).repeat(256));
    assert_eq!(talk.send(3), [1; 3]);
    talk.client_sends(
        [window_update(0, 1), window_update(1, 1)]
            .concat()
            .repeat(3),
    );
    assert_eq!(
        talk.costs, 0,
        "each DATA frame allows one update of the stream and one of the connection"
    );
    talk.client_sends(window_update(1, 1));
    assert_eq!(talk.costs, 1, "a further WINDOW_UPDATE costs one unit");
}

#[test]
fn the_allowance_of_updates_does_not_grow() {
    let mut talk = Conversation::new();
    talk.client_sends(get(1)).respond_long(1, 60_000);
    assert_eq!(talk.send(9), [1; 4]);
    talk.client_sends(window_update(0, 1).repeat(257));
    assert_eq!(talk.costs, 1);
}

#[test]
fn windows_that_cut_content_into_crumbs_cost_something() {
    let mut talk = Conversation::unopened(Settings::default());
    talk.open(&[(4, 1)]);
    talk.client_sends(get(1)).respond_long(1, 100);
    talk.send(1);
    assert_eq!(talk.connection.take_costs(), 2, "CVE-2019-9511");
    for _ in 0..10 {
        talk.client_sends(window_update(1, 1));
        talk.send(1);
    }
    talk.costs += talk.connection.take_costs();
    assert_eq!(
        talk.costs, 20,
        "two units for each short DATA frame, none for the WINDOW_UPDATE frames that answer it"
    );
    talk.client_sends(window_update(1, 1000));
    talk.send(1);
    assert_eq!(
        talk.connection.take_costs(),
        0,
        "a DATA frame that is short because the content ends costs nothing"
    );
}
