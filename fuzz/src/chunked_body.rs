//! Chunked bodies, compared with a second reader that is as simple as possible.

use std::sync::Arc;

use h2o_http::{BodyLength, Headers, Method};
use h2o_http1::{ClientConnection, ClientRequest, MAX_CHUNK_FRAMING, MAX_TRAILER_FIELDS, Settings};

use crate::server::{Driven, Event};
use crate::{cuts, pieces};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Bodies are read the same however the bytes are cut, as the grammar demands, and as they were written.
///
/// # Panics
/// If an invariant does not hold.
pub fn chunked_body(input: &[u8]) {
    let whole = read([input].into_iter());
    for cuts in cuts(input) {
        assert_eq!(read(pieces(input, &cuts)), whole, "input cut at {cuts:?}");
    }
    // The second reader does not know the engine's limits, so inputs long enough to reach one are not compared.
    if input.len() < 4000 {
        assert_eq!(whole, read_plainly(input));
    } else if let Body::Complete(content) = &whole {
        assert!(content.len() <= input.len());
        let framing = (input.len() - content.len()) as u64;
        assert!(framing < MAX_CHUNK_FRAMING || framing / 4 <= content.len() as u64 * 3);
    }
    write_and_read(input);
}

#[derive(Debug, PartialEq)]
enum Body {
    Complete(Vec<u8>),
    Incomplete(Vec<u8>),
    Broken,
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Body {
    let mut server = Driven::new(Settings {
        limit_request_body: u64::MAX,
        ..Settings::default()
    });
    server.receive(HEAD);
    pieces.for_each(|piece| server.receive(piece));
    let (mut content, mut is_complete) = (Vec::new(), false);
    for event in &server.events[1..] {
        match event {
            Event::Data(data) => content.extend_from_slice(data),
            Event::Refused(_) if !is_complete => return Body::Broken,
            // The bytes after the body belong to another request, which may be malformed.
            Event::BodyEnd => {
                is_complete = true;
                break;
            }
            Event::Request(_) | Event::Http2 | Event::Refused(_) | Event::Kept | Event::Closed => {
                panic!("{event:?} within a body")
            }
        }
    }
    if is_complete {
        Body::Complete(content)
    } else {
        Body::Incomplete(content)
    }
}

/// Reads a body by the rules of RFC 9112 §7.1, one after the other. A body that is cut off counts as incomplete if more bytes could
/// complete it.
fn read_plainly(input: &[u8]) -> Body {
    let mut rest = input;
    let mut content = Vec::new();
    loop {
        let (line, after) = match split_line(rest) {
            Some(found) => found,
            None if is_size_line_start(rest) => return Body::Incomplete(content),
            None => return Body::Broken,
        };
        let Some(size) = size_of_line(line) else {
            return Body::Broken;
        };
        if size == 0 {
            return match read_trailers(after) {
                Some(true) => Body::Complete(content),
                Some(false) => Body::Incomplete(content),
                None => Body::Broken,
            };
        }
        // The chunk makes the body longer than the largest limit that can be set: the body is refused once content of the chunk arrives.
        if size.saturating_add(content.len() as u64) == u64::MAX && !after.is_empty() {
            return Body::Broken;
        }
        let Some(data) = usize::try_from(size)
            .ok()
            .and_then(|size| after.get(..size))
        else {
            content.extend_from_slice(after);
            return Body::Incomplete(content);
        };
        content.extend_from_slice(data);
        match &after[data.len()..] {
            [b'\r', b'\n', after @ ..] => rest = after,
            [] | [b'\r'] => return Body::Incomplete(content),
            _ => return Body::Broken,
        }
    }
}

/// The text before the first CRLF, and the bytes after it; `None` if there is no CRLF.
fn split_line(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = input.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&input[..end], &input[end + 2..]))
}

fn size_of_line(line: &[u8]) -> Option<u64> {
    let digits = line
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let (size, rest) = line.split_at(digits);
    if !(1..=16).contains(&digits) || !is_rest_of_size(rest) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()
}

fn is_rest_of_size(rest: &[u8]) -> bool {
    let blanks = rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count();
    match &rest[blanks..] {
        [] => true,
        [b';', extension @ ..] => extension.iter().all(is_text),
        _ => false,
    }
}

/// Whether `input`, which has no CRLF, can be the beginning of a line with a chunk size.
fn is_size_line_start(input: &[u8]) -> bool {
    let line = input.strip_suffix(b"\r").unwrap_or(input);
    input.is_empty() || size_of_line(line).is_some()
}

/// Whether the trailer section is complete (true), or more bytes could complete it (false); `None` if it is malformed.
fn read_trailers(mut rest: &[u8]) -> Option<bool> {
    let mut fields = 0;
    loop {
        let feed = rest.iter().position(|&byte| byte == b'\n');
        let (line, is_whole) = match feed {
            Some(feed) => (&rest[..feed], true),
            None => (rest, false),
        };
        let (text, ends_in_cr) = match line.strip_suffix(b"\r") {
            Some(text) => (text, true),
            None => (line, false),
        };
        if text.is_empty() && (is_whole || !ends_in_cr) {
            return Some(is_whole);
        }
        fields += usize::from(!text.is_empty());
        let is_fit = text.is_empty() || is_trailer(text, is_whole || ends_in_cr);
        if !is_fit || fields > MAX_TRAILER_FIELDS {
            return None;
        }
        match feed {
            Some(feed) => rest = &rest[feed + 1..],
            None => return Some(false),
        }
    }
}

fn is_trailer(text: &[u8], is_whole: bool) -> bool {
    match text.iter().position(|&byte| byte == b':') {
        Some(colon) => h2o_http::is_token(&text[..colon]) && text[colon + 1..].iter().all(is_text),
        None => !is_whole && h2o_http::is_token(text),
    }
}

fn is_text(byte: &u8) -> bool {
    *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)
}

/// Sends `input` as the content of a request, cut into pieces by the values of its bytes, and reads it back.
fn write_and_read(input: &[u8]) {
    let mut client = ClientConnection::new(Arc::default());
    let request = ClientRequest {
        method: &Method::Post,
        target: b"/",
        host: b"a.example",
        headers: &Headers::new(),
        body: BodyLength::Unknown,
        keep_alive: true,
        upgrade: None,
        expects_continue: false,
    };
    let mut out = Vec::new();
    client.send_request(&request, &mut out);
    let mut rest = input;
    while let Some(&byte) = rest.first() {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(byte) + 20));
        client.send_data(piece, &mut out);
        rest = after;
    }
    client.finish(None, &mut out);
    let mut server = Driven::new(Settings::default());
    server.receive(&out);
    let content = match server.events.get(1) {
        Some(Event::Data(content)) => content.as_slice(),
        _ => b"",
    };
    assert_eq!(content, input);
    assert_eq!(server.events.last(), Some(&Event::Kept));
}
