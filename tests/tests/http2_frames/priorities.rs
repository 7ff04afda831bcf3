//! The order in which responses share a connection.

use h2o_tests::Server;
use h2o_tests::http2::{Frame, Http2, code, encode, get, kind, setting};

use super::kit::*;

/// A connection whose own window is used up, while the windows of its streams are large: the server can send nothing.
fn with_a_shut_connection(server: &Server, settings: &[(u16, u32)]) -> Http2 {
    let settings = [&[(setting::INITIAL_WINDOW_SIZE, 1 << 24)], settings].concat();
    let mut connection = Http2::open(server.port(), &settings);
    let answer = connection.ask(1, &get("/window"));
    assert_eq!(answer.body.len(), DEFAULT_WINDOW);
    connection
}

/// Waits until the response heads of all these streams have come, then opens the connection's window `count` times by `step` bytes. Returns
/// the stream of each DATA frame, in the order received.
fn order(connection: &mut Http2, streams: &[u32], step: u16, count: usize) -> Vec<u32> {
    connection.read_until("the heads of the responses on all streams", |connection| {
        let mut streams = streams.iter();
        streams.all(|stream| connection.answer(*stream).status() == 200)
    });
    // When the PING is answered, the server has read ahead what it reads before the window opens.
    connection.ping();
    let begin = connection.frames.len();
    let mut total = 0;
    let received = |connection: &Http2| -> usize {
        let data = connection.frames[begin..].iter();
        data.filter(|frame| frame.kind == kind::DATA)
            .map(|frame| frame.payload.len())
            .sum()
    };
    for _ in 0..count {
        connection.send_frame(&Frame::window_update(0, step.into()));
        total += usize::from(step);
        connection.read_until("as much content as the window allows", |connection| {
            let all_over = streams
                .iter()
                .all(|stream| connection.answer(*stream).is_over());
            received(connection) >= total || all_over
        });
    }
    let data = connection.frames[begin..].iter();
    data.filter(|frame| frame.kind == kind::DATA && !frame.payload.is_empty())
        .map(|frame| frame.stream)
        .collect()
}

/// Removes repetitions that follow each other.
fn runs(order: &[u32]) -> Vec<u32> {
    let mut runs = order.to_vec();
    runs.dedup();
    runs
}

const FILES: [&str; 3] = ["/60k-a", "/60k-b", "/60k-c"];

fn asking_with_priority(stream: u32, path: &str, priority: &str) -> Frame {
    let fields: &[(&str, &str)] = &[("priority", priority)];
    let fields = if priority.is_empty() { &[] } else { fields };
    Frame::request(stream, [get(path), encode(fields)].concat())
}

/// Unlike H2O, this server follows the priorities of RFC 9218 on HTTP/2 too.
#[test]
fn urgency_decides_which_of_three_responses_goes_first() {
    let server = start("");
    let no_tree = &[(setting::NO_RFC7540_PRIORITIES, 1)][..];
    // A name, the `priority` fields of the requests on streams 3, 5 and 7, the PRIORITY_UPDATE frames that follow, and the order expected.
    type Case = (
        &'static str,
        [&'static str; 3],
        &'static [(u32, &'static str)],
        &'static [u32],
    );
    let cases: [Case; 6] = [
        ("urgencies 5, 1, 3", ["u=5", "u=1", "u=3"], &[], &[5, 7, 3]),
        (
            "urgencies 7, default, 0",
            ["u=7", "", "u=0"],
            &[],
            &[7, 5, 3],
        ),
        ("all alike", ["u=2", "u=2", "u=2"], &[], &[3, 5, 7]),
        (
            "an update raises the last",
            ["u=3", "u=3", "u=3"],
            &[(7, "u=0")],
            &[7, 3, 5],
        ),
        (
            "an update lowers the first",
            ["", "u=3", "u=3"],
            &[(3, "u=6")],
            &[5, 7, 3],
        ),
        (
            "the last of two updates counts",
            ["u=1", "u=2", "u=3"],
            &[(5, "u=7"), (5, "u=0")],
            &[5, 3, 7],
        ),
    ];
    for settings in [no_tree, &[]] {
        for (name, fields, updates, want) in cases {
            let mut connection = with_a_shut_connection(&server, settings);
            for ((stream, path), priority) in [3, 5, 7].into_iter().zip(FILES).zip(fields) {
                connection.send_frame(&asking_with_priority(stream, path, priority));
            }
            for (stream, value) in updates {
                connection.send_frame(&Frame::priority_update(*stream, value));
            }
            let order = order(&mut connection, &[3, 5, 7], 5000, 36);
            assert_eq!(runs(&order), want, "{name}, {settings:?}");
        }
    }
}

#[test]
fn an_update_ahead_of_its_request_counts() {
    let server = start("");
    let no_tree = [(setting::NO_RFC7540_PRIORITIES, 1)];
    let mut connection = with_a_shut_connection(&server, &no_tree);
    connection.send_frame(&Frame::priority_update(7, "u=0"));
    for (stream, path) in [3, 5, 7].into_iter().zip(FILES) {
        connection.send_frame(&asking_with_priority(stream, path, "u=2"));
    }
    let order = order(&mut connection, &[3, 5, 7], 5000, 36);
    assert_eq!(runs(&order), [7, 3, 5]);
}

