//! Bodies in both directions over HTTP/2 and HTTP/3: backpressure, ends, trailers.

use bytes::Bytes;
use h2o_exchange::{Body, RequestBody, Trailers};
use h2o_http::{BodyLength, Name};

use super::kit::*;

super::over_each_version!(
    trailers_follow_the_content,
    trailers_that_come_with_the_head_are_not_lost,
    content_in_memory_is_sent_with_its_length,
    an_upload_comes_whole_and_ends,
    an_upload_that_breaks_off_resets_the_stream,
    an_upload_goes_on_behind_a_response_that_came_early,
    the_rest_of_an_upload_is_let_go_when_the_server_does_not_want_it,
    content_is_held_back_until_the_server_says_something,
);

async fn trailers_follow_the_content<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.send(stream, b"abc", false);
    server.flush().await;
    let mut body = source(reply(call).await.body);
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"abc"[..]);
    assert!(
        matches!(body.trailers(), Trailers::Unknown),
        "trailers are unknown before the end of the content"
    );
    server.end(stream, &[("grpc-status", "0")]);
    server.flush().await;
    assert!(piece(&mut body).await.is_none());
    let Trailers::Fields(fields) = body.trailers() else {
        panic!("the response has trailers");
    };
    assert_eq!(fields.get(Name::from_lower("grpc-status")), Some(&b"0"[..]));
    assert!(matches!(body.trailers(), Trailers::None));
}

async fn trailers_that_come_with_the_head_are_not_lost<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.send(stream, b"abc", false);
    server.end(stream, &[("grpc-status", "0")]);
    server.flush().await;
    let mut body = source(reply(call).await.body);
    assert_eq!(content(&mut body).await, Ok(b"abc".to_vec()));
    assert!(matches!(body.trailers(), Trailers::Fields(_)));
}

async fn content_in_memory_is_sent_with_its_length<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let body = RequestBody::Bytes(Bytes::from(vec![7; 400_000]));
    let call = call(&connection, post(BodyLength::Known(400_000)), body);
    let (stream, head) = server.request().await;
    assert_eq!(head.body, BodyLength::Known(400_000));
    let (all, end) = server.content(stream, usize::MAX).await;
    assert!(end && all == [7; 400_000]);
    server.answer(stream, "ok").await;
    assert_eq!(reply(call).await.status.as_u16(), 200);
}

async fn an_upload_comes_whole_and_ends<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let (pipe, body) = pipe();
    let call = call(&connection, post(BodyLength::Unknown), body);
    let (stream, head) = server.request().await;
    assert_eq!(head.body, BodyLength::Unknown);
    pipe.push("begin");
    assert_eq!(server.content(stream, 5).await, (b"begin".to_vec(), false));
    for _ in 0..10 {
        pipe.push(vec![1; 60_000]);
        assert_eq!(server.content(stream, 60_000).await.0.len(), 60_000);
    }
    pipe.push("end");
    pipe.finish(Ok(()));
    assert_eq!(
        server.content(stream, usize::MAX).await,
        (b"end".to_vec(), true)
    );
    server.answer(stream, "ok").await;
    assert_eq!(reply(call).await.status.as_u16(), 200);
    settle().await;
    assert_eq!(connection.request_count(), 0);
}

async fn an_upload_that_breaks_off_resets_the_stream<S: Server>() {
    let cases: [(BodyLength, Result<(), String>); 2] = [
        (BodyLength::Unknown, Err("the client is gone".into())),
        (BodyLength::Known(6), Ok(())),
    ];
    for (length, end) in cases {
        let (connection, mut server) = S::start(settings()).await;
        let (pipe, body) = pipe();
        let call = call(&connection, post(length), body);
        let (stream, _) = server.request().await;
        pipe.push(b"abc");
        assert_eq!(server.content(stream, 3).await, (b"abc".to_vec(), false));
        pipe.finish(end);
        server.cancelled(stream).await;
        assert_eq!(failure(call).await.text, "I/O error");
    }
}

async fn an_upload_goes_on_behind_a_response_that_came_early<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let (pipe, body) = pipe();
    let call = call(&connection, post(BodyLength::Unknown), body);
    let (stream, _) = server.request().await;
    pipe.push(b"abc");
    assert_eq!(server.content(stream, 3).await, (b"abc".to_vec(), false));
    // The server responds before the upload has ended, and still reads the upload.
    server.respond(stream, 200, &[], None, false);
    server.send(stream, b"early", false);
    server.flush().await;
    let mut body = source(reply(call).await.body);
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"early"[..]);
    pipe.push(b"def");
    assert_eq!(server.content(stream, 3).await, (b"def".to_vec(), false));
    pipe.finish(Ok(()));
    assert_eq!(server.content(stream, 1).await, (Vec::new(), true));
    server.send(stream, b"", true);
    server.flush().await;
    assert!(piece(&mut body).await.is_none());
}

async fn the_rest_of_an_upload_is_let_go_when_the_server_does_not_want_it<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let (pipe, body) = pipe();
    let call = call(&connection, post(BodyLength::Unknown), body);
    let (stream, _) = server.request().await;
    pipe.push(b"abc");
    assert_eq!(server.content(stream, 3).await, (b"abc".to_vec(), false));
    // The response is complete, and the server wants no more of the request (RFC 9113 §8.1, RFC 9114 §4.1).
    server.answer(stream, "enough").await;
    let reply = reply(call).await;
    assert_eq!(reply.status.as_u16(), 200);
    settle().await;
    assert!(pipe.is_abandoned());
    let bytes = match reply.body {
        Body::Bytes(bytes) => bytes.to_vec(),
        body => content(&mut source(body)).await.unwrap(),
    };
    assert_eq!(
        bytes, b"enough",
        "the response is used although the rest of the upload was not wanted"
    );
    settle().await;
    assert_eq!(connection.request_count(), 0);
}

async fn content_is_held_back_until_the_server_says_something<S: Server>() {
    for status in [100, 200] {
        let (connection, mut server) = S::start(settings()).await;
        let told = InterimResponses::default();
        let seen = Some(std::rc::Rc::clone(&told));
        let body = RequestBody::Bytes(Bytes::from_static(b"abc"));
        let call = call_with(&connection, post(BodyLength::Known(3)), body, true, seen);
        let (stream, _) = server.request().await;
        let early = tokio::time::timeout(SECOND, server.next());
        assert!(
            early.await.is_err(),
            "no content is sent before 100 (Continue)"
        );
        if status == 100 {
            server.inform(stream, status, &[]);
        } else {
            server.respond(stream, status, &[], None, false);
        }
        server.flush().await;
        assert_eq!(
            server.content(stream, usize::MAX).await,
            (b"abc".to_vec(), true),
            "{status}"
        );
        assert!(
            told.borrow().is_empty(),
            "the 100 (Continue) is for the proxy and is not forwarded"
        );
        if status == 100 {
            server.answer(stream, "x").await;
        }
        assert_eq!(reply(call).await.status.as_u16(), 200);
    }
}
