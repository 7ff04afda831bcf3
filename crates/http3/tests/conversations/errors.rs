//! Tests of every error of a request stream: its code, and what it ends.

use h2o_http3::{FrameType, Settings};
use h2o_testkit::http3::{Frame, kind, varint};

use crate::kit::server::{Conversation, outcome};
use crate::kit::{CONNECT, Fields, GET, POST, assert_said, data, frame, headers};

/// A name of the mistake, the fields of the request, and the expected result.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a str);

const ASKED: &str = "0 POST https://a.example/";

fn with(base: Fields<'static>, more: Fields<'static>) -> Vec<(&'static str, &'static str)> {
    [base, more].concat()
}

#[test]
fn frames_out_of_place_end_the_connection() {
    let head = headers(POST);
    let trailers = headers(&[("x", "y")]);
    let unexpected = "close H3_FRAME_UNEXPECTED";
    let before: &[(&str, Vec<u8>, &[&str])] = &[
        ("in front of the head", vec![], &[]),
        ("in content", head.clone(), &[ASKED]),
        (
            "behind trailers",
            [&head[..], &trailers].concat(),
            &[ASKED, "0 trailers x=y"],
        ),
    ];
    let kinds = [
        (kind::SETTINGS, true),
        (kind::GOAWAY, true),
        (kind::MAX_PUSH_ID, true),
        (kind::CANCEL_PUSH, true),
        (kind::PUSH_PROMISE, true),
        (kind::PRIORITY_UPDATE, true),
        (kind::PRIORITY_UPDATE_PUSH, true),
        (0x02, true),
        (0x06, true),
        (0x08, true),
        (0x09, true),
        (0x21, false),
        (0x0a, false),
        (varint_max(), false),
    ];
    for (place, begin, said) in before {
        for (kind, is_wrong) in kinds {
            let input = [&begin[..], &frame(kind, b"\0")].concat();
            let mut want = said.to_vec();
            if is_wrong {
                want.push(unexpected);
            }
            let got = outcome(Conversation::new, 0, &input, false);
            assert_said(&got, &want, &format!("{kind:#x} {place}"));
        }
    }
    // DATA frames in front of the head, and DATA and HEADERS frames behind trailers, end the connection.
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("DATA in front of the head", data(b"a"), &[unexpected]),
        ("empty DATA in front of the head", data(b""), &[unexpected]),
        (
            "DATA behind trailers",
            [&head[..], &trailers, &data(b"a")].concat(),
            &[ASKED, "0 trailers x=y", unexpected],
        ),
        (
            "HEADERS behind trailers",
            [&head[..], &trailers, &trailers].concat(),
            &[ASKED, "0 trailers x=y", unexpected],
        ),
    ];
    for (why, input, want) in cases {
        assert_said(&outcome(Conversation::new, 0, input, false), want, why);
    }
}

fn varint_max() -> u64 {
    h2o_http3::varint::MAX
}

#[test]
fn the_end_of_a_stream_within_a_frame_ends_the_connection() {
    let incomplete = "close H3_GENERAL_PROTOCOL_ERROR incomplete frame";
    let cut = &headers(POST)[..20];
    let half_data = [headers(POST), data(b"hello")[..4].to_vec()].concat();
    let half_header = [headers(POST), vec![0]].concat();
    let half_unknown = [headers(POST), frame(0x21, b"abc")[..3].to_vec()].concat();
    let cases: &[(&str, &[u8], &[&str])] = &[
        ("within the head", cut, &[incomplete]),
        ("within DATA", &half_data, &[ASKED, "0 data he", incomplete]),
        ("within a header", &half_header, &[ASKED, incomplete]),
        (
            "within an unknown frame",
            &half_unknown,
            &[ASKED, incomplete],
        ),
    ];
    for (why, input, want) in cases {
        assert_said(&outcome(Conversation::new, 0, input, true), want, why);
    }
}

