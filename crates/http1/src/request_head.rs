//! Parsing of request heads (RFC 9112 §3): request line, `Host`, and the fields that concern the body and the connection.

use std::ops::Range;

use h2o_http::path::{self, TargetScan};
use h2o_http::{
    BodyLength, Known, Method, RequestHead, Scheme, Span, Version, authority, is_token_byte,
};

use crate::connection_field::ConnectionOptions;
use crate::field_lines::{Line, LineEnds, scan_line, token_len};
use crate::framing::FramingFields;
use crate::{PeerError, Settings, target};

/// The properties of a request head that concern the connection; the rest is in [`RequestHead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestOptions {
    /// Whether the client wants to keep the connection.
    pub(crate) is_persistent: bool,
    /// Whether the client waits for 100 Continue before it sends the body: it sent `Expect: 100-continue` and announced a
    /// body.
    pub(crate) expects_continue: bool,
    /// Length of the head in bytes.
    pub(crate) len: usize,
}

/// Parses a request head and stores it in `head`. `input` must begin with a complete head, as found by
/// [`crate::field_lines::HeadScan`].
///
/// On an error the parts read so far stay in `head`, for the log.
pub(crate) fn parse(
    input: &[u8],
    settings: &Settings,
    scheme: Scheme,
    head: &mut RequestHead,
) -> Result<RequestOptions, PeerError> {
    let ends = LineEnds::new(settings.strict);
    head.clear();
    let line = RequestLine::parse(input, ends)?;
    head.method = line.method;
    head.scheme = scheme;
    head.version = line.version;
    head.headers.store(input);
    let mut fields = Fields::default();
    let len = fields.parse(input, line.next, settings, head)?;

    head.set_authority(fields.host.span(head, settings.strict)?);
    let is_connect = matches!(head.method, Method::Connect | Method::ConnectUdp);
    target::set_target(input, line.target_at, &line.target, head)?;
    if is_connect {
        if !target::is_connect_fit(head, head.headers.text(fields.host.at))
            || fields.framing.is_any()
        {
            return Err(PeerError::ConnectInvalid);
        }
    } else if head.scheme == Scheme::Masque {
        return Err(PeerError::MasqueInvalid);
    }
    let is_http10 = line.version == Version::Http10;
    head.body = match fields.framing.body_length(is_http10)? {
        _ if is_connect => BodyLength::Tunnel,
        BodyLength::Known(length) if length > settings.limit_request_body => {
            return Err(PeerError::BodyTooLarge);
        }
        body => body,
    };
    // H2O compatibility: H2O ignores `Expect: 100-continue` in a request without a body.
    let expects = fields.framing.is_any();
    if expects && fields.expects_other {
        return Err(PeerError::ExpectationUnknown);
    }
    let offers_upgrade = fields.connection.upgrade()
        && !fields.upgrade.is_empty()
        && head.body == BodyLength::None
        && !is_http10;
    if offers_upgrade {
        head.set_upgrade(fields.upgrade);
    }
    let options = fields.connection;
    Ok(RequestOptions {
        is_persistent: !is_connect && options.is_persistent(is_http10, offers_upgrade),
        expects_continue: expects && fields.expects_continue,
        len,
    })
}

/// The span in the arena of `head` for a range of the input; both are the same offsets, since [`parse`] stores the whole
/// input at the start of the arena.
fn span(range: &Range<usize>) -> Span {
    Span::new(range.start, range.len())
}

/// Checks the request line at the start of `input` if it is complete. Returns the position after it; `None` if it is not
/// complete.
pub(crate) fn check_first_line(input: &[u8], ends: LineEnds) -> Result<Option<usize>, PeerError> {
    if memchr::memchr(b'\n', &input[empty_line_len(input, ends)..]).is_none() {
        return Ok(None);
    }
    RequestLine::parse(input, ends).map(|line| Some(line.next))
}

/// Checks the start of an incomplete request line, so that a TLS handshake on a cleartext port is answered at once,
/// although no line feed may follow.
pub(crate) fn check_partial_line(input: &[u8], ends: LineEnds) -> Result<(), PeerError> {
    /// Number of bytes of the request line that are checked before its end has arrived: longer than any method in use.
    const CHECKED: usize = 64;
    let line = &input[empty_line_len(input, ends)..];
    let line = &line[..line.len().min(CHECKED)];
    match line.iter().position(|&byte| !is_token_byte(byte)) {
        None => Ok(()),
        Some(at) if at > 0 && line[at] == b' ' => Ok(()),
        // A single carriage return may be the start of the one empty line before the request line that is skipped.
        Some(0) if input == b"\r" => Ok(()),
        Some(_) => Err(PeerError::MethodInvalid),
    }
}

