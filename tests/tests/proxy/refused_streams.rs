//! Streams that an HTTP/2 backend has refused without processing: the client is told that it may retry.

use h2o_tests::http2::{Frame, code};
use h2o_tests::{Backend, Talk};

use super::http2_upstream::{Frames, Seen, ask_http1, ask_http2, start};

#[test]
fn a_refusal_is_passed_on() {
    for refusal in [
        Frame::rst_stream(1, code::REFUSED_STREAM),
        Frame::goaway(0, code::NO_ERROR, ""),
    ] {
        for is_http2 in [true, false] {
            let refusal = refusal.clone();
            let backend = Backend::start(move |talk: &mut Talk| {
                let Some(mut connection) = Frames::new(talk) else {
                    return;
                };
                connection.send(&[Frame::settings(&[])]);
                if connection.read_request().is_some() {
                    connection.send(std::slice::from_ref(&refusal));
                    connection.talk.read_to_end();
                }
            });
            let server = start(&backend);
            if is_http2 {
                let reset = Some(code::REFUSED_STREAM);
                assert_eq!(ask_http2(&server), Seen::Nothing(reset));
            } else {
                // HTTP/1 has no such signal: the connection is closed without a response.
                assert_eq!(ask_http1(&server), Seen::Nothing(None));
            }
            server.wait_for_message("/x:refused stream\n");
        }
    }
}
