//! Tests of `proxy.connect` and `proxy.connect-udp` over HTTP/2, in which the client checks single frames.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod http2_client;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use embedded::Embedded;
use http2_client::Client;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn start(settings: &str, allowed: u16) -> Embedded {
    Embedded::start(&[], |port| {
        format!(
            "num-threads: 1\nerror-log.emit-request-errors: OFF\n{settings}\nlisten: {{ host: 127.0.0.1, port: {port} }}\nhosts:\n  default:\n    paths:\n      /: {{ proxy.connect: ['+127.0.0.1:{allowed}'] }}\n      /udp: {{ proxy.connect-udp: ['+127.0.0.1:{allowed}'] }}\n"
        )
    })
}

/// Opens a tunnel. Returns its HTTP/2 stream, and the destination's end of the TCP connection.
fn open(client: &mut Client, listener: &TcpListener) -> (u32, TcpStream) {
    let target = listener.local_addr().unwrap().to_string();
    let id = client.connect_plain(&target);
    client.send(id, b"early", false);
    let (mut far, _) = listener.accept().unwrap();
    far.set_read_timeout(LIMIT).unwrap();
    let mut early = [0; 5];
    far.read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early");
    let head = format!("{id} 200");
    assert_eq!(client.until(&head), [&*head]);
    (id, far)
}

#[test]
fn each_direction_of_a_tunnel_ends_as_its_sender_says() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = start("", listener.local_addr().unwrap().port());
    let mut client = Client::connect(server.port);
    // The destination ends its direction of the tunnel first, and goes on reading.
    let (id, mut far) = open(&mut client, &listener);
    far.write_all(b"welcome").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    client.until(&format!("{id} 0 bytes."));
    assert_eq!(client.content(id), b"welcome");
    client.send(id, b"thank ", false);
    client.send(id, b"you", true);
    let mut rest = String::new();
    far.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "thank you");
    assert!(client.settle().is_empty(), "the stream is not reset");
    // The client ends its direction of the tunnel first, and the whole tunnel ends.
    let (id, mut far) = open(&mut client, &listener);
    client.send(id, b" bird", true);
    let mut rest = String::new();
    far.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, " bird");
    client.until(&format!("{id} 0 bytes."));
    // The client resets the tunnel's stream.
    let (id, mut far) = open(&mut client, &listener);
    client.reset(id);
    assert_eq!(far.read(&mut [0]).unwrap_or_default(), 0);
    // Both sides send a large amount of data at the same time.
    let (id, mut far) = open(&mut client, &listener);
    let echo = std::thread::spawn(move || {
        let mut bytes = vec![0; 200_000];
        far.read_exact(&mut bytes).unwrap();
        far.write_all(&bytes).unwrap();
        far
    });
    client.allow(id, 1 << 20);
    client.send(id, &[b'x'; 200_000], false);
    client.until_content(id, 200_000);
    drop(echo.join().unwrap());
    client.until(&format!("{id} 0 bytes."));
}

#[test]
fn silence_ends_a_tunnel_with_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = start("proxy.timeout.io: 500", port);
    let mut client = Client::connect(server.port);
    let (id, mut far) = open(&mut client, &listener);
    // The server resets the stream with CONNECT_ERROR (10, RFC 9113 §8.5).
    let reset = format!("{id} reset 10");
    assert_eq!(client.until(&reset), [&*reset]);
    assert_eq!(far.read(&mut [0]).unwrap_or_default(), 0);
    // A tunnel of which only the client's direction is still open is also reset with CONNECT_ERROR.
    let (id, far) = open(&mut client, &listener);
    far.shutdown(Shutdown::Write).unwrap();
    let reset = format!("{id} reset 10");
    let end = format!("{id} 0 bytes.");
    assert_eq!(client.until(&reset), [&*end, &*reset]);
}

#[test]
fn what_cannot_be_reached_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let server = start("", address.port());
    let mut client = Client::connect(server.port);
    for (target, status) in [
        ("127.0.0.1", 400),
        ("127.0.0.1:0", 400),
        ("127.0.0.1:1", 403),
        (&*address.to_string(), 502),
    ] {
        let id = client.connect_plain(target);
        let seen = client.until(&format!("{id} {status}"));
        assert_eq!(seen, [format!("{id} {status}")], "{target}");
        // The error response ends the stream, although the client has not ended its direction.
        let rest = client.settle();
        assert!(
            rest.contains(&format!("{id} reset 0")),
            "{target}: {rest:?}"
        );
    }
    // `proxy.connect` does not handle upgrades such as WebSocket, so no handler takes the request.
    let id = client.connect_to("/x", "websocket");
    assert_eq!(
        client.until(&format!("{id} reset 0"))[0],
        format!("{id} 404")
    );
}

#[test]
fn datagrams_are_capsules() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(LIMIT).unwrap();
    let port = far.local_addr().unwrap().port();
    let server = start("", port);
    let mut client = Client::connect(server.port);
    let id = client.connect_to(&format!("/udp/127.0.0.1/{port}/"), "connect-udp");
    client.until(&format!("{id} 200"));
    client.send(id, b"\0\x05\0ping", false);
    let mut datagram = [0; 100];
    let (len, near) = far.recv_from(&mut datagram).unwrap();
    assert_eq!(&datagram[..len], b"ping");
    far.send_to(b"pong", near).unwrap();
    client.until_content(id, 7);
    assert_eq!(client.content(id), b"\0\x05\0pong");
    client.send(id, b"", true);
    client.until(&format!("{id} 0 bytes."));
}
