//! Backends whose responses are malformed, late, incomplete or missing.

use std::collections::BTreeMap;
use std::time::Duration;

use h2o_testkit::wait_until_read;
use h2o_tests::http2::{Http2, code, encode, get};
use h2o_tests::{Backend, ClosedPort, Deadline, FINE, Response, Server, Setup, Talk};

use super::kit::{config, proxy};

/// What the backend does after it has sent its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Keeps the connection open and waits for another request.
    Hold,
}

/// What the client must get, and what the error log must have.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// The client gets 502 with this text, which is also logged.
    Error(&'static str),
    /// The client gets 502 with the first text; the second text is logged.
    ErrorLogged(&'static str, &'static str),
    /// The client gets a response with at most this content (the first text) that is cut off; the second text is logged.
    Cut(&'static str, &'static str),
    /// The client gets a complete response with this status and content.
    Whole(u16, &'static str),
}

struct Row {
    name: &'static str,
    method: &'static str,
    bytes: Vec<u8>,
    then: Then,
    want: Want,
}

fn row(name: &'static str, bytes: impl Into<Vec<u8>>, then: Then, want: Want) -> Row {
    Row {
        name,
        method: "GET",
        bytes: bytes.into(),
        then,
        want,
    }
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn wrong_heads() -> Vec<Row> {
    let parse = Want::Error("failed to parse the response");
    let folding = Want::Error("line folding of header fields is not supported");
    let length = Want::Error("invalid content-length");
    let lengths = Want::ErrorLogged(
        "invalid response from upstream",
        "invalid response from upstream (malformed content-length)",
    );
    let coding = Want::Error("unexpected type of transfer-encoding");
    let upgrade = Want::Error("received unexpected 101 response");
    let fields = |count: usize| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{}\r\n",
            "x: y\r\n".repeat(count - 1)
        )
    };
    let heads: Vec<(&str, String, Want)> = vec![
        ("not HTTP", "220 mail.example ESMTP\r\n\r\n".into(), parse),
        (
            "an unknown version",
            "HTTP/3.0 200 OK\r\n\r\n".into(),
            parse,
        ),
        ("no status", "HTTP/1.1 OK\r\n\r\n".into(), parse),
        (
            "a status of two digits",
            "HTTP/1.1 20 OK\r\n\r\n".into(),
            parse,
        ),
        (
            "a status of four digits",
            "HTTP/1.1 2000 OK\r\n\r\n".into(),
            parse,
        ),
        (
            "a status below 100",
            "HTTP/1.1 099 OK\r\n\r\n".into(),
            parse,
        ),
        (
            "a blank before a colon",
            "HTTP/1.1 200 OK\r\nx : y\r\n\r\n".into(),
            parse,
        ),
        (
            "an empty name",
            "HTTP/1.1 200 OK\r\n: y\r\n\r\n".into(),
            parse,
        ),
        (
            "a line without a colon",
            "HTTP/1.1 200 OK\r\nx\r\n\r\n".into(),
            parse,
        ),
        (
            "NUL in a value",
            "HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n".into(),
            parse,
        ),
        (
            "ESC in a value",
            "HTTP/1.1 200 OK\r\nx: \x1b[2J\r\n\r\n".into(),
            parse,
        ),
        (
            "NUL in a name",
            "HTTP/1.1 200 OK\r\nx\0: y\r\n\r\n".into(),
            parse,
        ),
        ("101 fields", fields(101), parse),
        ("100 fields", fields(100), Want::Whole(200, "")),
        (
            "a folded line",
            "HTTP/1.1 200 OK\r\nx: y\r\n z\r\n\r\n".into(),
            folding,
        ),
        (
            "a length in letters",
            "HTTP/1.1 200 OK\r\ncontent-length: abc\r\n\r\n".into(),
            length,
        ),
        (
            "an empty length",
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n".into(),
            length,
        ),
        (
            "a negative length",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n".into(),
            length,
        ),
        (
            "a list of lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\nx".into(),
            length,
        ),
        (
            "a length of 20 digits",
            "HTTP/1.1 200 OK\r\ncontent-length: 00000000000000000004\r\n\r\nfine".into(),
            length,
        ),
        (
            "equal lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-length: 4\r\n\r\nfine".into(),
            lengths,
        ),
        (
            "different lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nfine".into(),
            lengths,
        ),
        (
            "gzip as coding",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n".into(),
            coding,
        ),
        (
            // Names of transfer codings are case-insensitive (RFC 9112 §7); H2O accepts this one in lower case only.
            "Chunked with a capital",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n".into(),
            Want::Whole(200, ""),
        ),
        (
            "an unwanted 101",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n".into(),
            upgrade,
        ),
        (
            "a bad head after 103",
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 x\r\n\r\n".into(),
            parse,
        ),
        (
            "bare line feeds",
            "HTTP/1.1 200 OK\ncontent-length: 4\n\nfine".into(),
            Want::Whole(200, "fine"),
        ),
    ];
    let rows = heads.into_iter();
    rows.map(|(name, bytes, want)| row(name, bytes, Then::Hold, want))
        .collect()
}

