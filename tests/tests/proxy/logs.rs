//! What is written down about requests that are handed on.

use h2o_tests::http2::{Http2, post};
use h2o_tests::{Backend, ClosedPort, Setup};

use super::kit::{config, proxy};

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
