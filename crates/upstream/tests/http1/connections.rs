//! Which HTTP/1 connection a request uses.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use h2o_exchange::{Body, BodyPipe, RequestBody, Trace};
use h2o_http::Method;
use h2o_upstream::{Balancing, FailureCause, UpstreamSettings};

use crate::kit::{
    GET, OK, TestRequest, answering, ask, backend, balanced, next, on_standing_clock, on_worker,
    pass, post, send, settings, settle, until, upstream,
};

/// The numbers of the connections over which consecutive requests were sent.
fn used(answer: &str, settings: UpstreamSettings, requests: usize) -> Vec<usize> {
    let (address, heads) = answering(answer);
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings);
        for _ in 0..requests {
            ask(&worker, &upstream, GET).await;
            settle().await;
        }
    });
    heads.try_iter().map(|(index, _)| index).collect()
}

#[test]
fn connections_are_used_again_if_both_sides_want_that() {
    let with = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\nok");
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let kept = [
        OK.to_string(),
        with("connection: keep-alive\r\n"),
        with("connection: x, Keep-Alive\r\n"),
        chunked.to_string(),
        with("")
            .replace("1.1", "1.0")
            .replace("con", "connection: keep-alive\r\ncon"),
        "HTTP/1.1 204 No Content\r\n\r\n".to_string(),
    ];
    for answer in kept {
        assert_eq!(used(&answer, settings(), 3), [0, 0, 0], "{answer}");
    }
    let left = [
        with("connection: close\r\n"),
        with("connection: x\r\n"),
        with("").replace("1.1", "1.0"),
        // Bytes follow the body: the next request on the connection would take them for its response.
        with("") + "HTTP/1.1 200 OK\r\n\r\n",
        chunked.to_string() + "x",
        "HTTP/1.1 204 No Content\r\ncontent-length: 1\r\n\r\nx".to_string(),
    ];
    for answer in left {
        assert_eq!(used(&answer, settings(), 3), [0, 1, 2], "{answer}");
    }
}

#[test]
fn who_takes_all_of_an_announced_length_and_does_not_ask_for_the_end_leaves_the_connection() {
    let (sender, used) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let address = backend(move |index, mut peer| {
        while !peer.head().is_empty() {
            sender.send(index).unwrap();
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
            wait.lock().unwrap().recv().unwrap();
            peer.send("ok");
        }
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        for _ in 0..2 {
            let trace = Rc::new(Trace::default());
            let request = TestRequest {
                trace: Some(Rc::clone(&trace)),
                ..GET
            };
            let reply = send(&worker, &upstream, request).await.unwrap();
            let Body::Stream(mut source) = reply.body else {
                panic!("content that arrives late is streamed")
            };
            go.send(()).unwrap();
            assert_eq!(next(&mut source).await.unwrap().unwrap(), "ok");
            assert!(trace.response_ended.get().is_some());
        }
    });
    assert_eq!(used.try_iter().collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn without_keep_alive_every_request_has_its_connection() {
    let (address, heads) = answering(OK);
    on_worker(|worker| async move {
        let settings = UpstreamSettings {
            keepalive: Duration::ZERO,
            ..settings()
        };
        let upstream = upstream(&[address], settings);
        for _ in 0..2 {
            assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
        }
    });
    let heads: Vec<_> = heads.try_iter().collect();
    assert_eq!(
        heads.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [0, 1]
    );
    assert!(
        heads[0].1.contains("\r\nconnection: close\r\n"),
        "{heads:?}"
    );
}

#[test]
fn idle_connections_are_closed_in_time() {
    let (sender, ended) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send(OK);
        peer.rest();
        sender.send(()).unwrap();
    });
    on_standing_clock(|worker| async move {
        let settings = UpstreamSettings {
            keepalive: Duration::from_millis(300),
            ..settings()
        };
        let upstream = upstream(&[address], settings);
        assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
        pass(Duration::from_millis(100)).await;
        assert!(
            ended.try_recv().is_err(),
            "the connection was idle for 100 ms only, so it is kept"
        );
        // The sweep of idle connections runs about a second later.
        pass(Duration::from_secs(2)).await;
        until(|| ended.try_recv().ok()).await;
    });
}

