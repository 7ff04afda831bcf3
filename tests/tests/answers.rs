//! Directives that change or replace responses: header rules, expiry, redirects, error documents; and the status page.

use h2o_tests::{Backend, ClosedPort, Server, Setup, curl, run_with_input};

fn check(server: &Server, cases: &[(&str, &str)]) {
    for (request, want) in cases {
        eprintln!("{request}");
        server.ask(request).must_be(want);
    }
}

fn start(config: &str) -> Server {
    Setup::new(&format!("listen: @PORT@\n{config}"))
        .file("www/index.html", "index")
        .file("www/page.html", "page")
        .file("www/missing.html", "there is nothing here")
        .file("www/sub/missing.html", "nothing in sub")
        .file("www/sub/page.html", "sub page")
        .start()
}

#[test]
fn header_rules_apply_to_every_answer_of_a_path() {
    let server = start(
        "
header.add: 'X-Level: global'
hosts:
  default:
    header.set: { header: [ 'X-Frame-Options: DENY', 'Referrer-Policy: no-referrer' ] }
    paths:
      /:
        file.dir: @DIR@/www
        header.add: 'x-level: path'
        header.unset: [ last-modified, etag ]
      /moved:
        redirect: /page.html
        header.append: 'x-level: appended'
      /only:
        file.dir: @DIR@/www
        header.unsetunless: [ content-type ]
        header.add: { header: 'x-early: 1', when: early }
        header.add: { header: 'x-all: 1', when: all }
",
    );
    let host = "x-frame-options: DENY\nreferrer-policy: no-referrer";
    check(
        &server,
        &[
            (
                "GET /page.html",
                &format!(
                    "200 OK\nx-level: global\nx-level: path\n{host}\n!etag\n!last-modified\ncontent-length: 4\n\npage"
                ),
            ),
            (
                "GET /none",
                &format!("404 File Not Found\nx-level: global\nx-level: path\n{host}\n\nnot found"),
            ),
            (
                "POST /page.html\nContent-Length: 0",
                "405 Method Not Allowed\nx-level: path\nallow: GET, HEAD",
            ),
            (
                "GET /moved",
                &format!("302 Redirected\nx-level: global, appended\n{host}\nlocation: /page.html"),
            ),
            (
                "GET /only/page.html",
                "200 OK\ncontent-type: text/html\ncontent-length: 4\nserver: *\nconnection: close\nx-all: 1\ndate: *\n!etag\n!x-early\n!x-level\n!x-frame-options",
            ),
        ],
    );
}

#[test]
fn no_path_matched_still_has_the_rules_of_its_host() {
    let server = start(
        "
header.add: 'x-level: global'
error-doc: { status: 404, url: /a/missing.html }
hosts:
  default:
    header.add: 'x-level: host'
    paths:
      /a:
        file.dir: @DIR@/www
        header.add: 'x-level: path'
",
    );
    server
        .ask("GET /elsewhere")
        .must_be("404 File Not Found\nx-level: global\nx-level: host\n\nthere is nothing here");
}

#[test]
fn expires_adds_max_age_to_successes_and_redirects() {
    let server = start(
        "
expires: 1 day
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /private:
        file.dir: @DIR@/www
        header.set: 'cache-control: private'
        expires: 2 hours
      /never:
        file.dir: @DIR@/www
        expires: OFF
      /temporary:
        redirect: { url: /, status: 307 }
      /permanent:
        redirect: { url: /, status: 308 }
      /year:
        file.dir: @DIR@/www
        expires: 1 YEARS
",
    );
    check(
        &server,
        &[
            (
                "GET /page.html",
                "200 OK\ncache-control: max-age=86400\n!expires",
            ),
            (
                "GET /page.html\nRange: bytes=0-0",
                "206 Partial Content\ncache-control: max-age=86400",
            ),
            (
                "GET /page.html\nIf-None-Match: \"65937d25-4\"",
                "304 Not Modified\ncache-control: max-age=86400",
            ),
            (
                "GET /sub",
                "301 Moved Permanently\ncache-control: max-age=86400",
            ),
            ("GET /none", "404 File Not Found\n!cache-control"),
            (
                "GET /private/page.html",
                "200 OK\ncache-control: private, max-age=7200",
            ),
            ("GET /never/page.html", "200 OK\n!cache-control"),
            (
                "GET /temporary",
                "307 Redirected\ncache-control: max-age=86400",
            ),
            ("GET /permanent", "308 Redirected\n!cache-control"),
            (
                "GET /year/page.html",
                "200 OK\ncache-control: max-age=31536000",
            ),
        ],
    );
}

