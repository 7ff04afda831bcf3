//! The forward proxy: tunnels by CONNECT and CONNECT-UDP through the server to sockets on this machine.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, encode};
use h2o_tests::{ClosedPort, Deadline, Folder, Response, Server, Setup, run};

/// Starts a server that lets clients connect to two ports of 127.0.0.1 and no other address: ALLOWEDPORT, and DEADPORT, where nothing
/// listens. Its own listener with TLS at TLSPORT is allowed as well.
fn start(settings: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    let config = format!(
        "
num-threads: 1
{settings}
listen: @PORT@
listen:
  port: @TLSPORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
access-log: {{ path: @DIR@/log, format: '%m %U %s %b' }}
header.add: 'x-filtered: yes'
hosts:
  default:
    paths:
      /:
        proxy.connect: [ '+127.0.0.1:@ALLOWEDPORT@', '+127.0.0.1:@DEADPORT@', '+127.0.0.1:@TLSPORT@' ]
        file.dir: @DIR@/www
      /udp:
        proxy.connect-udp: [ '+127.0.0.1:@ALLOWEDPORT@' ]
"
    );
    Setup::in_folder(folder, &config)
        .file("www/small", "hello")
        .file("www/large", vec![b'x'; 3_000_000])
        .start()
}

fn connect(server: &Server, target: &str) -> Response {
    let mut connection = server.connect();
    connection.send(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
    ));
    connection.read_response("CONNECT")
}

#[test]
fn curl_gets_its_files_through_a_tunnel() {
    let server = start("");
    let proxy = server.url("");
    let url = |path: &str| format!("https://127.0.0.1:{}{path}", server.port_of("TLSPORT"));
    for (protocol, path, len) in [("--http1.1", "/small", 5), ("--http2", "/large", 3_000_000)] {
        let url = url(path);
        let options = ["-sS", "-k", protocol, "-p", "-x", &proxy, &url];
        assert_eq!(run("curl", &options).success().len(), len, "{path}");
    }
    // A request of another method than CONNECT is passed to the next handler.
    server
        .ask("GET /small")
        .must_be("200 OK\nx-filtered: yes\n\nhello");
    let log = server.read_until("log", "CONNECT");
    assert!(log.contains(" 200 "), "{log}");
}

#[test]
fn what_cannot_be_reached_is_told_and_logged() {
    let server =
        start("proxy.connect.emit-proxy-status: ON\nproxy.proxy-status.identity: my proxy");
    let (allowed, dead) = (server.port_of("ALLOWEDPORT"), server.port_of("DEADPORT"));
    let target = format!("127.0.0.1:{dead}");
    connect(&server, &target).must_be(
        "502 Gateway Error\nconnection: close\ncontent-type: text/plain; charset=utf-8\nx-filtered: yes\nproxy-status: \"my proxy\"; error=connection_refused; next-hop=\"127.0.0.1\"\n\nconnection refused",
    );
    for denied in [
        "127.0.0.1:1",
        &format!("127.0.0.2:{allowed}"),
        "[::1]:80",
        &format!("[::ffff:127.0.0.1]:{allowed}"),
    ] {
        connect(&server, denied).must_be(
            "403 Destination IP Prohibited\nconnection: close\nproxy-status: \"my proxy\"; error=destination_ip_prohibited\n\nDestination IP Prohibited",
        );
    }
    let unknown = connect(&server, &format!("no-such-host.invalid:{allowed}"));
    assert_eq!(unknown.status, "502 Gateway Error");
    let field = unknown.field("proxy-status").unwrap_or_default();
    let details = format!("; details=\"{}\"", unknown.text());
    assert!(
        field.starts_with("\"my proxy\"; error=dns_error; rcode=") && field.ends_with(&details),
        "{unknown}"
    );
    let line = format!(
        "[lib/handler/connect.c] in request:{target}:connection_refused; rcode=(null); details=(null); next-hop=127.0.0.1\n"
    );
    server.wait_for_message(&line);
    let line = "[lib/handler/connect.c] in request:127.0.0.1:1:destination_ip_prohibited; rcode=(null); details=(null); next-hop=(null)\n";
    server.wait_for_message(line);
}

