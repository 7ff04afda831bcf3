//! Every state of the client role with every event: reports, output, and properties afterwards.

mod kit;

use h2o_http::{BodyLength, Headers, Method, Name};
use h2o_http1::{ClientRequest, ClientSettings};
use kit::client::{Conversation, Event, GET};

type Act = fn(&mut Conversation);
/// Name of the state, how a connection gets into it, and the result of each event.
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

#[test]
fn every_state_meets_every_event() {
    let states: [State; 12] = [
        (
            "new",
            |_| {},
            &[
                (
                    "GET, if it may be sent",
                    "None, writes GET / HTTP/1.1\\r\\nhost: a.example\\r\\nconnection: keep-alive\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "content",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "content in place",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "finish",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "finish with trailers",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                ("abort", "-> awaits Nothing, request done, response done"),
                (
                    "half a head",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "100",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "a byte passes by",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                ("closed", "Nothing, -> awaits Nothing, request done"),
            ],
        ),
        (
            "awaiting a head",
            |talk| sends(talk, &GET),
            &[
                ("GET, if it may be sent", "-> awaits Head, request done"),
                ("content", "-> awaits Head, request done"),
                ("content in place", "-> awaits Head, request done"),
                ("finish", "-> awaits Head, request done"),
                ("finish with trailers", "-> awaits Head, request done"),
                ("abort", "-> awaits Head, request done"),
                ("half a head", "-> awaits Head, request done, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head, request done"),
                (
                    "101",
                    "UnexpectedSwitch, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, request done, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 to the end",
                    "200 OK, data ab, -> awaits Body, request done",
                ),
                (
                    "200 and close",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "204",
                    "204 No Content, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "HTTP/1.0",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                ("a byte passes by", "-> awaits Head, request done"),
                (
                    "closed",
                    "ClosedBeforeResponse, -> awaits Nothing, request done",
                ),
            ],
        ),
        (
            "within a head",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 20");
            },
            &[
                (
                    "GET, if it may be sent",
                    "-> awaits Head, request done, bytes left",
                ),
                ("content", "-> awaits Head, request done, bytes left"),
                (
                    "content in place",
                    "-> awaits Head, request done, bytes left",
                ),
                ("finish", "-> awaits Head, request done, bytes left"),
                (
                    "finish with trailers",
                    "-> awaits Head, request done, bytes left",
                ),
                ("abort", "-> awaits Head, request done, bytes left"),
                ("half a head", "-> awaits Head, request done, bytes left"),
                (
                    "100",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                ("an end of chunks", "200 , -> awaits Body, request done"),
                ("two bytes", "-> awaits Head, request done, bytes left"),
                (
                    "a byte passes by",
                    "-> awaits Head, request done, bytes left",
                ),
                (
                    "closed",
                    "HeadTruncated, -> awaits Nothing, request done, bytes left",
                ),
            ],
        ),
        (
            "awaiting a head, sending",
            |talk| sends(talk, &POST),
            &[
                ("GET, if it may be sent", "-> awaits Head"),
                ("content", "writes abc, -> awaits Head"),
                ("content in place", "writes abc, -> awaits Head"),
                ("finish", "-> awaits Head, request done"),
                ("finish with trailers", "-> awaits Head, request done"),
                ("abort", "-> awaits Head, request done"),
                ("half a head", "-> awaits Head, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head"),
                ("101", "UnexpectedSwitch, -> awaits Nothing, bytes left"),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, response done",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, response done",
                ),
                ("200 to the end", "200 OK, data ab, -> awaits Body"),
                ("200 and close", "200 OK, -> awaits Nothing, response done"),
                ("204", "204 No Content, -> awaits Nothing, response done"),
                ("HTTP/1.0", "200 OK, -> awaits Nothing, response done"),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                ("a byte passes by", "-> awaits Head"),
                ("closed", "ClosedBeforeResponse, -> awaits Nothing"),
            ],
        ),
        (
            "awaiting a head, sending chunks",
            |talk| sends(talk, &CHUNKED),
            &[
                ("GET, if it may be sent", "-> awaits Head"),
                ("content", "writes 3\\r\\nabc\\r\\n, -> awaits Head"),
                (
                    "content in place",
                    "writes 3\\r\\nabc\\r\\n, -> awaits Head",
                ),
                (
                    "finish",
                    "writes 0\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "finish with trailers",
                    "writes 0\\r\\nx: y\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "abort",
                    "writes \\r\\n1\\r\\n, -> awaits Head, request done",
                ),
                ("half a head", "-> awaits Head, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head"),
                ("101", "UnexpectedSwitch, -> awaits Nothing, bytes left"),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, response done",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, response done",
                ),
                ("200 to the end", "200 OK, data ab, -> awaits Body"),
                ("200 and close", "200 OK, -> awaits Nothing, response done"),
                ("204", "204 No Content, -> awaits Nothing, response done"),
                ("HTTP/1.0", "200 OK, -> awaits Nothing, response done"),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                ("a byte passes by", "-> awaits Head"),
                ("closed", "ClosedBeforeResponse, -> awaits Nothing"),
            ],
        ),
        (
            "within content",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na");
            },
            &[
                (
                    "GET, if it may be sent",
                    "-> awaits Body, request done, 4 to come",
                ),
                ("content", "-> awaits Body, request done, 4 to come"),
                (
                    "content in place",
                    "-> awaits Body, request done, 4 to come",
                ),
                ("finish", "-> awaits Body, request done, 4 to come"),
                (
                    "finish with trailers",
                    "-> awaits Body, request done, 4 to come",
                ),
                ("abort", "-> awaits Body, request done, 4 to come"),
                (
                    "half a head",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "100",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "101",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 in chunks",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 to the end",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 and close",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "204",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "nonsense",
                    "data nons, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "two lengths",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "an end of chunks",
                    "data 0\\r\\n\\r, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "two bytes",
                    "data ab, -> awaits Body, request done, 2 to come",
                ),
                (
                    "a byte passes by",
                    "-> awaits Body, request done, 3 to come",
                ),
                ("closed", "BodyTruncated, -> awaits Nothing, request done"),
            ],
        ),
        (
            "between chunks",
            |talk| {
                sends(talk, &GET);
                arrives(
                    talk,
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
                );
            },
            &[
                (
                    "GET, if it may be sent",
                    "-> awaits Body, request done, between chunks",
                ),
                ("content", "-> awaits Body, request done, between chunks"),
                (
                    "content in place",
                    "-> awaits Body, request done, between chunks",
                ),
                ("finish", "-> awaits Body, request done, between chunks"),
                (
                    "finish with trailers",
                    "-> awaits Body, request done, between chunks",
                ),
                ("abort", "-> awaits Body, request done, between chunks"),
                (
                    "half a head",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "100",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "end, -> awaits Nothing, request done, response done, reusable",
                ),
                ("two bytes", "-> awaits Body, request done"),
                (
                    "a byte passes by",
                    "-> awaits Body, request done, between chunks",
                ),
                ("closed", "BodyTruncated, -> awaits Nothing, request done"),
            ],
        ),
        (
            "within content to the end",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 200 OK\r\n\r\na");
            },
            &[
                ("GET, if it may be sent", "-> awaits Body, request done"),
                ("content", "-> awaits Body, request done"),
                ("content in place", "-> awaits Body, request done"),
                ("finish", "-> awaits Body, request done"),
                ("finish with trailers", "-> awaits Body, request done"),
                ("abort", "-> awaits Body, request done"),
                (
                    "half a head",
                    "data HTTP/1.1 200, -> awaits Body, request done",
                ),
                (
                    "100",
                    "data HTTP/1.1 100 Continue\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "101",
                    "data HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: upgrade\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "200 of 2 bytes",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nab, -> awaits Body, request done",
                ),
                (
                    "200 of 9 bytes, cut",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nab, -> awaits Body, request done",
                ),
                (
                    "200 in chunks",
                    "data HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\n0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "200 to the end",
                    "data HTTP/1.1 200 OK\\r\\n\\r\\nab, -> awaits Body, request done",
                ),
                (
                    "200 and close",
                    "data HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "204",
                    "data HTTP/1.1 204 No Content\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "HTTP/1.0",
                    "data HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "nonsense",
                    "data nonsense\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "two lengths",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "an end of chunks",
                    "data 0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                ("two bytes", "data ab, -> awaits Body, request done"),
                ("a byte passes by", "-> awaits Body, request done"),
                ("closed", "Body, -> awaits Nothing, request done"),
            ],
        ),
        (
            "answered early",
            |talk| {
                sends(talk, &POST);
                arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            },
            &[
                ("GET, if it may be sent", "-> awaits Nothing, response done"),
                ("content", "writes abc, -> awaits Nothing, response done"),
                (
                    "content in place",
                    "writes abc, -> awaits Nothing, response done",
                ),
                ("finish", "-> awaits Nothing, request done, response done"),
                (
                    "finish with trailers",
                    "-> awaits Nothing, request done, response done",
                ),
                ("abort", "-> awaits Nothing, request done, response done"),
                ("half a head", "Unsolicited, -> awaits Nothing, bytes left"),
                ("100", "Unsolicited, -> awaits Nothing, bytes left"),
                ("101", "Unsolicited, -> awaits Nothing, bytes left"),
                (
                    "200 of 2 bytes",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 in chunks",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 to the end",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 and close",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                ("204", "Unsolicited, -> awaits Nothing, bytes left"),
                ("HTTP/1.0", "Unsolicited, -> awaits Nothing, bytes left"),
                ("nonsense", "Unsolicited, -> awaits Nothing, bytes left"),
                ("two lengths", "Unsolicited, -> awaits Nothing, bytes left"),
                (
                    "an end of chunks",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                ("two bytes", "Unsolicited, -> awaits Nothing, bytes left"),
                ("a byte passes by", "-> awaits Nothing, response done"),
                ("closed", "Nothing, -> awaits Nothing"),
            ],
        ),
        (
            "done",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            },
            &[
                (
                    "GET, if it may be sent",
                    "None, writes GET / HTTP/1.1\\r\\nhost: a.example\\r\\nconnection: keep-alive\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "content",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "content in place",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "finish",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "finish with trailers",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                ("abort", "-> awaits Nothing, request done, response done"),
                (
                    "half a head",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "100",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "a byte passes by",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                ("closed", "Nothing, -> awaits Nothing, request done"),
            ],
        ),
        (
            "in a tunnel",
            |talk| {
                sends(talk, &CONNECT);
                arrives(talk, "HTTP/1.1 200 OK\r\n\r\n");
            },
            &[
                ("GET, if it may be sent", "-> awaits Tunnel"),
                ("content", "writes abc, -> awaits Tunnel"),
                ("content in place", "writes abc, -> awaits Tunnel"),
                ("finish", "-> awaits Tunnel, request done"),
                ("finish with trailers", "-> awaits Tunnel, request done"),
                ("abort", "-> awaits Tunnel, request done"),
                ("half a head", "data HTTP/1.1 200, -> awaits Tunnel"),
                (
                    "100",
                    "data HTTP/1.1 100 Continue\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "101",
                    "data HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: upgrade\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "200 of 2 bytes",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nab, -> awaits Tunnel",
                ),
                (
                    "200 of 9 bytes, cut",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nab, -> awaits Tunnel",
                ),
                (
                    "200 in chunks",
                    "data HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\n0\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "200 to the end",
                    "data HTTP/1.1 200 OK\\r\\n\\r\\nab, -> awaits Tunnel",
                ),
                (
                    "200 and close",
                    "data HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "204",
                    "data HTTP/1.1 204 No Content\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "HTTP/1.0",
                    "data HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                ("nonsense", "data nonsense\\r\\n\\r\\n, -> awaits Tunnel"),
                (
                    "two lengths",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                ("an end of chunks", "data 0\\r\\n\\r\\n, -> awaits Tunnel"),
                ("two bytes", "data ab, -> awaits Tunnel"),
                ("a byte passes by", "-> awaits Tunnel"),
                ("closed", "Tunnel, -> awaits Nothing"),
            ],
        ),
        (
            "offering an upgrade",
            |talk| sends(talk, &UPGRADE),
            &[
                ("GET, if it may be sent", "-> awaits Head, request done"),
                ("content", "-> awaits Head, request done"),
                ("content in place", "-> awaits Head, request done"),
                ("finish", "-> awaits Head, request done"),
                ("finish with trailers", "-> awaits Head, request done"),
                ("abort", "-> awaits Head, request done"),
                ("half a head", "-> awaits Head, request done, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head, request done"),
                ("101", "101 Switching Protocols, -> awaits Tunnel"),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, request done, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 to the end",
                    "200 OK, data ab, -> awaits Body, request done",
                ),
                (
                    "200 and close",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "204",
                    "204 No Content, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "HTTP/1.0",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                ("a byte passes by", "-> awaits Head, request done"),
                (
                    "closed",
                    "ClosedBeforeResponse, -> awaits Nothing, request done",
                ),
            ],
        ),
    ];
    for (state, enter, wants) in states {
        assert_eq!(wants.len(), EVENTS.len(), "{state}: every event");
        for ((name, event), (of, want)) in EVENTS.into_iter().zip(wants) {
            assert_eq!(name, *of, "{state}: the events in their order");
            assert_eq!(
                outcome(enter, event),
                *want,
                "{name} on a connection that is {state}"
            );
        }
    }
}