/// Length of the empty line before the request line, which is skipped if there is one (RFC 9112 §2.2).
fn empty_line_len(input: &[u8], ends: LineEnds) -> usize {
    match (input, ends) {
        ([b'\r', b'\n', ..], _) => 2,
        ([b'\n', ..], LineEnds::Lenient) => 1,
        _ => 0,
    }
}

/// The parts of a request line, as positions in the input.
struct RequestLine {
    method: Method,
    target_at: usize,
    target: TargetScan,
    version: Version,
    next: usize,
}

impl RequestLine {
    #[inline(always)]
    fn parse(input: &[u8], ends: LineEnds) -> Result<Self, PeerError> {
        let start = empty_line_len(input, ends);
        let (method, method_end) = if input[start..].first_chunk() == Some(b"GET ") {
            (Method::Get, start + 3)
        } else {
            parse_method(input, start)?
        };
        let target_at = skip_spaces(input, method_end);
        if target_at == method_end {
            return Err(PeerError::MethodInvalid);
        }
        let target = path::scan_target(&input[target_at..]);
        let target_end = target_at + target.len;
        let version_at = skip_spaces(input, target_end);
        if target.len == 0 {
            return Err(PeerError::TargetInvalid);
        }
        if version_at == target_end {
            return Err(match ends.at(&input[version_at..])? {
                Some(_) => PeerError::VersionInvalid, // The line is a request of HTTP/0.9.
                None => PeerError::TargetInvalid,
            });
        }
        let at = version_at + 8;
        let name = input[version_at..].first_chunk::<8>();
        let version = if name == Some(b"HTTP/1.1") {
            Version::Http11
        } else {
            match name {
                Some(b"HTTP/1.0") => Version::Http10,
                // A higher minor version is treated as HTTP/1.1, the highest that is known (RFC 9110 §2.5).
                Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9']) => Version::Http11,
                _ => return Err(PeerError::VersionInvalid),
            }
        };
        let line_end = ends.at(&input[at..])?.ok_or(PeerError::VersionInvalid)?;
        Ok(Self {
            method,
            target_at,
            target,
            version,
            next: at + line_end,
        })
    }
}

/// Parses the method at the offset `start`. Returns it with the position after it.
fn parse_method(input: &[u8], start: usize) -> Result<(Method, usize), PeerError> {
    let end = start + token_len(&input[start..]);
    let method = Method::from_token(&input[start..end]).ok_or(PeerError::MethodInvalid)?;
    Ok((method, end))
}

#[inline]
fn skip_spaces(input: &[u8], mut at: usize) -> usize {
    while let Some(b' ') = input.get(at) {
        at += 1;
    }
    at
}

/// The fields of a request head that the engine interprets. The other fields are stored in [`RequestHead::headers`].
#[derive(Default)]
struct Fields<'a> {
    host: Host,
    framing: FramingFields<'a>,
    upgrade: Span,
    expects_continue: bool,
    expects_other: bool,
    connection: ConnectionOptions,
}

impl<'a> Fields<'a> {
    /// Reads the field section that starts at the offset `at`. Returns the position after it.
    #[inline]
    fn parse(
        &mut self,
        input: &'a [u8],
        mut at: usize,
        settings: &Settings,
        head: &mut RequestHead,
    ) -> Result<usize, PeerError> {
        let ends = LineEnds::new(settings.strict);
        let mut seen = 0;
        loop {
            let (known, name, value) = match scan_line(input, at, ends)? {
                Line::End { next } => return Ok(next),
                Line::Field {
                    known,
                    name,
                    value,
                    next,
                } => {
                    at = next;
                    (known, name, value)
                }
            };
            seen += 1;
            if seen > settings.max_fields {
                return Err(PeerError::TooManyFields);
            }
            if !self.on_field(known, &input[value.clone()], &value, head) {
                head.headers
                    .push_stored_as(known, span(&name), span(&value));
            }
        }
    }

    /// Interprets a field that concerns the engine. Returns true if the field is not to be stored in
    /// [`RequestHead::headers`].
    #[inline]
    fn on_field(
        &mut self,
        known: Option<Known>,
        text: &'a [u8],
        value: &Range<usize>,
        head: &mut RequestHead,
    ) -> bool {
        match known {
            Some(Known::Host) => self.host.on_field(span(value)),
            Some(Known::ContentLength) => self.framing.on_content_length(text),
            Some(Known::TransferEncoding) => self.framing.on_transfer_encoding(text),
            Some(Known::Upgrade) => self.upgrade = span(value),
            Some(Known::Expect) => {
                let is_continue = text.eq_ignore_ascii_case(b"100-continue");
                self.expects_continue |= is_continue;
                self.expects_other |= !is_continue;
                head.set_expect(span(value));
            }
            Some(Known::Connection) => {
                self.connection.on_field(text);
                return false;
            }
            _ => return false,
        }
        true
    }
}

