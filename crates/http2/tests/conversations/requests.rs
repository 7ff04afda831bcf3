//! Tests of requests (RFC 9113 §8): required fields, how requests are read, and how their content is counted.

use h2o_http::Known;
use h2o_http::field_section::{MAX_DECODED_FIELDS, MAX_FIELDS, MAX_TABLE_TEXT};
use h2o_http2::{Settings, StreamState};

use crate::kit::frames::*;
use crate::kit::server::{Conversation, check, fields, outcome};

/// A GET request with additional fields.
fn get_with(more: Fields<'_>) -> Vec<u8> {
    headers(1, WHOLE, &[GET, more].concat())
}

fn with(fields: Fields<'_>) -> Vec<u8> {
    headers(1, WHOLE, fields)
}

const M: (&str, &str) = (":method", "GET");
const S: (&str, &str) = (":scheme", "https");
const A: (&str, &str) = (":authority", "a.example");
const P: (&str, &str) = (":path", "/");
const C: (&str, &str) = (":method", "CONNECT");

const TAKEN: &[&str] = &["1 GET / a.example END"];
const RESET: &[&str] = &["RST_STREAM 1 PROTOCOL_ERROR"];

#[test]
fn pseudo_fields_are_those_of_the_method() {
    let pseudo: &[&str] = &[
        "error PseudoField",
        "GOAWAY 1 PROTOCOL_ERROR invalid pseudo header",
    ];
    let unknown: &[&str] = &["error UnknownPseudoField", "GOAWAY 1 PROTOCOL_ERROR "];
    const NO_AUTHORITY: &[&str] = &["1 GET /  END AuthorityInvalid"];
    let protocol = (":protocol", "websocket");
    check(
        Conversation::new,
        &[
            ("pseudo fields in another order", with(&[P, A, S, M]), TAKEN),
            ("no authority", with(&[M, S, P]), &["1 GET /  END"]),
            (
                "host in place of :authority",
                with(&[M, S, P, ("host", "h")]),
                &["1 GET / h END"],
            ),
            (
                "host beside :authority is dropped",
                get_with(&[("host", "h")]),
                TAKEN,
            ),
            ("no method", with(&[S, A, P]), RESET),
            ("no scheme", with(&[M, A, P]), RESET),
            ("no path", with(&[M, S, A]), RESET),
            ("an empty path", with(&[M, S, A, (":path", "")]), pseudo),
            (
                "a method that is no token",
                with(&[(":method", "G T"), S, A, P]),
                RESET,
            ),
            ("an empty method", with(&[(":method", ""), S, A, P]), RESET),
            ("method twice", with(&[M, M, S, A, P]), pseudo),
            ("scheme twice", with(&[M, S, S, A, P]), pseudo),
            ("authority twice", with(&[M, S, A, A, P]), pseudo),
            ("path twice", with(&[M, S, A, P, P]), pseudo),
            (
                ":path behind a field",
                with(&[M, S, A, ("x", "y"), P]),
                pseudo,
            ),
            (":status", with(&[M, S, A, P, (":status", "200")]), unknown),
            (
                "an unknown pseudo field",
                with(&[M, S, A, P, (":x", "y")]),
                unknown,
            ),
            (
                ":protocol without CONNECT",
                with(&[M, S, A, P, protocol]),
                RESET,
            ),
            (
                "a blank in :protocol",
                with(&[(":method", "CONNECT"), (":protocol", "a b"), S, A, P]),
                &["1 CONNECT / a.example END ValueInvalid"],
            ),
            (
                ":protocol with a version",
                with(&[(":method", "CONNECT"), (":protocol", "a/1"), S, A, P]),
                &["1 CONNECT / a.example END Connect"],
            ),
            (
                "a blank in the path",
                with(&[M, S, A, (":path", "/a b")]),
                &["1 GET /a b a.example END ValueInvalid"],
            ),
            (
                "a blank in the authority",
                with(&[M, S, (":authority", "a b"), P]),
                &["1 GET /  END ValueInvalid"],
            ),
            (
                "§8.3.1: a path that does not begin with a slash",
                with(&[M, S, A, (":path", "x/y")]),
                &["1 GET x/y a.example END PathInvalid"],
            ),
            (
                "§8.3.1: a path that is a URL",
                with(&[M, S, A, (":path", "http://b.example/")]),
                &["1 GET http://b.example/ a.example END PathInvalid"],
            ),
            (
                "§8.3.1: OPTIONS for all resources",
                with(&[(":method", "OPTIONS"), S, A, (":path", "*")]),
                &["1 OPTIONS * a.example END"],
            ),
            (
                "§8.3.1: an authority with user information",
                with(&[M, S, (":authority", "a:80@evil"), P]),
                NO_AUTHORITY,
            ),
            (
                "an authority with a path",
                with(&[M, S, (":authority", "a.test/.."), P]),
                NO_AUTHORITY,
            ),
            (
                "an authority with an open bracket",
                with(&[M, S, (":authority", "[::1"), P]),
                NO_AUTHORITY,
            ),
            (
                "an authority with markup",
                with(&[M, S, (":authority", "a\"<script>"), P]),
                NO_AUTHORITY,
            ),
            (
                "an authority with an invalid escape",
                with(&[M, S, (":authority", "a.test%zz"), P]),
                NO_AUTHORITY,
            ),
            (
                "`host` with a path, without :authority",
                with(&[M, S, P, ("host", "a.test/..")]),
                NO_AUTHORITY,
            ),
            (
                "an empty authority",
                with(&[M, S, P, (":authority", "")]),
                &["1 GET /  END"],
            ),
            (
                "CONNECT may name any authority",
                headers(1, END_HEADERS, &[C, (":authority", "a.test/..")]),
                &["1 CONNECT a.test/.. a.test/.."],
            ),
            (
                "extended CONNECT may not name any authority",
                headers(1, END_HEADERS, &[C, S, P, (":authority", "a@b"), protocol]),
                &["1 CONNECT /  AuthorityInvalid"],
            ),
            (
                "a line end in the path",
                with(&[M, S, A, (":path", "/\r\n")]),
                &["1 GET /\\r\\n a.example END ValueInvalid"],
            ),
            (
                "plain CONNECT",
                headers(1, END_HEADERS, &[C, A]),
                &["1 CONNECT a.example a.example"],
            ),
            (
                "CONNECT with a path",
                headers(1, END_HEADERS, &[C, A, P]),
                RESET,
            ),
            (
                "CONNECT with a scheme",
                headers(1, END_HEADERS, &[C, S, A]),
                RESET,
            ),
            (
                "CONNECT without authority",
                headers(1, END_HEADERS, &[C]),
                RESET,
            ),
            (
                "CONNECT without a stream",
                with(&[C, A]),
                &["1 CONNECT a.example a.example END Connect"],
            ),
            (
                "CONNECT with a length",
                headers(1, END_HEADERS, &[C, A, ("content-length", "1")]),
                &["1 CONNECT a.example a.example Connect"],
            ),
            (
                "extended CONNECT (RFC 8441 §4)",
                headers(1, END_HEADERS, &[C, S, A, P, protocol]),
                &["1 CONNECT / a.example"],
            ),
            (
                "extended CONNECT without path",
                headers(1, END_HEADERS, &[C, S, A, protocol]),
                RESET,
            ),
        ],
    );
}

