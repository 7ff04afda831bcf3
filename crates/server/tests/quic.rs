//! Tests of the limits on what QUIC connections cost the server: when the server closes or refuses them.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod http3_client;
mod identity;
mod trick;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::OnceLock;

use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{BodyUse, Exchange, Handler, Outcome, RequestBody, Scope};
use h2o_quic::StreamId;
use h2o_testkit::{eventually, patient};
use http3_client::Client;
use identity::quic_listener;
use trick::handlers;

/// A handler that never answers, and reads nothing of the request body.
struct Hang;

impl Handler for Hang {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let body = std::mem::replace(&mut exchange.body, RequestBody::None);
        Outcome::Later(Box::pin(async move {
            std::future::pending::<()>().await;
            drop(body);
            Outcome::Declined
        }))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Stream
    }
}

const DIRECTIVES: &[Directive<Scope>] = &[handlers("test.hang", |scope, _| {
    scope.handlers.push(Box::new(Hang));
    Ok(())
})];

/// Lengths of files around those from which the server sends a file in another way.
const LENGTHS: [usize; 8] = [1, 255, 256, 1024, 1025, 8192, 8193, 70_000];

fn content(len: usize) -> Vec<u8> {
    (b'a'..=b'z').cycle().take(len).collect()
}

/// Creates a folder with the certificate `crt` and the key `key` of `a.test`, and a large file below its directory `files`.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let folder = identity::folder();
        let files = folder.path().join("files");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("large"), vec![b'x'; 4_000_000]).unwrap();
        std::fs::write(files.join("small"), "x").unwrap();
        for len in LENGTHS {
            std::fs::write(files.join(len.to_string()), content(len)).unwrap();
        }
        folder
    };
    FOLDER.get_or_init(make).path()
}

fn start(settings: &str) -> Embedded {
    let folder = folder();
    Embedded::start(DIRECTIVES, |port| {
        let (quic, files) = (quic_listener(folder, port), folder.join("files"));
        let files = files.display();
        format!(
            "num-threads: 1
listen: {{ host: 127.0.0.1, port: {port} }}
{quic}{settings}
hosts:
  default:
    paths:
      /: {{ file.dir: {files} }}
      /hang: {{ test.hang: ON }}
      /status: {{ status: ON }}
"
        )
    })
}

fn ask(client: &mut Client, path: &str) -> StreamId {
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", path),
    ];
    client.ask(&head, true)
}

/// Requests `path`, and returns the status of the response.
fn status(client: &mut Client, path: &str) -> Option<u16> {
    let stream = ask(client, path);
    client.until(|client| client.answer(stream).has_ended);
    client.answer(stream).statuses().last().copied()
}

