//! The server role of HTTP/2 with any bytes from a client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_http::field_section::MAX_FIELDS;
use h2o_http::{BodyLength, Headers, RequestHead, ResponseHead, StatusCode, is_token};
use h2o_http2::{Received, ServerConnection, Settings, StreamKey};
use h2o_testkit::any_moment;

use crate::http2_output::Output;
use crate::server::fields;
use crate::{cuts, pieces};

/// Frames are read the same however the bytes are cut, and the engine's events and output are consistent. The first byte of the input
/// selects settings of the server; then come the frames after the client's preface.
///
/// # Panics
/// If an invariant does not hold.
pub fn http2_server(input: &[u8]) {
    let Some((&options, frames)) = input.split_first() else {
        return;
    };
    let now = any_moment();
    let whole = run(options, [frames].into_iter(), now);
    for cuts in cuts(frames) {
        let parts = run(options, pieces(frames, &cuts), now);
        assert!(
            parts == whole,
            "input cut at {cuts:?}: {parts:?} instead of {whole:?}"
        );
    }
}

/// Bytes of content of each response.
const CONTENT: usize = 40_000;
static BODY: [u8; CONTENT] = [b'x'; CONTENT];
const MAX_STREAMS: u32 = 5;

#[derive(Debug, PartialEq)]
enum Event {
    Request(u32, String, Vec<(String, Vec<u8>)>, bool),
    Data(u32, Vec<u8>, bool),
    Trailers(u32, Vec<(String, Vec<u8>)>),
    Reset(u32),
    Broken,
}

struct Stream {
    id: u32,
    body: BodyLength,
    received: u64,
    is_read: bool,
    is_answered: bool,
    left: usize,
}

struct Driven {
    connection: ServerConnection,
    options: u8,
    now: Instant,
    input: Vec<u8>,
    out: Vec<u8>,
    output: Output,
    events: Vec<Event>,
    streams: BTreeMap<usize, (StreamKey, Stream)>,
    newest: u32,
    is_over: bool,
}

/// Runs the engine over the pieces of the input. Returns its events, and the bytes that it has written.
fn run<'a>(
    options: u8,
    pieces: impl Iterator<Item = &'a [u8]>,
    now: Instant,
) -> (Vec<Event>, Vec<u8>) {
    let settings = Settings {
        max_streams: MAX_STREAMS,
        limit_request_body: if options & 1 == 0 { 100 } else { 1 << 30 },
        ..Settings::default()
    };
    let mut driven = Driven {
        connection: ServerConnection::new(Arc::new(settings), None, now),
        options,
        now,
        input: Vec::new(),
        out: Vec::new(),
        output: Output::new(),
        events: Vec::new(),
        streams: BTreeMap::new(),
        newest: 0,
        is_over: false,
    };
    driven.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    if options & 2 != 0 {
        driven.connection.shut_down(now, &mut driven.out);
    }
    for piece in pieces {
        driven.receive(piece);
    }
    driven.finish();
    (driven.events, driven.output.all)
}