#[test]
fn redirects_keep_the_rest_of_the_path_and_the_query() {
    let server = start(
        "
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /old:
        redirect: { url: 'https://new.example/x/', status: 301 }
      /scalar/:
        redirect: http://new.example
      /search:
        redirect: { url: '/?q=', status: 303 }
",
    );
    let moved = |url: &str| {
        format!(
            "location: {url}\ncontent-type: text/html; charset=utf-8\ndate: *\n\n<!DOCTYPE html><TITLE>Moved</TITLE><P>The document has moved <A HREF=\"{}\">here</A>",
            url.replace('&', "&amp;").replace('\'', "&#39;")
        )
    };
    let redirected = |status: u16, url: &str| format!("{status} Redirected\n{}", moved(url));
    check(
        &server,
        &[
            ("GET /old", &redirected(301, "https://new.example/x/")),
            (
                "GET /old/a%20b?c&d='",
                &redirected(301, "https://new.example/x/a%20b?c&d='"),
            ),
            (
                "POST /old/a\nContent-Length: 3\n\nabc",
                &redirected(301, "https://new.example/x/a"),
            ),
            ("GET /scalar/", &redirected(302, "http://new.example/")),
            (
                "GET /scalar/%41@:%3F",
                &redirected(302, "http://new.example/A@:%3F"),
            ),
            ("GET /scalar", "404 File Not Found"),
            ("GET /search/a", &redirected(303, "/?q=/a")),
            (
                "HEAD /old",
                "301 Redirected\nlocation: https://new.example/x/\n\n",
            ),
        ],
    );
}

#[test]
fn redirects_fill_in_what_the_wildcard_of_the_host_matched() {
    let server = start(
        "
hosts:
  '*.old.example:@PORT@':
    paths: { /: { redirect: 'https://*.new.example/*/' } }
  'plain.example:@PORT@':
    paths: { /: { redirect: 'https://*.new.example/' } }
",
    );
    let port = server.port();
    check(
        &server,
        &[
            (
                &format!("GET /a\nHost: Shop.old.example:{port}"),
                "302 Redirected\nlocation: https://Shop.new.example/Shop/a",
            ),
            (
                &format!("GET /a\nHost: plain.example:{port}"),
                "302 Redirected\nlocation: https://*.new.example/a",
            ),
        ],
    );
}

#[test]
fn internal_redirects_answer_with_the_other_resource() {
    let server = start(
        "
max-delegations: 3
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
        header.add: 'x-path: root'
      /alias:
        redirect: { url: /sub, status: 302, internal: YES }
        header.add: 'x-path: alias'
      /page:
        redirect: { url: page.html, status: 302, internal: YES }
      /keep:
        redirect: { url: /page.html, status: 307, internal: YES }
      /chain:
        redirect: { url: /external, status: 302, internal: YES }
      /external:
        redirect: /page.html
      /directory:
        redirect: { url: /sub2, status: 302, internal: YES }
      /other:
        redirect: { url: 'http://other.example/page.html', status: 302, internal: YES }
      /loop:
        redirect: { url: /loop, status: 302, internal: YES }
  other.example:
    paths:
      /:
        file.dir: @DIR@/www/sub
        header.add: 'x-path: other'
",
    );
    server.folder.write("www/sub2/index.html", "index of sub2");
    check(
        &server,
        &[
            ("GET /alias/page.html", "200 OK\nx-path: root\n\nsub page"),
            (
                "HEAD /alias/page.html",
                "200 OK\nx-path: root\ncontent-length: 8\n\n",
            ),
            (
                "POST /alias/page.html\nContent-Length: 0",
                "200 OK\n\nsub page",
            ),
            ("GET /page", "200 OK\n\npage"),
            ("POST /keep\nContent-Length: 0", "405 Method Not Allowed"),
            ("GET /keep", "200 OK\n\npage"),
            ("GET /chain", "200 OK\n!location\n\npage"),
            ("GET /external", "302 Redirected\nlocation: /page.html"),
            ("GET /directory", "200 OK\n\nindex of sub2"),
            ("GET /other", "200 OK\nx-path: other\n\nsub page"),
            (
                "GET /loop",
                "502 Gateway Error\n\ntoo many internal delegations",
            ),
        ],
    );
}

