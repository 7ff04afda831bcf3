//! `server-timing`: which durations the field has, in which order, and which responses have no such field.

use h2o_tests::http2::{Frame, Http2, encode, get, setting};
use h2o_tests::{Backend, Raw, Server, Setup};

const OWN: [&str; 5] = [
    "connect",
    "request-header",
    "request-body",
    "request-total",
    "process",
];
const OF_PROXY: [&str; 4] = [
    "proxy.idle",
    "proxy.connect",
    "proxy.request",
    "proxy.process",
];
const AT_THE_END: [&str; 4] = ["response", "total", "proxy.response", "proxy.total"];

/// Starts a server that forwards `/` to the backend, and serves a file of five bytes as `/file`.
fn start(setting: &str, backend: &Backend) -> Server {
    let config = format!(
        "
server-timing: {setting}
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: '{}' }}
      /file: {{ file.file: @DIR@/file }}
",
        backend.url("/")
    );
    Setup::new(&config).file("file", "hello").start()
}

/// A backend whose target chooses the form of the response: with a length, long with a length, in chunks, or in chunks that break off.
fn backend() -> Backend {
    // The content is so long that it comes in several pieces.
    let large = format!("content-length: 200000\r\n\r\n{}", "x".repeat(200_000));
    Backend::by_request(move |request| {
        let framed = match request.target() {
            "/length" => "content-length: 5\r\n\r\nhello",
            "/empty" => "content-length: 0\r\n\r\n",
            "/large" => &*large,
            "/broken" => "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nno size\r\n",
            _ => "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        };
        format!("HTTP/1.1 200 OK\r\n{framed}")
    })
}

/// The names in a value of the field; each must have a number of milliseconds.
fn names(value: &str) -> Vec<String> {
    let elements = value.split(", ").map(|element| {
        let (name, duration) = element.split_once("; dur=").expect("every name has a time");
        assert!(
            duration.parse::<f64>().is_ok_and(|millis| millis < 60e3),
            "{element}"
        );
        name.to_owned()
    });
    elements.collect()
}

/// Reads the rest of a chunked response, whose content is `hello`, and returns its trailer fields.
fn trailers(connection: &mut Raw) -> Vec<(String, String)> {
    connection.read_until(b"5\r\nhello\r\n0\r\n");
    let mut fields = Vec::new();
    loop {
        let line = connection.read_until(b"\r\n");
        let line = String::from_utf8_lossy(&line);
        match line.trim_end().split_once(": ") {
            Some((name, value)) => fields.push((name.to_owned(), value.to_owned())),
            None => return fields,
        }
    }
}

/// The names expected in the head and in the trailers of the response for a target.
fn expected(target: &str) -> (Vec<String>, Vec<String>) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    if target == "/file" {
        (owned(&OWN), owned(&AT_THE_END[..2]))
    } else {
        (
            owned(&[&OWN[..], &OF_PROXY[..]].concat()),
            owned(&AT_THE_END),
        )
    }
}

#[test]
fn chunked_responses_have_the_rest_behind_them() {
    let backend = backend();
    // Columns: setting of the directive, target, whether the response has trailers.
    let cases = [
        ("ON", "/file", false),
        ("ENFORCE", "/file", true),
        ("ON", "/length", false),
        ("ON", "/chunked", true),
        ("ENFORCE", "/length", true),
        ("ENFORCE", "/chunked", true),
    ];
    for (setting, target, is_chunked) in cases {
        let (in_head, behind) = expected(target);
        let server = start(setting, &backend);
        let mut client = server.connect();
        // The second request on the connection shows that the first response ended where it should.
        for _ in 0..2 {
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let head = client.read_head();
            let value = head
                .field("server-timing")
                .expect("the configuration asks for the field");
            assert_eq!(names(value), in_head, "{setting} {target}");
            let promise = is_chunked.then_some("server-timing");
            assert_eq!(head.field("trailer"), promise, "{setting} {target}");
            if is_chunked {
                let trailers = trailers(&mut client);
                assert_eq!(trailers.len(), 1, "{setting} {target}: {trailers:?}");
                assert_eq!(trailers[0].0, "server-timing");
                assert_eq!(names(&trailers[0].1), behind, "{setting} {target}");
            } else {
                assert_eq!(head.field("content-length"), Some("5"));
                assert_eq!(client.read_exactly(5), b"hello");
            }
        }
    }
}

#[test]
fn heads_without_content_and_old_clients_have_no_trailer() {
    let backend = backend();
    let server = start("ENFORCE", &backend);
    for request in [
        "HEAD /file HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /file HTTP/1.0\r\n\r\n",
        "GET /file HTTP/1.1\r\nHost: a\r\nIf-None-Match: *\r\n\r\n",
    ] {
        let mut client = server.connect();
        client.send(request);
        client.finish();
        let answer = client.read_to_end();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("\r\nserver-timing: connect"), "{answer}");
        assert!(!answer.contains("trailer"), "{answer}");
        let len = answer.contains("Content-Length: 5\r\n");
        assert_eq!(len, !answer.contains("304"), "{answer}");
    }
}

#[test]
fn a_response_that_breaks_off_has_no_trailer() {
    let backend = backend();
    let server = start("ENFORCE", &backend);
    let mut client = server.connect();
    client.send("GET /broken HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().field("trailer"), Some("server-timing"));
    let rest = client.read_to_end();
    let rest = rest.escape_ascii().to_string();
    assert!(!rest.contains("server-timing"), "{rest}");
    let answer = Http2::open(server.port(), &[]).ask(1, &get("/broken"));
    assert!(answer.reset.is_some(), "{answer:?}");
    assert_eq!(answer.trailers, []);
}

#[test]
fn http_2_always_has_the_trailer() {
    let backend = backend();
    let server = start("ON", &backend);
    let mut client = Http2::open(server.port(), &[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    client.send_frame(&Frame::window_update(0, 1 << 20));
    let targets = ["/file", "/length", "/empty", "/chunked", "/large"];
    for (number, target) in targets.into_iter().enumerate() {
        let (in_head, behind) = expected(target);
        let stream = u32::try_from(number).expect("there are fewer than 2^31 targets") * 2 + 1;
        let answer = client.ask(stream, &get(target));
        let value = answer
            .field("server-timing")
            .expect("the configuration asks for the field");
        assert_eq!(names(value), in_head, "{target}");
        assert_eq!(answer.field("trailer"), Some("server-timing"), "{target}");
        assert_eq!(answer.trailers.len(), 1, "{target}: {answer:?}");
        assert_eq!(names(&answer.trailers[0].1), behind, "{target}");
    }
    let head = encode(&[
        (":method", "HEAD"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/file"),
    ]);
    let answer = client.ask(99, &head);
    assert!(answer.field("server-timing").is_some());
    assert_eq!(answer.field("content-length"), Some("5"));
    assert_eq!((answer.field("trailer"), answer.trailers.len()), (None, 0));
}
