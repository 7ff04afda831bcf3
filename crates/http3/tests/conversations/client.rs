//! Tests of the client role with servers that behave well and badly.

use h2o_http::{BodyLength, Known};
use h2o_http3::{ClientSettings, LocalStream, StreamId, StreamState};
use h2o_testkit::http3::{Frame, instruction, kind, section_prefix, varint};

use crate::kit::client::{
    Conversation, SERVER_CONTROL, SERVER_DECODER, SERVER_ENCODER, outcome, request, request_with,
};
use crate::kit::server::fields;
use crate::kit::{Fields, assert_said, control, data, frame, headers};

const OK: Fields<'static> = &[(":status", "200")];

fn asked() -> Conversation {
    let mut talk = Conversation::new();
    assert_eq!(talk.gets(), 0);
    talk
}

#[test]
fn the_client_opens_three_streams_and_says_what_it_takes() {
    let talk = Conversation::unopened(ClientSettings::default());
    let pending = talk.connection.pending(LocalStream::Control);
    let settings = Frame::parse_all(&pending[1..]);
    assert_eq!((pending[0], settings.len()), (0, 1));
    assert_eq!(settings[0].values(), [(0x33, 1), (1, 16_384), (7, 100)]);
    assert_eq!(talk.connection.pending(LocalStream::QpackEncoder), [2]);
    assert_eq!(talk.connection.pending(LocalStream::QpackDecoder), [3]);
}

