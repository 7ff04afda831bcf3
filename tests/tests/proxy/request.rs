//! The request that the proxy sends to the backend, byte for byte.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, encode, flag, get, post};
use h2o_tests::{Backend, FINE, Folder, Setup, curl};

use super::kit::{config, proxy, read_final, received, with_line_ends};

/// Sends one request through a new server to a new backend. Returns what the backend received.
fn forward(settings: &str, request: &str) -> String {
    let backend = Backend::answering(FINE);
    let server = proxy(settings, &backend);
    let mut client = server.connect();
    client.send(with_line_ends(request));
    let method = request.split(' ').next().unwrap_or_default();
    // A wrong status is returned in place of the backend's request, so that the comparison fails and shows it.
    let status = read_final(&mut client, method).status;
    if status != "200 OK" {
        return format!("the client got {status}");
    }
    received(&backend, 0)
}

/// Directives, a request, and the request that the backend must get: `<start>` stands for the fields with which each such request
/// begins, and `<own>` for the fields that the proxy appends.
type Row = (&'static str, &'static str, &'static str);

fn compare(rows: &[Row]) {
    let failures: Vec<String> = rows
        .iter()
        .filter_map(|(settings, request, want)| {
            let want = want
                .replace("<start>", "host: BACKEND\nconnection: keep-alive")
                .replace(
                    "<own>",
                    "x-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: 1.1 www.example.com",
                );
            let got = forward(settings, request);
            (got != want)
                .then(|| format!("=== {settings}\n{request}\n--- wanted\n{want}\n--- got\n{got}\n"))
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} rows:\n{}",
        failures.len(),
        rows.len(),
        failures.concat()
    );
}

#[test]
fn a_request_has_its_host_and_connection_first_and_what_is_added_last() {
    compare(&[
        (
            "",
            "GET /ok HTTP/1.1\nHost: www.example.com\nUser-Agent: curl/8\nAccept: */*\n\n",
            "GET /ok HTTP/1.1\n<start>\nUser-Agent: curl/8\nAccept: */*\n<own>\n\n",
        ),
        (
            "",
            "GET /ok HTTP/1.1\nX-B: 1\nhOsT: www.example.com\nx-a: 2\nX-B: 3\n\n",
            "GET /ok HTTP/1.1\n<start>\nX-B: 1\nx-a: 2\nX-B: 3\n<own>\n\n",
        ),
        (
            "",
            "HEAD /ok?a=b&c HTTP/1.1\nHost: www.example.com\n\n",
            "HEAD /ok?a=b&c HTTP/1.1\n<start>\n<own>\n\n",
        ),
        (
            "",
            "BREW /pot HTTP/1.1\nHost: www.example.com\n\n",
            "BREW /pot HTTP/1.1\n<start>\n<own>\n\n",
        ),
        (
            "",
            "GET http://www.example.com/p?q HTTP/1.1\nHost: www.example.com\n\n",
            "GET /p?q HTTP/1.1\n<start>\n<own>\n\n",
        ),
        (
            "",
            "GET /a HTTP/1.0\n\n",
            "GET /a HTTP/1.1\n<start>\nx-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: 1.0 default\n\n",
        ),
        (
            "",
            "GET /a HTTP/1.1\nHost: www.example.com:8080\n\n",
            "GET /a HTTP/1.1\n<start>\nx-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: 1.1 www.example.com:8080\n\n",
        ),
        (
            "proxy.timeout.keepalive: 0",
            "GET /a HTTP/1.1\nHost: www.example.com\n\n",
            "GET /a HTTP/1.1\nhost: BACKEND\nconnection: close\n<own>\n\n",
        ),
    ]);
}

#[test]
fn the_host_is_the_back_ends_or_the_clients() {
    let own = "x-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: ";
    for (request, host, via) in [
        (
            "GET / HTTP/1.1\nHost: www.example.com\n\n",
            "www.example.com",
            "1.1",
        ),
        (
            "GET / HTTP/1.1\nHost: www.example.com:8080\n\n",
            "www.example.com:8080",
            "1.1",
        ),
        (
            "GET http://a.example/ HTTP/1.1\nHost: a.example\n\n",
            "a.example",
            "1.1",
        ),
        ("GET / HTTP/1.0\n\n", "default", "1.0"),
    ] {
        let want =
            format!("GET / HTTP/1.1\nhost: {host}\nconnection: keep-alive\n{own}{via} {host}\n\n");
        assert_eq!(forward("proxy.preserve-host: ON", request), want);
    }
}

#[test]
fn fields_of_one_connection_stay_behind() {
    compare(&[
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nConnection: keep-alive\nKeep-Alive: timeout=5\nProxy-Connection: close\n\
             TE: trailers\nHTTP2-Settings: AAMAAABk\nProxy-Authenticate: a\nProxy-Authorization: b\n\
             Datagram-Flow-Id: 1\nTrailer: x\nX-Kept: 1\n\n",
            "GET / HTTP/1.1\n<start>\nTrailer: x\nX-Kept: 1\n<own>\n\n",
        ),
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nConnection: X-Named\nX-Named: 1\n\n",
            // The proxy removes fields that `connection` names (RFC 9110 §7.6.1); H2O forwards them.
            "GET / HTTP/1.1\n<start>\n<own>\n\n",
        ),
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nConnection: upgrade\nUpgrade: websocket\nSec-WebSocket-Key: a\n\n",
            "GET / HTTP/1.1\n<start>\nSec-WebSocket-Key: a\n<own>\n\n",
        ),
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nEarly-Data: 1\nAuthorization: Basic eDp5\n\
             Accept-Encoding: gzip\nRange: bytes=1-2\nIf-None-Match: \"a\"\n\n",
            "GET / HTTP/1.1\n<start>\nEarly-Data: 1\nAuthorization: Basic eDp5\n\
             Accept-Encoding: gzip\nRange: bytes=1-2\nIf-None-Match: \"a\"\n<own>\n\n",
        ),
    ]);
}