#[test]
fn no_response_lacks_its_date() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    let closed = ClosedPort::new();
    let server = start(&format!(
        "
limit-request-body: 10
hosts:
  default:
    paths:
      /files: {{ file.dir: @DIR@/www, file.dirlisting: ON }}
      /moved: {{ redirect: http://a.example/ }}
      /status: {{ status: ON }}
      /proxied: {{ proxy.reverse.url: '{}' }}
      /down: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/"),
        closed.url()
    ));
    for (request, code) in [
        ("GET /files/page.html", 200),
        ("GET /files/", 200),
        ("GET /files/page.html\nRange: bytes=0-1", 206),
        ("GET /files", 301),
        ("GET /moved", 302),
        ("GET /files/page.html\nIf-None-Match: *", 304),
        ("GET /nothing\nHost: a\nHost: b", 400),
        ("GET /nothing", 404),
        ("DELETE /files/page.html", 405),
        ("POST /proxied\nContent-Length: 11\n\nhello world", 413),
        ("GET /files/page.html\nRange: bytes=9999-", 416),
        ("POST /proxied\nContent-Length: 1\nExpect: miracles", 417),
        ("GET /down", 502),
        ("GET /proxied", 200),
        ("GET /status/json", 200),
    ] {
        let response = server.ask(request);
        assert_eq!(response.code(), code, "{request}: {response}");
        assert_eq!(response.all("date").count(), 1, "{request}: {response}");
        let date = response.field("date").unwrap_or_default();
        assert!(
            date.len() == 29 && date.ends_with(" GMT"),
            "{request}: {date}"
        );
    }
    // These requests go over HTTP/2 in cleartext, with prior knowledge.
    for path in [
        "/files/page.html",
        "/files",
        "/moved",
        "/nothing",
        "/down",
        "/proxied",
        "/status/json",
    ] {
        let response = curl(&["--http2-prior-knowledge", &server.url(path)]);
        assert_eq!(response.all("date").count(), 1, "{path}: {response}");
    }
}

#[test]
fn no_duration_is_left_out_of_the_percentiles() {
    let slow = Backend::start(|talk| {
        while talk.read_request().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(30));
            talk.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        }
    });
    let config = |stats: &str| {
        format!(
            "{stats}\nhosts: {{ default: {{ paths: {{ /status: {{ status: ON }}, /slow: {{ proxy.reverse.url: '{}' }} }} }} }}",
            slow.url("/")
        )
    };
    let value = |report: &str, name: &str| -> u64 {
        let (_, rest) = report.split_once(&format!("\"{name}\": ")).expect(name);
        let end = rest
            .find([',', '\n'])
            .expect("the number is followed by a comma or a line end");
        rest[..end].parse().expect(name)
    };
    let server = start(&config("duration-stats: ON"));
    for _ in 0..8 {
        assert_eq!(server.ask("GET /slow").code(), 200);
    }
    let report = server.ask("GET /status/json?show=durations").text();
    for name in ["process-time", "duration"] {
        for percentile in [0, 25, 50, 75, 99] {
            let micros = value(&report, &format!("{name}-{percentile}"));
            assert!((29_000..20_000_000).contains(&micros), "{name}: {report}");
        }
    }
    assert!(value(&report, "process-time-0") <= value(&report, "process-time-99"));
    assert!(report.contains("\"evloop-latency-nanosec\": ["), "{report}");
    assert!(
        !report.contains("\"evloop-latency-nanosec\": []"),
        "{report}"
    );
    // With `duration-stats: OFF` the server measures no durations, and its report has none.
    let server = start(&config("duration-stats: ON\nduration-stats: OFF"));
    assert_eq!(server.ask("GET /slow").code(), 200);
    let report = server.ask("GET /status/json?show=durations").text();
    assert_eq!(value(&report, "duration-99"), 0);
    assert!(
        report.contains("\"evloop-latency-nanosec\": []"),
        "{report}"
    );
}

