//! Writing heads and chunk framing. Shared by both roles.

use h2o_http::{Field, Headers, Known, Name, StatusCode};

/// Room for status line, `Connection`, `Content-Length`, `Server` and the empty line.
pub(crate) const HEAD_ROOM: usize = 192;

/// Writes `HTTP/1.1 200 OK` and the line end.
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

/// Writes the fields, except those by which the engine itself frames the message.
pub(crate) fn fields(out: &mut Vec<u8>, headers: &Headers) {
    for each in headers.iter() {
        match each.name {
            Name::Known(
                Known::Connection
                | Known::ContentLength
                | Known::TransferEncoding
                | Known::KeepAlive,
            ) => {}
            Name::Known(_) | Name::Other(_) => field(out, &each),
        }
    }
}

/// Writes one field, its name as the peer spelt it where that is known.
#[inline]
pub(crate) fn field(out: &mut Vec<u8>, field: &Field<'_>) {
    out.extend_from_slice(field.spelling.unwrap_or(field.name.as_str().as_bytes()));
    out.extend_from_slice(b": ");
    text(out, field.value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a value. A line end or NUL in it would let whoever chose the value write fields or whole
/// messages of his own, so it becomes a space (RFC 9110 §5.5).
#[inline]
pub(crate) fn text(out: &mut Vec<u8>, value: &[u8]) {
    let start = out.len();
    out.extend_from_slice(value);
    if memchr::memchr3(b'\r', b'\n', 0, value).is_some() {
        for octet in &mut out[start..] {
            if matches!(octet, b'\r' | b'\n' | 0) {
                *octet = b' ';
            }
        }
    }
}

/// Writes `Content-Length: ` and the number.
pub(crate) fn content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
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

/// Ends a chunked body.
pub(crate) fn last_chunk(out: &mut Vec<u8>, trailers: Option<&Headers>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        fields(out, trailers);
    }
    out.extend_from_slice(b"\r\n");
}

/// How the content of a message we send is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// No content follows: none there is, or none is allowed (HEAD, 1xx, 204, 304).
    None,
    /// Exactly that many octets.
    Identity(u64),
    /// Chunks.
    Chunked,
    /// Octets until we close; also a tunnel.
    UntilClose,
}

/// The content of a message we send. Shared by both roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyWriter {
    /// No content (left), or none may be sent.
    Done,
    Identity {
        left: u64,
    },
    /// `open` within a chunk of [`BodyWriter::begin_data`].
    Chunked {
        open: bool,
    },
    UntilClose,
}

/// How the content ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Finished {
    Complete,
    /// Less than announced: only closing tells the peer.
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

    /// Writes what comes before `len` octets of content; gives how many of them may be sent.
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
                debug_assert!(!*open, "a chunk within a chunk");
                // An empty chunk would end the body.
                *open = len > 0;
                if *open {
                    chunk_size(out, len);
                }
                len
            }
        }
    }

    /// Writes what comes after the content announced last.
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

    pub(crate) fn finish(&mut self, trailers: Option<&Headers>, out: &mut Vec<u8>) -> Finished {
        match std::mem::replace(self, Self::Done) {
            Self::Done | Self::UntilClose | Self::Identity { left: 0 } => Finished::Complete,
            Self::Identity { .. } | Self::Chunked { open: true } => Finished::Short,
            Self::Chunked { open: false } => {
                last_chunk(out, trailers);
                Finished::Complete
            }
        }
    }

    /// Ends the content so that the peer can tell it is not complete: chunks by one that is no chunk, the
    /// others by closing.
    pub(crate) fn abort(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(self, Self::Done) {
            Self::Chunked { .. } => out.extend_from_slice(b"\r\n1\r\n"),
            Self::Done | Self::Identity { .. } | Self::UntilClose => {}
        }
    }
}
