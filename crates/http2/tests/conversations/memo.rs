//! Tests of heads that are received or sent repeatedly. The engine remembers the latest head of each direction with its
//! bytes on the wire, which peers and callers must not be able to notice.

use h2o_http::{Headers, ResponseHead, StatusCode};
use h2o_http2::Settings;

use crate::kit::frames::*;
use crate::kit::server::{Conversation, fields};

/// The start of a request section: `:method: GET`, `:scheme: https`, `:path: /`.
const START: &[u8] = b"\x82\x87\x84";
/// A reference to the newest entry of the dynamic table.
const NEWEST: u8 = 0xbe;
/// How often a test sends the same section: it is decoded the first time, noticed as repeated the second time, and
/// remembered from the third time on.
const TIMES: u32 = 4;

/// A request section of `START` and `rest`.
fn section(rest: &[u8]) -> Vec<u8> {
    [START, rest].concat()
}

/// A literal field that enters the dynamic table.
fn entering(name: &str, value: &str) -> Vec<u8> {
    let mut out = block(&[(name, value)]);
    out[0] = 0x40;
    out
}

/// A literal field that enters no table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    block(&[(name, value)])
}

/// Makes a request section around the encoded form of a path.
type Kind<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// A conversation in which each request gets the next stream identifier.
struct Talk {
    talk: Conversation,
    next: u32,
}

impl Talk {
    fn new() -> Self {
        Self {
            talk: Conversation::new(),
            next: 1,
        }
    }

    /// Sends a request with this field section. Returns the result in words, with the head as handlers see it.
    fn asks(&mut self, flags: u8, section: &[u8]) -> String {
        let input = frame(HEADERS, flags | END_HEADERS, self.next, section);
        let stream = format!("{} ", self.next);
        self.next += 2;
        self.talk.client_sends_one(input);
        let mut said = std::mem::take(&mut self.talk.events);
        assert!(said.len() <= 1, "one request, one event: {said:?}");
        let Some(event) = said.pop() else {
            return self.talk.output().join(", ");
        };
        let Some(request) = event.strip_prefix(&stream) else {
            return event;
        };
        let head = &self.talk.head;
        let mut words = format!("{request} {:?} {:?}", head.scheme, head.body);
        if !head.expect().is_empty() {
            words += " expect";
        }
        for field in head.headers.iter() {
            words += &format!(" {}={}", field.name.as_str(), field.value.escape_ascii());
        }
        words
    }

    /// Sends a request with this section until the engine remembers it, and expects the same result each time.
    #[track_caller]
    fn repeats(&mut self, why: &str, flags: u8, section: &[u8], want: &str) {
        for time in 1..=TIMES {
            assert_eq!(
                self.asks(flags, section),
                want,
                "{why}, for the {time}. time"
            );
        }
    }

    /// The stream of the latest request.
    fn latest(&self) -> u32 {
        self.next - 2
    }
}

#[test]
fn requests_that_come_again_are_the_same_again() {
    let bad_value = "GET /  END ValueInvalid Https None";
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("nothing but indices", section(b""), "GET /  END Https None"),
        (
            "an authority and fields",
            [
                section(b"\x01\x09a.example"),
                literal("x", "y"),
                literal("cookie", "a=b"),
                literal("cookie", "c=d"),
            ]
            .concat(),
            "GET / a.example END Https None x=y cookie=a=b; c=d",
        ),
        (
            "another method",
            [&literal(":method", "PURGE")[..], b"\x86\x85"].concat(),
            "PURGE /index.html  END Http None",
        ),
        (
            "an expectation",
            section(&literal("expect", "100-continue")),
            "GET /  END Https None expect",
        ),
        (
            "an invalid value",
            section(&literal("x", "a\nb")),
            bad_value,
        ),
    ];
    for (why, section, want) in cases {
        Talk::new().repeats(why, END_STREAM, section, want);
    }
    // A malformed section is answered with RST_STREAM each time.
    let mut talk = Talk::new();
    for stream in [1, 3, 5, 7] {
        let want = format!("RST_STREAM {stream} PROTOCOL_ERROR");
        assert_eq!(talk.asks(END_STREAM, &START[1..]), want);
    }
}