fn cut_connections() -> Vec<Row> {
    let io = Want::Error("I/O error");
    let cut = |content| Want::Cut(content, "I/O error");
    let chunked = |content: &str| format!("{CHUNKED}{content}");
    vec![
        row("closed without a word", "", Then::Close, io),
        row("reset without a word", "", Then::Reset, io),
        row(
            "closed within the status line",
            "HTTP/1.1 2",
            Then::Close,
            io,
        ),
        row(
            "closed within the fields",
            "HTTP/1.1 200 OK\r\nx: ",
            Then::Close,
            io,
        ),
        row(
            "reset within the fields",
            "HTTP/1.1 200 OK\r\nx: ",
            Then::Reset,
            io,
        ),
        row(
            "closed after 103",
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            Then::Close,
            io,
        ),
        row(
            "closed before all of the length",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            Then::Close,
            cut("hello"),
        ),
        row(
            "reset before all of the length",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            Then::Reset,
            cut("hello"),
        ),
        row(
            "closed before the first chunk",
            chunked(""),
            Then::Close,
            cut(""),
        ),
        row(
            "closed within a chunk size",
            chunked("5\r\nhello\r\n5"),
            Then::Close,
            cut("hello"),
        ),
        row(
            "closed within a chunk",
            chunked("5\r\nhello\r\n5\r\nwo"),
            Then::Close,
            cut("hellowo"),
        ),
        row(
            "reset within a chunk",
            chunked("5\r\nhello\r\n5\r\nwo"),
            Then::Reset,
            cut("hellowo"),
        ),
        row(
            "reset between chunks",
            chunked("5\r\nhello\r\n"),
            Then::Reset,
            cut("hello"),
        ),
        row(
            "closed between chunks",
            chunked("5\r\nhello\r\n"),
            Then::Close,
            Want::Whole(200, "hello"),
        ),
        row(
            "closed before the line end of a chunk",
            chunked("5\r\nhello"),
            Then::Close,
            Want::Whole(200, "hello"),
        ),
        row(
            "closed within the line end of a chunk",
            chunked("5\r\nhello\r"),
            Then::Close,
            Want::Whole(200, "hello"),
        ),
        row(
            "reset before the line end of a chunk",
            chunked("5\r\nhello"),
            Then::Reset,
            cut("hello"),
        ),
        row(
            "closed at the end of content without length",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            Then::Close,
            Want::Whole(200, "hello"),
        ),
        row(
            "closed at the end of content that is coded as it is",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello",
            Then::Close,
            Want::Whole(200, "hello"),
        ),
    ]
}

