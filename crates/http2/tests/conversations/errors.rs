//! Tests of malformed frames (RFC 9113 §4 and §6), and of each limit at its value and one past it.

use h2o_http2::{SectionLimits, Settings};

use crate::kit::frames::*;
use crate::kit::{client, server};

fn opened(stream: Vec<u8>) -> impl Fn() -> server::Conversation {
    move || {
        let mut talk = server::Conversation::new();
        talk.client_sends(&stream);
        talk
    }
}

#[test]
fn the_preface_comes_first_and_settings_follow() {
    let begin = || server::Conversation::unopened(Settings::default());
    let preface = |frames: &[u8]| [PREFACE, frames].concat();
    let ours = "SETTINGS 3=100 8=1";
    let window = "WINDOW_UPDATE 0 16711681";
    let invalid = "GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame";
    server::check(
        begin,
        &[
            (
                "nothing is said to a preface that is not complete",
                PREFACE[..23].to_vec(),
                &[],
            ),
            (
                "the server's preface follows the client's",
                PREFACE.to_vec(),
                &[ours, window],
            ),
            (
                "settings are acknowledged",
                preface(&settings(&[(3, 5)])),
                &[ours, window, "SETTINGS ACK"],
            ),
            (
                "another preface is answered by nothing (RFC 9113 §3.4)",
                [&PREFACE[..23], b"\r"].concat(),
                &["error NotPreface"],
            ),
            (
                "HTTP/1 is no preface",
                b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                &["error NotPreface"],
            ),
            (
                "the first frame is SETTINGS (RFC 9113 §3.4)",
                preface(&frame(PING, 0, 0, b"12345678")),
                &["error SettingsExpected", ours, window, invalid],
            ),
            (
                "an acknowledgement of SETTINGS does not count as the first frame",
                preface(&frame(SETTINGS, ACK, 0, b"")),
                &["error SettingsExpected", ours, window, invalid],
            ),
        ],
    );
}

#[test]
fn the_client_role_begins_with_its_preface_and_wants_settings() {
    let mut talk = client::Conversation::unopened(Default::default());
    talk.expect_output(
        "RFC 9113 §3.4",
        &[
            "PREFACE",
            "SETTINGS 2=0 3=100 4=65535",
            "WINDOW_UPDATE 0 16711681",
        ],
    );
    let begin = || client::Conversation::unopened(Default::default());
    let ours = [
        "PREFACE",
        "SETTINGS 2=0 3=100 4=65535",
        "WINDOW_UPDATE 0 16711681",
    ];
    let invalid = "GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame";
    for input in [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, ACK, 0, b""),
        goaway(0, 0),
    ] {
        let (said, _) = client::outcome(
            || {
                let mut talk = begin();
                talk.expect_output("the client begins with its preface", &ours);
                talk
            },
            &input,
        );
        assert_eq!(said, ["error SettingsExpected", invalid]);
    }
}

