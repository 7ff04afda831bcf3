//! Timeouts of HTTP/1 requests to backends.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use h2o_exchange::{BodyPipe, RequestBody};
use h2o_http::{BodyLength, Method};
use h2o_upstream::UpstreamSettings;

use crate::kit::{
    GET, Peer, TestRequest, ask, backend, on_standing_clock, pass, post, settings, until, upstream,
};

const SHORT: Duration = Duration::from_millis(300);

/// Settings in which only the timeout under test is short.
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

/// How late a timeout may fire in these tests.
const LATE: Duration = Duration::from_millis(200);

/// The result of a request to a backend that runs `script` and then does nothing more.
fn outcome(settings: UpstreamSettings, request: TestRequest, script: fn(&mut Peer)) -> String {
    let (sender, is_done) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        script(&mut peer);
        sender.send(()).unwrap();
        peer.rest();
    });
    timed(address, settings, request, || is_done.try_recv().ok())
}

/// Returns the result of a request whose timeout starts when the backend has run its script, after checking that the timeout fires
/// in time.
fn timed(
    address: SocketAddr,
    settings: UpstreamSettings,
    request: TestRequest,
    is_done: impl FnMut() -> Option<()>,
) -> String {
    on_standing_clock(|worker| async move {
        let upstream = upstream(&[address], settings);
        let asking =
            tokio::task::spawn_local(async move { ask(&worker, &upstream, request).await });
        until(is_done).await;
        pass(SHORT - Duration::from_millis(1)).await;
        assert!(!asking.is_finished(), "the timeout fires too early");
        pass(LATE).await;
        assert!(asking.is_finished(), "the timeout does not fire");
        asking.await.unwrap()
    })
}

#[test]
fn every_phase_has_its_limit() {
    type Case = (
        &'static str,
        fn() -> TestRequest,
        fn(&mut Peer),
        &'static str,
    );
    let waiting = || TestRequest {
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
    let request = post(vec![0; 64 << 20]);
    let (sender, has_begun) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        sender.send(()).unwrap();
        std::thread::park();
    });
    let got = timed(address, with("io"), request, || has_begun.try_recv().ok());
    assert_eq!(got, "I/O timeout");
}

#[test]
fn going_forward_begins_a_limit_anew() {
    const PIECES: [&str; 5] = [
        "HTTP/1.1 200 OK\r\n",
        "content-length: 3\r\n\r\n",
        "a",
        "b",
        "c",
    ];
    let (go, wait) = mpsc::channel();
    let (sender, is_sent) = mpsc::channel();
    let wait = Mutex::new(wait);
    let address = backend(move |_, mut peer| {
        peer.head();
        sender.send(()).unwrap();
        for piece in PIECES {
            wait.lock().unwrap().recv().unwrap();
            peer.send(piece);
            sender.send(()).unwrap();
        }
    });
    let outcome = on_standing_clock(|worker| async move {
        let upstream = upstream(&[address], with("io"));
        let asking = tokio::task::spawn_local(async move { ask(&worker, &upstream, GET).await });
        until(|| is_sent.try_recv().ok()).await;
        for _ in PIECES {
            pass(SHORT - Duration::from_millis(50)).await;
            go.send(()).unwrap();
            until(|| is_sent.try_recv().ok()).await;
        }
        asking.await.unwrap()
    });
    assert_eq!(outcome, "200 abc");
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
    let outcome = on_standing_clock(|worker| async move {
        let upstream = upstream(&[address], settings);
        let pipe = Rc::new(BodyPipe::default());
        let request = TestRequest {
            method: Method::Post,
            length: BodyLength::Known(2),
            body: RequestBody::Stream(Rc::clone(&pipe)),
            waits_for_content: true,
            ..GET
        };
        pipe.push("o");
        tokio::task::spawn_local(async move {
            pass(SHORT * 3).await;
            pipe.push("k");
            pipe.finish(Ok(()));
        });
        ask(&worker, &upstream, request).await
    });
    assert_eq!(outcome, "200 ok");
}

#[test]
fn connecting_is_limited() {
    // A listener whose accept queue is full does not complete the connection.
    let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, SHORT) {
        waiting.push(stream);
        assert!(
            waiting.len() < 100,
            "the accept queue of the listener never fills"
        );
    }
    let got = timed(address, with("connect"), GET, || Some(()));
    assert_eq!(got, "connection timeout");
}
