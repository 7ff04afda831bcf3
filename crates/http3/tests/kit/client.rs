//! A conversation of a test with the engine in the client role, without a transport.

use std::collections::BTreeMap;
use std::sync::Arc;

use h2o_http::{BodyLength, ClientResponse, Headers, Method, RequestHead};
use h2o_http3::{
    ClientConnection, ClientReceived, ClientSettings, Command, ErrorCode, PeerError, StreamId,
    StreamKey, StreamState,
};
use h2o_testkit::http3::{Decoder, Frame, code, kind};

use super::{assert_said, control, name, pieces, ways_to_cut};

/// Identifiers of the server's unidirectional streams.
pub(crate) const SERVER_CONTROL: u64 = 3;
pub(crate) const SERVER_ENCODER: u64 = 7;
pub(crate) const SERVER_DECODER: u64 = 11;

/// The engine in the client role, with its buffers.
pub(crate) struct Conversation {
    pub(crate) connection: ClientConnection,
    pub(crate) head: ClientResponse,
    input: BTreeMap<u64, (Vec<u8>, bool)>,
    next: u64,
    next_of_server: u64,
    pub(crate) keys: BTreeMap<u64, StreamKey>,
    pub(crate) decoder: Decoder,
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
    head.scheme = h2o_http::Scheme::Https;
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
    /// A connection on which the server has sent its settings.
    pub(crate) fn new() -> Self {
        let mut talk = Self::unopened(ClientSettings::default());
        talk.server_sends(SERVER_CONTROL, control(&[(8, 1), (0x33, 1)]));
        talk.expect("the server's settings", &["settings"]);
        talk.costs = 0;
        talk
    }

    /// A connection on which the server has sent nothing yet.
    pub(crate) fn unopened(settings: ClientSettings) -> Self {
        Self {
            connection: ClientConnection::new(Arc::new(settings), true),
            head: ClientResponse::new(),
            input: BTreeMap::new(),
            next: 0,
            next_of_server: 3,
            keys: BTreeMap::new(),
            decoder: Decoder::new(0),
            events: Vec::new(),
            costs: 0,
        }
    }

    /// Sends a request. Returns its stream, and the frames that the engine wrote, in words; `None` if the engine makes no
    /// request.
    pub(crate) fn asks(
        &mut self,
        head: &RequestHead,
        end_stream: bool,
    ) -> Option<(u64, Vec<String>)> {
        let id = self.next;
        let mut out = Vec::new();
        let stream = StreamId::new(id);
        let key = self
            .connection
            .request(stream, head, end_stream, &mut out)?;
        self.next += 4;
        self.keys.insert(id, key);
        Some((id, self.read(id, &out)))
    }

    /// Sends `GET /`. Returns the stream.
    pub(crate) fn gets(&mut self) -> u64 {
        let asked = self.asks(&request("GET", "/", "a.example"), true);
        asked.expect("the server allows another request").0
    }

    /// Sends the head of `POST /`, whose content follows. Returns the stream.
    pub(crate) fn posts(&mut self) -> u64 {
        let mut head = request("POST", "/", "a.example");
        head.body = BodyLength::Unknown;
        self.asks(&head, false)
            .expect("the server allows another request")
            .0
    }

    /// The frames in `bytes`, which the engine wrote for the stream `id`, in words.
    pub(crate) fn read(&mut self, id: u64, bytes: &[u8]) -> Vec<String> {
        let frames = Frame::parse_all(bytes).into_iter();
        frames
            .map(|frame| match frame.kind {
                kind::HEADERS => {
                    let (fields, _) = self
                        .decoder
                        .decode(id, &frame.payload)
                        .expect("the field section is complete");
                    let mut words = "HEADERS".to_owned();
                    for (name, value) in fields {
                        words += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
                    }
                    words
                }
                other => format!("{} {}", name(other), frame.payload.escape_ascii()),
            })
            .collect()
    }

    pub(crate) fn server_sends(&mut self, id: u64, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.said(id, bytes.as_ref(), false)
    }

    pub(crate) fn server_ends(&mut self, id: u64, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.said(id, bytes.as_ref(), true)
    }

    pub(crate) fn said(&mut self, id: u64, bytes: &[u8], has_ended: bool) -> &mut Self {
        while id & 3 == 3 && self.next_of_server <= id {
            let opened = self.connection.open(StreamId::new(self.next_of_server));
            self.next_of_server += 4;
            self.note_error(opened);
        }
        let (input, ended) = self.input.entry(id).or_default();
        input.extend_from_slice(bytes);
        *ended |= has_ended;
        while self.step(id) {}
        while let Some(id) = self.connection.poll_unblocked() {
            self.events.push(format!("{} unblocked", id.get()));
            while self.step(id.get()) {}
        }
        while let Some(key) = self.connection.poll_refused() {
            self.events.push(format!("{} refused", self.id(key)));
        }
        self
    }