#[test]
fn requests_that_differ_in_their_path_alone_are_what_they_would_be_alone() {
    // Sections with the fields `:method: GET`, `:scheme: https`, a path and others, in several orders and forms.
    let before = |path: &[u8]| [b"\x82\x87", path, &literal("x", "/b")].concat();
    let between = |path: &[u8]| [b"\x01\x01a\x82", path, b"\x87\x00\x01x\x01/"].concat();
    let never_indexed = |path: &[u8]| [b"\x82\x87\x14", path.get(1..).unwrap_or_default()].concat();
    let by_index_5 = |path: &[u8]| [b"\x82\x87\x05", path.get(1..).unwrap_or_default()].concat();
    let paths: &[&[u8]] = &[
        b"\x04\x02/a",
        b"\x04\x02/b",
        b"\x04\x01/",
        b"\x04\x09/c/./%64?e",
        b"\x04\x01*",
        b"\x04\x03x/y",
        b"\x04\x82\x60\xff",     // The Huffman code of "/0".
        b"\x04\x83\x60\xff\xff", // The same code with too much padding.
        b"\x04\x03/\x00a",
        b"\x04\x03/ a",
        b"\x04\x03/\xffa",
        b"\x04\x00",
        b"\x04\x03/a",
        b"\x04\x01/a",
        b"\x04\x7f\x00",
        b"\x04\x02/b\x04\x02/c",
        b"\x44\x02/d",
        b"\x84",
        b"\x04",
        b"",
    ];
    let kinds: &[Kind<'_>] = &[&before, &between, &never_indexed, &by_index_5];
    for (n, kind) in kinds.iter().enumerate() {
        for path in paths {
            let alone = Talk::new().asks(END_STREAM, &kind(path));
            let mut talk = Talk::new();
            for path in &paths[..3] {
                talk.asks(END_STREAM, &kind(path));
            }
            let stream = talk.next;
            let after_others = talk.asks(END_STREAM, &kind(path));
            let alone = alone.replace("RST_STREAM 1 ", &format!("RST_STREAM {stream} "));
            assert_eq!(after_others, alone, "kind {n}, {}", path.escape_ascii());
        }
    }
    // The path of an earlier request must not stay in the head of a later one.
    let mut talk = Talk::new();
    for path in paths.iter().take(9).cycle().take(40) {
        let alone = Talk::new().asks(END_STREAM, &before(path));
        let wants = alone.replace("RST_STREAM 1 ", &format!("RST_STREAM {} ", talk.next));
        if !alone.starts_with("error") {
            assert_eq!(talk.asks(END_STREAM, &before(path)), wants);
        }
    }
}

#[test]
fn requests_mean_something_else_when_the_table_has_changed() {
    let mut talk = Talk::new();
    let get = section(&[NEWEST]);
    let with_x = |value| format!("GET /  END Https None x={value}");
    let enters = |value| section(&entering("x", value));

    assert_eq!(talk.asks(END_STREAM, &enters("1")), with_x("1"));
    talk.repeats(
        "a request that refers to the first entry",
        END_STREAM,
        &get,
        &with_x("1"),
    );
    assert_eq!(talk.asks(END_STREAM, &enters("2")), with_x("2"));
    talk.repeats(
        "the request after another request has inserted an entry",
        END_STREAM,
        &get,
        &with_x("2"),
    );

    let upload = talk.asks(0, START);
    assert_eq!(upload, "GET /  Https Unknown");
    let trailers = frame(HEADERS, WHOLE, talk.latest(), &entering("x", "3"));
    talk.talk.client_sends(trailers);
    talk.talk.events.clear();
    talk.repeats(
        "the request after trailers have inserted an entry",
        END_STREAM,
        &get,
        &with_x("3"),
    );

    // The fields of a request that is reset have entered the dynamic table nevertheless (RFC 9113 §4.3).
    let malformed = [&START[1..], &entering("x", "4")].concat();
    assert!(talk.asks(END_STREAM, &malformed).starts_with("RST_STREAM"));
    talk.repeats(
        "the request after a malformed request has inserted an entry",
        END_STREAM,
        &get,
        &with_x("4"),
    );

    // A section that inserts an entry and refers to the entry before it, which the previous request inserted.
    let shifting = section(&[&entering("x", "5")[..], &[NEWEST + 1]].concat());
    let with_both = |older| format!("GET /  END Https None x=5 x={older}");
    assert_eq!(talk.asks(END_STREAM, &shifting), with_both("4"));
    talk.repeats(
        "a request that inserts an entry each time",
        END_STREAM,
        &shifting,
        &with_both("5"),
    );
}

#[test]
fn requests_mean_something_else_when_the_table_was_resized() {
    let get = section(&[NEWEST]);
    let first = || {
        let mut talk = Talk::new();
        talk.asks(END_STREAM, &section(&entering("x", "1")));
        talk.repeats(
            "before the table size changes",
            END_STREAM,
            &get,
            "GET /  END Https None x=1",
        );
        talk
    };
    let (empty, full) = (b"\x20", b"\x3f\xe1\x1f");

    let mut talk = first();
    let same = [&full[..], &get].concat();
    let want = "GET /  END Https None x=1";
    talk.repeats("a size that changes nothing", END_STREAM, &same, want);
    talk.repeats("and without", END_STREAM, &get, want);

    let mut talk = first();
    let emptied = [&empty[..], &full[..], START].concat();
    talk.repeats("emptied", END_STREAM, &emptied, "GET /  END Https None");
    assert_eq!(
        talk.asks(END_STREAM, &get),
        "error Compression",
        "the table entry was evicted"
    );

    let mut talk = first();
    assert_eq!(
        talk.asks(END_STREAM, &[&empty[..], &full[..], &get].concat()),
        "error Compression",
        "the table entry is evicted and used within one section"
    );

    // The section `replaced` empties the table and inserts one entry: the table has as many entries as before, but other
    // ones.
    let mut talk = first();
    let replaced = [&empty[..], &full[..], &section(&entering("x", "2"))].concat();
    let want = "GET /  END Https None x=2";
    talk.repeats("replaced by itself", END_STREAM, &replaced, want);
    talk.repeats("what it put in", END_STREAM, &get, want);

    // A size update takes effect each time that it is received. The section `long` is too long to be remembered and does
    // not change what is remembered.
    let mut talk = Talk::new();
    let emptied = [&empty[..], START].concat();
    let long = [&full[..], START, &literal("y", &"v".repeat(200))].concat();
    talk.repeats("no table", END_STREAM, &emptied, "GET /  END Https None");
    talk.asks(END_STREAM, &long);
    talk.asks(END_STREAM, &emptied);
    talk.asks(END_STREAM, &section(&entering("x", "1")));
    assert_eq!(talk.asks(END_STREAM, &get), "error Compression");

    // A field larger than the table empties the table and is not inserted.
    let mut talk = first();
    let large = section(&entering("y", &"v".repeat(4096)));
    talk.asks(END_STREAM, &large);
    assert_eq!(talk.asks(END_STREAM, &get), "error Compression");
}

#[test]
fn end_stream_is_not_part_of_a_remembered_section() {
    let mut talk = Talk::new();
    for _ in 0..3 {
        talk.repeats("the end", END_STREAM, START, "GET /  END Https None");
        talk.repeats("not the end", 0, START, "GET /  Https Unknown");
    }
    for _ in 0..3 {
        assert_eq!(talk.asks(0, START), "GET /  Https Unknown");
        assert_eq!(talk.asks(END_STREAM, START), "GET /  END Https None");
    }

    let tunnel = [literal(":method", "CONNECT"), literal(":authority", "b:1")].concat();
    let mut talk = Talk::new();
    talk.repeats("a tunnel", 0, &tunnel, "CONNECT b:1 b:1 Http Tunnel");
    let refused = "CONNECT b:1 b:1 END Connect Http Tunnel";
    talk.repeats(
        "a CONNECT that ends its stream is refused",
        END_STREAM,
        &tunnel,
        refused,
    );
    talk.repeats("a tunnel again", 0, &tunnel, "CONNECT b:1 b:1 Http Tunnel");
    let trailers = headers(talk.latest(), WHOLE, &[]);
    talk.talk.client_sends(trailers);
    talk.talk
        .expect("trailers on a tunnel", &["error TrailersInTunnel"]);
}

#[test]
fn the_length_of_content_holds_for_each_request() {
    let sized = section(&literal("content-length", "4"));
    let mut talk = Talk::new();
    let want = "GET /  Https Known(4)";
    talk.repeats("a request that announces four bytes", 0, &sized, want);
    let id = talk.next;
    assert_eq!(
        talk.asks(END_STREAM, &sized),
        format!("RST_STREAM {id} PROTOCOL_ERROR"),
        "RFC 9113 §8.1.1: the stream ends without the announced four bytes"
    );
    talk.repeats("the request after a malformed one", 0, &sized, want);
    let id = talk.latest();
    talk.talk.client_sends(data(id, END_STREAM, b"four"));
    let event = format!("{id} data four END");
    talk.talk.expect("content as long as announced", &[&event]);
    talk.asks(0, &sized);
    let id = talk.latest();
    talk.talk.client_sends(data(id, 0, b"fives"));
    let event = format!("{id} reset by us PROTOCOL_ERROR");
    talk.talk
        .expect("one byte more than content-length", &[&event]);
}

#[test]
fn the_priority_of_a_request_is_its_own() {
    let mut talk = Talk::new();
    let late = section(&literal("priority", "u=5"));
    talk.repeats(
        "u=5",
        END_STREAM,
        &late,
        "GET /  END Https None priority=u=5",
    );
    talk.repeats("u=3", END_STREAM, START, "GET /  END Https None");
    for stream in [1, 3, 5, 7, 9, 11, 13, 15] {
        talk.talk.respond_long(stream, 10);
    }
    assert_eq!(
        talk.talk.send(99),
        [9, 11, 13, 15, 1, 3, 5, 7],
        "RFC 9218 §10"
    );

    // The priority in a HEADERS frame is not part of the field section.
    let mut talk = Talk::new();
    talk.repeats("no priority", END_STREAM, START, "GET /  END Https None");
    for (stream, on) in [(9, 0), (11, 9)] {
        let payload = [&dependency(on, 16, false)[..], START].concat();
        let flags = WITH_PRIORITY | WHOLE;
        talk.talk
            .client_sends(frame(HEADERS, flags, stream, &payload));
    }
    talk.talk.respond_long(11, 10).respond_long(9, 10);
    assert_eq!(talk.talk.send(99), [9, 11], "RFC 7540 §5.3.1");
}

#[test]
fn too_many_fields_cost_each_time() {
    let mut talk = Talk::new();
    talk.asks(END_STREAM, &section(&entering("x", "y")));
    let many = section(&[NEWEST; 101]);
    for time in 1..=TIMES {
        let said = talk.asks(END_STREAM, &many);
        assert!(said.starts_with("GET /  END TooManyFields"), "{said}");
        assert_eq!(talk.talk.costs, 25 * time);
    }
}

/// A conversation in which each response answers a request of its own.
struct Responses {
    talk: Conversation,
    next: u32,
}

impl Responses {
    fn new() -> Self {
        Self {
            talk: Conversation::with(Settings {
                max_streams: 1000,
                ..Settings::default()
            }),
            next: 1,
        }
    }

    /// Writes a response until the engine remembers it, and checks each time that a client reads it as `want`.
    #[track_caller]
    fn repeats(&mut self, why: &str, head: &ResponseHead<'_>, want: &str) {
        for _ in 0..TIMES {
            self.writes(why, head, want);
        }
    }

    /// Writes a response and checks that a client reads it as `want`. Returns the first byte of its field section.
    #[track_caller]
    fn writes(&mut self, why: &str, head: &ResponseHead<'_>, want: &str) -> u8 {
        let id = self.asked();
        let key = self.talk.key(id);
        let out = &mut self.talk.out;
        self.talk.connection.respond(key, head, true, out);
        let first = out[9];
        self.talk.release(id);
        let want = format!("HEADERS {id} END {want}");
        self.talk.expect_output(why, &[&want]);
        first
    }

    /// Sends a new request. Returns its stream.
    fn asked(&mut self) -> u32 {
        let id = self.next;
        self.next += 2;
        self.talk.client_sends(get(id));
        id
    }
}

fn response(status: u16, headers: &Headers) -> ResponseHead<'_> {
    ResponseHead {
        status: StatusCode::new(status).expect("the number is a valid status code"),
        reason: None,
        headers,
        length: None,
        server: None,
    }
}