fn wrong_contents() -> Vec<Row> {
    let parse = |content| Want::Cut(content, "failed to parse the response");
    let chunked = |content: &str| format!("{CHUNKED}{content}");
    vec![
        row(
            "a chunk size that is none",
            chunked("5\r\nhello\r\nx\r\n"),
            Then::Hold,
            parse("hello"),
        ),
        row(
            "no CRLF after a chunk",
            chunked("5\r\nhelloworld\r\n0\r\n\r\n"),
            Then::Hold,
            parse("hello"),
        ),
        row(
            "a chunk size of 17 digits",
            chunked("11111111111111111\r\n"),
            Then::Hold,
            parse(""),
        ),
        row(
            "an extension without end",
            chunked(&format!("5;{}", "x".repeat(200_000))),
            Then::Hold,
            parse(""),
        ),
        row(
            "more than the length",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello, HTTP/1.1 200 OK\r\n\r\n",
            Then::Hold,
            Want::Whole(200, "hello"),
        ),
        row(
            "trailers and chunk extensions",
            chunked("5;a=b\r\nhello\r\n0;c\r\nx-trailer: 1\r\n\r\n"),
            Then::Hold,
            Want::Whole(200, "hello"),
        ),
        Row {
            method: "HEAD",
            ..row(
                "content after HEAD",
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
                Then::Hold,
                Want::Whole(200, ""),
            )
        },
        row(
            "content of 204",
            "HTTP/1.1 204 No Content\r\n\r\nhello",
            Then::Hold,
            Want::Whole(204, ""),
        ),
        row(
            "content of 304",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nhello",
            Then::Hold,
            Want::Whole(304, ""),
        ),
    ]
}

/// The directive with the time limit of backends in these tests, in milliseconds.
const LIMIT: &str = "proxy.timeout.io: 700";

fn late_answers() -> Vec<Row> {
    let timeout = Want::Error("I/O timeout");
    vec![
        row(
            "no answer",
            "",
            Then::Hold,
            Want::Error("first byte timeout"),
        ),
        row("half a status line", "HTTP/1.1 2", Then::Hold, timeout),
        row(
            "half the fields",
            "HTTP/1.1 200 OK\r\nx: ",
            Then::Hold,
            timeout,
        ),
        row(
            "nothing after 103",
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            Then::Hold,
            timeout,
        ),
        row(
            "half the content",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            Then::Hold,
            Want::Cut("hello", "I/O timeout"),
        ),
        row(
            "half a chunk",
            format!("{CHUNKED}9\r\nhello"),
            Then::Hold,
            Want::Cut("hello", "I/O timeout"),
        ),
    ]
}

/// A backend that answers a request for `/NUMBER/...` as the row of this number says, and every other request well.
fn backend(rows: &[Row]) -> Backend {
    let answers: BTreeMap<String, (Vec<u8>, Then)> = rows
        .iter()
        .enumerate()
        .map(|(number, row)| (number.to_string(), (row.bytes.clone(), row.then)))
        .collect();
    Backend::start(move |talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            let number = request.target().split('/').nth(1).unwrap_or_default();
            let Some((bytes, then)) = answers.get(number) else {
                talk.send(FINE);
                continue;
            };
            talk.send(bytes);
            match then {
                Then::Close => return,
                Then::Reset => {
                    // The script waits until the proxy has read everything, because a reset discards unread bytes.
                    wait_until_read(talk.stream());
                    return talk.reset();
                }
                Then::Hold => {}
            }
        }
    })
}

/// What a client got in response to its request.
#[derive(Debug, Default)]
struct Seen {
    status: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    /// Whether the response is complete.
    is_whole: bool,
    /// The error code of RST_STREAM, over HTTP/2.
    reset: Option<u32>,
}

