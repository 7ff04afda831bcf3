//! HTTP/2 frame by frame, with a client made with the library h2 for Python.

use std::time::Duration;

use h2o_tests::{Server, Setup, run};

fn start() -> Server {
    start_with("")
}

fn start_with(settings: &str) -> Server {
    let large: String = (0..50_000).map(|n| format!("{n:07x} ")).collect();
    Setup::new(&format!(
        "
{settings}
listen: @PORT@
hosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }} }} }} }}
"
    ))
    .file("www/hello.txt", "hello, world")
    .file("www/large", large)
    .start()
}

/// Runs one conversation of the client `frames.py`, which fails if the server does not answer as expected.
fn talk(server: &Server, conversation: &str, argument: Option<&str>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/frames.py");
    let port = server.port().to_string();
    let mut args = vec![script, conversation, &port];
    args.extend(argument);
    let output = run("/usr/bin/python3", &args);
    assert!(
        output.code == 0 && output.text() == "ok\n",
        "{conversation}: {output}"
    );
    assert!(
        !server.messages().contains("panicked"),
        "{}",
        server.messages()
    );
}

#[test]
fn request_trailers_end_a_request() {
    talk(&start(), "trailers", None);
}

#[test]
fn priorities_change_no_content() {
    talk(&start(), "priority_frames", None);
}

#[test]
fn pings_are_answered_in_order() {
    talk(&start(), "pings", None);
}

#[test]
fn a_client_that_goes_away_gets_what_it_asked_for() {
    talk(&start(), "client_goes_away", None);
}

#[test]
fn windows_below_zero_hold_streams_until_they_are_above() {
    talk(&start(), "window_below_zero", None);
}

#[test]
fn frames_are_as_long_as_the_client_takes_at_most() {
    talk(&start(), "frame_sizes", None);
}

#[test]
fn cancelled_streams_leave_the_others_whole() {
    talk(&start(), "cancelled", None);
}

#[test]
fn heads_of_several_frames_are_read() {
    talk(&start(), "large_heads", None);
}

#[test]
fn a_connection_with_nothing_to_do_is_closed() {
    talk(&start_with("http2-idle-timeout: 1"), "idle", None);
}

#[test]
fn a_server_that_is_terminated_answers_what_was_asked_for() {
    let mut server = start();
    let pid = server.pid().to_string();
    talk(&server, "graceful_shutdown", Some(&pid));
    let status = server.wait(Duration::from_secs(10));
    assert!(status.success(), "{status}:\n{}", server.messages());
}