#[test]
fn connections_closed_or_spoilt_while_idle_are_not_used() {
    for spoil in ["", "HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let (go, wait) = mpsc::channel();
        let (sender, is_spoilt) = mpsc::channel();
        let wait = Mutex::new(wait);
        let address = backend(move |index, mut peer| {
            while !peer.head().is_empty() {
                peer.send(OK);
                if index == 0 {
                    wait.lock().unwrap().recv().unwrap();
                    peer.send(spoil);
                    peer.0.shutdown(Shutdown::Both).unwrap();
                    sender.send(()).unwrap();
                    return;
                }
            }
        });
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
            go.send(()).unwrap();
            until(|| is_spoilt.try_recv().ok()).await;
            settle().await;
            let request = TestRequest {
                method: Method::Post,
                ..GET
            };
            assert_eq!(
                ask(&worker, &upstream, request).await,
                "200 ok",
                "{spoil:?}"
            );
        });
    }
}

/// A backend that answers the first request of a connection, and closes the connection when the second request arrives, as if it
/// had closed it just before.
fn closing_at_the_second() -> (std::net::SocketAddr, mpsc::Receiver<usize>) {
    let (sender, heads) = mpsc::channel();
    let address = backend(move |index, mut peer| {
        peer.head();
        sender.send(index).unwrap();
        peer.send(OK);
        // Only text with the end of a head counts as a request: here the backend may read the body of the first request instead.
        if peer.head().ends_with("\r\n\r\n") {
            sender.send(index).unwrap();
        }
    });
    (address, heads)
}

#[test]
fn a_connection_closed_at_the_same_moment_is_made_up_for_once() {
    let put = || TestRequest {
        method: Method::Put,
        ..post("content")
    };
    let streamed = |is_kept: bool| {
        let pipe = BodyPipe::default();
        if is_kept {
            pipe.keep();
        }
        pipe.push("content");
        pipe.finish(Ok(()));
        TestRequest {
            body: RequestBody::Stream(Rc::new(pipe)),
            ..put()
        }
    };
    // Each case: the request, its result, and the connections of all requests.
    let cases: [(TestRequest, &str, &[usize]); 5] = [
        (GET, "200 ok", &[0, 0, 1]),
        (put(), "200 ok", &[0, 0, 1]),
        (post("content"), "I/O error", &[0, 0]),
        (streamed(true), "200 ok", &[0, 0, 1]),
        (streamed(false), "I/O error", &[0, 0]),
    ];
    for (request, want, connections) in cases {
        let (address, heads) = closing_at_the_second();
        let method = request.method.clone();
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
            assert_eq!(ask(&worker, &upstream, request).await, want, "{method:?}");
        });
        assert_eq!(heads.try_iter().collect::<Vec<_>>(), connections);
    }
}

#[test]
fn a_new_connection_that_is_closed_is_not_made_up_for() {
    let (sender, heads) = mpsc::channel();
    let address = backend(move |index, mut peer| {
        peer.head();
        sender.send(index).unwrap();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        assert_eq!(ask(&worker, &upstream, GET).await, "I/O error");
    });
    assert_eq!(heads.try_iter().collect::<Vec<_>>(), [0]);
}

#[test]
fn requests_take_turns_whatever_connections_are_kept() {
    let names = ["a", "b"].map(|name| {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{name}");
        answering(answer)
    });
    let urls = [0, 1].map(|index| format!("http://{}", names[index].0));
    on_worker(|worker| async move {
        let urls = [(&*urls[0], 2), (&*urls[1], 1)];
        for keepalive in [Duration::ZERO, settings().keepalive] {
            let settings = UpstreamSettings {
                keepalive,
                ..settings()
            };
            let upstream = balanced(&urls, Balancing::RoundRobin, settings);
            let mut order = String::new();
            for _ in 0..9 {
                order += &ask(&worker, &upstream, GET).await[4..];
            }
            assert_eq!(order, "aabaabaab", "{keepalive:?}");
        }
    });
    let used = names.map(|(_, heads)| heads.try_iter().last().unwrap().0 + 1);
    assert_eq!(used, [6 + 1, 3 + 1], "connections");
}

/// A listener whose accept queue is full, so that further connections stay pending.
fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
    }
    (listener, waiting)
}