/// The `Host` fields of a request (RFC 9112 §3.2).
#[derive(Default)]
struct Host {
    at: Span,
    is_present: bool,
    is_repeated: bool,
}

impl Host {
    fn on_field(&mut self, at: Span) {
        self.at = at;
        self.is_repeated |= self.is_present;
        self.is_present = true;
    }

    /// The value of `Host`; empty if the head has no such field. An empty value counts as a missing field.
    #[inline]
    fn span(&self, head: &RequestHead, strict: bool) -> Result<Span, PeerError> {
        if self.is_repeated {
            return Err(PeerError::HostRepeated);
        }
        if self.at.is_empty() {
            return match head.version {
                Version::Http11 if strict => Err(PeerError::HostMissing),
                _ => Ok(Span::default()),
            };
        }
        // `Host` of a CONNECT is not checked here: it only repeats the target, which the handler checks.
        if head.method != Method::Connect && !authority::is_valid(head.headers.text(self.at)) {
            return Err(PeerError::HostInvalid);
        }
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &str) -> Result<(RequestHead, RequestOptions), PeerError> {
        let mut head = RequestHead::default();
        let settings = Settings::default();
        let options = parse(input.as_bytes(), &settings, Scheme::Http, &mut head)?;
        Ok((head, options))
    }

    #[test]
    fn framing_fields_are_kept_apart() {
        let (head, options) = read(
            "POST / HTTP/1.1\r\nHOST: h\r\nExpect: 100-Continue\r\nX-Y: z\r\nupgrade: foo\r\n\
             Connection: upgrade\r\nContent-Length: 5\r\n\r\n",
        )
        .unwrap();
        let names: Vec<_> = head
            .headers
            .iter()
            .map(|field| field.name.as_str())
            .collect();
        assert_eq!(names, ["x-y", "connection"]);
        assert_eq!(
            (head.body, head.expect()),
            (BodyLength::Known(5), &b"100-Continue"[..])
        );
        // An upgrade that is offered in a request with a body is ignored. Its `Connection` field has no `keep-alive`, so the
        // connection closes after the response.
        assert_eq!((head.upgrade(), options.is_persistent), (&b""[..], false));
        assert!(options.expects_continue);
    }

    #[test]
    fn upgrades_are_offered_without_body_in_http_1_1() {
        let cases = [
            (
                "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade",
                "websocket",
                true,
            ),
            (
                "GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
                "h2c",
                true,
            ),
            (
                "GET / HTTP/1.1\r\nUpgrade: a\r\nConnection: upgrade, close",
                "a",
                false,
            ),
            ("GET / HTTP/1.1\r\nUpgrade: a", "", true),
            (
                "GET / HTTP/1.1\r\nUpgrade: a\r\nConnection: keep-alive",
                "",
                true,
            ),
            (
                "GET / HTTP/1.1\r\nUpgrade:\r\nConnection: upgrade",
                "",
                false,
            ),
            ("GET / HTTP/1.1\r\nConnection: upgrade", "", false),
            (
                "GET / HTTP/1.0\r\nUpgrade: a\r\nConnection: upgrade",
                "",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nUpgrade: a\r\nConnection: upgrade\r\nContent-Length: 0",
                "",
                false,
            ),
        ];
        for (head, upgrade, is_persistent) in cases {
            let (got, options) = read(&format!("{head}\r\n\r\n")).unwrap();
            assert_eq!(got.upgrade(), upgrade.as_bytes(), "{head}");
            assert_eq!(options.is_persistent, is_persistent, "{head}");
        }
    }

    #[test]
    fn expectations_count_where_there_is_a_body() {
        let cases = [
            ("Expect: 100-continue\r\nContent-Length: 1", Ok(true)),
            (
                "Expect: 100-continue\r\nTransfer-Encoding: chunked",
                Ok(true),
            ),
            ("Expect: 100-continue", Ok(false)),
            ("Expect: something", Ok(false)),
            (
                "Expect: something\r\nContent-Length: 1",
                Err(PeerError::ExpectationUnknown),
            ),
            (
                "Expect:\r\nContent-Length: 1",
                Err(PeerError::ExpectationUnknown),
            ),
            (
                "Expect: 100-continue\r\nExpect: x\r\nContent-Length: 1",
                Err(PeerError::ExpectationUnknown),
            ),
            (
                "Expect: x\r\nContent-Length: 1073741825",
                Err(PeerError::BodyTooLarge),
            ),
        ];
        for (fields, want) in cases {
            let got = read(&format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n"));
            assert_eq!(
                got.map(|(_, options)| options.expects_continue),
                want,
                "{fields}"
            );
        }
    }
}
