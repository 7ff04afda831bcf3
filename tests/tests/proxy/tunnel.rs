//! Tunnels through the reverse proxy: `Upgrade` and CONNECT.

use std::io::Write;
use std::time::Duration;

use h2o_tests::http2::{Frame, Http2, code, encode, flag, setting};
use h2o_tests::{Backend, ClosedPort, Deadline, FINE, Raw, Server, Setup, Talk, eventually};

use super::kit::{config, proxy, received};

const ON: &str = "proxy.tunnel: ON";
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: www.example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-A: 1\r\n\r\n";

/// A backend that accepts the tunnel, and echoes bytes until the client ends.
fn echoing() -> Backend {
    Backend::start(|talk: &mut Talk| {
        let Some(request) = talk.read_head() else {
            return;
        };
        if request.head.starts_with("CONNECT") {
            talk.send("HTTP/1.1 200 OK\r\n\r\nready\n");
        } else if request.field("connection") == Some("upgrade") {
            talk.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-B: 2\r\n\r\nready\n");
        } else {
            talk.send(FINE);
            return;
        }
        while let Some(bytes) = talk.read_some() {
            talk.send(bytes);
        }
    })
}

fn upgraded(server: &Server) -> Raw {
    let mut client = server.connect();
    client.send(UPGRADE);
    let head = client.read_head();
    head.must_be("101 Switching Protocols\nconnection: upgrade\nupgrade: echo\nx-b: 2");
    assert_eq!(client.read_exactly(6), b"ready\n");
    client
}

#[test]
fn an_upgrade_is_passed_on_and_bytes_go_both_ways() {
    let backend = echoing();
    let server = proxy(ON, &backend);
    let mut client = upgraded(&server);
    let want = "GET /chat HTTP/1.1\nhost: BACKEND\nconnection: upgrade\nupgrade: echo\nX-A: 1\n\
                x-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: 1.1 www.example.com\n\n";
    assert_eq!(received(&backend, 0), want);
    for piece in [&b"a"[..], b"hello", &[0, 255, 13, 10], &[7; 100_000]] {
        client.send(piece);
        assert_eq!(client.read_exactly(piece.len()), piece);
    }
}

#[test]
fn the_method_of_an_upgrade_is_passed_on() {
    let backend = echoing();
    let server = proxy(ON, &backend);
    let mut client = server.connect();
    client.send(UPGRADE.replacen("GET", "POST", 1));
    assert_eq!(client.read_head().code(), 101);
    let head = received(&backend, 0);
    assert!(head.starts_with("POST /chat HTTP/1.1\n"), "{head}");
}

#[test]
fn an_upgrade_is_sent_again_if_its_pooled_connection_is_closed_at_the_same_moment() {
    let backend = Backend::start(|talk: &mut Talk| {
        let mut is_reused = false;
        while let Some(request) = talk.read_head() {
            if is_reused {
                // The backend closes the connection as if it had done so just before this request.
                return;
            }
            is_reused = true;
            if request.field("upgrade").is_none() {
                talk.send(FINE);
                continue;
            }
            talk.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\nready\n");
            return talk.read_to_end();
        }
    });
    for settings in ["", "proxy.retry: ON"] {
        let server = proxy(&format!("{ON}\n{settings}"), &backend);
        server.ask("GET /").must_be("200 OK\n\nfine");
        let mut client = server.connect();
        client.send(UPGRADE);
        assert_eq!(client.read_head().code(), 101, "{settings}");
        assert_eq!(client.read_exactly(6), b"ready\n");
        server.ask("GET /").must_be("200 OK\n\nfine");
        let mut client = Http2::open(server.port(), &[]);
        client.send_frame(&extended("echo"));
        client.read_until("the opening of the tunnel", |client| {
            client.answer(1).is_over() || client.answer(1).text() == "ready\n"
        });
        assert_eq!(client.answer(1).status(), 200, "{settings}");
    }
    assert_eq!(backend.connections(), 8);
}

#[test]
fn bytes_that_come_with_the_request_are_not_lost() {
    let backend = echoing();
    let server = proxy(ON, &backend);
    let mut client = server.connect();
    client.send(format!("{UPGRADE}early"));
    assert_eq!(client.read_head().code(), 101);
    assert_eq!(client.read_exactly(11), b"ready\nearly");
    client.send("late");
    assert_eq!(client.read_exactly(4), b"late");
}

