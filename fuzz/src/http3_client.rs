//! The client role of HTTP/3 with any bytes from a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use h2o_http::{ClientResponse, RequestHead};
use h2o_http3::{
    ClientConnection, ClientReceived, ClientSettings, Command, ErrorCode, LocalStream, PeerError,
    StreamId, StreamKey,
};

use crate::server::fields;

/// Streams are read the same however their bytes are cut, and the engine's events are consistent. Five requests are open. The first byte of
/// the input selects settings of the client. Then come parts: a byte with the stream and what happens to it, a length, and bytes.
///
/// # Panics
/// If an invariant does not hold.
pub fn http3_client(input: &[u8]) {
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

const REQUESTS: u64 = 5;

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
    Head(u64, u16, Vec<(String, Vec<u8>)>, bool),
    Data(u64, Vec<u8>),
    End(u64),
    Trailers(u64, Vec<(String, Vec<u8>)>),
    Over(u64, ClientReceived),
    Command(Command),
    Other(ClientReceived),
    Broken(PeerError),
}

#[derive(Clone, Copy, Default)]
struct State {
    has_response: bool,
    is_read: bool,
}

struct Driven {
    connection: ClientConnection,
    /// By stream: the bytes that the engine has not taken yet, and whether the stream ends after them.
    input: BTreeMap<u64, (Vec<u8>, bool)>,
    streams: BTreeMap<u64, (StreamKey, State)>,
    next: u64,
    events: Vec<Event>,
    is_over: bool,
}

fn run(options: u8, mut parts: &[u8], piece: usize) -> Vec<Event> {
    let settings = ClientSettings {
        qpack_decoder_capacity: if options & 4 == 0 { 4096 } else { 0 },
        ..ClientSettings::default()
    };
    let mut connection = ClientConnection::new(Arc::new(settings), options & 16 == 0);
    let mut streams = BTreeMap::new();
    for number in 0..REQUESTS {
        let mut head = RequestHead::default();
        let target = head.headers.store(b"/");
        head.set_target(target);
        let (id, has_content) = (4 * number, options & 1 != 0 && number % 2 == 1);
        let key = connection.request(StreamId::new(id), &head, !has_content, &mut Vec::new());
        streams.insert(
            id,
            (key.expect("the client may open a stream"), State::default()),
        );
    }
    let mut driven = Driven {
        connection,
        input: BTreeMap::new(),
        streams,
        next: 3,
        events: Vec::new(),
        is_over: false,
    };
    while let [what, len, rest @ ..] = parts {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        parts = rest;
        driven.part(*what, bytes, piece);
    }
    for (key, _) in std::mem::take(&mut driven.streams).into_values() {
        driven.connection.release(key);
    }
    assert_eq!(
        driven.connection.open_streams(),
        0,
        "the engine holds a stream that has ended"
    );
    driven.events
}

impl Driven {
    /// Executes a part of the input: five bits of `what` choose the stream, the others whether it ends, is reset or is stopped.
    fn part(&mut self, what: u8, bytes: &[u8], piece: usize) {
        let id = match what & 31 {
            number @ ..16 => 4 * (u64::from(number) % REQUESTS),
            number => 4 * u64::from(number - 16) + 3,
        };
        while id & 3 == 3 && self.next <= id && !self.is_over {
            let opened = self.connection.open(StreamId::new(self.next));
            self.next += 4;
            self.note(opened.map(|()| None));
        }
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
        let code = if what & 1 == 0 {
            ErrorCode::REQUEST_REJECTED
        } else {
            ErrorCode::INTERNAL_ERROR
        };
        if what & 128 != 0 && !self.is_over {
            self.input.remove(&id);
            let reset = self.connection.on_reset(StreamId::new(id), code);
            self.note(reset);
        }
        if what & 32 != 0 && !self.is_over {
            let stopped = self.connection.on_stop_sending(StreamId::new(id), code);
            self.note(stopped);
        }
    }

