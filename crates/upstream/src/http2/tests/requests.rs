//! Requests as the server receives them, and how requests share connections.

use std::rc::Rc;

use h2o_http::{BodyLength, Method};
use h2o_http2::ErrorCode;
use h2o_http2::frame::{self, FrameType, StreamId};

use super::kit::*;
use crate::FailureCause;
use crate::multiplexed::{Connections, StreamSettings};
use crate::protocol_choice::Load;

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
        assert!(
            !connection.can_request(),
            "the connection has as many streams as the client's own limit allows"
        );
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
        assert_eq!(
            connection.max_requests(),
            1,
            "the connection has as many streams as the server's SETTINGS allow"
        );
    });
}

#[test]
fn the_connection_with_the_fewest_streams_is_picked() {
    run(async {
        let connections = Connections::new(8);
        assert!(connections.pick(|_| true).is_none());
        let (a, mut server_a) = open(settings()).await;
        let (b, _server_b) = open(settings()).await;
        for connection in [&a, &b] {
            connections.add_opened(connection);
        }
        let is = |connection: &Rc<Connection>| {
            Rc::ptr_eq(
                &connections
                    .pick(|_| true)
                    .expect("a connection has room for another stream"),
                connection,
            )
        };
        assert!(is(&a), "of equally used connections the first is picked");
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
        // A connection that has received GOAWAY is not picked, however few requests it has.
        let now = tokio::time::Instant::now().into_std();
        server_a.engine.shut_down(now, &mut server_a.out);
        server_a.flush().await;
        settle().await;
        assert!(is(&b));
        drop((second, third));
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
        // The test's server, which is made of our engine, allows extended CONNECT in its SETTINGS.
        let (connection, mut server) = start(settings());
        let (pipe, body) = pipe();
        let tunnel = call(&connection, connect(), body);
        settle().await;
        assert_eq!(
            connection.request_count(),
            0,
            "SETTINGS of the server have not arrived"
        );
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
        // Extended CONNECT is not sent to a server that does not announce it.
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
