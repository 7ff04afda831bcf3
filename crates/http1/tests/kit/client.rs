//! A conversation of a test with the engine in the client role, without a socket.

use std::sync::Arc;

use h2o_http::{BodyLength, ClientResponse, Headers, Method};
use h2o_http1::{
    BodyMode, ClientConnection, ClientReceived, ClientRequest, ClientSettings, UpstreamError,
};

/// An event that the client role reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The status and reason phrase of an interim response.
    Interim(String),
    /// The status and reason phrase of the final response.
    Response(String),
    /// Content of the response; adjacent pieces are joined.
    Data(Vec<u8>),
    BodyEnd,
    Error(UpstreamError),
}

/// The engine in the client role, with its buffers.
pub(crate) struct Conversation {
    pub(crate) connection: ClientConnection,
    pub(crate) head: ClientResponse,
    input: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) events: Vec<Event>,
}

pub(crate) fn response(line: &str) -> Event {
    Event::Response(line.to_owned())
}

pub(crate) fn interim(line: &str) -> Event {
    Event::Interim(line.to_owned())
}

pub(crate) fn data(text: &str) -> Event {
    Event::Data(text.as_bytes().to_vec())
}

/// `GET /` without fields; each test changes the part that it is about.
pub(crate) const GET: ClientRequest<'static> = ClientRequest {
    method: &Method::Get,
    target: b"/",
    host: b"a.example",
    headers: &Headers::new(),
    body: BodyLength::None,
    keep_alive: true,
    upgrade: None,
    expects_continue: false,
};

impl Conversation {
    pub(crate) fn new() -> Self {
        Self::with(ClientSettings::default())
    }

    pub(crate) fn with(settings: ClientSettings) -> Self {
        Self {
            connection: ClientConnection::new(Arc::new(settings)),
            head: ClientResponse::new(),
            input: Vec::new(),
            out: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Sends a request and clears the output.
    pub(crate) fn asks(&mut self, request: &ClientRequest<'_>) -> BodyMode {
        let mode = self.connection.send_request(request, &mut self.out);
        self.out.clear();
        mode
    }

    /// Passes bytes to the engine, which steps over them while it makes progress.
    pub(crate) fn server_sends(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.input.extend_from_slice(bytes.as_ref());
        while self.step() {}
        self
    }

    fn step(&mut self) -> bool {
        let line = |head: &ClientResponse| {
            let status = head.status.as_u16();
            format!("{status} {}", head.reason().escape_ascii())
        };
        let (taken, event) = match self.connection.receive(&self.input, &mut self.head) {
            Ok(ClientReceived::NeedMore { taken }) => (taken, None),
            Ok(ClientReceived::Interim { taken }) => {
                (taken, Some(Event::Interim(line(&self.head))))
            }
            Ok(ClientReceived::Response { taken }) => {
                (taken, Some(Event::Response(line(&self.head))))
            }
            Ok(ClientReceived::Data { taken, data }) => {
                assert!(
                    data.end <= taken,
                    "the event refers to content beyond the bytes that were taken"
                );
                (taken, Some(Event::Data(self.input[data].to_vec())))
            }
            Ok(ClientReceived::BodyEnd { taken }) => (taken, Some(Event::BodyEnd)),
            Err(error) => (0, Some(Event::Error(error))),
        };
        self.input.drain(..taken);
        // Once the response is complete, the test passes no more bytes to the engine before it sends the next request.
        let progress = (taken > 0 || event.is_some()) && !self.connection.is_response_done();
        match (event, self.events.last_mut()) {
            (Some(Event::Data(more)), Some(Event::Data(data))) => data.extend(more),
            (Some(event), _) => self.events.push(event),
            (None, _) => {}
        }
        progress
    }

    /// The bytes that were received and that the engine has not taken.
    pub(crate) fn left(&self) -> &[u8] {
        &self.input
    }

    pub(crate) fn is_reusable(&self) -> bool {
        self.connection.is_reusable(self.left())
    }

    /// Checks that the engine reported these events and no others since the last call.
    #[track_caller]
    pub(crate) fn expect(&mut self, why: &str, events: &[Event]) -> &mut Self {
        assert_eq!(self.events, events, "{why}");
        self.events.clear();
        self
    }
}