/// Sends a request over HTTP/1. If the response is complete, sends another one on the same connection, which must succeed.
fn ask_http1(server: &Server, method: &str, target: &str) -> Seen {
    let mut client = server.connect();
    client.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: www.example.com\r\n\r\n"
    ));
    let mut seen = Seen::default();
    let head = client.read_head();
    seen.status = head.status.clone();
    let has_no_content = method == "HEAD" || matches!(head.code(), 204 | 304);
    if has_no_content {
        seen.is_whole = true;
    } else if head.field("transfer-encoding") == Some("chunked") {
        (seen.body, seen.is_whole) = client.read_chunks_that_may_break();
    } else if let Some(length) = head.field("content-length") {
        let length: usize = length.parse().expect("the text is a number");
        seen.body = client.read_at_most(length);
        seen.is_whole = seen.body.len() == length;
    } else {
        panic!("the response does not say how it ends: {head}");
    }
    seen.fields = head.fields;
    let end = if seen.is_whole {
        client.send("GET /fine HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n");
        let next: Response = client.read_response("GET");
        next.must_be("200 OK\n\nfine");
        client.read_to_end()
    } else {
        client.read_to_end()
    };
    // When chunked content is cut off, the server sends the begin of a chunk whose data never comes.
    let is_nothing = end.is_empty() || (!seen.is_whole && end == b"1\r\n");
    assert!(
        is_nothing,
        "bytes came after the end of the response: {}",
        end.escape_ascii()
    );
    seen
}

fn ask_http2(client: &mut Http2, stream: u32, method: &str, target: &str) -> Seen {
    let section = encode(&[
        (":method", method),
        (":scheme", "http"),
        (":path", target),
        (":authority", "www.example.com"),
    ]);
    let answer = client.ask(stream, &section);
    Seen {
        status: answer.status().to_string(),
        fields: answer.fields,
        body: answer.body,
        is_whole: answer.is_ended,
        reset: answer.reset,
    }
}

/// Compares what the client got with what it must get; the error says what differs.
fn compare(want: &Want, seen: &Seen, is_http2: bool) -> Result<(), String> {
    let must = |fact: bool, what: &str| if fact { Ok(()) } else { Err(what.to_owned()) };
    let body = String::from_utf8_lossy(&seen.body);
    match *want {
        Want::Error(text) | Want::ErrorLogged(text, _) => {
            let status = if is_http2 { "502" } else { "502 Gateway Error" };
            must(seen.status == status, "another status")?;
            must(body == text && seen.is_whole, "another content")?;
            let has = |name: &str, value: &str| {
                let mut fields = seen.fields.iter();
                fields.any(|(n, v)| n.eq_ignore_ascii_case(name) && (value == "*" || v == value))
            };
            must(
                has("content-type", "text/plain; charset=utf-8"),
                "another type",
            )?;
            must(
                has("content-length", &text.len().to_string()),
                "another length",
            )?;
            must(has("date", "*"), "no date")
        }
        Want::Cut(content, _) => {
            must(seen.status.starts_with("200"), "another status")?;
            must(content.starts_with(&*body), "content that never was")?;
            must(!seen.is_whole, "an end")?;
            let reset = is_http2.then_some(code::PROTOCOL_ERROR);
            must(seen.reset == reset, "another reset")
        }
        Want::Whole(status, content) => {
            must(
                seen.status.starts_with(&status.to_string()),
                "another status",
            )?;
            must(body == content, "another content")?;
            must(seen.is_whole && seen.reset.is_none(), "no good end")
        }
    }
}

impl Want {
    fn logged(&self) -> Option<&'static str> {
        match *self {
            Self::Error(text) | Self::ErrorLogged(_, text) | Self::Cut(_, text) => Some(text),
            Self::Whole(..) => None,
        }
    }
}