/// Errors that both roles answer alike: a name, the input on a connection where stream 1 is open, and the code and text of
/// the GOAWAY that answers it.
fn errors_of_frames() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let padded = |kind, payload: &[u8]| frame(kind, PADDED | END_HEADERS, 1, payload);
    vec![
        (
            "§4.2: 16,385 bytes",
            frame(0xee, 0, 0, &[0; 16_385]),
            "FRAME_SIZE_ERROR ",
        ),
        (
            "§6.1: DATA on stream 0",
            data(0, 0, b"a"),
            "PROTOCOL_ERROR invalid stream id in DATA frame",
        ),
        (
            "§6.1: padding as long as the rest",
            padded(DATA, b"\x02a"),
            "PROTOCOL_ERROR invalid DATA frame",
        ),
        (
            "§6.1: no room for the length of the padding",
            padded(DATA, b""),
            "PROTOCOL_ERROR invalid DATA frame",
        ),
        (
            "§6.2: HEADERS on stream 0",
            headers(0, WHOLE, GET),
            "PROTOCOL_ERROR invalid stream id in HEADERS frame",
        ),
        (
            "§6.2: padding beyond the rest",
            padded(HEADERS, b"\x02\x88"),
            "PROTOCOL_ERROR invalid HEADERS frame",
        ),
        (
            "§6.2: four bytes of priority",
            frame(HEADERS, WITH_PRIORITY | WHOLE, 1, &[0; 4]),
            "PROTOCOL_ERROR ",
        ),
        (
            "RFC 7540 §5.3.1: a stream that depends on itself",
            frame(HEADERS, WITH_PRIORITY | WHOLE, 1, &dependency(1, 1, false)),
            "PROTOCOL_ERROR stream cannot depend on itself",
        ),
        (
            "§6.3: PRIORITY on stream 0",
            priority(0, 1, 1, false),
            "PROTOCOL_ERROR invalid stream id in PRIORITY frame",
        ),
        (
            "§6.3: four bytes of PRIORITY",
            frame(PRIORITY, 0, 1, &[0; 4]),
            "FRAME_SIZE_ERROR invalid PRIORITY frame",
        ),
        (
            "§6.3: six bytes of PRIORITY",
            frame(PRIORITY, 0, 1, &[0; 6]),
            "FRAME_SIZE_ERROR invalid PRIORITY frame",
        ),
        (
            "§6.4: RST_STREAM on stream 0",
            rst_stream(0, 0),
            "PROTOCOL_ERROR invalid stream id in RST_STREAM frame",
        ),
        (
            "§6.4: three bytes",
            frame(RST_STREAM, 0, 1, &[0; 3]),
            "FRAME_SIZE_ERROR invalid RST_STREAM frame",
        ),
        (
            "§6.4: five bytes",
            frame(RST_STREAM, 0, 1, &[0; 5]),
            "FRAME_SIZE_ERROR invalid RST_STREAM frame",
        ),
        (
            "§6.5: SETTINGS on a stream",
            frame(SETTINGS, 0, 1, b""),
            "PROTOCOL_ERROR invalid stream id in SETTINGS frame",
        ),
        (
            "§6.5: five bytes",
            frame(SETTINGS, 0, 0, &[0; 5]),
            "FRAME_SIZE_ERROR ",
        ),
        (
            "§6.5: seven bytes",
            frame(SETTINGS, 0, 0, &[0; 7]),
            "FRAME_SIZE_ERROR ",
        ),
        (
            "§6.5: an acknowledgement with values",
            frame(SETTINGS, ACK, 0, &[0; 6]),
            "FRAME_SIZE_ERROR invalid SETTINGS frame (+ACK)",
        ),
        (
            "§6.5.2: ENABLE_PUSH 2",
            settings(&[(2, 2)]),
            "PROTOCOL_ERROR invalid SETTINGS frame",
        ),
        (
            "§6.5.2: a window of 2^31",
            settings(&[(4, 1 << 31)]),
            "FLOW_CONTROL_ERROR invalid SETTINGS frame",
        ),
        (
            "§6.5.2: frames of 16,383",
            settings(&[(5, 16_383)]),
            "PROTOCOL_ERROR invalid SETTINGS frame",
        ),
        (
            "§6.5.2: frames of 2^24",
            settings(&[(5, 1 << 24)]),
            "PROTOCOL_ERROR invalid SETTINGS frame",
        ),
        (
            "RFC 8441 §3: 2",
            settings(&[(8, 2)]),
            "PROTOCOL_ERROR invalid SETTINGS frame",
        ),
        (
            "RFC 9218 §2.1: 2",
            settings(&[(9, 2)]),
            "PROTOCOL_ERROR invalid SETTINGS frame",
        ),
        (
            "§6.7: PING on a stream",
            frame(PING, 0, 1, &[0; 8]),
            "PROTOCOL_ERROR invalid PING frame",
        ),
        (
            "§6.7: seven bytes",
            frame(PING, 0, 0, &[0; 7]),
            "FRAME_SIZE_ERROR invalid PING frame",
        ),
        (
            "§6.7: nine bytes",
            frame(PING, 0, 0, &[0; 9]),
            "FRAME_SIZE_ERROR invalid PING frame",
        ),
        (
            "§6.8: GOAWAY on a stream",
            frame(GOAWAY, 0, 1, &[0; 8]),
            "PROTOCOL_ERROR invalid stream id in GOAWAY frame",
        ),
        (
            "§6.8: seven bytes",
            frame(GOAWAY, 0, 0, &[0; 7]),
            "FRAME_SIZE_ERROR invalid GOAWAY frame",
        ),
        (
            "§6.9: three bytes",
            frame(WINDOW_UPDATE, 0, 0, &[0; 3]),
            "FRAME_SIZE_ERROR invalid WINDOW_UPDATE frame",
        ),
        (
            "§6.9: five bytes",
            frame(WINDOW_UPDATE, 0, 1, &[0; 5]),
            "FRAME_SIZE_ERROR invalid WINDOW_UPDATE frame",
        ),
        (
            "§6.9: by 0",
            window_update(0, 0),
            "PROTOCOL_ERROR invalid WINDOW_UPDATE frame",
        ),
        (
            "§6.9: by 0, the reserved bit set",
            window_update(0, 1 << 31),
            "PROTOCOL_ERROR invalid WINDOW_UPDATE frame",
        ),
        (
            "§6.9.1: a window of 2^31",
            window_update(0, 0x7fff_ffff - 65_535 + 1),
            "FLOW_CONTROL_ERROR flow control window overflow",
        ),
        (
            "§6.10: CONTINUATION of nothing",
            frame(CONTINUATION, END_HEADERS, 1, b""),
            "PROTOCOL_ERROR received invalid CONTINUATION frame",
        ),
        (
            "§6.10: CONTINUATION on stream 0",
            frame(CONTINUATION, END_HEADERS, 0, b""),
            "PROTOCOL_ERROR invalid stream id in CONTINUATION frame",
        ),
        (
            "§6.10: another frame in between",
            [headers(3, 0, &[]), frame(PING, 0, 0, &[0; 8])].concat(),
            "PROTOCOL_ERROR expected CONTINUATION frame",
        ),
        (
            "§6.10: even an unknown one",
            [headers(3, 0, &[]), frame(0xee, 0, 3, &[])].concat(),
            "PROTOCOL_ERROR expected CONTINUATION frame",
        ),
        (
            "§6.10: another stream",
            [headers(3, 0, &[]), frame(CONTINUATION, END_HEADERS, 1, b"")].concat(),
            "PROTOCOL_ERROR unexpected stream id in CONTINUATION frame",
        ),
        (
            "RFC 7541 §6.1: index 0",
            frame(HEADERS, WHOLE, 1, b"\x80"),
            "COMPRESSION_ERROR ",
        ),
        (
            "RFC 7541 §2.3.3: an index of nothing",
            frame(HEADERS, WHOLE, 1, b"\xbe"),
            "COMPRESSION_ERROR ",
        ),
        (
            "RFC 7541 §6.3: a table of 4,097",
            frame(HEADERS, WHOLE, 1, b"\x3f\xe2\x1f"),
            "COMPRESSION_ERROR ",
        ),
        (
            "RFC 7541 §4.2: a size update behind a field",
            frame(HEADERS, WHOLE, 1, b"\0\x01x\x01y\x20"),
            "COMPRESSION_ERROR ",
        ),
        (
            "§4.3: half a field",
            frame(HEADERS, WHOLE, 1, b"\0\x01"),
            "COMPRESSION_ERROR ",
        ),
    ]
}

