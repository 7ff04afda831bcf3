//! Attacks by frames and packets of QUIC.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use h2o_tests::Deadline;
use h2o_tests::http3::varint;
use h2o_tests::quic::{Close, Header, Options, Quic, frame, get, request};

use crate::{
    CLOSES, EXCESSIVE_LOAD, FRAMES, attack, counter, flood, is_ended_with, is_overdrawn, packed,
    start,
};

#[test]
fn empty_stream_frames() {
    is_overdrawn(|client| {
        let stream = client.next_request();
        let head = request("POST", "/a.txt", &[]);
        client.send_stream(stream, &head, false);
        let empty = client.stream_frame(stream, &[], false);
        flood(client, FRAMES, |_, _| packed(&empty));
    });
}

#[test]
fn requests_that_are_reset() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let head = client.stream_frame(stream, &get("/large"), false);
            let len = get("/large").len() as u64;
            [
                head,
                frame::reset_stream(stream, 0x10c, len),
                frame::stop_sending(stream, 0x10c),
            ]
            .concat()
        });
    });
}

#[test]
fn responses_that_are_stopped() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let head = client.stream_frame(stream, &get("/large"), true);
            [head, frame::stop_sending(stream, 0x10c)].concat()
        });
    });
}

#[test]
fn windows_that_trickle() {
    let options = Options {
        max_stream_data: 1,
        ..Options::default()
    };
    is_ended_with(
        options,
        |client| {
            let streams: Vec<u64> = (0..50)
                .map(|_| client.send_request(&get("/large")))
                .collect();
            flood(client, FRAMES, |_, n| {
                let window = 2 + u64::try_from(n).expect("the number fits into the type");
                let frames = streams
                    .iter()
                    .map(|stream| frame::max_stream_data(*stream, window));
                frames.collect::<Vec<_>>().concat()
            });
        },
        |close| matches!(close, Close::Application(EXCESSIVE_LOAD, _)),
        "connections.overdrawn",
    );
}

#[test]
fn pings() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |_, _| {
            packed(&[frame::ping(), frame::padding(1)].concat())
        })
    });
}

#[test]
fn padding() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        client.read(Duration::from_millis(50));
        let before = client.bytes_received;
        flood(&mut client, 3000, |_, _| frame::padding(1000));
        let answers = client.bytes_received - before;
        assert!(
            answers < client.bytes_sent / 20,
            "{answers} bytes of answers"
        );
        if client.closed.is_none() {
            assert_eq!(client.ask("/a.txt").status, 200);
        }
        vec![client]
    });
}

#[test]
fn path_challenges() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |_, n| {
            packed(&frame::path_challenge((n as u64).to_be_bytes()))
        });
    });
}

#[test]
fn migrations() {
    let server = start("", "");
    let (mut neighbour, _) = attack(&server, |port| {
        let mut client = Quic::open(port);
        for n in 0..300_u16 {
            let last = u8::try_from(1 + n % 250).expect("the number is at most 250");
            client.move_to([127, 0, 1, last]);
            client.send_once(&[frame::ping(), frame::padding(40)].concat());
            client.read(Duration::from_millis(5));
        }
        vec![client]
    });
    // The client cannot see the CONNECTION_CLOSE, which went to an address that it had left; the counter shows it.
    assert_eq!(counter(&mut neighbour, "connections.overdrawn"), 1);
}

/// Sends one packet of the client from each of 19 addresses that answer nothing, and checks that the server sends to each at most three
/// times the bytes that came from there.
fn paths_that_are_silent(client: &mut Quic, packet: impl Fn(u8, &mut Quic) -> Vec<u8>) {
    let mut paths: Vec<(UdpSocket, usize)> = Vec::new();
    for n in 1..20 {
        let packet = packet(n, client);
        let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 2, n], 0)))
            .expect("the kernel binds any address of 127.0.0.0/8");
        socket
            .set_nonblocking(true)
            .expect("the socket can be made non-blocking");
        let sent = socket
            .send_to(&packet, client.server)
            .expect("the packet is sent");
        client.bytes_sent += sent;
        paths.push((socket, sent));
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut received = vec![0; paths.len()];
    let quiet = Deadline::after_secs(2);
    while !quiet.has_passed() {
        std::thread::sleep(Duration::from_millis(5));
        for ((socket, _), received) in paths.iter().zip(&mut received) {
            while let Ok(len) = socket.recv(&mut [0; 65_536]) {
                *received += len;
            }
        }
    }
    for ((_, sent), received) in paths.iter().zip(&received) {
        assert!(*received <= 3 * sent, "{received} bytes for {sent}");
    }
    assert!(received.iter().any(|received| *received > 0));
}

