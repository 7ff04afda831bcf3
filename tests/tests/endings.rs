//! Ends of connections: no response is cut off, and the access log records requests that could not be served.

use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run};

fn start(settings: &str) -> Server {
    Setup::new(&format!(
        "
num-threads: 1
{settings}
listen: @PORT@
access-log: {{ path: @DIR@/log, format: '%h %m %s %b' }}
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
"
    ))
    .file("www/small", "hello")
    .file("www/large", vec![b'x'; 30_000_000])
    .start()
}

fn start_tls(settings: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    let config = format!(
        "
{settings}
listen:
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
"
    );
    Setup::in_folder(folder, &config)
        .file("www/small", "hello")
        .start()
}

#[test]
fn bytes_behind_the_last_request_do_not_cut_its_response_off() {
    let server = start("");
    let mut connection = server.connect();
    connection.send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(connection.read_head().code(), 200);
    // Some clients send an empty line after a request. The server does not read it, because the connection will be closed.
    connection.send("\r\n");
    for _ in 0..30 {
        // The pause makes the client slower than the server, whose data waits in the buffers of the kernel.
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(connection.read_exactly(1_000_000).len(), 1_000_000);
    }
    assert_eq!(connection.read_to_end(), b"");
}

#[test]
fn a_client_that_resets_its_connection_is_logged_by_its_address() {
    let server = start("");
    let signal = |signal| {
        let pid = i32::try_from(server.pid()).expect("process ids are small");
        let pid = rustix::process::Pid::from_raw(pid).expect("the process has an id");
        rustix::process::kill_process(pid, signal).expect("the process is a child of the test");
    };
    // The server is stopped, so that the client's reset comes before the server accepts the connection.
    signal(rustix::process::Signal::STOP);
    let mut connection = server.connect();
    connection.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n");
    rustix::net::sockopt::set_socket_linger(connection.stream(), Some(Duration::ZERO))
        .expect("the descriptor is a socket");
    drop(connection);
    signal(rustix::process::Signal::CONT);
    let log = server.read_until("log", "GET");
    assert!(log.starts_with("127.0.0.1 "), "{log}");
}

#[test]
fn a_refused_head_request_has_no_content_in_the_log() {
    let server = start("");
    let refused = "/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: miracles\r\n\r\n";
    for method in ["HEAD", "POST"] {
        let mut connection = server.connect();
        connection.send(format!("{method} {refused}"));
        connection
            .read_response(method)
            .must_be("417 Expectation Failed");
        assert_eq!(connection.read_to_end(), b"");
    }
    let log = server.read_until("log", "POST");
    assert_eq!(log, "127.0.0.1 HEAD 417 0\n127.0.0.1 POST 417 19\n");
}

#[test]
fn no_handler_that_cannot_tunnel_sees_connect() {
    let server = start("");
    let mut connection = server.connect();
    connection.send("CONNECT a.example:1 HTTP/1.1\r\nHost: a.example:1\r\n\r\n");
    connection
        .read_response("POST")
        .must_be("405 Method Not Allowed\nconnection: close\n\nMethod Not Allowed");
    assert_eq!(connection.read_to_end(), b"");
}

#[test]
fn idle_connections_make_room_when_no_other_can_be_accepted() {
    let server = start(
        "max-connections: 3\nsoft-connection-limit: 2\nsoft-connection-limit.min-age: 1\nhttp1-request-timeout: 60\nhttp1-request-io-timeout: 60",
    );
    let mut idle: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for connection in &mut idle {
        connection.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n");
        connection.read_response("GET").must_be("200 OK\n\nhello");
    }
    // This request is served only when idle connections have reached the minimum age at which they may be closed.
    server.ask("GET /small").must_be("200 OK\n\nhello");
}

#[test]
fn connections_above_the_soft_limit_are_not_kept_until_the_new_one_is_served() {
    let server = Setup::new(
        "
num-threads: 1
soft-connection-limit: 2
soft-connection-limit.min-age: 0
listen: @PORT@
hosts:
  default:
    paths:
      /: { status: ON }
",
    )
    .start();
    let mut connections = Vec::new();
    for want in [(1, 0), (2, 0), (2, 1)] {
        let mut connection = server.connect();
        connection.send("GET /json?show=main,events HTTP/1.1\r\nHost: a\r\n\r\n");
        let report = connection.read_response("GET").text();
        for (name, value) in [("connections", want.0), ("connections.idle-closed", want.1)] {
            let line = format!("\"{name}\": {value},");
            assert!(report.contains(&line), "{line} {report}");
        }
        connections.push(connection);
    }
    assert_eq!(
        connections[0].read_to_end(),
        b"",
        "the server closed the oldest connection"
    );
}

#[test]
fn a_connection_on_which_nothing_was_sent_leaves_no_line_in_the_log() {
    let server = start("http1-request-timeout: 1\nhttp1-request-io-timeout: 1");
    let (mut empty, mut begun) = (server.connect(), server.connect());
    begun.send("GET /begun HTTP/1.1\r\n");
    assert_eq!(empty.read_to_end(), b"");
    assert_eq!(begun.read_to_end(), b"");
    drop(server.connect());
    server.ask("GET /small").must_be("200 OK\n\nhello");
    let folder = server.stop();
    assert_eq!(folder.read("log"), "127.0.0.1 - - 0\n127.0.0.1 GET 200 5\n");
}

#[test]
fn an_idle_tls_connection_is_closed_with_a_word() {
    let server = start_tls("http1-request-timeout: 1");
    let program = "
import socket, ssl, sys
context = ssl._create_unverified_context()
raw = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=20)
connection = context.wrap_socket(raw, suppress_ragged_eofs=False)
connection.sendall(b'GET /small HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')
# Ends without an error only if close_notify comes.
while connection.recv(65536):
    pass
";
    let port = server.port().to_string();
    let output = run("python3", &["-c", program, &port]);
    assert_eq!(output.code, 0, "{output}");
}

#[test]
fn a_client_that_says_close_notify_with_its_request_is_not_waited_for() {
    let server = start_tls("http1-request-timeout: 60\nhttp1-request-io-timeout: 60");
    let program = "
import socket, ssl, sys
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
connection = ssl._create_unverified_context().wrap_bio(incoming, outgoing)
raw = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=20)
def until_done(step):
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(65536))
until_done(connection.do_handshake)
raw.sendall(outgoing.read())
connection.write(b'GET /small HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')
try:
    connection.unwrap()
except ssl.SSLWantReadError:
    pass
# Both records at once.
raw.sendall(outgoing.read())
while raw.recv(65536):
    pass
";
    let port = server.port().to_string();
    let output = run("python3", &["-c", program, &port]);
    assert_eq!(output.code, 0, "{output}");
}

#[test]
fn a_client_that_asks_for_too_much_that_is_not_there_is_told_before_it_is_cut_off() {
    let server = start("connection-budget: 50\nconnection-budget.per-second: 0");
    let mut connection = server.connect();
    for number in 1..=11 {
        connection.send("GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
        let wanted = if number == 11 { "close" } else { "keep-alive" };
        let response = connection.read_response("GET");
        response.must_be(&format!("404 File Not Found\nconnection: {wanted}"));
    }
    assert_eq!(connection.read_to_end(), b"");
}