#[test]
fn the_path_of_a_request_never_sends_a_redirect_to_another_host() {
    let inner = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ninner");
    let server = start(
        "
hosts:
  default:
    paths:
      /int/:
        redirect: { url: /, status: 302, internal: YES }
      /int2:
        redirect: { url: /, status: 307, internal: YES }
      /old/:
        redirect: { url: /, status: 301 }
      /plain:
        redirect: /
      /127.0.0.1/:
        file.dir: @DIR@/www/sub
  other.test:
    paths: { /: { file.dir: @DIR@/www } }
",
    );
    let port = inner.port();
    check(
        &server,
        &[
            (
                &format!("GET /int//127.0.0.1:{port}/admin"),
                "404 File Not Found",
            ),
            (
                &format!("POST /int2//127.0.0.1:{port}/admin\nContent-Length: 1\n\nx"),
                "404 File Not Found",
            ),
            (
                &format!("GET /int2/%2f%2F127.0.0.1:{port}/admin"),
                "404 File Not Found",
            ),
            ("GET /int//other.test/index.html", "404 File Not Found"),
            // An internal redirect to this server itself is followed, and the file is found.
            ("GET /int//127.0.0.1/page.html", "200 OK\n\nsub page"),
            (
                "GET /old//evil.example/login",
                "301 Redirected\nlocation: /evil.example/login",
            ),
            (
                "GET /old/%2f/evil.example/login",
                "301 Redirected\nlocation: /evil.example/login",
            ),
            (
                "GET /plain///evil.example",
                "302 Redirected\nlocation: /evil.example",
            ),
        ],
    );
    assert_eq!(inner.connections(), 0);
}

#[test]
fn error_documents_keep_the_status_and_fields_of_the_error() {
    let server = start(
        "
error-doc: { status: 404, url: /missing.html }
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /own:
        file.dir: @DIR@/www
        error-doc: [ { status: 404, url: /page.html }, { status: [ 405, 416 ], url: /page.html } ]
      /sub:
        file.dir: @DIR@/www/sub
        header.add: 'x-path: sub'
      /broken:
        file.dir: @DIR@/www
        error-doc: { status: 405, url: /nowhere.html }
",
    );
    let page = "content-type: text/html\n!x-path";
    check(
        &server,
        &[
            (
                "GET /none",
                &format!(
                    "404 File Not Found\n{page}\ncontent-length: 21\n!etag\n!last-modified\n!accept-ranges\n\nthere is nothing here"
                ),
            ),
            ("HEAD /none", "404 File Not Found\ncontent-length: 21\n\n"),
            (
                "POST /none\nContent-Length: 3\n\nabc",
                "404 File Not Found\n\nthere is nothing here",
            ),
            (
                "PUT /none\nContent-Length: 0",
                "404 File Not Found\n\nmethod not allowed",
            ),
            // For the status 404 the error document of the host counts, because its `error-doc` encloses that of the path.
            (
                "GET /own/none",
                "404 File Not Found\n\nthere is nothing here",
            ),
            (
                "POST /own/page.html\nContent-Length: 0",
                "405 Method Not Allowed\nallow: GET, HEAD\ncontent-type: text/html\n\npage",
            ),
            (
                "GET /own/page.html\nRange: bytes=9-",
                "416 Request Range Not Satisfiable\ncontent-range: bytes */4\n\npage",
            ),
            // Conditions and ranges apply to the requested resource, not to the error document.
            (
                "GET /none\nRange: bytes=0-1\nIf-None-Match: \"65937d25-15\"\nAccept-Encoding: gzip",
                "404 File Not Found\n\nthere is nothing here",
            ),
            (
                "POST /broken/page.html\nContent-Length: 0",
                "405 Method Not Allowed\n\nnot found",
            ),
        ],
    );
}

