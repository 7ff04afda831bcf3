//! Reads the header block of a FastCGI application's response.

use std::borrow::Cow;
use std::fmt;

use h2o_http::{Headers, Known, Name, StatusCode, is_token_byte};

/// Most fields of a response (H2O compatibility: H2O takes as many).
const MAX_FIELDS: usize = 100;

/// The head of an application's response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    /// The reason phrase; `None` if it is the standard phrase of the status.
    pub(super) reason: Option<Box<str>>,
    pub(super) headers: Headers,
    pub(super) length: Option<u64>,
}

/// Why a header block cannot be used. H2O compatibility: the texts are H2O's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    Malformed,
    Status(String),
    SeveralLengths,
    Length(String),
}

impl fmt::Display for HeadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => out.write_str("received broken response"),
            Self::Status(value) => write!(out, "failed to parse Status header, got: {value}"),
            Self::SeveralLengths => {
                out.write_str("received multiple content-length headers from fcgi")
            }
            Self::Length(value) => {
                write!(
                    out,
                    "failed to parse content-length header sent from fcgi: {value}"
                )
            }
        }
    }
}

/// Reads a header block that ends with an empty line. Lines end with CRLF or LF.
/// `headers` is empty and keeps its memory from earlier responses.
pub(super) fn parse(block: &[u8], headers: Headers) -> Result<Head, HeadError> {
    let mut head = Head {
        status: StatusCode::OK,
        reason: None,
        headers,
        length: None,
    };
    let mut lower = Vec::new();
    let mut from = 0;
    let ends = memchr::memchr_iter(b'\n', block).chain([block.len()]);
    for (count, end) in ends.enumerate() {
        let rest = &block[from..];
        let line = &rest[..end - from];
        from = end + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        if count == MAX_FIELDS {
            return Err(HeadError::Malformed);
        }
        let (known, colon) = match Known::before_colon(rest) {
            Some((known, colon)) => (Some(known), colon),
            None => (None, token_before_colon(line)?),
        };
        let value = line[colon + 1..].trim_ascii();
        if !is_field_value(value) {
            return Err(HeadError::Malformed);
        }
        let name = match known {
            Some(known) => Name::Known(known),
            None => {
                lower.clear();
                lower.extend_from_slice(&line[..colon]);
                lower.make_ascii_lowercase();
                Name::Other(std::str::from_utf8(&lower).map_err(|_| HeadError::Malformed)?)
            }
        };
        add_field(&mut head, name, value)?;
    }
    Ok(head)
}

/// Length of the token that stands before a colon at the start of `line`.
fn token_before_colon(line: &[u8]) -> Result<usize, HeadError> {
    let after_name = line.iter().position(|&byte| !is_token_byte(byte));
    let colon = after_name.filter(|&at| at > 0 && line[at] == b':');
    colon.ok_or(HeadError::Malformed)
}

fn is_field_value(value: &[u8]) -> bool {
    // Checks all bytes without a branch after each: nearly all values are valid, so an early exit would gain nothing.
    let is_bad = |byte: u8| (byte < b' ' && byte != b'\t') | (byte == 0x7f);
    !value.iter().fold(false, |bad, &byte| bad | is_bad(byte))
}

fn add_field(head: &mut Head, name: Name<'_>, value: &[u8]) -> Result<(), HeadError> {
    match name {
        Name::Known(Known::ContentLength) => {
            if head.length.is_some() {
                return Err(HeadError::SeveralLengths);
            }
            let length = h2o_http::parse_content_length(value);
            head.length = Some(length.ok_or_else(|| HeadError::Length(shown(value)))?);
        }
        // Drops fields that apply to a single connection, or that the protocol engines write themselves.
        Name::Known(
            Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::DatagramFlowId,
        ) => {}
        Name::Other("status") => {
            let parsed = parse_status(value);
            let (status, reason) = parsed.ok_or_else(|| HeadError::Status(shown(value)))?;
            head.reason = (*reason != *status.reason()).then(|| reason.into());
            head.status = status;
        }
        known => head.headers.push(known, value),
    }
    Ok(())
}