#[test]
fn requests_are_written_as_the_rfc_says() {
    let mut talk = Conversation::new();
    let given = fields(&[
        ("accept", "*/*"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("te", "gzip"),
    ]);
    let mut head = request_with("POST", "/a?b", "a.example", "", given);
    head.body = BodyLength::Known(5);
    let expect = head.headers.store(b"100-continue");
    head.set_expect(expect);
    let (id, said) = talk
        .asks(&head, false)
        .expect("the server allows another request");
    let want = "HEADERS :method=POST :scheme=https :authority=a.example :path=/a?b \
                expect=100-continue accept=*/* content-length=5";
    assert_eq!(said, [want]);
    let (key, mut out) = (talk.key(id), Vec::new());
    talk.connection.set_ready(key, true);
    assert_eq!(talk.connection.poll_send(), Some(key));
    talk.connection.send_data(key, b"he", false, &mut out);
    assert!(talk.connection.begin_data(key, 3, false, &mut out));
    out.extend_from_slice(b"llo");
    let trailers = fields(&[("x-sum", "1")]);
    talk.connection.finish(key, Some(&trailers), &mut out);
    assert_eq!(
        talk.read(id, &out),
        ["DATA he", "DATA llo", "HEADERS x-sum=1"]
    );
    assert_eq!(talk.state(id), StreamState::HalfClosedLocal);
    let (_, said) = talk
        .asks(&request("CONNECT", "b:443", ""), false)
        .expect("the server allows another request");
    assert_eq!(said, ["HEADERS :method=CONNECT :authority=b:443"]);
}

#[test]
fn extended_connect_waits_for_the_setting() {
    let head = request_with("CONNECT", "/chat", "a.example", "websocket", fields(&[]));
    let mut talk = Conversation::unopened(ClientSettings::default());
    assert!(talk.asks(&head, false).is_none());
    talk.server_sends(SERVER_CONTROL, control(&[(8, 1)]));
    let (id, said) = talk
        .asks(&head, false)
        .expect("the server has announced extended CONNECT");
    let want = "HEADERS :method=CONNECT :protocol=websocket :scheme=https :authority=a.example :path=/chat";
    assert_eq!(said, [want]);
    talk.server_sends(id, [headers(OK), data(b"hi")].concat());
    talk.expect(
        "the server opens a tunnel",
        &["settings", "0 200 Tunnel", "0 data hi"],
    );
}

#[test]
fn responses_are_read_however_they_are_cut() {
    let input = [
        headers(&[(":status", "103"), ("link", "</a>")]),
        frame(0x21, b"grease"),
        headers(&[(":status", "200"), ("server", "x"), ("content-length", "5")]),
        data(b"he"),
        data(b"llo"),
        headers(&[("x-sum", "1")]),
    ]
    .concat();
    let want = [
        "0 103 link=</a>",
        "0 200 server=x Known(5)",
        "0 data hello",
        "0 trailers x-sum=1",
    ];
    assert_said(
        &outcome(asked, 0, &input, true),
        &want,
        "interim response, head, content and trailers",
    );
    let want = ["0 204 None END"];
    let input = headers(&[(":status", "204")]);
    assert_said(&outcome(asked, 0, &input, true), &want, "no content");
    let input = [headers(OK), data(b"abc")].concat();
    let want = ["0 200 Unknown", "0 data abc END"];
    assert_said(
        &outcome(asked, 0, &input, true),
        &want,
        "content that ends with the stream",
    );
}

#[test]
fn responses_that_are_wrong_end_their_stream() {
    let wrong = [
        "0 reset by us H3_MESSAGE_ERROR",
        "STOP_SENDING 0 H3_MESSAGE_ERROR",
    ];
    let five = headers(&[(":status", "200"), ("content-length", "5")]);
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("a stream without bytes", vec![], &[]),
        (
            "an informational response without a final one",
            headers(&[(":status", "103")]),
            &["0 103"],
        ),
        ("101", headers(&[(":status", "101")]), &[]),
        (
            "content shorter than content-length",
            [&five[..], &data(b"ab")].concat(),
            &["0 200 Known(5)", "0 data ab"],
        ),
        ("no content at all", five.clone(), &["0 200 Known(5)"]),
        (
            "an invalid field value",
            headers(&[(":status", "200"), ("x", "\0")]),
            &[],
        ),
        (
            "an invalid content-length",
            headers(&[(":status", "200"), ("content-length", "x")]),
            &[],
        ),
        (
            "trailers with an invalid value",
            [headers(OK), headers(&[("x", "\0")])].concat(),
            &["0 200 Unknown"],
        ),
    ];
    for (why, input, said) in cases {
        let want = [said, &wrong[..]].concat();
        assert_said(&outcome(asked, 0, input, true), &want, why);
    }
    let mut talk = asked();
    talk.server_ends(0, [&five[..], &data(b"abcdefg")].concat());
    talk.expect(
        "content longer than content-length",
        &[&["0 200 Known(5)"], &wrong[..]].concat(),
    );
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let unexpected = "close H3_FRAME_UNEXPECTED";
    let protocol = "close H3_MESSAGE_ERROR protocol violation";
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("DATA first", data(b"a"), unexpected),
        (
            "DATA behind 103",
            [headers(&[(":status", "103")]), data(b"a")].concat(),
            unexpected,
        ),
        (
            "PUSH_PROMISE",
            frame(kind::PUSH_PROMISE, b"\0\0\0"),
            "close H3_ID_ERROR",
        ),
        ("SETTINGS", frame(kind::SETTINGS, b""), unexpected),
        ("PING of HTTP/2", frame(6, b""), unexpected),
        ("no status", headers(&[("x", "y")]), protocol),
        (
            "an invalid status",
            headers(&[(":status", "2x0")]),
            protocol,
        ),
        ("a path", headers(&[(":path", "/")]), protocol),
        (
            "half a section",
            Frame::headers(b"\0".to_vec()).bytes(),
            "close QPACK_DECOMPRESSION_FAILED",
        ),
    ];
    for (why, input, want) in cases {
        let got = outcome(asked, 0, input, false);
        assert_eq!(got.last().map(String::as_str), Some(*want), "{why}");
    }
    let got = outcome(asked, 0, &headers(OK)[..4], true);
    assert_said(
        &got,
        &["close H3_GENERAL_PROTOCOL_ERROR incomplete frame"],
        "half a frame",
    );
}