#[test]
fn a_backend_that_takes_no_connection_does_not_hold_up_every_second_request() {
    let (full, _waiting) = full_listener();
    let (up, _heads) = answering(OK);
    let urls = [full.local_addr().unwrap(), up].map(|address| format!("http://{address}"));
    on_standing_clock(|worker| async move {
        let urls = [(&*urls[0], 1), (&*urls[1], 1)];
        let upstream = balanced(&urls, Balancing::RoundRobin, settings());
        let (first_worker, first) = (Rc::clone(&worker), Arc::clone(&upstream));
        let first = tokio::task::spawn_local(async move { ask(&first_worker, &first, GET).await });
        // After this time, the attempt to connect counts as slow.
        pass(Duration::from_millis(200)).await;
        for _ in 0..6 {
            assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
        }
        assert!(
            !first.is_finished(),
            "the slow attempt to connect has ended"
        );
    });
}

#[test]
fn the_least_busy_backend_gets_the_next_connection() {
    // The response does not end before the client disconnects.
    let script = |_, mut peer: crate::kit::Peer| {
        peer.head();
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        peer.rest();
    };
    let urls = [backend(script), backend(script)].map(|at| format!("http://{at}"));
    on_worker(|worker| async move {
        let urls = [(&*urls[0], 1), (&*urls[1], 2)];
        let upstream = balanced(&urls, Balancing::LeastConn, settings());
        let mut replies = Vec::new();
        for want in [0, 1, 1, 0] {
            let reply = send(&worker, &upstream, GET).await.unwrap();
            assert_eq!(
                reply.backend,
                want,
                "backend chosen with {} responses in use",
                replies.len()
            );
            replies.push(reply);
        }
        // Both requests to the second backend are dropped, so they end.
        replies.retain(|reply| reply.backend == 0);
        assert_eq!(send(&worker, &upstream, GET).await.unwrap().backend, 1);
    });
}

/// The URL of an address without a listener.
fn unused() -> String {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    format!("http://{}", address.unwrap())
}

#[test]
fn a_backend_that_cannot_be_connected_to_is_passed_over() {
    let (up, _heads) = answering(OK);
    let (down, up) = (unused(), format!("http://{up}"));
    on_worker(|worker| async move {
        for balancing in [Balancing::RoundRobin, Balancing::LeastConn] {
            let urls = [(&*down, 1), ("http://[unix:/nowhere.sock]", 1), (&*up, 1)];
            let upstream = balanced(&urls, balancing, settings());
            for _ in 0..2 {
                assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
            }
        }
    });
}

#[test]
fn the_last_error_is_told_when_no_backend_is_left() {
    let cases: &[(&[&str], &str)] = &[
        (&["down"], "connection refused"),
        (&["unix", "down"], "connection refused"),
        (&["down", "unix"], "connection failure"),
    ];
    on_worker(|worker| async move {
        for (backends, want) in cases {
            let down = unused();
            let urls: Vec<_> = (backends.iter())
                .map(|backend| match *backend {
                    "down" => (&*down, 1),
                    _ => ("http://[unix:/nowhere.sock]", 1),
                })
                .collect();
            let upstream = balanced(&urls, Balancing::RoundRobin, settings());
            let failure = send(&worker, &upstream, GET).await.err().unwrap();
            assert_eq!(failure.text, *want, "{backends:?}");
            assert_eq!(failure.cause, FailureCause::NotConnected);
        }
    });
}

#[test]
fn unix_sockets_and_names_are_connected_to() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("Backend.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(OK.as_bytes()).unwrap();
        }
    });
    let (address, _heads) = answering(OK);
    on_worker(|worker| async move {
        let unix = format!("http://[unix:{}]/", path.display());
        let name = format!("http://localhost:{}/", address.port());
        for url in [unix, name] {
            let upstream = balanced(&[(&url, 1)], Balancing::RoundRobin, settings());
            // `localhost` may have an IPv6 address, on which no backend listens.
            let mut got = ask(&worker, &upstream, GET).await;
            for _ in 0..50 {
                if got == "connection refused" {
                    got = ask(&worker, &upstream, GET).await;
                }
            }
            assert_eq!(got, "200 ok", "{url}");
        }
    });
}

#[test]
fn who_goes_away_takes_the_connection_along() {
    let (sender, ended) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        sender.send(peer.rest()).unwrap();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let reply = send(&worker, &upstream, GET).await.unwrap();
        drop(reply);
    });
    let rest = ended.recv_timeout(crate::kit::LONG).unwrap();
    assert_eq!(rest, b"");
}
