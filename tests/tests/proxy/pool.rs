//! Which connection to a backend a request uses, and which connections must not be used again.

use std::net::Shutdown;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use h2o_tests::http2::{Frame, Http2, encode, flag, get};
use h2o_tests::{Backend, ClosedPort, FINE, Server, Setup, Talk, eventually};

use super::http2_upstream::Frames;
use super::kit::{config, proxy};

/// A backend whose first response is `first`; then `after` runs on that connection, and all further requests are answered well.
fn after_first(first: &'static str, after: fn(&mut Talk)) -> Backend {
    Backend::start(move |talk| {
        if talk.read_request().is_none() {
            return;
        }
        if talk.number == 0 {
            talk.send(first);
            after(talk);
        } else {
            talk.send(FINE);
        }
        while talk.read_request().is_some() {
            talk.send(FINE);
        }
    })
}

fn nothing(_: &mut Talk) {}

/// Sends two requests. Returns the number of connections that the server opened to the backend for them.
fn connections_of_two(server: &Server, backend: &Backend) -> usize {
    for number in 0..2 {
        let response = server.ask("GET /");
        assert_eq!(response.code(), 200, "request {number}: {response}");
    }
    backend.connections()
}

#[test]
fn connections_are_used_again_where_both_sides_may() {
    for (first, want) in [
        (FINE, 1),
        (
            "HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 4\r\n\r\nfine",
            1,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
            1,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\nx: y\r\n\r\n",
            1,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1),
        (
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 4\r\n\r\nfine",
            1,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nfine", 2),
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nfine",
            2,
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: foo\r\ncontent-length: 4\r\n\r\nfine",
            2,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine!", 2),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfineHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            2,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\nX",
            2,
        ),
    ] {
        let backend = after_first(first, nothing);
        let server = proxy("", &backend);
        assert_eq!(connections_of_two(&server, &backend), want, "{first}");
    }
    let backend = after_first(FINE, nothing);
    let server = proxy("proxy.timeout.keepalive: 0", &backend);
    assert_eq!(connections_of_two(&server, &backend), 2);
}

