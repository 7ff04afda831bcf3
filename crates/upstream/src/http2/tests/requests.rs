//! Requests as the server receives them, and how requests share connections.

use std::rc::Rc;

use h2o_exchange::{Body, RequestBody};
use h2o_http::{BodyLength, Headers, Known, Method, StatusCode};
use h2o_http2::ErrorCode;
use h2o_http2::frame::{self, FrameType, StreamId};

use super::kit::*;
use crate::multiplexed::{Connections, StreamSettings};
use crate::protocol_choice::Load;
use crate::{FailureCause, Protocol};

#[test]
fn requests_share_a_connection_and_are_answered_in_any_order() {
    run(async {
        let (connection, mut server) = start(settings());
        let calls: Vec<_> = (0..3).map(|n| ask(&connection, &format!("/{n}"))).collect();
        let mut streams = Vec::new();
        for n in 0..3 {
            let (stream, head) = server.request().await;
            assert_eq!(head.target(), format!("/{n}").as_bytes());
            assert_eq!(head.authority(), b"backend.test");
            streams.push(stream);
        }
        assert_eq!(connection.request_count(), 3);
        for (n, stream) in streams.iter().enumerate().rev() {
            server.answer(*stream, &n.to_string()).await;
        }
        for (n, call) in calls.into_iter().enumerate() {
            let reply = reply(call).await;
            assert_eq!((reply.status, reply.backend), (StatusCode::OK, 7));
            assert_eq!((reply.protocol, reply.length), (Protocol::Http2, Some(1)));
            assert_eq!(
                reply.reason.as_deref(),
                Some(""),
                "HTTP/2 has no reason phrase"
            );
            let Body::Bytes(bytes) = reply.body else {
                panic!("content that came with the head is in memory");
            };
            assert_eq!(bytes, n.to_string().as_bytes());
        }
        settle().await;
        assert_eq!(connection.request_count(), 0);
        assert!(connection.can_request());
    });
}

#[test]
fn fields_come_as_sent_and_te_trailers_is_forwarded() {
    run(async {
        let (connection, mut server) = start(settings());
        let mut head = get("/");
        head.headers.push(Known::Te, b"trailers");
        head.headers.push(h2o_http::Name::Other("x-a"), b"1");
        let call = call(&connection, head, RequestBody::None);
        let (stream, head) = server.request().await;
        assert_eq!(head.headers.get(Known::Te), Some(&b"trailers"[..]));
        assert_eq!(
            head.headers.get(h2o_http::Name::Other("x-a")),
            Some(&b"1"[..])
        );
        server.respond(stream, 204, &[("x-b", "2")], true);
        server.flush().await;
        let reply = reply(call).await;
        assert_eq!(
            reply.headers.get(h2o_http::Name::Other("x-b")),
            Some(&b"2"[..])
        );
        assert_eq!((reply.status.as_u16(), reply.length), (204, None));
        assert!(matches!(reply.body, Body::Empty));
    });
}

#[test]
fn the_length_of_what_is_left_out_is_passed_on() {
    run(async {
        let (connection, mut server) = start(settings());
        let mut head = get("/");
        head.method = Method::Head;
        let call = call(&connection, head, RequestBody::None);
        let (stream, _) = server.request().await;
        server.respond_with(stream, 200, &[], Some(1234), true);
        server.flush().await;
        let reply = reply(call).await;
        assert_eq!(reply.length, Some(1234));
        assert!(matches!(reply.body, Body::Empty));
    });
}

#[test]
fn informational_responses_are_told_in_order() {
    run(async {
        let (connection, mut server) = start(settings());
        let told = InterimResponses::default();
        let seen = Some(Rc::clone(&told));
        let call = call_with(&connection, get("/"), RequestBody::None, false, seen);
        let (stream, _) = server.request().await;
        let send_informational = |server: &mut Server, status, headers: &Headers| {
            let status = StatusCode::new(status).unwrap();
            server
                .engine
                .send_informational(stream, status, headers, &mut server.out);
        };
        send_informational(&mut server, 100, &Headers::new());
        send_informational(
            &mut server,
            103,
            &fields_of(&[("link", "</a>; rel=preload")]),
        );
        server.flush().await;
        settle().await;
        assert_eq!(
            *told.borrow(),
            [(100, 0), (103, 1)],
            "they do not wait for the final one"
        );
        send_informational(&mut server, 103, &Headers::new());
        server.answer(stream, "x").await;
        assert_eq!(reply(call).await.status.as_u16(), 200);
        assert_eq!(told.borrow().len(), 3);
    });
}

