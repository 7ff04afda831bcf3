//! A conversation of a test with the engine in the server role, on a virtual clock and without a transport.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::{Headers, Name, RequestHead, ResponseHead, StatusCode};
use h2o_http3::{
    Command, ErrorCode, LocalStream, PeerError, Received, ServerConnection, Settings, StreamId,
    StreamKey, StreamState,
};
use h2o_testkit::any_moment;
use h2o_testkit::http3::{Decoder, Frame, code, kind};

use super::{CONTROL, GET, assert_said, control, headers, name, pieces, ways_to_cut};

/// The engine in the server role, with its buffers and its clock.
pub(crate) struct Conversation {
    pub(crate) connection: ServerConnection,
    pub(crate) head: RequestHead,
    pub(crate) now: Instant,
    /// For each stream of the client: the bytes sent that the engine has not taken, and whether the stream has ended.
    input: BTreeMap<u64, (Vec<u8>, bool)>,
    /// The next stream that the client opens, for requests and for unidirectional streams.
    next: [u64; 2],
    pub(crate) keys: BTreeMap<u64, StreamKey>,
    pub(crate) decoder: Decoder,
    /// The events that the engine has reported and the commands that it has given, in words.
    pub(crate) events: Vec<String>,
    pub(crate) costs: u32,
}

pub(crate) fn fields(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in fields {
        headers.push(Name::from_lower(name), value.as_bytes());
    }
    headers
}