#[test]
fn paths_that_nobody_confirms() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        let stream = client.send_request(&get("/large"));
        client.wait_for("content", |client| client.received(stream).len() > 10_000);
        paths_that_are_silent(&mut client, |n, client| {
            // Half of the packets carry a PATH_RESPONSE with invented data.
            let response = frame::path_response([n; 8]);
            let frames = if n % 2 == 0 { response } else { frame::ping() };
            client.packet(Header::Short(false), &[frames, frame::padding(40)].concat())
        });
        vec![client]
    });
}

#[test]
fn challenges_from_elsewhere() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        paths_that_are_silent(&mut client, |n, client| {
            // A packet with only PATH_CHALLENGE and PADDING does not migrate the connection. Half of the packets are so long that the
            // server may answer with a full-size PATH_RESPONSE.
            let padding = if n % 2 == 0 { 20 } else { 800 };
            let frames = [frame::path_challenge([n; 8]), frame::padding(padding)];
            client.packet(Header::Short(false), &frames.concat())
        });
        assert_eq!(client.ask("/a.txt").status, 200);
        vec![client]
    });
}

#[test]
fn key_updates() {
    is_overdrawn(|client| {
        for _ in 0..1000 {
            client.update_keys();
            client.send(&frame::ping());
            client.comes(CLOSES, Quic::is_acknowledged);
            if client.closed.is_some() {
                return;
            }
        }
    });
}

#[test]
fn key_updates_before_the_last_is_confirmed() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        flood(&mut client, 2000, |client, _| {
            client.update_keys();
            frame::ping()
        });
        vec![client]
    });
}

#[test]
fn new_connection_ids() {
    is_ended_with(
        Options::default(),
        |client| {
            flood(client, FRAMES, |_, n| {
                let frames = (1..30_u64).map(|each| {
                    let sequence = 29 * (n as u64) + each;
                    let mut id = [7; 8];
                    id[..4].copy_from_slice(&sequence.to_be_bytes()[4..]);
                    let mut token = [9; 16];
                    token[..8].copy_from_slice(&sequence.to_be_bytes());
                    frame::new_connection_id(sequence, sequence, &id, token)
                });
                frames.collect::<Vec<_>>().concat()
            });
        },
        |close| matches!(close, Close::Transport(0x09, _)),
        "http3-errors.transport",
    );
}

#[test]
fn retired_connection_ids() {
    is_overdrawn(|client| {
        for _ in 0..FRAMES {
            if client.closed.is_some() {
                return;
            }
            let mut given = std::mem::take(&mut client.ids);
            given.sort();
            // The client uses the newest connection id and retires all others.
            if let Some((_, newest)) = given.last() {
                client.destination.clone_from(newest);
            }
            let frames: Vec<Vec<u8>> = (given.iter())
                .take(given.len().saturating_sub(1))
                .map(|(sequence, _)| frame::retire_connection_id(*sequence))
                .collect();
            client.ids.extend(given.pop());
            client.send_once(&[frames.concat(), frame::ping()].concat());
            client.read(Duration::from_millis(3));
        }
    });
}

#[test]
fn optimistic_acknowledgments() {
    is_ended_with(
        Options::default(),
        |client| {
            let _ = client.send_request(&get("/large"));
            flood(client, 200, |_, n| {
                let until = 1000 * (n as u64 + 1);
                frame::ack(&[(0, until)])
            });
        },
        |close| matches!(close, Close::Transport(0x0a, _)),
        "http3-errors.transport",
    );
}

#[test]
fn acknowledgments_of_many_ranges() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        for _ in 0..600 {
            client.ask("/a.txt");
        }
        // The client acknowledges packets that it has acknowledged before.
        let numbers = client.received_numbers();
        let ranges: Vec<(u64, u64)> = (numbers.iter().step_by(2))
            .map(|number| (*number, *number))
            .collect();
        flood(&mut client, 2000, |_, _| {
            frame::ack(&ranges[..ranges.len().min(250)])
        });
        client.read(Duration::from_millis(100));
        assert_eq!(client.ask("/a.txt").status, 200);
        vec![client]
    });
}

#[test]
fn streams_with_gaps() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        let streams: Vec<u64> = (0..50).map(|_| client.next_request()).collect();
        // The client sends every third byte of each stream, from the end of the window to its beginning, so that the server can deliver
        // nothing.
        flood(&mut client, 4000, |_, n| {
            let stream = streams[n % 50];
            let at = 300_000 - 3 * 30 * (n as u64 / 50);
            let bytes = (0..30).map(|each| frame::stream(stream, at - 3 * each, b"x", false));
            bytes.collect::<Vec<_>>().concat()
        });
        vec![client]
    });
}

#[test]
fn blocked_frames() {
    is_overdrawn(|client| {
        let stream = client.send_request(&get("/large"));
        flood(client, FRAMES, |_, n| {
            packed(&frame::stream_data_blocked(stream, n as u64))
        });
    });
}

#[test]
fn datagrams_of_no_tunnel() {
    is_overdrawn(|client| {
        flood(client, 40_000, |_, _| {
            packed(&frame::datagram(&[varint(25), vec![1; 4]].concat()))
        });
    });
}
