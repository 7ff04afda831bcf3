//! How long what may last.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::{BodyPipe, RequestBody};
use h2o_http::{BodyLength, Method};
use h2o_upstream::UpstreamSettings;

use crate::kit::{Ask, GET, Peer, ask, backend, on_worker, post, settings, upstream};

const SHORT: Duration = Duration::from_millis(300);

/// The limit that a case is about is short, all others are long.
fn with(limit: &str) -> UpstreamSettings {
    let mut settings = settings();
    match limit {
        "io" => settings.io_timeout = SHORT,
        "first byte" => settings.first_byte_timeout = SHORT,
        "connect" => settings.connect_timeout = SHORT,
        _ => panic!("{limit}"),
    }
    settings
}

/// What comes of a request to a backend that does this and then nothing.
fn outcome(settings: UpstreamSettings, request: Ask, script: fn(&mut Peer)) -> String {
    let address = backend(move |_, mut peer| {
        script(&mut peer);
        peer.rest();
    });
    timed(address, settings, request)
}

fn timed(address: SocketAddr, settings: UpstreamSettings, request: Ask) -> String {
    let begun = Instant::now();
    let outcome = on_worker(|worker| async move {
        let upstream = upstream(&[address], settings);
        ask(&worker, &upstream, request).await
    });
    let took = begun.elapsed();
    assert!(took >= SHORT, "{outcome} after {took:?}");
    assert!(took < SHORT * 8, "{outcome} after {took:?}");
    outcome
}

#[test]
fn every_phase_has_its_limit() {
    type Case = (&'static str, fn() -> Ask, fn(&mut Peer), &'static str);
    let waiting = || Ask {
        expects_continue: true,
        ..post("content")
    };
    let cases: &[Case] = &[
        ("first byte", || GET, |_| {}, "first byte timeout"),
        ("first byte", waiting, |_| {}, "first byte timeout"),
        ("io", || GET, |peer| peer.send("HTTP/1.1 2"), "I/O timeout"),
        (
            "io",
            || GET,
            |peer| peer.send("HTTP/1.1 103 x\r\n\r\n"),
            "I/O timeout",
        ),
        (
            "io",
            || GET,
            |peer| peer.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"),
            "200 ab!I/O timeout",
        ),
    ];
    for (limit, request, script, want) in cases {
        assert_eq!(outcome(with(limit), request(), *script), *want, "{limit}");
    }
}

#[test]
fn a_backend_that_takes_no_content_is_limited() {
    let address = backend(|_, mut peer| {
        peer.head();
        std::thread::sleep(SHORT * 10);
    });
    let request = post(vec![0; 64 << 20]);
    assert_eq!(timed(address, with("io"), request), "I/O timeout");
}

#[test]
fn going_forward_begins_a_limit_anew() {
    let address = backend(|_, mut peer| {
        peer.head();
        for piece in [
            "HTTP/1.1 200 OK\r\n",
            "content-length: 3\r\n\r\n",
            "a",
            "b",
            "c",
        ] {
            std::thread::sleep(SHORT / 2);
            peer.send(piece);
        }
    });
    assert_eq!(timed(address, with("io"), GET), "200 abc");
}

#[test]
fn the_client_has_its_own_time() {
    let address = backend(|_, mut peer| {
        peer.head();
        peer.read(2);
        peer.send(crate::kit::OK);
    });
    let mut settings = with("io");
    settings.first_byte_timeout = SHORT;
    let outcome = on_worker(|worker| async move {
        let upstream = upstream(&[address], settings);
        let pipe = Rc::new(BodyPipe::default());
        let request = Ask {
            method: Method::Post,
            length: BodyLength::Known(2),
            body: RequestBody::Stream(Rc::clone(&pipe)),
            waits_for_content: true,
            ..GET
        };
        pipe.push("o");
        tokio::task::spawn_local(async move {
            tokio::time::sleep(SHORT * 3).await;
            pipe.push("k");
            pipe.finish(Ok(()));
        });
        ask(&worker, &upstream, request).await
    });
    assert_eq!(outcome, "200 ok");
}

#[test]
fn connecting_is_limited() {
    // A listener whose queue is full does not answer.
    let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, SHORT) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the queue never fills");
    }
    assert_eq!(timed(address, with("connect"), GET), "connection timeout");
}