#[test]
fn messages_that_are_incomplete_or_too_long_end_their_stream() {
    let reset = |code: &str| {
        [
            format!("0 reset by us {code}"),
            format!("STOP_SENDING 0 {code}"),
            format!("RESET_STREAM 0 {code}"),
        ]
    };
    let incomplete = reset("H3_REQUEST_INCOMPLETE");
    let wrong = reset("H3_GENERAL_PROTOCOL_ERROR");
    let declared = |length| headers(&with(POST, length));
    let three = || declared(&[("content-length", "3")]);
    let asked = ASKED.to_owned();
    let cases: &[(&str, Vec<u8>, Vec<String>)] = &[
        (
            "shorter than announced",
            [three(), data(b"ab")].concat(),
            [&[asked.clone(), "0 data ab".into()][..], &incomplete].concat(),
        ),
        (
            "longer than announced",
            [three(), data(b"abcd")].concat(),
            [&[asked.clone()][..], &wrong].concat(),
        ),
        (
            "trailers in place of content",
            [three(), headers(&[("x", "y")])].concat(),
            [&[asked.clone()][..], &incomplete].concat(),
        ),
        (
            "trailers with an invalid value",
            [headers(POST), headers(&[("x", "\0")])].concat(),
            [&[asked.clone()][..], &wrong].concat(),
        ),
    ];
    for (why, input, want) in cases {
        let mut talk = Conversation::new();
        talk.ends(0, input);
        let want: Vec<&str> = want.iter().map(String::as_str).collect();
        talk.expect(why, &want);
        // After the error of one stream the connection is still usable.
        talk.ends(4, headers(GET));
        talk.expect(why, &["4 GET https://a.example/ END"]);
    }
}

#[test]
fn streams_that_end_before_their_request_are_refused() {
    let grease = frame(0x21, b"abc");
    for (why, input) in [
        ("a stream without bytes", &b""[..]),
        ("a stream with an unknown frame only", &grease),
    ] {
        let want = [
            "rejected H3_REQUEST_INCOMPLETE",
            "STOP_SENDING 0 H3_REQUEST_INCOMPLETE",
            "RESET_STREAM 0 H3_REQUEST_INCOMPLETE",
        ];
        assert_said(&outcome(Conversation::new, 0, input, true), &want, why);
    }
}

#[test]
fn pseudo_fields_that_are_missing_or_extra_end_the_stream() {
    let cases: &[(&str, Fields<'_>)] = &[
        ("no method", &[(":scheme", "https"), (":path", "/")]),
        ("no scheme", &[(":method", "GET"), (":path", "/")]),
        ("no path", &[(":method", "GET"), (":scheme", "https")]),
        ("no fields", &[]),
        (
            "an invalid method",
            &[(":method", "G T"), (":scheme", "https"), (":path", "/")],
        ),
        (
            "a protocol without CONNECT",
            &[
                (":method", "GET"),
                (":scheme", "https"),
                (":path", "/"),
                (":protocol", "websocket"),
            ],
        ),
        ("CONNECT without authority", &[(":method", "CONNECT")]),
        (
            "CONNECT with a path",
            &[(":method", "CONNECT"), (":authority", "a"), (":path", "/")],
        ),
    ];
    let want = [
        "rejected H3_GENERAL_PROTOCOL_ERROR",
        "STOP_SENDING 0 H3_GENERAL_PROTOCOL_ERROR",
        "RESET_STREAM 0 H3_GENERAL_PROTOCOL_ERROR",
    ];
    for (why, fields) in cases {
        assert_said(
            &outcome(Conversation::new, 0, &headers(fields), false),
            &want,
            why,
        );
    }
}

#[test]
fn field_errors_end_the_connection() {
    let failed = "close QPACK_DECOMPRESSION_FAILED";
    let specific = "found an unexpected connection-specific header";
    let cases: &[Case<'_>] = &[
        (
            "upper case",
            with(GET, &[("X-a", "b")]),
            "found an upper-case letter in header name",
        ),
        (
            "connection",
            with(GET, &[("connection", "close")]),
            specific,
        ),
        (
            "transfer-encoding",
            with(GET, &[("transfer-encoding", "chunked")]),
            specific,
        ),
        ("upgrade", with(GET, &[("upgrade", "h2c")]), specific),
        ("te", with(GET, &[("te", "gzip")]), specific),
        (
            "an invalid content-length",
            with(POST, &[("content-length", "x")]),
            "invalid content-length header",
        ),
        (
            "a method twice",
            with(GET, &[(":method", "GET")]),
            "invalid pseudo header",
        ),
        (
            "a pseudo field behind a field",
            with(&[("x", "y")], GET),
            "invalid pseudo header",
        ),
        (
            "an empty path",
            vec![(":method", "GET"), (":path", "")],
            "invalid pseudo header",
        ),
        ("an unknown pseudo field", with(GET, &[(":x", "y")]), ""),
        ("a status", with(GET, &[(":status", "200")]), ""),
    ];
    for (why, fields, text) in cases {
        let want = format!("{failed} {text}");
        let got = outcome(Conversation::new, 0, &headers(fields), true);
        assert_said(&got, &[want.trim_end()], why);
    }
    let trailers = [headers(POST), headers(&[(":path", "/")])].concat();
    let want = [
        ASKED,
        "close QPACK_DECOMPRESSION_FAILED invalid pseudo header",
    ];
    assert_said(
        &outcome(Conversation::new, 0, &trailers, true),
        &want,
        "in trailers",
    );
    let many: Vec<_> = std::iter::repeat_n(("a", ""), 1001).collect();
    let mut talk = Conversation::new();
    talk.ends(0, headers(&with_all(GET, &many)));
    talk.expect(
        "1001 fields",
        &["close QPACK_DECOMPRESSION_FAILED headers too long"],
    );
}

fn with_all<'a>(base: Fields<'a>, more: Fields<'a>) -> Vec<(&'a str, &'a str)> {
    [base, more].concat()
}

