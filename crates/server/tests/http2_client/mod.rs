//! A client of HTTP/2 over clear text that does as the test says, frame by frame.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of several tests, which may fail them"
)]

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use h2o_http::Name;
use h2o_http2::frame::{self, FrameHeader, HEADER_LEN, flags};
use h2o_http2::hpack::{Decoder, Encoder, HpackError, Pseudo};
use h2o_http2::{ErrorCode, FrameType, StreamId};

/// The window that a stream or a connection begins with.
pub const WINDOW: i64 = 65_535;
/// The longest frame a client may send.
pub const FRAME: usize = 16_384;

/// A connection that takes pushes.
pub struct Client {
    stream: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    next: u32,
    /// What the server has sent, in words, a frame each; most frames of the connection are left out.
    seen: Vec<String>,
    /// Octets the client may send, by stream; 0 is the connection.
    windows: HashMap<u32, i64>,
    /// The content received, by stream.
    contents: HashMap<u32, Vec<u8>>,
}

impl Client {
    pub fn connect(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .unwrap();
        Self {
            stream,
            encoder: Encoder::new(),
            decoder: Decoder::new(4096),
            next: 1,
            seen: Vec::new(),
            windows: HashMap::new(),
            contents: HashMap::new(),
        }
    }

    pub fn ask(&mut self, path: &str, fields: &[(&str, &str)]) -> u32 {
        let pseudo = [
            (Pseudo::Method, "GET"),
            (Pseudo::Scheme, "http"),
            (Pseudo::Authority, "a.test"),
            (Pseudo::Path, path),
        ];
        self.send_head(&pseudo, fields, true)
    }

    /// A request whose content is still to come.
    pub fn post(&mut self, path: &str) -> u32 {
        self.post_with(path, &[])
    }

    /// As above, with further fields.
    pub fn post_with(&mut self, path: &str, fields: &[(&str, &str)]) -> u32 {
        let pseudo = [
            (Pseudo::Method, "POST"),
            (Pseudo::Scheme, "http"),
            (Pseudo::Authority, "a.test"),
            (Pseudo::Path, path),
        ];
        self.send_head(&pseudo, fields, false)
    }

    /// Extended CONNECT (RFC 8441 §4).
    pub fn connect_to(&mut self, path: &str, protocol: &str) -> u32 {
        let pseudo = [
            (Pseudo::Method, "CONNECT"),
            (Pseudo::Protocol, protocol),
            (Pseudo::Scheme, "http"),
            (Pseudo::Authority, "a.test"),
            (Pseudo::Path, path),
        ];
        self.send_head(&pseudo, &[], false)
    }

    /// CONNECT (RFC 9113 §8.5).
    pub fn connect_plain(&mut self, authority: &str) -> u32 {
        let pseudo = [(Pseudo::Method, "CONNECT"), (Pseudo::Authority, authority)];
        self.send_head(&pseudo, &[], false)
    }

    fn send_head(
        &mut self,
        pseudo: &[(Pseudo, &str)],
        fields: &[(&str, &str)],
        is_end: bool,
    ) -> u32 {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in pseudo {
            self.encoder.pseudo(*name, value.as_bytes(), &mut block);
        }
        for (name, value) in fields {
            let name = Name::from_lower(name);
            self.encoder.field(name, value.as_bytes(), &mut block);
        }
        let end = if is_end { flags::END_STREAM } else { 0 };
        let id = self.next;
        self.send_frame(FrameType::HEADERS, end | flags::END_HEADERS, id, &block);
        self.next += 2;
        id
    }

    fn send_frame(&mut self, kind: FrameType, flags: u8, id: u32, payload: &[u8]) {
        let mut octets = frame::header(payload.len(), kind, flags, StreamId::new(id)).to_vec();
        octets.extend_from_slice(payload);
        self.stream.write_all(&octets).unwrap();
    }

    /// Sends content, whether there is window for it or not.
    pub fn send(&mut self, stream: u32, content: &[u8], is_end: bool) {
        let mut left = content;
        loop {
            let (piece, rest) = left.split_at(left.len().min(FRAME));
            left = rest;
            let is_last = left.is_empty();
            let end = if is_last && is_end {
                flags::END_STREAM
            } else {
                0
            };
            self.send_frame(FrameType::DATA, end, stream, piece);
            for id in [0, stream] {
                *self.windows.entry(id).or_insert(WINDOW) -= i64::try_from(piece.len()).unwrap();
            }
            if is_last {
                return;
            }
        }
    }

