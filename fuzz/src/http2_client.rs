//! The client role of HTTP/2 with any bytes from a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::field_section::MAX_FIELDS;
use h2o_http::{BodyLength, ClientResponse, Method, RequestHead, is_token};
use h2o_http2::{ClientConnection, ClientReceived, ClientSettings, StreamKey};
use h2o_testkit::any_moment;

use crate::http2_output::Output;
use crate::server::fields;
use crate::{cuts, pieces};

/// Responses are read the same however the bytes are cut, and only complete ones are reported as complete. Five requests are open: GET,
/// HEAD, POST with content, CONNECT, and POST whose content is not there yet.
///
/// # Panics
/// If an invariant does not hold.
pub fn http2_client(input: &[u8]) {
    let now = any_moment();
    let whole = run([input].into_iter(), now);
    for cuts in cuts(input) {
        let parts = run(pieces(input, &cuts), now);
        assert!(
            parts == whole,
            "input cut at {cuts:?}: {parts:?} instead of {whole:?}"
        );
    }
}

/// Bytes of content of each request that has content.
const CONTENT: usize = 40_000;
static BODY: [u8; CONTENT] = [b'x'; CONTENT];
const WINDOW: u32 = 20_000;

#[derive(Debug, PartialEq)]
enum Event {
    Head(u32, u16, BodyLength, Vec<(String, Vec<u8>)>, bool),
    Data(u32, Vec<u8>, bool),
    Trailers(u32, Vec<(String, Vec<u8>)>),
    Reset(u32),
    Refused(u32),
    GoAway(u32),
    Broken,
}

struct Stream {
    id: u32,
    is_head: bool,
    body: Option<BodyLength>,
    received: u64,
    is_complete: bool,
    is_over: bool,
    left: usize,
}

struct Driven {
    connection: ClientConnection,
    now: Instant,
    input: Vec<u8>,
    out: Vec<u8>,
    output: Output,
    events: Vec<Event>,
    streams: BTreeMap<usize, (StreamKey, Stream)>,
    is_over: bool,
}

fn run<'a>(pieces: impl Iterator<Item = &'a [u8]>, now: Instant) -> (Vec<Event>, Vec<u8>) {
    let settings = ClientSettings {
        window: WINDOW,
        ..ClientSettings::default()
    };
    let mut out = Vec::new();
    let mut driven = Driven {
        connection: ClientConnection::new(Arc::new(settings), now, &mut out),
        now,
        input: Vec::new(),
        out,
        output: Output::new(),
        events: Vec::new(),
        streams: BTreeMap::new(),
        is_over: false,
    };
    // Before the server's SETTINGS a connection takes one request only.
    driven.receive(b"\0\0\0\x04\0\0\0\0\0");
    for (method, left) in [
        (Method::Get, 0),
        (Method::Head, 0),
        (Method::Post, CONTENT),
        (Method::Connect, 0),
        (Method::Post, CONTENT),
    ] {
        driven.ask(method, left);
    }
    for piece in pieces {
        driven.receive(piece);
    }
    driven.finish();
    (driven.events, driven.output.all)
}

impl Driven {
    fn ask(&mut self, method: Method, left: usize) {
        let mut head = RequestHead::default();
        let target = head.headers.store(b"/");
        head.set_target(target);
        let authority = head.headers.store(b"a.example:443");
        head.set_authority(authority);
        let is_head = method == Method::Head;
        let is_open = left > 0 || method == Method::Connect;
        head.method = method;
        let key = self
            .connection
            .request(&head, !is_open, &mut self.out)
            .expect("the server has set no limits");
        let id = self.connection.stream_id(key).get();
        // Only the third request, on stream 5, has content to send now. That of the fifth request is not there yet.
        self.connection.set_content(key, id == 5);
        let stream = Stream {
            id,
            is_head,
            body: None,
            received: 0,
            is_complete: false,
            is_over: false,
            left,
        };
        self.streams.insert(key.index(), (key, stream));
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while !self.is_over && self.step() {}
    }

    fn step(&mut self) -> bool {
        let mut head = ClientResponse::new();
        let step = self
            .connection
            .receive(&self.input, &mut head, self.now, &mut self.out);
        let Ok(step) = step else {
            self.is_over = true;
            self.events.push(Event::Broken);
            return false;
        };
        assert!(step.taken <= self.input.len());
        assert!(
            self.connection.retained() < 256 << 10,
            "the connection holds a bounded amount of memory"
        );
        let is_done = step.received == ClientReceived::NeedMore;
        if step.received == ClientReceived::Charged {
            assert!(self.connection.take_costs() >= 32);
        } else if !is_done {
            self.on_received(step.received, &head);
            self.send();
        }
        self.input.drain(..step.taken);
        !is_done
    }