#[test]
fn soft_errors_are_refusals() {
    let many: Vec<_> = std::iter::repeat_n(("a", ""), 101).collect();
    let cases: &[Case<'_>] = &[
        (
            "an invalid field name",
            with(GET, &[("x y", "z")]),
            "NameInvalid",
        ),
        (
            "an invalid field value",
            with(GET, &[("x", "\u{1}")]),
            "ValueInvalid",
        ),
        (
            "a field value that begins with a blank",
            with(GET, &[("x", " y")]),
            "ValueInvalid",
        ),
        ("101 fields", with_all(GET, &many), "TooManyFields"),
        (
            "an expectation",
            with(GET, &[("expect", "more")]),
            "Expectation",
        ),
        (
            "an invalid path",
            vec![(":method", "GET"), (":scheme", "https"), (":path", "x")],
            "PathInvalid",
        ),
        (
            "CONNECT with a length",
            with(CONNECT, &[("content-length", "1")]),
            "ConnectContent",
        ),
    ];
    for (why, fields, refusal) in cases {
        let got = outcome(Conversation::new, 0, &headers(fields), false);
        assert_eq!(got.len(), 1, "{why}: {got:?}");
        assert!(got[0].ends_with(refusal), "{why}: {got:?}");
    }
}

#[test]
fn masque_misuse_ends_the_connection() {
    let input = headers(&[
        (":method", "CONNECT-UDP"),
        (":scheme", "masque"),
        (":authority", "a"),
        (":path", "/x"),
    ]);
    let want = ["close H3_GENERAL_PROTOCOL_ERROR invalid pseudo headers"];
    assert_said(
        &outcome(Conversation::new, 0, &input, false),
        &want,
        "the path is not /",
    );
}

