//! What access log and error log say about requests that are forwarded.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, PREFACE, encode, flag, get, kind, post};
use h2o_tests::{Backend, ClosedPort, FINE, Folder, Server, Service, Setup, eventually};

use super::http2_upstream::Frames;
use super::kit::{config, proxy};
use super::streaming::gate;

#[test]
fn errors_tell_the_request_cut_to_a_length_that_is_readable() {
    let closed = ClosedPort::new();
    let server = Setup::new(&config("", &closed.url())).start();
    let (host, path) = ("h".repeat(63), format!("/{}", "p".repeat(30)));
    let (long_host, long_path) = ("h".repeat(64), format!("/{}", "p".repeat(31)));
    for (host, path) in [(&host, &path), (&long_host, &long_path)] {
        let response = server.ask(&format!("GET {path}\nHost: {host}"));
        assert_eq!(response.code(), 502);
    }
    for (host, path) in [
        (host, path),
        ("h".repeat(61) + "...", format!("/{}...", "p".repeat(28))),
    ] {
        let line = format!("[lib/core/proxy.c] in request:{host}{path}:connection refused\n");
        server.wait_for_message(&line);
    }
}

/// The messages about backends in the error log.
fn of_backends(server: &Server) -> Vec<String> {
    let messages = server.messages();
    let lines = messages
        .lines()
        .filter_map(|line| line.split_once(": backend "));
    lines.map(|(_, text)| text.to_owned()).collect()
}

#[test]
fn no_failure_of_a_backend_lacks_its_address_and_the_reason() {
    let greeter = Backend::start(|talk| {
        talk.send("220 mail.example ESMTP\r\n");
        talk.read_to_end();
    });
    let closed = ClosedPort::new();
    let silent = Backend::start(|talk| talk.read_to_end());
    let cut = Backend::start(|talk| {
        talk.read_request();
        talk.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel");
    });
    let nonsense = Backend::answering("220 mail.example ESMTP\r\n");
    let folder = Folder::new();
    let socket = folder.name_of("none.sock");
    let of = |url: String| url.trim_matches('/').replace("http://", "");
    let port = closed
        .url()
        .rsplit_once(':')
        .map(|(_, port)| port.to_owned());
    let port = port.unwrap_or_default().trim_matches('/').to_owned();
    let cases = [
        (
            closed.url(),
            format!("{}: connection refused", of(closed.url())),
        ),
        (
            format!("http://backend.test:{port}/"),
            format!("backend.test:{port} (127.0.0.1:{port}): connection refused"),
        ),
        (
            "http://unknown.test:81/".to_owned(),
            "unknown.test:81: hostname does not exist".to_owned(),
        ),
        (
            format!("http://[unix:{socket}]/"),
            format!("[unix:{socket}]: connection failure (No such file or directory)"),
        ),
        (
            silent.url("/"),
            format!("{}: first byte timeout", of(silent.url("/"))),
        ),
        (cut.url("/"), format!("{}: I/O error", of(cut.url("/")))),
        (
            nonsense.url("/"),
            format!("{}: failed to parse the response", of(nonsense.url("/"))),
        ),
        (
            greeter.url("/").replace("http:", "https:"),
            format!("{}: ssl handshake failure", of(greeter.url("/"))),
        ),
    ];
    for (url, want) in cases {
        // Messages about backends are written even if errors of single requests are not.
        let settings = "error-log.emit-request-errors: OFF\nproxy.preserve-host: ON\nproxy.timeout.io: 3000\n\
                        proxy.timeout.first_byte: 300";
        let server = Setup::new(&config(settings, &url))
            .names("backend.test 127.0.0.1\nunknown.test none\n")
            .start();
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.read_to_end();
        server.wait_for_message(&format!(": backend {want}\n"));
        assert_eq!(of_backends(&server), [want]);
    }
}

#[test]
fn a_backend_that_is_passed_over_is_not_passed_over_in_silence() {
    let (closed, fine) = (ClosedPort::new(), Backend::answering(FINE));
    let urls = format!("['{}', '{}']", closed.url(), fine.url("/"));
    let server = Setup::new(&config("", "X").replace("'X'", &urls)).start();
    server.ask("GET /").must_be("200 OK\n\nfine");
    let name = closed.url().replace("http://", "").replace('/', "");
    server.wait_for_message(&format!(
        "[warning] {}: backend {name}: connection refused\n",
        server.pid()
    ));
}

#[test]
fn a_dead_backend_does_not_flood_the_error_log() {
    let closed = ClosedPort::new();
    let settings = "error-log.emit-request-errors: OFF";
    let server = Setup::new(&config(settings, &closed.url())).start();
    for _ in 0..100 {
        assert_eq!(server.ask("GET /").code(), 502);
    }
    let lines = eventually("lines of the backend", || {
        Some(of_backends(&server)).filter(|lines| lines.len() >= 6)
    });
    // The messages are limited per minute; a minute may have ended meanwhile.
    assert!(lines.len() <= 12, "{lines:?}");
}