/// Waits up to five seconds until the condition holds. Returns whether it does.
fn soon(is_so: impl Fn() -> bool) -> bool {
    let deadline = Deadline::after_secs(5);
    while !is_so() {
        if deadline.has_passed() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

fn play(rows: &[Row]) {
    let backend = backend(rows);
    let server = proxy(LIMIT, &backend);
    let mut failures = Vec::new();
    let mut http2 = Http2::open(server.port(), &[]);
    let mut stream = 1;
    for (number, row) in rows.iter().enumerate() {
        for is_http2 in [false, true] {
            let version = if is_http2 { "http2" } else { "http1" };
            let target = format!("/{number}/{version}");
            eprintln!("{target}: {}", row.name);
            let seen = if is_http2 {
                stream += 2;
                ask_http2(&mut http2, stream, row.method, &target)
            } else {
                ask_http1(&server, row.method, &target)
            };
            if let Err(error) = compare(&row.want, &seen, is_http2) {
                let body = String::from_utf8_lossy(&seen.body).into_owned();
                failures.push(format!(
                    "* {} ({version}): {error}\n{body}\n{seen:?}\n",
                    row.name
                ));
            }
            let tag = format!(
                "[lib/core/proxy.c] in request:127.0.0.1:{}{target}:",
                backend.port()
            );
            let is_logged = |text: &str| server.messages().contains(&format!("{tag}{text}\n"));
            let is_right = match row.want.logged() {
                Some(text) => soon(|| is_logged(text)),
                None => !server.messages().contains(&tag),
            };
            if !is_right {
                failures.push(format!("* {} ({version}): another log\n", row.name));
            }
        }
    }
    // The client's HTTP/2 connection is still usable after all these responses.
    assert_eq!(http2.ask(stream + 2, &get("/fine")).text(), "fine");
    let messages = server.messages();
    assert!(!messages.contains("panicked"), "{messages}");
    assert!(
        failures.is_empty(),
        "{} of {} rows:\n{}\n{messages}",
        failures.len(),
        2 * rows.len(),
        failures.concat()
    );
}

#[test]
fn a_head_that_is_none_is_answered_with_502() {
    play(&wrong_heads());
}

#[test]
fn a_connection_that_is_cut_is_told_from_a_whole_response() {
    play(&cut_connections());
}

#[test]
fn content_that_is_wrong_is_not_passed_on() {
    play(&wrong_contents());
}

#[test]
fn a_back_end_that_is_late_is_given_up() {
    play(&late_answers());
}

#[test]
fn a_length_beside_chunks_misleads_nobody() {
    let backend = Backend::answering(
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n7\r\nchunked\r\n0\r\n\r\n",
    );
    let server = proxy("", &backend);
    for _ in 0..2 {
        let response = server.ask("GET /");
        let seen = (response.code(), response.text());
        let is_safe = seen == (200, "chunked".to_owned()) || seen.0 == 502;
        assert!(is_safe, "{response}");
    }
}

#[test]
fn a_head_without_end_is_given_up() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_request();
        talk.send("HTTP/1.1 200 OK\r\nx: ");
        // The backend sends a field's value of 64 MB, unless the proxy closes the connection before.
        for _ in 0..1024 {
            if !talk.send(vec![b'x'; 65_536]) {
                return;
            }
        }
    });
    let server = proxy("", &backend);
    let response = server.ask("GET /");
    response.must_be("502 Gateway Error");
}

#[test]
fn a_back_end_that_cannot_be_reached_is_told_about() {
    let closed = ClosedPort::new();
    for (url, texts) in [
        (closed.url(), &["connection refused"][..]),
        (
            "http://[unix:@DIR@/none.sock]/".to_owned(),
            &["connection failure"],
        ),
        (
            "http://nowhere.invalid/".to_owned(),
            // Without a network the resolver may not find out that the name does not exist.
            &[
                "hostname does not exist",
                "temporary failure in name resolution",
            ],
        ),
    ] {
        let server = Setup::new(&config("", &url)).start();
        let response = server.ask("GET /x\nHost: www.example.com");
        let text = response.text();
        assert!(texts.contains(&&*text), "{url}: {response}");
        response.must_be(&format!("502 Gateway Error\ndate: *\n\n{text}"));
        let line = format!("[lib/core/proxy.c] in request:www.example.com/x:{text}\n");
        server.wait_for_message(&line);
    }
}

#[test]
fn a_back_end_that_does_not_accept_is_given_up_after_its_time() {
    // A listening socket from which no process accepts connections, with room for one in its queue.
    let listener = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    let address = std::net::SocketAddrV4::try_from(address).unwrap();
    let _in_the_queue = std::net::TcpStream::connect(address).unwrap();
    let settings = "proxy.timeout.connect: 500";
    let server = Setup::new(&config(settings, &format!("http://{address}/"))).start();
    let response = server.ask("GET /");
    response.must_be("502 Gateway Error\n\nconnection timeout");
}
