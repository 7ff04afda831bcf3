//! Tests every state of a connection with every event: its setup and graceful shutdown (RFC 9113 §3.4, §6.8), and failure.

use std::time::Duration;

use h2o_http2::PeerError;

use crate::kit::frames::*;

const SECOND: Duration = Duration::from_secs(1);

mod of_server {
    use h2o_http2::Settings;

    use super::*;
    use crate::kit::server::Conversation;

    type Act = fn(&mut Conversation);
    /// The name of a state, how a connection gets into it, and the name and expected result of each event.
    type State = (&'static str, Act, &'static [(&'static str, &'static str)]);

    const EVENTS: [(&str, Act); 15] = [
        ("the preface", |talk| {
            talk.client_sends(PREFACE);
        }),
        ("half a preface", |talk| {
            talk.client_sends(&PREFACE[..9]);
        }),
        ("HTTP/1", |talk| {
            talk.client_sends("GET / HTTP/1.1\r\n");
        }),
        ("SETTINGS", |talk| {
            talk.client_sends(settings(&[]));
        }),
        ("SETTINGS ACK", |talk| {
            talk.client_sends(frame(SETTINGS, ACK, 0, b""));
        }),
        ("PING", |talk| {
            talk.client_sends(frame(PING, 0, 0, b"12345678"));
        }),
        ("a request", |talk| {
            talk.client_sends(get(7));
        }),
        ("a request with a lower identifier", |talk| {
            talk.client_sends(get(3));
        }),
        ("GOAWAY", |talk| {
            talk.client_sends(goaway(0, 0));
        }),
        ("an error", |talk| {
            talk.client_sends(frame(PING, 0, 0, b"short"));
        }),
        ("shut_down", |talk| {
            talk.connection.shut_down(talk.now, &mut talk.out);
        }),
        ("fail", |talk| {
            (talk.connection).fail(PeerError::Overdrawn, &mut talk.out);
        }),
        ("a second passes", |talk| {
            let passed = talk.wait(SECOND);
            note(talk, passed);
        }),
        ("a minute passes", |talk| {
            let passed = talk.wait(60 * SECOND);
            note(talk, passed);
        }),
        ("a minute passes, while a handler is at work", |talk| {
            talk.is_waiting_for_us = true;
            let passed = talk.wait(60 * SECOND);
            note(talk, passed);
        }),
    ];

    fn note(talk: &mut Conversation, passed: Option<h2o_http::TimeLimit>) {
        talk.events
            .extend(passed.map(|limit| format!("passed {limit:?}")));
    }

    fn unopened() -> Conversation {
        Conversation::unopened(Settings {
            idle_timeout: 10 * SECOND,
            graceful_shutdown_timeout: Some(30 * SECOND),
            ..Settings::default()
        })
    }

    /// The result of an event in words: what the engine reports, the frames that it writes, and the connection's properties
    /// afterwards.
    fn outcome(enter: Act, event: Act) -> String {
        let mut talk = unopened();
        enter(&mut talk);
        talk.output();
        talk.events.clear();
        event(&mut talk);
        let mut words = std::mem::take(&mut talk.events);
        words.extend(talk.output());
        let timed = match talk.connection.next_timeout(talk.is_waiting_for_us) {
            Some(at) if at > talk.now => format!("-> {} s", (at - talk.now).as_secs()),
            Some(_) => "-> due".to_owned(),
            None => "-> untimed".to_owned(),
        };
        words.push(timed);
        if talk.connection.is_over() {
            words.push("over".to_owned());
        }
        words.join(", ")
    }

    #[test]
    fn a_field_block_that_cannot_be_decoded_ends_a_draining_connection_too() {
        let mut talk = unopened();
        talk.open(&[]).client_sends(get(5));
        talk.connection.shut_down(talk.now, &mut talk.out);
        talk.is_waiting_for_us = true;
        talk.wait(SECOND);
        talk.output();
        talk.events.clear();
        // Index 0 of the static table does not exist.
        let block = b"\x80";
        talk.client_sends(frame(HEADERS, END_HEADERS | END_STREAM, 7, block));
        let said = [std::mem::take(&mut talk.events), talk.output()].concat();
        assert_eq!(said, ["error Compression", "GOAWAY 5 COMPRESSION_ERROR "]);
    }