#[test]
fn streams_and_frames_of_the_server() {
    let unexpected: &[&str] = &["close H3_FRAME_UNEXPECTED"];
    let id: &[&str] = &["close H3_ID_ERROR"];
    let cases: &[(&str, u64, Vec<u8>, &[&str])] = &[
        ("a push", 7, varint(1), id),
        (
            "an unknown stream",
            7,
            varint(0x21),
            &["STOP_SENDING 7 H3_STREAM_CREATION_ERROR"],
        ),
        (
            "a second control stream",
            7,
            varint(0),
            &["close H3_STREAM_CREATION_ERROR"],
        ),
        (
            "MAX_PUSH_ID",
            3,
            Frame::with_id(kind::MAX_PUSH_ID, 0).bytes(),
            unexpected,
        ),
        (
            "PRIORITY_UPDATE",
            3,
            Frame::priority_update(0, "u=1").bytes(),
            unexpected,
        ),
        (
            "CANCEL_PUSH",
            3,
            Frame::with_id(kind::CANCEL_PUSH, 0).bytes(),
            id,
        ),
        (
            "GOAWAY of a push",
            3,
            Frame::with_id(kind::GOAWAY, 2).bytes(),
            id,
        ),
        ("an unknown frame", 3, frame(0x21, b"x"), &[]),
    ];
    for (why, stream, input, want) in cases {
        assert_said(
            &outcome(Conversation::new, *stream, input, false),
            want,
            why,
        );
    }
    for stream in [1, 0, 2] {
        let mut talk = Conversation::new();
        assert!(
            talk.connection.open(StreamId::new(stream)).is_err(),
            "{stream}"
        );
        assert!(talk.connection.is_over());
    }
    let mut talk = Conversation::new();
    talk.server_ends(SERVER_CONTROL, b"");
    talk.expect(
        "the end of the server's control stream",
        &["close H3_CLOSED_CRITICAL_STREAM"],
    );
    let mut talk = Conversation::new();
    talk.server_stops(2, 0x100);
    talk.expect(
        "STOP_SENDING on the client's control stream",
        &["close H3_CLOSED_CRITICAL_STREAM"],
    );
    let mut talk = Conversation::new();
    talk.server_resets(SERVER_CONTROL, 0x100);
    talk.expect("RESET_STREAM", &["close H3_CLOSED_CRITICAL_STREAM"]);
}

#[test]
fn goaway_refuses_what_the_server_has_not_looked_at() {
    let mut talk = Conversation::new();
    for _ in 0..4 {
        talk.gets();
    }
    talk.server_sends(8, headers(OK));
    talk.events.clear();
    talk.server_sends(SERVER_CONTROL, Frame::with_id(kind::GOAWAY, 4).bytes());
    let want = [
        "goaway 4",
        "STOP_SENDING 12 H3_REQUEST_CANCELLED",
        "STOP_SENDING 4 H3_REQUEST_CANCELLED",
        "4 refused",
        "12 refused",
    ];
    talk.expect(
        "GOAWAY refuses requests without a response, not 8, which has one",
        &want,
    );
    assert!(!talk.connection.can_request() && !talk.connection.is_reusable());
    talk.server_ends(0, headers(OK));
    talk.expect(
        "a request below the id of GOAWAY is answered",
        &["0 200 None END"],
    );
    talk.server_sends(SERVER_CONTROL, Frame::with_id(kind::GOAWAY, 8).bytes());
    talk.expect(
        "the id of a later GOAWAY may not be larger",
        &["close H3_ID_ERROR"],
    );
}

#[test]
fn goaway_that_comes_twice_refuses_once() {
    let mut talk = Conversation::new();
    for _ in 0..3 {
        talk.gets();
    }
    talk.server_sends(
        SERVER_CONTROL,
        Frame::with_id(kind::GOAWAY, (1 << 62) - 4).bytes(),
    );
    talk.expect(
        "GOAWAY with the largest id refuses no request",
        &["goaway 4611686018427387900"],
    );
    assert!(!talk.connection.can_request());
    talk.server_sends(SERVER_CONTROL, Frame::with_id(kind::GOAWAY, 8).bytes());
    let want = [
        "goaway 8",
        "STOP_SENDING 8 H3_REQUEST_CANCELLED",
        "8 refused",
    ];
    talk.expect("GOAWAY refuses the last request", &want);
    talk.server_sends(SERVER_CONTROL, Frame::with_id(kind::GOAWAY, 4).bytes());
    let want = [
        "goaway 4",
        "STOP_SENDING 4 H3_REQUEST_CANCELLED",
        "4 refused",
    ];
    talk.expect(
        "a second GOAWAY with a smaller id refuses another request",
        &want,
    );
    talk.release(4).release(8);
    assert!(!talk.connection.is_over());
    talk.server_ends(0, headers(OK)).release(0);
    assert!(talk.connection.is_over());
}