#[test]
fn bytes_pass_both_ways_until_one_side_ends() {
    let server = start("proxy.connect.emit-proxy-status: ON\nproxy.timeout.io: 1000");
    let port = server.port_of("ALLOWEDPORT");
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let target = format!("127.0.0.1:{port}");
    let open = || {
        let mut connection = server.connect();
        // The client sends data of the tunnel at once, without waiting for the response.
        connection.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nearly"
        ));
        let (mut far, _) = listener.accept().expect("the server connects");
        far.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("the time is not zero");
        let mut early = [0; 5];
        far.read_exact(&mut early).expect("the bytes arrive");
        assert_eq!(&early, b"early");
        connection.read_head().must_be(
            "200 OK\nconnection: close\nproxy-status: h2o; next-hop=\"127.0.0.1\"\n!content-length\n!transfer-encoding\n!x-filtered",
        );
        (connection, far)
    };
    // The client ends its direction first; what it has sent before arrives.
    let (mut connection, mut far) = open();
    far.write_all(b"welcome").expect("the connection is open");
    assert_eq!(connection.read_exactly(7), b"welcome");
    connection.send("bye");
    connection.finish();
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).expect("the bytes arrive");
    assert_eq!(rest, b"bye");
    assert_eq!(connection.read_to_end(), b"");
    // The destination ends its direction first; what it has sent before arrives.
    let (mut connection, mut far) = open();
    far.write_all(b"that is all")
        .expect("the connection is open");
    far.shutdown(Shutdown::Write)
        .expect("the socket is connected");
    assert_eq!(connection.read_to_end(), b"that is all");
    // A tunnel on which neither side sends anything is closed by the idle timeout.
    let clock = Deadline::after_secs(10);
    let (mut connection, mut far) = open();
    assert_eq!(connection.read_to_end(), b"");
    assert!(clock.elapsed() > Duration::from_millis(900), "{clock:?}");
    assert!(!clock.has_passed(), "{clock:?}");
    assert_eq!(far.read(&mut [0]).unwrap_or_default(), 0);
    let line = format!("[lib/handler/connect.c] in request:{target}:I/O timeout");
    server.wait_for_message(&line);
}

#[test]
fn datagrams_pass_both_ways() {
    let server = start("proxy.connect.emit-proxy-status: ON");
    let port = server.port_of("ALLOWEDPORT");
    let far = UdpSocket::bind(("127.0.0.1", port)).expect("the port is free");
    far.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("the time is not zero");
    let ask = |path: &str| {
        let mut connection = server.connect();
        connection.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n"
        ));
        connection
    };
    let mut connection = ask(&format!("/udp/127.0.0.1/{port}/"));
    connection.read_head().must_be(
        "101 Switching Protocols\nconnection: upgrade\nupgrade: connect-udp\ncapsule-protocol: ?1\nproxy-status: h2o; next-hop=\"127.0.0.1\"\n!x-filtered",
    );
    // A capsule of an unknown type comes first; the server ignores it.
    connection.send(b"\x21\x02??\0\x05\0ping");
    let mut datagram = [0; 100];
    let (len, near) = far.recv_from(&mut datagram).expect("the bytes arrive");
    assert_eq!(&datagram[..len], b"ping");
    far.send_to(b"pong!", near)
        .expect("the address of the sender can be reached");
    assert_eq!(connection.read_exactly(8), b"\0\x06\0pong!");

    let refused = [
        (
            "/udp/127.0.0.1/1/",
            "403 Destination IP Prohibited\nproxy-status: h2o; error=destination_ip_prohibited\n\nDestination IP Prohibited",
        ),
        (
            "/udp/127.0.0.1/1",
            "400 Bad Request\nproxy-status: h2o; error=http_request_error; details=\"invalid URI\"\n\nBad Request",
        ),
        ("/udp/", "400 Bad Request\n\nBad Request"),
    ];
    for (path, want) in refused {
        ask(path).read_response("GET").must_be(want);
    }
    // The handler of CONNECT-UDP declines other requests for its path, so the response is 404.
    server
        .ask("GET /udp/127.0.0.1/1/")
        .must_be("404 File Not Found");
}