#[test]
fn either_side_ends_a_tunnel() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_head();
        talk.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\n\r\nready\n");
        // Waits until the client sends something or ends its direction.
        let _ = talk.read_exactly(3);
    });
    let server = proxy("proxy.tunnel: ON\nproxy.timeout.io: 60000", &backend);
    let mut client = server.connect();
    client.send(UPGRADE);
    let _ = client.read_until(b"ready\n");
    client.send("bye");
    assert_eq!(client.read_to_end(), b"");
    let mut client = server.connect();
    client.send(UPGRADE);
    let _ = client.read_until(b"ready\n");
    drop(client);
    backend.wait_for_ended(1);
}

#[test]
fn a_tunnel_without_traffic_is_closed() {
    let backend = echoing();
    let server = proxy("proxy.tunnel: ON\nproxy.timeout.io: 1000", &backend);
    let mut busy = upgraded(&server);
    let mut silent = upgraded(&server);
    // Traffic restarts the idle timeout: the tunnel without traffic is closed first, although it was opened later.
    let patience = Deadline::after_secs(20);
    while backend.ended() == 0 {
        assert!(
            !patience.has_passed(),
            "the tunnel without traffic is still open"
        );
        busy.send("x");
        assert_eq!(busy.read_exactly(1), b"x");
        // The pause is the client's behaviour; the test waits for nothing here.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(silent.read_to_end(), b"");
    let clock = Deadline::after_secs(10);
    busy.send("x");
    assert_eq!(busy.read_to_end(), b"x");
    assert!(clock.elapsed() > Duration::from_millis(900), "{clock:?}");
    assert!(!clock.has_passed(), "{clock:?}");
    backend.wait_for_ended(2);
    let line = format!(
        "[lib/core/proxy.c] in request:127.0.0.1:{}/chat:I/O timeout\n",
        backend.port()
    );
    server.wait_for_message(&line);
}

#[test]
fn an_upgrade_that_is_refused_is_an_ordinary_answer() {
    for (answer, want) in [
        (
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno",
            "400 Bad Request\n\nno",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
            "200 OK\n\nfine",
        ),
    ] {
        let backend = Backend::answering(answer);
        let server = proxy(ON, &backend);
        let mut client = server.connect();
        client.send(UPGRADE);
        client.read_response("GET").must_be(want);
        assert_eq!(client.read_to_end(), b"", "the connection ends: {answer}");
    }
}

#[test]
fn without_the_setting_there_are_no_tunnels() {
    let websocket = UPGRADE.replace("echo", "websocket");
    let connect = "CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n";
    let gateway = "403 Forbidden\n\nThe proxy act as a gateway.";
    let rows = [
        (UPGRADE, gateway, 0),
        (connect, "405 Method Not Allowed\n\nrefusing CONNECT", 0),
        (websocket.as_str(), "200 OK\n!upgrade\n\nfine", 1),
    ];
    for (request, want, connections) in rows {
        let backend = echoing();
        let server = proxy("", &backend);
        let mut client = server.connect();
        client.send(request);
        client.read_response("GET").must_be(want);
        assert_eq!(backend.connections(), connections, "{request}");
        if connections == 0 {
            assert_eq!(client.read_to_end(), b"", "{request}");
        }
    }
}

#[test]
fn connect_goes_to_the_back_end_with_the_clients_target() {
    let backend = echoing();
    let server = proxy("proxy.tunnel: ON\nproxy.preserve-host: ON", &backend);
    let mut client = server.connect();
    client.send("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n");
    assert_eq!(client.read_head().code(), 200);
    assert_eq!(client.read_exactly(6), b"ready\n");
    client.send("hello");
    assert_eq!(client.read_exactly(5), b"hello");
    let text = received(&backend, 0);
    let start = "CONNECT a.example:80 HTTP/1.1\nhost: a.example:80\nconnection: keep-alive\n";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn the_log_names_the_target_of_connect_once() {
    let connect = |server: &Server| {
        let mut client = server.connect();
        client.send("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n");
        assert_eq!(client.read_response("CONNECT").code(), 502);
    };
    let closed = ClosedPort::new();
    let server = Setup::new(&config(ON, &closed.url())).start();
    connect(&server);
    server.wait_for_message("[lib/core/proxy.c] in request:a.example:80:connection refused\n");
    let backend = Backend::answering("no HTTP\r\n\r\n");
    let server = proxy(ON, &backend);
    connect(&server);
    server.wait_for_message(&format!(
        "[lib/core/proxy.c] in request:127.0.0.1:{}:failed to parse the response\n",
        backend.port()
    ));
}

/// The fields of an extended CONNECT request (RFC 8441).
fn extended(protocol: &str) -> Frame {
    Frame::request_with_content(
        1,
        encode(&[
            (":method", "CONNECT"),
            (":protocol", protocol),
            (":scheme", "http"),
            (":path", "/chat"),
            (":authority", "www.example.com"),
            ("x-a", "1"),
        ]),
    )
}

#[test]
fn extended_connect_becomes_an_upgrade() {
    let backend = echoing();
    let server = proxy(ON, &backend);
    let mut client = Http2::open(server.port(), &[]);
    let allowed = client.frames.iter().any(|frame| {
        let setting = setting::ENABLE_CONNECT_PROTOCOL.to_be_bytes();
        let mut settings = frame.payload.chunks_exact(6);
        frame.kind == h2o_tests::http2::kind::SETTINGS
            && settings.any(|each| each[..2] == setting && each[2..] == [0, 0, 0, 1])
    });
    assert!(
        allowed,
        "the server's SETTINGS do not allow extended CONNECT (RFC 8441 §3)"
    );
    client.send_frame(&extended("echo"));
    client.read_until("the opening of the tunnel", |client| {
        client.answer(1).text() == "ready\n"
    });
    let answer = client.answer(1);
    assert_eq!((answer.status(), answer.is_over()), (200, false));
    assert_eq!(answer.field("x-b"), Some("2"));
    assert_eq!(answer.field("upgrade"), None);
    client.send_frame(&Frame::data(1, 0, "hello"));
    client.read_until("the bytes that the backend sends back", |client| {
        client.answer(1).text() == "ready\nhello"
    });
    let want = "GET /chat HTTP/1.1\nhost: BACKEND\nconnection: upgrade\nupgrade: echo\nx-a: 1\n\
                x-forwarded-proto: http\nx-forwarded-for: 127.0.0.1\nvia: 2 www.example.com\n\nhello";
    assert_eq!(received(&backend, 0), want);
    client.send_frame(&Frame::data(1, flag::END_STREAM, []));
    client.read_until("the end of the tunnel", |client| client.answer(1).is_over());
    backend.wait_for_ended(1);
}

#[test]
fn last_words_of_a_back_end_come_before_the_end_of_the_stream() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_head();
        talk.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\n\r\nready\n");
        let _ = talk.read_exactly(3);
        talk.send("goodbye");
    });
    let server = proxy(ON, &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&extended("echo"));
    client.read_until("the opening of the tunnel", |client| {
        client.answer(1).text() == "ready\n"
    });
    client.send_frame(&Frame::data(1, 0, "bye"));
    let answer = client.read_answer(1);
    assert_eq!(answer.text(), "ready\ngoodbye");
    assert!(answer.is_ended, "{}", client.story());
    // When the client ends its side too, no RST_STREAM is sent.
    client.send_frame(&Frame::data(1, flag::END_STREAM, "goodbye"));
    client.ping();
    assert_eq!(client.answer(1).reset, None, "{}", client.story());
}

