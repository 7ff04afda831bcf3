//! Tests every state of a stream with every call that a caller of the engine can make: the frames written and the state
//! afterwards. The contract of `ServerConnection` and `ClientConnection` says that calls for streams that may not send do
//! nothing; this is the complete list.

use h2o_http::{Headers, StatusCode};
use h2o_http2::{ErrorCode, SchedulingHint};

use crate::kit::frames::*;

/// The stream that each test is about.
const STREAM: u32 = 1;

mod of_server {
    use super::*;
    use crate::kit::client::request;
    use crate::kit::server::{Conversation, fields};

    type Act = fn(&mut Conversation);
    /// The name of a state, how a stream gets into it, and the name and expected result of each call.
    type State = (&'static str, Act, &'static [(&'static str, &'static str)]);

    const CALLS: [(&str, Act); 18] = [
        ("send_informational 103", |talk| {
            let (key, early) = (talk.key(STREAM), fields(&[("link", "</a>")]));
            let status = StatusCode::new(103).expect("the number is a valid status code");
            talk.connection
                .send_informational(key, status, &early, &mut talk.out);
        }),
        ("respond", |talk| {
            talk.respond(STREAM, 200, false);
        }),
        ("respond to the end", |talk| {
            talk.respond(STREAM, 204, true);
        }),
        ("set_content", |talk| {
            talk.connection.set_content(talk.key(STREAM), true);
        }),
        ("set_content, and not", |talk| {
            talk.connection.set_content(talk.key(STREAM), true);
            talk.connection.set_content(talk.key(STREAM), false);
        }),
        ("send in turn", |talk| {
            talk.connection.set_content(talk.key(STREAM), true);
            while let Some((key, max)) = talk.connection.poll_send() {
                let is_end = max > 3;
                let content = [b'x'; 3];
                (talk.connection).send_data(key, &content, is_end, &mut talk.out);
            }
        }),
        ("fill nothing in", |talk| {
            let key = talk.key(STREAM);
            let written = talk
                .connection
                .send_data_with(key, 3, &mut talk.out, |_| Ok::<_, ()>(None));
            assert_eq!(written, Ok(None));
        }),
        ("filling fails", |talk| {
            let key = talk.key(STREAM);
            let fill = |out: &mut Vec<u8>| {
                out.extend_from_slice(b"half a thing");
                Err::<Option<(usize, bool)>, _>("broken")
            };
            let written = talk.connection.send_data_with(key, 3, &mut talk.out, fill);
            assert_eq!(written, Err("broken"));
        }),
        ("finish", |talk| {
            (talk.connection).finish(talk.key(STREAM), None, &mut talk.out);
        }),
        ("finish with trailers", |talk| {
            let trailers = fields(&[("x", "y")]);
            (talk.connection).finish(talk.key(STREAM), Some(&trailers), &mut talk.out);
        }),
        ("schedule", |talk| {
            let hint = SchedulingHint {
                is_critical: true,
                ..SchedulingHint::default()
            };
            talk.schedule(STREAM, hint);
        }),
        ("accept_content", |talk| {
            (talk.connection).accept_content(talk.key(STREAM), &mut talk.out);
        }),
        ("accept_content twice", |talk| {
            (talk.connection).accept_content(talk.key(STREAM), &mut talk.out);
            (talk.connection).accept_content(talk.key(STREAM), &mut talk.out);
        }),
        ("release_content of what did not come", |talk| {
            (talk.connection).release_content(talk.key(STREAM), 1 << 20, &mut talk.out);
        }),
        ("promise", |talk| {
            let head = request("GET", "/style.css", "a.example");
            let promised = (talk.connection).promise(talk.key(STREAM), &head, &mut talk.out);
            if let Some(key) = promised {
                talk.connection.release(key, &mut talk.out);
            }
        }),
        ("reset", |talk| {
            (talk.connection).reset(talk.key(STREAM), ErrorCode::CANCEL, &mut talk.out);
        }),
        ("release", |talk| {
            (talk.connection).release(talk.key(STREAM), &mut talk.out);
        }),
        ("release twice", |talk| {
            (talk.connection).release(talk.key(STREAM), &mut talk.out);
            (talk.connection).release(talk.key(STREAM), &mut talk.out);
        }),
    ];