#[test]
fn names_with_underscores_never_pass_for_fields_that_are_ours_or_there() {
    compare(&[
        (
            "proxy.header.unset: X-User\nproxy.header.set: 'X-Role: guest'",
            "GET / HTTP/1.1\nHost: www.example.com\nTransfer_Encoding: chunked\nContent_Length: 5\nX_Forwarded_For: 1.1.1.1\n\
             x-forwarded_for: 1.1.1.1\nCookie_: a\nCOOKIE: a=1\nX_User: root\nX_Role: root\nX-Real-IP: 2.2.2.2\nX_Real_IP: 1.1.1.1\n\
             Api_Key: 1\n\n",
            "GET / HTTP/1.1\n<start>\nCookie_: a\nX-Real-IP: 2.2.2.2\nApi_Key: 1\ncookie: a=1\n<own>\nx-role: guest\n\n",
        ),
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nX_User: 1\n_: 2\n\n",
            "GET / HTTP/1.1\n<start>\nX_User: 1\n_: 2\n<own>\n\n",
        ),
    ]);
}

#[test]
fn options_of_the_connection_are_not_compared_without_end() {
    let request = |options: usize| {
        let options = vec!["x-named"; options].join(",");
        format!("GET / HTTP/1.1\nHost: www.example.com\nConnection: {options}\nX-Named: 1\n\n")
    };
    let forwarded = forward("", &request(64));
    assert!(!forwarded.contains("X-Named"), "{forwarded}");
    let refused = forward("", &request(65));
    assert_eq!(refused, "the client got 400 Invalid Request");
    // The limit of 64 options in a field `connection` applies to responses, too.
    let options = vec!["x-named"; 65].join(",");
    let backend = Backend::answering(format!(
        "HTTP/1.1 200 OK\r\nconnection: {options}\r\ncontent-length: 0\r\n\r\n"
    ));
    let server = proxy("", &backend);
    let want = "502 Gateway Error\n\ninvalid response from upstream";
    server.ask("GET /").must_be(want);
}

