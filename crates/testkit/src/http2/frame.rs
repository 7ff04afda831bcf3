//! HTTP/2 frames (RFC 9113 §4.1), valid or not.

use std::fmt;
use std::io::{self, Read};

/// HTTP/2 frame types (RFC 9113 §6, RFC 9218 §7.1).
pub mod kind {
    #![expect(missing_docs, reason = "the constants have the names of the RFC")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags of HTTP/2 frames (RFC 9113 §6).
pub mod flag {
    #![expect(missing_docs, reason = "the constants have the names of the RFC")]
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
    /// Flags of the HEADERS frame of a whole request without a body.
    pub const WHOLE: u8 = END_STREAM | END_HEADERS;
}

/// HTTP/2 error codes (RFC 9113 §7).
pub mod code {
    #![expect(missing_docs, reason = "the constants have the names of the RFC")]
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const INTERNAL_ERROR: u32 = 2;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const STREAM_CLOSED: u32 = 5;
    pub const FRAME_SIZE_ERROR: u32 = 6;
    pub const REFUSED_STREAM: u32 = 7;
    pub const CANCEL: u32 = 8;
    pub const COMPRESSION_ERROR: u32 = 9;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// Identifiers of HTTP/2 settings (RFC 9113 §6.5.2, RFC 8441 §3, RFC 9218 §2.1).
pub mod setting {
    #![expect(missing_docs, reason = "the constants have the names of the RFC")]
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// An HTTP/2 frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// The type of the frame.
    pub kind: u8,
    /// The flags of the frame.
    pub flags: u8,
    /// The stream identifier of the frame.
    pub stream: u32,
    /// The bytes after the frame header.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Makes a frame of any type.
    #[must_use]
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.into(),
        }
    }

