//! Tests of the graceful shutdown (RFC 9113 §6.8), of the idle timeout, and of connections that begin as HTTP/1.1.

use std::sync::Arc;
use std::time::Duration;

use h2o_http::TimeLimit;
use h2o_http2::{PeerError, SHUTDOWN_GRACE, ServerConnection, Settings, StreamState};
use h2o_testkit::any_moment;

use crate::kit::frames::*;
use crate::kit::server::Conversation;

const SECOND: Duration = Duration::from_secs(1);

fn with_timeout(wait: Option<Duration>) -> Conversation {
    Conversation::with(Settings {
        graceful_shutdown_timeout: wait,
        ..Settings::default()
    })
}

#[test]
fn shutdown_announces_waits_and_names_the_last_stream() {
    let mut talk = with_timeout(None);
    talk.client_sends(get(1));
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.expect_output(
        "the graceful shutdown is announced once",
        &["GOAWAY 2147483647 NO_ERROR graceful shutdown"],
    );
    talk.client_sends(get(3));
    talk.is_waiting_for_us = true;
    assert_eq!(talk.wait(SHUTDOWN_GRACE - Duration::from_millis(1)), None);
    talk.expect_output(
        "the second GOAWAY is not sent before the grace period has passed",
        &[],
    );
    assert_eq!(talk.wait(Duration::from_millis(1)), None);
    talk.expect_output(
        "requests of the grace period are served",
        &["GOAWAY 3 NO_ERROR "],
    );
    talk.events.clear();
    talk.client_sends([get(5), rst_stream(3, 8)].concat());
    talk.expect(
        "requests above the last stream id of GOAWAY are ignored",
        &["3 reset CANCEL"],
    );
    assert!(!talk.connection.is_over());
    talk.answer(1);
    assert!(!talk.connection.is_over(), "stream 3 is still held");
    talk.release(3);
    assert!(talk.connection.is_over());
}

#[test]
fn sections_of_ignored_requests_are_decoded_all_the_same() {
    let mut talk = with_timeout(None);
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.client_sends(post(1));
    talk.is_waiting_for_us = true;
    talk.wait(SECOND);
    // The request, which the server ignores after its final GOAWAY, inserts a field into the dynamic table, to which a later
    // section refers (RFC 9113 §4.3).
    let ignored = [&block(GET)[..], b"\x40\x01a\x01b"].concat();
    talk.client_sends(frame(HEADERS, WHOLE, 3, &ignored));
    talk.client_sends(data(3, END_STREAM, b"x"));
    talk.events.clear();
    talk.client_sends(frame(HEADERS, WHOLE, 1, b"\xbe"));
    talk.expect(
        "sections of ignored streams are decoded, so the HPACK tables agree",
        &["1 trailers a=b"],
    );
}

#[test]
fn shutdown_may_be_limited_in_time() {
    let mut talk = with_timeout(Some(5 * SECOND));
    talk.client_sends(get(1));
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.is_waiting_for_us = true;
    assert_eq!(talk.wait(SHUTDOWN_GRACE), None);
    assert_eq!(talk.wait(5 * SECOND - Duration::from_millis(1)), None);
    assert_eq!(
        talk.wait(Duration::from_millis(1)),
        Some(TimeLimit::Shutdown)
    );
}

#[test]
fn shutdown_before_the_preface_says_goaway_behind_ours() {
    let mut talk = Conversation::unopened(Settings::default());
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.expect_output(
        "RFC 9113 §3.4",
        &[
            "SETTINGS 3=100 8=1",
            "WINDOW_UPDATE 0 16711681",
            "GOAWAY 2147483647 NO_ERROR graceful shutdown",
        ],
    );
    talk.client_sends([PREFACE, &settings(&[]), &get(1)].concat());
    talk.expect(
        "requests sent before the client saw GOAWAY are served",
        &["1 GET / a.example END"],
    );
    talk.expect_output("the preface is sent once", &["SETTINGS ACK"]);
}

#[test]
fn silence_ends_the_connection() {
    let mut talk = Conversation::new();
    assert_eq!(talk.wait(Duration::from_millis(9_999)), None);
    talk.connection.on_activity(talk.now);
    assert_eq!(talk.wait(Duration::from_millis(9_999)), None);
    talk.is_waiting_for_us = true;
    assert_eq!(
        talk.connection.next_timeout(true),
        None,
        "the idle timeout does not run while the client waits for the server"
    );
    talk.is_waiting_for_us = false;
    assert_eq!(talk.wait(Duration::from_millis(1)), Some(TimeLimit::Idle));
    talk.expect_output(
        "GOAWAY names the reason",
        &["GOAWAY 0 NO_ERROR idle timeout"],
    );
    talk.client_sends(get(1))
        .expect("no frame is read after the end of the connection", &[]);
    assert!(talk.connection.is_over());
}

#[test]
fn nothing_is_said_to_a_client_that_said_nothing() {
    let mut talk = Conversation::unopened(Settings::default());
    assert_eq!(talk.wait(10 * SECOND), Some(TimeLimit::Idle));
    talk.expect_output("no frame is sent to a client that has sent no preface", &[]);
}

