//! Writing of heads, chunk framing and content, for both roles.

use h2o_http::{Field, Headers, Name, StatusCode, has_break};

/// Bytes reserved in the output for the status line, `Connection`, `Content-Length`, `Server` and the empty line.
pub(crate) const HEAD_ROOM: usize = 192;

/// Writes the status line, such as `HTTP/1.1 200 OK`, with its line end.
pub(crate) fn status_line(out: &mut Vec<u8>, status: StatusCode, reason: Option<&str>) {
    if let (StatusCode::OK, None) = (status, reason) {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&status.digits());
    out.push(b' ');
    text(out, reason.unwrap_or(status.reason()).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes all fields except those by which the engine itself frames the message.
#[inline]
pub(crate) fn fields(out: &mut Vec<u8>, headers: &Headers) {
    if let Some(wire) = headers.wire() {
        out.extend_from_slice(wire);
    } else {
        fields_singly(out, headers);
    }
}

fn fields_singly(out: &mut Vec<u8>, headers: &Headers) {
    for each in headers.iter() {
        match each.name {
            Name::Known(known) if known.frames_messages() => {}
            Name::Known(_) | Name::Other(_) => field(out, &each),
        }
    }
}

/// Writes one field; the name is spelt as the peer from which it was received spelt it, if that is known.
#[inline]
pub(crate) fn field(out: &mut Vec<u8>, field: &Field<'_>) {
    out.extend_from_slice(field.spelling.unwrap_or(field.name.as_str().as_bytes()));
    out.extend_from_slice(b": ");
    text(out, field.value);
    out.extend_from_slice(b"\r\n");
}

/// Writes the value of a field. Each line end or NUL in it is replaced by a space: it could smuggle fields or messages (RFC
/// 9110 §5.5).
#[inline]
pub(crate) fn text(out: &mut Vec<u8>, value: &[u8]) {
    let start = out.len();
    out.extend_from_slice(value);
    if has_break(value) {
        for byte in &mut out[start..] {
            if matches!(byte, b'\r' | b'\n' | 0) {
                *byte = b' ';
            }
        }
    }
}

/// Writes the line of `Content-Length`.
pub(crate) fn content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    decimal_line(out, length);
}

/// Writes a number in decimal and the line end.
#[inline]
pub(crate) fn decimal_line(out: &mut Vec<u8>, number: u64) {
    /// Numbers below this limit fit into one machine word together with the line end.
    const SHORT: u64 = 1_000_000;
    if number >= SHORT {
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        out.extend_from_slice(b"\r\n");
        return;
    }
    let mut word = u64::from(u16::from_le_bytes(*b"\r\n"));
    let (mut left, mut len) = (number, 2);
    loop {
        word = (word << 8) | (u64::from(b'0') + left % 10);
        left /= 10;
        len += 1;
        if left == 0 {
            break;
        }
    }
    // Always copying the eight bytes of the word and then truncating is cheaper than a copy of variable length.
    let end = out.len() + len;
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(end);
}

/// Writes the size line of a chunk: lower-case hexadecimal without padding.
pub(crate) fn chunk_size(out: &mut Vec<u8>, len: usize) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut line = [0; 18];
    let mut at = 16;
    line[at..].copy_from_slice(b"\r\n");
    let mut left = len;
    loop {
        at -= 1;
        line[at] = HEX[left & 15];
        left >>= 4;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&line[at..]);
}

/// Writes the last chunk, the trailers and the empty line that ends a chunked body.
pub(crate) fn last_chunk(out: &mut Vec<u8>, trailers: Option<&Headers>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        fields(out, trailers);
    }
    out.extend_from_slice(b"\r\n");
}

/// How the content of a message that the engine sends is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// No content follows: there is none, or none is allowed (HEAD, 1xx, 204, 304).
    None,
    /// The content has exactly this many bytes.
    Identity(u64),
    /// The content is sent in chunked coding.
    Chunked,
    /// The content lasts until the engine's caller closes the connection; also used for tunnels.
    UntilClose,
}

/// The writer of the content of one message, for both roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyWriter {
    /// No content is left, or none may be sent.
    Done,
    Identity {
        left: u64,
    },
    /// Chunked coding; `open` tells whether [`BodyWriter::begin_data`] has begun a chunk that is not ended yet.
    Chunked {
        open: bool,
    },
    UntilClose,
}

/// Whether the content that was sent is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum BodyOutcome {
    Complete,
    /// The content is shorter than announced: closing the connection tells the peer so.
    Short,
}