    /// The frames that a call writes and the state afterwards, in words.
    fn outcome(enter: Act, call: Act) -> String {
        let mut talk = Conversation::new();
        enter(&mut talk);
        talk.output();
        talk.events.clear();
        call(&mut talk);
        assert!(talk.events.is_empty(), "a call causes no event");
        let key = talk.key(STREAM);
        let mut words = talk.output();
        words.push(format!("-> {:?}", talk.connection.state(key)));
        if talk.connection.has_sendable() {
            words.push("sendable".to_owned());
        }
        if !talk.connection.has_streams() {
            words.push("no streams".to_owned());
        }
        words.join(", ")
    }

    #[test]
    fn the_server_role_takes_each_call_as_the_state_says() {
        let states: [State; 8] = [
            (
                "open",
                |talk| {
                    talk.client_sends(post(STREAM));
                },
                &[
                    (
                        "send_informational 103",
                        "HEADERS 1 :status=103 link=</a>, -> Open",
                    ),
                    ("respond", "HEADERS 1 :status=200, -> Open"),
                    (
                        "respond to the end",
                        "HEADERS 1 END :status=204, -> HalfClosedLocal",
                    ),
                    ("set_content", "-> Open, sendable"),
                    ("set_content, and not", "-> Open"),
                    ("send in turn", "DATA 1 3 END, -> HalfClosedLocal"),
                    ("fill nothing in", "-> Open"),
                    ("filling fails", "-> Open"),
                    ("finish", "DATA 1 0 END, -> HalfClosedLocal"),
                    (
                        "finish with trailers",
                        "HEADERS 1 END x=y, -> HalfClosedLocal",
                    ),
                    ("schedule", "-> Open"),
                    ("accept_content", "WINDOW_UPDATE 1 16711681, -> Open"),
                    ("accept_content twice", "WINDOW_UPDATE 1 16711681, -> Open"),
                    ("release_content of what did not come", "-> Open"),
                    (
                        "promise",
                        "PUSH_PROMISE 1 2 :method=GET :scheme=http :authority=a.example :path=/style.css, RST_STREAM 2 INTERNAL_ERROR, -> Open",
                    ),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "release",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                    (
                        "release twice",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                ],
            ),
            (
                "open, with its head sent",
                |talk| {
                    talk.client_sends(post(STREAM)).respond(STREAM, 200, false);
                },
                &[
                    ("send_informational 103", "-> Open"),
                    ("respond", "HEADERS 1 :status=200, -> Open"),
                    (
                        "respond to the end",
                        "HEADERS 1 END :status=204, -> HalfClosedLocal",
                    ),
                    ("set_content", "-> Open, sendable"),
                    ("set_content, and not", "-> Open"),
                    ("send in turn", "DATA 1 3 END, -> HalfClosedLocal"),
                    ("fill nothing in", "-> Open"),
                    ("filling fails", "-> Open"),
                    ("finish", "DATA 1 0 END, -> HalfClosedLocal"),
                    (
                        "finish with trailers",
                        "HEADERS 1 END x=y, -> HalfClosedLocal",
                    ),
                    ("schedule", "-> Open"),
                    ("accept_content", "WINDOW_UPDATE 1 16711681, -> Open"),
                    ("accept_content twice", "WINDOW_UPDATE 1 16711681, -> Open"),
                    ("release_content of what did not come", "-> Open"),
                    (
                        "promise",
                        "PUSH_PROMISE 1 2 :method=GET :scheme=http :authority=a.example :path=/style.css, RST_STREAM 2 INTERNAL_ERROR, -> Open",
                    ),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "release",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                    (
                        "release twice",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                ],
            ),
            (
                "half-closed (remote)",
                |talk| {
                    talk.client_sends(get(STREAM));
                },
                &[
                    (
                        "send_informational 103",
                        "HEADERS 1 :status=103 link=</a>, -> HalfClosedRemote",
                    ),
                    ("respond", "HEADERS 1 :status=200, -> HalfClosedRemote"),
                    ("respond to the end", "HEADERS 1 END :status=204, -> Closed"),
                    ("set_content", "-> HalfClosedRemote, sendable"),
                    ("set_content, and not", "-> HalfClosedRemote"),
                    ("send in turn", "DATA 1 3 END, -> Closed"),
                    ("fill nothing in", "-> HalfClosedRemote"),
                    ("filling fails", "-> HalfClosedRemote"),
                    ("finish", "DATA 1 0 END, -> Closed"),
                    ("finish with trailers", "HEADERS 1 END x=y, -> Closed"),
                    ("schedule", "-> HalfClosedRemote"),
                    ("accept_content", "-> HalfClosedRemote"),
                    ("accept_content twice", "-> HalfClosedRemote"),
                    (
                        "release_content of what did not come",
                        "-> HalfClosedRemote",
                    ),
                    (
                        "promise",
                        "PUSH_PROMISE 1 2 :method=GET :scheme=http :authority=a.example :path=/style.css, RST_STREAM 2 INTERNAL_ERROR, -> HalfClosedRemote",
                    ),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "release",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                    (
                        "release twice",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                ],
            ),
            (
                "half-closed (remote), with its head sent",
                |talk| {
                    talk.client_sends(get(STREAM)).respond(STREAM, 200, false);
                },
                &[
                    ("send_informational 103", "-> HalfClosedRemote"),
                    ("respond", "HEADERS 1 :status=200, -> HalfClosedRemote"),
                    ("respond to the end", "HEADERS 1 END :status=204, -> Closed"),
                    ("set_content", "-> HalfClosedRemote, sendable"),
                    ("set_content, and not", "-> HalfClosedRemote"),
                    ("send in turn", "DATA 1 3 END, -> Closed"),
                    ("fill nothing in", "-> HalfClosedRemote"),
                    ("filling fails", "-> HalfClosedRemote"),
                    ("finish", "DATA 1 0 END, -> Closed"),
                    ("finish with trailers", "HEADERS 1 END x=y, -> Closed"),
                    ("schedule", "-> HalfClosedRemote"),
                    ("accept_content", "-> HalfClosedRemote"),
                    ("accept_content twice", "-> HalfClosedRemote"),
                    (
                        "release_content of what did not come",
                        "-> HalfClosedRemote",
                    ),
                    (
                        "promise",
                        "PUSH_PROMISE 1 2 :method=GET :scheme=http :authority=a.example :path=/style.css, RST_STREAM 2 INTERNAL_ERROR, -> HalfClosedRemote",
                    ),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "release",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                    (
                        "release twice",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                ],
            ),
            (
                "half-closed (local)",
                |talk| {
                    talk.client_sends(post(STREAM)).respond(STREAM, 200, true);
                },
                &[
                    ("send_informational 103", "-> HalfClosedLocal"),
                    ("respond", "-> HalfClosedLocal"),
                    ("respond to the end", "-> HalfClosedLocal"),
                    ("set_content", "-> HalfClosedLocal"),
                    ("set_content, and not", "-> HalfClosedLocal"),
                    ("send in turn", "-> HalfClosedLocal"),
                    ("fill nothing in", "-> HalfClosedLocal"),
                    ("filling fails", "-> HalfClosedLocal"),
                    ("finish", "-> HalfClosedLocal"),
                    ("finish with trailers", "-> HalfClosedLocal"),
                    ("schedule", "-> HalfClosedLocal"),
                    (
                        "accept_content",
                        "WINDOW_UPDATE 1 16711681, -> HalfClosedLocal",
                    ),
                    (
                        "accept_content twice",
                        "WINDOW_UPDATE 1 16711681, -> HalfClosedLocal",
                    ),
                    ("release_content of what did not come", "-> HalfClosedLocal"),
                    ("promise", "-> HalfClosedLocal"),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release", "RST_STREAM 1 NO_ERROR, -> Closed, no streams"),
                    (
                        "release twice",
                        "RST_STREAM 1 NO_ERROR, -> Closed, no streams",
                    ),
                ],
            ),
            (
                "closed by its response",
                |talk| {
                    talk.client_sends(get(STREAM)).respond(STREAM, 200, true);
                },
                &[
                    ("send_informational 103", "-> Closed"),
                    ("respond", "-> Closed"),
                    ("respond to the end", "-> Closed"),
                    ("set_content", "-> Closed"),
                    ("set_content, and not", "-> Closed"),
                    ("send in turn", "-> Closed"),
                    ("fill nothing in", "-> Closed"),
                    ("filling fails", "-> Closed"),
                    ("finish", "-> Closed"),
                    ("finish with trailers", "-> Closed"),
                    ("schedule", "-> Closed"),
                    ("accept_content", "-> Closed"),
                    ("accept_content twice", "-> Closed"),
                    ("release_content of what did not come", "-> Closed"),
                    ("promise", "-> Closed"),
                    ("reset", "-> Closed"),
                    ("release", "-> Closed, no streams"),
                    ("release twice", "-> Closed, no streams"),
                ],
            ),
            (
                "closed by the client",
                |talk| {
                    talk.client_sends(post(STREAM))
                        .client_sends(rst_stream(STREAM, 8));
                },
                &[
                    ("send_informational 103", "-> Closed"),
                    ("respond", "-> Closed"),
                    ("respond to the end", "-> Closed"),
                    ("set_content", "-> Closed"),
                    ("set_content, and not", "-> Closed"),
                    ("send in turn", "-> Closed"),
                    ("fill nothing in", "-> Closed"),
                    ("filling fails", "-> Closed"),
                    ("finish", "-> Closed"),
                    ("finish with trailers", "-> Closed"),
                    ("schedule", "-> Closed"),
                    ("accept_content", "-> Closed"),
                    ("accept_content twice", "-> Closed"),
                    ("release_content of what did not come", "-> Closed"),
                    ("promise", "-> Closed"),
                    ("reset", "-> Closed"),
                    ("release", "-> Closed, no streams"),
                    ("release twice", "-> Closed, no streams"),
                ],
            ),
            (
                "without a window",
                |talk| {
                    talk.client_sends(settings(&[(4, 0)]));
                    talk.client_sends(get(STREAM)).respond(STREAM, 200, false);
                },
                &[
                    ("send_informational 103", "-> HalfClosedRemote"),
                    ("respond", "HEADERS 1 :status=200, -> HalfClosedRemote"),
                    ("respond to the end", "HEADERS 1 END :status=204, -> Closed"),
                    ("set_content", "-> HalfClosedRemote"),
                    ("set_content, and not", "-> HalfClosedRemote"),
                    ("send in turn", "-> HalfClosedRemote"),
                    ("fill nothing in", "-> HalfClosedRemote"),
                    ("filling fails", "-> HalfClosedRemote"),
                    ("finish", "DATA 1 0 END, -> Closed"),
                    ("finish with trailers", "HEADERS 1 END x=y, -> Closed"),
                    ("schedule", "-> HalfClosedRemote"),
                    ("accept_content", "-> HalfClosedRemote"),
                    ("accept_content twice", "-> HalfClosedRemote"),
                    (
                        "release_content of what did not come",
                        "-> HalfClosedRemote",
                    ),
                    (
                        "promise",
                        "PUSH_PROMISE 1 2 :method=GET :scheme=http :authority=a.example :path=/style.css, RST_STREAM 2 INTERNAL_ERROR, -> HalfClosedRemote",
                    ),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "release",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                    (
                        "release twice",
                        "RST_STREAM 1 INTERNAL_ERROR, -> Closed, no streams",
                    ),
                ],
            ),
        ];
        for (state, enter, wants) in states {
            assert_eq!(
                wants.len(),
                CALLS.len(),
                "{state}: the table has every call"
            );
            for ((name, call), (of, want)) in CALLS.into_iter().zip(wants) {
                assert_eq!(name, *of, "{state}: the table has the calls in their order");
                assert_eq!(
                    outcome(enter, call),
                    *want,
                    "{name} on a stream that is {state}"
                );
            }
        }
    }
}

mod of_client {
    use super::*;
    use crate::kit::client::{Conversation, request};

    type Act = fn(&mut Conversation);
    /// The name of a state, how a stream gets into it, and the name and expected result of each call.
    type State = (&'static str, Act, &'static [(&'static str, &'static str)]);

    const CALLS: [(&str, Act); 11] = [
        ("set_content", |talk| {
            talk.connection.set_content(talk.key(STREAM), true);
        }),
        ("send in turn", |talk| {
            talk.connection.set_content(talk.key(STREAM), true);
            while let Some((key, max)) = talk.connection.poll_send() {
                let content = [b'x'; 3];
                (talk.connection).send_data(key, &content, max > 3, &mut talk.out);
            }
        }),
        ("fill nothing in", |talk| {
            let key = talk.key(STREAM);
            let written = talk
                .connection
                .send_data_with(key, 3, &mut talk.out, |_| Ok::<_, ()>(None));
            assert_eq!(written, Ok(None));
        }),
        ("finish", |talk| {
            (talk.connection).finish(talk.key(STREAM), None, &mut talk.out);
        }),
        ("finish with trailers", |talk| {
            let mut trailers = Headers::new();
            trailers.push(h2o_http::Name::from_lower("x"), b"y");
            (talk.connection).finish(talk.key(STREAM), Some(&trailers), &mut talk.out);
        }),
        ("release_content of what did not come", |talk| {
            (talk.connection).release_content(talk.key(STREAM), 1 << 20, &mut talk.out);
        }),
        ("reset", |talk| {
            (talk.connection).reset(talk.key(STREAM), ErrorCode::CANCEL, &mut talk.out);
        }),
        ("release", |talk| {
            (talk.connection).release(talk.key(STREAM), &mut talk.out);
        }),
        ("release twice", |talk| {
            (talk.connection).release(talk.key(STREAM), &mut talk.out);
            (talk.connection).release(talk.key(STREAM), &mut talk.out);
        }),
        ("another request", |talk| {
            let head = request("GET", "/2", "a.example");
            talk.connection.request(&head, true, &mut talk.out);
        }),
        ("go_away", |talk| talk.connection.go_away(&mut talk.out)),
    ];

    fn outcome(enter: Act, call: Act) -> String {
        let mut talk = Conversation::new();
        enter(&mut talk);
        talk.output();
        talk.events.clear();
        call(&mut talk);
        assert!(talk.events.is_empty(), "a call causes no event");
        let key = talk.key(STREAM);
        let mut words = talk.output();
        words.push(format!("-> {:?}", talk.connection.state(key)));
        if talk.connection.has_sendable() {
            words.push("sendable".to_owned());
        }
        if talk.connection.is_over() {
            words.push("over".to_owned());
        }
        words.join(", ")
    }

    /// A HEADERS frame with the head of a response.
    fn response(flags: u8) -> Vec<u8> {
        headers(STREAM, flags, &[(":status", "200")])
    }

    #[test]
    fn the_client_role_takes_each_call_as_the_state_says() {
        let states: [State; 8] = [
            (
                "open",
                |talk| assert_eq!(talk.posts(), STREAM),
                &[
                    ("set_content", "-> Open, sendable"),
                    ("send in turn", "DATA 1 3 END, -> HalfClosedLocal"),
                    ("fill nothing in", "-> Open"),
                    ("finish", "DATA 1 0 END, -> HalfClosedLocal"),
                    (
                        "finish with trailers",
                        "HEADERS 1 END x=y, -> HalfClosedLocal",
                    ),
                    ("release_content of what did not come", "-> Open"),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release twice", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> Open",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> Open"),
                ],
            ),
            (
                "open, with its response begun",
                |talk| {
                    talk.posts();
                    talk.server_sends(response(END_HEADERS));
                },
                &[
                    ("set_content", "-> Open, sendable"),
                    ("send in turn", "DATA 1 3 END, -> HalfClosedLocal"),
                    ("fill nothing in", "-> Open"),
                    ("finish", "DATA 1 0 END, -> HalfClosedLocal"),
                    (
                        "finish with trailers",
                        "HEADERS 1 END x=y, -> HalfClosedLocal",
                    ),
                    ("release_content of what did not come", "-> Open"),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release twice", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> Open",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> Open"),
                ],
            ),
            (
                "half-closed (local)",
                |talk| assert_eq!(talk.gets(), STREAM),
                &[
                    ("set_content", "-> HalfClosedLocal"),
                    ("send in turn", "-> HalfClosedLocal"),
                    ("fill nothing in", "-> HalfClosedLocal"),
                    ("finish", "-> HalfClosedLocal"),
                    ("finish with trailers", "-> HalfClosedLocal"),
                    ("release_content of what did not come", "-> HalfClosedLocal"),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release twice", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> HalfClosedLocal",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> HalfClosedLocal"),
                ],
            ),
            (
                "half-closed (remote)",
                |talk| {
                    talk.posts();
                    talk.server_sends(response(WHOLE));
                },
                &[
                    ("set_content", "-> HalfClosedRemote, sendable"),
                    ("send in turn", "DATA 1 3 END, -> Closed"),
                    ("fill nothing in", "-> HalfClosedRemote"),
                    ("finish", "DATA 1 0 END, -> Closed"),
                    ("finish with trailers", "HEADERS 1 END x=y, -> Closed"),
                    (
                        "release_content of what did not come",
                        "-> HalfClosedRemote",
                    ),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release twice", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> HalfClosedRemote",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> HalfClosedRemote"),
                ],
            ),
            (
                "closed by both",
                |talk| {
                    talk.gets();
                    talk.server_sends(response(WHOLE));
                },
                &[
                    ("set_content", "-> Closed"),
                    ("send in turn", "-> Closed"),
                    ("fill nothing in", "-> Closed"),
                    ("finish", "-> Closed"),
                    ("finish with trailers", "-> Closed"),
                    ("release_content of what did not come", "-> Closed"),
                    ("reset", "-> Closed"),
                    ("release", "-> Closed"),
                    ("release twice", "-> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> Closed",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> Closed"),
                ],
            ),
            (
                "closed by the server",
                |talk| {
                    talk.posts();
                    talk.server_sends(rst_stream(STREAM, 8));
                },
                &[
                    ("set_content", "-> Closed"),
                    ("send in turn", "-> Closed"),
                    ("fill nothing in", "-> Closed"),
                    ("finish", "-> Closed"),
                    ("finish with trailers", "-> Closed"),
                    ("release_content of what did not come", "-> Closed"),
                    ("reset", "-> Closed"),
                    ("release", "-> Closed"),
                    ("release twice", "-> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> Closed",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> Closed"),
                ],
            ),
            (
                "refused by GOAWAY",
                |talk| {
                    talk.posts();
                    talk.server_sends(goaway(0, 0));
                },
                &[
                    ("set_content", "-> Closed"),
                    ("send in turn", "-> Closed"),
                    ("fill nothing in", "-> Closed"),
                    ("finish", "-> Closed"),
                    ("finish with trailers", "-> Closed"),
                    ("release_content of what did not come", "-> Closed"),
                    ("reset", "-> Closed"),
                    ("release", "-> Closed, over"),
                    ("release twice", "-> Closed, over"),
                    ("another request", "-> Closed"),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> Closed"),
                ],
            ),
            (
                "without a window",
                |talk| {
                    talk.server_sends(settings(&[(4, 0)]));
                    talk.posts();
                },
                &[
                    ("set_content", "-> Open"),
                    ("send in turn", "-> Open"),
                    ("fill nothing in", "-> Open"),
                    ("finish", "DATA 1 0 END, -> HalfClosedLocal"),
                    (
                        "finish with trailers",
                        "HEADERS 1 END x=y, -> HalfClosedLocal",
                    ),
                    ("release_content of what did not come", "-> Open"),
                    ("reset", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release", "RST_STREAM 1 CANCEL, -> Closed"),
                    ("release twice", "RST_STREAM 1 CANCEL, -> Closed"),
                    (
                        "another request",
                        "HEADERS 3 END :method=GET :scheme=http :authority=a.example :path=/2, -> Open",
                    ),
                    ("go_away", "GOAWAY 0 NO_ERROR , -> Open"),
                ],
            ),
        ];
        for (state, enter, wants) in states {
            assert_eq!(
                wants.len(),
                CALLS.len(),
                "{state}: the table has every call"
            );
            for ((name, call), (of, want)) in CALLS.into_iter().zip(wants) {
                assert_eq!(name, *of, "{state}: the table has the calls in their order");
                assert_eq!(
                    outcome(enter, call),
                    *want,
                    "{name} on a stream that is {state}"
                );
            }
        }
    }
}
