//! Tests with the tables of malformed and of unusual requests, each passed to the engine whole and split at every byte.

mod kit;

use h2o_http::BodyLength;
use h2o_http1::{Answer, Next, Settings};
use h2o_testkit::table::{self, Entry};
use kit::server::{Conversation, Event};

/// Positions at which to split an input of `len` bytes: all if it is short, else some around its start and its end and a
/// few between.
fn cuts(len: usize) -> Vec<usize> {
    (0..=len)
        .filter(|at| len < 2000 || *at < 70 || len - at < 10 || at % 100_003 == 0)
        .collect()
}

/// The ways to pass the input in pieces: whole, cut in two at each of the positions, and byte by byte.
fn ways(entry: &Entry) -> Vec<Vec<&[u8]>> {
    let input = entry.input.as_slice();
    let mut ways: Vec<Vec<&[u8]>> = cuts(input.len())
        .into_iter()
        .map(|at| vec![&input[..at], &input[at..]])
        .collect();
    ways.push(input.chunks(1).collect());
    if input.len() > 2000 {
        ways.pop();
        ways.push(input.chunks(97).collect());
    }
    ways
}

fn settings(strict: bool) -> Settings {
    Settings {
        strict,
        ..Settings::default()
    }
}

#[test]
fn malformed_requests_are_refused_as_the_table_says() {
    let entries = table::malformed();
    assert!(entries.len() >= 40);
    for entry in &entries {
        for strict in [false, true]
            .into_iter()
            .filter(|strict| entry.applies(*strict))
        {
            for way in ways(entry) {
                refuse(entry, strict, &way);
            }
        }
    }
}

fn refuse(entry: &Entry, strict: bool, pieces: &[&[u8]]) {
    let name = &entry.name;
    let mut talk = Conversation::with(settings(strict));
    let error = pieces.iter().find_map(|piece| {
        talk.client_sends(piece);
        match talk.events.last() {
            Some(Event::Error(error)) => Some(*error),
            _ => None,
        }
    });
    let error = error.unwrap_or_else(|| panic!("{name}: accepted, strict {strict}, {pieces:?}"));
    assert_eq!(Some(error.name()), entry.text("error"), "{name} {pieces:?}");
    talk.connection
        .error_response(error.answer(), Some(b"h2o"), None, &mut talk.out);
    let out = String::from_utf8(talk.out.clone()).expect("the bytes are UTF-8");
    match error.answer() {
        Answer::CloseSilently => {
            assert_eq!(
                (entry.text("status"), out.as_str()),
                (Some("close"), ""),
                "{name}"
            );
        }
        Answer::Respond { .. } => {
            let (head, body) = out
                .split_once("\r\n\r\n")
                .expect("the bytes have a complete head");
            assert_eq!(entry.text("status"), out.get(9..12), "{name}");
            assert_eq!(entry.text("body"), Some(body), "{name}");
            let length = format!("\r\nContent-Length: {}\r\n", body.len());
            for part in ["\r\nConnection: close\r\n", &length, "\r\nServer: h2o\r\n"] {
                assert!(head.contains(part), "{name}: {head}");
            }
        }
    }
    assert!(talk.connection.is_response_done());
    assert_eq!(talk.connection.next(talk.now), Next::Close, "{name}");
    assert!(
        !talk.step(),
        "{name}: the connection read bytes behind the broken request"
    );
}

#[test]
fn unusual_requests_are_accepted_as_the_table_says() {
    let entries = table::unusual();
    assert!(entries.len() >= 40);
    for entry in &entries {
        for strict in [false, true]
            .into_iter()
            .filter(|strict| entry.applies(*strict))
        {
            for way in ways(entry) {
                accept(entry, strict, &way);
            }
        }
    }
}

fn accept(entry: &Entry, strict: bool, pieces: &[&[u8]]) {
    let name = &entry.name;
    let mut talk = Conversation::with(settings(strict));
    let mut requests = 0;
    let mut content = Vec::new();
    let mut kept = None;
    for piece in pieces {
        talk.client_sends(piece);
        loop {
            for event in talk.events.drain(..) {
                match event {
                    Event::Request(_) => {
                        requests += 1;
                        kept = None;
                        content.clear();
                    }
                    Event::Data(data) => content.extend(data),
                    Event::BodyEnd => {}
                    Event::Http2 | Event::Error(_) => {
                        panic!("{name}: {event:?}, strict {strict}, {pieces:?}")
                    }
                }
            }
            let is_tunnel = talk.head.body == BodyLength::Tunnel;
            let is_open = requests > 0 && kept.is_none();
            if !is_open || !(talk.connection.is_body_done() || is_tunnel) {
                break;
            }
            if requests == entry_requests(entry) {
                check_head(entry, &talk);
            }
            // The test refuses tunnels, as a server that only has files does.
            talk.respond(if is_tunnel { 405 } else { 200 }, Some(0));
            talk.finish();
            kept = Some(talk.connection.next(talk.now));
            while kept == Some(Next::Request) && talk.step() {}
        }
    }
    assert_eq!(requests, entry_requests(entry), "{name} {pieces:?}");
    assert_eq!(talk.left(), b"", "{name}: bytes are left over");
    let want = match entry.text("kept") {
        Some("yes") => Next::Request,
        Some("no") => Next::Close,
        other => panic!("{name}: `kept` is yes or no, not {other:?}"),
    };
    assert_eq!(kept, Some(want), "{name}");
    if let Some(want) = entry.get("content") {
        let (got, want) = (content.escape_ascii(), want.escape_ascii());
        assert_eq!(got.to_string(), want.to_string(), "{name}");
    }
}

fn entry_requests(entry: &Entry) -> u64 {
    entry
        .text("requests")
        .map_or(1, |number| number.parse().expect("the text is a number"))
}

fn check_head(entry: &Entry, talk: &Conversation) {
    let head = &talk.head;
    let seen: [(&str, &[u8]); 6] = [
        ("method", head.method.as_str().as_bytes()),
        ("target", head.target()),
        ("path", head.path()),
        ("authority", head.authority()),
        ("version", head.version.as_str().as_bytes()),
        ("upgrade", head.upgrade()),
    ];
    for (key, got) in seen {
        if let Some(want) = entry.get(key) {
            let (got, want) = (
                got.escape_ascii().to_string(),
                want.escape_ascii().to_string(),
            );
            assert_eq!(got, want, "{}: {key}", entry.name);
        }
    }
    if let Some(fields) = entry.text("fields") {
        assert_eq!(
            head.headers.len().to_string(),
            fields,
            "{}: fields",
            entry.name
        );
    }
}
