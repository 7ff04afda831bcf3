//! What the status report says about traffic, backends and certificates.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Backend, ClosedPort, FINE, Folder, Server, Setup, eventually};

fn report(server: &Server, module: &str) -> String {
    server
        .ask(&format!("GET /status/json?show={module}"))
        .text()
}

/// The value of a number in the report.
fn number(report: &str, name: &str) -> u64 {
    let mark = format!("\"{name}\": ");
    let rest = report
        .split(&mark)
        .nth(1)
        .unwrap_or_else(|| panic!("{name}: {report}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("the text is a number")
}

#[test]
fn no_traffic_passes_uncounted() {
    let folder = Folder::new();
    self_signed(&folder, "a", Key::EcPkcs8, "localhost");
    let server = Setup::in_folder(
        folder,
        "
listen: @PORT@
listen: { port: @TLS_PORT@, ssl: { certificate-file: @DIR@/a.crt, key-file: @DIR@/a.key } }
hosts:
  default:
    paths:
      /: { file.dir: @DIR@/www }
      /status: { status: ON }
",
    )
    .file("www/large", vec![b'x'; 1_000_000])
    .file("www/dir/x", "")
    .start();
    let url = format!("https://localhost:{}/large", server.port_of("TLS_PORT"));
    for url in [server.url("/large"), url] {
        let _ = h2o_tests::run("curl", &["-sk", &url]).success();
    }
    for (request, code) in [("GET /dir", 301), ("GET /none", 404), ("POST /large", 405)] {
        assert_eq!(server.ask(request).code(), code);
    }
    // The server adds a connection's bytes to its counters only after it has sent them, so the test waits.
    let report = eventually("all bytes in the report", || {
        let report = report(&server, "traffic");
        let is_whole = number(&report, "traffic.bytes-sent") > 2_000_000
            && number(&report, "traffic.requests") >= 5;
        is_whole.then_some(report)
    });
    assert!(number(&report, "traffic.responses.2xx") >= 2, "{report}");
    assert_eq!(number(&report, "traffic.responses.3xx"), 1);
    assert_eq!(number(&report, "traffic.responses.4xx"), 2);
    assert_eq!(number(&report, "traffic.responses.5xx"), 0);
    assert!(number(&report, "traffic.bytes-received") > 500, "{report}");
}

#[test]
fn a_backend_that_is_down_is_not_shown_as_up() {
    let (backend, closed) = (Backend::answering(FINE), ClosedPort::new());
    let config = format!(
        "
listen: @PORT@
hosts:
  default:
    paths:
      /app:
        proxy.health-check: {{ interval: 50, fall: 1 }}
        proxy.reverse.url: [ '{}', '{}' ]
      /other: {{ proxy.reverse.url: 'http://127.0.0.1:9/x' }}
      /status: {{ status: ON }}
",
        backend.url("/"),
        closed.url()
    );
    let server = Setup::new(&config).start();
    let report = eventually("a backend to be down", || {
        let report = report(&server, "backends");
        report.contains("\"up\":false").then_some(report)
    });
    let line = |url: &str, path: &str, up: &str| {
        format!(
            "{{\"url\":\"{url}\",\"host\":\"default\",\"path\":\"{path}\",\"weight\":1,\"up\":{up}}}"
        )
    };
    let want = [
        line(&backend.url("/"), "/app", "true"),
        line(&closed.url(), "/app", "false"),
        line("http://127.0.0.1:9/x", "/other", "null"),
    ];
    assert_eq!(
        report,
        format!("{{\n \"backends\": [\n  {}\n ]\n}}\n", want.join(",\n  "))
    );
}

#[test]
fn a_certificate_does_not_expire_unseen() {
    let folder = Folder::new();
    self_signed(&folder, "a", Key::EcPkcs8, "www.example.com");
    let server = Setup::in_folder(
        folder,
        "
listen: @PORT@
listen: { port: @TLS_PORT@, ssl: { certificate-file: @DIR@/a.crt, key-file: @DIR@/a.key } }
hosts:
  www.example.com: { paths: { /status: { status: ON } } }
",
    )
    .start();
    let report = report(&server, "certificates");
    let listener = format!("\"listeners\":[\"ANY:{}\"]", server.port_of("TLS_PORT"));
    for part in [
        "/a.crt\",\"names\":[\"www.example.com\",\"127.0.0.1\"],\"hosts\":[\"www.example.com\"]",
        &listener,
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    // The certificate was made for 30 days. `days-left` is rounded down, so it is 29 as soon as a second of them has passed.
    let days = report.split("\"days-left\":").nth(1).unwrap();
    assert!(
        days.starts_with("29}") || days.starts_with("30}"),
        "{report}"
    );
}

#[test]
fn idle_connections_are_not_counted_as_active() {
    let server = Setup::new(
        "
listen: @PORT@
num-threads: 2
hosts:
  default:
    paths:
      /: { file.dir: @DIR@/www }
      /status: { status: ON }
",
    )
    .file("www/small", "hello")
    .start();
    let mut idle: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for connection in &mut idle {
        connection.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n");
        connection.read_response("GET").must_be("200 OK\n\nhello");
    }
    let mut asking = server.connect();
    asking.send("GET /small HTTP/1.1\r\n");
    let mut ending = server.connect();
    ending.send("GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nx");
    ending.read_response("GET").must_be("200 OK\n\nhello");
    // While it asks for the report, a connection is active, not idle.
    let mut own = server.connect();
    eventually("every connection counted in its state", || {
        // The connection remains in the state of shutdown, in which the server reads and drops, as long as its client sends.
        ending.send("x");
        own.send("GET /status/json?show=main,events HTTP/1.1\r\nHost: a\r\n\r\n");
        let report = own.read_response("GET").text();
        let told = ["connections", "connections.idle", "connections.active"]
            .map(|name| number(&report, name));
        (told == [6, 3, 2] && number(&report, "connections.shutdown") == 1).then_some(())
    });
    drop(idle);
    drop(asking);
    drop(ending);
    eventually("closed connections are no longer counted", || {
        let report = report(&server, "events");
        ["idle", "active", "shutdown"]
            .map(|name| number(&report, &format!("connections.{name}")))
            .eq(&[1, 1, 0])
            .then_some(())
    });
}