#[test]
fn what_comes_between_two_requests_is_nobodys_answer() {
    for (name, leftover) in [
        (
            "a second response",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        ),
        ("one byte", "X"),
        ("a line end", "\r\n"),
    ] {
        let (told, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let (sent, has_come) = std::sync::mpsc::channel::<()>();
        let backend = Backend::start(move |talk| {
            while talk.read_request().is_some() {
                talk.send(FINE);
                if talk.number == 0 {
                    // The proxy has passed on the complete response, and keeps the connection.
                    let _ = wait.lock().unwrap().recv();
                    talk.send(leftover);
                    sent.send(()).unwrap();
                }
            }
        });
        let server = proxy("proxy.timeout.keepalive: 60000", &backend);
        server.ask("GET /1").must_be("200 OK\n\nfine");
        told.send(()).unwrap();
        drop(told);
        // The proxy's kernel has received the bytes, because bytes on loopback arrive at once.
        has_come.recv_timeout(Duration::from_secs(20)).unwrap();
        server.ask("GET /2").must_be("200 OK\n\nfine");
        assert_eq!(backend.connections(), 2, "{name}");
        let line = "unexpectedly received data to a pooled socket (see issue #679)";
        server.wait_for_message(line);
    }
}

#[test]
fn content_after_head_does_not_become_the_next_answer() {
    let first = "HTTP/1.1 200 OK\r\ncontent-length: 46\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
    let backend = after_first(first, nothing);
    let server = proxy("", &backend);
    server.ask("HEAD /").must_be("200 OK\ncontent-length: 46");
    server.ask("GET /").must_be("200 OK\n\nfine");
}

#[test]
fn a_connection_that_the_back_end_has_closed_is_replaced() {
    let (closed, has_closed) = std::sync::mpsc::channel();
    let backend = Backend::start(move |talk| {
        let _ = talk.read_request();
        talk.send(FINE);
        talk.stream().shutdown(Shutdown::Both).unwrap();
        closed.send(()).unwrap();
    });
    let server = proxy("proxy.timeout.keepalive: 60000", &backend);
    for _ in 0..3 {
        server.ask("GET /").must_be("200 OK\n\nfine");
        // The proxy's kernel knows that the backend has closed, because segments on loopback arrive at once.
        has_closed.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    assert_eq!(backend.connections(), 3);
    let line = "detected close by upstream before the expected timeout (see issue #679)";
    server.wait_for_message(line);
}

#[test]
fn an_idle_connection_is_closed_when_its_time_is_over() {
    let backend = Backend::answering(FINE);
    let server = proxy("proxy.timeout.keepalive: 300", &backend);
    assert_eq!(connections_of_two(&server, &backend), 1);
    backend.wait_for_ended(1);
    server.ask("GET /").must_be("200 OK\n\nfine");
    assert_eq!(backend.connections(), 2);
}

#[test]
fn requests_side_by_side_have_connections_of_their_own() {
    let pair = Barrier::new(2);
    let backend = Backend::start(move |talk| {
        while let Some(request) = talk.read_request() {
            let target = request.target();
            if target != "/again" {
                // The backend answers only when a second request has come on another connection.
                pair.wait();
            }
            talk.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}",
                target.len()
            ));
        }
    });
    let server = proxy("", &backend);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let response = server.ask(&format!("GET /{number}"));
                response.must_be(&format!("200 OK\n\n/{number}"));
            });
        }
    });
    let connections = backend.connections();
    assert!((2..=8).contains(&connections), "{connections}");
    server.ask("GET /again").must_be("200 OK\n\n/again");
    assert_eq!(backend.connections(), connections);
}

#[test]
fn an_upload_that_is_answered_early_ends_its_connection() {
    let backend = Backend::start(|talk| {
        let Some(request) = talk.read_head() else {
            return;
        };
        talk.send(FINE);
        if request.target() == "/upload" {
            return talk.read_to_end();
        }
        while talk.read_request().is_some() {
            talk.send(FINE);
        }
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    client.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    client.read_response("POST").must_be("200 OK\n\nfine");
    server.ask("GET /").must_be("200 OK\n\nfine");
    assert_eq!(
        backend.connections(),
        2,
        "the second request used the connection whose request is not complete"
    );
    let received = backend.received(0);
    assert!(received.ends_with(b"hello"), "{}", received.escape_ascii());
}

/// The backend may take the rest of the content, which follows its answer, for the next request.
#[test]
fn a_connection_whose_upload_was_answered_early_gets_no_other_request() {
    let backend = Backend::start(|talk| {
        while let Some(request) = talk.read_head() {
            talk.send(FINE);
            if request.target() == "/upload" {
                return talk.read_to_end();
            }
        }
    });
    let server = proxy("", &backend);
    let cases = [
        ("Content-Length: 5", "he", "llo"),
        (
            "Transfer-Encoding: chunked",
            "2\r\nhe\r\n",
            "3\r\nllo\r\n0\r\n\r\n",
        ),
    ];
    for (number, (framing, begin, rest)) in cases.into_iter().enumerate() {
        let mut client = server.connect();
        client.send(format!(
            "POST /upload HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{begin}"
        ));
        client.read_until(b"fine");
        client.send(rest);
        eventually("the whole content at the backend", || {
            let received = backend.received(number);
            received.ends_with(rest.as_bytes()).then_some(())
        });
        server.ask("GET /next").must_be("200 OK\n\nfine");
        assert_eq!(backend.connections(), number + 2, "{framing}");
    }
}

/// Starts a server in front of several backends; `value` is the value of `proxy.reverse.url`.
fn balanced(settings: &str, value: &str) -> Server {
    Setup::new(&config(settings, "X").replace("'X'", value)).start()
}

fn named(name: &'static str) -> Backend {
    Backend::by_request(move |_| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}",
            name.len()
        )
    })
}