/// Reads a number from the status report. Returns `None` if the server refuses the request.
fn reported(server: &Embedded, module: &str, name: &str) -> Option<u64> {
    let mut stream = patient(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    let head = format!("GET /status/json?show={module} HTTP/1.0\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut report = String::new();
    stream.read_to_string(&mut report).unwrap();
    let (_, value) = report.split_once(&format!("\"{name}\": "))?;
    let digits = value.split(|byte: char| !byte.is_ascii_digit()).next()?;
    Some(digits.parse().unwrap())
}

#[test]
fn files_of_all_lengths_arrive_whole_one_by_one_and_together() {
    let server = start("");
    let mut client = Client::connect(server.port);
    let check = |client: &mut Client, asked: &[(usize, StreamId)]| {
        for &(len, stream) in asked {
            client.until(|client| client.answer(stream).has_ended);
            let answer = client.answer(stream);
            assert_eq!(answer.statuses(), [200], "{len}");
            assert!(answer.content == content(len), "{len}");
        }
    };
    for len in LENGTHS {
        let stream = ask(&mut client, &format!("/{len}"));
        check(&mut client, &[(len, stream)]);
    }
    let asked: Vec<_> = LENGTHS
        .into_iter()
        .cycle()
        .take(40)
        .map(|len| (len, ask(&mut client, &format!("/{len}"))))
        .collect();
    check(&mut client, &asked);
}

#[test]
fn an_upload_that_nobody_reads_counts_as_memory() {
    let server = start("max-memory: 1048576");
    let mut uploading = Client::connect(server.port);
    let head = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/hang"),
    ];
    // The handler wants the body of the first request only, so the body of the second fills the server's memory.
    let first = uploading.ask(&head, false);
    uploading.send(first, b"x", false);
    let stream = uploading.ask(&head, false);
    uploading.send(stream, &vec![b'x'; 960_000], false);
    eventually("new requests to be refused", || {
        uploading.exchange();
        let mut other = Client::connect(server.port);
        (status(&mut other, "/small") == Some(503)).then_some(())
    });
    drop(uploading);
    eventually("the memory of the connection to be freed", || {
        let mut other = Client::connect(server.port);
        (status(&mut other, "/small") == Some(200)).then_some(())
    });
}

#[test]
fn responses_that_clients_do_not_acknowledge_count_as_memory() {
    let server = start("max-memory: 1048576");
    let mut silent = Vec::new();
    for _ in 0..30 {
        let mut client = Client::connect(server.port);
        if status(&mut client, "/small") == Some(503) {
            break;
        }
        ask(&mut client, "/large");
        client.flush();
        silent.push(client);
        // The worker counts memory at the end of a turn of its event loop.
        server.turn();
        if reported(&server, "events", "connections.memory-closed") != Some(0) {
            break;
        }
    }
    assert!(
        silent.len() < 30,
        "the server holds 30 responses of 4 MB within 1 MB"
    );
}

#[test]
fn idle_quic_connections_go_as_others_when_there_are_too_many() {
    let server = start("soft-connection-limit: 1\nsoft-connection-limit.min-age: 0");
    let mut idle = Client::connect(server.port);
    assert_eq!(status(&mut idle, "/small"), Some(200));
    assert!(!idle.is_closed);
    let other = Client::connect(server.port);
    // The client gets GOAWAY first, and CONNECTION_CLOSE a second later.
    idle.until(|_| false);
    assert!(idle.is_closed);
    assert!(!other.is_closed);
    assert_eq!(
        reported(&server, "events", "connections.idle-closed"),
        Some(1)
    );
}

#[test]
fn answers_without_a_connection_count_as_traffic() {
    let server = start("");
    let sent = || reported(&server, "traffic", "traffic.bytes-sent").unwrap();
    let (first, second) = (sent(), sent());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", server.port)).unwrap();
    // The packet has a version of QUIC that the server does not know.
    let mut datagram = vec![0; 1200];
    datagram[..7].copy_from_slice(&[0xc0, 0x5a, 0x5a, 0x5a, 0x5a, 8, 1]);
    socket.send(&datagram).unwrap();
    let mut answer = [0; 2000];
    let len = socket.recv(&mut answer).unwrap();
    assert_eq!(
        answer[1..5],
        [0; 4],
        "the version is 0, which marks a Version Negotiation packet"
    );
    // The tolerance of 20 bytes is for the status reports that this test requests: the lengths of the reports differ by some
    // digits.
    let report = second - first;
    assert!(sent() - second + 20 >= report + len as u64);
}

#[test]
fn the_report_has_what_open_and_closed_connections_have_done() {
    let server = start("");
    let counted = |name: &str| reported(&server, "events", &format!("quic.{name}")).unwrap();
    assert_eq!(counted("num-paths.created"), 0);
    let mut client = Client::connect(server.port);
    assert_eq!(status(&mut client, "/small"), Some(200));
    let names = [
        "packet-received",
        "packet-processed",
        "num-packets.received",
        "num-packets.sent",
        "num-packets.initial-received",
        "num-packets.handshake-received",
        "num-bytes.received",
        "num-bytes.sent",
        "num-bytes.stream-data-sent",
        "num-frames-received.crypto",
        "num-frames-received.stream",
        "num-frames-sent.ack",
        "num-frames-sent.handshake_done",
        "num-paced",
    ];
    let open: Vec<u64> = names.iter().map(|name| counted(name)).collect();
    for (name, count) in names.iter().zip(&open) {
        assert!(*count > 0, "{name}");
    }
    assert_eq!(counted("num-paths.created"), 1);
    assert_eq!(counted("num-frames-received.application_close"), 0);
    drop(client);
    eventually("the end of the connection", || {
        (counted("num-frames-received.application_close") == 1).then_some(())
    });
    eventually("the draining of the connection", || {
        let active = reported(&server, "events", "connections.shutdown")?;
        (active == 0).then_some(())
    });
    for (name, before) in names.iter().zip(open) {
        let count = counted(name);
        assert!(
            (before..before + 5000).contains(&count),
            "{name}: {count}, it was {before}"
        );
    }
}

#[test]
fn the_log_has_the_priority_and_the_counters_of_the_connection() {
    let log = folder().join("access_log");
    let format = "%U %{extensible-priorities}x %{http3.quic-stats}x";
    let path = log.display();
    let server = start(&format!(
        "access-log: {{ path: {path}, format: '{format}' }}"
    ));
    let mut client = Client::connect(server.port);
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/small"),
        ("priority", "u=1, i"),
    ];
    let stream = client.ask(&head, true);
    client.until(|client| client.answer(stream).has_ended);
    status(&mut client, "/large");
    let lines = eventually("both requests to be logged", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        (lines.lines().count() == 2).then_some(lines)
    });
    let mut lines = lines.lines();
    let first = lines.next().unwrap();
    assert!(
        first.starts_with("/small u=1,i=?1 num-packets.received="),
        "{first}"
    );
    assert!(first.contains(",num-frames-received.stream="), "{first}");
    assert!(first.contains(",cc.cwnd="), "{first}");
    let second = lines.next().unwrap();
    assert!(second.starts_with("/large u=3 "), "{second}");
}