#[test]
fn a_client_that_has_said_all_still_hears_the_back_end() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_head();
        talk.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\n\r\nready\n");
        talk.read_to_end();
        talk.send("goodbye");
    });
    let server = proxy(ON, &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&extended("echo"));
    client.read_until("the opening of the tunnel", |client| {
        client.answer(1).text() == "ready\n"
    });
    client.send_frame(&Frame::data(1, flag::END_STREAM, "bye"));
    let answer = client.read_answer(1);
    assert_eq!(answer.text(), "ready\ngoodbye", "{}", client.story());
    client.ping();
    let answer = client.answer(1);
    assert_eq!((answer.is_ended, answer.reset), (true, None));
    assert!(backend.received(0).ends_with(b"\r\n\r\nbye"));

    let mut client = server.connect();
    client.send(UPGRADE);
    let _ = client.read_until(b"ready\n");
    client.finish();
    assert_eq!(client.read_to_end(), b"goodbye");
}

#[test]
fn a_stream_that_is_reset_ends_its_tunnel() {
    let backend = echoing();
    let server = proxy(ON, &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&extended("echo"));
    client.read_until("the opening of the tunnel", |client| {
        client.answer(1).text() == "ready\n"
    });
    client.send_frame(&Frame::rst_stream(1, code::CANCEL));
    backend.wait_for_ended(1);
    client.ping();
}

