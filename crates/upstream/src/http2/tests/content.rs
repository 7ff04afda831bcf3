//! Bodies in both directions over HTTP/2: windows, backpressure, ends, trailers.

use h2o_exchange::BodyPipe;
use h2o_http::BodyLength;
use h2o_http2::ErrorCode;

use super::kit::*;

#[test]
fn the_server_sends_one_window_ahead_of_the_client() {
    run(async {
        let (connection, mut server) = start(with_window(1000));
        let call = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.respond(stream, 200, &[], false);
        assert_eq!(
            server.engine.sendable(stream),
            1000,
            "the upload may fill the window that the client has announced"
        );
        server.send(stream, &[1; 1000], false);
        server.flush().await;
        let mut body = source(reply(call).await.body);
        settle().await;
        assert_eq!(server.engine.sendable(stream), 0);
        // The client takes so few bytes that no WINDOW_UPDATE is sent.
        let piece = std::future::poll_fn(|task| body.poll_next(task, 100)).await;
        assert_eq!(piece.unwrap().unwrap().len(), 100);
        let piece = std::future::poll_fn(|task| body.poll_next(task, 10_000)).await;
        assert_eq!(piece.unwrap().unwrap().len(), 900);
        settle().await;
        // The server reads the WINDOW_UPDATE while it waits for the next request.
        let other = ask(&connection, "/");
        server.request().await;
        assert_eq!(server.engine.sendable(stream), 1000);
        server.send(stream, &[2; 10], true);
        server.flush().await;
        assert_eq!(content(&mut body).await, Ok(vec![2; 10]));
        drop(other);
    });
}

#[test]
fn the_end_of_an_upload_that_is_known_needs_no_frame_of_its_own() {
    run(async {
        let (connection, mut server) = start(settings());
        let (pipe, body) = pipe();
        let call = call(&connection, post(BodyLength::Unknown), body);
        let (stream, _) = server.request().await;
        pipe.push("begin");
        assert_eq!(server.data(stream).await, (b"begin".to_vec(), false));
        pipe.push("end");
        pipe.finish(Ok(()));
        assert_eq!(server.data(stream).await, (b"end".to_vec(), true));
        server.answer(stream, "ok").await;
        assert_eq!(reply(call).await.status.as_u16(), 200);
    });
}

#[test]
fn uploads_go_as_far_as_the_servers_window() {
    run(async {
        let (connection, mut server) = start(settings());
        let (pipe, body) = pipe();
        let call = call(&connection, post(BodyLength::Unknown), body);
        let (stream, head) = server.request().await;
        assert_eq!(head.body, BodyLength::Unknown);
        // The window is 65535 bytes; the bytes beyond it stay in the pipe.
        pipe.push(vec![1; 60_000]);
        settle().await;
        pipe.push(vec![2; 60_000]);
        settle().await;
        pipe.push(vec![3; BodyPipe::CAPACITY]);
        settle().await;
        assert!(!has_room(&pipe), "the upload waits for the server's window");
        let mut all = Vec::new();
        while all.len() < 65_535 {
            let (data, end) = server.data(stream).await;
            assert!(!end);
            all.extend(data);
        }
        assert_eq!(all.len(), 65_535);
        settle().await;
        assert!(
            !has_room(&pipe),
            "the upload waits until the server sends WINDOW_UPDATE"
        );
        server
            .engine
            .release_content(stream, all.len(), &mut server.out);
        server.flush().await;
        settle().await;
        assert!(has_room(&pipe));
        pipe.finish(Ok(()));
        loop {
            let (data, end) = server.data(stream).await;
            server
                .engine
                .release_content(stream, data.len(), &mut server.out);
            all.extend(data);
            if end {
                break;
            }
        }
        assert_eq!(all.len(), 120_000 + BodyPipe::CAPACITY);
        server.answer(stream, "ok").await;
        reply(call).await;
    });
}

#[test]
fn the_last_frame_of_a_known_length_ends_the_stream() {
    run(async {
        let (connection, mut server) = start(settings());
        let (pipe, body) = pipe();
        let _call = call(&connection, post(BodyLength::Known(6)), body);
        let (stream, _) = server.request().await;
        pipe.push(b"abc");
        assert_eq!(server.data(stream).await, (b"abc".to_vec(), false));
        pipe.push(b"def");
        assert_eq!(server.data(stream).await, (b"def".to_vec(), true));
    });
}

