//! Attacks before the handshake of a QUIC connection is complete.

use std::time::Duration;

use h2o_tests::quic::{Close, Header, Options, Quic, VERSION_1, frame, long_header};
use h2o_tests::{Deadline, Random, eventually};

use crate::{
    HANDSHAKE_TIMEOUT, amplification, attack, counter, flood, is_ended_with, start, stranger,
};

#[test]
fn handshakes_nobody_goes_on_with() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let flights = |port| {
        let mut clients: Vec<Quic> = (0..200)
            .map(|_| {
                let mut client = stranger(port, Options::default());
                client.flush();
                // The client waits for an answer, so that the clients' datagrams do not overflow the receive buffer of the server's socket.
                client.receive_only(Duration::from_secs(5));
                client
            })
            .collect();
        amplification(&mut clients);
        clients
    };
    // The first run makes the server allocate the tables of connections, before its memory is measured.
    let first = flights(server.port());
    let is_answered = |client: &&Quic| client.bytes_received >= 1000;
    let answered = first.iter().filter(is_answered).count();
    // The other clients got a Retry packet, which is shorter than 1,000 bytes.
    assert!((10..100).contains(&answered), "{answered} of 200");
    let (mut neighbour, _) = attack(&server, flights);
    eventually("all handshakes to be counted", || {
        (counter(&mut neighbour, "ssl.errors") >= 10).then_some(())
    });
}

#[test]
fn halves_of_a_client_hello() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let _ = attack(&server, |port| {
        let options = Options {
            hello_piece: 120,
            ..Options::default()
        };
        let mut clients: Vec<Quic> = (0..100)
            .map(|_| {
                let mut client = stranger(port, options.clone());
                let datagrams = client.handshake_datagrams();
                assert!(datagrams.len() > 1);
                client.send_datagram(&datagrams[0]);
                client
            })
            .collect();
        amplification(&mut clients);
        clients
    });
}

#[test]
fn handshakes_that_never_end() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let (mut neighbour, _) = attack(&server, |port| {
        let mut clients: Vec<Quic> = (0..30)
            .map(|_| {
                let mut client = Quic::new(port, Options::default());
                client.flush();
                let deadline = Deadline::after_secs(10);
                let mut retries = 0;
                while !client.can_send() && !deadline.has_passed() {
                    client.receive_only(Duration::from_millis(50));
                    // From the 25th handshake on, a client has to show its address first.
                    if std::mem::replace(&mut retries, client.retries) < client.retries {
                        client.flush();
                    }
                }
                assert!(client.can_send(), "the server's first flight is whole");
                client
            })
            .collect();
        // The clients send PING in Handshake packets, but never the Finished message of TLS.
        let deadline = Deadline::after_secs(20);
        while clients.iter().any(|client| client.closed.is_none()) {
            assert!(
                !deadline.has_passed(),
                "the server does not give the handshakes up"
            );
            for client in &mut clients {
                let ping = client.packet(Header::Handshake, &frame::ping());
                client.send_datagram(&ping);
                client.receive_only(Duration::from_millis(2));
            }
        }
        clients
    });
    assert!(counter(&mut neighbour, "ssl.errors") >= 10);
}

#[test]
fn random_datagrams() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut random = Random::new(7);
        let mut clients: Vec<Quic> = (0..8).map(|_| stranger(port, Options::default())).collect();
        for _ in 0..500 {
            for client in &mut clients {
                let len = 1 + random.below(1400);
                let mut bytes = random.bytes(len);
                // A first byte without the bit of a long header, whose version could be answered, and without QUIC's fixed bit.
                bytes[0] &= 0x3f;
                client.send_datagram(&bytes);
            }
        }
        amplification(&mut clients);
        assert!(clients.iter().all(|client| client.bytes_received == 0));
        clients
    });
}