#[test]
fn fields_that_are_wrong_end_the_connection_or_are_answered() {
    let of_connection: &[&str] = &[
        "error ConnectionField",
        "GOAWAY 1 PROTOCOL_ERROR found an unexpected connection-specific header",
    ];
    let length: &[&str] = &[
        "error ContentLength",
        "GOAWAY 1 PROTOCOL_ERROR invalid content-length header",
    ];
    let name: &[&str] = &["1 GET / a.example END NameInvalid"];
    let value: &[&str] = &["1 GET / a.example END ValueInvalid"];
    let upper: &[&str] = &[
        "error UpperCaseName",
        "GOAWAY 1 PROTOCOL_ERROR found an upper-case letter in header name",
    ];
    check(
        Conversation::new,
        &[
            ("§8.2.1: upper case", get_with(&[("X", "y")]), upper),
            ("§8.2.1: a blank in a name", get_with(&[("x ", "y")]), name),
            ("§8.2.1: a colon in a name", get_with(&[("x:", "y")]), name),
            ("§8.2.1: an empty name", get_with(&[("", "y")]), name),
            ("§8.2.1: NUL", get_with(&[("x", "\0")]), value),
            ("§8.2.1: LF", get_with(&[("x", "a\nb")]), value),
            ("§8.2.1: CR", get_with(&[("x", "a\rb")]), value),
            ("§8.2.1: a blank first", get_with(&[("x", " y")]), value),
            ("§8.2.1: a blank last", get_with(&[("x", "y\t")]), value),
            (
                "bytes above 127 are text",
                get_with(&[("x", "\u{ff}")]),
                TAKEN,
            ),
            (
                "§8.2.2: connection",
                get_with(&[("connection", "x")]),
                of_connection,
            ),
            (
                "§8.2.2: transfer-encoding",
                get_with(&[("transfer-encoding", "chunked")]),
                of_connection,
            ),
            (
                "§8.2.2: upgrade",
                get_with(&[("upgrade", "x")]),
                of_connection,
            ),
            (
                "§8.2.2: http2-settings",
                get_with(&[("http2-settings", "")]),
                of_connection,
            ),
            ("§8.2.2: te", get_with(&[("te", "gzip")]), of_connection),
            (
                "§8.2.2: te: trailers",
                get_with(&[("te", "trailers")]),
                TAKEN,
            ),
            (
                "content-length is a number",
                get_with(&[("content-length", "x")]),
                length,
            ),
            (
                "content-length has no sign",
                get_with(&[("content-length", "+0")]),
                length,
            ),
            (
                "content-length is not empty",
                get_with(&[("content-length", "")]),
                length,
            ),
            (
                "content-length has at most nineteen digits",
                get_with(&[("content-length", "00000000000000000000")]),
                length,
            ),
            (
                "content-length twice with the same value",
                get_with(&[("content-length", "0"), ("content-length", "0")]),
                TAKEN,
            ),
            (
                "content-length twice with different values",
                get_with(&[("content-length", "0"), ("content-length", "1")]),
                length,
            ),
            (
                "§8.1.1: content-length above the content",
                get_with(&[("content-length", "1")]),
                RESET,
            ),
            (
                "an unknown expectation",
                get_with(&[("expect", "x")]),
                &["1 GET / a.example END Expectation"],
            ),
            (
                "the expectation 100-continue",
                get_with(&[("expect", "100-Continue")]),
                TAKEN,
            ),
        ],
    );
}

