//! Clients that hold on to connections without using them.

use std::net::TcpStream;
use std::time::Duration;

use h2o_tests::{Deadline, Raw, Server, Setup, eventually};

fn start(settings: &str) -> Server {
    Setup::new(&format!(
        "
{settings}
listen: @PORT@
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /status: {{ status: ON }}
"
    ))
    .file("www/large", vec![b'x'; 20_000_000])
    .start()
}

const BEGUN_HEAD: &str = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
const BEGUN_BODY: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n";
const LARGE: &str = "GET /large HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends the byte `x` at intervals of `every` until the server has closed the connection; fails if that takes longer than `limit`.
fn drip(mut connection: Raw, every: Duration, limit: Duration) {
    let deadline = Deadline::after(limit);
    while connection.try_send("x") {
        assert!(
            !deadline.has_passed(),
            "the connection is open after {limit:?}"
        );
        // The pause is part of the client's behaviour: the test does not wait for anything here.
        std::thread::sleep(every);
    }
}

/// Waits until the server has no connection but the one that asks for its status.
fn alone(server: &Server, limit: Duration) {
    let deadline = Deadline::after(limit);
    while connections(server) > 1 {
        assert!(
            !deadline.has_passed(),
            "other clients are still connected after {limit:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Number of connections on the server's status page, which includes the connection that asks for it.
fn connections(server: &Server) -> usize {
    let status = server.ask("GET /status/json?show=main").text();
    let number = status.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("\"connections\":")?;
        rest.trim_matches([' ', ',']).parse().ok()
    });
    number.unwrap_or_else(|| panic!("the status report has no number of connections: {status}"))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn with_defaults_idle_and_dripping_clients_are_gone_in_time() {
    let server = start("");
    let connect = || Raw::connect(server.port());
    std::thread::scope(|scope| {
        // A client that sends nothing is closed 10 s after the kernel reports the connection, which TCP_DEFER_ACCEPT delays.
        scope.spawn(|| connect().time_to_close(seconds(18)));
        // A client that sends half a request head is closed within 10 s.
        scope.spawn(|| {
            let mut connection = connect();
            connection.send(BEGUN_HEAD);
            connection.time_to_close(seconds(10))
        });
        // A client whose request head grows by a byte each second is closed 10 s after it connected, or up to one byte later.
        scope.spawn(|| {
            let mut connection = connect();
            connection.send(BEGUN_HEAD);
            drip(connection, seconds(1), seconds(14));
        });
        // A client whose request body grows by a byte each second is closed within 30 s.
        scope.spawn(|| {
            let mut connection = connect();
            connection.send(BEGUN_BODY);
            drip(connection, seconds(1), seconds(30));
        });
        // A client that keeps its connection after a response and sends no further request is closed after 10 s.
        scope.spawn(|| {
            let mut connection = connect();
            connection.send("GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(connection.read_response("GET").code(), 404);
            connection.time_to_close(seconds(14))
        });
    });
    assert!(server.messages().matches("panicked").count() == 0);
}

#[test]
fn with_defaults_a_client_that_never_reads_is_gone_within_30_seconds() {
    let server = start("");
    let mut connection = server.connect();
    connection.send(LARGE);
    let _ = connection.read_exactly(1);
    alone(&server, seconds(30));
}

const SHORT: &str = "http1-request-timeout: 2\nhttp1-request-io-timeout: 1\nhandshake-timeout: 1";

#[test]
fn configured_times_bound_silence_and_heads() {
    let server = start(SHORT);
    std::thread::scope(|scope| {
        scope.spawn(|| server.connect().time_to_close(seconds(8)));
        for begun in [
            BEGUN_HEAD,
            BEGUN_BODY,
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        ] {
            let server = &server;
            scope.spawn(move || {
                // The clock starts before the server's time limits do. With the default settings these limits would be 10 and 5 s, longer
                // than the 4.5 s of this clock.
                let clock = Deadline::after(Duration::from_millis(4500));
                let mut connection = server.connect();
                connection.send(begun);
                let _ = connection.time_to_close(clock.left());
                let time = clock.elapsed();
                assert!(time > Duration::from_millis(900), "{begun}: {time:?}");
            });
        }
        scope.spawn(|| {
            let clock = Deadline::after_secs(9);
            let mut connection = server.connect();
            connection.send(BEGUN_HEAD);
            drip(connection, Duration::from_millis(200), clock.left());
            assert!(clock.elapsed() > Duration::from_millis(1900), "{clock:?}");
        });
        scope.spawn(|| {
            let mut connection = server.connect();
            connection.send(LARGE);
            alone(&server, seconds(8));
        });
    });
}

#[test]
fn a_client_that_reads_slowly_but_steadily_gets_everything() {
    let server = start("http1-request-timeout: 2\nhttp1-request-io-timeout: 2");
    let mut connection = server.connect();
    // A small receive buffer: when the client reads, the server soon has room to send again.
    rustix::net::sockopt::set_socket_recv_buffer_size(connection.stream(), 64 * 1024).unwrap();
    connection.send(LARGE);
    let head = connection.read_head();
    assert_eq!(head.field("content-length"), Some("20000000"));
    // The client reads for several times as long as the time limit, with pauses shorter than the limit. The send buffer of the server's
    // kernel holds all that is read here, so the server's socket does not become writable meanwhile.
    for _ in 0..25 {
        let _ = connection.read_exactly(20_000);
        std::thread::sleep(Duration::from_millis(200));
    }
    let _ = connection.read_exactly(20_000_000 - 25 * 20_000);
}

#[test]
fn an_unfinished_handshake_is_cut_off() {
    let folder = h2o_tests::Folder::new();
    h2o_tests::certs::self_signed(
        &folder,
        "server",
        h2o_tests::certs::Key::EcPkcs8,
        "a.example",
    );
    let config = format!(
        "{SHORT}
listen:
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: /srv }} }} }} }}
"
    );
    let server = Setup::in_folder(folder, &config).start();
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"] {
        let mut connection = server.connect();
        connection.send(begun);
        connection.time_to_close(seconds(3));
    }
}