impl Conversation {
    /// A connection on which the client has sent its settings.
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let mut talk = Self::unopened(settings);
        talk.sends(CONTROL, control(&[(0x33, 1)]));
        talk.expect("the client's settings", &["settings"]);
        talk.costs = 0;
        for stream in LocalStream::ALL {
            let len = talk.connection.pending(stream).len();
            talk.connection.advance(stream, len);
        }
        talk
    }

    /// A connection on which neither side has sent anything.
    pub(crate) fn unopened(settings: Settings) -> Self {
        let capacity = settings.qpack_encoder_capacity;
        Self {
            connection: ServerConnection::new(Arc::new(settings), true),
            head: RequestHead::default(),
            now: any_moment(),
            input: BTreeMap::new(),
            next: [0, 2],
            keys: BTreeMap::new(),
            decoder: Decoder::new(
                usize::try_from(capacity).expect("the capacity fits into a usize"),
            ),
            events: Vec::new(),
            costs: 0,
        }
    }

    /// Lets the client open a stream, and with it all streams of the same kind with lower identifiers.
    pub(crate) fn opens(&mut self, id: u64) -> &mut Self {
        let kind = usize::from(id & 2 != 0);
        while self.next[kind] <= id {
            let next = self.next[kind];
            self.next[kind] += 4;
            let opened = self.connection.open(StreamId::new(next));
            self.note_error(opened);
        }
        self.after_call();
        self
    }

    /// Passes bytes that the client sends on a stream to the engine.
    pub(crate) fn sends(&mut self, id: u64, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.said(id, bytes.as_ref(), false)
    }

    /// Passes bytes that the client sends on a stream to the engine; the stream ends after them.
    pub(crate) fn ends(&mut self, id: u64, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.said(id, bytes.as_ref(), true)
    }

    pub(crate) fn said(&mut self, id: u64, bytes: &[u8], has_ended: bool) -> &mut Self {
        self.opens(id);
        let (input, ended) = self.input.entry(id).or_default();
        input.extend_from_slice(bytes);
        *ended |= has_ended;
        while self.step(id) {}
        while let Some(id) = self.connection.poll_unblocked() {
            self.events.push(format!("{} unblocked", id.get()));
            while self.step(id.get()) {}
        }
        self
    }

    fn step(&mut self, id: u64) -> bool {
        let (input, has_ended) = self.input.remove(&id).unwrap_or_default();
        let step = self
            .connection
            .receive(StreamId::new(id), &input, has_ended, &mut self.head);
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
        let is_over = step.received == Received::NeedMore;
        assert!(
            !is_over || step.taken == input.len(),
            "the engine takes all input before it needs more"
        );
        let goes_on = !is_over && step.received != Received::Blocked;
        self.report(&step.received, &input[..step.taken]);
        self.input
            .insert(id, (input[step.taken..].to_vec(), has_ended));
        self.after_call();
        goes_on
    }

    fn note_error<T>(&mut self, result: Result<T, PeerError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let (number, text) = error.answer();
                let text = if text.is_empty() {
                    String::new()
                } else {
                    format!(" {text}")
                };
                self.events
                    .push(format!("close {}{text}", code::name(number.0)));
                None
            }
        }
    }

    /// Takes the commands and costs of the engine, as a caller does after every call.
    fn after_call(&mut self) {
        self.costs += self.connection.take_costs();
        if let Some(number) = self.connection.take_rejected() {
            self.events
                .push(format!("rejected {}", code::name(number.0)));
        }
        while let Some(command) = self.connection.poll_command() {
            self.events.push(match command {
                Command::Reset {
                    stream,
                    code: number,
                } => {
                    format!("RESET_STREAM {} {}", stream.get(), code::name(number.0))
                }
                Command::StopSending {
                    stream,
                    code: number,
                } => {
                    format!("STOP_SENDING {} {}", stream.get(), code::name(number.0))
                }
            });
        }
    }

    fn id(&self, key: StreamKey) -> u64 {
        self.connection
            .stream_id(key)
            .expect("the stream is open")
            .get()
    }

    fn report(&mut self, received: &Received, input: &[u8]) {
        let end = |is_end: bool| if is_end { " END" } else { "" };
        let event = match received {
            Received::NeedMore | Received::Charged => return,
            Received::Blocked => "blocked".to_owned(),
            Received::Settings => "settings".to_owned(),
            Received::GoAway => "goaway".to_owned(),
            Received::Priority { stream } => {
                let priority = self.connection.priority(*stream);
                let (u, i) = (priority.urgency, priority.incremental);
                format!("{} priority u={u} i={i}", self.id(*stream))
            }
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => {
                let id = self.id(*stream);
                self.keys.insert(id, *stream);
                let refusal = refusal.map_or(String::new(), |refusal| format!(" {refusal:?}"));
                let head = self.head_in_words();
                format!("{id} {head}{refusal}{}", end(*end_stream))
            }
            Received::Data {
                stream,
                data,
                end_stream,
            } => {
                let text = input[data.clone()].escape_ascii().to_string();
                let text = if text.len() > 40 {
                    format!("{} bytes", data.len())
                } else {
                    text
                };
                // Pieces of content are joined, since content may be reported in any number of pieces.
                let id = self.id(*stream);
                let begin = format!("{id} data ");
                if let Some(last) = self.events.last_mut()
                    && last.starts_with(&begin)
                    && !last.ends_with(" END")
                    && !text.ends_with(" bytes")
                {
                    last.push_str(&text);
                    last.push_str(end(*end_stream));
                    return;
                }
                format!("{begin}{text}{}", end(*end_stream))
            }
            Received::Trailers { stream } => {
                format!("{} trailers{}", self.id(*stream), self.fields_in_words())
            }
            Received::Reset {
                stream,
                code: number,
                by_us,
            } => {
                let by = if *by_us { "reset by us" } else { "reset" };
                format!("{} {by} {}", self.id(*stream), code::name(number.0))
            }
        };
        self.events.push(event);
    }

    fn head_in_words(&self) -> String {
        let head = &self.head;
        format!(
            "{} {}://{}{}{}",
            head.method.as_str(),
            head.scheme.as_str(),
            head.authority().escape_ascii(),
            head.target().escape_ascii(),
            self.fields_in_words()
        )
    }

    fn fields_in_words(&self) -> String {
        let mut words = String::new();
        for field in self.head.headers.iter() {
            words += &format!(" {}={}", field.name.as_str(), field.value.escape_ascii());
        }
        words
    }

    /// Reports a RESET_STREAM of the client to the engine.
    pub(crate) fn resets(&mut self, id: u64, number: u64) -> &mut Self {
        self.opens(id);
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

    /// Reports a STOP_SENDING of the client to the engine.
    pub(crate) fn stops(&mut self, id: u64, number: u64) -> &mut Self {
        let id = StreamId::new(id);
        let received = self.connection.on_stop_sending(id, ErrorCode(number));
        if let Some(Some(received)) = self.note_error(received) {
            self.report(&received, &[]);
        }
        self.after_call();
        self
    }

    /// Sends `GET /` on a stream, and drops the event that reports the request.
    pub(crate) fn gets(&mut self, id: u64) -> &mut Self {
        self.ends(id, headers(GET));
        self.events.clear();
        self
    }

    pub(crate) fn key(&self, id: u64) -> StreamKey {
        self.keys[&id]
    }

    pub(crate) fn state(&self, id: u64) -> StreamState {
        self.connection.state(self.key(id))
    }

    /// Writes the head of a response. Returns the frames that the engine wrote, in words.
    pub(crate) fn responds(
        &mut self,
        id: u64,
        status: u16,
        given: &[(&str, &str)],
        length: Option<u64>,
        end_stream: bool,
    ) -> Vec<String> {
        let headers = fields(given);
        let head = ResponseHead {
            status: StatusCode::new(status).expect("the number is a valid status code"),
            reason: None,
            headers: &headers,
            length,
            server: Some(b"h2o"),
        };
        let mut out = Vec::new();
        let len = self
            .connection
            .respond(self.key(id), &head, end_stream, &mut out);
        if !out.is_empty() {
            assert_eq!(Frame::parse_all(&out)[0].payload.len(), len);
        }
        self.read(id, &out)
    }

    /// The frames in `bytes`, which the engine wrote for the stream `id`, in words.
    pub(crate) fn read(&mut self, id: u64, bytes: &[u8]) -> Vec<String> {
        self.follow();
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

    /// Passes the pending instructions of the engine's encoder to the client's decoder.
    fn follow(&mut self) {
        let pending = self.connection.pending(LocalStream::QpackEncoder).to_vec();
        let new = pending.strip_prefix(&[2]).unwrap_or(&pending);
        self.decoder.follow(new);
        self.connection
            .advance(LocalStream::QpackEncoder, pending.len());
    }

    /// Returns the bytes that are pending on a unidirectional stream, and reports them as sent.
    pub(crate) fn pending(&mut self, stream: LocalStream) -> Vec<u8> {
        let pending = self.connection.pending(stream).to_vec();
        self.connection.advance(stream, pending.len());
        pending
    }

    /// Answers a request, releases its stream and drops the events.
    pub(crate) fn is_done_with(&mut self, id: u64) -> &mut Self {
        self.responds(id, 204, &[], None, true);
        self.release(id);
        self.events.clear();
        self
    }

    pub(crate) fn release(&mut self, id: u64) -> &mut Self {
        let key = self.keys.remove(&id).expect("the stream is open");
        self.connection.release(key);
        self.after_call();
        self
    }

    pub(crate) fn passes(&mut self, time: Duration) -> bool {
        self.now += time;
        self.connection.on_timeout(self.now)
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