/// Reads the value of the `status` field: `NNN`, or `NNN reason`. Interim statuses are refused.
fn parse_status(value: &[u8]) -> Option<(StatusCode, Cow<'_, str>)> {
    let (digits, rest) = value.split_at_checked(3)?;
    let code = std::str::from_utf8(digits).ok()?;
    if !digits.iter().all(u8::is_ascii_digit) || rest.first().is_some_and(|&byte| byte != b' ') {
        return None;
    }
    let status = StatusCode::new(code.parse().ok()?)?;
    if status.is_informational() {
        return None;
    }
    let reason = match rest.trim_ascii() {
        b"" => "OK".into(),
        reason => String::from_utf8_lossy(reason),
    };
    Some((status, reason))
}

fn shown(value: &[u8]) -> String {
    value.escape_ascii().to_string()
}

/// Entry points for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use h2o_http::{Headers, Known, is_token};

    /// Reads the header block of an application's response.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn fastcgi_head(block: &[u8]) {
        let Ok(head) = super::parse(block, Headers::new()) else {
            return;
        };
        assert!((200..=999).contains(&head.status.as_u16()));
        let reason = head.reason.unwrap_or_default();
        assert!(!reason.contains(['\r', '\n']));
        assert!(head.headers.len() <= super::MAX_FIELDS);
        for field in head.headers.iter() {
            assert!(is_token(field.name.as_str().as_bytes()));
            assert!(super::is_field_value(field.value));
        }
        // The head must not have the fields that the protocol engines write.
        for name in [
            Known::ContentLength,
            Known::Connection,
            Known::TransferEncoding,
        ] {
            assert!(head.headers.get(name).is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(block: &str) -> String {
        match parse(block.as_bytes(), Headers::new()) {
            Err(error) => error.to_string(),
            Ok(head) => {
                let length = head
                    .length
                    .map_or(String::new(), |length| format!(" [{length}]"));
                let fields: Vec<_> = (head.headers.iter())
                    .map(|field| format!("{}: {}", field.name.as_str(), shown(field.value)))
                    .collect();
                let fields = fields.join("; ");
                let reason = head.reason.as_deref().unwrap_or(head.status.reason());
                format!("{} {reason}{length} {fields}", head.status.as_u16())
            }
        }
    }

    #[test]
    fn header_blocks_are_read_as_by_h2o() {
        let many = "a: b\n".repeat(100);
        let too_many = format!("{many}a: b\n\n");
        let cases = [
            ("\n", "200 OK "),
            (
                "Content-Type: text/plain\r\n\r\n",
                "200 OK content-type: text/plain",
            ),
            (
                "Status: 404 Not Here\nX-A: 1\nX-A:2\n\n",
                "404 Not Here x-a: 1; x-a: 2",
            ),
            ("Status: 201\n\n", "201 OK "),
            ("Location: /x\n\n", "200 OK location: /x"),
            ("Content-Length: 5\n\n", "200 OK [5] "),
            (
                "Connection: close\nKeep-Alive: 1\nTransfer-Encoding: chunked\nUpgrade: a\n\n",
                "200 OK ",
            ),
            (
                "Status: 2000\n\n",
                "failed to parse Status header, got: 2000",
            ),
            ("Status: OK\n\n", "failed to parse Status header, got: OK"),
            ("Status: 20\n\n", "failed to parse Status header, got: 20"),
            (
                "Status: 101 Switching Protocols\n\n",
                "failed to parse Status header, got: 101 Switching Protocols",
            ),
            (
                "Content-Length: 1\nContent-Length: 1\n\n",
                "received multiple content-length headers from fcgi",
            ),
            (
                "Content-Length: x\n\n",
                "failed to parse content-length header sent from fcgi: x",
            ),
            (
                "Content-Length: -1\n\n",
                "failed to parse content-length header sent from fcgi: -1",
            ),
            ("no colon\n\n", "received broken response"),
            (": value\n\n", "received broken response"),
            ("na me: value\n\n", "received broken response"),
            ("a: b\0c\n\n", "received broken response"),
            ("a: b\rc\n\n", "received broken response"),
            (&*too_many, "received broken response"),
        ];
        for (block, want) in cases {
            assert_eq!(text(block), want, "{block}");
        }
        assert!(text(&format!("{many}\n")).starts_with("200 OK a: b"));
    }
}
