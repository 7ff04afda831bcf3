//! An HTTP/2 client in clear text, which a test controls frame by frame.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of several tests, which may fail them"
)]

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use h2o_testkit::http2::{Decoder, Frame, PREFACE, code, encode, flag, kind};
use h2o_testkit::patient;

/// Initial flow control window of a stream and of the connection, in bytes.
pub const WINDOW: i64 = 65_535;
/// Longest frame that the client may send.
pub const FRAME: usize = 16_384;

/// A client's connection on which the server may push.
pub struct Client {
    stream: TcpStream,
    decoder: Decoder,
    next: u32,
    /// The frames received, as texts; most frames that concern the whole connection are left out.
    seen: Vec<String>,
    /// Bytes that the client may still send, by stream; stream 0 stands for the connection.
    windows: HashMap<u32, i64>,
    /// The body bytes received, by stream.
    contents: HashMap<u32, Vec<u8>>,
}

impl Client {
    pub fn connect(port: u16) -> Self {
        let mut stream = patient(TcpStream::connect(("127.0.0.1", port)).unwrap());
        let preface = [PREFACE, &Frame::settings(&[]).bytes()].concat();
        stream.write_all(&preface).unwrap();
        Self {
            stream,
            decoder: Decoder::default(),
            next: 1,
            seen: Vec::new(),
            windows: HashMap::new(),
            contents: HashMap::new(),
        }
    }

    pub fn ask(&mut self, path: &str, fields: &[(&str, &str)]) -> u32 {
        self.begin("GET", path, fields, true)
    }

