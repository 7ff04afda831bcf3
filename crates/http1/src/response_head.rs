//! Parsing of response heads (RFC 9112 §4), for the client role.

use std::ops::Range;

use h2o_http::{BodyLength, ClientResponse, Known, Span, StatusCode, Version};

use crate::connection_field::ConnectionOptions;
use crate::field_lines::{Line, LineEnds, scan_line, text_len};
use crate::framing::FramingFields;
use crate::{ClientSettings, UpstreamError};

/// Bare line feeds are always accepted from backends: the administrator chooses the backends, while any client can connect
/// to the server.
pub(crate) const ENDS: LineEnds = LineEnds::Lenient;

/// The properties of a request that decide how its response is read (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKind {
    pub(crate) is_head: bool,
    pub(crate) is_connect: bool,
    pub(crate) offers_upgrade: bool,
}

/// How the content of a response is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimiter {
    /// The response is interim (1xx) and has no content: another head follows.
    Interim,
    Length(u64),
    Chunked,
    UntilClose,
    Tunnel,
}

/// The properties of a response head that concern the connection; the rest is in [`ClientResponse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseFraming {
    pub(crate) delimiter: Delimiter,
    pub(crate) is_persistent: bool,
}

/// Parses a response head and stores it in `head`. `input` must be a complete head, as found by
/// [`crate::field_lines::HeadScan`].
pub(crate) fn parse(
    input: &[u8],
    settings: &ClientSettings,
    kind: RequestKind,
    head: &mut ClientResponse,
) -> Result<ResponseFraming, UpstreamError> {
    let line = StatusLine::parse(input)?;
    head.headers.clear();
    head.headers.store(input);
    head.version = line.version;
    head.status = line.status;
    head.set_reason(Span::new(line.reason.start, line.reason.len()));
    head.section_len = u32::try_from(input.len()).unwrap_or(u32::MAX);
    let mut framing = FramingFields::default();
    let mut options = ConnectionOptions::default();
    let (mut at, mut seen) = (line.next, 0);
    while let Line::Field {
        known,
        name,
        value,
        next,
    } = scan_line(input, at, ENDS)?
    {
        at = next;
        seen += 1;
        if seen > settings.max_fields {
            return Err(UpstreamError::TooManyFields);
        }
        let text = &input[value.clone()];
        match known {
            Some(Known::ContentLength) => framing.on_content_length(text),
            Some(Known::TransferEncoding) => framing.on_transfer_encoding(text),
            _ => {
                if known == Some(Known::Connection) {
                    options.on_field(text);
                }
                let span = |range: Range<usize>| Span::new(range.start, range.len());
                head.headers.push_stored_as(known, span(name), span(value));
            }
        }
    }
    delimit(&framing, options, kind, head)
}

/// Decides how the content of the response is delimited, by the rules of RFC 9112 §6.3 in their order.
fn delimit(
    framing: &FramingFields<'_>,
    options: ConnectionOptions,
    kind: RequestKind,
    head: &mut ClientResponse,
) -> Result<ResponseFraming, UpstreamError> {
    let is_http10 = head.version == Version::Http10;
    head.length = None;
    head.body = BodyLength::None;
    let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
    let delimiter = if is_switch && !kind.offers_upgrade {
        return Err(UpstreamError::UnexpectedSwitch);
    } else if is_switch || kind.is_connect && (200..300).contains(&head.status.as_u16()) {
        Delimiter::Tunnel
    } else if head.status.is_informational() {
        Delimiter::Interim
    } else {
        let body = framing.body_length_of_response()?;
        if let BodyLength::Known(length) = body {
            head.length = Some(length);
        }
        match body {
            _ if kind.is_head || head.status.is_bodyless() => Delimiter::Length(0),
            BodyLength::Known(length) => Delimiter::Length(length),
            BodyLength::Unknown => Delimiter::Chunked,
            BodyLength::None | BodyLength::Tunnel => Delimiter::UntilClose,
        }
    };
    head.body = match delimiter {
        Delimiter::Interim => BodyLength::None,
        Delimiter::Length(0) if head.length != Some(0) => BodyLength::None,
        Delimiter::Length(length) => BodyLength::Known(length),
        Delimiter::Chunked | Delimiter::UntilClose => BodyLength::Unknown,
        Delimiter::Tunnel => BodyLength::Tunnel,
    };
    let is_delimited = match delimiter {
        Delimiter::UntilClose | Delimiter::Tunnel => false,
        Delimiter::Chunked => !is_http10,
        Delimiter::Interim | Delimiter::Length(_) => true,
    };
    Ok(ResponseFraming {
        delimiter,
        is_persistent: is_delimited && options.is_persistent(is_http10, false),
    })
}

