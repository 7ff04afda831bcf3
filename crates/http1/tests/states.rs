//! Tests every state of the server role with every event and compares the results with `data/states.txt`. A wrong line
//! there is a bug of the engine or of the file.
//!
//! After a deliberate change of the engine, `UPDATE_STATES=1 cargo test -p h2o-http1 --test states` rewrites the file;
//! reviewers look at its diff.

mod kit;

use std::fmt::Write as _;
use std::time::Duration;

use h2o_http::{Headers, StatusCode};
use h2o_http1::{Next, PeerError};
use kit::server::{Conversation, Event};

type Act = fn(&mut Conversation);

fn sends(talk: &mut Conversation, bytes: &str) {
    talk.client_sends(bytes);
}

const STATES: &[(&str, Act)] = &[
    ("awaiting the first head", |_| ()),
    ("within a head", |talk| sends(talk, "GET / HT")),
    ("request", |talk| sends(talk, "GET / HTTP/1.1\r\n\r\n")),
    ("request of 1.0", |talk| {
        sends(talk, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    }),
    ("HEAD request", |talk| {
        sends(talk, "HEAD / HTTP/1.1\r\n\r\n")
    }),
    ("upgrade offered", |talk| {
        sends(
            talk,
            "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        );
    }),
    ("CONNECT", |talk| {
        sends(talk, "CONNECT a:1 HTTP/1.1\r\n\r\n")
    }),
    ("within a body", |talk| {
        sends(talk, "POST / HTTP/1.1\r\nContent-Length: 30\r\n\r\nab")
    }),
    ("within chunks", |talk| {
        sends(
            talk,
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n30\r\nab",
        )
    }),
    ("continue awaited", |talk| {
        sends(
            talk,
            "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 30\r\n\r\n",
        );
    }),
    ("body read", |talk| {
        sends(talk, "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab")
    }),
    ("response of known length", |talk| {
        sends(talk, "GET / HTTP/1.1\r\n\r\n");
        talk.respond(200, Some(3));
    }),
    ("chunked response", |talk| {
        sends(talk, "GET / HTTP/1.1\r\n\r\n");
        talk.respond(200, None);
    }),
    ("response until close", |talk| {
        sends(talk, "GET / HTTP/1.0\r\n\r\n");
        talk.respond(200, None);
    }),
    ("response within a body", |talk| {
        sends(talk, "POST / HTTP/1.1\r\nContent-Length: 30\r\n\r\nab");
        talk.respond(200, Some(3));
    }),
    ("response before the body", |talk| {
        sends(talk, "POST / HTTP/1.1\r\nContent-Length: 30\r\n\r\nab");
        talk.respond(200, Some(0));
    }),
    ("response complete", |talk| {
        sends(talk, "GET / HTTP/1.1\r\n\r\n");
        talk.respond(200, Some(0));
    }),
    ("awaiting the next head", |talk| {
        sends(talk, "GET / HTTP/1.1\r\n\r\n");
        talk.respond(200, Some(0));
        let _ = talk.connection.next(talk.now);
    }),
    ("tunnel", |talk| {
        sends(talk, "CONNECT a:1 HTTP/1.1\r\n\r\n");
        talk.respond(200, None);
    }),
    ("refused", |talk| sends(talk, "nonsense\r\n\r\n")),
    ("refused within a response", |talk| {
        sends(
            talk,
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        talk.respond(200, Some(3));
        sends(talk, "x");
    }),
];

const EVENTS: &[(&str, Act)] = &[
    ("a head arrives", |talk| {
        sends(talk, "GET /b HTTP/1.1\r\nX: y\r\n\r\n")
    }),
    ("nonsense arrives", |talk| {
        sends(talk, "\0nonsense-nonsense-nonsense-nonsense\n")
    }),
    ("send_continue", |talk| {
        talk.connection.send_continue(&mut talk.out, talk.now)
    }),
    ("send_informational", |talk| {
        let status = StatusCode::EARLY_HINTS;
        talk.connection
            .send_informational(status, &Headers::new(), &mut talk.out);
    }),
    ("respond 200", |talk| {
        talk.respond(200, None);
    }),
    ("respond 101", |talk| {
        talk.respond(101, None);
    }),
    ("send_data", |talk| {
        talk.send("abcd");
    }),
    ("finish", |talk| {
        talk.finish();
    }),
    ("abort", |talk| talk.connection.abort(&mut talk.out)),
    ("error_response", |talk| {
        let answer = PeerError::TargetInvalid.answer();
        talk.connection
            .error_response(answer, None, None, &mut talk.out);
    }),
    ("bytes wait, time passes", |talk| {
        talk.connection.on_written(0, true, talk.now);
        let passed = talk.wait(Duration::from_secs(100));
        reports(talk, format!("{passed:?}"));
    }),
    ("time passes", |talk| {
        let passed = talk.wait(Duration::from_secs(100));
        reports(talk, format!("{passed:?}"));
    }),
    ("pause_reading, time passes", |talk| {
        talk.connection.pause_reading();
        let passed = talk.wait(Duration::from_secs(100));
        reports(talk, format!("{passed:?}"));
    }),
    ("upgrade", |talk| talk.connection.upgrade()),
    ("recv_end", |talk| talk.connection.recv_end()),
    ("shut_down, respond 200", |talk| {
        talk.connection.shut_down();
        talk.respond(200, Some(0));
    }),
    ("next", |talk| {
        let next = talk.connection.next(talk.now);
        reports(talk, format!("{next:?}"));
    }),
];

/// Adds the value that a call of the engine returned to the reported events.
fn reports(talk: &mut Conversation, text: String) {
    talk.events.push(Event::Request(text));
}

fn describe(talk: &mut Conversation) -> String {
    let mut line = String::new();
    for event in &talk.events {
        let _ = match event {
            Event::Request(text) => write!(line, " {{{text}}}"),
            Event::Data(data) => write!(line, " data({})", data.escape_ascii()),
            Event::BodyEnd => write!(line, " body-end"),
            Event::Http2 => write!(line, " http2"),
            Event::Error(error) => write!(line, " {}", error.name()),
        };
    }
    if !talk.out.is_empty() {
        let out = talk.out.escape_ascii().to_string();
        let out = out.replace("Connection: ", "").replace("HTTP/1.1 ", "");
        let _ = write!(line, " \"{out}\"");
    }
    let connection = &mut talk.connection;
    line += " ->";
    for (is_true, name) in [
        (connection.is_idle(), " idle"),
        (connection.is_tunnel(), " tunnel"),
        (connection.wants_continue(), " wants-continue"),
        (connection.is_body_done(), " body-done"),
        (connection.is_response_done(), " response-done"),
        (connection.next_timeout().is_some(), " timed"),
    ] {
        line += if is_true { name } else { "" };
    }
    line += match connection.next(talk.now) {
        Next::Request => " keeps",
        Next::Close => "",
    };
    line
}

#[test]
fn every_state_meets_every_event_as_written_down() {
    let mut table = String::from(
        "# Every state of the server role and every event: what the engine reports and writes, then what is\n\
         # true afterwards. `keeps`: next() would wait for another request. See tests/states.rs.\n",
    );
    for (state, enter) in STATES {
        let _ = writeln!(table, "\n{state}");
        for (event, act) in EVENTS {
            let mut talk = Conversation::new();
            enter(&mut talk);
            talk.events.clear();
            talk.out.clear();
            act(&mut talk);
            let _ = writeln!(table, "    {event}:{}", describe(&mut talk));
        }
    }
    if std::env::var_os("UPDATE_STATES").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/states.txt");
        std::fs::write(path, &table).expect("the table can be written");
        return;
    }
    let known = include_str!("data/states.txt");
    for (got, want) in table.lines().zip(known.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(table.lines().count(), known.lines().count());
}