#[test]
fn cookies_and_what_proxies_add_are_joined() {
    compare(&[
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nCookie: a=1\nX-A: 1\nCookie: b=2; c=3\n\n",
            "GET / HTTP/1.1\n<start>\nX-A: 1\ncookie: a=1; b=2; c=3\n<own>\n\n",
        ),
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nX-Forwarded-For: 192.0.2.1\nVia: 1.0 a\nX-A: 1\n\
             X-Forwarded-Proto: https\nX-Forwarded-For: 192.0.2.2, 192.0.2.3\nVia: 1.1 b, 2 c\n\n",
            "GET / HTTP/1.1\n<start>\nX-A: 1\nx-forwarded-proto: http\n\
             x-forwarded-for: 192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.1\nvia: 1.0 a, 1.1 b, 2 c, 1.1 www.example.com\n\n",
        ),
        (
            "proxy.emit-x-forwarded-headers: OFF\nproxy.emit-via-header: OFF",
            "GET / HTTP/1.1\nHost: www.example.com\n\n",
            "GET / HTTP/1.1\n<start>\n\n",
        ),
        (
            "proxy.emit-x-forwarded-headers: OFF",
            "GET / HTTP/1.1\nHost: www.example.com\nx-forwarded-proto: https\nx-forwarded-for: 192.0.2.1\n\n",
            "GET / HTTP/1.1\n<start>\nx-forwarded-for: 192.0.2.1\nvia: 1.1 www.example.com\n\n",
        ),
        (
            "proxy.emit-via-header: OFF",
            "GET / HTTP/1.1\nHost: www.example.com\nvia: 1.0 a\n\n",
            "GET / HTTP/1.1\n<start>\nvia: 1.0 a\nx-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\n\n",
        ),
        (
            "proxy.preserve-x-forwarded-proto: ON",
            "GET / HTTP/1.1\nHost: www.example.com\nx-forwarded-proto: https\n\n",
            "GET / HTTP/1.1\n<start>\nx-forwarded-proto: https\nx-forwarded-for: 127.0.0.1\nvia: 1.1 www.example.com\n\n",
        ),
        (
            "proxy.preserve-x-forwarded-proto: ON",
            "GET / HTTP/1.1\nHost: www.example.com\n\n",
            "GET / HTTP/1.1\n<start>\nx-forwarded-for: 127.0.0.1\nvia: 1.1 www.example.com\n\n",
        ),
    ]);
}

#[test]
fn content_has_the_length_that_is_known_when_the_request_begins() {
    compare(&[
        (
            "",
            "POST / HTTP/1.1\nHost: www.example.com\n\n",
            "POST / HTTP/1.1\nhost: BACKEND\nconnection: keep-alive\ncontent-length: 0\n<own>\n\n",
        ),
        (
            "",
            "PUT / HTTP/1.1\nHost: www.example.com\nContent-Length: 0\n\n",
            "PUT / HTTP/1.1\nhost: BACKEND\nconnection: keep-alive\ncontent-length: 0\n<own>\n\n",
        ),
        (
            "",
            "DELETE / HTTP/1.1\nHost: www.example.com\n\n",
            "DELETE / HTTP/1.1\n<start>\n<own>\n\n",
        ),
        (
            "",
            "POST / HTTP/1.1\nHost: www.example.com\nContent-Length: 5\nX-A: 1\n\nhello",
            "POST / HTTP/1.1\n<start>\ncontent-length: 5\nX-A: 1\n<own>\n\nhello",
        ),
        (
            "",
            "GET / HTTP/1.1\nHost: www.example.com\nContent-Length: 5\n\nhello",
            "GET / HTTP/1.1\n<start>\ncontent-length: 5\n<own>\n\nhello",
        ),
        (
            "",
            "POST / HTTP/1.1\nHost: www.example.com\nTransfer-Encoding: chunked\n\n3\nhel\n2;x=y\nlo\n0\nX-T: 1\n\n",
            "POST / HTTP/1.1\n<start>\ncontent-length: 5\n<own>\n\nhello",
        ),
        (
            "",
            "PATCH / HTTP/1.1\nHost: www.example.com\nContent-Length: 2\nExpect: 100-continue\n\nhi",
            "PATCH / HTTP/1.1\n<start>\ncontent-length: 2\n<own>\n\nhi",
        ),
    ]);
}