    pub fn reset(&mut self, stream: u32) {
        let mut octets = Vec::new();
        frame::rst_stream(&mut octets, StreamId::new(stream), ErrorCode::CANCEL);
        self.stream.write_all(&octets).unwrap();
    }

    /// Lets the server send more, on a stream and on the connection.
    pub fn allow(&mut self, stream: u32, octets: u32) {
        let mut frames = Vec::new();
        frame::window_update(&mut frames, StreamId::CONNECTION, octets);
        frame::window_update(&mut frames, StreamId::new(stream), octets);
        self.stream.write_all(&frames).unwrap();
    }

    /// The octets that may be sent, as far as is known.
    pub fn window(&self, stream: u32) -> i64 {
        self.windows.get(&stream).copied().unwrap_or(WINDOW)
    }

    /// The content received on a stream.
    pub fn content(&self, stream: u32) -> &[u8] {
        self.contents.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// Waits until the server has seen all that was sent. What came meanwhile, as of [`Client::until`].
    pub fn settle(&mut self) -> Vec<String> {
        self.send_frame(FrameType::PING, 0, 0, b"settling");
        let mut seen = self.until("pong");
        seen.retain(|frame| frame != "pong");
        seen
    }

    /// Reads until `last` was seen; all that has been seen since this was last called.
    pub fn until(&mut self, last: &str) -> Vec<String> {
        while !self.seen.iter().any(|seen| seen == last) {
            self.read_frame()
                .unwrap_or_else(|error| panic!("{error} before {last:?}: {:#?}", self.seen));
        }
        std::mem::take(&mut self.seen)
    }

    /// Reads one frame more; all that has been seen since this, or [`Client::until`], was last called.
    pub fn next(&mut self) -> Vec<String> {
        self.read_frame()
            .unwrap_or_else(|error| panic!("{error}: {:#?}", self.seen));
        std::mem::take(&mut self.seen)
    }

    /// Reads until so much content of a stream has come.
    pub fn until_content(&mut self, stream: u32, len: usize) {
        while self.content(stream).len() < len {
            self.read_frame().unwrap_or_else(|error| {
                panic!("{error} before {len} octets of {stream}: {:#?}", self.seen)
            });
        }
    }

    /// Reads until the server closes; all that has been seen since [`Client::until`].
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
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head)?;
        let header = FrameHeader::parse(&head).unwrap();
        let mut payload = vec![0; header.len];
        self.stream.read_exact(&mut payload)?;
        let id = header.stream.get();
        let end = if header.has(flags::END_STREAM) {
            "."
        } else {
            ""
        };
        let number = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        let seen = match header.kind {
            FrameType::HEADERS => format!("{id} {}{end}", self.fields(&payload)),
            FrameType::PUSH_PROMISE => {
                let promised = number(0);
                format!("{id} promises {promised} {}", self.fields(&payload[4..]))
            }
            FrameType::DATA => {
                self.contents.entry(id).or_default().extend(&payload);
                format!("{id} {} octets{end}", payload.len())
            }
            FrameType::RST_STREAM => format!("{id} reset {}", number(0)),
            FrameType::GOAWAY => format!("goaway {}", number(4)),
            FrameType::PING if header.has(flags::ACK) => "pong".to_owned(),
            FrameType::WINDOW_UPDATE => {
                *self.windows.entry(id).or_insert(WINDOW) += i64::from(number(0));
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.seen.push(seen);
        Ok(())
    }

    /// The fields of a section that tests look at.
    fn fields(&mut self, block: &[u8]) -> String {
        let mut shown = Vec::new();
        self.decoder
            .decode(block, |field| {
                let name = String::from_utf8_lossy(field.name.as_bytes()).into_owned();
                let value = String::from_utf8_lossy(field.value).into_owned();
                match name.as_str() {
                    ":status" | ":path" => shown.push(value),
                    "link" | "x-http2-push" | "grpc-status" => {
                        shown.push(format!("{name}={value}"))
                    }
                    "set-cookie" => shown.push(value.split(';').next().unwrap_or("").to_owned()),
                    _ => {}
                }
                Ok::<(), HpackError>(())
            })
            .unwrap();
        shown.join(" ")
    }

    /// Nothing more comes for a while.
    pub fn is_quiet(&mut self) -> bool {
        let pause = Some(Duration::from_millis(150));
        self.stream.set_read_timeout(pause).unwrap();
        let result = self.stream.read(&mut [0]);
        result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}
