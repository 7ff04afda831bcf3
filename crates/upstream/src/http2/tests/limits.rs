//! Limits on the memory that a backend can make us use.

use h2o_http2::frame::{self, FrameType, StreamId, flags};

use super::kit::*;

#[test]
fn informational_responses_without_end_are_not_kept() {
    run(async {
        let (connection, socket) = link(settings());
        let call = ask(&connection, "/");
        let mut bare = Bare::new(socket).await;
        // A HEADERS frame with `:status: 103`, as a literal.
        let mut out = Vec::new();
        for _ in 0..10_000 {
            let header = frame::header(5, FrameType::HEADERS, flags::END_HEADERS, StreamId::new(1));
            out.extend_from_slice(&header);
            out.extend_from_slice(b"\x08\x03103");
        }
        bare.send(&out).await;
        assert_eq!(&*failure(call).await.text, "protocol violation");
    });
}

#[test]
fn small_frames_cost_no_more_than_their_bytes() {
    run(async {
        let (connection, mut server) = start(with_window(20_000));
        let call = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.respond(stream, 200, &[], false);
        for _ in 0..20_000 {
            server.send(stream, b"x", false);
        }
        server.flush().await;
        settle().await;
        let mut body = source(reply(call).await.body);
        let first = std::future::poll_fn(|task| body.poll_next(task, 16_384)).await;
        assert_eq!(
            first.unwrap().unwrap().len(),
            16_384,
            "bytes of small frames are joined to one piece"
        );
    });
}