#[test]
fn nothing_is_received_after_an_error() {
    let mut talk = Conversation::new();
    talk.client_sends(data(1, 0, b"x"));
    talk.events.clear();
    talk.output();
    talk.client_sends(get(1)).expect(
        "RFC 9113 §5.4.1: no request is read after a connection error",
        &[],
    );
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.connection.fail(PeerError::Overdrawn, &mut talk.out);
    talk.expect_output("one GOAWAY is enough", &[]);
}

#[test]
fn the_caller_may_end_the_connection() {
    let mut talk = Conversation::new();
    talk.client_sends(get(1));
    talk.connection.fail(PeerError::Overdrawn, &mut talk.out);
    talk.expect_output(
        "GOAWAY tells the client that its abuse budget is used up",
        &["GOAWAY 1 ENHANCE_YOUR_CALM the abuse budget is used up"],
    );
}

#[test]
fn goaway_of_the_client_ends_nothing() {
    let mut talk = Conversation::new();
    talk.client_sends([get(1), goaway(0, 0), get(3)].concat());
    talk.expect(
        "§6.8: GOAWAY of a client concerns only streams that the server opens",
        &["1 GET / a.example END", "3 GET / a.example END"],
    );
}

#[test]
fn an_upgraded_connection_begins_with_stream_1() {
    let now = any_moment();
    let mut out = Vec::new();
    let window = [0, 4, 0, 0, 0, 3];
    let (connection, key) =
        ServerConnection::upgraded(Arc::new(Settings::default()), &window, now, &mut out)
            .expect("the value of HTTP2-Settings is valid");
    let mut talk = Conversation::of(connection, now);
    talk.out = out;
    talk.keys.insert(1, key);
    talk.expect_output(
        "RFC 7540 §3.2: the server sends SETTINGS first",
        &["SETTINGS 3=100 8=1", "WINDOW_UPDATE 0 16711681"],
    );
    assert_eq!(talk.state(1), StreamState::HalfClosedRemote);
    talk.respond_long(1, 5);
    talk.send(9);
    talk.expect_output(
        "the window in HTTP2-Settings applies",
        &["HEADERS 1 :status=200", "DATA 1 3"],
    );
    talk.client_sends([PREFACE, &settings(&[]), &window_update(1, 9), &get(3)].concat());
    talk.send(9);
    talk.expect_output(
        "the preface is not sent again",
        &["SETTINGS ACK", "DATA 1 2 END"],
    );
    talk.expect("the next stream is 3", &["3 GET / a.example END"]);
    talk.release(1);
    talk.client_sends(get(1)).expect(
        "stream 1 belongs to the upgraded request",
        &["error HeadersOnClosed"],
    );
}

#[test]
fn an_upgrade_with_bad_settings_is_none() {
    let cases: &[(&[u8], PeerError)] = &[
        (&[0; 5], PeerError::SettingsSize),
        (&[0, 2, 0, 0, 0, 2], PeerError::SettingsValue),
        (&[0, 4, 0x80, 0, 0, 0], PeerError::SettingsWindow),
    ];
    for (payload, want) in cases {
        let settings = Arc::new(Settings::default());
        let got = ServerConnection::upgraded(settings, payload, any_moment(), &mut Vec::new());
        assert_eq!(got.err(), Some(*want));
    }
}

#[test]
fn content_of_ignored_requests_is_discarded() {
    let mut talk = with_timeout(None);
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.client_sends(post(1));
    talk.is_waiting_for_us = true;
    talk.wait(SECOND);
    talk.output();
    talk.events.clear();
    let late = [
        post(3),
        data(3, 0, b"x"),
        window_update(3, 1),
        headers(3, WHOLE, &[("x", "y")]),
        post(5),
        rst_stream(5, 8),
    ];
    talk.client_sends(late.concat());
    talk.expect("RFC 9113 §6.8", &[]);
    talk.expect_output("no frame is sent in answer to ignored requests", &[]);
    talk.client_sends(data(2, 0, b"x"));
    talk.expect_output(
        "GOAWAY names no later stream than before",
        &["GOAWAY 1 PROTOCOL_ERROR invalid DATA frame"],
    );
}

#[test]
fn nothing_is_written_behind_the_goaway_that_ends_a_connection() {
    let mut talk = Conversation::new();
    talk.client_sends(get(1));
    talk.connection.shut_down(talk.now, &mut talk.out);
    talk.output();
    (talk.connection).fail(PeerError::Overdrawn, &mut talk.out);
    talk.expect_output(
        "GOAWAY names the reason",
        &["GOAWAY 1 ENHANCE_YOUR_CALM the abuse budget is used up"],
    );
    // The client does not read the GOAWAY frame that names the reason, and the time limits of the shutdown and of idle
    // connections pass.
    let passed = talk.wait(Duration::from_secs(3600));
    assert_eq!(passed, Some(TimeLimit::Idle));
    talk.expect_output("no second GOAWAY with another reason follows", &[]);
}