#[test]
fn kept_connections_do_not_keep_back_ends_from_their_turn() {
    for (settings, connections) in [("", 1), ("proxy.timeout.keepalive: 0", 9)] {
        let (a, b, c) = (named("a"), named("b"), named("c"));
        let (a_url, b_url, c_url) = (a.url("/"), b.url("/"), c.url("/"));
        let mut most = 0;
        for (value, want) in [
            (format!("['{a_url}', '{b_url}', '{c_url}']"), "abcabcabc"),
            (
                format!(
                    "[{{ url: '{a_url}', weight: 2 }}, '{b_url}', {{ url: '{c_url}', weight: 3 }}]"
                ),
                "aabcccaab",
            ),
            (
                format!("{{ balancer: round-robin, backends: ['{b_url}', '{a_url}'] }}"),
                "babababab",
            ),
            (
                // With `least-conn` no request is in progress when the next one comes, so the first backend gets all.
                format!("{{ balancer: least-conn, backends: ['{b_url}', '{a_url}'] }}"),
                "bbbbbbbbb",
            ),
        ] {
            let server = balanced(settings, &value);
            let mut client = server.connect();
            let got: String = (0..9)
                .map(|_| {
                    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                    client.read_response("GET").text()
                })
                .collect();
            assert_eq!(got, want, "{value}");
            most += connections;
        }
        for backend in [a, b, c] {
            assert!(backend.connections() <= most);
        }
    }
}

#[test]
fn workers_take_turns_together() {
    let (a, b) = (named("a"), named("b"));
    let value = format!("['{}', '{}']", a.url("/"), b.url("/"));
    let config = config("", "X").replace("'X'", &value);
    let server = Setup::new(&config.replace("num-threads: 1", "num-threads: 2")).start();
    let got: String = (0..20).map(|_| server.ask("GET /").text()).collect();
    assert_eq!(got, "ab".repeat(10));
}

/// A backend over HTTP/2 that answers with its name, and to `/wait` with a head only.
fn named_http2(name: &'static str) -> Backend {
    Backend::start(move |talk: &mut Talk| {
        let Some(mut connection) = Frames::new(talk) else {
            return;
        };
        connection.send(&[Frame::settings(&[])]);
        while let Some((stream, fields)) = connection.read_request() {
            let head = encode(&[(":status", "200"), ("x-name", name)]);
            connection.send(&[Frame::request_with_content(stream, head)]);
            if !fields.contains(&(":path".to_owned(), "/wait".to_owned())) {
                connection.send(&[Frame::data(stream, flag::END_STREAM, name)]);
            }
        }
    })
}

#[test]
fn back_ends_of_http2_take_turns_request_by_request() {
    let (a, b) = (named_http2("a"), named_http2("b"));
    let settings = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";
    for (balancer, asked, waiting) in [
        ("round-robin", "abababab", "abab"),
        ("least-conn", "aaaaaaaa", "abab"),
    ] {
        let value = format!(
            "{{ balancer: {balancer}, backends: ['{}', '{}'] }}",
            a.url("/"),
            b.url("/")
        );
        let server = balanced(settings, &value);
        let before = a.connections() + b.connections();
        let got: String = (0..8).map(|_| server.ask("GET /").text()).collect();
        assert_eq!(got, asked, "{balancer}");
        // Requests in progress count, even if they share a connection.
        let mut clients = Vec::new();
        let got: String = (0..4)
            .map(|_| {
                let mut client = server.connect();
                client.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
                let head = client.read_head();
                clients.push(client);
                head.field("x-name").unwrap_or_default().to_owned()
            })
            .collect();
        assert_eq!(got, waiting, "{balancer}");
        assert_eq!(a.connections() + b.connections(), before + 2, "{balancer}");
    }
}

