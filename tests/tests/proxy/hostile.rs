//! Malformed requests do not reach the backend.

use std::time::Duration;

use h2o_testkit::table::{self, Entry};
use h2o_tests::http2::{Frame, Http2, encode, flag, get, kind, post};
use h2o_tests::{Backend, FINE, Raw, Server, Setup};

use super::kit::config;

fn start(settings: &str) -> (Backend, Server) {
    let backend = Backend::answering(FINE);
    let server = Setup::new(&config(settings, &backend.url("/"))).start();
    (backend, server)
}

/// Whether the request is valid except for its content, so that the server may have forwarded the head before it found the error.
fn is_wrong_in_its_content(entry: &Entry) -> bool {
    let error = entry.text("error").unwrap_or_default();
    error.starts_with("chunk") || error.starts_with("trailer") || entry.name.starts_with("chunk-")
}

#[test]
fn no_part_of_a_malformed_request_reaches_the_back_end() {
    let entries = table::malformed();
    for strict in [false, true] {
        let settings = if strict { "http1-strict: ON" } else { "" };
        let (backend, server) = start(settings);
        let heads = entries
            .iter()
            .filter(|entry| entry.applies(strict) && !is_wrong_in_its_content(entry));
        let mut count = 0;
        for entry in heads {
            let answer = exchange(&server, &entry.input);
            let code = answer.get(9..12).unwrap_or(b"400");
            assert!(
                code.starts_with(b"4"),
                "{}: {}",
                entry.name,
                answer.escape_ascii()
            );
            assert_eq!(
                backend.received_by_all().escape_ascii().to_string(),
                "",
                "{}, strict {strict}",
                entry.name
            );
            count += 1;
        }
        assert!(count >= 70, "{count} entries");
        server.ask("GET /").must_be("200 OK\n\nfine");
    }
}

#[test]
fn a_request_with_malformed_content_never_comes_to_its_end() {
    let entries = table::malformed();
    let (backend, server) = start("");
    let mut count = 0;
    for entry in entries
        .iter()
        .filter(|entry| is_wrong_in_its_content(entry))
    {
        let connections = backend.connections();
        let answer = exchange(&server, &entry.input);
        let is_fine = answer.windows(4).any(|window| window == b"fine");
        assert!(!is_fine, "{}: {}", entry.name, answer.escape_ascii());
        for connection in connections..backend.connections() {
            let received = backend.received(connection);
            assert!(
                !received.ends_with(b"0\r\n\r\n") && !received.ends_with(b"content-length: 0\r\n"),
                "{}: {}",
                entry.name,
                received.escape_ascii()
            );
        }
        count += 1;
    }
    assert!(count >= 15, "{count} entries");
    server.ask("GET /").must_be("200 OK\n\nfine");
}

/// Sends bytes, and returns everything that the server sends until the connection ends.
fn exchange(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut client: Raw = server.connect();
    // The result is ignored: the server may close the connection before it has read everything.
    let _ = client.try_send(bytes);
    client.finish();
    client.read_to_end()
}

const METHOD: (&str, &str) = (":method", "GET");
const SCHEME: (&str, &str) = (":scheme", "http");
const PATH: (&str, &str) = (":path", "/x");
const AUTHORITY: (&str, &str) = (":authority", "a.example");

fn asking(fields: &[(&str, &str)]) -> Vec<Frame> {
    vec![Frame::request(1, encode(fields))]
}

/// A valid request with one more field.
fn with(name: &str, value: &str) -> Vec<Frame> {
    asking(&[METHOD, SCHEME, PATH, AUTHORITY, (name, value)])
}

/// An upload with further fields, and its content in one DATA frame.
fn upload(fields: &[(&str, &str)], content: &str) -> Vec<Frame> {
    vec![
        Frame::request_with_content(1, [post("/x"), encode(fields)].concat()),
        Frame::data(1, flag::END_STREAM, content),
    ]
}

/// A request that is valid except, possibly, for its authority.
fn at(authority: &str) -> Vec<Frame> {
    asking(&[METHOD, SCHEME, PATH, (":authority", authority)])
}