#[test]
fn responses_that_go_out_again_are_read_as_they_are() {
    let mut talk = Responses::new();
    let (none, some) = (Headers::new(), fields(&[("x", "1"), ("y", "2")]));
    let other = fields(&[("x", "1"), ("y", "3")]);
    let framing = fields(&[("x", "1"), ("connection", "x")]);
    let with_length = |length| ResponseHead {
        length,
        ..response(200, &some)
    };
    let with_server = |server: &'static [u8]| ResponseHead {
        server: Some(server),
        ..response(200, &some)
    };
    let (two, all) = (":status=200", ":status=200 x=1 y=2");
    for _ in 0..2 {
        talk.repeats("no fields", &response(200, &none), two);
        talk.repeats("fields", &response(200, &some), all);
        talk.repeats(
            "another value",
            &response(200, &other),
            ":status=200 x=1 y=3",
        );
        talk.repeats(
            "another status",
            &response(404, &some),
            ":status=404 x=1 y=2",
        );
        talk.repeats(
            "a status that is not in the static table",
            &response(418, &some),
            ":status=418 x=1 y=2",
        );
        talk.repeats(
            "a length",
            &with_length(Some(7)),
            ":status=200 x=1 y=2 content-length=7",
        );
        talk.repeats(
            "another length",
            &with_length(Some(0)),
            ":status=200 x=1 y=2 content-length=0",
        );
        talk.repeats("no length", &with_length(None), all);
        talk.repeats(
            "a server",
            &with_server(b"h2o"),
            ":status=200 server=h2o x=1 y=2",
        );
        talk.repeats(
            "another server",
            &with_server(b"h"),
            ":status=200 server=h x=1 y=2",
        );
        talk.repeats(
            "fields of HTTP/1",
            &response(200, &framing),
            ":status=200 x=1",
        );
    }
}

