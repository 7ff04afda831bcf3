//! Behaviour of requests that only HTTP/3 has.

use tokio::time::{Instant, sleep};

use super::http3_server::Http3Server;
use super::kit::*;
use crate::multiplexed::StreamSettings;

/// If the client does not read a response, the bytes held of it are bounded, other responses continue, and nothing is lost.
#[test]
fn a_client_that_does_not_read_holds_the_server_back() {
    const LEN: usize = 1_000_000;
    const WINDOW: u32 = 40_000;
    run(async {
        let (connection, mut server) = Http3Server::start(StreamSettings {
            window: WINDOW,
            ..settings()
        })
        .await;
        let slow = ask(&connection, "/slow");
        let (stream, _) = server.request().await;
        let whole: Vec<u8> = (0..=250).cycle().take(LEN).collect();
        server.respond(stream, 200, &[], Some(LEN as u64), false);
        server.send(stream, &whole, true);
        server.flush().await;
        let mut body = source(reply(slow).await.body);
        let other = ask(&connection, "/other");
        let (second, _) = server.request().await;
        server.answer(second, "x").await;
        assert_eq!(reply(other).await.status.as_u16(), 200);
        sleep(10 * SECOND).await;
        let held = body.retained();
        assert!(0 < held && held <= WINDOW as usize, "{held}");
        let got = content(&mut body).await;
        assert!(got == Ok(whole));
    });
}

/// A new backend at the address of an old one does not know the connection. To this side, that looks like silence.
#[test]
fn a_backend_that_acknowledges_nothing_is_soon_doubted_and_then_given_up() {
    run(async {
        let (connection, mut server) = Http3Server::start(StreamSettings {
            first_byte_timeout: 1000 * SECOND,
            io_timeout: 1000 * SECOND,
            keepalive: 1000 * SECOND,
            ..settings()
        })
        .await;
        let first = ask(&connection, "/");
        let (stream, _) = server.request().await;
        server.answer(stream, "x").await;
        reply(first).await;
        // A backend that responds late still acknowledges packets at once, so the connection stays in use.
        let late = ask(&connection, "/");
        let (stream, _) = server.request().await;
        sleep(100 * SECOND).await;
        assert!(connection.can_request());
        server.answer(stream, "x").await;
        reply(late).await;
        server.fall_silent();
        let began = Instant::now();
        let lost = ask(&connection, "/");
        sleep(2 * SECOND).await;
        assert!(
            !connection.can_request(),
            "requests avoid a connection that does not answer"
        );
        assert_eq!(failure(lost).await.text, "I/O error");
        let took = began.elapsed();
        assert!(4 * SECOND < took && took < 8 * SECOND, "{took:?}");
        assert!(connection.is_lost.get() && !connection.is_reusable());
    });
}
