//! The server role of HTTP/3 with any bytes from a client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use h2o_http::field_section::MAX_FIELDS;
use h2o_http::{BodyLength, Headers, RequestHead, ResponseHead, StatusCode, is_token};
use h2o_http3::{
    Command, ErrorCode, LocalStream, PeerError, Received, ServerConnection, Settings, StreamId,
    StreamKey,
};
use h2o_testkit::any_moment;
use h2o_testkit::http3::{Frame, kind};

use crate::server::fields;

/// Streams are read the same however their bytes are cut, and the engine's events and output are consistent. The first byte of the input
/// selects settings of the server. Then come parts: a byte with the stream and what happens to it, a length, and bytes.
///
/// # Panics
/// If an invariant does not hold.
pub fn http3_server(input: &[u8]) {
    let Some((&options, parts)) = input.split_first() else {
        return;
    };
    let whole = run(options, parts, usize::MAX);
    for piece in [1, 2, 7] {
        let cut = run(options, parts, piece);
        assert!(
            is_same(&whole, &cut),
            "input in pieces of {piece} bytes: {cut:?} instead of {whole:?}"
        );
    }
}

const MAX_STREAMS: u32 = 5;

/// Whether the engine has reported the same for the whole input and for the cut one. If an encoder instruction of QPACK is malformed, the
/// engine may have read field sections from the cut input before it reads the instruction.
fn is_same(whole: &[Event], cut: &[Event]) -> bool {
    match (whole.split_last(), cut.split_last()) {
        (
            Some((Event::Broken(PeerError::EncoderStream), before)),
            Some((Event::Broken(_), found)),
        ) => found.starts_with(before),
        _ => whole == cut,
    }
}

#[derive(Debug, PartialEq)]
enum Event {
    Request(u64, String, Vec<(String, Vec<u8>)>, bool),
    Data(u64, Vec<u8>),
    End(u64),
    Trailers(u64, Vec<(String, Vec<u8>)>),
    Reset(u64),
    Command(Command),
    Other(Received),
    Broken(PeerError),
}

struct Stream {
    id: u64,
    body: BodyLength,
    received: u64,
    is_read: bool,
    is_answered: bool,
}

struct Driven {
    connection: ServerConnection,
    options: u8,
    /// By stream: the bytes that the engine has not taken yet, and whether the stream ends after them.
    input: BTreeMap<u64, (Vec<u8>, bool)>,
    streams: BTreeMap<usize, (StreamKey, Stream)>,
    next: [u64; 2],
    events: Vec<Event>,
    is_over: bool,
}

fn run(options: u8, mut parts: &[u8], piece: usize) -> Vec<Event> {
    let settings = Settings {
        max_streams: MAX_STREAMS,
        limit_request_body: if options & 1 == 0 { 20 } else { 1 << 30 },
        qpack_decoder_capacity: if options & 4 == 0 { 4096 } else { 0 },
        ..Settings::default()
    };
    let mut driven = Driven {
        connection: ServerConnection::new(Arc::new(settings), options & 16 == 0),
        options,
        input: BTreeMap::new(),
        streams: BTreeMap::new(),
        next: [0, 2],
        events: Vec::new(),
        is_over: false,
    };
    let now = any_moment();
    if options & 2 != 0 {
        driven.connection.shut_down(now);
    }
    while let [what, len, rest @ ..] = parts {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        parts = rest;
        driven.part(*what, bytes, piece);
    }
    if !driven.is_over && options & 2 != 0 {
        let is_due = driven.connection.on_timeout(now + Duration::from_secs(1));
        assert!(!is_due);
    }
    driven.finish();
    driven.events
}