#[test]
fn responses_are_written_anew_when_the_table_has_changed() {
    let mut talk = Responses::new();
    let headers = fields(&[("x", "1")]);
    let head = response(200, &headers);
    let want = ":status=200 x=1";
    talk.repeats("a response that refers to the first entry", &head, want);

    // Sends so many responses with other fields that the entry of the field `x` is evicted from the table.
    for count in 0..200 {
        let value = format!("{count}-{}", "v".repeat(40));
        let other = fields(&[("y", &value)]);
        let said = format!(":status=200 y={value}");
        talk.repeats("responses with other fields", &response(200, &other), &said);
        if count % 20 == 0 {
            talk.repeats("the response after some others", &head, want);
        }
    }
    talk.repeats("the response after all others", &head, want);

    // The fields of informational responses and trailers enter the table, too.
    let id = talk.asked();
    let key = talk.talk.key(id);
    let (connection, out) = (&mut talk.talk.connection, &mut talk.talk.out);
    let hints = fields(&[("link", "</a>")]);
    connection.send_informational(key, StatusCode::EARLY_HINTS, &hints, out);
    connection.respond(key, &head, false, out);
    connection.finish(key, Some(&fields(&[("x-b", "c")])), out);
    talk.talk.output();
    talk.repeats(
        "the response after informational responses and trailers",
        &head,
        want,
    );
}

