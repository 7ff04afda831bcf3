//! Tests of the flow control windows of streams and of the connection (RFC 9113 §5.2 and §6.9), and of the settings that
//! change them.

use h2o_http2::{CONNECTION_WINDOW, Settings};

use crate::kit::frames::*;
use crate::kit::server::{Conversation, check};

/// A connection on which the client has announced `window` as the initial window of its streams.
fn with_window(window: u32) -> Conversation {
    let mut talk = Conversation::unopened(Settings::default());
    talk.open(&[(4, window)]);
    talk
}

#[test]
fn content_stops_at_the_window_of_the_stream() {
    let mut talk = with_window(10);
    talk.client_sends(get(1)).respond_long(1, 25);
    assert_eq!(talk.send(9), [1]);
    talk.expect_output(
        "the window allows ten bytes",
        &["HEADERS 1 :status=200", "DATA 1 10"],
    );
    assert!(!talk.connection.has_sendable());
    talk.client_sends(window_update(1, 1));
    assert_eq!(talk.send(9), [1]);
    talk.client_sends(window_update(1, 14));
    assert_eq!(talk.send(9), [1]);
    talk.expect_output(
        "each WINDOW_UPDATE allows as many bytes",
        &["DATA 1 1", "DATA 1 14 END"],
    );
}

#[test]
fn content_stops_at_the_window_of_the_connection() {
    let mut talk = with_window(1 << 20);
    talk.client_sends([get(1), get(3)].concat());
    talk.respond_long(1, 60_000).respond_long(3, 60_000);
    talk.output();
    assert_eq!(
        talk.send(9),
        [1, 3, 1, 3],
        "streams of equal priority send in turns"
    );
    talk.expect_output(
        "the streams send as many bytes as the connection's window allows, 65,535",
        &[
            "DATA 1 16384",
            "DATA 3 16384",
            "DATA 1 16384",
            "DATA 3 16383",
        ],
    );
    assert!(!talk.connection.has_sendable());
    talk.client_sends(window_update(0, 100_000));
    talk.send(99);
    let sent: usize = talk
        .reader
        .content
        .iter()
        .map(|(_, content)| content.len())
        .sum();
    talk.output();
    let all: usize = talk
        .reader
        .content
        .iter()
        .map(|(_, content)| content.len())
        .sum();
    assert_eq!((sent, all), (65_535, 120_000));
}

#[test]
fn heads_and_ends_need_no_window() {
    let mut talk = with_window(0);
    talk.client_sends([get(1), get(3)].concat());
    talk.respond(1, 200, false).respond(3, 204, true);
    talk.connection.finish(talk.key(1), None, &mut talk.out);
    talk.expect_output(
        "RFC 9113 §6.9.1",
        &[
            "HEADERS 1 :status=200",
            "HEADERS 3 END :status=204",
            "DATA 1 0 END",
        ],
    );
}

#[test]
fn frames_are_no_longer_than_the_peer_takes_and_never_longer_than_everybody_takes() {
    let mut talk = Conversation::unopened(Settings::default());
    talk.open(&[(5, 1 << 20), (4, 1 << 20)]);
    talk.client_sends(get(1)).respond_long(1, 20_000);
    talk.output();
    talk.send(9);
    talk.expect_output(
        "frames have at most 16,384 bytes, so that streams take turns",
        &["DATA 1 16384", "DATA 1 3616 END"],
    );
}

#[test]
fn settings_move_the_windows_of_open_streams() {
    let mut talk = with_window(10);
    talk.client_sends(get(1)).respond_long(1, 30);
    talk.send(9);
    talk.client_sends(settings(&[(4, 5)]));
    talk.output();
    talk.client_sends(window_update(1, 5));
    assert_eq!(talk.send(9), [0; 0], "RFC 9113 §6.9.2: the window was -5");
    talk.client_sends(window_update(1, 1));
    assert_eq!(talk.send(9), [1]);
    talk.client_sends(settings(&[(4, 8)]));
    assert_eq!(talk.send(9), [1]);
    talk.expect_output(
        "one byte, then three bytes",
        &["DATA 1 1", "SETTINGS ACK", "DATA 1 3"],
    );
    talk.client_sends(get(3)).respond_long(3, 30);
    talk.output();
    talk.send(9);
    talk.expect_output("new streams have the new window", &["DATA 3 8"]);
}

#[test]
fn settings_that_make_a_window_overflow_end_the_connection() {
    let begin = || {
        let mut talk = with_window(10);
        talk.client_sends([get(1), window_update(1, 0x7fff_ffff - 10)].concat());
        talk
    };
    check(
        begin,
        &[
            (
                "SETTINGS make the window 2^31-1",
                settings(&[(4, 10)]),
                &["SETTINGS ACK"],
            ),
            (
                "SETTINGS make the window 2^31 (RFC 9113 §6.9.2)",
                settings(&[(4, 11)]),
                &[
                    "error SettingsWindow",
                    "GOAWAY 1 FLOW_CONTROL_ERROR invalid SETTINGS frame",
                ],
            ),
        ],
    );
}