#[test]
fn frames_that_are_wrong_end_the_connection_in_either_role() {
    for (why, input, want) in errors_of_frames() {
        let (said, _) = server::outcome(opened(post(1)), &input);
        // A stream counts as opened by its first frame, even if its field section is incomplete.
        let last = if input.starts_with(&headers(3, 0, &[])) {
            3
        } else {
            1
        };
        let goaway = format!("GOAWAY {last} {want}");
        assert_eq!(said.last(), Some(&goaway), "{why}");
        let begin = || {
            let mut talk = client::Conversation::new();
            talk.posts();
            talk.posts();
            talk
        };
        let (said, _) = client::outcome(begin, &input);
        assert_eq!(said.last(), Some(&format!("GOAWAY 0 {want}")), "{why}");
    }
}

#[test]
fn goaway_counts_a_stream_from_its_headers_frame_on() {
    let three = |flags, payload: &[u8]| frame(HEADERS, flags, 3, payload);
    let upper = "PROTOCOL_ERROR found an upper-case letter in header name";
    let cases: &[(&str, Vec<u8>, String)] = &[
        (
            "a section that is not complete",
            [three(0, &block(GET)), frame(PING, 0, 0, &[0; 8])].concat(),
            "GOAWAY 3 PROTOCOL_ERROR expected CONTINUATION frame".to_owned(),
        ),
        (
            "a section that cannot be decoded",
            three(WHOLE, b"\x80"),
            "GOAWAY 3 COMPRESSION_ERROR ".to_owned(),
        ),
        (
            "a section that is malformed",
            three(WHOLE, &block(&[("X", "y")])),
            format!("GOAWAY 3 {upper}"),
        ),
        (
            "a section that is malformed in a CONTINUATION frame",
            [
                three(0, b""),
                frame(CONTINUATION, END_HEADERS, 3, &block(&[("X", "y")])),
            ]
            .concat(),
            format!("GOAWAY 3 {upper}"),
        ),
        (
            "an invalid frame behind a valid section",
            [get(3), data(0, 0, b"")].concat(),
            "GOAWAY 3 PROTOCOL_ERROR invalid stream id in DATA frame".to_owned(),
        ),
        (
            "a HEADERS frame with invalid padding does not count",
            three(PADDED | WHOLE, b"\x02\x88"),
            "GOAWAY 1 PROTOCOL_ERROR invalid HEADERS frame".to_owned(),
        ),
        (
            "a HEADERS frame with half a priority does not count",
            three(WITH_PRIORITY | WHOLE, &[0; 4]),
            "GOAWAY 1 PROTOCOL_ERROR ".to_owned(),
        ),
        (
            "a HEADERS frame of a stream that depends on itself does not count",
            three(WITH_PRIORITY | WHOLE, &dependency(3, 1, false)),
            "GOAWAY 1 PROTOCOL_ERROR stream cannot depend on itself".to_owned(),
        ),
        (
            "a stream id of the server does not count",
            headers(4, WHOLE, GET),
            "GOAWAY 1 PROTOCOL_ERROR invalid stream id in HEADERS frame".to_owned(),
        ),
    ];
    for (why, input, want) in cases {
        let (said, _) = server::outcome(opened(post(1)), input);
        assert_eq!(said.last(), Some(want), "{why}");
    }
}