#[test]
fn responses_are_written_anew_when_the_client_wants_another_table() {
    let mut talk = Responses::new();
    let headers = fields(&[("x", "1"), ("y", "2")]);
    let head = response(200, &headers);
    let want = ":status=200 x=1 y=2";
    let is_size_update = |first| (0x20..0x40).contains(&first);
    // Maximum table sizes with room for more than the entries of `x` and `y`, for just both, for one and for none.
    for size in [1000, 100, 40, 0] {
        talk.repeats("before the table size changes", &head, want);
        talk.talk.client_sends(settings(&[(1, size)]));
        talk.talk.expect_output(
            "the table size of the client is accepted",
            &["SETTINGS ACK"],
        );
        let first = talk.writes("a section that was remembered", &head, want);
        assert!(is_size_update(first), "RFC 7541 §4.2: {size}");
        let first = talk.writes("the next section", &head, want);
        assert!(!is_size_update(first), "a size update is sent once: {size}");
    }
    talk.repeats("the response without a table", &head, want);
    talk.talk.client_sends(settings(&[(1, 4096)]));
    talk.talk.expect_output(
        "the table size of the client is accepted",
        &["SETTINGS ACK"],
    );
    talk.repeats("a larger table size of the client is not used", &head, want);

    let mut talk = Responses::new();
    talk.repeats("before the table size changes", &head, want);
    talk.talk.client_sends(settings(&[(1, 0), (1, 4096)]));
    talk.talk.output();
    let first = talk.writes("the smallest of several table sizes counts", &head, want);
    assert!(is_size_update(first), "RFC 7541 §4.2: the table was empty");
    talk.repeats("the response after the table size was changed", &head, want);
}
