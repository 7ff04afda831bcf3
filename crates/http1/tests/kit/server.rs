//! A conversation of a test with the engine in the server role, on a virtual clock and without a socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::{Headers, RequestHead, ResponseHead, Scheme, StatusCode, TimeLimit};
use h2o_http1::{BodyMode, Next, PeerError, Received, ServerConnection, Settings};
use h2o_testkit::any_moment;

/// An event that the server role reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The method, target and authority of a request.
    Request(String),
    /// Content of the request; adjacent pieces are joined.
    Data(Vec<u8>),
    BodyEnd,
    Http2,
    Error(PeerError),
}

/// The engine in the server role, with its buffers and its clock.
pub(crate) struct Conversation {
    pub(crate) connection: ServerConnection,
    pub(crate) head: RequestHead,
    pub(crate) now: Instant,
    /// Bytes received from the client; the engine has taken the first `taken` of them.
    input: Vec<u8>,
    taken: usize,
    pub(crate) out: Vec<u8>,
    pub(crate) events: Vec<Event>,
}

pub(crate) fn request(line: &str) -> Event {
    Event::Request(line.to_owned())
}

pub(crate) fn data(text: &str) -> Event {
    Event::Data(text.as_bytes().to_vec())
}

impl Conversation {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let now = any_moment();
        Self {
            connection: ServerConnection::new(Arc::new(settings), Scheme::Http, now),
            head: RequestHead::default(),
            now,
            input: Vec::new(),
            taken: 0,
            out: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Passes bytes to the engine, which steps over them while it makes progress.
    pub(crate) fn client_sends(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.input.extend_from_slice(bytes.as_ref());
        while self.step() {}
        self
    }

    /// Makes one step; returns false if the engine made no progress.
    pub(crate) fn step(&mut self) -> bool {
        let input = &self.input[self.taken..];
        let received = self.connection.receive(input, self.now, &mut self.head);
        let (taken, event) = match received {
            Ok(Received::NeedMore { taken }) => (taken, None),
            Ok(Received::Request { taken }) => (taken, Some(self.request_event())),
            Ok(Received::Data { taken, data }) => {
                assert!(
                    data.end <= taken,
                    "the event refers to content beyond the bytes that were taken"
                );
                (taken, Some(Event::Data(input[data].to_vec())))
            }
            Ok(Received::BodyEnd { taken }) => (taken, Some(Event::BodyEnd)),
            Ok(Received::Http2Preface) => {
                self.events.push(Event::Http2);
                return false;
            }
            Err(error) => (0, Some(Event::Error(error))),
        };
        assert!(
            taken <= self.left().len(),
            "the connection took more bytes than it got"
        );
        self.taken += taken;
        let progress = taken > 0 || event.is_some();
        match (event, self.events.last_mut()) {
            (Some(Event::Data(more)), Some(Event::Data(data))) => data.extend(more),
            (Some(event), _) => self.events.push(event),
            (None, _) => {}
        }
        progress
    }

    /// The bytes that were received and that the engine has not taken.
    pub(crate) fn left(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    fn request_event(&self) -> Event {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        Event::Request(format!(
            "{} {} {}",
            self.head.method.as_str(),
            text(self.head.target()),
            text(self.head.authority())
        ))
    }

    /// Checks that the engine reported these events and no others since the last call.
    #[track_caller]
    pub(crate) fn expect(&mut self, why: &str, events: &[Event]) -> &mut Self {
        assert_eq!(self.events, events, "{why}");
        self.events.clear();
        self
    }

    /// Checks that the engine wrote these bytes and no others since the last call.
    #[track_caller]
    pub(crate) fn expect_output(&mut self, why: &str, bytes: impl AsRef<[u8]>) -> &mut Self {
        let (got, want) = (self.out.escape_ascii(), bytes.as_ref().escape_ascii());
        assert_eq!(got.to_string(), want.to_string(), "{why}");
        self.out.clear();
        self
    }

    /// Writes a response head without fields.
    pub(crate) fn respond(&mut self, code: u16, length: Option<u64>) -> BodyMode {
        self.respond_with(code, length, &Headers::new())
    }

    pub(crate) fn respond_with(
        &mut self,
        code: u16,
        length: Option<u64>,
        headers: &Headers,
    ) -> BodyMode {
        let head = ResponseHead {
            status: StatusCode::new(code).expect("the number is a valid status code"),
            reason: None,
            headers,
            length,
            server: None,
        };
        self.connection.respond(&head, &mut self.out, self.now)
    }

    pub(crate) fn send(&mut self, data: &str) -> &mut Self {
        self.connection.send_data(data.as_bytes(), &mut self.out);
        self
    }

    pub(crate) fn finish(&mut self) -> &mut Self {
        self.connection.finish(None, &mut self.out);
        self
    }

    /// Sends a complete response with this body, and asks the engine what follows.
    pub(crate) fn answer(&mut self, body: &str) -> Next {
        self.respond(200, Some(body.len() as u64));
        self.send(body).finish();
        self.connection.on_written(self.out.len(), false, self.now);
        let next = self.connection.next(self.now);
        if next == Next::Request {
            while self.step() {}
        }
        next
    }

    /// Moves the simulated clock on by `time`, or only to the first time limit that expires, which is returned. Calls the
    /// engine at the timeouts that it asks for.
    pub(crate) fn wait(&mut self, time: Duration) -> Option<TimeLimit> {
        let until = self.now + time;
        while let Some(at) = self.connection.next_timeout() {
            if at > until {
                break;
            }
            self.now = self.now.max(at);
            let passed = self.connection.on_timeout(self.now);
            assert!(
                passed.is_some(),
                "next_timeout announced a time at which no time limit has passed"
            );
            if passed.is_some() {
                return passed;
            }
        }
        self.now = until;
        assert_eq!(
            self.connection.on_timeout(self.now),
            None,
            "a time limit has passed that next_timeout did not announce"
        );
        None
    }
}