#[test]
fn content_that_arrives_bit_by_bit_is_passed_on_bit_by_bit() {
    for (framing, first, rest, framing_sent) in [
        ("Content-Length: 6", "abc", "def", "content-length: 6"),
        (
            "Transfer-Encoding: chunked",
            "3\r\nabc\r\n",
            "3\r\ndef\r\n0\r\n\r\n",
            "transfer-encoding: chunked",
        ),
    ] {
        let backend = Backend::start(|talk| {
            let request = talk.read_request().expect("a request has come");
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                request.body.len()
            );
            talk.send(answer);
            talk.send(&request.body);
            talk.read_to_end();
        });
        let server = proxy("", &backend);
        let mut client = server.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: www.example.com\r\n{framing}\r\n\r\n"
        ));
        client.send(first);
        backend.wait_for("abc");
        client.send(rest);
        client.read_response("POST").must_be("200 OK\n\nabcdef");
        let text = received(&backend, 0);
        let start =
            format!("POST / HTTP/1.1\nhost: BACKEND\nconnection: keep-alive\n{framing_sent}\n");
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn http2_requests_are_written_alike() {
    let whole =
        |fields: &[(&str, &str)]| vec![Frame::request(1, [get("/a?b"), encode(fields)].concat())];
    let upload = |fields: &[(&str, &str)], data: &str| {
        vec![
            Frame::request_with_content(1, [post("/a"), encode(fields)].concat()),
            Frame::data(1, flag::END_STREAM, data),
        ]
    };
    let own = "x-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: 2 www.example.com";
    let rows: Vec<(Vec<Frame>, &str)> = vec![
        (
            whole(&[("accept", "*/*"), ("x-a", "1")]),
            "GET /a?b HTTP/1.1\n<start>\naccept: */*\nx-a: 1\n<own>\n\n",
        ),
        (
            whole(&[
                ("cookie", "a=1"),
                ("x-a", "1"),
                ("cookie", "b=2"),
                ("cookie", "c=3"),
            ]),
            "GET /a?b HTTP/1.1\n<start>\nx-a: 1\ncookie: a=1; b=2; c=3\n<own>\n\n",
        ),
        (
            whole(&[
                ("te", "trailers"),
                ("keep-alive", "1"),
                ("proxy-connection", "close"),
            ]),
            "GET /a?b HTTP/1.1\n<start>\n<own>\n\n",
        ),
        (
            whole(&[("host", "b.example"), ("trailer", "x")]),
            "GET /a?b HTTP/1.1\n<start>\ntrailer: x\n<own>\n\n",
        ),
        (
            vec![Frame::request(1, post("/a"))],
            "POST /a HTTP/1.1\n<start>\ncontent-length: 0\n<own>\n\n",
        ),
        (
            upload(&[("content-length", "5")], "hello"),
            "POST /a HTTP/1.1\n<start>\ncontent-length: 5\n<own>\n\nhello",
        ),
        (
            upload(&[], "hello"),
            "POST /a HTTP/1.1\n<start>\ncontent-length: 5\n<own>\n\nhello",
        ),
    ];
    for (frames, want) in rows {
        let backend = Backend::answering(FINE);
        let server = proxy("", &backend);
        let mut client = Http2::open(server.port(), &[]);
        client.send_frames(&frames);
        let answer = client.read_answer(1);
        assert_eq!((answer.status(), answer.text()), (200, "fine".to_owned()));
        let want = want
            .replace("<start>", "host: BACKEND\nconnection: keep-alive")
            .replace("<own>", own);
        assert_eq!(received(&backend, 0), want);
    }
}

