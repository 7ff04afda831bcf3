//! Drives the server role of HTTP/1 over an input that arrives in pieces, and answers each request.

use std::sync::Arc;
use std::time::Instant;

use h2o_http::{
    BodyLength, Headers, Method, RequestHead, ResponseHead, Scheme, StatusCode, authority, is_token,
};
use h2o_http1::{Answer, Next, PeerError, Received, ServerConnection, Settings};
use h2o_testkit::any_moment;

/// Events of the connection, in a form that does not depend on how the input was cut.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A request.
    Request(Summary),
    /// Content of a request; adjacent pieces are joined.
    Data(Vec<u8>),
    BodyEnd,
    Http2,
    Refused(Answer),
    Kept,
    Closed,
}

/// The parts of a request head that a handler sees.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) method: String,
    pub(crate) target: Vec<u8>,
    pub(crate) authority: Vec<u8>,
    pub(crate) body: BodyLength,
    pub(crate) upgrade: Vec<u8>,
    pub(crate) fields: Fields,
}

impl Summary {
    pub(crate) fn of(head: &RequestHead) -> Self {
        Self {
            method: head.method.as_str().to_owned(),
            target: head.target().to_vec(),
            authority: head.authority().to_vec(),
            body: head.body,
            upgrade: head.upgrade().to_vec(),
            fields: fields(&head.headers),
        }
    }
}

/// Names and values of fields.
pub(crate) type Fields = Vec<(String, Vec<u8>)>;

/// Copies the fields of a header block.
pub(crate) fn fields(headers: &Headers) -> Fields {
    headers
        .iter()
        .map(|field| (field.name.as_str().to_owned(), field.value.to_vec()))
        .collect()
}

/// A connection whose every request is answered with an empty 200.
pub(crate) struct Driven {
    connection: ServerConnection,
    now: Instant,
    input: Vec<u8>,
    pub(crate) events: Vec<Event>,
    /// The heads of all requests received, for checks that need more than their summaries.
    pub(crate) heads: Vec<RequestHead>,
    is_over: bool,
}

impl Driven {
    pub(crate) fn new(settings: Settings) -> Self {
        let now = any_moment();
        Self {
            connection: ServerConnection::new(Arc::new(settings), Scheme::Http, now),
            now,
            input: Vec::new(),
            events: Vec::new(),
            heads: Vec::new(),
            is_over: false,
        }
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while !self.is_over && self.step() {
            self.answer();
        }
    }

    fn step(&mut self) -> bool {
        let mut head = RequestHead::default();
        let received = self.connection.receive(&self.input, self.now, &mut head);
        let (taken, event) = match received {
            Ok(Received::NeedMore { taken }) => (taken, None),
            Ok(Received::Request { taken }) => {
                check_head(&head);
                let event = Event::Request(Summary::of(&head));
                self.heads.push(head);
                (taken, Some(event))
            }
            Ok(Received::Data { taken, data }) => {
                assert!(data.start < data.end && data.end <= taken);
                (taken, Some(Event::Data(self.input[data].to_vec())))
            }
            Ok(Received::BodyEnd { taken }) => (taken, Some(Event::BodyEnd)),
            Ok(Received::Http2Preface) => {
                self.is_over = true;
                (0, Some(Event::Http2))
            }
            Err(error) => {
                self.is_over = true;
                (0, Some(Event::Refused(answer(error))))
            }
        };
        assert!(taken <= self.input.len());
        self.input.drain(..taken);
        let progress = taken > 0 || event.is_some();
        match (event, self.events.last_mut()) {
            (Some(Event::Data(more)), Some(Event::Data(data))) => data.extend(more),
            (Some(event), _) => self.events.push(event),
            (None, _) => {}
        }
        progress
    }

    /// Answers the request in progress if its body is complete.
    fn answer(&mut self) {
        let is_tunnel = self
            .heads
            .last()
            .is_some_and(|head| head.body == BodyLength::Tunnel);
        if self.is_over
            || self.connection.is_idle()
            || !(self.connection.is_body_done() || is_tunnel)
        {
            return;
        }
        let headers = Headers::new();
        let response = ResponseHead {
            status: if is_tunnel {
                StatusCode::METHOD_NOT_ALLOWED
            } else {
                StatusCode::OK
            },
            reason: None,
            headers: &headers,
            length: Some(0),
            server: None,
        };
        let mut out = Vec::new();
        self.connection.respond(&response, &mut out, self.now);
        assert!(self.connection.is_response_done() && out.ends_with(b"\r\n\r\n"));
        match self.connection.next(self.now) {
            Next::Request => {
                assert!(out.starts_with(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n"));
                self.events.push(Event::Kept);
            }
            Next::Close => {
                self.events.push(Event::Closed);
                self.is_over = true;
            }
        }
    }
}

/// If a connection has brought a few line ends and no request, it is closed without an answer, but only if nothing follows in the same
/// piece. That depends on the cuts, so the outcome is recorded as an invalid method in both cases.
fn answer(error: PeerError) -> Answer {
    match error {
        PeerError::BlankInput => PeerError::MethodInvalid.answer(),
        error => error.answer(),
    }
}

/// Invariants of every request head that the engine accepts.
fn check_head(head: &RequestHead) {
    assert!(is_token(head.method.as_str().as_bytes()));
    assert!(!head.target().is_empty());
    let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    assert!(head.target().iter().all(is_plain));
    assert!(head.path().starts_with(b"/"));
    assert!(!head.path().windows(4).any(|part| part == b"/../") && !head.path().ends_with(b"/.."));
    // The target of CONNECT is checked by its handler, not by the engine.
    let is_free = head.method == Method::Connect || head.authority().is_empty();
    assert!(is_free || authority::split(head.authority()).is_some());
    assert!(head.headers.len() <= Settings::default().max_fields);
    for field in head.headers.iter() {
        assert!(is_token(field.name.as_str().as_bytes()));
        assert!(
            !field
                .name
                .as_str()
                .bytes()
                .any(|byte| byte.is_ascii_uppercase())
        );
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        assert!(field.value.iter().all(is_text));
        assert_eq!(field.value.trim_ascii(), field.value);
    }
}