    /// Makes a HEADERS frame with a whole field section that ends the stream.
    #[must_use]
    pub fn request(stream: u32, section: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::HEADERS, flag::WHOLE, stream, section)
    }

    /// Makes a HEADERS frame with a whole field section; a body or trailers follow it.
    #[must_use]
    pub fn request_with_content(stream: u32, section: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::HEADERS, flag::END_HEADERS, stream, section)
    }

    /// Makes the HEADERS frame of a whole request with a priority (RFC 7540 §6.2); the weight is 1 to 256.
    #[must_use]
    pub fn request_after(
        stream: u32,
        exclusive: bool,
        parent: u32,
        weight: u16,
        section: &[u8],
    ) -> Self {
        let mut payload = priority(exclusive, parent, weight);
        payload.extend_from_slice(section);
        Self::new(kind::HEADERS, flag::WHOLE | flag::PRIORITY, stream, payload)
    }

    /// Makes a CONTINUATION frame without END_HEADERS.
    #[must_use]
    pub fn continuation(stream: u32, fragment: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::CONTINUATION, 0, stream, fragment)
    }

    /// Makes a DATA frame; `flags` is 0 or END_STREAM.
    #[must_use]
    pub fn data(stream: u32, flags: u8, content: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::DATA, flags, stream, content)
    }

    /// Makes a PRIORITY frame (RFC 7540 §6.3); the weight is 1 to 256.
    #[must_use]
    pub fn priority(stream: u32, exclusive: bool, parent: u32, weight: u16) -> Self {
        let payload = priority(exclusive, parent, weight);
        Self::new(kind::PRIORITY, 0, stream, payload)
    }

    /// Makes a PRIORITY_UPDATE frame (RFC 9218 §7.1) for a stream.
    #[must_use]
    pub fn priority_update(stream: u32, value: &str) -> Self {
        let mut payload = stream.to_be_bytes().to_vec();
        payload.extend_from_slice(value.as_bytes());
        Self::new(kind::PRIORITY_UPDATE, 0, 0, payload)
    }

    /// Makes an RST_STREAM frame.
    #[must_use]
    pub fn rst_stream(stream: u32, code: u32) -> Self {
        Self::new(kind::RST_STREAM, 0, stream, code.to_be_bytes())
    }

    /// Makes a SETTINGS frame.
    #[must_use]
    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        Self::new(kind::SETTINGS, 0, 0, payload)
    }

    /// Makes a PING frame.
    #[must_use]
    pub fn ping(content: [u8; 8]) -> Self {
        Self::new(kind::PING, 0, 0, content)
    }

    /// Makes a GOAWAY frame.
    #[must_use]
    pub fn goaway(last: u32, code: u32, text: &str) -> Self {
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend_from_slice(&code.to_be_bytes());
        payload.extend_from_slice(text.as_bytes());
        Self::new(kind::GOAWAY, 0, 0, payload)
    }

    /// Makes a WINDOW_UPDATE frame.
    #[must_use]
    pub fn window_update(stream: u32, increment: u32) -> Self {
        Self::new(kind::WINDOW_UPDATE, 0, stream, increment.to_be_bytes())
    }

    /// Adds padding of this length in bytes to the frame (RFC 9113 §6.1).
    #[must_use]
    pub fn padded(mut self, padding: u8) -> Self {
        self.flags |= flag::PADDED;
        self.payload.insert(0, padding);
        self.payload
            .extend(std::iter::repeat_n(0, usize::from(padding)));
        self
    }

    /// Replaces the flags of the frame.
    #[must_use]
    pub fn with_flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    /// Whether the frame has all of these flags.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Encodes the frame.
    ///
    /// # Panics
    /// If the payload is too long for a frame.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let length =
            u32::try_from(self.payload.len()).expect("the payload is shorter than 2^24 bytes");
        let [0, length @ ..] = length.to_be_bytes() else {
            panic!("the payload is shorter than 2^24 bytes");
        };
        let mut bytes = length.to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// Parses the first frame in `bytes`. Returns the frame and its length in bytes, or `None` if it is incomplete.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (head, rest) = bytes.split_first_chunk::<9>()?;
        let [l1, l2, l3, kind, flags, s1, s2, s3, s4] = *head;
        let length = usize::try_from(u32::from_be_bytes([0, l1, l2, l3])).ok()?;
        let payload = rest.get(..length)?;
        let stream = u32::from_be_bytes([s1, s2, s3, s4]);
        Some((Self::new(kind, flags, stream, payload), 9 + length))
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// If the reader ends before the end of the frame.
    pub fn read(reader: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        reader.read_exact(&mut head)?;
        let [l1, l2, l3, kind, flags, s1, s2, s3, s4] = head;
        let len = u32::from_be_bytes([0, l1, l2, l3]);
        let mut payload = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        reader.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes([s1, s2, s3, s4]);
        Ok(Self::new(kind, flags, stream, payload))
    }

    /// Parses the complete frames in `bytes`; an incomplete frame at the end is ignored.
    #[must_use]
    pub fn parse_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut frames = Vec::new();
        while let Some((frame, len)) = Self::parse(bytes) {
            frames.push(frame);
            bytes = &bytes[len..];
        }
        frames
    }

    /// Reads the 32-bit number at this offset of the payload.
    ///
    /// # Panics
    /// If the payload is shorter.
    #[must_use]
    pub fn number_at(&self, at: usize) -> u32 {
        let bytes = self.payload.get(at..).and_then(<[u8]>::first_chunk);
        u32::from_be_bytes(
            *bytes.unwrap_or_else(|| panic!("the payload of this frame is too short: {self:?}")),
        )
    }
}

fn priority(exclusive: bool, parent: u32, weight: u16) -> Vec<u8> {
    let parent = if exclusive { parent | 1 << 31 } else { parent };
    let weight = weight
        .checked_sub(1)
        .and_then(|less| u8::try_from(less).ok());
    let mut payload = parent.to_be_bytes().to_vec();
    payload.push(weight.expect("the weight is 1 to 256"));
    payload
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            kind::DATA => "DATA",
            kind::HEADERS => "HEADERS",
            kind::PRIORITY => "PRIORITY",
            kind::RST_STREAM => "RST_STREAM",
            kind::SETTINGS => "SETTINGS",
            kind::PUSH_PROMISE => "PUSH_PROMISE",
            kind::PING => "PING",
            kind::GOAWAY => "GOAWAY",
            kind::WINDOW_UPDATE => "WINDOW_UPDATE",
            kind::CONTINUATION => "CONTINUATION",
            kind::PRIORITY_UPDATE => "PRIORITY_UPDATE",
            _ => "unknown",
        };
        let shown = &self.payload[..self.payload.len().min(40)];
        write!(
            f,
            "{name}({:#x}) flags {:#x} stream {} length {}: {}",
            self.kind,
            self.flags,
            self.stream,
            self.payload.len(),
            shown.escape_ascii()
        )
    }
}
