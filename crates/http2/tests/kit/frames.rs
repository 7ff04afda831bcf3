//! Frames written independently of the engine, and descriptions in words of the engine's frames.

use h2o_testkit::http2::{Decoder, Frame, encode};
pub(crate) use h2o_testkit::http2::{
    PREFACE,
    flag::{ACK, END_HEADERS, END_STREAM, PADDED, PRIORITY as WITH_PRIORITY, WHOLE},
    kind::{
        CONTINUATION, DATA, GOAWAY, HEADERS, PING, PRIORITY, PRIORITY_UPDATE, PUSH_PROMISE,
        RST_STREAM, SETTINGS, WINDOW_UPDATE,
    },
};

pub(crate) type Fields<'a> = &'a [(&'a str, &'a str)];

pub(crate) const GET: Fields<'static> = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];
pub(crate) const POST: Fields<'static> = &[
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];
pub(crate) const CONNECT: Fields<'static> =
    &[(":method", "CONNECT"), (":authority", "b.example:443")];

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    Frame::new(kind, flags, stream, payload).bytes()
}

/// A field block of literals without indexing, with names in plain text: any decoder can read it in any state.
pub(crate) fn block(fields: Fields<'_>) -> Vec<u8> {
    // Texts are converted to Latin-1, so that a `str` of a test can stand for any byte.
    let bytes = |text: &str| -> Vec<u8> {
        let bytes = text
            .chars()
            .map(|c| u8::try_from(c).expect("the characters of the text are bytes"));
        bytes.collect()
    };
    let fields = fields.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect();
    encode(&fields)
}

pub(crate) fn headers(stream: u32, flags: u8, fields: Fields<'_>) -> Vec<u8> {
    frame(HEADERS, flags, stream, &block(fields))
}

/// The HEADERS frame of a GET request without content.
pub(crate) fn get(stream: u32) -> Vec<u8> {
    headers(stream, WHOLE, GET)
}

/// The HEADERS frame of a POST request whose content follows.
pub(crate) fn post(stream: u32) -> Vec<u8> {
    headers(stream, END_HEADERS, POST)
}

pub(crate) fn data(stream: u32, flags: u8, content: &[u8]) -> Vec<u8> {
    Frame::data(stream, flags, content).bytes()
}

pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    Frame::settings(values).bytes()
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    Frame::window_update(stream, increment).bytes()
}

pub(crate) fn rst_stream(stream: u32, code: u32) -> Vec<u8> {
    Frame::rst_stream(stream, code).bytes()
}

pub(crate) fn goaway(last: u32, code: u32) -> Vec<u8> {
    Frame::goaway(last, code, "").bytes()
}

/// The five bytes of a priority (RFC 7540 §6.3); `weight` is from 1 to 256.
pub(crate) fn dependency(on: u32, weight: u16, is_exclusive: bool) -> Vec<u8> {
    Frame::priority(0, is_exclusive, on, weight).payload
}

pub(crate) fn priority(stream: u32, on: u32, weight: u16, is_exclusive: bool) -> Vec<u8> {
    Frame::priority(stream, is_exclusive, on, weight).bytes()
}

pub(crate) fn priority_update(stream: u32, value: &str) -> Vec<u8> {
    Frame::priority_update(stream, value).bytes()
}

pub(crate) fn code(number: u32) -> String {
    const NAMES: [&str; 12] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
    ];
    let name = usize::try_from(number).ok().and_then(|at| NAMES.get(at));
    name.map_or(number.to_string(), |name| (*name).to_owned())
}

/// A reader of the frames of one direction.
pub(crate) struct Reader {
    decoder: Decoder,
    /// The description of an incomplete HEADERS or PUSH_PROMISE, and the part of its field block received so far.
    section: Option<(String, Vec<u8>)>,
    /// The content of DATA frames, each with its stream.
    pub(crate) content: Vec<(u32, Vec<u8>)>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            decoder: Decoder::default(),
            section: None,
            content: Vec::new(),
        }
    }

    /// Describes the frames in `bytes`, which must end with a complete one.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(rest) = bytes.strip_prefix(PREFACE) {
            said.push("PREFACE".to_owned());
            bytes = rest;
        }
        while let Some((frame, len)) = Frame::parse(bytes) {
            said.extend(self.frame(&frame));
            bytes = &bytes[len..];
        }
        assert!(bytes.is_empty(), "the output ends within a frame");
        said
    }

    fn frame(&mut self, frame: &Frame) -> Option<String> {
        let (stream, payload) = (frame.stream, &frame.payload);
        assert!(
            payload.len() < 1 << 16,
            "a frame is longer than any that the engine sends"
        );
        let end = if frame.has(END_STREAM) { " END" } else { "" };
        assert!(
            self.section.is_none() || frame.kind == CONTINUATION,
            "another frame interrupts a field section"
        );
        Some(match frame.kind {
            DATA => {
                self.content.push((stream, payload.clone()));
                format!("DATA {stream} {}{end}", payload.len())
            }
            HEADERS => {
                let words = format!("HEADERS {stream}{end}");
                return self.section(words, payload, frame.flags);
            }
            PUSH_PROMISE => {
                let words = format!("PUSH_PROMISE {stream} {}", frame.number_at(0));
                return self.section(words, &payload[4..], frame.flags);
            }
            CONTINUATION => {
                let (words, mut bytes) = self
                    .section
                    .take()
                    .expect("CONTINUATION follows HEADERS without END_HEADERS");
                bytes.extend_from_slice(payload);
                return self.section(words, &bytes, frame.flags);
            }
            RST_STREAM => format!("RST_STREAM {stream} {}", code(frame.number_at(0))),
            SETTINGS if frame.has(ACK) => "SETTINGS ACK".to_owned(),
            SETTINGS => {
                let mut words = "SETTINGS".to_owned();
                for value in payload.chunks(6) {
                    let id = u16::from_be_bytes([value[0], value[1]]);
                    let value = u32::from_be_bytes(
                        value[2..]
                            .try_into()
                            .expect("a setting has a value of four bytes"),
                    );
                    words += &format!(" {id}={value}");
                }
                words
            }
            PING => format!("PING {} {}", frame.flags, payload.escape_ascii()),
            GOAWAY => {
                let text = String::from_utf8_lossy(&payload[8..]);
                let (last, number) = (frame.number_at(0), frame.number_at(4));
                format!("GOAWAY {last} {} {text}", code(number))
            }
            WINDOW_UPDATE => format!("WINDOW_UPDATE {stream} {}", frame.number_at(0)),
            kind => format!("{kind} {stream} {}", payload.escape_ascii()),
        })
    }

    fn section(&mut self, mut words: String, bytes: &[u8], flags: u8) -> Option<String> {
        if flags & END_HEADERS == 0 {
            self.section = Some((words, bytes.to_vec()));
            return None;
        }
        for (name, value) in self.decoder.decode(bytes) {
            words += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
        }
        Some(words)
    }
}
