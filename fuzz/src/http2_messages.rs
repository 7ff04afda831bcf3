//! Writes HTTP/2 messages as frames by hand, and reads requests with the server role.

use std::collections::BTreeMap;
use std::sync::Arc;

use h2o_http::RequestHead;
use h2o_http2::{Received, ServerConnection, Settings};
use h2o_testkit::any_moment;
use h2o_testkit::http2::{Frame, PREFACE, encode, flag, kind};

/// A request as the server role has read it.
#[derive(Clone, Default)]
pub(crate) struct Incoming {
    pub(crate) head: RequestHead,
    pub(crate) content: Vec<u8>,
    /// Whether the request is complete.
    pub(crate) is_whole: bool,
}

/// The longest frame payload that may be sent without permission (RFC 9113 §4.2).
const MAX_FRAME: usize = 16_384;

/// How a message is put into frames.
#[derive(Clone, Copy)]
pub(crate) struct Framing {
    /// Whether END_STREAM is sent in an empty DATA frame of its own.
    pub(crate) ends_apart: bool,
    /// Whether END_STREAM is missing.
    pub(crate) has_no_end: bool,
    /// Bytes of content in each DATA frame.
    pub(crate) piece: usize,
}

/// Writes the bytes of a client: `text` is lines `name: value`, an empty line and the content; a line `--` and lines of trailers may
/// follow.
pub(crate) fn write(text: &[u8], framing: Framing) -> Vec<u8> {
    let mut out = [PREFACE, &Frame::settings(&[]).bytes()].concat();
    write_message(text, framing, &mut out);
    out
}

/// Writes the bytes of a server. Informational heads, each followed by a line `--`, may precede the final head.
pub(crate) fn write_response(text: &[u8], framing: Framing) -> Vec<u8> {
    let mut out = Frame::settings(&[]).bytes();
    let mut rest = text;
    loop {
        let (interim, after) = split(rest, b"\n--\n");
        if after.is_empty() || interim.windows(2).any(|part| part == b"\n\n") {
            break;
        }
        section(interim, false, &mut out);
        rest = after;
    }
    write_message(rest, framing, &mut out);
    out
}

fn write_message(text: &[u8], framing: Framing, out: &mut Vec<u8>) {
    let (head, rest) = split(text, b"\n\n");
    let (content, trailers) = split(rest, b"\n--\n");
    let is_bare = content.is_empty() && trailers.is_empty();
    let ends = !framing.has_no_end;
    let ends_with_head = is_bare && ends && !framing.ends_apart;
    section(head, ends_with_head, out);
    let ends_with_content = ends && trailers.is_empty() && !framing.ends_apart;
    let mut pieces = content.chunks(framing.piece.clamp(1, MAX_FRAME)).peekable();
    while let Some(piece) = pieces.next() {
        let is_end = ends_with_content && pieces.peek().is_none();
        let end = if is_end { flag::END_STREAM } else { 0 };
        out.extend(Frame::data(1, end, piece).bytes());
    }
    if !trailers.is_empty() {
        section(trailers, ends, out);
    } else if ends && framing.ends_apart {
        out.extend(Frame::data(1, flag::END_STREAM, b"").bytes());
    }
}

fn split<'t>(text: &'t [u8], separator: &[u8]) -> (&'t [u8], &'t [u8]) {
    match text
        .windows(separator.len())
        .position(|part| part == separator)
    {
        Some(at) => (&text[..at], &text[at + separator.len()..]),
        None => (text, b""),
    }
}

fn section(lines: &[u8], is_end: bool, out: &mut Vec<u8>) {
    let mut fields = Vec::new();
    for line in lines
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        // A colon at the beginning belongs to the name of a pseudo-header field.
        let (name, value) = match line[1..].windows(2).position(|pair| pair == b": ") {
            Some(at) => (&line[..at + 1], &line[at + 3..]),
            None => (line, &b""[..]),
        };
        fields.push((name, value));
    }
    let block = encode(&fields);
    let mut parts = block.chunks(MAX_FRAME).peekable();
    let mut kind = kind::HEADERS;
    loop {
        let part = parts.next().unwrap_or_default();
        let mut flags = 0;
        if kind == kind::HEADERS && is_end {
            flags |= flag::END_STREAM;
        }
        if parts.peek().is_none() {
            flags |= flag::END_HEADERS;
        }
        out.extend(Frame::new(kind, flags, 1, part).bytes());
        kind = kind::CONTINUATION;
        if flags & flag::END_HEADERS != 0 {
            return;
        }
    }
}

/// Reads everything that a client has sent, with the server role. Requests that the role refuses are left out.
pub(crate) fn read(bytes: &[u8]) -> Vec<Incoming> {
    let now = any_moment();
    let mut server = ServerConnection::new(Arc::new(Settings::default()), None, now);
    let mut requests: BTreeMap<usize, Incoming> = BTreeMap::new();
    let (mut at, mut out) = (0, Vec::new());
    loop {
        let mut head = RequestHead::default();
        let Ok(step) = server.receive(&bytes[at..], &mut head, now, &mut out) else {
            break;
        };
        match step.received {
            Received::NeedMore => break,
            Received::Charged => {
                server.take_costs();
                server.take_rejected();
            }
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => {
                if refusal.is_none() {
                    let request = Incoming {
                        head,
                        content: Vec::new(),
                        is_whole: end_stream,
                    };
                    requests.insert(stream.index(), request);
                    server.accept_content(stream, &mut out);
                }
            }
            Received::Data {
                stream,
                data,
                end_stream,
            } => {
                server.release_content(stream, data.len(), &mut out);
                if let Some(request) = requests.get_mut(&stream.index()) {
                    let data = &bytes[at + data.start..at + data.end];
                    request.content.extend_from_slice(data);
                    request.is_whole = end_stream;
                }
            }
            Received::Trailers { stream } => {
                if let Some(request) = requests.get_mut(&stream.index()) {
                    request.is_whole = true;
                }
            }
            Received::Reset { stream, .. } => {
                if let Some(request) = requests.get_mut(&stream.index()) {
                    request.is_whole = false;
                }
                server.release(stream, &mut out);
            }
        }
        at += step.taken;
    }
    requests.into_values().collect()
}