#[test]
fn without_the_setting_extended_connect_is_forbidden() {
    let backend = echoing();
    let server = proxy("", &backend);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&extended("websocket"));
    client.read_until("the response that refuses the tunnel", |client| {
        client.answer(1).is_over()
    });
    assert_eq!(client.answer(1).status(), 403);
    assert_eq!(backend.connections(), 0);
}

/// Bytes that the client sends while it reads nothing.
const MUCH: usize = 16_000_000;

/// A backend that sends without end, and reads everything.
fn talkative() -> Backend {
    Backend::start(|talk: &mut Talk| {
        let Some(request) = talk.read_head() else {
            return;
        };
        let head = if request.head.starts_with("CONNECT") {
            "HTTP/1.1 200 OK\r\n\r\n"
        } else {
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\n\r\n"
        };
        talk.send(head);
        let mut out = talk.stream().try_clone().expect("the connection is open");
        std::thread::scope(|scope| {
            // Sends until the connection is shut down.
            scope.spawn(move || while out.write_all(&[b'x'; 65_536]).is_ok() {});
            let _ = talk.read_exactly(MUCH);
            talk.read_to_end();
        });
    })
}

/// A server whose allocator returns freed memory to the system at once.
fn measured(backend: &Backend) -> Server {
    Setup::new(&config(ON, &backend.url("/")))
        .variable("MIMALLOC_PURGE_DELAY", "0")
        .start()
}

/// Waits until the backend has received everything, and checks the memory that the server uses for the other direction.
fn must_arrive(server: &Server, backend: &Backend, before: usize, what: &str) {
    eventually(&format!("all of it by {what}"), || {
        let received = backend.received(0);
        let content = received.iter().filter(|byte| **byte == b'y').count();
        (content == MUCH).then_some(())
    });
    let held = server.memory_at_rest().saturating_sub(before);
    assert!(held < MUCH / 4, "{what}: {held} bytes");
}

#[test]
fn a_client_of_http1_that_takes_nothing_is_heard_all_the_same() {
    let connect = "CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n";
    for request in [UPGRADE, connect] {
        let backend = talkative();
        let server = measured(&backend);
        let before = server.memory_at_rest();
        let mut client = server.connect();
        client.send(request);
        let _ = client.read_head();
        for _ in 0..MUCH / 8000 {
            client.send([b'y'; 8000]);
        }
        must_arrive(&server, &backend, before, request);
    }
}

#[test]
fn a_client_of_http2_that_takes_nothing_is_heard_all_the_same() {
    let connect = encode(&[(":method", "CONNECT"), (":authority", "a.example:80")]);
    let connect = Frame::request_with_content(1, connect);
    for request in [extended("echo"), connect] {
        let backend = talkative();
        let server = measured(&backend);
        let before = server.memory_at_rest();
        let mut client = Http2::open(server.port(), &[]);
        client.send_frame(&request);
        client.read_until("the opening of the tunnel", |client| {
            client.answer(1).status() == 200
        });
        // The client opens no windows: the server can send it only what the initial windows allow.
        for sent in (0..MUCH).step_by(8000) {
            client.read_until("window to send on stream 1", |client| {
                client.allowed(1).min(client.allowed(0)) >= sent + 8000
            });
            client.send_frame(&Frame::data(1, 0, [b'y'; 8000]));
        }
        must_arrive(&server, &backend, before, &format!("{request:?}"));
        client.read_until(
            "the content that the client's stream window allows",
            |client| client.answer(1).body.len() == 65_535,
        );
        client.ping();
        assert_eq!(client.answer(1).body.len(), 65_535);
    }
}