#[test]
fn incremental_responses_of_one_urgency_share_the_connection() {
    let server = start("");
    let no_tree = [(setting::NO_RFC7540_PRIORITIES, 1)];
    let mut connection = with_a_shut_connection(&server, &no_tree);
    for (stream, path) in [3, 5, 7].into_iter().zip(FILES) {
        connection.send_frame(&asking_with_priority(stream, path, "u=2, i"));
    }
    let order = order(&mut connection, &[3, 5, 7], 2000, 30);
    for stream in [3, 5, 7] {
        let length = connection.answer(stream).body.len();
        assert!(
            (14_000..=26_000).contains(&length),
            "{stream}: {length} of 60,000\n{order:?}"
        );
    }
}

#[test]
fn exclusive_chains_are_sent_one_after_the_other() {
    let server = start("");
    let mut connection = with_a_shut_connection(&server, &[]);
    // Priorities as Chromium sends them: each stream depends exclusively on the last one that is at least as urgent.
    for (stream, parent, weight, path) in [
        (3, 0, 220, FILES[0]),
        (5, 3, 147, FILES[1]),
        (7, 0, 256, FILES[2]),
    ] {
        let frame = Frame::request_after(stream, true, parent, weight, &get(path));
        connection.send_frame(&frame);
    }
    let first = order(&mut connection, &[3, 5, 7], 5000, 6);
    assert_eq!(
        runs(&first),
        [7],
        "the new stream is sent before all others"
    );
    // A fourth request depends exclusively on stream 7, so that it is answered after 7 and before 3 and 5.
    let frame = Frame::request_after(9, true, 7, 183, &get(FILES[0]));
    connection.send_frame(&frame);
    let rest = order(&mut connection, &[3, 5, 7, 9], 5000, 42);
    assert_eq!(runs(&rest), [7, 9, 3, 5]);
}

#[test]
fn groups_of_placeholders_share_in_proportion() {
    let server = start("");
    let mut connection = with_a_shut_connection(&server, &[]);
    // Priorities as Firefox sends them, with six idle streams as groups: leaders, others, background, speculative, followers, urgent.
    for (stream, parent, weight) in [
        (3, 0, 201),
        (5, 0, 101),
        (7, 0, 1),
        (9, 7, 1),
        (11, 3, 1),
        (13, 0, 241),
    ] {
        connection.send_frame(&Frame::priority(stream, false, parent, weight));
    }
    for (stream, parent, weight) in [(15, 3, 32), (17, 5, 32), (19, 11, 32), (21, 9, 32)] {
        connection.send_frame(&Frame::request_after(
            stream,
            false,
            parent,
            weight,
            &get("/large"),
        ));
    }
    // The window is opened 303 times: 201 + 101 + 1, the sum of the weights of the groups `leaders`, `others` and `background`.
    let _ = order(&mut connection, &[15, 17, 19, 21], 500, 303);
    let sent = |stream| connection.answer(stream).body.len();
    let all: usize = [15, 17, 19, 21].map(sent).iter().sum();
    let share = |part: usize| part * 303 / all;
    let shares = [share(sent(15) + sent(19)), share(sent(17)), share(sent(21))];
    assert!(
        (185..=217).contains(&shares[0]),
        "shares of leaders and followers: {shares:?}"
    );
    assert!(
        (85..=117).contains(&shares[1]),
        "shares of other streams: {shares:?}"
    );
    assert!(shares[2] <= 8, "shares of speculative streams: {shares:?}");
    // The group of followers has weight 1 and competes with a leader of weight 32.
    let (leader, follower) = (sent(15), sent(19));
    assert!(
        follower * 16 <= leader && follower * 64 >= leader,
        "{leader} and {follower}"
    );
}

#[test]
fn a_stream_is_served_before_those_that_depend_on_it() {
    let server = start("");
    let mut connection = with_a_shut_connection(&server, &[]);
    connection.send_frame(&Frame::request_after(3, false, 0, 16, &get(FILES[0])));
    connection.send_frame(&Frame::request_after(5, false, 3, 256, &get(FILES[1])));
    connection.send_frame(&Frame::request_after(7, false, 5, 256, &get(FILES[2])));
    let first = order(&mut connection, &[3, 5, 7], 5000, 6);
    assert_eq!(runs(&first), [3]);
    // A PRIORITY frame changes the priority of a stream while its response is being sent.
    connection.send_frame(&Frame::priority(5, true, 0, 16));
    let rest = order(&mut connection, &[3, 5, 7], 5000, 30);
    assert_eq!(rest.first(), Some(&5), "{rest:?}");
    assert_eq!(connection.answer(5).body.len(), 60_000);
    let last_5 = rest.iter().rposition(|&stream| stream == 5);
    let other = rest.iter().position(|&stream| stream != 5);
    assert!(
        last_5 < other,
        "stream 5 is not sent before all others: {rest:?}"
    );
}

#[test]
fn sixteen_placeholders_are_kept() {
    let server = start("");
    let placeholders = |count: u32| (1..=count).map(|n| Frame::priority(2 * n + 1, false, 0, 16));
    let rows = [
        row("16 placeholders", placeholders(16), Want::Nothing),
        row(
            "16 placeholders, each twice",
            placeholders(16).chain(placeholders(16)),
            Want::Nothing,
        ),
        row(
            "17 placeholders",
            placeholders(17),
            Want::GoAway(
                0,
                code::ENHANCE_YOUR_CALM,
                "too many streams in idle/closed state",
            ),
        ),
        row(
            "placeholders become streams, which makes room",
            placeholders(16).chain([small(3), Frame::priority(101, false, 0, 16)]),
            Want::Answer(3, 200, "hello"),
        ),
    ];
    play(&server, &rows);
}