    /// Sends the head of a request; `is_end` says whether the request ends here, without a body.
    pub fn begin(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        is_end: bool,
    ) -> u32 {
        let pseudo = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "a.test"),
            (":path", path),
        ];
        self.send_head(&pseudo, fields, is_end)
    }

    /// Begins a POST request whose body follows.
    pub fn post(&mut self, path: &str) -> u32 {
        self.post_with(path, &[])
    }

    /// Begins a POST request whose body follows, with additional fields.
    pub fn post_with(&mut self, path: &str, fields: &[(&str, &str)]) -> u32 {
        self.begin("POST", path, fields, false)
    }

    /// Sends an extended CONNECT request (RFC 8441 §4).
    pub fn connect_to(&mut self, path: &str, protocol: &str) -> u32 {
        let pseudo = [
            (":method", "CONNECT"),
            (":protocol", protocol),
            (":scheme", "http"),
            (":authority", "a.test"),
            (":path", path),
        ];
        self.send_head(&pseudo, &[], false)
    }

    /// Sends a CONNECT request (RFC 9113 §8.5).
    pub fn connect_plain(&mut self, authority: &str) -> u32 {
        let pseudo = [(":method", "CONNECT"), (":authority", authority)];
        self.send_head(&pseudo, &[], false)
    }

    fn send_head(&mut self, pseudo: &[(&str, &str)], fields: &[(&str, &str)], is_end: bool) -> u32 {
        let id = self.next;
        let section = encode(&[pseudo, fields].concat());
        self.send_frame(&if is_end {
            Frame::request(id, section)
        } else {
            Frame::request_with_content(id, section)
        });
        self.next += 2;
        id
    }

    fn send_frame(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.bytes()).unwrap();
    }

    /// Sends bytes of a request's body, even more than the window allows.
    pub fn send(&mut self, stream: u32, content: &[u8], is_end: bool) {
        let mut left = content;
        loop {
            let (piece, rest) = left.split_at(left.len().min(FRAME));
            left = rest;
            let is_last = left.is_empty();
            let end = if is_last && is_end {
                flag::END_STREAM
            } else {
                0
            };
            self.send_frame(&Frame::data(stream, end, piece));
            for id in [0, stream] {
                *self.windows.entry(id).or_insert(WINDOW) -= i64::try_from(piece.len()).unwrap();
            }
            if is_last {
                return;
            }
        }
    }

    pub fn reset(&mut self, stream: u32) {
        self.send_frame(&Frame::rst_stream(stream, code::CANCEL));
    }

    /// Sends WINDOW_UPDATE of this many bytes for a stream and for the connection.
    pub fn allow(&mut self, stream: u32, bytes: u32) {
        for id in [0, stream] {
            self.send_frame(&Frame::window_update(id, bytes));
        }
    }

    /// Bytes that the client may still send on a stream, according to the frames received.
    pub fn window(&self, stream: u32) -> i64 {
        self.windows.get(&stream).copied().unwrap_or(WINDOW)
    }

    /// The body bytes received on a stream.
    pub fn content(&self, stream: u32) -> &[u8] {
        self.contents.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// Waits until the server has processed all frames sent. Returns the frames received, like [`Client::until`].
    pub fn settle(&mut self) -> Vec<String> {
        self.send_frame(&Frame::ping(*b"settling"));
        let mut seen = self.until("pong");
        seen.retain(|frame| frame != "pong");
        seen
    }

    /// Reads until the frame with the text `last`. Returns all frames since the previous call.
    pub fn until(&mut self, last: &str) -> Vec<String> {
        while !self.seen.iter().any(|seen| seen == last) {
            self.read_frame()
                .unwrap_or_else(|error| panic!("{error} before {last:?}: {:#?}", self.seen));
        }
        std::mem::take(&mut self.seen)
    }

    /// Reads one more frame. Returns all frames since the previous call of this or [`Client::until`].
    pub fn next(&mut self) -> Vec<String> {
        self.read_frame()
            .unwrap_or_else(|error| panic!("{error}: {:#?}", self.seen));
        std::mem::take(&mut self.seen)
    }

    /// Like [`Client::next`], but returns `None` if the server has closed the connection.
    pub fn next_unless_closed(&mut self) -> Option<Vec<String>> {
        match self.read_frame() {
            Ok(()) => Some(std::mem::take(&mut self.seen)),
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "{:#?}", self.seen);
                None
            }
        }
    }

    /// Reads until this many body bytes of a stream have arrived.
    pub fn until_content(&mut self, stream: u32, len: usize) {
        while self.content(stream).len() < len {
            self.read_frame().unwrap_or_else(|error| {
                panic!("{error} before {len} bytes of {stream}: {:#?}", self.seen)
            });
        }
    }

    /// Reads until the server closes the connection. Returns all frames since the last call of [`Client::until`].
    pub fn until_closed(&mut self) -> Vec<String> {
        let error = loop {
            if let Err(error) = self.read_frame() {
                break error;
            }
        };
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "{:#?}", self.seen);
        std::mem::take(&mut self.seen)
    }

    fn read_frame(&mut self) -> std::io::Result<()> {
        let frame = Frame::read(&mut self.stream)?;
        let id = frame.stream;
        let end = if frame.has(flag::END_STREAM) { "." } else { "" };
        let seen = match frame.kind {
            kind::HEADERS => format!("{id} {}{end}", self.fields(&frame.payload)),
            kind::PUSH_PROMISE => {
                let promised = frame.number_at(0);
                format!(
                    "{id} promises {promised} {}",
                    self.fields(&frame.payload[4..])
                )
            }
            kind::DATA => {
                self.contents.entry(id).or_default().extend(&frame.payload);
                format!("{id} {} bytes{end}", frame.payload.len())
            }
            kind::RST_STREAM => format!("{id} reset {}", frame.number_at(0)),
            kind::GOAWAY => format!("goaway {}", frame.number_at(4)),
            kind::PING if frame.has(flag::ACK) => "pong".to_owned(),
            kind::WINDOW_UPDATE => {
                *self.windows.entry(id).or_insert(WINDOW) += i64::from(frame.number_at(0));
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.seen.push(seen);
        Ok(())
    }

    /// Decodes a field section, and returns those of its fields that tests check.
    fn fields(&mut self, section: &[u8]) -> String {
        let mut shown = Vec::new();
        for (name, value) in self.decoder.decode_text(section) {
            match &*name {
                ":status" | ":path" => shown.push(value),
                "link"
                | "x-rule"
                | "x-http2-push"
                | "grpc-status"
                | "access-control-allow-methods"
                | "access-control-allow-origin"
                | "location"
                | "retry-after"
                | "www-authenticate" => shown.push(format!("{name}={value}")),
                "set-cookie" => shown.push(value.split(';').next().unwrap_or("").to_owned()),
                _ => {}
            }
        }
        shown.join(" ")
    }
}