#[test]
fn resets_tell_whether_another_try_is_safe() {
    let cases: &[(&str, u64, bool, &[&str])] = &[
        (
            "not looked at",
            0x10b,
            false,
            &["STOP_SENDING 0 H3_REQUEST_CANCELLED"],
        ),
        ("given up", 0x102, false, &["0 reset H3_INTERNAL_ERROR"]),
        (
            "rejected too late",
            0x10b,
            true,
            &["0 reset H3_REQUEST_REJECTED"],
        ),
    ];
    for (why, code, has_response, want) in cases {
        let mut talk = asked();
        if *has_response {
            talk.server_sends(0, headers(OK));
        }
        talk.events.clear();
        talk.server_resets(0, *code);
        let is_refused = talk.events.contains(&"0 refused".to_owned());
        assert_eq!(is_refused, !has_response && *code == 0x10b, "{why}");
        assert!(
            talk.events
                .iter()
                .any(|event| want.contains(&event.as_str())),
            "{why}"
        );
        assert_eq!(talk.state(0), StreamState::Closed);
        talk.server_resets(0, *code);
        talk.server_sends(0, headers(OK));
    }
}

#[test]
fn a_server_may_stop_the_request_and_answer() {
    let mut talk = Conversation::new();
    let id = talk.posts();
    talk.server_stops(id, 0x100);
    let want = [
        "0 stopped H3_NO_ERROR",
        "RESET_STREAM 0 H3_REQUEST_CANCELLED",
    ];
    talk.expect(
        "the client ends its request when the server stops reading",
        &want,
    );
    let (key, mut out) = (talk.key(id), Vec::new());
    talk.connection.send_data(key, b"more", false, &mut out);
    assert_eq!(out, b"");
    talk.server_ends(id, [headers(OK), data(b"ok")].concat());
    talk.expect(
        "RFC 9114 §4.1: the response is complete although the request was stopped",
        &["0 200 Unknown", "0 data ok END"],
    );
    talk.server_stops(id, 0x100);
    talk.release(id);
    talk.expect("a stream that has ended causes no more frames", &[]);
}

#[test]
fn requests_that_are_released_early_are_cancelled() {
    let mut talk = asked();
    talk.release(0);
    talk.expect("GET", &["STOP_SENDING 0 H3_REQUEST_CANCELLED"]);
    let id = talk.posts();
    talk.release(id);
    let want = [
        "STOP_SENDING 4 H3_REQUEST_CANCELLED",
        "RESET_STREAM 4 H3_REQUEST_CANCELLED",
    ];
    talk.expect("POST", &want);
    talk.server_sends(0, headers(OK))
        .server_ends(4, headers(OK));
    talk.expect("bytes on streams that were released are dropped", &[]);
    assert_eq!(talk.connection.open_streams(), 0);
}

#[test]
fn responses_to_head_and_304_have_no_content() {
    let mut talk = Conversation::new();
    talk.asks(&request("HEAD", "/", "a.example"), true);
    talk.server_ends(0, headers(&[(":status", "200"), ("content-length", "5")]));
    talk.expect("HEAD", &["0 200 None END"]);
    assert_eq!(talk.head.length, Some(5));
    talk.gets();
    talk.server_ends(4, headers(&[(":status", "304"), ("content-length", "5")]));
    talk.expect("304", &["4 304 None END"]);
    talk.gets();
    talk.server_ends(8, [headers(&[(":status", "204")]), data(b"a")].concat());
    let want = [
        "8 204 None",
        "8 reset by us H3_MESSAGE_ERROR",
        "STOP_SENDING 8 H3_MESSAGE_ERROR",
    ];
    talk.expect("204 with content", &want);
}