#[test]
fn frames_at_their_limits_are_taken() {
    let padded = |kind, payload: &[u8]| frame(kind, PADDED | WHOLE, 1, payload);
    server::check(
        opened(post(1)),
        &[
            (
                "DATA of 16,384 bytes",
                data(1, 0, &[0; 16_384]),
                &["1 data 65536 bytes"],
            ),
            (
                "DATA of nothing but padding",
                padded(DATA, b"\x01a"),
                &["1 data  END"],
            ),
            (
                "DATA with padding of no bytes",
                padded(DATA, b"\0a"),
                &["1 data a END"],
            ),
            (
                "trailers of nothing but padding",
                padded(HEADERS, b"\x01a"),
                &["1 trailers"],
            ),
            (
                "trailers with a priority and without fields",
                frame(HEADERS, WITH_PRIORITY | WHOLE, 1, &dependency(0, 256, true)),
                &["1 trailers"],
            ),
            (
                "SETTINGS with the largest frame size",
                settings(&[(5, (1 << 24) - 1)]),
                &["SETTINGS ACK"],
            ),
            (
                "SETTINGS with the largest window",
                settings(&[(4, (1 << 31) - 1)]),
                &["SETTINGS ACK"],
            ),
            (
                "unknown settings",
                settings(&[(0, 7), (0xffff, 7)]),
                &["SETTINGS ACK"],
            ),
            (
                "PING is answered",
                frame(PING, 0, 0, b"12345678"),
                &["PING 1 12345678"],
            ),
            (
                "an answer to PING is not answered",
                frame(PING, ACK, 0, b"12345678"),
                &[],
            ),
            (
                "GOAWAY with text",
                frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0bye"),
                &[],
            ),
            (
                "a connection's window of 2^31-1",
                window_update(0, 0x7fff_ffff - 65_535),
                &[],
            ),
            (
                "a stream's window of 2^31-1",
                window_update(1, 0x7fff_ffff - 65_535),
                &[],
            ),
            (
                "the reserved bit of a stream is ignored (RFC 9113 §4.1)",
                data(1 | 1 << 31, END_STREAM, b"a"),
                &["1 data a END"],
            ),
            (
                "unknown flags are ignored",
                frame(DATA, 0xf6, 1, b"a"),
                &["1 data a"],
            ),
        ],
    );
}