/// How the upload ends after the response is complete; the body of the response ends at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UploadEnd {
    Sent,
    ClientGone,
    /// The server sends RST_STREAM(NO_ERROR) (RFC 9113 §8.1).
    NotWanted,
    ConnectionClosed,
    /// The server reads no more, until the timeout.
    Stalled,
}

#[test]
fn for_a_client_with_one_request_at_a_time_the_response_ends_with_the_upload() {
    for answer in [&b"early"[..], b""] {
        for end in [
            UploadEnd::Sent,
            UploadEnd::ClientGone,
            UploadEnd::NotWanted,
            UploadEnd::ConnectionClosed,
            UploadEnd::Stalled,
        ] {
            run(async move {
                let (connection, mut server) = start(settings());
                let (pipe, body) = pipe();
                let head = post(BodyLength::Unknown);
                let call = call_that_ends_with_its_upload(&connection, &head, body);
                let (stream, _) = server.request().await;
                pipe.push(b"abc");
                assert_eq!(server.data(stream).await, (b"abc".to_vec(), false));
                // The response is complete, but the server has not released the stream: it still reads.
                server.respond(stream, 200, &[], false);
                (server.engine).send_data(stream, answer, true, &mut server.out);
                server.flush().await;
                let reply = reply(call).await;
                assert_eq!(reply.length, Some(answer.len() as u64), "{end:?}");
                let mut body = source(reply.body);
                if !answer.is_empty() {
                    assert_eq!(piece(&mut body).await.unwrap().unwrap(), answer);
                }
                let mut body =
                    tokio::task::spawn_local(async move { piece(&mut body).await.is_none() });
                settle().await;
                assert!(
                    !body.is_finished(),
                    "{end:?}: the body of the response ends before the upload"
                );
                match end {
                    UploadEnd::Sent => {
                        pipe.push(b"def");
                        assert_eq!(server.data(stream).await, (b"def".to_vec(), false));
                        pipe.finish(Ok(()));
                        assert_eq!(server.data(stream).await, (Vec::new(), true));
                    }
                    UploadEnd::ClientGone => {
                        pipe.finish(Err("the client is gone".into()));
                        assert_eq!(server.reset(stream).await, ErrorCode::CANCEL);
                    }
                    UploadEnd::NotWanted => {
                        server.engine.release(stream, &mut server.out);
                        server.flush().await;
                    }
                    UploadEnd::ConnectionClosed => drop(server),
                    UploadEnd::Stalled => pipe.push(vec![0; 100_000]),
                }
                assert_eq!((&mut body).await.ok(), Some(true), "{end:?}");
                settle().await;
                assert!(
                    pipe.is_abandoned(),
                    "{end:?}: the request body is not abandoned"
                );
                let is_connection_over =
                    matches!(end, UploadEnd::ConnectionClosed | UploadEnd::Stalled);
                if !is_connection_over {
                    assert_eq!(connection.request_count(), 0, "{end:?}");
                }
            });
        }
    }
}

#[test]
fn an_end_in_a_frame_of_its_own_is_waited_for() {
    run(async {
        let (connection, mut server) = start(settings());
        let call = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.respond_with(stream, 200, &[], Some(3), false);
        server.send(stream, b"abc", false);
        server.flush().await;
        let reply = reply(call).await;
        let mut body = source(reply.body);
        assert_eq!(
            (reply.length, piece(&mut body).await.unwrap().unwrap()),
            (Some(3), b"abc"[..].into())
        );
        // The whole announced length has arrived, so dropping the response body does not reset the stream, although END_STREAM is
        // still to come.
        drop(body);
        settle().await;
        assert_eq!(connection.request_count(), 1, "the stream is not reset");
        server.send(stream, b"", true);
        server.flush().await;
        settle().await;
        assert_eq!(connection.request_count(), 0);
        let next = ask(&connection, "/");
        server.request().await;
        drop(next);
    });
}
