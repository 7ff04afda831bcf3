//! Timeouts of HTTP/2 requests, and waits without a timeout.

use std::time::Duration;

use h2o_http::BodyLength;
use h2o_http2::frame::{self, FrameType};
use tokio::time::{Instant, sleep};

use super::kit::*;
use crate::multiplexed::{Connections, StreamSettings};

const SECOND: Duration = Duration::from_secs(1);

fn is_about(time: Duration, want: Duration) -> bool {
    want <= time && time < want + SECOND / 2
}

#[test]
fn a_silent_connection_fails_all_its_streams() {
    run(async {
        let long = StreamSettings {
            first_byte_timeout: 100 * SECOND,
            ..settings()
        };
        let (connection, mut server) = open(long).await;
        let headless = ask(&connection, "/1");
        let reading = ask(&connection, "/2");
        server.request().await;
        let (stream, _) = server.request().await;
        server.respond(stream, 200, &[], false);
        server.flush().await;
        let mut body = source(reply(reading).await.body);
        let began = Instant::now();
        sleep(20 * SECOND).await;
        // Data for one stream shows that the connection is alive, so other streams do not time out.
        server.send(stream, b"abc", false);
        server.flush().await;
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"abc"[..]);
        assert_eq!(content(&mut body).await, Err("I/O timeout".into()));
        assert_eq!(failure(headless).await.text, "first byte timeout");
        assert!(
            is_about(began.elapsed(), 50 * SECOND),
            "{:?}",
            began.elapsed()
        );
        assert!(!connection.can_request());
    });
}

#[test]
fn a_slow_client_is_not_the_servers_fault() {
    run(async {
        let (connection, mut server) = start(with_window(1000));
        let call = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.respond(stream, 200, &[], false);
        server.send(stream, &[1; 1000], false);
        server.flush().await;
        let mut body = source(reply(call).await.body);
        sleep(100 * SECOND).await;
        let piece = std::future::poll_fn(|task| body.poll_next(task, 400)).await;
        assert_eq!(piece.unwrap().unwrap().len(), 400);
        sleep(100 * SECOND).await;
        // Once the client has taken everything, the server must send more within the I/O timeout.
        let piece = std::future::poll_fn(|task| body.poll_next(task, 1000)).await;
        assert_eq!(piece.unwrap().unwrap().len(), 600);
        let began = Instant::now();
        assert_eq!(content(&mut body).await, Err("I/O timeout".into()));
        let took = began.elapsed();
        assert!(29 * SECOND < took && took < 61 * SECOND, "{took:?}");
    });
}

#[test]
fn a_slow_upload_is_not_the_servers_fault() {
    run(async {
        let (connection, mut server) = start(settings());
        let (pipe, body) = pipe();
        let call = call(&connection, post(BodyLength::Unknown), body);
        let (stream, _) = server.request().await;
        sleep(100 * SECOND).await;
        pipe.push(b"abc");
        assert_eq!(server.data(stream).await, (b"abc".to_vec(), false));
        // If the server does not read the body of a request, the request times out.
        pipe.push(vec![0; 60_000]);
        settle().await;
        pipe.push(vec![0; 60_000]);
        let began = Instant::now();
        assert_eq!(failure(call).await.text, "first byte timeout");
        assert!(
            is_about(began.elapsed(), 30 * SECOND),
            "{:?}",
            began.elapsed()
        );
        assert!(pipe.is_abandoned());
    });
}

#[test]
fn idle_connections_say_goodbye_after_keepalive() {
    run(async {
        let (connection, socket) = link(settings());
        let call = ask(&connection, "/");
        let mut bare = Bare::new(socket).await;
        sleep(SECOND).await;
        let mut out = frame::header(1, FrameType::HEADERS, 5, frame::StreamId::new(1)).to_vec();
        out.push(0x88);
        bare.send(&out).await;
        reply(call).await;
        let began = Instant::now();
        let goaway = bare.find(FrameType::GOAWAY).await;
        assert_eq!(goaway.payload, [0; 8], "NO_ERROR");
        assert!(bare.frame().await.is_none());
        assert!(
            is_about(began.elapsed(), 2 * SECOND),
            "{:?}",
            began.elapsed()
        );
        assert!(!connection.is_reusable());
    });
}

#[test]
fn requests_keep_a_connection_alive() {
    run(async {
        let (connection, mut server) = start(settings());
        for _ in 0..10 {
            let call = ask(&connection, "/");
            let (stream, _) = server.request().await;
            server.answer(stream, "x").await;
            reply(call).await;
            sleep(3 * SECOND / 2).await;
        }
        assert!(connection.can_request());
        assert!(matches!(server.next().await, ServerEvent::Closed));
    });
}

#[test]
fn connections_of_an_upstream_that_is_forgotten_end_with_their_requests() {
    run(async {
        for is_idle in [false, true] {
            let (connection, mut server) = start(StreamSettings {
                keepalive: 1000 * SECOND,
                ..settings()
            });
            let connections = Connections::new(8);
            connections.add_opened(&connection);
            let call = ask(&connection, "/");
            let (stream, _) = server.request().await;
            if is_idle {
                server.answer(stream, "x").await;
                reply(call).await;
                settle().await;
                drop(connections);
            } else {
                drop(connections);
                settle().await;
                server.answer(stream, "x").await;
                reply(call).await;
            }
            let began = Instant::now();
            assert!(matches!(server.next().await, ServerEvent::Closed));
            assert!(began.elapsed() < SECOND / 10, "{is_idle}");
        }
    });
}

#[test]
fn a_server_without_settings_is_not_waited_for_without_end() {
    run(async {
        let (connection, socket) = link(settings());
        let mut head = get("/");
        head.method = h2o_http::Method::Connect;
        head.body = BodyLength::Tunnel;
        let token = head.headers.store(b"websocket");
        head.set_upgrade(token);
        let call = call(&connection, head, pipe().1);
        let began = Instant::now();
        assert_eq!(failure(call).await.text, "I/O error");
        assert!(
            is_about(began.elapsed(), 30 * SECOND),
            "{:?}",
            began.elapsed()
        );
        drop(socket);
    });
}

#[test]
fn a_silent_tunnel_ends_though_the_connection_is_busy() {
    run(async {
        let (connection, mut server) = start(StreamSettings {
            first_byte_timeout: 1000 * SECOND,
            ..settings()
        });
        let mut head = get("/");
        head.method = h2o_http::Method::Connect;
        head.body = BodyLength::Tunnel;
        let (pipe, body) = pipe();
        let call = call(&connection, head, body);
        let (tunnel, _) = server.request().await;
        server.respond(tunnel, 200, &[], false);
        server.flush().await;
        let mut body = source(reply(call).await.body);
        let other = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.respond(stream, 200, &[], false);
        let began = Instant::now();
        let end = tokio::task::spawn_local(async move { content(&mut body).await });
        for second in 0..60 {
            server.send(stream, b"x", false);
            server.flush().await;
            if second == 20 {
                pipe.push(b"x");
                server.data(tunnel).await;
            }
            sleep(SECOND).await;
            if end.is_finished() {
                break;
            }
        }
        assert_eq!(end.await.unwrap(), Err("I/O timeout".into()));
        let took = began.elapsed();
        assert!(50 * SECOND <= took && took < 53 * SECOND, "{took:?}");
        drop(other);
    });
}
