//! A conversation of a test with the engine in the client role, on a virtual clock and without a socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::{BodyLength, ClientResponse, Headers, Method, RequestHead};
use h2o_http2::{ClientConnection, ClientReceived, ClientSettings, StreamKey, StreamState};
use h2o_testkit::any_moment;

use super::frames::{Reader, code, settings};
use super::{assert_said, pieces, ways_to_cut};

/// The engine in the client role, with its buffers and its clock.
pub(crate) struct Conversation {
    pub(crate) connection: ClientConnection,
    pub(crate) head: ClientResponse,
    pub(crate) now: Instant,
    input: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) reader: Reader,
    pub(crate) keys: BTreeMap<u32, StreamKey>,
    pub(crate) events: Vec<String>,
    pub(crate) costs: u32,
}

/// The head of a request without fields.
pub(crate) fn request(method: &str, target: &str, authority: &str) -> RequestHead {
    request_with(method, target, authority, "", Headers::new())
}

pub(crate) fn request_with(
    method: &str,
    target: &str,
    authority: &str,
    protocol: &str,
    headers: Headers,
) -> RequestHead {
    let mut head = RequestHead::default();
    head.method = Method::from_token(method.as_bytes()).expect("the method is a token");
    head.headers = headers;
    let target = head.headers.store(target.as_bytes());
    head.set_target(target);
    let authority = head.headers.store(authority.as_bytes());
    head.set_authority(authority);
    let protocol = head.headers.store(protocol.as_bytes());
    head.set_upgrade(protocol);
    head
}

impl Conversation {
    /// A connection on which both sides have sent their prefaces.
    pub(crate) fn new() -> Self {
        Self::with(ClientSettings::default())
    }

    pub(crate) fn with(with: ClientSettings) -> Self {
        let mut talk = Self::unopened(with);
        talk.server_sends(settings(&[]));
        talk.output();
        talk.costs = 0;
        talk
    }

    /// A connection on which the server's preface has not arrived.
    pub(crate) fn unopened(settings: ClientSettings) -> Self {
        let now = any_moment();
        let mut out = Vec::new();
        Self {
            connection: ClientConnection::new(Arc::new(settings), now, &mut out),
            head: ClientResponse::new(),
            now,
            input: Vec::new(),
            out,
            reader: Reader::new(),
            keys: BTreeMap::new(),
            events: Vec::new(),
            costs: 0,
        }
    }

    /// Sends a request. Returns the identifier of its stream, if the engine accepts the request.
    pub(crate) fn asks(&mut self, head: &RequestHead, end_stream: bool) -> Option<u32> {
        let key = self.connection.request(head, end_stream, &mut self.out)?;
        let id = self.connection.stream_id(key).get();
        self.keys.insert(id, key);
        Some(id)
    }

    /// Sends `GET /` and clears the output. Returns the stream.
    pub(crate) fn gets(&mut self) -> u32 {
        let id = self.asks(&request("GET", "/", "a.example"), true);
        self.output();
        id.expect("the server allows another request")
    }

    /// Sends the head of `POST /`, whose content follows. Returns the stream.
    pub(crate) fn posts(&mut self) -> u32 {
        let mut head = request("POST", "/", "a.example");
        head.body = BodyLength::Unknown;
        let id = self.asks(&head, false);
        self.output();
        id.expect("the server allows another request")
    }

    #[track_caller]
    pub(crate) fn server_sends(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.input.extend_from_slice(bytes.as_ref());
        while self.step() {}
        self
    }