#[test]
fn sections_and_frames_that_are_too_long_are_refused_by_their_length() {
    let header = |kind, len| [varint(kind), varint(len)].concat();
    let most = h2o_http3::frame::MAX_PAYLOAD;
    let rejected = [
        "rejected H3_REQUEST_REJECTED",
        "STOP_SENDING 0 H3_REQUEST_REJECTED",
        "RESET_STREAM 0 H3_REQUEST_REJECTED",
    ];
    let too_large = ["close H3_GENERAL_PROTOCOL_ERROR HTTP/3 frame is too large"];
    let cases: &[(&str, u64, u64, &[&str])] = &[
        ("HEADERS as long as can be", kind::HEADERS, most, &[]),
        ("HEADERS", kind::HEADERS, most + 1, &rejected),
        ("an endless section", kind::HEADERS, varint_max(), &rejected),
        ("an unknown frame as long as can be", 0x21, most, &[]),
        ("an unknown frame", 0x21, most + 1, &too_large),
    ];
    for (why, kind, len, want) in cases {
        assert_said(
            &outcome(Conversation::new, 0, &header(*kind, *len), false),
            want,
            why,
        );
    }
    // A DATA frame may have any length; the frame header already tells how long the content is.
    let input = [
        headers(CONNECT),
        header(kind::DATA, 1 << 40),
        b"abc".to_vec(),
    ]
    .concat();
    let got = outcome(Conversation::new, 0, &input, false);
    assert_eq!(
        got.last().map(String::as_str),
        Some("0 data abc"),
        "a terabyte"
    );
    let input = [headers(POST), header(kind::DATA, 1 << 40)].concat();
    let got = outcome(Conversation::new, 0, &input, false);
    assert_eq!(
        got.get(1).map(String::as_str),
        Some("0 reset by us H3_EXCESSIVE_LOAD")
    );
}

#[test]
fn more_content_than_the_site_takes_ends_the_stream() {
    let begin = || {
        Conversation::with(Settings {
            limit_request_body: 4,
            ..Settings::default()
        })
    };
    let mut talk = begin();
    talk.sends(0, [headers(POST), data(b"abcd"), data(b"e")].concat());
    let want = [
        ASKED,
        "0 data abcd",
        "0 reset by us H3_EXCESSIVE_LOAD",
        "STOP_SENDING 0 H3_EXCESSIVE_LOAD",
        "RESET_STREAM 0 H3_EXCESSIVE_LOAD",
    ];
    talk.expect("content beyond limit-request-body", &want);
    // If `content-length` announces too much content, the request is refused with 413 at once.
    let mut talk = begin();
    let announced = with(POST, &[("content-length", "5")]);
    talk.sends(0, headers(&announced));
    talk.expect(
        "a content-length beyond limit-request-body",
        &["0 POST https://a.example/ ContentTooLarge"],
    );
    let (status, _, text) = h2o_http::field_section::Refusal::ContentTooLarge.answer();
    assert_eq!(
        (status.as_u16(), text),
        (413, "request entity is too large")
    );
    // The bytes of a tunnel are not content, so that the limit does not apply.
    let mut talk = begin();
    talk.sends(0, [headers(CONNECT), data(b"abcdefgh")].concat());
    assert_eq!(talk.events.len(), 2, "{:?}", talk.events);
}

#[test]
fn sections_that_cannot_be_decoded_end_the_connection() {
    let cases: [&[u8]; 4] = [b"", b"\0", b"\0\0\x80", b"\xff\xff\xff\xff\x7f\0"];
    for section in cases {
        let input = Frame::headers(section).bytes();
        let want = ["close QPACK_DECOMPRESSION_FAILED"];
        let why = format!("{}", section.escape_ascii());
        assert_said(&outcome(Conversation::new, 0, &input, true), &want, &why);
    }
}

#[test]
fn a_failed_connection_finds_nothing_any_more() {
    let mut talk = Conversation::new();
    talk.sends(0, data(b"a"));
    talk.expect("DATA before HEADERS", &["close H3_FRAME_UNEXPECTED"]);
    talk.ends(4, headers(GET)).resets(8, 0x10c).stops(0, 0x10c);
    talk.sends(14, [varint(0), Frame::settings(&[]).bytes()].concat());
    assert_eq!(talk.connection.on_datagram(b""), Ok(None));
    talk.expect("no event is reported after a connection error", &[]);
    assert!(talk.connection.is_over() && talk.connection.is_shutting_down());
    talk.connection.shut_down(talk.now);
    assert_eq!(talk.connection.next_timeout(), None);
}

#[test]
fn names_of_frame_types_that_http_2_had_are_reserved() {
    let reserved: Vec<_> = (0..16)
        .filter(|&kind| FrameType(kind).is_reserved())
        .collect();
    assert_eq!(reserved, [2, 6, 8, 9], "RFC 9114 §11.2.1");
}
