//! Attacks by responses that are not read, and by tunnels.

use std::net::TcpListener;
use std::time::Duration;

use h2o_tests::Deadline;
use h2o_tests::http3::{Frame, encode};
use h2o_tests::quic::{Options, Quic, frame, get};

use crate::{FRAMES, attack, flood, is_overdrawn, start};

#[test]
fn a_hundred_responses_nobody_reads() {
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let mut client = Quic::open_with(
            port,
            Options {
                max_stream_data: 1000,
                ..Options::default()
            },
        );
        let streams: Vec<u64> = (0..100)
            .map(|_| client.send_request(&get("/large")))
            .collect();
        client.wait_for("as much of every response as the windows allow", |client| {
            streams
                .iter()
                .all(|stream| client.received(*stream).len() == 1000)
        });
        vec![client]
    });
    assert_eq!(clients[0].closed, None);
}

#[test]
fn a_hundred_responses_read_slowly() {
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let options = Options {
            max_stream_data: 1000,
            ..Options::default()
        };
        let mut client = Quic::open_with(port, options);
        let streams: Vec<u64> = (0..100)
            .map(|_| client.send_request(&get("/large")))
            .collect();
        for window in [1000, 2500, 4000] {
            for stream in &streams {
                client.send(&frame::max_stream_data(*stream, window));
            }
            client.wait_for("as much of every response as the windows allow", |client| {
                let window = usize::try_from(window).expect("the number fits into the type");
                streams
                    .iter()
                    .all(|stream| client.received(*stream).len() == window)
            });
        }
        vec![client]
    });
    assert_eq!(clients[0].closed, None);
}

#[test]
fn responses_nobody_acknowledges() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        client.acknowledges = false;
        for _ in 0..100 {
            let frame = {
                let stream = client.next_request();
                client.stream_frame(stream, &get("/large"), true)
            };
            client.send_once(&frame);
        }
        let quiet = Deadline::after_secs(2);
        while !quiet.has_passed() {
            client.receive_only(Duration::from_millis(50));
        }
        vec![client]
    });
}

/// The head of a CONNECT request for a tunnel to this port of 127.0.0.1.
fn connect(port: u16) -> Vec<u8> {
    let authority = format!("127.0.0.1:{port}");
    Frame::headers(encode(&[
        (":method", "CONNECT"),
        (":authority", &authority),
    ]))
    .bytes()
}

#[test]
fn tunnels_that_are_reset() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = target.local_addr().expect("the socket is bound").port();
    let head = connect(port);
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let open = client.stream_frame(stream, &head, false);
            let len = head.len() as u64;
            [
                open,
                frame::reset_stream(stream, 0x10c, len),
                frame::stop_sending(stream, 0x10c),
            ]
            .concat()
        });
    });
}

#[test]
fn tunnels_that_are_silent() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let head = connect(target.local_addr().expect("the socket is bound").port());
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let mut client = Quic::open_with(
            port,
            Options {
                max_stream_data: 4000,
                ..Options::default()
            },
        );
        for _ in 0..100 {
            let stream = client.next_request();
            client.send_stream(stream, &head, false);
            client.wait_for("the head of the response", |client| {
                client.answer(stream).is_some()
            });
            assert_eq!(
                client.answer(stream).expect("the response has come").status,
                200
            );
        }
        vec![client]
    });
    assert_eq!(clients[0].closed, None);
}
