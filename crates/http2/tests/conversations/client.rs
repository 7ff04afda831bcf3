//! Tests of the client role: what it sends, and how it handles what a server sends.

use h2o_http::{BodyLength, Headers, Known, Name};
use h2o_http2::{ClientSettings, ErrorCode, StreamState};

use crate::kit::client::{Conversation, check, outcome, request, request_with};
use crate::kit::frames::*;
use crate::kit::server::fields;

const OK: Fields<'static> = &[(":status", "200")];

fn with(window: u32, max_streams: u32) -> ClientSettings {
    ClientSettings {
        max_streams,
        window,
    }
}

#[test]
fn requests_have_pseudo_fields_and_none_for_the_hop() {
    let mut talk = Conversation::new();
    talk.asks(&request("GET", "/a?b", "a.example"), true);
    talk.asks(&request("OPTIONS", "*", ""), true);
    talk.asks(&request("GET", "", "a"), true);
    let mut headers = Headers::new();
    for (name, value) in [
        ("host", "other"),
        ("connection", "x-hop, close"),
        ("x-hop", "1"),
        ("keep-alive", "1"),
        ("proxy-connection", "1"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAA"),
        ("te", "gzip"),
        ("te", "trailers"),
        ("content-length", "7"),
        ("x-a", "b\r\nc"),
    ] {
        headers.push(Name::from_lower(name), value.as_bytes());
    }
    let mut head = request_with("POST", "/", "", "", headers);
    head.body = BodyLength::Known(5);
    let expect = head.headers.store(b"100-continue");
    head.set_expect(expect);
    talk.asks(&head, false);
    talk.expect_output(
        "connection-specific fields are dropped (RFC 9113 §8.2.2), pseudo-header fields come first (§8.3.1)",
        &[
            "HEADERS 1 END :method=GET :scheme=http :authority=a.example :path=/a?b",
            "HEADERS 3 END :method=OPTIONS :scheme=http :path=*",
            "HEADERS 5 END :method=GET :scheme=http :authority=a :path=/",
            "HEADERS 7 :method=POST :scheme=http :authority=other :path=/ expect=100-continue te=trailers x-a=b  c \
             content-length=5",
        ],
    );
}

#[test]
fn pseudo_fields_cannot_split_a_request() {
    let mut talk = Conversation::new();
    talk.asks(&request("GET", "/a b\r\n\u{7f}", "a\r\nb"), true);
    talk.expect_output(
        "RFC 9113 §10.3",
        &["HEADERS 1 END :method=GET :scheme=http :authority=a%0D%0Ab :path=/a%20b%0D%0A%7F"],
    );
}

#[test]
fn tunnels_are_asked_for_as_the_server_allows() {
    let mut talk = Conversation::new();
    let plain = request("CONNECT", "b.example:443", "b.example:443");
    let extended = request_with("CONNECT", "/chat", "a.example", "websocket", Headers::new());
    assert_eq!(
        talk.asks(&extended, false),
        None,
        "RFC 8441 §3: the server has not announced extended CONNECT"
    );
    talk.server_sends(settings(&[(8, 1)]));
    talk.output();
    talk.asks(&plain, false);
    talk.asks(&extended, false);
    talk.asks(&plain, false);
    talk.expect_output(
        "RFC 9113 §8.5, RFC 8441 §4",
        &[
            "HEADERS 1 :method=CONNECT :authority=b.example:443",
            "HEADERS 3 :method=CONNECT :protocol=websocket :scheme=http :authority=a.example :path=/chat",
            "HEADERS 5 :method=CONNECT :authority=b.example:443",
        ],
    );
    talk.server_sends(
        [
            headers(1, END_HEADERS, &[OK, &[("content-length", "1")]].concat()),
            data(1, 0, b"more than that"),
            headers(
                3,
                END_HEADERS,
                &[(":status", "403"), ("content-length", "2")],
            ),
            data(3, END_STREAM, b"no"),
            headers(5, END_HEADERS, OK),
            headers(5, WHOLE, &[("x", "y")]),
        ]
        .concat(),
    );
    talk.expect(
        "only success makes a tunnel, which has neither length nor trailers",
        &[
            "1 200 Tunnel",
            "1 data more than that",
            "3 403 Known(2)",
            "3 data no END",
            "5 200 Tunnel",
            "5 reset by us PROTOCOL_ERROR",
        ],
    );
    assert_eq!(talk.state(1), StreamState::Open);
}

#[test]
fn responses_are_read() {
    let begin = || {
        let mut talk = Conversation::new();
        talk.gets();
        talk
    };
    let head = |fields: Fields<'_>| headers(1, END_HEADERS, &[OK, fields].concat());
    check(
        begin,
        &[
            ("no content", headers(1, WHOLE, OK), &["1 200 None END"]),
            (
                "fields",
                headers(1, WHOLE, &[OK, &[("x", "y"), ("set-cookie", "a")]].concat()),
                &["1 200 x=y set-cookie=a None END"],
            ),
            (
                "content of a known length",
                [
                    head(&[("content-length", "3")]),
                    data(1, 0, b"ab"),
                    data(1, END_STREAM, b"c"),
                ]
                .concat(),
                &["1 200 Known(3)", "1 data ab", "1 data c END"],
            ),
            (
                "trailers",
                [
                    head(&[]),
                    data(1, 0, b"ab"),
                    headers(1, WHOLE, &[("x", "y"), ("content-length", "1")]),
                ]
                .concat(),
                &["1 200 Unknown", "1 data ab", "1 trailers x=y"],
            ),
            (
                "informational ones come first",
                [
                    headers(1, END_HEADERS, &[(":status", "100")]),
                    headers(1, END_HEADERS, &[(":status", "103"), ("link", "x")]),
                    headers(1, WHOLE, OK),
                ]
                .concat(),
                &["1 100", "1 103 link=x", "1 200 None END"],
            ),
            (
                "204",
                [
                    headers(1, END_HEADERS, &[(":status", "204")]),
                    data(1, END_STREAM, b""),
                ]
                .concat(),
                &["1 204 None", "1 data  END"],
            ),
            (
                "304 with a length",
                headers(1, WHOLE, &[(":status", "304"), ("content-length", "5")]),
                &["1 304 None END"],
            ),
            (
                "keep-alive, a field of HTTP/1, is tolerated",
                headers(1, WHOLE, &[OK, &[("keep-alive", "1")]].concat()),
                &["1 200 None END"],
            ),
            (
                "the priority in HEADERS of a server is ignored",
                frame(
                    HEADERS,
                    WHOLE | WITH_PRIORITY,
                    1,
                    &[&dependency(0, 7, true)[..], &block(OK)].concat(),
                ),
                &["1 200 None END"],
            ),
            ("unknown frames", frame(0xee, 0, 1, b"x"), &[]),
            (
                "ALTSVC and ORIGIN",
                [frame(10, 0, 0, b"\0\0"), frame(12, 0, 0, b"")].concat(),
                &[],
            ),
        ],
    );
}

#[test]
fn responses_that_are_malformed_end_their_stream() {
    let reset: &[&str] = &[
        "1 reset by us PROTOCOL_ERROR",
        "RST_STREAM 1 PROTOCOL_ERROR",
    ];
    let begin = || {
        let mut talk = Conversation::new();
        talk.gets();
        talk
    };
    let with = |fields: Fields<'_>| headers(1, END_HEADERS, &[OK, fields].concat());
    let heads: &[(&str, Vec<u8>)] = &[
        (
            "101 (RFC 9113 §8.6)",
            headers(1, END_HEADERS, &[(":status", "101")]),
        ),
        (
            "§8.1: an informational response that ends the stream",
            headers(1, WHOLE, &[(":status", "103")]),
        ),
        ("§8.2.1: upper case", with(&[("X", "y")])),
        ("§8.2.1: an invalid field name", with(&[("x y", "z")])),
        ("§8.2.1: NUL", with(&[("x", "\0")])),
        ("§8.2.1: a line end", with(&[("x", "a\r\nb")])),
        ("101 fields", with(&[("x", "y"); 101])),
        ("1,000 fields", with(&[("x", "y"); 1000])),
        (
            "content-length twice",
            with(&[("content-length", "1"), ("content-length", "1")]),
        ),
        (
            "content-length that is no number",
            with(&[("content-length", "1, 1")]),
        ),
        (
            "content-length without content",
            headers(1, WHOLE, &[OK, &[("content-length", "1")]].concat()),
        ),
        ("§8.1: DATA before the head", data(1, 0, b"a")),
    ];
    for (why, input) in heads {
        check(begin, &[(why, input.clone(), reset)]);
    }
    check(
        begin,
        &[(
            "100 fields are accepted in their order",
            headers(1, WHOLE, &[OK, &[("x", ""); 100]].concat()),
            &[&format!("1 200{} None END", " x=".repeat(100))],
        )],
    );
    let behind: &[(&str, Vec<u8>, &str)] = &[
        (
            "too much content",
            [with(&[("content-length", "1")]), data(1, 0, b"ab")].concat(),
            "1 200 Known(1)",
        ),
        (
            "too little before trailers",
            [with(&[("content-length", "1")]), headers(1, WHOLE, &[])].concat(),
            "1 200 Known(1)",
        ),
        (
            "content of 204",
            [
                headers(1, END_HEADERS, &[(":status", "204")]),
                data(1, 0, b"a"),
            ]
            .concat(),
            "1 204 None",
        ),
        (
            "content of 304",
            [
                headers(
                    1,
                    END_HEADERS,
                    &[(":status", "304"), ("content-length", "1")],
                ),
                data(1, 0, b"a"),
            ]
            .concat(),
            "1 304 None",
        ),
        (
            "§8.1: trailers that do not end the stream",
            [with(&[]), headers(1, END_HEADERS, &[("x", "y")])].concat(),
            "1 200 Unknown",
        ),
        (
            "trailers with an invalid value",
            [with(&[]), headers(1, WHOLE, &[("x", "\0")])].concat(),
            "1 200 Unknown",
        ),
    ];
    for (why, input, begun) in behind {
        check(begin, &[(why, input.clone(), &[&[*begun], reset].concat())]);
    }
    let short = |content: &str, data: Vec<u8>| {
        let input = [with(&[("content-length", "3")]), data].concat();
        let events = ["1 200 Known(3)", content];
        check(begin, &[("too little", input, &[&events, reset].concat())]);
    };
    short("1 data ab", data(1, END_STREAM, b"ab"));
    short("1 data ", data(1, END_STREAM, b""));
    short(
        "1 data ab",
        frame(DATA, PADDED | END_STREAM, 1, b"\x02abxx"),
    );
    let head = || {
        let mut talk = Conversation::new();
        talk.asks(&request("HEAD", "/", "a"), true);
        talk
    };
    check(
        head,
        &[
            (
                "HEAD",
                headers(1, WHOLE, &[OK, &[("content-length", "5")]].concat()),
                &["1 200 None END"],
            ),
            (
                "its content",
                [with(&[("content-length", "5")]), data(1, 0, b"hello")].concat(),
                &[&["1 200 None"], reset].concat(),
            ),
        ],
    );
}

#[test]
fn responses_that_no_server_sends_by_mistake_end_the_connection() {
    let begin = || {
        let mut talk = Conversation::new();
        talk.gets();
        talk
    };
    let with = |fields: Fields<'_>| headers(1, WHOLE, &[OK, fields].concat());
    let violation = "GOAWAY 0 PROTOCOL_ERROR protocol violation";
    let hop = "GOAWAY 0 PROTOCOL_ERROR found an unexpected connection-specific header";
    let cases: &[(&str, Vec<u8>, &str)] = &[
        (
            "§8.3.2: no status",
            headers(1, WHOLE, &[("x", "y")]),
            violation,
        ),
        (
            ":status twice",
            headers(1, WHOLE, &[OK, OK].concat()),
            violation,
        ),
        (
            "a status of two digits",
            headers(1, WHOLE, &[(":status", "20")]),
            violation,
        ),
        (
            "a status of four digits",
            headers(1, WHOLE, &[(":status", "0200")]),
            violation,
        ),
        (
            "an empty status",
            headers(1, WHOLE, &[(":status", "")]),
            violation,
        ),
        (
            "a status with a letter",
            headers(1, WHOLE, &[(":status", "2x0")]),
            violation,
        ),
        (
            "a status below 100",
            headers(1, WHOLE, &[(":status", "099")]),
            violation,
        ),
        (
            ":status behind a field",
            headers(1, WHOLE, &[("x", "y"), OK[0]]),
            violation,
        ),
        (
            "pseudo fields of requests",
            with(&[(":path", "/")]),
            violation,
        ),
        (
            ":status in trailers",
            [headers(1, END_HEADERS, OK), headers(1, WHOLE, OK)].concat(),
            violation,
        ),
        (
            "an informational response after the final one",
            [
                headers(1, END_HEADERS, OK),
                headers(1, END_HEADERS, &[(":status", "103")]),
            ]
            .concat(),
            violation,
        ),
        ("§8.2.2: connection", with(&[("connection", "close")]), hop),
        (
            "§8.2.2: transfer-encoding",
            with(&[("transfer-encoding", "chunked")]),
            hop,
        ),
        ("§8.2.2: upgrade", with(&[("upgrade", "h2c")]), hop),
        ("§8.2.2: te", with(&[("te", "trailers")]), hop),
        (
            "1,001 fields",
            with(&[("x", "y"); 1001]),
            "GOAWAY 0 COMPRESSION_ERROR headers too long",
        ),
        (
            "§8.4: a push that was not allowed",
            frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82"),
            "GOAWAY 0 PROTOCOL_ERROR received PUSH_PROMISE frame",
        ),
        (
            "§6.5.2: a server that sends ENABLE_PUSH 1",
            settings(&[(2, 1)]),
            "GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame",
        ),
        (
            "RFC 9218 §7.1: PRIORITY_UPDATE",
            priority_update(1, "u=1"),
            violation,
        ),
        (
            "§5.1.1: a stream id of the server",
            headers(2, WHOLE, OK),
            violation,
        ),
        (
            "§5.1: an idle stream",
            headers(3, WHOLE, OK),
            "GOAWAY 0 PROTOCOL_ERROR invalid stream id in HEADERS frame",
        ),
    ];
    for (why, input, want) in cases {
        let (said, _) = outcome(begin, input);
        assert_eq!(said.last().map(String::as_str), Some(*want), "{why}");
    }
}

#[test]
fn requests_are_limited_by_both_sides() {
    let get = request("GET", "/", "a");
    let mut talk = Conversation::with(with(65_535, 2));
    assert_eq!(
        (
            talk.asks(&get, true),
            talk.asks(&get, true),
            talk.asks(&get, true)
        ),
        (Some(1), Some(3), None)
    );
    talk.server_sends(settings(&[(3, 1)])).release(1);
    assert_eq!(
        talk.asks(&get, true),
        None,
        "the server allows only one stream at a time (RFC 9113 §5.1.2)"
    );
    talk.release(3);
    assert_eq!(talk.asks(&get, true), Some(5));
    talk.server_sends(settings(&[(3, 0)])).release(5);
    assert!(
        !talk.connection.can_request()
            && talk.connection.is_reusable()
            && !talk.connection.is_over()
    );
}

#[test]
fn goaway_refuses_what_the_server_has_not_looked_at() {
    let mut talk = Conversation::new();
    for _ in 0..5 {
        talk.gets();
    }
    talk.release(7);
    talk.output();
    talk.server_sends([goaway(3, 0), headers(1, WHOLE, OK)].concat());
    talk.expect(
        "RFC 9113 §6.8",
        &[
            "goaway 3 NO_ERROR",
            "5 refused",
            "9 refused",
            "1 200 None END",
        ],
    );
    talk.expect_output("the client sends no frame in answer to GOAWAY", &[]);
    assert!(!talk.connection.can_request() && !talk.connection.is_over());
    talk.server_sends([goaway(1, 0), goaway(5, 0)].concat());
    talk.expect(
        "the last stream id of a later GOAWAY may not be larger (RFC 9113 §6.8)",
        &["goaway 1 NO_ERROR", "3 refused", "goaway 1 NO_ERROR"],
    );
    for id in [1, 3, 5, 9] {
        talk.release(id);
    }
    assert!(talk.connection.is_over() && !talk.connection.has_streams());
}

#[test]
fn a_graceful_shutdown_of_the_server_refuses_nothing() {
    let mut talk = Conversation::new();
    talk.gets();
    talk.server_sends(goaway(0x7fff_ffff, 0)).expect(
        "the GOAWAY of a graceful shutdown (RFC 9113 §6.8) is reported",
        &["goaway 2147483647 NO_ERROR"],
    );
    assert!(!talk.connection.can_request());
    talk.server_sends(headers(1, WHOLE, OK)).expect(
        "a stream opened before GOAWAY is completed",
        &["1 200 None END"],
    );
}

#[test]
fn refused_streams_are_not_reported_as_reset() {
    let mut talk = Conversation::new();
    talk.gets();
    talk.gets();
    talk.gets();
    talk.server_sends(
        [
            rst_stream(1, 7),
            rst_stream(3, 2),
            headers(5, END_HEADERS, OK),
            rst_stream(5, 7),
        ]
        .concat(),
    );
    talk.expect(
        "RFC 9113 §8.7",
        &[
            "1 refused",
            "3 reset INTERNAL_ERROR",
            "5 200 Unknown",
            "5 reset REFUSED_STREAM",
        ],
    );
}

#[test]
fn a_response_may_be_complete_before_the_request() {
    let mut talk = Conversation::new();
    talk.posts();
    talk.server_sends([headers(1, WHOLE, &[(":status", "413")]), rst_stream(1, 0)].concat());
    talk.expect("RFC 9113 §8.1", &["1 413 None END", "1 reset NO_ERROR"]);
    talk.posts();
    talk.server_sends(headers(3, WHOLE, OK));
    assert_eq!(talk.state(3), StreamState::HalfClosedRemote);
    talk.connection.finish(talk.key(3), None, &mut talk.out);
    assert_eq!(talk.state(3), StreamState::Closed);
    talk.expect_output(
        "the client may complete its request after the response",
        &["DATA 3 0 END"],
    );
}

#[test]
fn content_of_requests_takes_turns_within_the_windows() {
    let mut talk = Conversation::new();
    talk.server_sends(settings(&[(4, 20_000)]));
    talk.posts();
    talk.posts();
    for id in [1, 3] {
        talk.connection.set_content(talk.key(id), true);
    }
    let mut turns = Vec::new();
    while let Some((key, max)) = talk.connection.poll_send() {
        talk.connection
            .send_data(key, &vec![0; max], false, &mut talk.out);
        turns.push((talk.connection.stream_id(key).get(), max));
    }
    assert_eq!(turns, [(1, 16_384), (3, 16_384), (1, 3616), (3, 3616)]);
    talk.output();
    talk.server_sends(window_update(3, 10));
    let (key, max) = talk
        .connection
        .poll_send()
        .expect("the window of stream 3 is open");
    let trailers = fields(&[("x", "y")]);
    let filled = talk
        .connection
        .send_data_with(key, max, &mut talk.out, |out| {
            out.extend_from_slice(b"abc");
            Ok::<_, ()>(Some((3, false)))
        });
    assert_eq!((max, filled), (10, Ok(Some((3, false)))));
    talk.connection.finish(key, Some(&trailers), &mut talk.out);
    talk.expect_output(
        "trailers follow the content",
        &["DATA 3 3", "HEADERS 3 END x=y"],
    );
    assert_eq!(talk.state(3), StreamState::HalfClosedLocal);
}

#[test]
fn windows_are_those_announced_and_refilled_when_content_is_used() {
    let mut talk = Conversation::unopened(with(100, 100));
    talk.expect_output(
        "the client begins with the preface, SETTINGS and WINDOW_UPDATE",
        &[
            "PREFACE",
            "SETTINGS 2=0 3=100 4=100",
            "WINDOW_UPDATE 0 16711681",
        ],
    );
    talk.server_sends(settings(&[]));
    talk.gets();
    talk.server_sends([headers(1, END_HEADERS, OK), data(1, 0, &[0; 100])].concat());
    talk.connection
        .release_content(talk.key(1), 40, &mut talk.out);
    talk.expect_output(
        "only released bytes are added to the window",
        &["WINDOW_UPDATE 1 40"],
    );
    talk.events.clear();
    talk.server_sends(data(1, 0, &[0; 41]));
    talk.expect(
        "one byte more than the window (RFC 9113 §6.9.1)",
        &["1 reset by us FLOW_CONTROL_ERROR"],
    );
    // Content for a stream that has ended counts against the window of the connection.
    let before = talk.connection.windows().0;
    talk.server_sends(data(1, 0, &[0; 1000]));
    assert_eq!(talk.connection.windows().0, before - 1000);
}

#[test]
fn a_cancelled_stream_is_over_and_its_section_decoded_all_the_same() {
    let mut talk = Conversation::new();
    talk.gets();
    talk.gets();
    talk.connection
        .reset(talk.key(1), ErrorCode::CANCEL, &mut talk.out);
    talk.release(1)
        .expect_output("RST_STREAM is sent once", &["RST_STREAM 1 CANCEL"]);
    let section = [&block(OK)[..], b"\x40\x01a\x01b"].concat();
    talk.server_sends(frame(HEADERS, END_HEADERS, 1, &section))
        .server_sends(data(1, END_STREAM, b"x"));
    talk.expect(
        "frames on a stream that the client has reset are ignored",
        &[],
    );
    talk.server_sends(frame(
        HEADERS,
        WHOLE,
        3,
        &[&block(OK)[..], b"\xbe"].concat(),
    ));
    talk.expect(
        "RFC 9113 §4.3: the section of an ignored stream is decoded, so the HPACK tables agree",
        &["3 200 a=b None END"],
    );
    assert_eq!(talk.head.headers.get(Known::Host), None);
}

#[test]
fn ping_is_answered_and_answers_are_reported() {
    let mut talk = Conversation::new();
    talk.connection.ping(*b"abcdefgh", &mut talk.out);
    talk.server_sends(
        [
            frame(PING, 0, 0, b"12345678"),
            frame(PING, ACK, 0, b"abcdefgh"),
            frame(PING, ACK, 0, b"abcdefgh"),
        ]
        .concat(),
    );
    talk.expect(
        "only the first answer to PING is reported",
        &["pong abcdefgh"],
    );
    assert_eq!(
        talk.costs, 2,
        "frames that the client asked for cost nothing"
    );
    talk.expect_output(
        "PING of the server is answered",
        &["PING 0 abcdefgh", "PING 1 12345678"],
    );
}

#[test]
fn goaway_of_ours_ends_the_connection_with_the_last_stream() {
    let mut talk = Conversation::new();
    talk.gets();
    talk.connection.go_away(&mut talk.out);
    talk.connection.go_away(&mut talk.out);
    talk.expect_output("GOAWAY is sent once", &["GOAWAY 0 NO_ERROR "]);
    assert!(!talk.connection.can_request() && !talk.connection.is_over());
    talk.server_sends(headers(1, WHOLE, OK)).release(1);
    assert!(talk.connection.is_over());
}

#[test]
fn floods_of_a_server_cost_something() {
    let begin = || {
        let mut talk = Conversation::new();
        talk.gets();
        talk
    };
    let cases: &[(&str, Vec<u8>, u32)] = &[
        ("a response", headers(1, WHOLE, OK), 0),
        (
            "content",
            [headers(1, END_HEADERS, OK), data(1, 0, b"a")].concat(),
            0,
        ),
        (
            "DATA of nothing",
            [headers(1, END_HEADERS, OK), data(1, 0, b"").repeat(2)].concat(),
            2,
        ),
        ("PING", frame(PING, 0, 0, &[0; 8]), 1),
        ("SETTINGS", settings(&[]), 1),
        (
            "informational responses",
            headers(1, END_HEADERS, &[(":status", "103")]).repeat(40),
            40,
        ),
        (
            "a malformed response",
            headers(1, WHOLE, &[(":status", "101")]),
            10,
        ),
        (
            "a response on a stream that was reset",
            [rst_stream(1, 2), headers(1, WHOLE, OK)].concat(),
            6,
        ),
    ];
    for (why, input, want) in cases {
        assert_eq!(outcome(begin, input).1, *want, "{why}");
    }
}