#[test]
fn connections_above_the_maximum_wait_and_are_served_later() {
    let server = start("max-connections: 4\nnum-threads: 1\nhttp1-request-io-timeout: 3");
    let mut held: Vec<Raw> = (0..4).map(|_| server.connect()).collect();
    for connection in &mut held {
        connection.send("GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(connection.read_response("GET").code(), 404);
    }
    let mut waiting = server.connect();
    waiting.send("GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
    drop(held);
    assert_eq!(waiting.read_response("GET").code(), 404);
}

#[test]
fn a_client_that_does_nothing_costs_at_most_64_kilobytes() {
    const CLIENTS: usize = 200;
    const LIMIT: usize = 64 * 1024;
    for (what, begun) in [
        ("silent", ""),
        ("half a head", BEGUN_HEAD),
        ("half a body", BEGUN_BODY),
        ("never reads", LARGE),
    ] {
        let server = start("http1-request-timeout: 60\nhttp1-request-io-timeout: 60");
        // The server allocates here what it allocates once, such as caches, before its memory is measured.
        for _ in 0..8 {
            assert_eq!(server.ask("GET /none").code(), 404);
            assert_eq!(server.ask("GET /large").body.len(), 20_000_000);
        }
        let before = server.memory();
        let mut clients: Vec<Raw> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send(begun);
        }
        eventually("the server to count every connection", || {
            (connections(&server) == CLIENTS + 1).then_some(())
        });
        for client in clients.iter().filter(|_| begun == LARGE) {
            wait_for_bytes(client.stream());
        }
        let each = server.memory().saturating_sub(before) / CLIENTS;
        eprintln!("{what}: {each} bytes");
        assert!(each <= LIMIT, "{what}: {each} bytes");
    }
}

fn wait_for_bytes(stream: &TcpStream) {
    let count = stream.peek(&mut [0]).expect("the connection is open");
    assert_eq!(count, 1, "a byte of the answer has arrived");
}

#[test]
fn heads_of_requests_whose_answers_nobody_reads_count_against_max_memory() {
    let server = start("max-memory: 1048576\nnum-threads: 1");
    let request = format!(
        "GET /large HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(200_000)
    );
    let mut clients: Vec<Raw> = (0..10).map(|_| server.connect()).collect();
    let mut refused = 0;
    for client in &mut clients {
        client.send(&request);
        let head = String::from_utf8(client.read_exactly(12))
            .expect("the response begins with a status line");
        refused += usize::from(head == "HTTP/1.1 503");
    }
    assert!((1..=8).contains(&refused), "{refused} of 10 were refused");
}