    fn note(&mut self, received: Result<Option<ClientReceived>, PeerError>) {
        match received {
            Ok(Some(received)) => self.on_received(received, &[], &ClientResponse::new()),
            Ok(None) => {}
            Err(error) => {
                self.is_over = true;
                self.events.push(Event::Broken(error));
            }
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
        let mut head = ClientResponse::new();
        let step = self
            .connection
            .receive(StreamId::new(id), &input, has_ended, &mut head);
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                self.note(Err(error));
                return false;
            }
        };
        assert!(step.taken <= input.len());
        assert!(
            self.connection.retained() < 256 << 10,
            "the connection holds a bounded amount of memory"
        );
        let goes_on = match step.received {
            ClientReceived::NeedMore => {
                assert_eq!(
                    step.taken,
                    input.len(),
                    "the engine takes all input before it needs more"
                );
                false
            }
            ClientReceived::Blocked => false,
            ClientReceived::Charged => true,
            received => {
                self.on_received(received, &input, &head);
                true
            }
        };
        self.after_call();
        while let Some(stream) = self.connection.poll_refused() {
            let refused = ClientReceived::Refused { stream };
            self.on_received(refused, &[], &ClientResponse::new());
            self.after_call();
        }
        input.drain(..step.taken);
        self.input.insert(id, (input, has_ended));
        goes_on
    }

    fn after_call(&mut self) {
        self.connection.take_costs();
        while let Some(command) = self.connection.poll_command() {
            self.events.push(Event::Command(command));
        }
        for stream in LocalStream::ALL {
            let len = self.connection.pending(stream).len();
            self.connection.advance(stream, len);
        }
    }

    fn stream(&mut self, key: StreamKey) -> (u64, &mut State) {
        let id = self
            .connection
            .stream_id(key)
            .expect("the key of an event belongs to an open stream")
            .get();
        let (held, state) = self
            .streams
            .get_mut(&id)
            .expect("the stream was not released");
        assert_eq!(*held, key);
        (id, state)
    }

    fn on_received(&mut self, received: ClientReceived, input: &[u8], head: &ClientResponse) {
        match received {
            ClientReceived::Informational { stream } => {
                let (id, state) = self.stream(stream);
                assert!(!state.has_response && head.status.is_informational());
                let said = fields(&head.headers);
                self.events
                    .push(Event::Head(id, head.status.as_u16(), said, false));
            }
            ClientReceived::Response { stream, end_stream } => {
                let (id, state) = self.stream(stream);
                assert!(!std::mem::replace(&mut state.has_response, true));
                state.is_read = end_stream;
                let said = fields(&head.headers);
                self.events
                    .push(Event::Head(id, head.status.as_u16(), said, end_stream));
            }
            ClientReceived::Data {
                stream,
                data,
                end_stream,
            } => {
                let (id, state) = self.stream(stream);
                assert!(
                    state.has_response && !state.is_read,
                    "content before the head of the response or after its end"
                );
                state.is_read = end_stream;
                let content = &input[data];
                match self.events.last_mut() {
                    Some(Event::Data(last, before)) if *last == id => {
                        before.extend_from_slice(content);
                    }
                    _ if content.is_empty() => {}
                    _ => self.events.push(Event::Data(id, content.to_vec())),
                }
                if end_stream {
                    self.events.push(Event::End(id));
                }
            }
            ClientReceived::Trailers { stream } => {
                let (id, state) = self.stream(stream);
                assert!(state.has_response && !std::mem::replace(&mut state.is_read, true));
                self.events.push(Event::Trailers(id, fields(&head.headers)));
            }
            ClientReceived::Reset { stream, .. } | ClientReceived::Refused { stream } => {
                let (id, _) = self.stream(stream);
                self.events.push(Event::Over(id, received));
                self.streams.remove(&id);
                self.connection.release(stream);
            }
            other => self.events.push(Event::Other(other)),
        }
    }
}
