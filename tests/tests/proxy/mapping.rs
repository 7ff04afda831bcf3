//! How the proxy maps paths, hosts and `location` fields between clients and backends.

use h2o_tests::http2::{Http2, get};
use h2o_tests::{Backend, Request, Server, Setup};

use super::kit::{config_of_paths, read_final};

/// A backend that answers with the request target that it got, and with the `location` that the request names.
fn telling() -> Backend {
    Backend::by_request(|request: &Request| {
        let location = request.field("x-location");
        let location = location.map(|url| format!("location: {url}\r\n"));
        let target = request.target();
        format!(
            "HTTP/1.1 200 OK\r\n{}content-length: {}\r\n\r\n{target}",
            location.unwrap_or_default(),
            target.len()
        )
    })
}

fn start(backend: &Backend) -> Server {
    let url = |path| backend.url(path);
    let paths = [
        ("/", &*url("/")),
        ("/a", &*url("/base")),
        ("/b/", &*url("/base/")),
        ("/c", &*url("")),
        ("/d", &*url("/")),
    ];
    Setup::new(&config_of_paths("", &paths)).start()
}

/// Request target of the client, and the target that the backend must get.
const TARGETS: &[(&str, &str)] = &[
    ("/", "/"),
    ("/x", "/x"),
    ("/x/../y?q=1", "/y?q=1"),
    ("//x", "//x"),
    ("/%41%2f%20", "/%41%2f%20"),
    ("/?", "/?"),
    ("/x?a=/../b", "/x?a=/../b"),
    ("/a", "/base"),
    ("/a/", "/base/"),
    ("/a?x", "/base?x"),
    ("/a/f", "/base/f"),
    ("/a/x%2Fy/z", "/base/x%2Fy/z"),
    ("/a/x%2Fy/../z%20?%41", "/base/x/z%20?%41"),
    ("/a%2Fx", "/base/x"),
    ("/foo/../%61/f", "/base/f"),
    ("/./a//f", "/base//f"),
    ("/ab", "/ab"),
    ("/b/", "/base/"),
    ("/b/f", "/base/f"),
    ("/b/f?x=/b/", "/base/f?x=/b/"),
    ("/c", "/"),
    ("/c?q", "/?q"),
    ("/c/d", "/d"),
    ("/d", "/"),
    ("/d/", "/"),
    ("/d/e", "/e"),
];

#[test]
fn what_follows_the_configured_path_is_passed_on_as_it_is_unless_it_has_dot_segments() {
    let backend = telling();
    let server = start(&backend);
    let mut http2 = Http2::open(server.port(), &[]);
    let mut stream = 1;
    for (target, want) in TARGETS {
        assert_eq!(
            server.ask(&format!("GET {target}")).text(),
            *want,
            "{target}"
        );
        assert_eq!(
            http2.ask(stream, &get(target)).text(),
            *want,
            "{target} by HTTP/2"
        );
        stream += 2;
    }
    for request in [
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
    ] {
        let mut client = server.connect();
        client.send(request);
        let method = request.split(' ').next().unwrap_or_default();
        assert_eq!(read_final(&mut client, method).text(), "/", "{request}");
    }
}

#[test]
fn dots_that_only_some_back_ends_resolve_never_reach_one() {
    let backend = telling();
    let server = start(&backend);
    let mut http2 = Http2::open(server.port(), &[]);
    for (stream, target) in (1..).step_by(2).zip([
        "/a/..;/x",
        "/a/x/..;v=1/../y",
        "/a/..\\x",
        "/a/x\\..",
        "/..%5cx",
        "/%2e%2e%3B/x",
    ]) {
        server
            .ask(&format!("GET {target}"))
            .must_be("400 Invalid Request");
        assert_eq!(http2.ask(stream, &get(target)).status(), 400, "{target}");
    }
    assert_eq!(backend.connections(), 0);
}

#[test]
fn locations_of_the_back_end_become_the_servers() {
    let backend = telling();
    let server = start(&backend);
    let own = format!("http://127.0.0.1:{}", backend.port());
    let other = format!("http://127.0.0.1:{}", server.port());
    let rows: &[(&str, String, &str)] = &[
        ("/", format!("{own}/foo"), "http://www.example.com/foo"),
        (
            "/a",
            format!("{own}/base/foo"),
            "http://www.example.com/a/foo",
        ),
        (
            "/b/",
            format!("{own}/base/foo"),
            "http://www.example.com/b/foo",
        ),
        ("/c", format!("{own}/foo"), "http://www.example.com/c/foo"),
        ("/a", format!("{own}/else"), "="),
        ("/", format!("{other}/foo"), "="),
        ("/", own.replace("http", "https") + "/foo", "="),
        ("/", "/relative".to_owned(), "="),
        ("/", "http://elsewhere.example/".to_owned(), "="),
        ("/", "//elsewhere.example/".to_owned(), "="),
    ];
    for (path, location, want) in rows {
        let want = if *want == "=" {
            location.as_str()
        } else {
            *want
        };
        let response = server.ask(&format!("GET {path}\nX-Location: {location}"));
        assert_eq!(response.field("location"), Some(want), "{path} {location}");
    }
}

#[test]
fn a_host_that_is_none_is_not_sent_on() {
    let backend = telling();
    let paths = [("/", &*backend.url("/"))];
    let server = Setup::new(&config_of_paths("proxy.preserve-host: ON", &paths)).start();
    for host in ["a.example:port", "a b", "a.example:1:2"] {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let response = client.read_response("GET");
        assert_eq!(response.code(), 400, "{host}: {response}");
        let _ = client.read_to_end();
    }
    assert_eq!(backend.connections(), 0);
    server.ask("GET /\nHost: [::1]:80").must_be("200 OK");
}