#[test]
fn fields_are_limited_in_number() {
    let many = |count: u32| get_with(&vec![("x", "y"); count as usize]);
    let flood: &[&str] = &[
        "error FieldFlood",
        "GOAWAY 1 COMPRESSION_ERROR headers too long",
    ];
    let refused: &[&str] = &["1 GET / a.example END TooManyFields"];
    check(
        Conversation::new,
        &[
            ("100", many(MAX_FIELDS), TAKEN),
            ("101", many(MAX_FIELDS + 1), refused),
            ("1,000", many(MAX_DECODED_FIELDS), refused),
            ("1,001", many(MAX_DECODED_FIELDS + 1), flood),
        ],
    );
}

#[test]
fn the_text_of_fields_is_limited_by_their_bytes_on_the_wire() {
    let refused: &[&str] = &["1 GET / a.example END TooManyFields"];
    // A section that inserts an entry of 4,001 bytes and refers to it three times, and that ends with a literal of `len`
    // bytes.
    let references = |len: usize| {
        let mut section = block(GET);
        section.extend(b"\x40\x01x\x7f\xa1\x1e");
        section.extend([b'v'; 4000]);
        section.extend([0xbe; 3]);
        section.extend(block(&[("y", &"v".repeat(len))]));
        section
    };
    let excess = |len: usize| {
        let text = "GEThttpsa.example/".len() + 4 * 4001 + 1 + len;
        text.checked_sub(MAX_TABLE_TEXT + 2 * references(len).len())
    };
    // Each byte of the literal counts as one byte of decoded text, but raises the limit by two: a longer literal brings the
    // section below the limit.
    let fits = (1000..4000).find(|&len| excess(len) == Some(0));
    let fits = fits.expect("a section of the exact limit exists");
    let sent = |len| frame(HEADERS, WHOLE, 1, &references(len));
    check(
        Conversation::new,
        &[
            ("at the limit", sent(fits), TAKEN),
            ("one byte more", sent(fits - 1), refused),
        ],
    );
    // A section that consists of literals never exceeds the limit of decoded text, however long it is.
    let long = "v".repeat(60_000);
    let mut section = block(GET);
    section.extend(block(&[("x", &long)]));
    let mut input = frame(HEADERS, END_STREAM, 1, b"");
    for chunk in section.chunks(16_384) {
        input.extend(frame(CONTINUATION, 0, 1, chunk));
    }
    input.extend(frame(CONTINUATION, END_HEADERS, 1, b""));
    check(Conversation::new, &[("a literal", input, TAKEN)]);
    let mut bomb = references(0);
    bomb.extend([0xbe; 60]);
    let (said, costs) = outcome(Conversation::new, &frame(HEADERS, WHOLE, 1, &bomb));
    assert_eq!(
        said, refused,
        "a small section that refers to large table entries many times (HPACK bomb)"
    );
    assert_eq!(costs, 25, "the HPACK bomb costs units");
}