#[test]
fn requests_are_limited_by_us_and_by_leaving() {
    let mut talk = Conversation::unopened(ClientSettings {
        max_streams: 2,
        ..ClientSettings::default()
    });
    talk.gets();
    talk.gets();
    assert!(!talk.connection.can_request() && talk.connection.is_reusable());
    assert!(talk.asks(&request("GET", "/", "a"), true).is_none());
    talk.release(0);
    assert!(talk.connection.can_request());
    talk.connection.leave();
    assert!(!talk.connection.can_request() && !talk.connection.is_over());
    talk.release(4);
    assert!(talk.connection.is_over());
}

#[test]
fn sections_wait_for_the_table() {
    let mut talk = asked();
    let prefix = section_prefix(16_384, 1, 1);
    let section = Frame::headers([&prefix[..], b"\xd9\x80"].concat()).bytes();
    talk.server_ends(0, [&section[..], &data(b"a")].concat());
    talk.expect(
        "the section waits for a table entry that has not arrived",
        &["blocked"],
    );
    let table = [
        vec![2],
        instruction::capacity(4096),
        instruction::insert(b"x-a", b"1"),
    ];
    talk.server_sends(SERVER_ENCODER, table.concat());
    talk.expect(
        "the entry arrives, and the section is decoded",
        &["0 unblocked", "0 200 x-a=1 Unknown", "0 data a END"],
    );
    let pending = talk.connection.pending(LocalStream::QpackDecoder);
    assert_eq!(pending, [3, 1, 0x80]);
    talk.server_sends(
        SERVER_DECODER,
        [vec![3], instruction::increment(1)].concat(),
    );
    talk.expect(
        "an acknowledgement of entries that were not inserted",
        &["close QPACK_DECODER_STREAM_ERROR"],
    );
}

#[test]
fn datagrams_go_with_tunnels() {
    let mut talk = Conversation::new();
    let head = request_with("CONNECT", "/udp", "a", "connect-udp", fields(&[]));
    let (id, _) = talk
        .asks(&head, false)
        .expect("the server allows another request");
    let (key, mut out) = (talk.key(id), Vec::new());
    assert!(talk.connection.begin_datagram(key, &mut out));
    assert_eq!(out, [0]);
    assert_eq!(talk.connection.on_datagram(b"\0abc"), Ok(Some((key, 1))));
    assert_eq!(talk.connection.on_datagram(b"\x01abc"), Ok(None));
    assert!(talk.connection.on_datagram(b"").is_err());
    assert!(talk.connection.is_over());
}

#[test]
fn early_content_of_a_tunnel_that_is_refused_is_content() {
    let mut talk = Conversation::new();
    let (id, _) = talk
        .asks(&request("CONNECT", "b:443", ""), false)
        .expect("the server allows another request");
    let refused = headers(&[(":status", "403"), ("content-length", "2")]);
    talk.server_ends(id, [refused, data(b"no")].concat());
    talk.expect("RFC 9110 §9.3.6", &["0 403 Known(2)", "0 data no END"]);
    assert_eq!(talk.head.headers.get(Known::Server), None);
}

#[test]
fn responses_cost_what_they_make_us_do() {
    let mut talk = asked();
    talk.server_sends(0, headers(&[(":status", "103")]).repeat(10));
    assert_eq!(talk.costs, 10, "ten interim responses cost ten units");
    talk.server_sends(0, [headers(OK), data(b"").repeat(5)].concat());
    assert_eq!(talk.costs, 15, "five empty DATA frames cost five units");
    talk.server_resets(0, 0x102);
    assert_eq!(talk.costs, 20);
    talk.connection.shrink();
    talk.release(0);
    talk.connection.shrink();
    assert!(
        talk.connection.retained() < 600,
        "{}",
        talk.connection.retained()
    );
}