#[test]
fn no_header_is_added_twice_to_an_error_document() {
    let server = start(
        "
header.add: 'x-frame-options: DENY'
header.append: 'vary: origin'
hosts:
  default:
    error-doc: { status: 404, url: /errors/missing.html }
    paths:
      /:
        file.dir: @DIR@/www
        header.add: 'x-path: top'
      /errors:
        file.dir: @DIR@/www
        header.add: 'x-path: errors'
",
    );
    for (path, code, own) in [
        ("/none", 404, &["top", "errors"][..]),
        ("/page.html", 200, &["top"]),
    ] {
        let answer = server.ask(&format!("GET {path}"));
        assert_eq!(answer.code(), code);
        for (name, want) in [
            ("x-frame-options", &["DENY"][..]),
            ("vary", &["origin"]),
            ("x-path", own),
        ] {
            let values: Vec<_> = answer.all(name).collect();
            assert_eq!(values, want, "{path} {name}");
        }
    }
}

#[test]
fn error_documents_may_be_relative_to_the_path() {
    let server = start(
        "
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
        error-doc: { status: 404, url: missing.html }
",
    );
    check(
        &server,
        &[
            ("GET /none", "404 File Not Found\n\nthere is nothing here"),
            ("GET /sub/none", "404 File Not Found\n\nnothing in sub"),
            (
                "GET /sub/../none",
                "404 File Not Found\n\nthere is nothing here",
            ),
            // The error document itself does not exist here: the client gets the server's own text for 404.
            ("GET /sub2/none", "404 File Not Found\n\nnot found"),
        ],
    );
}

#[test]
fn status_is_json_with_the_names_scripts_read() {
    let server = start(
        "
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /s:
        status: ON
",
    );
    let _ = server.ask("GET /none");
    let answer = server.ask("GET /s/json");
    answer.must_be(
        "200 OK\ncontent-type: text/plain; charset=utf-8\ncache-control: no-cache, no-store",
    );
    let program = "
import json, sys
status = json.load(sys.stdin)
for name in ('server-version', 'openssl-version', 'current-time', 'restart-time', 'uptime', 'generation',
             'connections', 'max-connections', 'listeners', 'worker-threads', 'num-sessions', 'requests',
             'status-errors.400', 'status-errors.404', 'http1-errors.request-timeout', 'connections.idle',
             'ssl.errors', 'ssl.handshake.full', 'ssl.alpn.h1', 'connect-time-0', 'duration-99',
             'memory.mem_pool.chunks'):
    assert name in status, name
assert status['generation'] is None
assert status['max-connections'] == 1024
assert status['connections'] >= 1
assert status['status-errors.404'] == 1, status['status-errors.404']
[request] = [request for request in status['requests'] if request['path'] == '/s/json']
assert request['method'] == 'GET' and request['protocol'] == 'HTTP/1.1', request
assert request['authority'] == 'www.example.com', request
for name in ('host', 'user', 'at', 'query', 'referer', 'user-agent', 'connect-time', 'connection-id',
             'ssl.cipher', 'http1.request-index', 'http2.stream-id'):
    assert name in request, name
";
    let output = run_with_input("python3", &["-c", program], &answer.text());
    assert_eq!(output.code, 0, "{output}\n{answer}");

    let some = server.ask("GET /s/json?show=main,ssl");
    let program = "
import json, sys
status = json.load(sys.stdin)
assert 'uptime' in status and 'ssl.alpn.h1' in status and 'requests' not in status and 'ssl.errors' not in status
";
    let output = run_with_input("python3", &["-c", program], &some.text());
    assert_eq!(output.code, 0, "{output}\n{some}");
    check(
        &server,
        &[
            ("GET /s/json?show=none", "200 OK\n\n{\n\n}\n"),
            ("HEAD /s/json", "200 OK\n\n"),
            (
                "POST /s/json?show=none\nContent-Length: 0",
                "200 OK\n\n{\n\n}\n",
            ),
            (
                "GET /s",
                "200 OK\ncontent-type: text/html; charset=utf-8\ncache-control: no-cache\netag: *",
            ),
            ("GET /s/", "200 OK\ncontent-type: text/html; charset=utf-8"),
            ("GET /s/other", "404 File Not Found"),
        ],
    );
}

