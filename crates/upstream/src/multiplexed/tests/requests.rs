//! Requests as the server receives them, and responses as the client receives them.

use std::rc::Rc;

use h2o_exchange::{Body, RequestBody};
use h2o_http::{BodyLength, Known, Method, Name, StatusCode};

use super::kit::*;
use crate::multiplexed::Engine;

super::over_each_version!(
    requests_share_a_connection_and_are_answered_in_any_order,
    fields_come_as_sent_and_te_trailers_is_forwarded,
    the_length_of_what_is_left_out_is_passed_on,
    informational_responses_are_told_in_order,
    a_hundred_informational_responses_are_told_and_one_more_fails_the_request,
    a_call_that_is_given_up_is_cancelled,
    a_tunnel_goes_both_ways,
    no_more_requests_are_made_than_allowed,
);

async fn requests_share_a_connection_and_are_answered_in_any_order<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
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
        assert_eq!(
            (reply.protocol, reply.length),
            (S::Engine::PROTOCOL, Some(1))
        );
        assert_eq!(
            reply.reason.as_deref(),
            Some(""),
            "the response has no reason phrase"
        );
        let Body::Bytes(bytes) = reply.body else {
            panic!("content that came with the head is in memory");
        };
        assert_eq!(bytes, n.to_string().as_bytes());
    }
    settle().await;
    assert_eq!(connection.request_count(), 0);
    assert!(connection.can_request());
}

async fn fields_come_as_sent_and_te_trailers_is_forwarded<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let mut head = get("/");
    head.headers.push(Known::Te, b"trailers");
    head.headers.push(Name::Other("x-a"), b"1");
    let call = call(&connection, head, RequestBody::None);
    let (stream, head) = server.request().await;
    assert_eq!(head.headers.get(Known::Te), Some(&b"trailers"[..]));
    assert_eq!(head.headers.get(Name::Other("x-a")), Some(&b"1"[..]));
    server.respond(stream, 204, &[("x-b", "2")], None, true);
    server.flush().await;
    let reply = reply(call).await;
    assert_eq!(reply.headers.get(Name::Other("x-b")), Some(&b"2"[..]));
    assert_eq!((reply.status.as_u16(), reply.length), (204, None));
    assert!(matches!(reply.body, Body::Empty));
}

async fn the_length_of_what_is_left_out_is_passed_on<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = call(&connection, head(Method::Head), RequestBody::None);
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], Some(1234), true);
    server.flush().await;
    let reply = reply(call).await;
    assert_eq!(reply.length, Some(1234));
    assert!(matches!(reply.body, Body::Empty));
}

async fn informational_responses_are_told_in_order<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let told = InterimResponses::default();
    let seen = Some(Rc::clone(&told));
    let call = call_with(&connection, get("/"), RequestBody::None, false, seen);
    let (stream, _) = server.request().await;
    server.inform(stream, 100, &[]);
    server.inform(stream, 103, &[("link", "</a>; rel=preload")]);
    server.flush().await;
    settle().await;
    assert_eq!(
        *told.borrow(),
        [(100, 0), (103, 1)],
        "interim responses do not wait for the final response"
    );
    server.inform(stream, 103, &[]);
    server.answer(stream, "x").await;
    assert_eq!(reply(call).await.status.as_u16(), 200);
    assert_eq!(told.borrow().len(), 3);
}

async fn a_hundred_informational_responses_are_told_and_one_more_fails_the_request<S: Server>() {
    for count in [100, 101] {
        let (connection, mut server) = S::start(settings()).await;
        let told = InterimResponses::default();
        let seen = Some(Rc::clone(&told));
        let call = call_with(&connection, get("/"), RequestBody::None, false, seen);
        let (stream, _) = server.request().await;
        for _ in 0..count {
            server.inform(stream, 103, &[]);
        }
        server.flush().await;
        settle().await;
        if count == 100 {
            server.answer(stream, "x").await;
            assert_eq!(reply(call).await.status.as_u16(), 200);
            assert_eq!(told.borrow().len(), 100);
        } else {
            assert_eq!(&*failure(call).await.text, "protocol violation");
        }
    }
}

async fn a_call_that_is_given_up_is_cancelled<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    // The call is dropped before the head of the response arrives.
    let first = ask(&connection, "/");
    let (stream, _) = server.request().await;
    first.abort();
    server.cancelled(stream).await;
    // The body of the response is dropped before its end.
    let second = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.send(stream, b"abc", false);
    server.flush().await;
    let mut body = source(reply(second).await.body);
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"abc"[..]);
    drop(body);
    server.cancelled(stream).await;
    settle().await;
    assert_eq!(connection.request_count(), 0);
    // The connection can still be used.
    let third = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.answer(stream, "x").await;
    assert_eq!(reply(third).await.status.as_u16(), 200);
}

async fn a_tunnel_goes_both_ways<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let mut head = head(Method::Connect);
    head.body = BodyLength::Tunnel;
    let token = head.headers.store(b"websocket");
    head.set_upgrade(token);
    let (pipe, body) = pipe();
    let tunnel = call(&connection, head, body);
    let (stream, head) = server.request().await;
    assert_eq!(
        (head.upgrade(), head.body),
        (&b"websocket"[..], BodyLength::Tunnel)
    );
    server.respond(stream, 200, &[], None, false);
    server.flush().await;
    let reply = reply(tunnel).await;
    assert!(reply.is_tunnel);
    let mut body = source(reply.body);
    pipe.push(b"ping");
    assert_eq!(server.content(stream, 4).await, (b"ping".to_vec(), false));
    server.send(stream, b"pong", false);
    server.flush().await;
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"pong"[..]);
    pipe.finish(Ok(()));
    assert_eq!(server.content(stream, 1).await, (Vec::new(), true));
    server.send(stream, b"", true);
    server.flush().await;
    assert!(piece(&mut body).await.is_none());
}

async fn no_more_requests_are_made_than_allowed<S: Server>() {
    let settings = crate::multiplexed::StreamSettings {
        max_streams: 3,
        ..settings()
    };
    let (connection, mut server) = S::start(settings).await;
    let calls: Vec<_> = (0..3).map(|_| ask(&connection, "/")).collect();
    let mut streams = Vec::new();
    for _ in &calls {
        streams.push(server.request().await.0);
    }
    assert!(
        !connection.can_request(),
        "the connection has as many streams as the client's own limit allows"
    );
    for stream in streams {
        server.answer(stream, "x").await;
    }
    for call in calls {
        reply(call).await;
    }
    settle().await;
    assert!(connection.can_request());
}