#[test]
fn clients_that_fail_are_not_taken_for_backends_that_do() {
    let backend = Backend::start(|talk| talk.read_to_end());
    let late = Backend::start(|talk| {
        talk.read_head();
        talk.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel");
        talk.read_to_end();
    });
    for backend in [backend, late] {
        let server = proxy("", &backend);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhe");
        backend.wait_for("\r\n\r\nhe");
        drop(client);
        backend.wait_for_ended(1);
        assert_eq!(of_backends(&server), [""; 0]);
    }
}

#[test]
fn the_access_log_does_not_have_less_of_an_error_than_the_error_log() {
    let backend = ClosedPort::new();
    let settings = "access-log: { path: @DIR@/access-log, escape: json, format: '\"%{error}x\"' }";
    let server = Setup::new(&config(settings, &backend.url())).start();
    assert_eq!(server.ask("GET /x?y\nHost: a.example").code(), 502);
    let text = "[lib/core/proxy.c] in request:a.example/x?y:connection refused";
    let log = server.read_until("access-log", "\n");
    assert_eq!(log, format!("\"{text}\"\n"));
    server.wait_for_message(text);
}

#[test]
fn errors_are_in_the_access_log_and_need_not_be_in_the_error_log() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nno field\r\n\r\n");
    let settings = "error-log.emit-request-errors: OFF\n\
                    access-log: { path: @DIR@/access-log, format: '%s %{error}x' }";
    let server = proxy(settings, &backend);
    assert_eq!(server.ask("GET /").code(), 502);
    let mut http2 = Http2::open(server.port(), &[]);
    assert_eq!(http2.ask(1, &post("/")).status(), 502);
    let log = server.read_until("access-log", "\n502");
    for line in log.lines() {
        let is_told = line.starts_with("502 ") && line.contains("failed to parse the response");
        assert!(is_told, "{log}");
    }
    let messages = server.messages();
    assert!(!messages.contains("in request:"), "{messages}");
}

/// All values that the access log has about the exchange with the backend; the log file is `access-log`.
const TIMES: &str = "%{proxy.idle-time}x %{proxy.connect-time}x %{proxy.request-time}x %{proxy.process-time}x \
                     %{proxy.response-time}x %{proxy.total-time}x";
const BYTES: &str = "%{proxy.request-bytes}x %{proxy.request-bytes-header}x %{proxy.request-bytes-body}x \
                      %{proxy.response-bytes}x %{proxy.response-bytes-header}x %{proxy.response-bytes-body}x";
const TLS: &str = "%{proxy.ssl.protocol-version}x %{proxy.ssl.session-reused}x %{proxy.ssl.cipher}x %{proxy.ssl.cipher-bits}x";

fn logging(format: &str) -> String {
    format!("access-log: {{ path: @DIR@/access-log, format: '{format}' }}\nproxy.timeout.io: 3000")
}

/// Waits for the only line of the access log, and returns its words.
fn words(server: &Server) -> Vec<String> {
    let log = server.read_until("access-log", "\n");
    log.split_whitespace().map(str::to_owned).collect()
}

/// Bytes sent to the backend: in total, of the head, of the content; then the same of the bytes received.
fn counts(server: &Server) -> Vec<usize> {
    let words = words(server);
    words
        .iter()
        .map(|word| word.parse().expect("the text is a number"))
        .collect()
}

#[test]
fn bytes_to_and_from_the_back_end_are_counted_as_they_are_sent() {
    const HEADS: &str = "HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    const CONTENT: &str = "5\r\nhello\r\n0\r\n\r\n";
    let backend = Backend::answering([HEADS, CONTENT].concat());
    let server = proxy(&logging(BYTES), &backend);
    let answer = server.ask("POST /\nContent-Length: 7\n\ncontent");
    assert_eq!(answer.text(), "hello");
    let sent = backend.received(0).len();
    let received = [HEADS.len() + CONTENT.len(), HEADS.len(), CONTENT.len()];
    assert_eq!(
        counts(&server),
        [&[sent, sent - 7, 7][..], &received].concat()
    );
}

/// A backend over HTTP/2 that answers with `hello`.
fn over_http2() -> Backend {
    Backend::start(|talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        let Some((stream, _)) = connection.read_request() else {
            return;
        };
        // The backend answers when the request is complete.
        connection.talk.read_until(b"content");
        connection.send(&[
            Frame::request_with_content(stream, encode(&[(":status", "103"), ("x", "y")])),
            Frame::request_with_content(stream, encode(&[(":status", "200")])),
            Frame::data(stream, 0, "hel"),
            Frame::data(stream, flag::END_STREAM, "lo"),
        ]);
        connection.talk.read_to_end();
    })
}