impl Driven {
    /// Executes a part of the input: five bits of `what` choose the stream, the others whether it ends, is reset or is stopped.
    fn part(&mut self, what: u8, bytes: &[u8], piece: usize) {
        let id = match what & 31 {
            number @ ..16 => 4 * u64::from(number),
            number => 4 * u64::from(number - 16) + 2,
        };
        self.open(id);
        if self.is_over {
            return;
        }
        let has_ended = what & 64 != 0;
        let mut pieces = bytes.chunks(piece.min(bytes.len().max(1))).peekable();
        if pieces.peek().is_none() {
            self.receive(id, &[], has_ended);
        }
        while let Some(piece) = pieces.next() {
            self.receive(id, piece, has_ended && pieces.peek().is_none());
        }
        if self.is_over {
            return;
        }
        let code = ErrorCode::REQUEST_CANCELLED;
        if what & 128 != 0 {
            self.input.remove(&id);
            let reset = self.connection.on_reset(StreamId::new(id), code);
            self.taken_back(reset);
        }
        if what & 32 != 0 && !self.is_over {
            let stopped = self.connection.on_stop_sending(StreamId::new(id), code);
            self.taken_back(stopped);
        }
    }

    fn open(&mut self, id: u64) {
        let kind = usize::from(id & 2 != 0);
        while self.next[kind] <= id && !self.is_over {
            let opened = self.connection.open(StreamId::new(self.next[kind]));
            self.next[kind] += 4;
            if let Err(error) = opened {
                self.broken(error);
            }
            self.after_call();
        }
    }

    fn broken(&mut self, error: PeerError) {
        self.is_over = true;
        self.events.push(Event::Broken(error));
    }

    fn taken_back(&mut self, received: Result<Option<Received>, PeerError>) {
        match received {
            Ok(Some(received)) => self.on_received(received, &[], &RequestHead::default()),
            Ok(None) => {}
            Err(error) => self.broken(error),
        }
        self.after_call();
    }

    fn receive(&mut self, id: u64, bytes: &[u8], has_ended: bool) {
        let (input, ended) = self.input.entry(id).or_default();
        input.extend_from_slice(bytes);
        *ended |= has_ended;
        while !self.is_over && self.step(id) {}
        while let Some(id) = self.connection.poll_unblocked() {
            while !self.is_over && self.step(id.get()) {}
        }
    }