impl BodyWriter {
    pub(crate) const fn new(mode: BodyMode) -> Self {
        match mode {
            BodyMode::None | BodyMode::Identity(0) => Self::Done,
            BodyMode::Identity(left) => Self::Identity { left },
            BodyMode::Chunked => Self::Chunked { open: false },
            BodyMode::UntilClose => Self::UntilClose,
        }
    }

    /// Writes the framing before `len` bytes of content. Returns how many of these bytes may be sent.
    pub(crate) fn begin_data(&mut self, len: usize, out: &mut Vec<u8>) -> usize {
        match self {
            Self::Done => 0,
            Self::UntilClose => len,
            Self::Identity { left } => {
                let len = usize::try_from(*left).map_or(len, |left| left.min(len));
                *left -= len as u64;
                len
            }
            Self::Chunked { open } => {
                debug_assert!(!*open, "the chunk before has ended");
                // No chunk is begun for empty content: an empty chunk would end the body.
                *open = len > 0;
                if *open {
                    chunk_size(out, len);
                }
                len
            }
        }
    }

    /// Writes the framing after the content that the last call of [`BodyWriter::begin_data`] announced.
    pub(crate) fn end_data(&mut self, out: &mut Vec<u8>) {
        if let Self::Chunked { open } = self
            && *open
        {
            out.extend_from_slice(b"\r\n");
            *open = false;
        }
    }

