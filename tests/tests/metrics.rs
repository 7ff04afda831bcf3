//! The metrics of `status`, read by the parser of Prometheus.

use std::fmt::Write as _;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{ClosedPort, Folder, Server, Setup, eventually, run, run_with_input, tool};

const PROMETHEUS: (&str, &str) = ("prometheus", "*/*");
const OPEN_METRICS: (&str, &str) = (
    "openmetrics",
    "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
);

/// What the parser makes of the metrics, a sample on each line.
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
        // A request is counted after its response has been sent, and backends are checked now and then.
        eventually("everything to be counted", || {
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
                && samples.contains("gauge h2o_connections{state=active} ");
            is_complete.then_some(())
        });
    }
}

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
        // As from several clients.
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
