//! Tests of the unidirectional streams: their types, their frames, their ends.

use h2o_http3::LocalStream;
use h2o_testkit::http3::{Frame, kind, varint};

use crate::kit::server::{Conversation, outcome};
use crate::kit::{CONTROL, DECODER, ENCODER, GET, assert_said, control, frame, headers};

fn unopened() -> Conversation {
    Conversation::unopened(h2o_http3::Settings::default())
}

#[test]
fn the_server_opens_three_streams() {
    let mut talk = unopened();
    let pending = talk.pending(LocalStream::Control);
    assert_eq!(pending[0], 0);
    let settings = Frame::parse_all(&pending[1..]);
    assert_eq!(settings.len(), 1);
    assert_eq!(settings[0].kind, kind::SETTINGS);
    let want = [(0x33, 1), (0x276, 1), (0x1, 16_384), (0x7, 100), (0x8, 1)];
    assert_eq!(
        settings[0].values(),
        want,
        "SETTINGS are sent in the order of H2O"
    );
    assert_eq!(talk.pending(LocalStream::QpackEncoder), [2]);
    assert_eq!(talk.pending(LocalStream::QpackDecoder), [3]);
    assert_eq!(
        talk.pending(LocalStream::Control),
        b"",
        "the control stream has no more bytes to send"
    );
}

#[test]
fn what_is_pending_can_be_sent_in_parts() {
    let mut talk = unopened();
    let all = talk.connection.pending(LocalStream::Control).to_vec();
    let mut sent = Vec::new();
    for _ in 0..all.len() {
        sent.push(talk.connection.pending(LocalStream::Control)[0]);
        talk.connection.advance(LocalStream::Control, 1);
    }
    assert_eq!(sent, all);
    talk.connection.advance(LocalStream::Control, 100);
    assert_eq!(talk.connection.pending(LocalStream::Control), b"");
}

#[test]
fn settings_come_first_and_once() {
    let unexpected = ["close H3_FRAME_UNEXPECTED"];
    for first in [
        kind::GOAWAY,
        kind::MAX_PUSH_ID,
        kind::DATA,
        kind::HEADERS,
        0x21,
        0x02,
    ] {
        let input = [varint(0), frame(first, b"\0")].concat();
        let why = format!("{first:#x} first");
        assert_said(
            &outcome(unopened, CONTROL, &input, false),
            &unexpected,
            &why,
        );
    }
    let twice = [control(&[]), Frame::settings(&[]).bytes()].concat();
    let want = ["settings", "close H3_FRAME_UNEXPECTED"];
    assert_said(&outcome(unopened, CONTROL, &twice, false), &want, "twice");
}

#[test]
fn settings_that_are_wrong_end_the_connection() {
    let malformed = "close H3_FRAME_ERROR malformed SETTINGS frame";
    let cases: &[(&str, Vec<u8>, &str)] = &[
        (
            "half a value of a setting",
            frame(kind::SETTINGS, &[0x33]),
            malformed,
        ),
        (
            "half an identifier of a setting",
            frame(kind::SETTINGS, &[0x40]),
            malformed,
        ),
        (
            "H3_DATAGRAM of 2",
            Frame::settings(&[(0x33, 2)]).bytes(),
            malformed,
        ),
        (
            "ENABLE_CONNECT_PROTOCOL of 2",
            Frame::settings(&[(8, 2)]).bytes(),
            malformed,
        ),
        (
            "a setting twice",
            Frame::settings(&[(1, 0), (1, 0)]).bytes(),
            "close H3_SETTINGS_ERROR",
        ),
        (
            "ENABLE_PUSH",
            Frame::settings(&[(2, 0)]).bytes(),
            "close H3_SETTINGS_ERROR",
        ),
        (
            "INITIAL_WINDOW_SIZE",
            Frame::settings(&[(4, 0)]).bytes(),
            "close H3_SETTINGS_ERROR",
        ),
    ];
    for (why, settings, want) in cases {
        let input = [varint(0), settings.clone()].concat();
        assert_said(&outcome(unopened, CONTROL, &input, false), &[want], why);
    }
    let mut talk = unopened();
    let settings = [
        (0x33, 1),
        (0x21 + 31, 7),
        (6, 65_536),
        (7, 16),
        (1, 4096),
        (8, 1),
    ];
    talk.sends(CONTROL, control(&settings));
    talk.expect("all SETTINGS are reported", &["settings"]);
    let settings = talk
        .connection
        .peer_settings()
        .expect("SETTINGS of the peer have arrived");
    assert_eq!(settings.max_field_section_size, Some(65_536));
    assert_eq!(settings.qpack_blocked_streams, 16);
    assert_eq!(settings.qpack_max_table_capacity, 4096);
    assert!(settings.enable_connect_protocol && settings.datagrams);
}