#[test]
fn the_log_has_the_facts_of_a_stream_whose_connection_the_client_closes() {
    let log = folder().join("closed_log");
    let format = "%U %{extensible-priorities}x %{request-header-bytes}x %{http3.request-stream-bytes}x %{http3.response-stream-bytes}x";
    let path = log.display();
    let server = start(&format!(
        "access-log: {{ path: {path}, format: '{format}' }}"
    ));
    let mut client = Client::stalled(server.port, 1000);
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/large"),
        ("priority", "u=1, i"),
    ];
    client.ask(&head, true);
    client.settle();
    drop(client);
    let line = eventually("the request to be logged", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        lines.ends_with('\n').then_some(lines)
    });
    let counts = line.trim_end().strip_prefix("/large u=1,i=?1 ");
    let counts = counts.unwrap_or_else(|| panic!("{line}")).split(' ');
    for count in counts {
        assert!(count.parse::<u64>().unwrap() > 0, "{line}");
    }
}

#[test]
fn requests_that_are_cancelled_at_once_use_up_no_streams() {
    let server = start("");
    let head = |path| {
        [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "a.test"),
            (":path", path),
        ]
    };
    // The client wants no response, and says so together with the request, or when the response waits for its window.
    let mut client = Client::connect(server.port);
    let mut stalled = Client::stalled(server.port, 10);
    for _ in 0..12 {
        for _ in 0..10 {
            let stream = client.ask(&head("/small"), true);
            client.stop(stream);
        }
        client.settle();
        let streams: Vec<_> = (0..10)
            .map(|_| stalled.ask(&head("/small"), true))
            .collect();
        stalled.settle();
        for stream in streams {
            stalled.stop(stream);
        }
        stalled.settle();
    }
    assert_eq!(status(&mut client, "/small"), Some(200));
}