/// Checks the status line, which is the first line of `input` and complete. Returns the position after it.
pub(crate) fn check_first_line(input: &[u8]) -> Result<Option<usize>, UpstreamError> {
    StatusLine::parse(input).map(|line| Some(line.next))
}

/// Checks the start of an incomplete status line.
pub(crate) fn check_partial_line(input: &[u8]) -> Result<(), UpstreamError> {
    const START: &[u8] = b"HTTP/1.";
    let len = input.len().min(START.len());
    if input[..len] == START[..len] {
        return Ok(());
    }
    Err(UpstreamError::StatusLineInvalid)
}

/// The parts of a status line. The reason phrase is a range of the input.
struct StatusLine {
    version: Version,
    status: StatusCode,
    reason: Range<usize>,
    next: usize,
}

impl StatusLine {
    fn parse(input: &[u8]) -> Result<Self, UpstreamError> {
        let invalid = UpstreamError::StatusLineInvalid;
        let Some(
            &[
                b'H',
                b'T',
                b'T',
                b'P',
                b'/',
                b'1',
                b'.',
                minor @ b'0'..=b'9',
                b' ',
                a,
                b,
                c,
            ],
        ) = input.first_chunk::<12>()
        else {
            return Err(invalid);
        };
        let code = [a, b, c].iter().try_fold(0u16, |code, &digit| {
            digit
                .is_ascii_digit()
                .then(|| code * 10 + u16::from(digit - b'0'))
        });
        let status = code.and_then(StatusCode::new).ok_or(invalid)?;
        // RFC 9112 §4 requires a space after the status even without a reason phrase, but some servers leave it out.
        let reason_at = match input.get(12) {
            Some(b' ') => 13,
            _ => 12,
        };
        let reason_len = text_len::<0x20>(&input[reason_at..]);
        if reason_at == 12 && reason_len > 0 {
            return Err(invalid);
        }
        let end = reason_at + reason_len;
        let line_end = ENDS.at(&input[end..])?.ok_or(invalid)?;
        Ok(Self {
            version: match minor {
                b'0' => Version::Http10,
                _ => Version::Http11,
            },
            status,
            reason: reason_at..end,
            next: end + line_end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: RequestKind = RequestKind {
        is_head: false,
        is_connect: false,
        offers_upgrade: false,
    };

    fn read(
        input: &[u8],
        kind: RequestKind,
    ) -> Result<(ClientResponse, ResponseFraming), UpstreamError> {
        let mut head = ClientResponse::new();
        let framing = parse(input, &ClientSettings::default(), kind, &mut head)?;
        Ok((head, framing))
    }

    #[test]
    fn status_lines_may_lack_the_reason() {
        type Want = Option<(u16, &'static [u8])>;
        let cases: &[(&[u8], Want)] = &[
            (b"HTTP/1.1 200 OK\r\n\r\n", Some((200, b"OK"))),
            (b"HTTP/1.0 404 Not  Found \n\n", Some((404, b"Not  Found "))),
            (b"HTTP/1.1 200 \r\n\r\n", Some((200, b""))),
            (b"HTTP/1.1 200\r\n\r\n", Some((200, b""))),
            (b"HTTP/1.7 999 \xff\r\n\r\n", Some((999, b"\xff"))),
            (b"HTTP/1.1 099 x\r\n\r\n", None),
            (b"HTTP/1.1 20 x\r\n\r\n", None),
            (b"HTTP/1.1 2000\r\n\r\n", None),
            (b"HTTP/1.1 200x\r\n\r\n", None),
            (b"HTTP/1.1  200 OK\r\n\r\n", None),
            (b"HTTP/2.0 200 OK\r\n\r\n", None),
            (b"http/1.1 200 OK\r\n\r\n", None),
            (b"HTTP/1.10 200 OK\r\n\r\n", None),
            (b"HTTP/1.1 200 O\x07K\r\n\r\n", None),
            (b"HTTP/1.1 200 O\rK\r\n\r\n", None),
            (b"\r\nHTTP/1.1 200 OK\r\n\r\n", None),
        ];
        for (input, want) in cases {
            let got =
                read(input, GET).map(|(head, _)| (head.status.as_u16(), head.reason().to_vec()));
            let want = want
                .map(|(status, reason)| (status, reason.to_vec()))
                .ok_or(UpstreamError::StatusLineInvalid);
            assert_eq!(got, want, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn content_is_delimited_as_the_rfc_orders_it() {
        let head = RequestKind {
            is_head: true,
            ..GET
        };
        let connect = RequestKind {
            is_connect: true,
            ..GET
        };
        let upgrade = RequestKind {
            offers_upgrade: true,
            ..GET
        };
        type Want = Result<(Delimiter, Option<u64>, bool), UpstreamError>;
        let cases: &[(RequestKind, &[u8], Want)] = &[
            (
                GET,
                b"HTTP/1.1 200 OK\r\n\r\n",
                Ok((Delimiter::UntilClose, None, false)),
            ),
            (
                GET,
                b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(3), Some(3), true)),
            ),
            (
                GET,
                b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                Ok((Delimiter::Length(0), Some(0), true)),
            ),
            (
                GET,
                b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(3), Some(3), false)),
            ),
            (
                GET,
                b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(3), Some(3), true)),
            ),
            (
                GET,
                b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(3), Some(3), false)),
            ),
            (
                GET,
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                Ok((Delimiter::Chunked, None, true)),
            ),
            (
                GET,
                b"HTTP/1.1 304 x\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(0), Some(3), true)),
            ),
            (
                GET,
                b"HTTP/1.1 204 x\r\ntransfer-encoding: chunked\r\n\r\n",
                Ok((Delimiter::Length(0), None, true)),
            ),
            (
                GET,
                b"HTTP/1.1 100 x\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Interim, None, true)),
            ),
            (
                GET,
                b"HTTP/1.1 101 x\r\n\r\n",
                Err(UpstreamError::UnexpectedSwitch),
            ),
            (
                upgrade,
                b"HTTP/1.1 101 x\r\n\r\n",
                Ok((Delimiter::Tunnel, None, false)),
            ),
            (
                upgrade,
                b"HTTP/1.1 200 x\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(3), Some(3), true)),
            ),
            (
                head,
                b"HTTP/1.1 200 x\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(0), Some(3), true)),
            ),
            (
                head,
                b"HTTP/1.1 200 x\r\n\r\n",
                Ok((Delimiter::Length(0), None, true)),
            ),
            (
                GET,
                b"HTTP/1.0 200 x\r\ntransfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n",
                Ok((Delimiter::Chunked, None, false)),
            ),
            (
                connect,
                b"HTTP/1.1 200 x\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Tunnel, None, false)),
            ),
            (
                connect,
                b"HTTP/1.1 403 x\r\ncontent-length: 3\r\n\r\n",
                Ok((Delimiter::Length(3), Some(3), true)),
            ),
        ];
        for (kind, input, want) in cases {
            let got = read(input, *kind)
                .map(|(head, framing)| (framing.delimiter, head.length, framing.is_persistent));
            assert_eq!(got, *want, "{}", input.escape_ascii());
        }
    }
}