#[test]
fn a_client_may_send_what_its_window_allows_and_no_byte_more() {
    let full = vec![0; 16_384];
    let mut input = post(1);
    for _ in 0..3 {
        input.extend(data(1, 0, &full));
    }
    let mut talk = Conversation::new();
    talk.client_sends(&input)
        .client_sends(data(1, 0, &full[..16_383]));
    talk.events.clear();
    talk.expect_output(
        "no WINDOW_UPDATE is sent for content that the handler has not taken",
        &[],
    );
    talk.client_sends(data(1, 0, b"a")).expect(
        "one byte more than the window",
        &["1 reset by us FLOW_CONTROL_ERROR"],
    );

    // Padding counts against the windows as well (RFC 9113 §6.1); the engine gives it back at once.
    let mut talk = Conversation::new();
    talk.client_sends(&input)
        .client_sends(data(1, 0, &full[..16_300]));
    talk.events.clear();
    talk.client_sends(frame(DATA, PADDED, 1, &[&[83][..], &[0; 83]].concat()))
        .expect(
            "83 bytes of padding and its length",
            &["1 reset by us FLOW_CONTROL_ERROR"],
        );
}

#[test]
fn content_that_is_wanted_opens_the_window_and_content_used_refills_it() {
    let with = Settings {
        input_window: 100_000,
        ..Settings::default()
    };
    let mut talk = Conversation::with(with);
    talk.client_sends(post(1));
    let key = talk.key(1);
    talk.connection.accept_content(key, &mut talk.out);
    talk.connection.accept_content(key, &mut talk.out);
    talk.expect_output("the window is opened once", &["WINDOW_UPDATE 1 34465"]);
    for _ in 0..4 {
        talk.client_sends(data(1, 0, &[0; 16_000]));
    }
    talk.connection.release_content(key, 30_000, &mut talk.out);
    talk.expect_output("the window is larger than the released bytes", &[]);
    talk.connection.release_content(key, 6_000, &mut talk.out);
    talk.expect_output(
        "the released bytes are as many as the window",
        &["WINDOW_UPDATE 1 36000"],
    );
    talk.client_sends(data(1, END_STREAM, b""));
    talk.connection.release_content(key, 28_000, &mut talk.out);
    talk.expect_output(
        "no WINDOW_UPDATE is sent for a stream without further content",
        &[],
    );
}

#[test]
fn the_window_of_the_connection_is_given_back_at_once() {
    let mut talk = Conversation::with(Settings {
        input_window: 1 << 30,
        ..Settings::default()
    });
    talk.client_sends(post(1));
    let key = talk.key(1);
    talk.connection.accept_content(key, &mut talk.out);
    talk.output();
    let half = CONNECTION_WINDOW / 2;
    let mut sent = 0;
    while sent + 16_384 < half {
        talk.client_sends(data(1, 0, &[0; 16_384]));
        talk.connection.release_content(key, 16_384, &mut talk.out);
        sent += 16_384;
    }
    talk.expect_output(
        "no WINDOW_UPDATE is sent before half of the window is used",
        &[],
    );
    assert_eq!(talk.connection.windows().0, CONNECTION_WINDOW - sent);
    talk.client_sends(data(1, 0, &[0; 16_384]));
    talk.expect_output("half of the window is used", &["WINDOW_UPDATE 0 8388608"]);
    assert_eq!(talk.connection.windows().0, CONNECTION_WINDOW);
}

#[test]
fn content_that_is_not_dealt_with_shuts_the_window_of_the_connection_before_it_is_much_more_than_one()
 {
    const STREAMS: u32 = 8;
    let mut talk = Conversation::new();
    let window = usize::try_from(CONNECTION_WINDOW).unwrap();
    for number in 0..STREAMS {
        talk.client_sends(post(2 * number + 1));
        let key = talk.key(2 * number + 1);
        talk.connection.accept_content(key, &mut talk.out);
    }
    talk.output();
    let mut held = 0;
    let mut stream = 1;
    // The windows of the streams together are larger than that of the connection: each of them is as large.
    while talk.connection.windows().0 >= 10_000 {
        talk.client_sends(data(stream, 0, &[b'x'; 10_000]));
        held += 10_000;
        stream = (stream + 2) % (2 * STREAMS);
    }
    talk.output();
    let most = window + (1 << 20);
    assert!((window..=most).contains(&held), "{held}");
    assert!(held + 20_000 > most, "{held}");
    // Bytes that are given back on one stream let the client send on another; so does the unread content of a stream that
    // is released.
    talk.connection
        .release_content(talk.key(1), 1_000_000, &mut talk.out);
    assert_eq!(
        talk.connection.windows().0,
        u32::try_from(most - held + 1_000_000).unwrap()
    );
    talk.client_sends(data(3, 0, &[b'x'; 10_000]));
    for number in 0..STREAMS {
        talk.connection
            .release(talk.key(2 * number + 1), &mut talk.out);
    }
    assert!(talk.connection.windows().0 > CONNECTION_WINDOW / 2);
}