#[test]
fn errors_of_one_stream_end_that_stream() {
    let by_us = "1 reset by us FLOW_CONTROL_ERROR";
    server::check(
        opened(post(1)),
        &[
            (
                "WINDOW_UPDATE by 0 (RFC 9113 §6.9)",
                window_update(1, 0),
                &[
                    "1 reset by us PROTOCOL_ERROR",
                    "RST_STREAM 1 PROTOCOL_ERROR",
                ],
            ),
            (
                "a stream's window of 2^31 (§6.9.1)",
                window_update(1, 0x7fff_ffff - 65_535 + 1),
                &[by_us, "RST_STREAM 1 FLOW_CONTROL_ERROR"],
            ),
        ],
    );
}

/// The HEADERS frame and CONTINUATION frames of one request with a field of `len` bytes.
fn in_continuations(frames: usize, len: usize) -> Vec<u8> {
    let value = "v".repeat(len);
    let mut section = block(GET);
    section.extend(block(&[("x", &value)]));
    let first = section.len() / (frames + 1);
    let mut out = frame(HEADERS, END_STREAM, 1, &section[..first]);
    let rest = &section[first..];
    let size = rest.len().div_ceil(frames);
    for (at, chunk) in rest.chunks(size).enumerate() {
        let is_last = (at + 1) * size >= rest.len();
        out.extend(frame(
            CONTINUATION,
            if is_last { END_HEADERS } else { 0 },
            1,
            chunk,
        ));
    }
    out
}

#[test]
fn continuations_are_limited_in_number_and_size() {
    let calm = [
        "error ContinuationFlood",
        "GOAWAY 1 ENHANCE_YOUR_CALM too many CONTINUATION frames",
    ];
    let limits = SectionLimits::OF_CLIENTS;
    let most = usize::from(limits.continuations);
    let taken: &[&str] = &["1 GET / a.example END"];
    let overhead = in_continuations(8, 60_000).len() - 9 * 9 - 60_000;
    server::check(
        server::Conversation::new,
        &[
            ("one CONTINUATION", in_continuations(1, 100), taken),
            (
                "as many CONTINUATIONs as allowed",
                in_continuations(most, 100),
                taken,
            ),
            (
                "one CONTINUATION more than allowed",
                in_continuations(most + 1, 1000),
                &calm,
            ),
            (
                "a section of 64 KiB",
                in_continuations(most, limits.bytes - overhead),
                taken,
            ),
            (
                "a section of 64 KiB and one byte",
                in_continuations(most, limits.bytes - overhead + 1),
                &calm,
            ),
        ],
    );
    let mut flood = headers(1, END_STREAM, GET);
    for _ in 0..most {
        flood.extend(frame(CONTINUATION, 0, 1, b""));
    }
    let (said, costs) = server::outcome(server::Conversation::new, &flood);
    assert_eq!(
        said, calm,
        "CONTINUATION frames without END_HEADERS (CVE-2024-27316)"
    );
    assert_eq!(costs, 8, "empty CONTINUATION frames cost units");
}
