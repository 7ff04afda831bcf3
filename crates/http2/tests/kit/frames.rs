//! Frames written by hand, by code that shares nothing with the engine, and frames of the engine in words.

use h2o_http2::hpack::{Decoder, HpackError};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY_UPDATE: u8 = 16;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;
/// A field section in one frame, with nothing behind it.
pub(crate) const WHOLE: u8 = END_STREAM | END_HEADERS;

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
    let [_, a, b, c] = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut out = vec![a, b, c, kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// Literals without indexing, names in plain text: what any decoder reads without knowing what was before.
pub(crate) fn block(fields: Fields<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            let len = text.chars().count();
            match u8::try_from(len) {
                Ok(len) if len < 127 => out.push(len),
                _ => {
                    out.push(127);
                    let mut rest = len - 127;
                    while rest >= 128 {
                        out.push(u8::try_from(rest % 128).expect("seven bits") | 128);
                        rest /= 128;
                    }
                    out.push(u8::try_from(rest).expect("seven bits"));
                }
            }
            // Latin-1, so that tests can have any octet in a `str`.
            out.extend(text.chars().map(|c| u8::try_from(c).expect("Latin-1")));
        }
    }
    out
}

pub(crate) fn headers(stream: u32, flags: u8, fields: Fields<'_>) -> Vec<u8> {
    frame(HEADERS, flags, stream, &block(fields))
}

/// GET without content.
pub(crate) fn get(stream: u32) -> Vec<u8> {
    headers(stream, WHOLE, GET)
}

/// POST with content to come.
pub(crate) fn post(stream: u32) -> Vec<u8> {
    headers(stream, END_HEADERS, POST)
}

pub(crate) fn data(stream: u32, flags: u8, content: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, content)
}

pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn rst_stream(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub(crate) fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame(
        GOAWAY,
        0,
        0,
        &[last.to_be_bytes(), code.to_be_bytes()].concat(),
    )
}

/// The five octets of a priority; `weight` from 1 to 256.
pub(crate) fn dependency(on: u32, weight: u16, is_exclusive: bool) -> Vec<u8> {
    let mut out = (on | u32::from(is_exclusive) << 31).to_be_bytes().to_vec();
    out.push(u8::try_from(weight - 1).expect("up to 256"));
    out
}

pub(crate) fn priority(stream: u32, on: u32, weight: u16, is_exclusive: bool) -> Vec<u8> {
    frame(PRIORITY, 0, stream, &dependency(on, weight, is_exclusive))
}

pub(crate) fn priority_update(stream: u32, value: &str) -> Vec<u8> {
    let payload = [&stream.to_be_bytes()[..], value.as_bytes()].concat();
    frame(PRIORITY_UPDATE, 0, 0, &payload)
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

/// Reads the frames of one direction.
pub(crate) struct Reader {
    decoder: Decoder,
    /// HEADERS or PUSH_PROMISE in words, and the block so far.
    section: Option<(String, Vec<u8>)>,
    /// What DATA frames carried, by stream.
    pub(crate) content: Vec<(u32, Vec<u8>)>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            decoder: Decoder::new(4096),
            section: None,
            content: Vec::new(),
        }
    }

    /// The frames in words; `octets` ends with a complete one.
    pub(crate) fn read(&mut self, mut octets: &[u8]) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(rest) = octets.strip_prefix(PREFACE) {
            said.push("PREFACE".to_owned());
            octets = rest;
        }
        while !octets.is_empty() {
            let (header, rest) = octets.split_at(9);
            let len = usize::from(header[1]) << 8 | usize::from(header[2]);
            assert_eq!(header[0], 0, "a frame longer than any we send");
            let stream = u32::from_be_bytes(header[5..9].try_into().expect("four"));
            let (payload, rest) = rest.split_at(len);
            said.extend(self.frame(header[3], header[4], stream, payload));
            octets = rest;
        }
        said
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<String> {
        let end = if flags & END_STREAM != 0 { " END" } else { "" };
        let number =
            |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four octets"));
        assert!(
            self.section.is_none() || kind == CONTINUATION,
            "a frame within a section"
        );
        Some(match kind {
            DATA => {
                self.content.push((stream, payload.to_vec()));
                format!("DATA {stream} {}{end}", payload.len())
            }
            HEADERS => {
                let words = format!("HEADERS {stream}{end}");
                return self.section(words, payload, flags);
            }
            PUSH_PROMISE => {
                let words = format!("PUSH_PROMISE {stream} {}", number(0));
                return self.section(words, &payload[4..], flags);
            }
            CONTINUATION => {
                let (words, mut octets) = self.section.take().expect("a section to continue");
                octets.extend_from_slice(payload);
                return self.section(words, &octets, flags);
            }
            RST_STREAM => format!("RST_STREAM {stream} {}", code(number(0))),
            SETTINGS if flags & ACK != 0 => "SETTINGS ACK".to_owned(),
            SETTINGS => {
                let mut words = "SETTINGS".to_owned();
                for value in payload.chunks(6) {
                    let id = u16::from_be_bytes([value[0], value[1]]);
                    let value = u32::from_be_bytes(value[2..].try_into().expect("four"));
                    words += &format!(" {id}={value}");
                }
                words
            }
            PING => format!("PING {flags} {}", payload.escape_ascii()),
            GOAWAY => {
                let text = String::from_utf8_lossy(&payload[8..]);
                format!("GOAWAY {} {} {text}", number(0), code(number(4)))
            }
            WINDOW_UPDATE => format!("WINDOW_UPDATE {stream} {}", number(0)),
            _ => format!("{kind} {stream} {}", payload.escape_ascii()),
        })
    }

    fn section(&mut self, mut words: String, octets: &[u8], flags: u8) -> Option<String> {
        if flags & END_HEADERS == 0 {
            self.section = Some((words, octets.to_vec()));
            return None;
        }
        self.decoder
            .decode(octets, |field| {
                let name = field.name.as_bytes().escape_ascii();
                words += &format!(" {name}={}", field.value.escape_ascii());
                Ok::<(), HpackError>(())
            })
            .expect("a block that can be read");
        Some(words)
    }
}
