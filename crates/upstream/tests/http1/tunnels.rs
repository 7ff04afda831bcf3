//! Tunnels over HTTP/1: after a 101 response, and by CONNECT.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use h2o_exchange::{Body, BodyPipe, BodySource, RequestBody};
use h2o_http::{BodyLength, Method};
use h2o_upstream::UpstreamSettings;

use crate::kit::{
    GET, LONG, OK, TestRequest, ask, backend, content, next, on_standing_clock, on_worker, pass,
    send, settings, until, upstream,
};

/// `SHORT` is a timeout, and `LATE` is how late it may fire.
const SHORT: Duration = Duration::from_millis(400);
const LATE: Duration = Duration::from_millis(200);

fn with_short_limit() -> UpstreamSettings {
    UpstreamSettings {
        io_timeout: SHORT,
        ..settings()
    }
}

fn asking_for(method: Method, upgrade: &'static str) -> (TestRequest, Rc<BodyPipe>) {
    let pipe = Rc::new(BodyPipe::default());
    let request = TestRequest {
        method,
        length: BodyLength::Tunnel,
        body: RequestBody::Stream(Rc::clone(&pipe)),
        upgrade,
        ..GET
    };
    (request, pipe)
}

fn stream(body: Body) -> Box<dyn BodySource> {
    match body {
        Body::Stream(source) => source,
        _ => panic!("the response that opens a tunnel is streamed"),
    }
}

#[test]
fn bytes_go_both_ways() {
    let cases = [
        (
            asking_for(Method::Get, "websocket"),
            "\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\nhello",
            101,
        ),
        (
            asking_for(Method::Connect, ""),
            "\r\nconnection: keep-alive\r\n\r\n",
            "HTTP/1.1 200 Connected\r\n\r\nhello",
            200,
        ),
    ];
    for ((request, pipe), end_of_head, answer, status) in cases {
        let (sender, rest) = mpsc::channel();
        let address = backend(move |_, mut peer| {
            let head = peer.head();
            assert!(head.ends_with(end_of_head), "{head}");
            peer.send(answer);
            assert_eq!(peer.read(5), b"early");
            peer.send("answer");
            sender.send(peer.rest()).unwrap();
        });
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            // Bytes that the client sends before the response are held back.
            pipe.push("early");
            let reply = send(&worker, &upstream, request).await.unwrap();
            assert!(reply.is_tunnel);
            assert_eq!(reply.status.as_u16(), status);
            let mut source = stream(reply.body);
            assert_eq!(next(&mut source).await.unwrap().unwrap(), "hello");
            assert_eq!(next(&mut source).await.unwrap().unwrap(), "answer");
            pipe.push("bye");
            pipe.finish(Ok(()));
            // After the end of the client's direction, the backend closes the connection, which ends the tunnel.
            assert_eq!(next(&mut source).await, None);
        });
        assert_eq!(rest.recv_timeout(LONG).unwrap(), b"bye");
    }
}

#[test]
fn the_end_of_the_backend_ends_the_tunnel() {
    let address = backend(|_, mut peer| {
        peer.head();
        peer.send("HTTP/1.1 101 x\r\n\r\nbye");
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = asking_for(Method::Get, "x");
        let reply = send(&worker, &upstream, request).await.unwrap();
        assert_eq!(content(reply.body).await, (b"bye".to_vec(), Ok(())));
        assert!(pipe.is_abandoned());
    });
}

#[test]
fn a_refused_tunnel_is_an_ordinary_response() {
    let address = backend(|_, mut peer| {
        peer.head();
        peer.send(OK);
        peer.rest();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = asking_for(Method::Get, "x");
        let reply = send(&worker, &upstream, request).await.unwrap();
        assert!(!reply.is_tunnel);
        assert_eq!(content(reply.body).await, (b"ok".to_vec(), Ok(())));
        assert!(pipe.is_abandoned());
    });
}

#[test]
fn a_request_for_a_tunnel_is_sent_again_if_its_connection_is_closed_at_the_same_moment() {
    // Each case: the method, the upgrade token, and the status of the result.
    let cases = [
        (Method::Get, "websocket", Ok(101)),
        (Method::Post, "x", Err("I/O error".into())),
        (Method::Connect, "", Err("I/O error".into())),
    ];
    for (method, upgrade, want) in cases {
        let address = backend(|index, mut peer| {
            peer.head();
            if index > 0 {
                peer.send("HTTP/1.1 101 x\r\n\r\n");
                let early = peer.read(5);
                peer.send(early);
                return;
            }
            peer.send(OK);
            // The backend closes the connection as if it had done so just before this request.
            peer.head();
        });
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
            let (request, pipe) = asking_for(method.clone(), upgrade);
            // Bytes that the client sends before the response are not lost either.
            pipe.push("early");
            let reply = send(&worker, &upstream, request).await;
            let got = reply.map(|reply| (reply.status.as_u16(), reply.body));
            let status = got.as_ref().map(|(status, _)| *status);
            assert_eq!(
                status.map_err(|failure| failure.text.clone()),
                want,
                "{method:?}"
            );
            if let Ok((_, body)) = got {
                assert_eq!(content(body).await, (b"early".to_vec(), Ok(())));
                assert_eq!(pipe.kept(), 0, "copies of the tunnel's bytes are kept");
            }
        });
    }
}

#[test]
fn a_tunnel_without_traffic_is_closed() {
    let (go, wait) = mpsc::channel();
    let (sender, is_sent) = mpsc::channel();
    let wait = Mutex::new(wait);
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send("HTTP/1.1 101 x\r\n\r\n");
        for () in wait.lock().unwrap().iter().take(3) {
            peer.send("x");
            sender.send(()).unwrap();
        }
        peer.rest();
    });
    on_standing_clock(|worker| async move {
        let upstream = upstream(&[address], with_short_limit());
        let (request, _pipe) = asking_for(Method::Get, "x");
        let reply = send(&worker, &upstream, request).await.unwrap();
        let reading = tokio::task::spawn_local(content(reply.body));
        for _ in 0..3 {
            pass(SHORT - Duration::from_millis(50)).await;
            go.send(()).unwrap();
            until(|| is_sent.try_recv().ok()).await;
        }
        pass(SHORT - Duration::from_millis(50)).await;
        assert!(!reading.is_finished(), "the timeout fires too early");
        pass(LATE).await;
        assert!(reading.is_finished(), "the timeout does not fire");
        let (got, end) = reading.await.unwrap();
        assert_eq!((&*got, end), (&b"xxx"[..], Err("I/O timeout".to_string())));
    });
}

#[test]
fn what_the_client_sends_arrives_though_it_takes_nothing() {
    const PIECES: usize = 100;
    let (sender, rest) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send("HTTP/1.1 101 x\r\n\r\n");
        peer.send(vec![b'x'; 100_000]);
        sender.send(peer.read(PIECES * 10_000)).unwrap();
        peer.rest();
    });
    on_standing_clock(|worker| async move {
        let upstream = upstream(&[address], with_short_limit());
        let (request, pipe) = asking_for(Method::Get, "x");
        let reply = send(&worker, &upstream, request).await.unwrap();
        let mut source = stream(reply.body);
        assert!(next(&mut source).await.unwrap().is_ok());
        // The client does not read from the tunnel.
        for _ in 0..PIECES {
            poll_fn(|context| pipe.poll_room(context)).await;
            pipe.push([b'y'; 10_000]);
        }
        until(|| rest.try_recv().ok()).await;
        assert_eq!(pipe.given_up(), None);
        pass(SHORT + LATE).await;
        assert_eq!(pipe.given_up(), Some("I/O timeout"));
    });
}
