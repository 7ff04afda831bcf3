//! Requests and connections that end early, and requests that wait while their connection ends.

use h2o_http::BodyLength;
use tokio::time::{Instant, sleep};

use super::kit::*;
use crate::FailureCause;
use crate::multiplexed::StreamSettings;

super::over_each_version!(
    a_refused_stream_may_be_tried_again,
    a_server_that_leaves_finishes_what_it_has_begun,
    resets_and_closed_connections_are_io_errors,
    the_first_byte_is_waited_for_from_the_end_of_the_request,
    a_silent_response_is_given_up,
    a_slow_client_is_not_the_servers_fault,
    idle_connections_end_after_keepalive,
    without_keepalive_a_connection_ends_with_its_requests,
);

async fn a_refused_stream_may_be_tried_again<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.reset(stream, Reset::Refused);
    server.flush().await;
    let failure = failure(call).await;
    assert_eq!(failure.text, "refused stream");
    assert!(failure.refused && failure.cause == FailureCause::NotSent);
    settle().await;
    assert!(connection.can_request());
}

async fn a_server_that_leaves_finishes_what_it_has_begun<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/1");
    let (stream, _) = server.request().await;
    server.leave();
    server.flush().await;
    settle().await;
    assert!(!connection.can_request() && !connection.is_reusable());
    server.answer(stream, "hello").await;
    let reply = reply(call).await;
    assert_eq!(reply.length, Some(5));
    drop(reply);
    assert!(matches!(server.next().await, ServerEvent::Closed));
}

async fn resets_and_closed_connections_are_io_errors<S: Server>() {
    // The stream is reset before the head of the response.
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.reset(stream, Reset::Failed);
    server.flush().await;
    let failed = failure(call).await;
    assert_eq!(
        (&*failed.text, failed.cause),
        ("I/O error", FailureCause::NotAnswered)
    );
    // The stream is reset within the body of the response: the bytes that were received are passed on.
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.send(stream, b"abc", false);
    server.flush().await;
    server.reset(stream, Reset::Failed);
    server.flush().await;
    let mut body = source(reply(call).await.body);
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), b"abc"[..]);
    assert_eq!(content(&mut body).await, Err("I/O error".into()));
    // The server closes the connection.
    let waiting = ask(&connection, "/");
    let reading = ask(&connection, "/");
    server.request().await;
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.flush().await;
    let mut body = source(reply(reading).await.body);
    drop(server);
    assert_eq!(failure(waiting).await.text, "I/O error");
    assert_eq!(content(&mut body).await, Err("I/O error".into()));
    assert!(!connection.can_request());
    assert_eq!(failure(ask(&connection, "/")).await.text, "I/O error");
}

async fn the_first_byte_is_waited_for_from_the_end_of_the_request<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let (pipe, body) = pipe();
    let began = Instant::now();
    let upload = call(&connection, post(BodyLength::Unknown), body);
    let (uploading, _) = server.request().await;
    sleep(10 * SECOND).await;
    assert!(
        !upload.is_finished(),
        "the timeout for the first byte starts when the request is complete"
    );
    pipe.finish(Ok(()));
    assert_eq!(server.content(uploading, 1).await, (Vec::new(), true));
    let failed = failure(upload).await;
    assert_eq!(
        (&*failed.text, failed.cause),
        ("first byte timeout", FailureCause::TimedOut)
    );
    let took = began.elapsed();
    assert!(14 * SECOND < took && took < 17 * SECOND, "{took:?}");
    server.cancelled(uploading).await;
    // The timeout of one request does not end the connection, which still accepts requests.
    assert!(connection.can_request());
}

async fn a_silent_response_is_given_up<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.flush().await;
    let mut body = source(reply(call).await.body);
    let began = Instant::now();
    assert_eq!(content(&mut body).await, Err("I/O timeout".into()));
    let took = began.elapsed();
    assert!(29 * SECOND < took && took < 61 * SECOND, "{took:?}");
    assert!(!connection.can_request());
}

async fn a_slow_client_is_not_the_servers_fault<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.respond(stream, 200, &[], None, false);
    server.send(stream, &[1; 1000], false);
    server.flush().await;
    let mut body = source(reply(call).await.body);
    sleep(100 * SECOND).await;
    assert_eq!(piece(&mut body).await.unwrap().unwrap().len(), 1000);
    // The client has taken everything that the server has sent, so now the server must send more.
    let began = Instant::now();
    assert_eq!(content(&mut body).await, Err("I/O timeout".into()));
    let took = began.elapsed();
    assert!(29 * SECOND < took && took < 61 * SECOND, "{took:?}");
}

async fn idle_connections_end_after_keepalive<S: Server>() {
    let (connection, mut server) = S::start(settings()).await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    server.answer(stream, "x").await;
    reply(call).await;
    let began = Instant::now();
    assert!(matches!(server.next().await, ServerEvent::Closed));
    let took = began.elapsed();
    assert!(SECOND < took && took < 3 * SECOND, "{took:?}");
    assert!(!connection.can_request());
}

async fn without_keepalive_a_connection_ends_with_its_requests<S: Server>() {
    let (connection, mut server) = S::start(StreamSettings {
        keepalive: std::time::Duration::ZERO,
        ..settings()
    })
    .await;
    let call = ask(&connection, "/");
    let (stream, _) = server.request().await;
    sleep(SECOND).await;
    server.answer(stream, "x").await;
    reply(call).await;
    let began = Instant::now();
    assert!(matches!(server.next().await, ServerEvent::Closed));
    assert!(began.elapsed() < SECOND / 2);
}
