//! A reader of HTTP/1.1 messages that accepts only what RFC 9112 allows to be sent. It shares no code with the engine.

use crate::server::Fields;

/// A request or a response.
#[derive(Debug, PartialEq)]
pub(crate) struct Message<'a> {
    /// The three parts of the first line.
    pub(crate) line: [&'a [u8]; 3],
    /// Names in lower case, with their values.
    pub(crate) fields: Fields,
    pub(crate) content: Content,
    pub(crate) trailers: Fields,
    /// The bytes after the message.
    pub(crate) rest: &'a [u8],
}

/// The content of a message, and how it ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Content {
    Whole(Vec<u8>),
    /// Content that ends with the connection.
    UntilClose(Vec<u8>),
    /// Content that is incomplete.
    CutOff(Vec<u8>),
}

/// The kind of request that a response answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Asked {
    Get,
    Head,
    Connect,
}

impl Message<'_> {
    /// The values of all fields with this name.
    pub(crate) fn values(&self, name: &str) -> Vec<&[u8]> {
        let fields = self.fields.iter().filter(|(known, _)| known == name);
        fields.map(|(_, value)| &**value).collect()
    }
}

/// Reads a request.
///
/// # Panics
/// If the bytes are not a valid request.
pub(crate) fn request(bytes: &[u8]) -> Message<'_> {
    let mut message = head(bytes);
    let [method, target, version] = message.line;
    assert!(is_token(method), "{}", method.escape_ascii());
    let is_visible = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    assert!(!target.is_empty() && target.iter().all(is_visible));
    assert_eq!(version, b"HTTP/1.1");
    assert_eq!(message.values("host").len(), 1, "RFC 9112 §3.2");
    read_content(&mut message, Content::Whole(Vec::new()));
    message
}

/// Reads a response to a request of this kind. After a head that opens a tunnel all bytes are in `rest`.
///
/// # Panics
/// If the bytes are not a valid response.
pub(crate) fn response(bytes: &[u8], asked: Asked) -> Message<'_> {
    let mut message = head(bytes);
    let [version, status, _] = message.line;
    assert_eq!(version, b"HTTP/1.1");
    assert!(status.len() == 3 && status.iter().all(u8::is_ascii_digit));
    let has_framing = !message.values("content-length").is_empty()
        || !message.values("transfer-encoding").is_empty();
    match (asked, status) {
        (_, [b'1', ..] | b"204") | (Asked::Connect, [b'2', ..]) => {
            assert!(
                !has_framing,
                "framing fields where RFC 9112 §6.1 and §6.2 forbid them"
            );
        }
        (Asked::Head, _) | (_, b"304") => {}
        _ => {
            let rest = Content::UntilClose(message.rest.to_vec());
            read_content(&mut message, rest);
        }
    }
    message
}

fn head(bytes: &[u8]) -> Message<'_> {
    let (first, mut rest) = line(bytes).expect("the message has a first line");
    let mut words = first.splitn(3, |&byte| byte == b' ');
    let line = [(); 3].map(|()| words.next().expect("the first line has three words"));
    let fields = take_fields(&mut rest).expect("the head ends with an empty line");
    Message {
        line,
        fields,
        content: Content::Whole(Vec::new()),
        trailers: Vec::new(),
        rest,
    }
}

/// Reads content by the rules of RFC 9112 §6.3; `unframed` is the content if no field says how it ends.
fn read_content(message: &mut Message<'_>, unframed: Content) {
    let codings = message.values("transfer-encoding");
    let lengths = message.values("content-length");
    message.content = match (&*codings, &*lengths) {
        ([], []) => {
            if matches!(unframed, Content::UntilClose(_)) {
                message.rest = &[];
            }
            unframed
        }
        ([b"chunked"], []) => {
            let content = read_chunks(&mut message.rest, &mut message.trailers);
            content.unwrap_or_else(Content::CutOff)
        }
        ([], [length]) => {
            assert!(!length.is_empty() && length.iter().all(u8::is_ascii_digit));
            let length: u64 = std::str::from_utf8(length)
                .expect("the text consists of digits")
                .parse()
                .expect("the number fits into 64 bits");
            let split = usize::try_from(length)
                .ok()
                .and_then(|length| message.rest.split_at_checked(length));
            match split {
                Some((content, rest)) => {
                    message.rest = rest;
                    Content::Whole(content.to_vec())
                }
                None => Content::CutOff(std::mem::take(&mut message.rest).to_vec()),
            }
        }
        _ => panic!("the framing of the message can be read in two ways: {codings:?} {lengths:?}"),
    };
}

/// Reads a chunked body (RFC 9112 §7.1). The error is the content so far of a body that is incomplete, or breaks off in an invalid chunk,
/// by which a sender marks a failure.
fn read_chunks(rest: &mut &[u8], trailers: &mut Fields) -> Result<Content, Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let Some((size, after)) = line(rest) else {
            *rest = &[];
            return Err(content);
        };
        let is_size = !size.is_empty() && size.iter().all(u8::is_ascii_hexdigit);
        let size = std::str::from_utf8(size).ok().filter(|_| is_size);
        let Some(size) = size.and_then(|size| usize::from_str_radix(size, 16).ok()) else {
            *rest = &[];
            return Err(content);
        };
        if size == 0 {
            *rest = after;
            return match take_fields(rest) {
                Some(fields) => {
                    *trailers = fields;
                    Ok(Content::Whole(content))
                }
                None => Err(content),
            };
        }
        match after.split_at_checked(size) {
            Some((data, [b'\r', b'\n', after @ ..])) => {
                content.extend_from_slice(data);
                *rest = after;
            }
            _ => {
                content.extend_from_slice(&after[..size.min(after.len())]);
                *rest = &[];
                return Err(content);
            }
        }
    }
}

/// Reads fields up to an empty line; `None` if there is no such line.
fn take_fields(rest: &mut &[u8]) -> Option<Fields> {
    let mut fields = Vec::new();
    loop {
        let (field, after) = line(rest)?;
        *rest = after;
        if field.is_empty() {
            return Some(fields);
        }
        let colon = field.iter().position(|&byte| byte == b':');
        let (name, value) = field.split_at(colon.expect("a field line has a colon"));
        assert!(is_token(name), "{}", field.escape_ascii());
        let name =
            String::from_utf8(name.to_ascii_lowercase()).expect("the name is a token and so ASCII");
        let blanks = b" \t";
        let mut value = &value[1..];
        while let [first, tail @ ..] = value
            && blanks.contains(first)
        {
            value = tail;
        }
        while let [head @ .., last] = value
            && blanks.contains(last)
        {
            value = head;
        }
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        assert!(value.iter().all(is_text), "{}", field.escape_ascii());
        fields.push((name, value.to_vec()));
    }
}

/// The first line, and the bytes after it. The line must not contain CR, LF or NUL.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &bytes[..end];
    assert!(
        !line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)),
        "{}",
        line.escape_ascii()
    );
    Some((line, &bytes[end + 2..]))
}

fn is_token(text: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_tchar)
}
