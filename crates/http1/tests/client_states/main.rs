//! Tests every state of the client role with every event: what the engine reports and writes, and the connection's
//! properties afterwards.

#[path = "../kit/mod.rs"]
mod kit;
mod requests;
mod responses;

use h2o_http::{BodyLength, Headers, Method, Name};
use h2o_http1::{ClientRequest, ClientSettings};
use kit::client::{Conversation, Event, GET};

type Act = fn(&mut Conversation);
/// The name of a state, how a connection gets into it, and the name and expected result of each event.
type State = (&'static str, Act, &'static [(&'static str, &'static str)]);

const POST: ClientRequest<'static> = ClientRequest {
    method: &Method::Post,
    body: BodyLength::Known(5),
    ..GET
};
const CHUNKED: ClientRequest<'static> = ClientRequest {
    method: &Method::Post,
    body: BodyLength::Unknown,
    ..GET
};
const CONNECT: ClientRequest<'static> = ClientRequest {
    method: &Method::Connect,
    target: b"b.example:443",
    host: b"b.example:443",
    ..GET
};
const UPGRADE: ClientRequest<'static> = ClientRequest {
    upgrade: Some(b"websocket"),
    ..GET
};

const EVENTS: [(&str, Act); 22] = [
    ("GET, if it may be sent", |talk| {
        if talk.is_reusable() {
            sends(talk, &GET);
        }
    }),
    ("content", |talk| {
        talk.connection.send_data(b"abc", &mut talk.out);
    }),
    ("content in place", |talk| {
        let room = talk.connection.begin_data(3, &mut talk.out);
        talk.out.extend_from_slice(&b"abc"[..room.min(3)]);
        talk.connection.end_data(&mut talk.out);
    }),
    ("finish", |talk| {
        talk.connection.finish(None, &mut talk.out);
    }),
    ("finish with trailers", |talk| {
        let mut trailers = Headers::new();
        trailers.push(Name::from_lower("x"), b"y");
        talk.connection.finish(Some(&trailers), &mut talk.out);
    }),
    ("abort", |talk| talk.connection.abort(&mut talk.out)),
    ("half a head", |talk| arrives(talk, "HTTP/1.1 200")),
    ("100", |talk| arrives(talk, "HTTP/1.1 100 Continue\r\n\r\n")),
    ("101", |talk| {
        arrives(
            talk,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        );
    }),
    ("200 of 2 bytes", |talk| {
        arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab");
    }),
    ("200 of 9 bytes, cut", |talk| {
        arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab");
    }),
    ("200 in chunks", |talk| {
        arrives(
            talk,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        );
    }),
    ("200 to the end", |talk| {
        arrives(talk, "HTTP/1.1 200 OK\r\n\r\nab")
    }),
    ("200 and close", |talk| {
        arrives(
            talk,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        );
    }),
    ("204", |talk| {
        arrives(talk, "HTTP/1.1 204 No Content\r\n\r\n")
    }),
    ("HTTP/1.0", |talk| {
        arrives(talk, "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
    }),
    ("nonsense", |talk| arrives(talk, "nonsense\r\n\r\n")),
    ("two lengths", |talk| {
        arrives(
            talk,
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        );
    }),
    ("an end of chunks", |talk| arrives(talk, "0\r\n\r\n")),
    ("two bytes", |talk| arrives(talk, "ab")),
    ("a byte passes by", |talk| {
        if talk.connection.content_left().is_some_and(|left| left > 0) {
            talk.connection.skip_content(1);
        }
    }),
    ("closed", |talk| {
        let ended = match talk.connection.on_closed() {
            Ok(ended) => format!("{ended:?}"),
            Err(error) => format!("{error:?}"),
        };
        talk.events.push(Event::Response(ended));
    }),
];

fn sends(talk: &mut Conversation, request: &ClientRequest<'_>) {
    let mode = talk.connection.send_request(request, &mut talk.out);
    talk.events.push(Event::Response(format!("{mode:?}")));
}

fn arrives(talk: &mut Conversation, bytes: &str) {
    talk.server_sends(bytes);
}

fn outcome(enter: Act, event: Act) -> String {
    let mut talk = Conversation::with(ClientSettings::default());
    enter(&mut talk);
    talk.events.clear();
    talk.out.clear();
    event(&mut talk);
    let mut words: Vec<String> = (talk.events.iter())
        .map(|event| match event {
            Event::Interim(line) => format!("interim {line}"),
            Event::Response(line) => line.clone(),
            Event::Data(data) => format!("data {}", data.escape_ascii()),
            Event::BodyEnd => "end".to_owned(),
            Event::Error(error) => format!("{error:?}"),
        })
        .collect();
    if !talk.out.is_empty() {
        words.push(format!("writes {}", talk.out.escape_ascii()));
    }
    let connection = &talk.connection;
    words.push(format!("-> awaits {:?}", connection.awaited()));
    for (is_so, name) in [
        (connection.is_request_done(), "request done"),
        (connection.is_response_done(), "response done"),
        (talk.is_reusable(), "reusable"),
        (connection.is_between_chunks(), "between chunks"),
        (!talk.left().is_empty(), "bytes left"),
    ] {
        words.extend(is_so.then(|| name.to_owned()));
    }
    words.extend(
        connection
            .content_left()
            .filter(|&left| left > 0)
            .map(|left| format!("{left} to come")),
    );
    words.join(", ")
}

fn check(states: &[State]) {
    for (state, enter, wants) in states {
        assert_eq!(
            wants.len(),
            EVENTS.len(),
            "{state}: the table has every event"
        );
        for ((name, event), (of, want)) in EVENTS.into_iter().zip(*wants) {
            assert_eq!(
                name, *of,
                "{state}: the table has the events in their order"
            );
            assert_eq!(
                outcome(*enter, event),
                *want,
                "{name} on a connection that is {state}"
            );
        }
    }
}