#[test]
fn frames_of_the_control_stream() {
    let unexpected = "close H3_FRAME_UNEXPECTED";
    let id = "close H3_ID_ERROR";
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("DATA", frame(kind::DATA, b"a"), &[unexpected]),
        ("HEADERS", frame(kind::HEADERS, b"a"), &[unexpected]),
        (
            "PUSH_PROMISE",
            frame(kind::PUSH_PROMISE, b"\0"),
            &[unexpected],
        ),
        ("PING of HTTP/2", frame(0x06, b"\0"), &[unexpected]),
        ("an unknown frame", frame(0x21, b"abc"), &[]),
        (
            "GOAWAY",
            Frame::with_id(kind::GOAWAY, 4).bytes(),
            &["goaway"],
        ),
        (
            "GOAWAY with a larger id than before",
            [
                Frame::with_id(kind::GOAWAY, 4),
                Frame::with_id(kind::GOAWAY, 8),
            ]
            .map(|frame| frame.bytes())
            .concat(),
            &["goaway", id],
        ),
        (
            "GOAWAY without identifier",
            frame(kind::GOAWAY, b""),
            &["close H3_FRAME_ERROR"],
        ),
        (
            "GOAWAY with a byte behind the id",
            frame(kind::GOAWAY, b"\0\0"),
            &["close H3_FRAME_ERROR"],
        ),
        (
            "MAX_PUSH_ID that grows",
            [
                Frame::with_id(kind::MAX_PUSH_ID, 4),
                Frame::with_id(kind::MAX_PUSH_ID, 4),
            ]
            .map(|frame| frame.bytes())
            .concat(),
            &[],
        ),
        (
            "MAX_PUSH_ID that gets smaller",
            [
                Frame::with_id(kind::MAX_PUSH_ID, 4),
                Frame::with_id(kind::MAX_PUSH_ID, 3),
            ]
            .map(|frame| frame.bytes())
            .concat(),
            &[id],
        ),
        (
            "MAX_PUSH_ID cut off",
            frame(kind::MAX_PUSH_ID, b"\x40"),
            &["close H3_FRAME_ERROR"],
        ),
        (
            "CANCEL_PUSH of a push that was not promised",
            Frame::with_id(kind::CANCEL_PUSH, 0).bytes(),
            &[id],
        ),
        (
            "CANCEL_PUSH cut off",
            frame(kind::CANCEL_PUSH, b""),
            &["close H3_FRAME_ERROR"],
        ),
        (
            "a frame that is too long",
            [varint(0x21), varint(1 << 30)].concat(),
            &["close H3_GENERAL_PROTOCOL_ERROR HTTP/3 frame is too large"],
        ),
        (
            "settings that are too long",
            [varint(kind::GOAWAY), varint(1 << 30)].concat(),
            &["close H3_GENERAL_PROTOCOL_ERROR HTTP/3 frame is too large"],
        ),
    ];
    for (why, input, want) in cases {
        assert_said(
            &outcome(Conversation::new, CONTROL, input, false),
            want,
            why,
        );
    }
}

#[test]
fn critical_streams_stay_open() {
    let closed = ["close H3_CLOSED_CRITICAL_STREAM"];
    for (stream, kind) in [(CONTROL, 0), (ENCODER, 2), (DECODER, 3)] {
        for ends in [true, false] {
            let mut talk = unopened();
            let begin = if kind == 0 {
                control(&[])
            } else {
                varint(kind)
            };
            talk.sends(stream, begin);
            talk.events.clear();
            if ends {
                talk.ends(stream, b"");
            } else {
                talk.resets(stream, 0x100);
            }
            talk.expect(&format!("stream of type {kind}"), &closed);
        }
    }
    // The streams of the server must not be stopped either.
    let mut talk = Conversation::new();
    talk.stops(3, 0x100);
    talk.expect("STOP_SENDING on the server's control stream", &closed);
    // Streams without a type may end: their role is not known.
    let mut talk = Conversation::new();
    talk.sends(ENCODER, b"").ends(ENCODER, b"");
    talk.sends(DECODER, b"\x40").resets(DECODER, 0x100);
    talk.ends(14, b"\x40");
    talk.ends(0, headers(GET));
    talk.expect(
        "unidirectional streams whose type has not arrived are accepted",
        &["0 GET https://a.example/ END"],
    );
}

#[test]
fn critical_streams_are_there_once() {
    for kind in [0, 2, 3] {
        let mut talk = unopened();
        let begin = if kind == 0 {
            control(&[])
        } else {
            varint(kind)
        };
        talk.sends(CONTROL, &begin);
        talk.events.clear();
        talk.sends(14, varint(kind));
        talk.expect(
            &format!("type {kind} twice"),
            &["close H3_STREAM_CREATION_ERROR"],
        );
    }
}

#[test]
fn streams_of_other_types() {
    let mut talk = Conversation::new();
    talk.sends(ENCODER, [varint(0x21), b"grease".to_vec()].concat());
    talk.expect(
        "RFC 9114 §6.2.3",
        &["STOP_SENDING 6 H3_STREAM_CREATION_ERROR"],
    );
    talk.ends(ENCODER, b"more");
    talk.expect("further bytes on a refused stream are dropped", &[]);
    talk.sends(DECODER, varint(1));
    talk.expect(
        "a push stream of a client",
        &["close H3_STREAM_CREATION_ERROR"],
    );
    let mut talk = Conversation::new();
    assert!(
        talk.connection.open(h2o_http3::StreamId::new(1)).is_err(),
        "clients cannot open a stream with an id of the server"
    );
}

#[test]
fn types_are_read_however_they_are_cut() {
    for input in [
        &[0x40, 0x00][..],
        &[0x80, 0, 0, 0],
        &[0xc0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let input = [input, &Frame::settings(&[]).bytes()].concat();
        assert_said(
            &outcome(unopened, CONTROL, &input, false),
            &["settings"],
            "a long zero",
        );
    }
}
