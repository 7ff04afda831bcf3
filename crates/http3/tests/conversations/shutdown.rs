//! Tests of the graceful shutdown (RFC 9114 §5.2).

use std::time::Duration;

use h2o_http3::{LocalStream, SHUTDOWN_GRACE, Settings};
use h2o_testkit::http3::{Frame, kind};

use crate::kit::server::Conversation;
use crate::kit::{GET, headers};

fn goaways(talk: &mut Conversation) -> Vec<u64> {
    let pending = talk.pending(LocalStream::Control);
    let frames = Frame::parse_all(&pending).into_iter();
    frames
        .map(|frame| {
            assert_eq!(frame.kind, kind::GOAWAY);
            frame.id()
        })
        .collect()
}

#[test]
fn two_goaways_and_then_the_end() {
    let mut talk = Conversation::new();
    talk.gets(0);
    talk.connection.shut_down(talk.now);
    talk.connection.shut_down(talk.now);
    assert_eq!(goaways(&mut talk), [(1 << 62) - 4], "once");
    assert!(talk.connection.is_shutting_down() && !talk.connection.is_over());
    assert_eq!(
        talk.connection.next_timeout(),
        Some(talk.now + SHUTDOWN_GRACE)
    );
    assert!(!talk.passes(SHUTDOWN_GRACE - Duration::from_millis(1)));
    assert_eq!(goaways(&mut talk), [0; 0]);
    // Requests that the client sent before it could know of GOAWAY are served.
    talk.gets(4);
    assert!(!talk.passes(Duration::from_millis(1)));
    assert_eq!(
        goaways(&mut talk),
        [8],
        "GOAWAY has the id of the first request that is refused"
    );
    assert_eq!(talk.connection.next_timeout(), None);
    talk.ends(8, headers(GET));
    let want = [
        "rejected H3_REQUEST_REJECTED",
        "STOP_SENDING 8 H3_REQUEST_REJECTED",
        "RESET_STREAM 8 H3_REQUEST_REJECTED",
    ];
    talk.expect("requests from the id of GOAWAY on are rejected", &want);
    for id in [0, 4] {
        assert!(!talk.connection.is_over());
        assert_eq!(talk.responds(id, 204, &[], None, true).len(), 1);
        talk.release(id);
    }
    assert!(talk.connection.is_over());
}

#[test]
fn streams_that_do_not_end_are_waited_for_as_long_as_the_site_says() {
    let mut talk = Conversation::with(Settings {
        graceful_shutdown_timeout: Some(Duration::from_secs(5)),
        ..Settings::default()
    });
    talk.gets(0);
    talk.connection.shut_down(talk.now);
    assert!(!talk.passes(SHUTDOWN_GRACE));
    let until = talk.now + Duration::from_secs(5);
    assert_eq!(talk.connection.next_timeout(), Some(until));
    assert!(!talk.passes(Duration::from_secs(4)));
    assert!(
        talk.passes(Duration::from_secs(1)),
        "the connection is to be closed after graceful-shutdown-timeout"
    );
}

#[test]
fn a_connection_without_requests_ends_after_the_grace() {
    let mut talk = Conversation::new();
    assert!(
        !talk.passes(Duration::from_secs(100)),
        "no timeout is due before the shutdown"
    );
    talk.connection.shut_down(talk.now);
    assert!(!talk.connection.is_over());
    assert!(!talk.passes(SHUTDOWN_GRACE));
    assert!(talk.connection.is_over());
    assert_eq!(goaways(&mut talk), [(1 << 62) - 4, 0]);
}