impl Driven {
    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while !self.is_over && self.step() {}
    }

    fn step(&mut self) -> bool {
        let mut head = RequestHead::default();
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
        // The test acts only on events of the engine, so that what it does does not depend on the cuts of the input.
        let is_done = step.received == Received::NeedMore;
        if step.received == Received::Charged {
            let is_rejection = self.connection.take_rejected().is_some();
            assert!(self.connection.take_costs() >= 32 || is_rejection);
        } else if !is_done {
            self.on_received(step.received, &head);
            self.send();
        }
        self.input.drain(..step.taken);
        !is_done
    }

    fn on_received(&mut self, received: Received, head: &RequestHead) {
        match received {
            Received::NeedMore | Received::Charged => {}
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => {
                let id = self.connection.stream_id(stream).get();
                assert!(
                    id % 2 == 1 && id > self.newest,
                    "the engine accepted a stream id that is even or not above the earlier ones"
                );
                self.newest = id;
                if refusal.is_none() {
                    check_head(head);
                }
                let target = head.target().escape_ascii();
                let line = format!(
                    "{} {target} {:?} {refusal:?}",
                    head.method.as_str(),
                    head.body
                );
                self.events
                    .push(Event::Request(id, line, fields(&head.headers), end_stream));
                let state = Stream {
                    id,
                    body: head.body,
                    received: 0,
                    is_read: end_stream,
                    is_answered: false,
                    left: CONTENT,
                };
                let before = self.streams.insert(stream.index(), (stream, state));
                assert!(
                    before.is_none(),
                    "the key of a new stream is in use already"
                );
                assert!(self.streams.len() <= MAX_STREAMS as usize);
                if self.options & 4 != 0 {
                    self.connection.accept_content(stream, &mut self.out);
                }
                if self.options & 8 != 0 || end_stream {
                    self.answer(stream);
                }
            }
            Received::Data {
                stream,
                data,
                end_stream,
            } => {
                let content = self.input[data].to_vec();
                self.connection
                    .release_content(stream, content.len(), &mut self.out);
                let state = &mut self
                    .streams
                    .get_mut(&stream.index())
                    .expect("the event belongs to an open stream")
                    .1;
                assert!(!state.is_read, "content after the end of the request");
                state.received += content.len() as u64;
                self.events.push(Event::Data(state.id, content, end_stream));
                if end_stream {
                    self.on_end(stream);
                }
            }
            Received::Trailers { stream } => {
                let state = &self.streams[&stream.index()].1;
                assert!(!state.is_read && state.body != BodyLength::Tunnel);
                self.events
                    .push(Event::Trailers(state.id, fields(&head.headers)));
                self.on_end(stream);
            }
            Received::Reset { stream, .. } => {
                let (_, state) = self
                    .streams
                    .remove(&stream.index())
                    .expect("the stream was not released");
                self.events.push(Event::Reset(state.id));
                self.connection.release(stream, &mut self.out);
            }
        }
    }

    fn on_end(&mut self, stream: StreamKey) {
        let state = &mut self
            .streams
            .get_mut(&stream.index())
            .expect("the event belongs to an open stream")
            .1;
        state.is_read = true;
        if let BodyLength::Known(length) = state.body {
            assert_eq!(state.received, length, "RFC 9113 §8.1.1");
        }
        self.answer(stream);
    }

    fn answer(&mut self, stream: StreamKey) {
        let state = &mut self
            .streams
            .get_mut(&stream.index())
            .expect("the stream was not released")
            .1;
        if std::mem::replace(&mut state.is_answered, true) {
            return;
        }
        let headers = Headers::new();
        let response = ResponseHead {
            status: StatusCode::OK,
            reason: None,
            headers: &headers,
            length: None,
            server: Some(b"h2o"),
        };
        self.connection
            .respond(stream, &response, false, &mut self.out);
        self.connection.set_content(stream, true);
    }

    /// Sends as much content as the windows allow. Streams that are finished are released.
    fn send(&mut self) {
        while let Some((key, max)) = self.connection.poll_send() {
            let state = &mut self
                .streams
                .get_mut(&key.index())
                .expect("the stream has content to send")
                .1;
            let len = max.min(state.left);
            state.left -= len;
            let is_end = state.left == 0;
            self.connection
                .send_data(key, &BODY[..len], is_end, &mut self.out);
            if is_end {
                self.streams.remove(&key.index());
                self.connection.release(key, &mut self.out);
            }
        }
        assert!(!self.connection.has_sendable());
    }

    fn finish(&mut self) {
        if !self.is_over {
            self.send();
            self.connection
                .on_timeout(self.now + Duration::from_secs(1), true, &mut self.out);
        }
        for (key, _) in std::mem::take(&mut self.streams).into_values() {
            self.connection.release(key, &mut self.out);
        }
        assert!(
            self.is_over || !self.connection.has_streams(),
            "the engine holds a stream that has ended"
        );
        self.output.take(&mut self.out);
        for sent in self.output.content.values() {
            assert!(*sent <= CONTENT);
        }
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
