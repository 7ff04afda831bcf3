//! A conversation of a test with the engine in the server role, on a virtual clock and without a socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::{Headers, Name, RequestHead, ResponseHead, StatusCode, TimeLimit};
use h2o_http2::{Received, SchedulingHint, ServerConnection, Settings, StreamKey, StreamState};
use h2o_testkit::any_moment;

use super::frames::{PREFACE, Reader, code, settings};
use super::{assert_said, pieces, ways_to_cut};

/// The engine in the server role, with its buffers and its clock.
pub(crate) struct Conversation {
    pub(crate) connection: ServerConnection,
    pub(crate) head: RequestHead,
    pub(crate) now: Instant,
    input: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) reader: Reader,
    pub(crate) keys: BTreeMap<u32, StreamKey>,
    /// For each stream, the number of content bytes that it still has to send.
    contents: BTreeMap<u32, usize>,
    /// The events that the engine reported, in words.
    pub(crate) events: Vec<String>,
    pub(crate) costs: u32,
    /// Whether a handler is running, so that the connection does not wait for the client.
    pub(crate) is_waiting_for_us: bool,
}

pub(crate) fn fields(fields: &[(&'static str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in fields {
        headers.push(Name::from_lower(name), value.as_bytes());
    }
    headers
}

impl Conversation {
    /// A connection on which both sides have sent their prefaces.
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let mut talk = Self::unopened(settings);
        talk.open(&[]);
        talk
    }

    /// A connection on which the client's preface has not arrived.
    pub(crate) fn unopened(settings: Settings) -> Self {
        let now = any_moment();
        Self::of(ServerConnection::new(Arc::new(settings), None, now), now)
    }

    pub(crate) fn of(connection: ServerConnection, now: Instant) -> Self {
        Self {
            connection,
            head: RequestHead::default(),
            now,
            input: Vec::new(),
            out: Vec::new(),
            reader: Reader::new(),
            keys: BTreeMap::new(),
            contents: BTreeMap::new(),
            events: Vec::new(),
            costs: 0,
            is_waiting_for_us: false,
        }
    }

    /// Sends the client's preface with these settings. The server's answer is dropped.
    pub(crate) fn open(&mut self, values: &[(u16, u32)]) -> &mut Self {
        self.client_sends(PREFACE).client_sends(settings(values));
        self.output();
        self.costs = 0;
        self
    }

    /// Passes bytes to the engine, which steps over them until it needs more.
    #[track_caller]
    pub(crate) fn client_sends(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.input.extend_from_slice(bytes.as_ref());
        while self.step() {}
        self
    }

    /// Like [`Conversation::client_sends`], but the engine makes only one step, so that the test can look at the head.
    pub(crate) fn client_sends_one(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.input.extend_from_slice(bytes.as_ref());
        self.step();
        self
    }

    fn step(&mut self) -> bool {
        self.head.clear();
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
        let more = step.received != Received::NeedMore;
        let event = match step.received {
            Received::NeedMore | Received::Charged => None,
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => {
                let id = id(stream);
                self.keys.insert(id, stream);
                let refusal = refusal.map_or(String::new(), |refusal| format!(" {refusal:?}"));
                let (method, target) = (self.head.method.as_str(), self.head.target());
                Some(format!(
                    "{id} {method} {} {}{}{refusal}",
                    target.escape_ascii(),
                    self.head.authority().escape_ascii(),
                    end(end_stream)
                ))
            }
            Received::Data {
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
            Received::Trailers { stream } => {
                let mut words = format!("{} trailers", id(stream));
                for field in self.head.headers.iter() {
                    words += &format!(" {}={}", field.name.as_str(), field.value.escape_ascii());
                }
                Some(words)
            }
            Received::Reset {
                stream,
                code: number,
                by_us,
            } => {
                let by = if by_us { "reset by us" } else { "reset" };
                Some(format!("{} {by} {}", id(stream), code(number.0)))
            }
        };
        self.events.extend(event);
        self.input.drain(..step.taken);
        more
    }

    /// The frames that the engine wrote since the last call, in words.
    pub(crate) fn output(&mut self) -> Vec<String> {
        self.reader.read(&std::mem::take(&mut self.out))
    }

    /// Checks that the engine reported these events and no others since the last call.
    #[track_caller]
    pub(crate) fn expect(&mut self, why: &str, events: &[&str]) -> &mut Self {
        assert_said(&std::mem::take(&mut self.events), events, why);
        self
    }

    /// Checks that the engine wrote these frames and no others since the last call.
    #[track_caller]
    pub(crate) fn expect_output(&mut self, why: &str, frames: &[&str]) -> &mut Self {
        assert_said(&self.output(), frames, why);
        self
    }

    /// Checks that this is the last frame that the engine wrote.
    #[track_caller]
    pub(crate) fn expect_output_last(&mut self, why: &str, frame: &str) {
        assert_eq!(
            self.output().last().map(String::as_str),
            Some(frame),
            "{why}"
        );
    }

    pub(crate) fn key(&self, id: u32) -> StreamKey {
        self.keys[&id]
    }

    pub(crate) fn state(&self, id: u32) -> StreamState {
        self.connection.state(self.key(id))
    }

    /// Writes a response head without fields.
    pub(crate) fn respond(&mut self, id: u32, status: u16, end_stream: bool) -> &mut Self {
        self.respond_with(id, status, &Headers::new(), None, end_stream)
    }

    pub(crate) fn respond_with(
        &mut self,
        id: u32,
        status: u16,
        headers: &Headers,
        length: Option<u64>,
        end_stream: bool,
    ) -> &mut Self {
        let response = ResponseHead {
            status: StatusCode::new(status).expect("the number is a valid status code"),
            reason: None,
            headers,
            length,
            server: None,
        };
        self.connection
            .respond(self.keys[&id], &response, end_stream, &mut self.out);
        self
    }

    /// Writes a complete response without content, and releases the stream.
    pub(crate) fn answer(&mut self, id: u32) -> &mut Self {
        self.respond(id, 200, true).release(id)
    }

    pub(crate) fn release(&mut self, id: u32) -> &mut Self {
        let key = self
            .keys
            .remove(&id)
            .expect("the server has got the stream");
        self.contents.remove(&id);
        self.connection.release(key, &mut self.out);
        self
    }

    /// Writes the head of a response with `len` bytes of content, which [`Conversation::send`] sends.
    pub(crate) fn respond_long(&mut self, id: u32, len: usize) -> &mut Self {
        self.respond(id, 200, false);
        self.contents.insert(id, len);
        self.connection.set_content(self.keys[&id], true);
        self
    }

    pub(crate) fn schedule(&mut self, id: u32, hint: SchedulingHint) -> &mut Self {
        self.connection.schedule(self.keys[&id], hint);
        self
    }

    /// Sends content in the engine's order, at most `frames` frames. Returns the streams in this order.
    pub(crate) fn send(&mut self, frames: usize) -> Vec<u32> {
        let mut turns = Vec::new();
        while turns.len() < frames {
            let Some((key, max)) = self.connection.poll_send() else {
                break;
            };
            let id = self.connection.stream_id(key).get();
            let left = self
                .contents
                .get_mut(&id)
                .expect("the response on the stream has content left");
            let len = max.min(*left);
            *left -= len;
            let is_end = *left == 0;
            self.connection
                .send_data(key, &vec![b'x'; len], is_end, &mut self.out);
            turns.push(id);
        }
        turns
    }

    /// Moves the clock on by `time`, or only to the first time limit that expires, which is returned. Calls the engine at
    /// the timeouts that it asks for.
    pub(crate) fn wait(&mut self, time: Duration) -> Option<TimeLimit> {
        let until = self.now + time;
        while let Some(at) = self.connection.next_timeout(self.is_waiting_for_us) {
            if at > until {
                break;
            }
            self.now = self.now.max(at);
            let passed =
                self.connection
                    .on_timeout(self.now, self.is_waiting_for_us, &mut self.out);
            if passed.is_some() {
                return passed;
            }
        }
        self.now = until;
        None
    }
}

/// The events and frames after `input` on a connection that `begin` makes, with the costs. The input is passed split in
/// every way, which must not change the result.
#[track_caller]
pub(crate) fn outcome(begin: impl Fn() -> Conversation, input: &[u8]) -> (Vec<String>, u32) {
    let mut first = None;
    for cuts in ways_to_cut(input.len()) {
        let mut talk = begin();
        talk.output();
        talk.events.clear();
        talk.costs = 0;
        for piece in pieces(input, &cuts) {
            talk.client_sends(piece);
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
