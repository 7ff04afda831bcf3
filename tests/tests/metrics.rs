//! The metrics of the `status` handler, read with Prometheus's own parser.

use std::fmt::Write as _;
use std::net::TcpStream;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{
    Backend, ClosedPort, FINE, Folder, Server, Setup, eventually, run, run_with_input, tool,
};

const PROMETHEUS: (&str, &str) = ("prometheus", "*/*");
const OPEN_METRICS: (&str, &str) = (
    "openmetrics",
    "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
);

/// The samples that the parser finds in the metrics, one in a line.
fn samples(server: &Server, (format, accept): (&str, &str)) -> String {
    let request = format!("GET /status/metrics\nAccept: {accept}");
    let text = server.ask(&request).text();
    let parser = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/metrics.py");
    let python = tool("prometheus/bin/python3");
    let samples = run_with_input(&python, &[parser, format], &text).success();
    String::from_utf8(samples).expect("the samples are text")
}

#[test]
fn a_parser_of_another_project_reads_what_was_counted() {
    let folder = Folder::new();
    self_signed(&folder, "a", Key::EcPkcs8, "localhost");
    let closed = ClosedPort::new();
    let config = format!(
        r#"
metrics: ON
num-threads: 2
listen: @PORT@
listen: {{ port: @TLS_PORT@, ssl: {{ certificate-file: @DIR@/a.crt, key-file: @DIR@/a.key }} }}
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      '~ ^/u"/\d+': {{ redirect: / }}
      /status: {{ status: ON }}
      /app:
        proxy.health-check: {{ interval: 50, fall: 1 }}
        proxy.reverse.url: '{}'
"#,
        closed.url()
    );
    let server = Setup::in_folder(folder, &config)
        .file("www/small", "hello")
        .start();
    let tls = format!("https://localhost:{}/small", server.port_of("TLS_PORT"));
    let _ = run("curl", &["-sk", &tls]).success();
    for (request, code) in [
        ("GET /small", 200),
        ("GET /none", 404),
        ("GET /u%22/1", 302),
        ("GET /app", 502),
    ] {
        assert_eq!(server.ask(request).code(), code, "{request}");
    }
    for format in [PROMETHEUS, OPEN_METRICS] {
        // A request is counted after its response has been sent, and health checks of backends run at intervals, so the test waits.
        eventually("all samples of the metrics", || {
            let samples = samples(&server, format);
            let is_there = |want: &str| samples.lines().any(|line| line == want);
            let request = |path: &str, class: &str, count: u32| {
                is_there(&format!(
                    "counter h2o_http_requests_total{{host=default,path={path},status={class}}} {count}.0"
                ))
            };
            let backend = format!(
                "gauge h2o_backend_up{{host=default,path=/app,url={}}} 0.0",
                closed.url()
            );
            let is_complete = request("/", "2xx", 2)
                && request("/", "4xx", 1)
                && request(r#"~ ^/u"/\d+"#, "3xx", 1)
                && request("/app", "5xx", 1)
                && is_there(
                    "histogram h2o_http_request_duration_seconds_bucket{host=default,le=+Inf,path=/} 3.0",
                )
                && is_there(
                    "histogram h2o_http_request_duration_seconds_count{host=default,path=/} 3.0",
                )
                && is_there("counter h2o_tls_handshakes_total{kind=full} 1.0")
                && is_there("counter h2o_reloads_total{result=succeeded} 0.0")
                && is_there(&backend)
                && samples.contains("gauge h2o_certificate_days_left{file=")
                && samples.contains("gauge h2o_resident_bytes{} ")
                && samples.contains("gauge h2o_connections{protocol=http1,state=active} ");
            is_complete.then_some(())
        });
    }
}

#[test]
fn the_report_has_what_was_counted_by_path() {
    let config = |global: &str| {
        format!(
            "{global}\nlisten: @PORT@\nhosts:\n  default:\n    paths:\n      /status: {{ status: ON }}\n      /r: {{ redirect: / }}\n"
        )
    };
    let server = Setup::new(&config("metrics: ON")).start();
    let paths = |server: &Server| server.ask("GET /status/json?show=paths").text();
    for _ in 0..3 {
        assert_eq!(server.ask("GET /r").code(), 302);
    }
    let want = r#"{"host":"default","path":"/r","requests":3,"errors":0,"micros":"#;
    eventually("the number of requests of the path", || {
        paths(&server).contains(want).then_some(())
    });
    let without = Setup::new(&config("")).start();
    assert_eq!(paths(&without), "{\n \"paths\": null\n}\n");
}

#[test]
fn connections_memory_the_cache_and_retries_are_counted() {
    // A backend with which the TLS handshake fails, so that the request is retried with the other backend.
    let silent = Backend::start(|talk| {
        talk.read_some();
    });
    let fine = Backend::answering(FINE);
    let config = format!(
        "
num-threads: 2
max-memory: 268435456
listen: @PORT@
listen: {{ port: @TLS_PORT@, ssl: {{ certificate-file: @DIR@/a.crt, key-file: @DIR@/a.key }} }}
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /status: {{ status: ON }}
      /app:
        proxy.retry: ON
        proxy.reverse.url: ['https://127.0.0.1:{}/', '{}']
",
        silent.port(),
        fine.url("/")
    );
    let folder = Folder::new();
    self_signed(&folder, "a", Key::EcPkcs8, "localhost");
    let server = Setup::in_folder(folder, &config)
        .file("www/small", "hello")
        .start();
    let value = |name: &str| {
        let samples = samples(&server, PROMETHEUS);
        let line = samples.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.trim().parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{name}: {samples}"))
    };
    assert_eq!(value("gauge h2o_buffers_limit_bytes{}"), 268_435_456.0);
    assert!(value("gauge h2o_buffers_bytes{}") < 268_435_456.0);

    assert_eq!(
        value("counter h2o_file_cache_lookups_total{result=hit}"),
        0.0
    );
    assert_eq!(server.ask("GET /small").code(), 200);
    assert_eq!(
        value("counter h2o_file_cache_lookups_total{result=miss}"),
        1.0
    );
    // A file is put into the cache only if its mtime lies in the past.
    eventually("a hit of the file cache", || {
        assert_eq!(server.ask("GET /small").code(), 200);
        (value("counter h2o_file_cache_lookups_total{result=hit}") > 0.0).then_some(())
    });

    assert_eq!(value("counter h2o_proxy_retries_total{}"), 0.0);
    for _ in 0..2 {
        assert_eq!(server.ask("GET /app").code(), 200);
    }
    assert!(value("counter h2o_proxy_retries_total{}") >= 1.0);

    let opening = "gauge h2o_connections{protocol=none,state=active}";
    assert_eq!(value(opening), 0.0);
    let handshake = TcpStream::connect(("127.0.0.1", server.port_of("TLS_PORT"))).unwrap();
    eventually("a handshake", || (value(opening) == 1.0).then_some(()));
    drop(handshake);
    eventually("the end of the handshake", || {
        (value(opening) == 0.0).then_some(())
    });
    let mut connection = server.connect();
    connection.send("GET /small HTTP/1.1\r\nHost: default\r\n\r\n");
    let _ = connection.read_response("GET");
    eventually("a connection between requests", || {
        (value("gauge h2o_connections{protocol=http1,state=idle}") == 1.0).then_some(())
    });
    let http2 = || {
        ["idle", "active"].map(|state| {
            value(&format!(
                "gauge h2o_connections{{protocol=http2,state={state}}}"
            ))
        })
    };
    assert_eq!(http2(), [0.0, 0.0]);
    let mut connection = server.connect();
    connection.send(PREFACE_AND_SETTINGS);
    // An HTTP/2 connection is counted although it has had no request.
    eventually("a connection of HTTP/2", || {
        (http2() == [0.0, 1.0]).then_some(())
    });
}

/// The first bytes of an HTTP/2 client (RFC 9113 §3.4): the preface, and SETTINGS without parameters.
const PREFACE_AND_SETTINGS: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn neither_clients_nor_large_configurations_add_series_without_end() {
    let mut config = String::from(
        "metrics: ON\nlisten: @PORT@\nhosts:\n  default: { paths: { /status: { status: ON } } }\n",
    );
    for host in 0..20 {
        let _ = write!(config, "  host{host}.example:\n    paths:\n");
        for path in 0..50 {
            let _ = writeln!(config, "      /p{path}: {{ redirect: /elsewhere }}");
        }
    }
    let server = Setup::new(&config).start();
    let mut connection = server.connect();
    for number in 0..3000 {
        // A new connection every 100 requests, as from several clients.
        if number % 100 == 0 {
            connection = server.connect();
        }
        let host = match number % 3 {
            0 => format!("stranger{number}"),
            _ => format!("host{}.example", number / 50 % 20),
        };
        let path = match number % 2 {
            0 => format!("/p{}/x{number}", number % 50),
            _ => format!("/q{number}?{number}"),
        };
        connection.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let _ = connection.read_response("GET");
    }
    for format in [PROMETHEUS, OPEN_METRICS] {
        let samples = samples(&server, format);
        let count = samples.lines().count();
        assert!((500..2000).contains(&count), "{count}: {samples}");
        assert!(samples.contains("{host=other,path=other,status=3xx}"));
        assert!(!samples.contains("stranger"), "{samples}");
        assert!(!samples.contains("/x"), "{samples}");
        let counted: f64 = samples
            .lines()
            .filter(|line| line.starts_with("counter h2o_http_requests_total"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum();
        assert!(counted >= 3000.0, "{counted}");
    }
}