#[test]
fn responses_to_content_that_is_wrong_do_not_pass_by_filters() {
    let backend = Backend::start(|talk| {
        // The backend reads until the connection ends and never answers, because the request's content never becomes complete.
        talk.read_to_end();
    });
    let server = start(&format!(
        "
limit-request-body: 10
num-threads: 1
access-log: {{ path: @DIR@/log, format: '%s %<s %b %{{x-filtered}}o %U' }}
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /collected:
        redirect: {{ url: /streamed, status: 307, internal: YES }}
        error-doc: {{ status: [ 400, 413, 417 ], url: /page.html }}
        header.add: 'x-filtered: 1'
      /streamed:
        proxy.reverse.url: '{}'
        error-doc: {{ status: [ 400, 413, 417 ], url: /page.html }}
        header.add: 'x-filtered: 1'
",
        backend.url("/")
    ));
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let rows = [
        (
            "Content-Length: 11\r\n\r\n".to_owned(),
            "413 Request Entity Too Large",
        ),
        (format!("{chunked}b\r\na"), "413 Request Entity Too Large"),
        (
            format!("{chunked}3\r\nabc\r\n8\r\nabcdefgh\r\n0\r\n\r\n"),
            "413 Request Entity Too Large",
        ),
        (format!("{chunked}x\r\n"), "400 Invalid Request"),
        (format!("{chunked}3\r\nabc-\r\n"), "400 Invalid Request"),
        (
            "Content-Length: x\r\n\r\n".to_owned(),
            "400 Invalid Request",
        ),
        (
            "Transfer-Encoding: x\r\n\r\n".to_owned(),
            "400 Invalid Request",
        ),
        (
            "Expect: x\r\nContent-Length: 1\r\n\r\n".to_owned(),
            "417 Expectation Failed",
        ),
    ];
    let mut log = String::new();
    for path in ["/collected", "/streamed"] {
        for (rest, want) in &rows {
            for method in ["POST", "HEAD"] {
                let mut client = server.connect();
                client.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{rest}"));
                let response = client.read_response(method);
                let (text, len) = if method == "HEAD" {
                    ("", 0)
                } else {
                    ("page", 4)
                };
                response.must_be(&format!(
                    "{want}\nconnection: close\nx-filtered: 1\ncontent-length: 4\n\n{text}"
                ));
                assert_eq!(client.read_to_end(), b"", "{path} {rest}");
                // `%<s` logs the status of the error document, which is 200.
                let code = &want[..3];
                log.push_str(&format!("{code} 200 {len} 1 {path}\n"));
            }
        }
    }
    assert_eq!(server.read_until("log", &log), log);
    // A message that is not a valid request has no path, and so no filters.
    let mut client = server.connect();
    client.send("GET /streamed HTTP/1.1\r\nHost: a\r\nbad field\r\n\r\n");
    client
        .read_response("GET")
        .must_be("400 Bad Request\n!x-filtered\n\nBad Request");
}