#[test]
fn requests_that_wait_for_a_connection_of_http2_count_for_the_balancer() {
    let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let backends = counts.each_ref().map(|count| {
        let count = Arc::clone(count);
        Backend::start(move |talk: &mut Talk| {
            let Some(mut connection) = Frames::new(talk) else {
                return;
            };
            connection.send(&[Frame::settings(&[])]);
            while connection.read_request().is_some() {
                count.fetch_add(1, SeqCst);
            }
        })
    });
    let settings = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";
    let value = format!(
        "{{ balancer: least-conn, backends: ['{}', '{}'] }}",
        backends[0].url("/"),
        backends[1].url("/")
    );
    let server = balanced(settings, &value);
    // All requests come in one write, before any connection to a backend is open.
    let mut client = Http2::open(server.port(), &[]);
    let requests: Vec<Frame> = (0..8)
        .map(|at| Frame::request(2 * at + 1, get("/")))
        .collect();
    client.send_frames(&requests);
    let got = eventually("all requests at the backends", || {
        let got = counts.each_ref().map(|count| count.load(SeqCst));
        (got[0] + got[1] == 8).then_some(got)
    });
    assert_eq!(got, [4, 4]);
}

#[test]
fn the_least_used_back_end_comes_first() {
    let waiting = |name: &'static str| {
        Backend::start(move |talk: &mut Talk| {
            while let Some(request) = talk.read_request() {
                if request.target() == "/wait" {
                    return talk.read_to_end();
                }
                talk.send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{name}"
                ));
            }
        })
    };
    let (a, b) = (waiting("a"), waiting("b"));
    let value = format!(
        "{{ balancer: least-conn, backends: ['{}', {{ url: '{}', weight: 2 }}] }}",
        a.url("/"),
        b.url("/")
    );
    let server = balanced("proxy.timeout.keepalive: 0", &value);
    let mut waiting = Vec::new();
    let mut wait_at = |backend: &Backend, count| {
        let mut client = server.connect();
        client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
        waiting.push(client);
        eventually("the request that waits", || {
            (backend.connections() == count).then_some(())
        });
    };
    // Requests in progress divided by weight, before each request: none; a 1; a 1, b 1/2; a 1, b 2/2, where the first backend gets it.
    wait_at(&a, 1);
    wait_at(&b, 1);
    wait_at(&b, 2);
    wait_at(&a, 2);
}

#[test]
fn a_back_end_that_refuses_is_passed_over() {
    let (closed, other) = (ClosedPort::new(), ClosedPort::new());
    let backend = named("well");
    for balancer in ["round-robin", "least-conn"] {
        let value = format!(
            "{{ balancer: {balancer}, backends: ['{}', '{}', '{}'] }}",
            closed.url(),
            backend.url("/"),
            other.url()
        );
        let server = balanced("proxy.timeout.keepalive: 0", &value);
        for _ in 0..6 {
            server.ask("GET /").must_be("200 OK\n\nwell");
            server
                .ask("POST /\nContent-Length: 5\n\nhello")
                .must_be("200 OK\n\nwell");
        }
        let value = value.replace(&backend.url("/"), &closed.url());
        let server = balanced("", &value);
        server
            .ask("GET /")
            .must_be("502 Gateway Error\n\nconnection refused");
    }
}

#[test]
fn a_request_that_was_sent_is_not_sent_again() {
    let broken = Backend::start(|talk| {
        let _ = talk.read_request();
    });
    let well = named("well");
    let value = format!("['{}', '{}']", broken.url("/"), well.url("/"));
    let server = balanced("proxy.timeout.keepalive: 0", &value);
    for want in ["502 Gateway Error\n\nI/O error", "200 OK\n\nwell"] {
        server.ask("GET /").must_be(want);
    }
    assert_eq!((broken.connections(), well.connections()), (1, 1));
}