    pub(crate) fn send_data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let len = self.begin_data(data.len(), out);
        out.extend_from_slice(&data[..len]);
        self.end_data(out);
    }

    pub(crate) fn finish(&mut self, trailers: Option<&Headers>, out: &mut Vec<u8>) -> BodyOutcome {
        match std::mem::replace(self, Self::Done) {
            Self::Done | Self::UntilClose | Self::Identity { left: 0 } => BodyOutcome::Complete,
            Self::Identity { .. } | Self::Chunked { open: true } => BodyOutcome::Short,
            Self::Chunked { open: false } => {
                last_chunk(out, trailers);
                BodyOutcome::Complete
            }
        }
    }

    /// Ends the content so that the peer notices that it is incomplete: chunked content by an invalid chunk; other content
    /// is cut off when the caller closes the connection.
    pub(crate) fn abort(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(self, Self::Done) {
            Self::Chunked { .. } => out.extend_from_slice(b"\r\n1\r\n"),
            Self::Done | Self::Identity { .. } | Self::UntilClose => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use h2o_http::Known;

    use super::*;

    #[test]
    fn chunk_sizes_are_lower_case_hex() {
        let cases: &[(usize, &[u8])] = &[
            (1, b"1\r\n"),
            (15, b"f\r\n"),
            (16, b"10\r\n"),
            (0xbeef, b"beef\r\n"),
            (usize::MAX, b"ffffffffffffffff\r\n"),
        ];
        for (len, want) in cases {
            let mut out = Vec::new();
            chunk_size(&mut out, *len);
            assert_eq!(out, *want);
        }
    }

    #[test]
    fn numbers_are_decimal() {
        let powers = (0..19).map(|power| 10u64.pow(power));
        let numbers = powers.flat_map(|power| [power - 1, power, power + 1, 7 * power]);
        for number in numbers.chain([0, 1024, 120_034, u64::MAX]) {
            let mut out = b"kept: ".to_vec();
            decimal_line(&mut out, number);
            assert_eq!(out, format!("kept: {number}\r\n").as_bytes());
        }
    }

    #[test]
    fn values_cannot_split_a_message() {
        let mut headers = Headers::new();
        headers.push(Known::Location, b"/a\r\nset-cookie: b=c\0");
        headers.push(Known::ContentLength, b"5");
        headers.push(Known::TransferEncoding, b"chunked");
        headers.push(Known::Connection, b"close");
        let mut out = b"kept\r\n".to_vec();
        fields(&mut out, &headers);
        assert_eq!(out, b"kept\r\nlocation: /a  set-cookie: b=c \r\n");
        let mut out = Vec::new();
        status_line(&mut out, StatusCode::FOUND, Some("a\r\nb"));
        assert_eq!(out, b"HTTP/1.1 302 a  b\r\n");
    }

    #[test]
    fn status_lines_have_a_reason() {
        let cases = [
            (200, None, "HTTP/1.1 200 OK\r\n"),
            (200, Some("Fine"), "HTTP/1.1 200 Fine\r\n"),
            (404, None, "HTTP/1.1 404 Not Found\r\n"),
            (799, None, "HTTP/1.1 799 OK\r\n"),
            (502, Some(""), "HTTP/1.1 502 \r\n"),
        ];
        for (code, reason, want) in cases {
            let mut out = Vec::new();
            status_line(&mut out, StatusCode::new(code).unwrap(), reason);
            assert_eq!(out, want.as_bytes());
        }
    }

    /// The calls that a test makes on the writer of a body, in each of the writer's states.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Send(&'static [u8]),
        Finish,
        Abort,
    }

    #[test]
    fn every_body_meets_every_event() {
        use Event::{Abort, Finish, Send};
        const IDENTITY: BodyMode = BodyMode::Identity(3);
        type Case = (
            BodyMode,
            &'static [Event],
            &'static [u8],
            Option<BodyOutcome>,
        );
        let cases: &[Case] = &[
            (
                BodyMode::None,
                &[Send(b"abc"), Finish],
                b"",
                Some(BodyOutcome::Complete),
            ),
            (BodyMode::None, &[Abort], b"", None),
            (
                BodyMode::Identity(0),
                &[Send(b"abc"), Finish],
                b"",
                Some(BodyOutcome::Complete),
            ),
            (
                IDENTITY,
                &[Send(b""), Send(b"abc"), Finish],
                b"abc",
                Some(BodyOutcome::Complete),
            ),
            (
                IDENTITY,
                &[Send(b"ab"), Send(b"cde"), Finish],
                b"abc",
                Some(BodyOutcome::Complete),
            ),
            (
                IDENTITY,
                &[Send(b"ab"), Finish],
                b"ab",
                Some(BodyOutcome::Short),
            ),
            (IDENTITY, &[Finish], b"", Some(BodyOutcome::Short)),
            (IDENTITY, &[Send(b"ab"), Abort], b"ab", None),
            (
                IDENTITY,
                &[Send(b"abc"), Finish, Send(b"d"), Finish],
                b"abc",
                Some(BodyOutcome::Complete),
            ),
            (
                BodyMode::Chunked,
                &[Finish],
                b"0\r\n\r\n",
                Some(BodyOutcome::Complete),
            ),
            (
                BodyMode::Chunked,
                &[Send(b""), Finish],
                b"0\r\n\r\n",
                Some(BodyOutcome::Complete),
            ),
            (
                BodyMode::Chunked,
                &[Send(b"abc"), Finish],
                b"3\r\nabc\r\n0\r\n\r\n",
                Some(BodyOutcome::Complete),
            ),
            (
                BodyMode::Chunked,
                &[Send(b"abc"), Abort],
                b"3\r\nabc\r\n\r\n1\r\n",
                None,
            ),
            (
                BodyMode::Chunked,
                &[Abort, Send(b"a"), Finish],
                b"\r\n1\r\n",
                Some(BodyOutcome::Complete),
            ),
            (
                BodyMode::UntilClose,
                &[Send(b"abc"), Finish],
                b"abc",
                Some(BodyOutcome::Complete),
            ),
            (BodyMode::UntilClose, &[Send(b"abc"), Abort], b"abc", None),
        ];
        for (mode, events, want, ended) in cases {
            let mut out = Vec::new();
            let mut body = BodyWriter::new(*mode);
            let mut finished = None;
            for event in *events {
                match event {
                    Send(data) => body.send_data(data, &mut out),
                    Finish => finished = Some(body.finish(None, &mut out)),
                    Abort => body.abort(&mut out),
                }
            }
            assert_eq!(out, *want, "{mode:?} {events:?}");
            assert_eq!(finished, *ended, "{mode:?} {events:?}");
        }
    }

    #[test]
    fn trailers_follow_the_last_chunk() {
        let mut trailers = Headers::new();
        trailers.push(Known::ServerTiming, b"total;dur=1");
        let mut out = Vec::new();
        let finished = BodyWriter::new(BodyMode::Chunked).finish(Some(&trailers), &mut out);
        assert_eq!(finished, BodyOutcome::Complete);
        assert_eq!(out, b"0\r\nserver-timing: total;dur=1\r\n\r\n");
    }

    #[test]
    fn a_chunk_left_open_is_no_complete_body() {
        let mut out = Vec::new();
        let mut body = BodyWriter::new(BodyMode::Chunked);
        assert_eq!(body.begin_data(5, &mut out), 5);
        assert_eq!(body.finish(None, &mut out), BodyOutcome::Short);
        assert_eq!(out, b"5\r\n");
    }
}