    fn step(&mut self) -> bool {
        let step = self
            .connection
            .receive(&self.input, &mut self.head, self.now, &mut self.out);
        self.costs += self.connection.take_costs();
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                self.events.push(format!("error {error:?}"));
                self.input.clear();
                return false;
            }
        };
        assert!(
            step.taken <= self.input.len(),
            "the engine took more bytes than it got"
        );
        let id = |key| self.connection.stream_id(key).get();
        let end = |is_end| if is_end { " END" } else { "" };
        let more = step.received != ClientReceived::NeedMore;
        let event = match step.received {
            ClientReceived::NeedMore | ClientReceived::Charged => None,
            ClientReceived::Informational { stream } => {
                Some(format!("{} {}", id(stream), self.head_in_words()))
            }
            ClientReceived::Response { stream, end_stream } => Some(format!(
                "{} {} {:?}{}",
                id(stream),
                self.head_in_words(),
                self.head.body,
                end(end_stream)
            )),
            ClientReceived::Data {
                stream,
                data,
                end_stream,
            } => {
                assert!(
                    data.end <= step.taken,
                    "the event refers to content beyond the bytes that were taken"
                );
                let text = self.input[data].escape_ascii().to_string();
                let text = if text.len() > 40 {
                    format!("{} bytes", text.len())
                } else {
                    text
                };
                Some(format!("{} data {text}{}", id(stream), end(end_stream)))
            }
            ClientReceived::Trailers { stream } => {
                Some(format!("{} trailers{}", id(stream), self.fields_in_words()))
            }
            ClientReceived::Reset {
                stream,
                code: number,
                by_us,
            } => {
                let by = if by_us { "reset by us" } else { "reset" };
                Some(format!("{} {by} {}", id(stream), code(number.0)))
            }
            ClientReceived::Refused { stream } => Some(format!("{} refused", id(stream))),
            ClientReceived::GoAway { last, code: number } => {
                Some(format!("goaway {} {}", last.get(), code(number.0)))
            }
            ClientReceived::Pong { data } => Some(format!("pong {}", data.escape_ascii())),
        };
        self.events.extend(event);
        self.input.drain(..step.taken);
        more
    }

    fn head_in_words(&self) -> String {
        format!("{}{}", self.head.status.as_u16(), self.fields_in_words())
    }

    fn fields_in_words(&self) -> String {
        let mut words = String::new();
        for field in self.head.headers.iter() {
            words += &format!(" {}={}", field.name.as_str(), field.value.escape_ascii());
        }
        words
    }

    pub(crate) fn output(&mut self) -> Vec<String> {
        self.reader.read(&std::mem::take(&mut self.out))
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, why: &str, events: &[&str]) -> &mut Self {
        assert_said(&std::mem::take(&mut self.events), events, why);
        self
    }

    #[track_caller]
    pub(crate) fn expect_output(&mut self, why: &str, frames: &[&str]) -> &mut Self {
        assert_said(&self.output(), frames, why);
        self
    }

    pub(crate) fn key(&self, id: u32) -> StreamKey {
        self.keys[&id]
    }

    pub(crate) fn state(&self, id: u32) -> StreamState {
        self.connection.state(self.key(id))
    }

    pub(crate) fn release(&mut self, id: u32) -> &mut Self {
        let key = self
            .keys
            .remove(&id)
            .expect("the client has opened the stream");
        self.connection.release(key, &mut self.out);
        self
    }
}

/// The events and frames after `input` on a connection that `begin` makes. The input is passed split in every way, which
/// must not change the result.
#[track_caller]
pub(crate) fn outcome(begin: impl Fn() -> Conversation, input: &[u8]) -> (Vec<String>, u32) {
    let mut first = None;
    for cuts in ways_to_cut(input.len()) {
        let mut talk = begin();
        talk.output();
        talk.events.clear();
        talk.costs = 0;
        for piece in pieces(input, &cuts) {
            talk.server_sends(piece);
        }
        let mut said = std::mem::take(&mut talk.events);
        said.extend(talk.output());
        let got = (said, talk.costs);
        match &first {
            None => first = Some(got),
            Some(want) => assert_eq!(&got, want, "input cut at {cuts:?}"),
        }
    }
    first.expect("the list of cuts is not empty")
}

/// Checks the result of each input in a table.
#[track_caller]
pub(crate) fn check(begin: impl Fn() -> Conversation, cases: &[(&str, Vec<u8>, &[&str])]) {
    for (why, input, want) in cases {
        assert_said(&outcome(&begin, input).0, want, why);
    }
}