fn hostile() -> Vec<(&'static str, Vec<Frame>)> {
    let many = vec![("x", "1"); 101];
    let (begin, rest) = (get("/x")[..10].to_vec(), get("/x")[10..].to_vec());
    vec![
        ("an upper-case name", with("X-a", "1")),
        ("a blank in a name", with("x a", "1")),
        ("a colon in a name", with("x:a", "1")),
        ("a line end in a name", with("x\r\ny", "1")),
        ("a byte above 0x7f in a name", with("x\u{e9}", "1")),
        ("an empty name", with("", "1")),
        ("NUL in a value", with("x", "a\0b")),
        (
            "a line end in a value",
            with("x", "a\r\n\r\nGET /smuggled HTTP/1.1"),
        ),
        ("a bare CR in a value", with("x", "a\rb")),
        ("a bare LF in a value", with("x", "a\nb: c")),
        ("a leading blank", with("x", " a")),
        ("a trailing tab", with("x", "a\t")),
        (
            "101 fields",
            asking(&[&[METHOD, SCHEME, PATH, AUTHORITY][..], &many].concat()),
        ),
        ("connection", with("connection", "close")),
        ("http2-settings", with("http2-settings", "AA")),
        (
            "transfer-encoding",
            upload(&[("transfer-encoding", "chunked")], "0\r\n\r\n"),
        ),
        ("upgrade", with("upgrade", "h2c")),
        ("te: gzip", with("te", "gzip")),
        ("content-length: abc", with("content-length", "abc")),
        ("content-length: -1", with("content-length", "-1")),
        (
            "content-length: 1 without content",
            with("content-length", "1"),
        ),
        (
            "content longer than its length",
            upload(&[("content-length", "3")], "four"),
        ),
        (
            "content shorter than its length",
            upload(&[("content-length", "3")], "tw"),
        ),
        (
            "two lengths",
            upload(&[("content-length", "3"), ("content-length", "4")], "four"),
        ),
        (
            "two methods",
            asking(&[METHOD, METHOD, SCHEME, PATH, AUTHORITY]),
        ),
        (
            "two paths",
            asking(&[METHOD, SCHEME, PATH, PATH, AUTHORITY]),
        ),
        (
            "two authorities",
            asking(&[METHOD, SCHEME, PATH, AUTHORITY, AUTHORITY]),
        ),
        (
            "a pseudo field after others",
            asking(&[METHOD, SCHEME, ("x", "1"), PATH, AUTHORITY]),
        ),
        (
            "an empty path",
            asking(&[METHOD, SCHEME, (":path", ""), AUTHORITY]),
        ),
        (
            "a line end in the path",
            asking(&[METHOD, SCHEME, (":path", "/ HTTP/1.1\r\nx: y"), AUTHORITY]),
        ),
        (
            "a line end in the method",
            asking(&[
                (":method", "GET / HTTP/1.1\r\nx: y"),
                SCHEME,
                PATH,
                AUTHORITY,
            ]),
        ),
        (
            "a blank in the method",
            asking(&[(":method", "GET /y"), SCHEME, PATH, AUTHORITY]),
        ),
        (
            "a line end in the authority",
            asking(&[METHOD, SCHEME, PATH, (":authority", "a\r\nx: y")]),
        ),
        (
            "a path that does not begin with a slash",
            asking(&[METHOD, SCHEME, (":path", "x/../y"), AUTHORITY]),
        ),
        (
            "a URL as the path",
            asking(&[METHOD, SCHEME, (":path", "http://b.example/x"), AUTHORITY]),
        ),
        ("a path in the authority", at("a.test/..")),
        ("markup in the authority", at("a.test\"<script>")),
        ("an open bracket in the authority", at("[::1")),
        ("user information in the authority", at("a:80@evil")),
        ("an escape in the authority that is none", at("a.test%zz")),
        (
            "a path in the host",
            asking(&[METHOD, SCHEME, PATH, ("host", "a.test/..")]),
        ),
        (
            ":status",
            asking(&[METHOD, SCHEME, PATH, AUTHORITY, (":status", "200")]),
        ),
        (
            "an unknown pseudo field",
            asking(&[METHOD, SCHEME, PATH, AUTHORITY, (":x", "1")]),
        ),
        ("no method", asking(&[SCHEME, PATH, AUTHORITY])),
        ("no scheme", asking(&[METHOD, PATH, AUTHORITY])),
        ("no path", asking(&[METHOD, SCHEME, AUTHORITY])),
        (":protocol with GET", with(":protocol", "websocket")),
        (
            "CONNECT with a path",
            asking(&[(":method", "CONNECT"), PATH, AUTHORITY]),
        ),
        ("stream 0", vec![Frame::request(0, get("/x"))]),
        ("an even stream", vec![Frame::request(2, get("/x"))]),
        (
            "a section that is none",
            vec![Frame::request(1, [0xff; 12])],
        ),
        (
            "more padding than there is",
            vec![Frame::new(
                kind::HEADERS,
                flag::WHOLE | flag::PADDED,
                1,
                [&[255][..], &get("/x")].concat(),
            )],
        ),
        (
            "another frame within a section",
            vec![
                Frame::new(kind::HEADERS, flag::END_STREAM, 1, begin),
                Frame::ping([0; 8]),
                Frame::continuation(1, rest).with_flags(flag::END_HEADERS),
            ],
        ),
        (
            "a section longer than a frame",
            vec![Frame::request(1, vec![0; 16_385])],
        ),
    ]
}