#[test]
fn tokens_the_server_never_gave() {
    for attributes in ["", "quic: { retry: ON }"] {
        let server = start(HANDSHAKE_TIMEOUT, attributes);
        let _ = attack(&server, |port| {
            let mut random = Random::new(11);
            let mut clients: Vec<Quic> = (0..60)
                .map(|_| {
                    let len = 1 + random.below(200);
                    let token = random.bytes(len);
                    let mut client = stranger(
                        port,
                        Options {
                            token,
                            ..Options::default()
                        },
                    );
                    client.flush();
                    client
                })
                .collect();
            amplification(&mut clients);
            clients
        });
    }
}

#[test]
fn versions_nobody_knows() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = stranger(port, Options::default());
        let (sent, mut answers) = (1000, 0);
        for n in 0..sent {
            let mut datagram = long_header(0, 0x1a2a_3a4a, b"12345678", b"abcdefgh");
            datagram.resize(1200, 0);
            client.send_datagram(&datagram);
            // A Version Negotiation packet is never answered, because the answers of two sides could go on for ever.
            let mut negotiation = long_header(0, 0, b"12345678", b"abcdefgh");
            negotiation.extend(VERSION_1.to_be_bytes());
            negotiation.resize(1200, 1);
            client.send_datagram(&negotiation);
            if n % 16 == 15 {
                let before = client.bytes_received;
                client.receive_only(Duration::from_millis(1));
                answers += client.bytes_received - before;
            }
        }
        assert!(
            client
                .versions
                .take()
                .is_some_and(|versions| versions.contains(&VERSION_1))
        );
        assert!(answers <= sent * 60, "{answers} bytes of answers");
        let most = amplification(std::slice::from_mut(&mut client));
        assert!(most < 0.1, "{most}");
        vec![client]
    });
}

#[test]
fn initial_packets_in_short_datagrams() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut clients: Vec<Quic> = (0..200)
            .map(|n| {
                let mut client = stranger(port, Options::default());
                let datagram = client.handshake_datagrams().remove(0);
                client.send_datagram(&datagram[..1199 - n]);
                client
            })
            .collect();
        amplification(&mut clients);
        assert!(clients.iter().all(|client| client.bytes_received == 0));
        clients
    });
}

#[test]
fn packets_of_connections_that_never_were() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut random = Random::new(3);
        // Half of the ids differ from an id that the server has chosen in one byte only; the others are random.
        let mut made = Quic::open(port);
        let (_, id) = made.ids[0].clone();
        let mut client = stranger(port, Options::default());
        for n in 0..2000 {
            let mut packet = vec![0x40 | random.bytes(1)[0] & 0x3f];
            let mut id = id.clone();
            if n % 2 == 0 {
                id = random.bytes(id.len());
            } else {
                let at = 1 + random.below(id.len() - 1);
                id[at] ^= random.bytes(1)[0];
            }
            packet.extend(id);
            let len = 30 + random.below(60);
            packet.extend(random.bytes(len));
            client.send_datagram(&packet);
            // A datagram that looks like a stateless reset, but has a wrong token, does not end a connection.
            if n % 50 == 0 {
                made.send_datagram(&random.bytes(39));
            }
        }
        let most = amplification(std::slice::from_mut(&mut client));
        assert!(most < 1.0, "{most}");
        assert_eq!(made.ask("/a.txt").status, 200);
        vec![client, made]
    });
}

#[test]
fn crypto_frames_with_gaps() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let _ = attack(&server, |port| {
        let mut clients: Vec<Quic> = (0..20)
            .map(|_| {
                let mut client = stranger(port, Options::default());
                for n in 0..200 {
                    let frame = frame::crypto(1 + n * 301, &[1; 300]);
                    let token = Vec::new();
                    let packet = client.packet(Header::Initial(&token), &frame);
                    client.send_datagram(&packet);
                    client.receive_only(Duration::ZERO);
                }
                client
            })
            .collect();
        amplification(&mut clients);
        clients
    });
}

#[test]
fn crypto_frames_after_the_handshake() {
    is_ended_with(
        Options::default(),
        |client| {
            flood(client, 200, |_, n| {
                let offset = u64::try_from(n).expect("the number fits into the type") * 600;
                frame::crypto(offset, &[0x0b; 600])
            });
        },
        |close| matches!(close, Close::Transport(_, _)),
        "http3-errors.transport",
    );
}
