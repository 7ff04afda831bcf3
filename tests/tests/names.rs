//! Resolving host names: which addresses are used, when names are resolved, and which requests wait for it.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};

use h2o_tests::{Backend, FINE, Server, Setup, eventually};

/// A server that is a forward proxy with the address list of the manual, and forwards `/backend` to `http://backend.test:1/`.
fn start(settings: &str, names: &str) -> Server {
    let config = format!(
        "
num-threads: 1
listen: @PORT@
{settings}
hosts:
  default:
    paths:
      /:
        proxy.connect: [ '-127.0.0.0/8', '-[::1]', '-10.0.0.0/8', '+*:@ALLOWEDPORT@' ]
      /.well-known/masque/udp:
        proxy.connect-udp: [ '-127.0.0.0/8', '-[::1]', '-10.0.0.0/8', '+*:@ALLOWEDPORT@' ]
      /backend:
        proxy.reverse.url: http://backend.test:1/
"
    );
    Setup::new(&config).names(names).start()
}

fn connect(server: &Server, host: &str, port: u16) -> String {
    let mut connection = server.connect();
    connection.send(format!(
        "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
    ));
    connection.read_head().status
}

fn connect_udp(server: &Server, host: &str, port: u16) -> String {
    let mut connection = server.connect();
    let host = host.trim_matches(['[', ']']);
    connection.send(format!(
        "GET /.well-known/masque/udp/{host}/{port}/ HTTP/1.1\r\nHost: a\r\n\
         Connection: Upgrade\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n"
    ));
    connection.read_head().status
}

#[test]
fn no_form_of_an_address_leads_past_the_list_to_the_loopback() {
    let server = start(
        "",
        "zero.test 0.0.0.0\nzero6.test ::\nmapped.test ::ffff:0.0.0.0\nloop.test ::ffff:127.0.0.1\n\
         translated.test 64:ff9b::127.0.0.1\ncompatible.test ::127.0.0.1\n",
    );
    let port = server.port_of("ALLOWEDPORT");
    // Sockets on the loopback interface: a connection that wrongly passes the address list would reach one of them.
    let tcp = [
        TcpListener::bind(("127.0.0.1", port)).ok(),
        TcpListener::bind(("::1", port)).ok(),
    ];
    let udp = UdpSocket::bind(("127.0.0.1", port)).expect("the port is free");
    for host in [
        "0.0.0.0",
        "0",
        "0x0",
        "[::]",
        "[::0.0.0.0]",
        "[::ffff:0.0.0.0]",
        "[64:ff9b::0.0.0.0]",
        "127.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b::10.1.2.3]",
        "zero.test",
        "zero6.test",
        "mapped.test",
        "loop.test",
        "translated.test",
        "compatible.test",
        "localhost",
    ] {
        let denied = "403 Destination IP Prohibited";
        assert_eq!(connect(&server, host, port), denied, "{host}");
        assert_eq!(connect_udp(&server, host, port), denied, "{host}");
    }
    for listener in tcp.into_iter().flatten() {
        listener
            .set_nonblocking(true)
            .expect("the descriptor is a socket");
        let nobody = listener
            .accept()
            .expect_err("no client could connect to the listener");
        assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    }
    udp.set_nonblocking(true)
        .expect("the descriptor is a socket");
    assert!(udp.recv(&mut [0]).is_err());
}

#[test]
fn no_name_is_looked_up_for_a_port_that_is_denied() {
    let server = start("", "far.test 192.0.2.1\nnear.test 127.0.0.1\n");
    let denied = "403 Destination IP Prohibited";
    assert_eq!(connect(&server, "far.test", 1), denied);
    assert_eq!(connect_udp(&server, "far.test", 1), denied);
    let port = server.port_of("ALLOWEDPORT");
    assert_eq!(connect(&server, "near.test", port), denied);
    let asked = server.asked_names();
    assert!(!asked.contains("far.test"), "{asked}");
    assert!(asked.contains(&format!("near.test:{port}\n")), "{asked}");
}

#[test]
fn names_that_clients_choose_do_not_keep_backends_from_being_found() {
    let backend = Backend::answering(FINE);
    let slow: String = (0..8).map(|n| format!("slow{n}.test wait\n")).collect();
    for threads in [1_usize, 4] {
        let server = start(
            &format!("num-name-resolution-threads: {threads}"),
            &format!("{slow}backend.test 127.0.0.1 {}\n", backend.port()),
        );
        let port = server.port_of("ALLOWEDPORT");
        let mut waiting = Vec::new();
        for n in 0..8 {
            let mut client = server.connect();
            let target = format!("slow{n}.test:{port}");
            client.send(format!(
                "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
            ));
            waiting.push(client);
        }
        eventually("as many look-ups as there may be", || {
            let count = server.asked_names().matches("slow").count();
            (count >= threads.div_ceil(2)).then_some(())
        });
        server.ask("GET /backend").must_be("200 OK\n\nfine");
        let count = server.asked_names().matches("slow").count();
        assert_eq!(count, threads.div_ceil(2));
    }
}

#[test]
fn a_backend_is_not_lost_while_its_name_is_looked_up_anew() {
    let backend = Backend::answering(FINE);
    let answer = format!("backend.test 127.0.0.1 {}\n", backend.port());
    for outage in ["wait", "again"] {
        // With `proxy.timeout.keepalive: 0`, every request opens a connection to the backend, which needs the backend's address.
        let server = start("proxy.timeout.keepalive: 0", &answer);
        server.ask("GET /backend").must_be("200 OK\n\nfine");
        server.set_names(&format!("backend.test {outage}\n"));
        eventually("another look-up of the backend's name", || {
            server.ask("GET /backend").must_be("200 OK\n\nfine");
            let asked = server.asked_names();
            (asked.matches("backend.test:1\n").count() > 1).then_some(())
        });
        server.ask("GET /backend").must_be("200 OK\n\nfine");
    }
}

#[test]
fn the_answer_says_which_port_is_connected_to() {
    let backend = Backend::answering(FINE);
    let server = start("", "");
    let allowed = server.port_of("ALLOWEDPORT");
    server.set_names(&format!(
        "backend.test 127.0.0.1 {}\nfar.test 192.0.2.1 {}\n",
        backend.port(),
        allowed - 1
    ));
    server.ask("GET /backend").must_be("200 OK\n\nfine");
    // The address list is applied to the port that `far.test` resolved to, not to the requested one, and does not allow that port.
    let denied = "403 Destination IP Prohibited";
    assert_eq!(connect(&server, "far.test", allowed), denied);
    let asked = server.asked_names();
    assert!(asked.starts_with("backend.test:1\n"), "{asked}");
    assert!(asked.contains(&format!("far.test:{allowed}\n")), "{asked}");
}

#[test]
fn an_address_that_refuses_is_not_the_last_one_where_requests_are_retried() {
    let backend = Backend::answering(FINE);
    let config = format!(
        "
num-threads: 1
listen: @PORT@
hosts:
  default:
    paths:
      /:
        proxy.timeout.keepalive: 0
        proxy.retry: ON
        proxy.passive-health-check: ON
        proxy.reverse.url: http://multi.test:{}/
",
        backend.port()
    );
    // Nobody listens at the second and third address.
    let names = "multi.test 127.0.0.1,127.0.0.2,127.0.0.3\n";
    let server = Setup::new(&config).names(names).start();
    for number in 0..20 {
        let response = server.ask("GET /");
        assert_eq!(response.code(), 200, "{number}: {response:?}");
    }
    assert!(
        !server.messages().contains("is down"),
        "{}",
        server.messages()
    );
}