#[test]
fn bytes_of_http_2_are_those_of_the_frames() {
    let backend = over_http2();
    let settings = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";
    let server = proxy(&format!("{}\n{settings}", logging(BYTES)), &backend);
    let answer = server.ask("POST /\nContent-Length: 7\n\ncontent");
    assert_eq!(answer.text(), "hello");
    // Frames of the connection as a whole are not counted for a request.
    let mut sent = [0; 2];
    let all = backend.received(0);
    let mut rest = &all[PREFACE.len()..];
    while let [high, mid, low, frame, ..] = *rest {
        let len = 9 + (usize::from(high) << 16 | usize::from(mid) << 8 | usize::from(low));
        if frame == kind::HEADERS || frame == kind::DATA {
            sent[usize::from(frame == kind::DATA)] += len;
        }
        rest = &rest[len..];
    }
    let [head, content] = sent;
    assert_eq!(content, 9 + 7);
    let counts = counts(&server);
    assert_eq!(counts[..3], [head + content, head, content]);
    let heads = 2 * 9
        + encode(&[(":status", "103"), ("x", "y")]).len()
        + encode(&[(":status", "200")]).len();
    let content = 2 * 9 + 5;
    assert_eq!(counts[3..], [heads + content, heads, content]);
}

/// Whether the word is a plausible number of seconds.
fn is_time(word: &str) -> bool {
    word.parse::<f64>().is_ok_and(|seconds| seconds < 60.0)
}

#[test]
fn times_are_told_as_far_as_they_came() {
    let fine = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let http2 = over_http2();
    let silent = Backend::start(|talk| {
        talk.read_request();
        talk.reset();
    });
    let cut = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel");
    let closed = ClosedPort::new();
    let by_http2 = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";
    // Columns: directives, URL of the backend, and which of the six times are known.
    let cases = [
        ("", fine.url("/"), [true; 6]),
        (by_http2, http2.url("/"), [true; 6]),
        ("", closed.url(), [true, false, false, false, false, false]),
        ("", silent.url("/"), [true, true, true, false, false, false]),
        ("", cut.url("/"), [true, true, true, true, false, false]),
    ];
    for (settings, url, want) in cases {
        let settings = format!("{}\n{settings}", logging(TIMES));
        let server = Setup::new(&config(&settings, &url)).start();
        let mut client = server.connect();
        client.send(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nConnection: close\r\n\r\ncontent",
        );
        client.read_to_end();
        let words = words(&server);
        let got: Vec<_> = words.iter().map(|word| is_time(word)).collect();
        assert_eq!(got, want, "{url}: {words:?}");
        let none = words.iter().zip(want).filter(|(_, is_told)| !is_told);
        assert!(none.into_iter().all(|(word, _)| word == "-"), "{words:?}");
    }
}

/// With a known length, an HTTP/2 client's response is complete although no handler asks the backend's stream for its end.
#[test]
fn an_http_2_client_that_knows_the_length_costs_neither_times_nor_the_connection() {
    let (open, pass) = gate();
    let backend = Backend::start(move |talk| {
        while talk.read_request().is_some() {
            talk.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n");
            pass();
            talk.send("hello");
            pass();
            talk.send("world");
        }
    });
    let server = proxy(&logging(TIMES), &backend);
    let mut client = Http2::open(server.port(), &[]);
    for stream in [1, 3] {
        client.send_frame(&Frame::request(stream, get("/")));
        client.read_until("the head of the response", |client| {
            client.answer(stream).status() == 200
        });
        open.send(())
            .expect("the backend still waits for the signal of the test");
        client.read_until("the first half", |client| {
            client.answer(stream).body == b"hello"
        });
        open.send(())
            .expect("the backend still waits for the signal of the test");
        assert_eq!(client.read_answer(stream).text(), "helloworld");
    }
    let words = words(&server);
    assert!(words.iter().all(|word| is_time(word)), "{words:?}");
    assert_eq!(backend.connections(), 1);
}

#[test]
fn of_several_back_ends_the_last_one_is_told_of() {
    let closed = ClosedPort::new();
    let fine = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let config = format!(
        "{}
num-threads: 1
listen: @PORT@
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: [ '{}', '{}' ] }}
",
        logging(&format!("{BYTES} {TLS} {TIMES}")),
        closed.url(),
        fine.url("/")
    );
    let server = Setup::new(&config).start();
    assert_eq!(server.ask("GET /").text(), "hello");
    let words = words(&server);
    let sent = fine.received(0).len().to_string();
    assert_eq!(words[..3], [&sent, &sent, "0"]);
    // H2O compatibility: without TLS the session counts as resumed.
    assert_eq!(words[6..10], ["-", "1", "-", "-"]);
    assert!(words[10..].iter().all(|word| is_time(word)), "{words:?}");
}

#[test]
fn tls_parameters_of_either_version_are_told() {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "localhost");
    let (_service, _, port) = Service::go(&folder, "backend");
    for ratio in [0, 100] {
        let settings = format!(
            "{}\nproxy.ssl.cafile: {}\nproxy.http2.ratio: {ratio}",
            logging(TLS),
            folder.name_of("backend.crt")
        );
        let url = format!("https://localhost:{port}/");
        let server = Setup::new(&config(&settings, &url)).start();
        let echo = server.ask("GET /echo").text();
        assert_eq!(echo.contains("HTTP/2"), ratio == 100, "{echo}");
        let words = words(&server);
        assert_eq!(words[..2], ["TLSv1.3", "0"], "{words:?}");
        assert!(words[2].starts_with("TLS_"), "{words:?}");
        assert!(matches!(&*words[3], "128" | "256"), "{words:?}");
    }
}