#[test]
fn no_part_of_a_malformed_http2_request_reaches_the_back_end() {
    // The requests are sent to two servers: one copies the client's host into the backend's request, where hostile bytes could get into
    // that request; the other does not.
    for settings in ["proxy.preserve-host: ON", ""] {
        refuse_all(settings);
    }
}

fn refuse_all(settings: &str) {
    let (backend, server) = start(settings);
    let rows = hostile();
    assert!(rows.len() >= 30, "{} rows", rows.len());
    for (name, frames) in rows {
        let mut client = Http2::open(server.port(), &[]);
        client.send_frames(&frames);
        let is_over = client.read_while_waiting(Duration::from_secs(5), |client| {
            client.is_closed || client.answer(1).is_over()
        });
        assert!(is_over, "{name}: {}", client.story());
        let status = client.answer(1).status();
        assert!(
            status == 0 || (400..500).contains(&status),
            "{name}: {status}"
        );
        let received = backend.received_by_all();
        assert_eq!(received.escape_ascii().to_string(), "", "{name}");
    }
    let mut client = Http2::open(server.port(), &[]);
    assert_eq!(client.ask(1, &get("/fine")).text(), "fine");
    let received = backend.received_by_all();
    assert!(
        received.starts_with(b"GET /fine "),
        "{}",
        received.escape_ascii()
    );
}

#[test]
fn trailers_of_a_request_never_become_fields_of_its_head() {
    let trailers = [
        ("x-real-ip", "203.0.113.1"),
        ("authorization", "Basic eA=="),
        ("content-type", "text/evil"),
        ("x-forwarded-for", "203.0.113.1"),
        ("x-trailer", "1"),
    ];
    let backend = Backend::answering(FINE);
    // One path streams content to the backend, the other collects it first.
    let server = Setup::new(&format!(
        "
num-threads: 1
listen: @PORT@
access-log: {{ path: @DIR@/log, format: '%{{x-trailer}}i' }}
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: '{url}' }}
      /whole: {{ redirect: {{ url: /, status: 307, internal: YES }} }}
",
        url = backend.url("/")
    ))
    .start();
    for (number, path) in ["/x", "/whole"].into_iter().enumerate() {
        let mut client = Http2::open(server.port(), &[]);
        client.send_frames(&[
            Frame::request_with_content(1, post(path)),
            Frame::data(1, 0, "content"),
            Frame::request(1, encode(&trailers)),
        ]);
        assert_eq!(client.read_answer(1).text(), "fine", "{path}");
        let mut client = server.connect();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ncontent\r\n0\r\n"
        ));
        for (name, value) in trailers {
            client.send(format!("{name}: {value}\r\n"));
        }
        client.send("\r\n");
        client.read_response("POST").must_be("200 OK\n\nfine");
        let received = String::from_utf8_lossy(&backend.received_by_all()).into_owned();
        assert_eq!(
            received.matches("POST ").count(),
            2 * (number + 1),
            "{received}"
        );
        for (name, value) in trailers {
            let line = format!("{name}: {value}");
            assert!(!received.contains(&line), "{path} {line}: {received}");
        }
        assert!(!received.contains("203.0.113.1"), "{received}");
    }
    assert_eq!(
        server.read_until("log", "-\n-\n-\n-\n").trim(),
        "-\n-\n-\n-"
    );
}