    fn of(&mut self, key: StreamKey) -> &mut Stream {
        &mut self
            .streams
            .get_mut(&key.index())
            .expect("the stream belongs to the client")
            .1
    }

    fn on_received(&mut self, received: ClientReceived, head: &ClientResponse) {
        let event = match received {
            ClientReceived::NeedMore | ClientReceived::Charged => return,
            ClientReceived::Informational { stream } => {
                check_head(head);
                let state = self.of(stream);
                assert!(head.status.is_informational() && state.body.is_none() && !state.is_over);
                head_event(state.id, head, false)
            }
            ClientReceived::Response { stream, end_stream } => {
                check_head(head);
                let state = self.of(stream);
                assert!(!head.status.is_informational() && state.body.is_none() && !state.is_over);
                state.body = Some(head.body);
                state.is_complete = end_stream;
                head_event(state.id, head, end_stream)
            }
            ClientReceived::Data {
                stream,
                data,
                end_stream,
            } => {
                let content = self.input[data].to_vec();
                self.connection
                    .release_content(stream, content.len(), &mut self.out);
                let state = self.of(stream);
                assert!(!state.is_complete && !state.is_over && state.body.is_some());
                state.received += content.len() as u64;
                assert!(
                    !state.is_head || content.is_empty(),
                    "the response to HEAD has content"
                );
                if let Some(BodyLength::Known(length)) = state.body {
                    assert!(state.received <= length && (!end_stream || state.received == length));
                }
                state.is_complete = end_stream;
                Event::Data(state.id, content, end_stream)
            }
            ClientReceived::Trailers { stream } => {
                check_head(head);
                let state = self.of(stream);
                assert!(!state.is_complete && !state.is_over);
                assert_ne!(state.body, Some(BodyLength::Tunnel));
                if let Some(BodyLength::Known(length)) = state.body {
                    assert_eq!(state.received, length, "RFC 9113 §8.1.1");
                }
                state.is_complete = true;
                Event::Trailers(state.id, fields(&head.headers))
            }
            ClientReceived::Reset { stream, .. } => {
                let state = self.of(stream);
                assert!(
                    !std::mem::replace(&mut state.is_over, true),
                    "a stream ended twice"
                );
                Event::Reset(state.id)
            }
            ClientReceived::Refused { stream } => {
                let state = self.of(stream);
                assert!(
                    !std::mem::replace(&mut state.is_over, true),
                    "a stream ended twice"
                );
                assert_eq!(
                    state.body, None,
                    "the server refused a request whose response head had come"
                );
                Event::Refused(state.id)
            }
            ClientReceived::GoAway { last, .. } => {
                assert!(!self.connection.can_request());
                Event::GoAway(last.get())
            }
            ClientReceived::Pong { .. } => {
                panic!("a PING was acknowledged that the client has not sent")
            }
        };
        self.events.push(event);
    }

    fn send(&mut self) {
        while let Some((key, max)) = self.connection.poll_send() {
            let state = &mut self
                .streams
                .get_mut(&key.index())
                .expect("the stream belongs to the client")
                .1;
            assert!(!state.is_over);
            let len = max.min(state.left);
            state.left -= len;
            let is_end = state.left == 0;
            self.connection
                .send_data(key, &BODY[..len], is_end, &mut self.out);
        }
    }

    fn finish(&mut self) {
        if !self.is_over {
            self.send();
        }
        for (key, _) in std::mem::take(&mut self.streams).into_values() {
            self.connection.release(key, &mut self.out);
        }
        assert!(
            !self.connection.has_streams(),
            "the engine holds a stream that has ended"
        );
        if self.is_over {
            // The engine has sent GOAWAY because of a connection error. What it writes after that is not checked.
            return;
        }
        self.output.take(&mut self.out);
        for sent in self.output.content.values() {
            assert!(*sent <= CONTENT);
        }
    }
}

fn head_event(id: u32, head: &ClientResponse, end_stream: bool) -> Event {
    let status = head.status.as_u16();
    Event::Head(id, status, head.body, fields(&head.headers), end_stream)
}

/// Invariants of every response head that the engine accepts.
fn check_head(head: &ClientResponse) {
    assert!(head.headers.len() <= MAX_FIELDS as usize);
    for field in head.headers.iter() {
        assert!(is_token(field.name.as_str().as_bytes()));
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        assert!(field.value.iter().all(is_text));
        assert_eq!(field.value.trim_ascii(), field.value);
    }
}