#[test]
fn cookie_crumbs_are_joined_and_the_fields_of_the_engine_kept_apart() {
    let mut talk = Conversation::new();
    talk.client_sends_one(get_with(&[
        ("cookie", ""),
        ("cookie", "a=b"),
        ("x", "y"),
        ("cookie", "c=d"),
        ("cookie", ""),
        ("content-length", "0"),
    ]));
    assert_eq!(
        talk.head.headers.get(Known::Cookie),
        Some(&b"a=b; c=d"[..]),
        "RFC 9113 §8.2.3"
    );
    assert_eq!(talk.head.headers.get(Known::ContentLength), None);
    assert_eq!(talk.head.headers.len(), 2);
}

fn sized(length: &str) -> Vec<u8> {
    headers(
        1,
        END_HEADERS,
        &[POST, &[("content-length", length)]].concat(),
    )
}

#[test]
fn content_is_as_long_as_announced() {
    let trailers = || headers(1, WHOLE, &[("x", "y")]);
    let reset: [&str; 2] = [
        "1 reset by us PROTOCOL_ERROR",
        "RST_STREAM 1 PROTOCOL_ERROR",
    ];
    let begun = "1 POST / a.example";
    let after = |events: &[&'static str]| [&[begun], events].concat();
    let cases: &[(&str, Vec<u8>, Vec<&str>)] = &[
        (
            "as long as announced",
            [sized("2"), data(1, 0, b"a"), data(1, END_STREAM, b"b")].concat(),
            after(&["1 data a", "1 data b END"]),
        ),
        (
            "as long as announced, and trailers",
            [sized("1"), data(1, 0, b"a"), trailers()].concat(),
            after(&["1 data a", "1 trailers x=y"]),
        ),
        (
            "padding does not count",
            [sized("1"), frame(DATA, PADDED | END_STREAM, 1, b"\x02axx")].concat(),
            after(&["1 data a END"]),
        ),
        (
            "too long",
            [sized("1"), data(1, 0, b"ab")].concat(),
            after(&reset),
        ),
        (
            "too long at the end",
            [sized("1"), data(1, END_STREAM, b"ab")].concat(),
            after(&reset),
        ),
        (
            "too short",
            [sized("2"), data(1, END_STREAM, b"a")].concat(),
            after(&reset),
        ),
        (
            "too short before trailers",
            [sized("1"), trailers()].concat(),
            after(&reset),
        ),
        (
            "no content at all",
            [sized("1"), data(1, END_STREAM, b"")].concat(),
            after(&reset),
        ),
    ];
    for (why, input, want) in cases {
        check(Conversation::new, &[(why, input.clone(), want)]);
    }
}

#[test]
fn content_is_limited() {
    let begin = || {
        Conversation::with(Settings {
            limit_request_body: 3,
            ..Settings::default()
        })
    };
    let begun = "1 POST / a.example";
    check(
        begin,
        &[
            (
                "at the limit",
                [post(1), data(1, 0, b"abc")].concat(),
                &[begun, "1 data abc"],
            ),
            (
                "one byte above the limit",
                [post(1), data(1, 0, b"abc"), data(1, 0, b"d")].concat(),
                &[
                    begun,
                    "1 data abc",
                    "1 reset by us REFUSED_STREAM",
                    "RST_STREAM 1 REFUSED_STREAM",
                ],
            ),
            (
                "tunnels have no limit",
                [headers(1, END_HEADERS, CONNECT), data(1, 0, b"abcd")].concat(),
                &["1 CONNECT b.example:443 b.example:443", "1 data abcd"],
            ),
        ],
    );
}

#[test]
fn trailers_have_neither_pseudo_fields_nor_those_that_frame() {
    let trailers = |fields: Fields<'_>| [post(1), headers(1, WHOLE, fields)].concat();
    let begun = "1 POST / a.example";
    check(
        Conversation::new,
        &[
            (
                "§8.1: a pseudo field",
                trailers(&[P]),
                &[
                    begun,
                    "error PseudoField",
                    "GOAWAY 1 PROTOCOL_ERROR invalid pseudo header",
                ],
            ),
            (
                "fields that frame are dropped",
                trailers(&[("content-length", "7"), ("host", "x"), ("a", "b")]),
                &[begun, "1 trailers a=b"],
            ),
            (
                "§8.2.1: an invalid value",
                trailers(&[("x", "\0")]),
                &[
                    begun,
                    "1 reset by us PROTOCOL_ERROR",
                    "RST_STREAM 1 PROTOCOL_ERROR",
                ],
            ),
        ],
    );
}

#[test]
fn identifiers_grow_and_streams_are_limited() {
    let begin = || {
        Conversation::with(Settings {
            max_streams: 2,
            ..Settings::default()
        })
    };
    let taken = "1 GET / a.example END";
    check(
        begin,
        &[
            (
                "§5.1.2: one stream more than the limit",
                [get(1), get(3), get(5)].concat(),
                &[
                    taken,
                    "3 GET / a.example END",
                    "RST_STREAM 5 REFUSED_STREAM",
                ],
            ),
            (
                "§5.1.1: gaps between stream ids are allowed",
                [get(1), get(0x7fff_ffff)].concat(),
                &[taken, "2147483647 GET / a.example END"],
            ),
            (
                "§5.1.1: a stream id below an earlier one",
                [get(3), get(1)].concat(),
                &[
                    "3 GET / a.example END",
                    "error HeadersOnClosed",
                    "GOAWAY 3 STREAM_CLOSED closed stream id in HEADERS frame",
                ],
            ),
        ],
    );
    // A stream counts against the limit until the caller releases it: a stream that the client has reset counts until its
    // handler ends (CVE-2023-44487).
    let mut talk = begin();
    talk.client_sends([get(1), rst_stream(1, 8), get(3), rst_stream(3, 8), get(5)].concat());
    talk.expect_output(
        "reset streams count until they are released",
        &["RST_STREAM 5 REFUSED_STREAM"],
    );
    talk.release(1).client_sends(get(7));
    talk.expect_output("ended streams count until they are released", &[]);
}

#[test]
fn responses_have_the_fields_of_the_reference_in_its_order() {
    let mut talk = Conversation::new();
    talk.client_sends([get(1), get(3), post(5)].concat());
    let headers = fields(&[
        ("x-a", "b"),
        ("connection", "x"),
        ("keep-alive", "y"),
        ("upgrade", "z"),
        ("content-length", "9"),
    ]);
    talk.respond_with(1, 200, &headers, Some(5), false);
    talk.connection
        .send_data(talk.key(1), b"hello", true, &mut talk.out);
    talk.expect_output(
        "RFC 9113 §8.2.2",
        &[
            "HEADERS 1 :status=200 x-a=b content-length=5",
            "DATA 1 5 END",
        ],
    );
    let hints = fields(&[("link", "</a>")]);
    let early = h2o_http::StatusCode::EARLY_HINTS;
    talk.connection
        .send_informational(talk.key(3), early, &hints, &mut talk.out);
    talk.respond(3, 200, false);
    talk.connection
        .send_informational(talk.key(3), early, &hints, &mut talk.out);
    let trailers = fields(&[("x-b", "c\r\nd")]);
    talk.connection
        .finish(talk.key(3), Some(&trailers), &mut talk.out);
    talk.expect_output(
        "informational responses come first, trailers last; line ends in values become blanks",
        &[
            "HEADERS 3 :status=103 link=</a>",
            "HEADERS 3 :status=200",
            "HEADERS 3 END x-b=c  d",
        ],
    );
    talk.respond(5, 413, true);
    talk.expect_output(
        "after an early response the client may send the rest of its request",
        &["HEADERS 5 END :status=413"],
    );
    talk.release(5);
    talk.expect_output(
        "RFC 9113 §8.1: the server asks the client to send no more content",
        &["RST_STREAM 5 NO_ERROR"],
    );
    assert!(
        talk.connection.has_streams(),
        "ended streams count until they are released"
    );
    talk.release(1).release(3);
    assert!(!talk.connection.has_streams());
}

#[test]
fn content_is_filled_in_behind_what_waits_to_be_sent() {
    let mut talk = Conversation::new();
    talk.client_sends([get(1), get(3)].concat());
    let (one, three) = (talk.key(1), talk.key(3));
    talk.respond(1, 200, false).respond(3, 200, false);
    let connection = &mut talk.connection;
    let filled = connection.send_data_with(one, 9, &mut talk.out, |out| {
        assert!(
            out.len() > 9,
            "`fill` gets the buffer with the bytes written before"
        );
        out.extend_from_slice(b"abc");
        Ok::<_, ()>(Some((3, false)))
    });
    assert_eq!(filled, Ok(Some((3, false))));
    let filled = connection.send_data_with(three, 9, &mut talk.out, |out| {
        out.extend_from_slice(b"lost");
        Err("a file that is cut off")
    });
    assert_eq!(filled, Err("a file that is cut off"));
    for nothing in [None, Some((0, false))] {
        let filled = connection.send_data_with(one, 9, &mut talk.out, |_| Ok::<_, ()>(nothing));
        assert_eq!(filled, Ok(nothing));
    }
    let end = Some((0, true));
    let filled = connection.send_data_with(one, 9, &mut talk.out, |_| Ok::<_, ()>(end));
    assert_eq!(filled, Ok(end));
    talk.expect_output(
        "without content there is no frame, except for the last",
        &[
            "HEADERS 1 :status=200",
            "HEADERS 3 :status=200",
            "DATA 1 3",
            "DATA 1 0 END",
        ],
    );
    assert_eq!(talk.reader.content[0], (1, b"abc".to_vec()));
    assert_eq!(talk.state(1), StreamState::Closed);
    assert_eq!(talk.state(3), StreamState::HalfClosedRemote);
}

#[test]
fn long_sections_are_cut_into_frames() {
    let mut talk = Conversation::new();
    talk.client_sends(get(1));
    let long = "v".repeat(16_384);
    talk.respond_with(
        1,
        200,
        &fields(&[("x", &long), ("y", &long), ("z", &long)]),
        None,
        true,
    );
    let mut rest = &talk.out[..];
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(9) {
        let len = usize::from(header[1]) << 8 | usize::from(header[2]);
        frames.push((header[3], header[4], len <= 16_384));
        rest = &after[len..];
    }
    let (first, last) = (frames[0], frames[frames.len() - 1]);
    assert_eq!(first, (HEADERS, END_STREAM, true));
    assert_eq!(last, (CONTINUATION, END_HEADERS, true));
    assert!(
        frames[1..frames.len() - 1]
            .iter()
            .all(|frame| *frame == (CONTINUATION, 0, true))
    );
    let said = talk.output();
    assert!(
        said[0].len() > 3 * 16_384,
        "a field section longer than three frames is sent completely"
    );
}