#[test]
fn http2_content_of_unknown_length_is_chunked() {
    let backend = Backend::start(|talk| {
        let request = talk.read_request().expect("a request has come");
        assert_eq!(request.field("transfer-encoding"), Some("chunked"));
        assert_eq!(request.field("content-length"), None);
        let length = request.body.len();
        talk.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"
        ));
        talk.send(&request.body);
        talk.read_to_end();
    });
    let server = proxy("", &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frames(&[
        Frame::request_with_content(1, post("/a")),
        Frame::data(1, 0, "abc"),
    ]);
    backend.wait_for("abc");
    client.send_frame(&Frame::data(1, flag::END_STREAM, "def"));
    let answer = client.read_answer(1);
    assert_eq!((answer.status(), answer.text()), (200, "abcdef".to_owned()));
}

#[test]
fn behind_tls_the_client_asked_by_https() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let backend = Backend::answering(FINE);
    let listen = "listen: { port: @TLS_PORT@, ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key } }";
    let server = Setup::in_folder(folder, &config(listen, &backend.url("/"))).start();
    let authority = format!("127.0.0.1:{}", server.port_of("TLS_PORT"));
    let url = format!("https://{authority}/");
    curl(&["--insecure", &url]).must_be("200 OK\n\nfine");
    let text = received(&backend, 0);
    let end =
        format!("x-forwarded-proto: https\nx-forwarded-for: 127.0.0.1\nvia: 1.1 {authority}\n\n");
    assert!(text.ends_with(&end), "{text}");
}

#[test]
fn configured_commands_edit_the_finished_list() {
    let rows: &[(&str, &str, &[&str])] = &[
        // Columns: directive, fields of the client's request, lines that the backend's request must have or, with `!`, must not have.
        ("proxy.header.add: 'X-New: 1'", "", &["x-new: 1"]),
        (
            "proxy.header.add: 'X-A: 2'",
            "x-a: 1\n",
            &["x-a: 1", "x-a: 2"],
        ),
        (
            "proxy.header.set: 'X-A: 2'",
            "x-a: 1\nx-a: 3\n",
            &["x-a: 2", "!x-a: 1", "!x-a: 3"],
        ),
        (
            "proxy.header.setifempty: 'X-A: 2'",
            "x-a: 1\n",
            &["x-a: 1", "!x-a: 2"],
        ),
        ("proxy.header.setifempty: 'X-A: 2'", "", &["x-a: 2"]),
        ("proxy.header.append: 'X-A: 2'", "x-a: 1\n", &["x-a: 1, 2"]),
        ("proxy.header.merge: 'X-A: 2'", "x-a: 1\n", &["x-a: 1, 2"]),
        (
            "proxy.header.merge: 'X-A: 2'",
            "x-a: 2, 3\n",
            &["x-a: 2, 3"],
        ),
        (
            "proxy.header.unset: X-A",
            "x-a: 1\nx-b: 2\n",
            &["!x-a: 1", "x-b: 2"],
        ),
        (
            "proxy.header.unset: Via",
            "",
            &["!via: 1.1 www.example.com", "x-forwarded-proto: http"],
        ),
        (
            "proxy.header.set: 'X-Forwarded-For: none'",
            "",
            &["x-forwarded-for: none"],
        ),
        (
            "proxy.header.unsetunless: [x-a]",
            "x-a: 1\nx-b: 2\n",
            &["x-a: 1", "!x-b: 2", "!x-forwarded-proto: http"],
        ),
        (
            "proxy.header.cookie.unset: b",
            "cookie: a=1; b=2; c=3\n",
            &["cookie: a=1; c=3"],
        ),
        (
            "proxy.header.cookie.unset: [a, b, c]",
            "cookie: a=1; b=2; c=3\n",
            &["!cookie: ", "!cookie:"],
        ),
        (
            "proxy.header.cookie.unsetunless: b",
            "cookie: a=1; b=2; c=3\n",
            &["cookie: b=2"],
        ),
    ];
    for (command, fields, wanted) in rows {
        let request = format!("GET / HTTP/1.1\nHost: www.example.com\n{fields}\n");
        let text = forward(command, &request);
        for want in *wanted {
            let (line, is_there) = match want.strip_prefix('!') {
                Some(line) => (line, false),
                None => (*want, true),
            };
            let found = text.lines().any(|known| known == line);
            assert_eq!(found, is_there, "{command}: {line}\n{text}");
        }
    }
}

