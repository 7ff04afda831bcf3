//! Invalid HTTP/1 responses of backends. H2O compatibility: the texts of the errors are H2O's.

use std::io::Write;

use h2o_testkit::wait_until_read;
use h2o_upstream::FailureCause;

use crate::kit::{GET, ask, backend, on_worker, send, settings, upstream};

#[test]
fn broken_answers_are_told_apart() {
    const PARSE: &str = "failed to parse the response";
    const IO: &str = "I/O error";
    const LENGTH: &str = "invalid content-length";
    const CODING: &str = "unexpected type of transfer-encoding";
    const RESPONSE: &str = "invalid response from upstream";
    let chunked =
        |rest: &str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{rest}");
    let ok = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let many: String = (0..101).map(|index| format!("x{index}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(500_000));
    let interims = "HTTP/1.1 103 x\r\n\r\n".repeat(101);
    // Each case: the bytes that the backend sends before it closes the connection, and the result.
    let cases: &[(String, &str)] = &[
        (String::new(), IO),
        ("H".into(), IO),
        ("HTTP/1.1 200 OK\r\nx: y\r\n".into(), IO),
        ("HTTP/1.1 100 Continue\r\n\r\n".into(), IO),
        ("\r\n".into(), PARSE),
        ("220 mail.example ESMTP\r\n".into(), PARSE),
        ("HTTP/2 200 OK\r\n\r\n".into(), PARSE),
        ("HTTP/1.1 2x0 OK\r\n\r\n".into(), PARSE),
        ("HTTP/1.1 099 Low\r\n\r\n".into(), PARSE),
        ("HTTP/1.1 20 OK\r\n\r\n".into(), PARSE),
        (ok("x : y\r\n"), PARSE),
        (ok(": y\r\n"), PARSE),
        (ok("x\r\n"), PARSE),
        (ok("x: a\x01b\r\n"), PARSE),
        (ok("x: a\0b\r\n"), PARSE),
        (ok(&many), PARSE),
        (ok(&long), PARSE),
        (interims, PARSE),
        (
            ok("x: y\r\n folded\r\n"),
            "line folding of header fields is not supported",
        ),
        (ok("content-length: x\r\n"), LENGTH),
        (ok("content-length: -1\r\n"), LENGTH),
        (ok("content-length: 10000000000000000000\r\n"), LENGTH),
        (ok("content-length: 1\r\ncontent-length: 2\r\n"), RESPONSE),
        (
            ok("content-length: 1\r\ntransfer-encoding: chunked\r\n"),
            RESPONSE,
        ),
        (ok("transfer-encoding: gzip\r\n"), CODING),
        (ok("transfer-encoding: gzip, chunked\r\n"), CODING),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".into(),
            "received unexpected 101 response",
        ),
        // Responses that break off or become invalid after the head.
        (ok("content-length: 5\r\n") + "ab", "200 ab!I/O error"),
        (ok("content-length: 5\r\n"), "200 !I/O error"),
        (chunked(""), "200 !I/O error"),
        (chunked("5\r\nab"), "200 ab!I/O error"),
        (chunked("2\r\nab\r\n5"), "200 ab!I/O error"),
        (chunked("x\r\n"), "200 !failed to parse the response"),
        (
            chunked("2\r\nabc\r\n"),
            "200 ab!failed to parse the response",
        ),
        (
            chunked("2\r\nab\r\n-1\r\n"),
            "200 ab!failed to parse the response",
        ),
        (
            chunked("11111111111111111\r\n"),
            "200 !failed to parse the response",
        ),
        // Responses that are invalid, but accepted.
        (chunked("2\r\nab"), "200 ab"),
        (chunked("2\r\nab\r"), "200 ab"),
        (chunked("2\r\nab\r\n"), "200 ab"),
        (chunked("2\r\nab\r\n0\r\n"), "200 ab"),
        (chunked("2\r\nab\r\n0\r\n\r\nmore"), "200 ab"),
        (ok("content-length: 2\r\n") + "abcd", "200 ab"),
        ("HTTP/1.1 200\n\nab".into(), "200 ab"),
        ("HTTP/1.0 200 OK\r\n\r\nab".into(), "200 ab"),
    ];
    assert!(cases.len() > 30);
    let answers: Vec<_> = cases.iter().map(|(answer, _)| answer.clone()).collect();
    let address = backend(move |index, mut peer| {
        peer.head();
        peer.send(&answers[index]);
        // The backend ends its direction of the connection (FIN), and does not reset the connection.
        peer.0.shutdown(std::net::Shutdown::Write).unwrap();
        peer.rest();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        for (answer, want) in cases {
            let got = ask(&worker, &upstream, GET).await;
            let start = &answer[..answer.len().min(90)];
            assert_eq!(got, *want, "{start:?}");
        }
    });
}

#[test]
fn the_log_says_what_is_wrong_with_the_lengths() {
    let address = backend(|_, mut peer| {
        peer.head();
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx");
    });
    let failure = on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        send(&worker, &upstream, GET).await.err().unwrap()
    });
    assert_eq!(
        failure.log.as_deref(),
        Some("invalid response from upstream (malformed content-length)")
    );
    assert_eq!(failure.cause, FailureCause::Other);
}

#[test]
fn a_reset_ends_content_without_length_and_cuts_off_chunks() {
    let cases = [
        ("HTTP/1.1 200 OK\r\n\r\nab", "200 ab"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
            "200 ab!I/O error",
        ),
        ("", "I/O error"),
    ];
    for (answer, want) in cases {
        let address = backend(move |_, mut peer| {
            // The backend does not read the whole request, so that closing resets the connection.
            peer.read(4);
            peer.0.write_all(answer.as_bytes()).unwrap();
            wait_until_read(&peer.0);
        });
        let got = on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            ask(&worker, &upstream, GET).await
        });
        assert_eq!(got, want, "{answer:?}");
    }
}