    fn step(&mut self, id: u64) -> bool {
        let (mut input, has_ended) = self.input.remove(&id).unwrap_or_default();
        let mut head = RequestHead::default();
        let step = self
            .connection
            .receive(StreamId::new(id), &input, has_ended, &mut head);
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                self.broken(error);
                return false;
            }
        };
        assert!(step.taken <= input.len());
        assert!(
            self.connection.retained() < 256 << 10,
            "the connection holds a bounded amount of memory"
        );
        let goes_on = match step.received {
            Received::NeedMore => {
                assert_eq!(
                    step.taken,
                    input.len(),
                    "the engine takes all input before it needs more"
                );
                false
            }
            Received::Blocked => false,
            Received::Charged => true,
            received => {
                self.on_received(received, &input, &head);
                true
            }
        };
        self.after_call();
        input.drain(..step.taken);
        self.input.insert(id, (input, has_ended));
        goes_on
    }

    fn after_call(&mut self) {
        self.connection.take_costs();
        self.connection.take_rejected();
        while let Some(command) = self.connection.poll_command() {
            self.events.push(Event::Command(command));
        }
        for stream in LocalStream::ALL {
            let len = self.connection.pending(stream).len();
            self.connection.advance(stream, len);
        }
    }

    fn on_received(&mut self, received: Received, input: &[u8], head: &RequestHead) {
        match received {
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => self.on_request(stream, head, &format!("{refusal:?}"), end_stream),
            Received::Data {
                stream,
                data,
                end_stream,
            } => {
                let content = &input[data];
                let state = self.stream(stream);
                assert!(!state.is_read, "content after the end of the request");
                state.received += content.len() as u64;
                let id = state.id;
                match self.events.last_mut() {
                    Some(Event::Data(last, before)) if *last == id => {
                        before.extend_from_slice(content);
                    }
                    _ if content.is_empty() => {}
                    _ => self.events.push(Event::Data(id, content.to_vec())),
                }
                if end_stream {
                    self.events.push(Event::End(id));
                    self.on_end(stream);
                }
            }
            Received::Trailers { stream } => {
                let state = self.stream(stream);
                assert!(!state.is_read && state.body != BodyLength::Tunnel);
                let id = state.id;
                self.events.push(Event::Trailers(id, fields(&head.headers)));
                self.on_end(stream);
            }
            Received::Reset { stream, .. } => {
                let (_, state) = self
                    .streams
                    .remove(&stream.index())
                    .expect("the stream was not released");
                self.events.push(Event::Reset(state.id));
                self.connection.release(stream);
            }
            other => self.events.push(Event::Other(other)),
        }
    }

    fn on_request(
        &mut self,
        stream: StreamKey,
        head: &RequestHead,
        refusal: &str,
        end_stream: bool,
    ) {
        let id = self
            .connection
            .stream_id(stream)
            .expect("the stream is open")
            .get();
        if refusal == "None" {
            check_head(head);
        }
        // The text of the event leaves out whether the head announces content, because the stream may end later without any.
        let (method, target) = (head.method.as_str(), head.target().escape_ascii());
        let line = format!("{method} {target} {refusal}");
        self.events
            .push(Event::Request(id, line, fields(&head.headers), end_stream));
        let state = Stream {
            id,
            body: head.body,
            received: 0,
            is_read: end_stream,
            is_answered: false,
        };
        let before = self.streams.insert(stream.index(), (stream, state));
        assert!(
            before.is_none(),
            "the key of a new stream is in use already"
        );
        assert!(self.streams.len() <= MAX_STREAMS as usize);
        if self.options & 8 != 0 || end_stream {
            self.answer(stream);
        }
    }

    fn stream(&mut self, stream: StreamKey) -> &mut Stream {
        let held = self.streams.get_mut(&stream.index());
        &mut held.expect("the event belongs to an open stream").1
    }

    fn on_end(&mut self, stream: StreamKey) {
        let state = self.stream(stream);
        state.is_read = true;
        if let BodyLength::Known(length) = state.body {
            assert_eq!(state.received, length, "RFC 9114 §4.1.2");
        }
        self.answer(stream);
    }

    fn answer(&mut self, stream: StreamKey) {
        let state = self.stream(stream);
        if std::mem::replace(&mut state.is_answered, true) {
            return;
        }
        let headers = Headers::new();
        let response = ResponseHead {
            status: StatusCode::OK,
            reason: None,
            headers: &headers,
            length: Some(5),
            server: Some(b"h2o"),
        };
        let mut out = Vec::new();
        self.connection.respond(stream, &response, false, &mut out);
        self.connection.set_ready(stream, true);
        assert_eq!(self.connection.poll_send(), Some(stream));
        self.connection.send_data(stream, b"hello", true, &mut out);
        let kinds: Vec<u64> = Frame::parse_all(&out)
            .iter()
            .map(|frame| frame.kind)
            .collect();
        assert_eq!(kinds, [kind::HEADERS, kind::DATA]);
        assert_eq!(self.connection.poll_send(), None);
    }

    fn finish(&mut self) {
        for (key, _) in std::mem::take(&mut self.streams).into_values() {
            self.connection.release(key);
        }
        assert_eq!(
            self.connection.streams().count(),
            0,
            "the engine holds a stream that has ended"
        );
    }
}

/// Invariants of every request head that the engine accepts.
fn check_head(head: &RequestHead) {
    assert!(is_token(head.method.as_str().as_bytes()));
    let is_visible = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    assert!(!head.target().is_empty() && head.target().iter().all(is_visible));
    assert!(head.authority().iter().all(is_visible));
    assert!(head.headers.len() <= MAX_FIELDS as usize);
    for field in head.headers.iter() {
        assert!(is_token(field.name.as_str().as_bytes()));
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        assert!(field.value.iter().all(is_text));
    }
}