    #[test]
    fn the_server_role_takes_each_event_as_the_state_says() {
        let states: [State; 9] = [
            (
                "new",
                |_| {},
                &[
                    (
                        "the preface",
                        "SETTINGS 3=100 8=1, WINDOW_UPDATE 0 16711681, -> 10 s",
                    ),
                    ("half a preface", "-> 10 s"),
                    ("HTTP/1", "error NotPreface, -> 10 s, over"),
                    ("SETTINGS", "error NotPreface, -> 10 s, over"),
                    ("SETTINGS ACK", "error NotPreface, -> 10 s, over"),
                    ("PING", "error NotPreface, -> 10 s, over"),
                    ("a request", "error NotPreface, -> 10 s, over"),
                    (
                        "a request with a lower identifier",
                        "error NotPreface, -> 10 s, over",
                    ),
                    ("GOAWAY", "error NotPreface, -> 10 s, over"),
                    ("an error", "error NotPreface, -> 10 s, over"),
                    (
                        "shut_down",
                        "SETTINGS 3=100 8=1, WINDOW_UPDATE 0 16711681, GOAWAY 2147483647 NO_ERROR graceful shutdown, -> 1 s",
                    ),
                    ("fail", "-> 10 s, over"),
                    ("a second passes", "-> 9 s"),
                    ("a minute passes", "passed Idle, -> due, over"),
                    ("a minute passes, while a handler is at work", "-> untimed"),
                ],
            ),
            (
                "within the preface",
                |talk| {
                    talk.client_sends(&PREFACE[..10]);
                },
                &[
                    ("the preface", "error NotPreface, -> 10 s, over"),
                    ("half a preface", "error NotPreface, -> 10 s, over"),
                    ("HTTP/1", "error NotPreface, -> 10 s, over"),
                    ("SETTINGS", "error NotPreface, -> 10 s, over"),
                    ("SETTINGS ACK", "error NotPreface, -> 10 s, over"),
                    ("PING", "error NotPreface, -> 10 s, over"),
                    ("a request", "error NotPreface, -> 10 s, over"),
                    (
                        "a request with a lower identifier",
                        "error NotPreface, -> 10 s, over",
                    ),
                    ("GOAWAY", "error NotPreface, -> 10 s, over"),
                    ("an error", "error NotPreface, -> 10 s, over"),
                    (
                        "shut_down",
                        "SETTINGS 3=100 8=1, WINDOW_UPDATE 0 16711681, GOAWAY 2147483647 NO_ERROR graceful shutdown, -> 1 s",
                    ),
                    ("fail", "-> 10 s, over"),
                    ("a second passes", "-> 9 s"),
                    ("a minute passes", "passed Idle, -> due, over"),
                    ("a minute passes, while a handler is at work", "-> untimed"),
                ],
            ),
            (
                "before the client's SETTINGS",
                |talk| {
                    talk.client_sends(PREFACE);
                },
                &[
                    (
                        "the preface",
                        "error FrameTooLong, GOAWAY 0 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "half a preface",
                        "error FrameTooLong, GOAWAY 0 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "HTTP/1",
                        "error FrameTooLong, GOAWAY 0 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    ("SETTINGS", "SETTINGS ACK, -> 10 s"),
                    (
                        "SETTINGS ACK",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, -> 10 s, over",
                    ),
                    (
                        "PING",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, -> 10 s, over",
                    ),
                    (
                        "a request",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, -> 10 s, over",
                    ),
                    (
                        "a request with a lower identifier",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, -> 10 s, over",
                    ),
                    (
                        "GOAWAY",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, -> 10 s, over",
                    ),
                    (
                        "an error",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, -> 10 s, over",
                    ),
                    (
                        "shut_down",
                        "GOAWAY 2147483647 NO_ERROR graceful shutdown, -> 1 s",
                    ),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, -> 10 s, over",
                    ),
                    ("a second passes", "-> 9 s"),
                    (
                        "a minute passes",
                        "passed Idle, GOAWAY 0 NO_ERROR idle timeout, -> due, over",
                    ),
                    ("a minute passes, while a handler is at work", "-> untimed"),
                ],
            ),
            (
                "open",
                |talk| {
                    talk.open(&[]);
                },
                &[
                    (
                        "the preface",
                        "error FrameTooLong, GOAWAY 0 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "half a preface",
                        "error FrameTooLong, GOAWAY 0 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "HTTP/1",
                        "error FrameTooLong, GOAWAY 0 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    ("SETTINGS", "SETTINGS ACK, -> 10 s"),
                    ("SETTINGS ACK", "-> 10 s"),
                    ("PING", "PING 1 12345678, -> 10 s"),
                    ("a request", "7 GET / a.example END, -> 10 s"),
                    (
                        "a request with a lower identifier",
                        "3 GET / a.example END, -> 10 s",
                    ),
                    ("GOAWAY", "-> 10 s"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 0 FRAME_SIZE_ERROR invalid PING frame, -> 10 s, over",
                    ),
                    (
                        "shut_down",
                        "GOAWAY 2147483647 NO_ERROR graceful shutdown, -> 1 s",
                    ),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, -> 10 s, over",
                    ),
                    ("a second passes", "-> 9 s"),
                    (
                        "a minute passes",
                        "passed Idle, GOAWAY 0 NO_ERROR idle timeout, -> due, over",
                    ),
                    ("a minute passes, while a handler is at work", "-> untimed"),
                ],
            ),
            (
                "open, with a request",
                |talk| {
                    talk.open(&[]).client_sends(get(5));
                },
                &[
                    (
                        "the preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "half a preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "HTTP/1",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    ("SETTINGS", "SETTINGS ACK, -> 10 s"),
                    ("SETTINGS ACK", "-> 10 s"),
                    ("PING", "PING 1 12345678, -> 10 s"),
                    ("a request", "7 GET / a.example END, -> 10 s"),
                    (
                        "a request with a lower identifier",
                        "error HeadersOnClosed, GOAWAY 5 STREAM_CLOSED closed stream id in HEADERS frame, -> 10 s, over",
                    ),
                    ("GOAWAY", "-> 10 s"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 5 FRAME_SIZE_ERROR invalid PING frame, -> 10 s, over",
                    ),
                    (
                        "shut_down",
                        "GOAWAY 2147483647 NO_ERROR graceful shutdown, -> 1 s",
                    ),
                    (
                        "fail",
                        "GOAWAY 5 ENHANCE_YOUR_CALM the abuse budget is used up, -> 10 s, over",
                    ),
                    ("a second passes", "-> 9 s"),
                    (
                        "a minute passes",
                        "passed Idle, GOAWAY 5 NO_ERROR idle timeout, -> due, over",
                    ),
                    ("a minute passes, while a handler is at work", "-> untimed"),
                ],
            ),
            (
                "about to shut down",
                |talk| {
                    talk.open(&[]).client_sends(get(5));
                    talk.connection.shut_down(talk.now, &mut talk.out);
                },
                &[
                    (
                        "the preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "half a preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    (
                        "HTTP/1",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 10 s, over",
                    ),
                    ("SETTINGS", "SETTINGS ACK, -> 1 s"),
                    ("SETTINGS ACK", "-> 1 s"),
                    ("PING", "PING 1 12345678, -> 1 s"),
                    ("a request", "7 GET / a.example END, -> 1 s"),
                    (
                        "a request with a lower identifier",
                        "error HeadersOnClosed, GOAWAY 5 STREAM_CLOSED closed stream id in HEADERS frame, -> 10 s, over",
                    ),
                    ("GOAWAY", "-> 1 s"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 5 FRAME_SIZE_ERROR invalid PING frame, -> 10 s, over",
                    ),
                    ("shut_down", "-> 1 s"),
                    (
                        "fail",
                        "GOAWAY 5 ENHANCE_YOUR_CALM the abuse budget is used up, -> 10 s, over",
                    ),
                    ("a second passes", "GOAWAY 5 NO_ERROR , -> 9 s"),
                    (
                        "a minute passes",
                        "passed Idle, GOAWAY 5 NO_ERROR , GOAWAY 5 NO_ERROR idle timeout, -> due, over",
                    ),
                    (
                        "a minute passes, while a handler is at work",
                        "passed Shutdown, GOAWAY 5 NO_ERROR , -> due",
                    ),
                ],
            ),
            (
                "draining",
                |talk| {
                    talk.open(&[]).client_sends(get(5));
                    talk.connection.shut_down(talk.now, &mut talk.out);
                    talk.is_waiting_for_us = true;
                    talk.wait(SECOND);
                    talk.is_waiting_for_us = false;
                },
                &[
                    (
                        "the preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 9 s, over",
                    ),
                    (
                        "half a preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 9 s, over",
                    ),
                    (
                        "HTTP/1",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 9 s, over",
                    ),
                    ("SETTINGS", "SETTINGS ACK, -> 9 s"),
                    ("SETTINGS ACK", "-> 9 s"),
                    ("PING", "PING 1 12345678, -> 9 s"),
                    ("a request", "-> 9 s"),
                    (
                        "a request with a lower identifier",
                        "error HeadersOnClosed, GOAWAY 5 STREAM_CLOSED closed stream id in HEADERS frame, -> 9 s, over",
                    ),
                    ("GOAWAY", "-> 9 s"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 5 FRAME_SIZE_ERROR invalid PING frame, -> 9 s, over",
                    ),
                    ("shut_down", "-> 9 s"),
                    (
                        "fail",
                        "GOAWAY 5 ENHANCE_YOUR_CALM the abuse budget is used up, -> 9 s, over",
                    ),
                    ("a second passes", "-> 8 s"),
                    (
                        "a minute passes",
                        "passed Idle, GOAWAY 5 NO_ERROR idle timeout, -> due, over",
                    ),
                    (
                        "a minute passes, while a handler is at work",
                        "passed Shutdown, -> due",
                    ),
                ],
            ),
            (
                "drained",
                |talk| {
                    talk.open(&[]).client_sends(get(5)).answer(5);
                    talk.connection.shut_down(talk.now, &mut talk.out);
                    talk.wait(SECOND);
                },
                &[
                    (
                        "the preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 9 s, over",
                    ),
                    (
                        "half a preface",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 9 s, over",
                    ),
                    (
                        "HTTP/1",
                        "error FrameTooLong, GOAWAY 5 FRAME_SIZE_ERROR , -> 9 s, over",
                    ),
                    ("SETTINGS", "SETTINGS ACK, -> 9 s, over"),
                    ("SETTINGS ACK", "-> 9 s, over"),
                    ("PING", "PING 1 12345678, -> 9 s, over"),
                    ("a request", "-> 9 s, over"),
                    (
                        "a request with a lower identifier",
                        "error HeadersOnClosed, GOAWAY 5 STREAM_CLOSED closed stream id in HEADERS frame, -> 9 s, over",
                    ),
                    ("GOAWAY", "-> 9 s, over"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 5 FRAME_SIZE_ERROR invalid PING frame, -> 9 s, over",
                    ),
                    ("shut_down", "-> 9 s, over"),
                    (
                        "fail",
                        "GOAWAY 5 ENHANCE_YOUR_CALM the abuse budget is used up, -> 9 s, over",
                    ),
                    ("a second passes", "-> 8 s, over"),
                    (
                        "a minute passes",
                        "passed Idle, GOAWAY 5 NO_ERROR idle timeout, -> due, over",
                    ),
                    (
                        "a minute passes, while a handler is at work",
                        "passed Shutdown, -> due, over",
                    ),
                ],
            ),
            (
                "failed",
                |talk| {
                    talk.open(&[]).client_sends(get(5));
                    (talk.connection).fail(PeerError::Overdrawn, &mut talk.out);
                },
                &[
                    ("the preface", "-> 10 s, over"),
                    ("half a preface", "-> 10 s, over"),
                    ("HTTP/1", "-> 10 s, over"),
                    ("SETTINGS", "-> 10 s, over"),
                    ("SETTINGS ACK", "-> 10 s, over"),
                    ("PING", "-> 10 s, over"),
                    ("a request", "-> 10 s, over"),
                    ("a request with a lower identifier", "-> 10 s, over"),
                    ("GOAWAY", "-> 10 s, over"),
                    ("an error", "-> 10 s, over"),
                    ("shut_down", "-> 10 s, over"),
                    ("fail", "-> 10 s, over"),
                    ("a second passes", "-> 9 s, over"),
                    ("a minute passes", "passed Idle, -> due, over"),
                    (
                        "a minute passes, while a handler is at work",
                        "-> untimed, over",
                    ),
                ],
            ),
        ];
        for (state, enter, wants) in states {
            assert_eq!(
                wants.len(),
                EVENTS.len(),
                "{state}: the table has every event"
            );
            for ((name, event), (of, want)) in EVENTS.into_iter().zip(wants) {
                assert_eq!(
                    name, *of,
                    "{state}: the table has the events in their order"
                );
                assert_eq!(
                    outcome(enter, event),
                    *want,
                    "{name} on a connection that is {state}"
                );
            }
        }
    }
}

mod of_client {
    use super::*;
    use crate::kit::client::{Conversation, request};
    use h2o_http2::ClientSettings;

    type Act = fn(&mut Conversation);
    /// The name of a state, how a connection gets into it, and the name and expected result of each event.
    type State = (&'static str, Act, &'static [(&'static str, &'static str)]);

    const EVENTS: [(&str, Act); 12] = [
        ("SETTINGS", |talk| {
            talk.server_sends(settings(&[(3, 1)]));
        }),
        ("SETTINGS ACK", |talk| {
            talk.server_sends(frame(SETTINGS, ACK, 0, b""));
        }),
        ("PING", |talk| {
            talk.server_sends(frame(PING, 0, 0, b"12345678"));
        }),
        ("an answer to no PING", |talk| {
            talk.server_sends(frame(PING, ACK, 0, b"12345678"));
        }),
        ("a response", |talk| {
            talk.server_sends(headers(1, WHOLE, &[(":status", "200")]));
        }),
        ("GOAWAY without an end", |talk| {
            talk.server_sends(goaway(0x7fff_ffff, 0));
        }),
        ("GOAWAY that refuses all", |talk| {
            talk.server_sends(goaway(0, 0));
        }),
        ("an error", |talk| {
            talk.server_sends(frame(PING, 0, 0, b"short"));
        }),
        ("request", |talk| {
            let asked = talk.asks(&request("GET", "/", "a.example"), true);
            talk.events.push(format!("stream {asked:?}"));
        }),
        ("ping", |talk| {
            talk.connection.ping(*b"abcdefgh", &mut talk.out)
        }),
        ("go_away", |talk| talk.connection.go_away(&mut talk.out)),
        ("fail", |talk| {
            (talk.connection).fail(PeerError::Overdrawn, &mut talk.out);
        }),
    ];

    fn outcome(enter: Act, event: Act) -> String {
        let mut talk = Conversation::unopened(ClientSettings::default());
        enter(&mut talk);
        talk.output();
        talk.events.clear();
        event(&mut talk);
        let mut words = std::mem::take(&mut talk.events);
        words.extend(talk.output());
        words.push("->".to_owned());
        for (is_so, name) in [
            (talk.connection.can_request(), "takes requests"),
            (talk.connection.is_reusable(), "reusable"),
            (talk.connection.has_streams(), "has streams"),
            (talk.connection.is_over(), "over"),
        ] {
            words.extend(is_so.then(|| name.to_owned()));
        }
        words.join(", ")
    }

    #[test]
    fn the_client_role_takes_each_event_as_the_state_says() {
        let states: [State; 7] = [
            (
                "before the server's SETTINGS",
                |_| {},
                &[
                    ("SETTINGS", "SETTINGS ACK, ->, takes requests, reusable"),
                    (
                        "SETTINGS ACK",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "PING",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "an answer to no PING",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "a response",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "GOAWAY without an end",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "GOAWAY that refuses all",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "an error",
                        "error SettingsExpected, GOAWAY 0 PROTOCOL_ERROR invalid SETTINGS frame, ->, over",
                    ),
                    (
                        "request",
                        "stream Some(1), HEADERS 1 END :method=GET :scheme=http :authority=a.example :path=/, ->, reusable, has streams",
                    ),
                    ("ping", "PING 0 abcdefgh, ->, takes requests, reusable"),
                    ("go_away", "GOAWAY 0 NO_ERROR , ->, over"),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, ->, over",
                    ),
                ],
            ),
            (
                "open",
                |talk| {
                    talk.server_sends(settings(&[]));
                },
                &[
                    ("SETTINGS", "SETTINGS ACK, ->, takes requests, reusable"),
                    ("SETTINGS ACK", "->, takes requests, reusable"),
                    ("PING", "PING 1 12345678, ->, takes requests, reusable"),
                    ("an answer to no PING", "->, takes requests, reusable"),
                    (
                        "a response",
                        "error IdleStream(FrameType(1)), GOAWAY 0 PROTOCOL_ERROR invalid stream id in HEADERS frame, ->, over",
                    ),
                    (
                        "GOAWAY without an end",
                        "goaway 2147483647 NO_ERROR, ->, over",
                    ),
                    ("GOAWAY that refuses all", "goaway 0 NO_ERROR, ->, over"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 0 FRAME_SIZE_ERROR invalid PING frame, ->, over",
                    ),
                    (
                        "request",
                        "stream Some(1), HEADERS 1 END :method=GET :scheme=http :authority=a.example :path=/, ->, takes requests, reusable, has streams",
                    ),
                    ("ping", "PING 0 abcdefgh, ->, takes requests, reusable"),
                    ("go_away", "GOAWAY 0 NO_ERROR , ->, over"),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, ->, over",
                    ),
                ],
            ),
            (
                "open, with a request",
                |talk| {
                    talk.server_sends(settings(&[]));
                    talk.gets();
                },
                &[
                    ("SETTINGS", "SETTINGS ACK, ->, reusable, has streams"),
                    ("SETTINGS ACK", "->, takes requests, reusable, has streams"),
                    (
                        "PING",
                        "PING 1 12345678, ->, takes requests, reusable, has streams",
                    ),
                    (
                        "an answer to no PING",
                        "->, takes requests, reusable, has streams",
                    ),
                    (
                        "a response",
                        "1 200 None END, ->, takes requests, reusable, has streams",
                    ),
                    (
                        "GOAWAY without an end",
                        "goaway 2147483647 NO_ERROR, ->, has streams",
                    ),
                    (
                        "GOAWAY that refuses all",
                        "goaway 0 NO_ERROR, 1 refused, ->, has streams",
                    ),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 0 FRAME_SIZE_ERROR invalid PING frame, ->, has streams, over",
                    ),
                    (
                        "request",
                        "stream Some(3), HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/, ->, takes requests, reusable, has streams",
                    ),
                    (
                        "ping",
                        "PING 0 abcdefgh, ->, takes requests, reusable, has streams",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , ->, has streams"),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, ->, has streams, over",
                    ),
                ],
            ),
            (
                "left by the server, with a request",
                |talk| {
                    talk.server_sends(settings(&[]));
                    talk.gets();
                    talk.server_sends(goaway(1, 0));
                },
                &[
                    ("SETTINGS", "SETTINGS ACK, ->, has streams"),
                    ("SETTINGS ACK", "->, has streams"),
                    ("PING", "PING 1 12345678, ->, has streams"),
                    ("an answer to no PING", "->, has streams"),
                    ("a response", "1 200 None END, ->, has streams"),
                    (
                        "GOAWAY without an end",
                        "goaway 1 NO_ERROR, ->, has streams",
                    ),
                    (
                        "GOAWAY that refuses all",
                        "goaway 0 NO_ERROR, 1 refused, ->, has streams",
                    ),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 0 FRAME_SIZE_ERROR invalid PING frame, ->, has streams, over",
                    ),
                    ("request", "stream None, ->, has streams"),
                    ("ping", "PING 0 abcdefgh, ->, has streams"),
                    ("go_away", "GOAWAY 0 NO_ERROR , ->, has streams"),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, ->, has streams, over",
                    ),
                ],
            ),
            (
                "left by us, with a request",
                |talk| {
                    talk.server_sends(settings(&[]));
                    talk.gets();
                    talk.connection.go_away(&mut talk.out);
                },
                &[
                    ("SETTINGS", "SETTINGS ACK, ->, has streams"),
                    ("SETTINGS ACK", "->, has streams"),
                    ("PING", "PING 1 12345678, ->, has streams"),
                    ("an answer to no PING", "->, has streams"),
                    ("a response", "1 200 None END, ->, has streams"),
                    (
                        "GOAWAY without an end",
                        "goaway 2147483647 NO_ERROR, ->, has streams",
                    ),
                    (
                        "GOAWAY that refuses all",
                        "goaway 0 NO_ERROR, 1 refused, ->, has streams",
                    ),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 0 FRAME_SIZE_ERROR invalid PING frame, ->, has streams, over",
                    ),
                    ("request", "stream None, ->, has streams"),
                    ("ping", "PING 0 abcdefgh, ->, has streams"),
                    ("go_away", "->, has streams"),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, ->, has streams, over",
                    ),
                ],
            ),
            (
                "left by both",
                |talk| {
                    talk.server_sends(settings(&[])).server_sends(goaway(0, 0));
                    talk.connection.go_away(&mut talk.out);
                },
                &[
                    ("SETTINGS", "SETTINGS ACK, ->, over"),
                    ("SETTINGS ACK", "->, over"),
                    ("PING", "PING 1 12345678, ->, over"),
                    ("an answer to no PING", "->, over"),
                    (
                        "a response",
                        "error IdleStream(FrameType(1)), GOAWAY 0 PROTOCOL_ERROR invalid stream id in HEADERS frame, ->, over",
                    ),
                    ("GOAWAY without an end", "goaway 0 NO_ERROR, ->, over"),
                    ("GOAWAY that refuses all", "goaway 0 NO_ERROR, ->, over"),
                    (
                        "an error",
                        "error FrameSize(FrameType(6)), GOAWAY 0 FRAME_SIZE_ERROR invalid PING frame, ->, over",
                    ),
                    ("request", "stream None, ->, over"),
                    ("ping", "PING 0 abcdefgh, ->, over"),
                    ("go_away", "->, over"),
                    (
                        "fail",
                        "GOAWAY 0 ENHANCE_YOUR_CALM the abuse budget is used up, ->, over",
                    ),
                ],
            ),
            (
                "failed, with a request",
                |talk| {
                    talk.server_sends(settings(&[]));
                    talk.gets();
                    (talk.connection).fail(PeerError::Overdrawn, &mut talk.out);
                },
                &[
                    ("SETTINGS", "->, has streams, over"),
                    ("SETTINGS ACK", "->, has streams, over"),
                    ("PING", "->, has streams, over"),
                    ("an answer to no PING", "->, has streams, over"),
                    ("a response", "->, has streams, over"),
                    ("GOAWAY without an end", "->, has streams, over"),
                    ("GOAWAY that refuses all", "->, has streams, over"),
                    ("an error", "->, has streams, over"),
                    ("request", "stream None, ->, has streams, over"),
                    ("ping", "->, has streams, over"),
                    ("go_away", "->, has streams, over"),
                    ("fail", "->, has streams, over"),
                ],
            ),
        ];
        for (state, enter, wants) in states {
            assert_eq!(
                wants.len(),
                EVENTS.len(),
                "{state}: the table has every event"
            );
            for ((name, event), (of, want)) in EVENTS.into_iter().zip(wants) {
                assert_eq!(
                    name, *of,
                    "{state}: the table has the events in their order"
                );
                assert_eq!(
                    outcome(enter, event),
                    *want,
                    "{name} on a connection that is {state}"
                );
            }
        }
    }
}