#[test]
fn commands_of_inner_levels_come_after_those_of_outer_ones() {
    let backend = Backend::answering(FINE);
    let config = format!(
        "
num-threads: 1
listen: @PORT@
proxy.header.add: 'x-order: global'
hosts:
  default:
    proxy.header.add: 'x-order: host'
    paths:
      /a: {{ proxy.header.add: 'x-order: path', proxy.reverse.url: '{url}' }}
      /b: {{ proxy.reverse.url: '{url}' }}
",
        url = backend.url("/")
    );
    let server = Setup::new(&config).start();
    for (path, want) in [
        ("/a", &["global", "host", "path"][..]),
        ("/b", &["global", "host"]),
    ] {
        let before = received(&backend, 0).len() + received(&backend, 1).len();
        server.ask(&format!("GET {path}")).must_be("200 OK");
        let text = received(&backend, 0) + &received(&backend, 1);
        let values: Vec<&str> = text[before..]
            .lines()
            .filter_map(|line| line.strip_prefix("x-order: "))
            .collect();
        assert_eq!(values, want, "{text}");
    }
}

#[test]
fn the_proxy_protocol_tells_who_the_client_is() {
    let backend = Backend::answering(FINE);
    let server = proxy(
        "proxy.proxy-protocol: ON\nproxy.timeout.keepalive: 0",
        &backend,
    );
    for number in 0..2 {
        let mut client = server.connect();
        let port = client.stream().local_addr().unwrap().port();
        client.send("GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n");
        client.read_response("GET").must_be("200 OK\n\nfine");
        let text = received(&backend, number);
        let start = format!(
            "PROXY TCP4 127.0.0.1 127.0.0.1 {port} {}\nGET / HTTP/1.1\nhost: BACKEND\nconnection: close\n",
            server.port()
        );
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn a_back_end_that_is_to_expect_gets_the_content_once_it_wants_it() {
    let backend = Backend::start(|talk| {
        let request = talk.read_head().expect("a request has come");
        assert_eq!(request.field("expect"), Some("100-continue"));
        // The proxy must not send content before the backend's 100 (Continue).
        let early = talk.has_more(std::time::Duration::from_millis(100));
        assert!(
            !early,
            "the proxy sent content before the backend's 100 (Continue)"
        );
        talk.send("HTTP/1.1 100 Continue\r\n\r\n");
        let body = talk.read_exactly(5).expect("content has come");
        assert_eq!(body, b"hello");
        talk.send(FINE);
        talk.read_to_end();
    });
    let server = proxy("proxy.expect: ON", &backend);
    server
        .ask("POST /\nContent-Length: 5\n\nhello")
        .must_be("200 OK\n\nfine");
    let text = received(&backend, 0);
    let start = "POST / HTTP/1.1\nhost: BACKEND\nconnection: keep-alive\nexpect: 100-continue\ncontent-length: 5\n";
    assert!(text.starts_with(start), "{text}");
}