    fn step(&mut self, id: u64) -> bool {
        let (input, has_ended) = self.input.remove(&id).unwrap_or_default();
        let stream = StreamId::new(id);
        let step = self
            .connection
            .receive(stream, &input, has_ended, &mut self.head);
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                self.note_error::<()>(Err(error));
                self.after_call();
                return false;
            }
        };
        assert!(
            step.taken <= input.len(),
            "the engine took more bytes than it got"
        );
        let is_over = step.received == ClientReceived::NeedMore;
        assert!(
            !is_over || step.taken == input.len(),
            "the engine takes all input before it needs more"
        );
        let goes_on = !is_over && step.received != ClientReceived::Blocked;
        self.report(&step.received, &input[..step.taken]);
        self.input
            .insert(id, (input[step.taken..].to_vec(), has_ended));
        self.after_call();
        goes_on
    }

    fn note_error<T>(&mut self, result: Result<T, PeerError>) -> Option<T> {
        result
            .map_err(|error| {
                let (number, text) = error.answer();
                let said = format!("close {} {text}", code::name(number.0));
                self.events.push(said.trim_end().to_owned());
            })
            .ok()
    }

    pub(crate) fn after_call(&mut self) {
        self.costs += self.connection.take_costs();
        while let Some(command) = self.connection.poll_command() {
            let (what, stream, number) = match command {
                Command::Reset { stream, code } => ("RESET_STREAM", stream, code),
                Command::StopSending { stream, code } => ("STOP_SENDING", stream, code),
            };
            self.events
                .push(format!("{what} {} {}", stream.get(), code::name(number.0)));
        }
    }

    fn id(&self, key: StreamKey) -> u64 {
        self.connection
            .stream_id(key)
            .expect("the stream is open")
            .get()
    }

    fn report(&mut self, received: &ClientReceived, input: &[u8]) {
        let end = |is_end: bool| if is_end { " END" } else { "" };
        let event = match received {
            ClientReceived::NeedMore | ClientReceived::Charged => return,
            ClientReceived::Blocked => "blocked".to_owned(),
            ClientReceived::Settings => "settings".to_owned(),
            ClientReceived::GoAway { first } => format!("goaway {}", first.get()),
            ClientReceived::Informational { stream } => {
                format!("{} {}", self.id(*stream), self.head_in_words())
            }
            ClientReceived::Response { stream, end_stream } => format!(
                "{} {} {:?}{}",
                self.id(*stream),
                self.head_in_words(),
                self.head.body,
                end(*end_stream)
            ),
            ClientReceived::Data {
                stream,
                data,
                end_stream,
            } => {
                let text = input[data.clone()].escape_ascii().to_string();
                // Pieces of content are joined, since content may be reported in any number of pieces.
                let begin = format!("{} data ", self.id(*stream));
                if let Some(last) = self.events.last_mut()
                    && last.starts_with(&begin)
                {
                    last.push_str(&text);
                    last.push_str(end(*end_stream));
                    return;
                }
                format!("{begin}{text}{}", end(*end_stream))
            }
            ClientReceived::Trailers { stream } => {
                format!("{} trailers{}", self.id(*stream), self.fields_in_words())
            }
            ClientReceived::Reset {
                stream,
                code: number,
                by_us,
            } => {
                let by = if *by_us { "reset by us" } else { "reset" };
                format!("{} {by} {}", self.id(*stream), code::name(number.0))
            }
            ClientReceived::Refused { stream } => format!("{} refused", self.id(*stream)),
            ClientReceived::Stopped {
                stream,
                code: number,
            } => format!("{} stopped {}", self.id(*stream), code::name(number.0)),
        };
        self.events.push(event);
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

    /// Reports a RESET_STREAM of the server to the engine.
    pub(crate) fn server_resets(&mut self, id: u64, number: u64) -> &mut Self {
        self.input.remove(&id);
        let received = self
            .connection
            .on_reset(StreamId::new(id), ErrorCode(number));
        if let Some(Some(received)) = self.note_error(received) {
            self.report(&received, &[]);
        }
        self.after_call();
        self
    }

    /// Reports a STOP_SENDING of the server to the engine.
    pub(crate) fn server_stops(&mut self, id: u64, number: u64) -> &mut Self {
        let id = StreamId::new(id);
        let received = self.connection.on_stop_sending(id, ErrorCode(number));
        if let Some(Some(received)) = self.note_error(received) {
            self.report(&received, &[]);
        }
        self.after_call();
        self
    }

    pub(crate) fn key(&self, id: u64) -> StreamKey {
        self.keys[&id]
    }

    pub(crate) fn state(&self, id: u64) -> StreamState {
        self.connection.state(self.key(id))
    }

    pub(crate) fn release(&mut self, id: u64) -> &mut Self {
        let key = self.keys.remove(&id).expect("the stream is open");
        self.connection.release(key);
        self.after_call();
        self
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, why: &str, events: &[&str]) -> &mut Self {
        assert_said(&std::mem::take(&mut self.events), events, why);
        self
    }
}

/// Passes `input` to a stream of the connection that `begin` makes, split in every way. Returns the events, which must be
/// the same for every way.
#[track_caller]
pub(crate) fn outcome(
    begin: impl Fn() -> Conversation,
    id: u64,
    input: &[u8],
    has_ended: bool,
) -> Vec<String> {
    let mut first = None;
    for cuts in ways_to_cut(input.len()) {
        let mut talk = begin();
        talk.events.clear();
        talk.costs = 0;
        let count = cuts.len();
        for (at, piece) in pieces(input, &cuts).enumerate() {
            talk.said(id, piece, has_ended && at == count);
        }
        let mut got = std::mem::take(&mut talk.events);
        got.push(format!("costs {}", talk.costs));
        match &first {
            None => first = Some(got),
            Some(want) => assert_eq!(&got, want, "input cut at {cuts:?}"),
        }
    }
    let mut said = first.expect("the list of cuts is not empty");
    said.pop();
    said
}