#[test]
fn the_draft_of_connect_udp_is_spoken_where_it_is_wanted() {
    for (settings, is_wanted) in [("", false), ("proxy.connect.masque-draft-03: ON", true)] {
        let server = start(settings);
        let port = server.port_of("ALLOWEDPORT");
        let far = UdpSocket::bind(("127.0.0.1", port)).expect("the port is free");
        far.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("the time is not zero");
        let mut connection = server.connect();
        connection.send(format!(
            "CONNECT-UDP masque://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n"
        ));
        if !is_wanted {
            connection
                .read_response("CONNECT-UDP")
                .must_be("405 Method Not Allowed\n\nMethod Not Allowed");
            continue;
        }
        connection
            .read_head()
            .must_be("200 OK\n!capsule-protocol\n!proxy-status\n!content-length");
        connection.send(b"\0\x04ping");
        let mut datagram = [0; 100];
        let (len, near) = far.recv_from(&mut datagram).expect("the bytes arrive");
        assert_eq!(&datagram[..len], b"ping");
        far.send_to(b"pong!", near)
            .expect("the address of the sender can be reached");
        assert_eq!(connection.read_exactly(7), b"\0\x05pong!");
    }
}

/// A listening socket whose queue is full: connection attempts get no answer.
fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    rustix::net::listen(&listener, 0).expect("the socket listens already");
    let address = listener.local_addr().expect("the socket is bound");
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
    }
    (listener, waiting)
}

#[test]
fn every_way_to_fail_has_its_status_and_its_name() {
    let server = Setup::new(
        "
num-threads: 1
listen: @PORT@
proxy.timeout.connect: 500
proxy.connect.emit-proxy-status: ON
hosts:
  default:
    paths:
      /:
        proxy.connect: [ '-[::1]', '+*' ]
",
    )
    .start();
    let closed = ClosedPort::new();
    let url = closed.url();
    let dead = url.trim_start_matches("http://").trim_end_matches('/');
    let (full, _waiting) = full_listener();
    let full = full.local_addr().expect("the socket is bound");
    // The last two addresses fail in the kernel without a packet: connect() to a multicast address is refused, and a link-local address
    // without an interface has no route.
    let cases = [
        (
            "[::1]:80".to_owned(),
            "403 Destination IP Prohibited",
            "destination_ip_prohibited",
            "Destination IP Prohibited",
        ),
        (
            dead.to_owned(),
            "502 Gateway Error",
            "connection_refused; next-hop=\"127.0.0.1\"",
            "connection refused",
        ),
        (
            full.to_string(),
            "502 Gateway Error",
            "connection_timeout; next-hop=\"127.0.0.1\"",
            "I/O timeout",
        ),
        (
            "224.0.0.1:80".to_owned(),
            "502 Gateway Error",
            "destination_ip_unroutable; next-hop=\"224.0.0.1\"",
            "network unreachable",
        ),
        (
            "[fe80::1]:80".to_owned(),
            "502 Gateway Error",
            "proxy_internal_error; details=\"connection failure\"; next-hop=\"fe80::1\"",
            "connection failure",
        ),
    ];
    for (target, status, error, text) in cases {
        let answer = connect(&server, &target);
        assert_eq!(answer.status, status, "{target}: {answer}");
        let field = answer.field("proxy-status").unwrap_or_default();
        assert_eq!(field, format!("h2o; error={error}"), "{target}");
        assert_eq!(answer.text(), text, "{target}");
    }
}

#[test]
fn a_target_that_is_none_is_not_refused_without_a_reason() {
    let server = start("proxy.connect.emit-proxy-status: ON");
    let mut client = Http2::open(server.port(), &[]);
    let targets = [
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:99999",
        "u@127.0.0.1:1",
        "[::1:1",
        "/x",
        "a.test%zz:1",
    ];
    for (number, target) in (0u32..).zip(targets) {
        let stream = 2 * number + 1;
        let section = encode(&[(":method", "CONNECT"), (":authority", target)]);
        client.send_frame(&Frame::request_with_content(stream, section));
        let answer = client.read_answer(stream);
        assert_eq!((answer.status(), &*answer.text()), (400, "Bad Request"));
        let want = "h2o; error=http_request_error; details=\"invalid host:port\"";
        assert_eq!(answer.field("proxy-status"), Some(want), "{target}");
        let answer = connect(&server, target);
        answer.must_be("400 Bad Request\nconnection: close\n\nBad Request");
        assert_eq!(answer.field("proxy-status"), Some(want), "{target}");
    }
}