#[test]
fn no_more_streams_are_opened_than_either_side_allows() {
    run(async {
        let (connection, socket) = link(StreamSettings {
            max_streams: 3,
            ..settings()
        });
        let mut bare = Bare::new(socket).await;
        let calls: Vec<_> = (0..3).map(|_| ask(&connection, "/")).collect();
        settle().await;
        assert_eq!(
            (connection.request_count(), connection.max_requests()),
            (3, 3)
        );
        assert!(!connection.can_request(), "our limit");
        drop(calls);
        let mut out = Vec::new();
        frame::settings(
            &mut out,
            &[(h2o_http2::settings::MAX_CONCURRENT_STREAMS, 4)],
        );
        bare.send(&out).await;
        settle().await;
        assert_eq!(connection.max_requests(), 3);
        out.clear();
        frame::settings(
            &mut out,
            &[(h2o_http2::settings::MAX_CONCURRENT_STREAMS, 1)],
        );
        bare.send(&out).await;
        settle().await;
        assert_eq!(connection.max_requests(), 1, "the server's limit");
    });
}

#[test]
fn the_connection_with_the_fewest_streams_is_picked() {
    run(async {
        let connections = Connections::new(8);
        assert!(connections.pick(|_| true).is_none());
        let (a, mut server_a) = start(settings());
        let (b, _server_b) = start(settings());
        for connection in [&a, &b] {
            connections.add(connection);
        }
        let is = |connection: &Rc<Connection>| {
            Rc::ptr_eq(
                &connections.pick(|_| true).expect("there is room"),
                connection,
            )
        };
        assert!(is(&a), "the first of equals");
        let first = ask(&a, "/");
        let (stream, _) = server_a.request().await;
        assert!(is(&b));
        let second = ask(&b, "/");
        let third = ask(&b, "/");
        settle().await;
        assert!(is(&a));
        let load = connections.load(|_| true);
        assert_eq!(load, Load { used: 3, most: 200 });
        assert_eq!(connections.load(|_| false), Load::default());
        server_a.answer(stream, "x").await;
        reply(first).await;
        // A connection after GOAWAY is not picked, however few requests it has.
        let now = tokio::time::Instant::now().into_std();
        server_a.engine.shut_down(now, &mut server_a.out);
        server_a.flush().await;
        settle().await;
        assert!(is(&b));
        drop((second, third));
    });
}

#[test]
fn a_call_that_is_given_up_is_cancelled() {
    run(async {
        let (connection, mut server) = start(settings());
        // Before the head of the response.
        let first = ask(&connection, "/");
        let (stream, _) = server.request().await;
        first.abort();
        assert_eq!(server.reset(stream).await, ErrorCode::CANCEL);
        server.engine.release(stream, &mut server.out);
        // Within the body.
        let second = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.respond(stream, 200, &[], false);
        server.send(stream, b"abc", false);
        server.flush().await;
        let mut body = source(reply(second).await.body);
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"abc"[..]);
        drop(body);
        assert_eq!(server.reset(stream).await, ErrorCode::CANCEL);
        server.engine.release(stream, &mut server.out);
        settle().await;
        assert_eq!(connection.request_count(), 0);
        // The connection can still be used.
        let third = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.answer(stream, "x").await;
        assert_eq!(reply(third).await.status.as_u16(), 200);
    });
}

#[test]
fn extended_connect_waits_for_settings_and_needs_the_servers_consent() {
    run(async {
        let connect = || {
            let mut head = get("/chat");
            head.method = Method::Connect;
            head.body = BodyLength::Tunnel;
            let token = head.headers.store(b"websocket");
            head.set_upgrade(token);
            head
        };
        // Our server role supports it.
        let (connection, mut server) = start(settings());
        let (pipe, body) = pipe();
        let tunnel = call(&connection, connect(), body);
        settle().await;
        assert_eq!(connection.request_count(), 0, "SETTINGS have not come");
        let (stream, head) = server.request().await;
        assert_eq!(
            (head.upgrade(), head.body),
            (&b"websocket"[..], BodyLength::Tunnel)
        );
        server.respond(stream, 200, &[], false);
        server.flush().await;
        let reply = reply(tunnel).await;
        assert!(reply.is_tunnel);
        let mut body = source(reply.body);
        pipe.push(b"ping");
        assert_eq!(server.data(stream).await, (b"ping".to_vec(), false));
        server.send(stream, b"pong", false);
        server.flush().await;
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"pong"[..]);
        pipe.finish(Ok(()));
        assert_eq!(server.data(stream).await, (Vec::new(), true));
        server.send(stream, b"", true);
        server.flush().await;
        assert!(piece(&mut body).await.is_none());
        // It is not sent to a server that does not announce it.
        let (connection, socket) = link(settings());
        let refused = call(&connection, connect(), self::pipe().1);
        let mut bare = Bare::new(socket).await;
        let failure = failure(refused).await;
        assert_eq!(
            failure.text,
            "extended CONNECT is not supported by the server"
        );
        assert!(failure.cause == FailureCause::Other && !failure.refused);
        let mut out = Vec::new();
        frame::goaway(&mut out, StreamId::CONNECTION, ErrorCode::NO_ERROR, "");
        bare.send(&out).await;
        while let Some(frame) = bare.frame().await {
            assert_ne!(frame.kind, FrameType::HEADERS);
        }
    });
}
