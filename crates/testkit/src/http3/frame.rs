//! HTTP/3 frames (RFC 9114 §7).

/// HTTP/3 frame types.
pub mod kind {
    #![allow(missing_docs, reason = "the constants are the registered names")]
    pub const DATA: u64 = 0x00;
    pub const HEADERS: u64 = 0x01;
    pub const CANCEL_PUSH: u64 = 0x03;
    pub const SETTINGS: u64 = 0x04;
    pub const PUSH_PROMISE: u64 = 0x05;
    pub const GOAWAY: u64 = 0x07;
    pub const MAX_PUSH_ID: u64 = 0x0d;
    pub const PRIORITY_UPDATE: u64 = 0xf0700;
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;
}

/// Error codes of HTTP/3 by name (RFC 9114 §8.1, RFC 9204 §6, RFC 9297 §5.2).
pub mod code {
    /// The name of an error code.
    #[must_use]
    pub fn name(code: u64) -> String {
        let name = match code {
            0x33 => "H3_DATAGRAM_ERROR",
            0x100 => "H3_NO_ERROR",
            0x101 => "H3_GENERAL_PROTOCOL_ERROR",
            0x102 => "H3_INTERNAL_ERROR",
            0x103 => "H3_STREAM_CREATION_ERROR",
            0x104 => "H3_CLOSED_CRITICAL_STREAM",
            0x105 => "H3_FRAME_UNEXPECTED",
            0x106 => "H3_FRAME_ERROR",
            0x107 => "H3_EXCESSIVE_LOAD",
            0x108 => "H3_ID_ERROR",
            0x109 => "H3_SETTINGS_ERROR",
            0x10a => "H3_MISSING_SETTINGS",
            0x10b => "H3_REQUEST_REJECTED",
            0x10c => "H3_REQUEST_CANCELLED",
            0x10d => "H3_REQUEST_INCOMPLETE",
            0x10e => "H3_MESSAGE_ERROR",
            0x10f => "H3_CONNECT_ERROR",
            0x110 => "H3_VERSION_FALLBACK",
            0x200 => "QPACK_DECOMPRESSION_FAILED",
            0x201 => "QPACK_ENCODER_STREAM_ERROR",
            0x202 => "QPACK_DECODER_STREAM_ERROR",
            other => return format!("{other:#x}"),
        };
        name.to_owned()
    }
}

/// Identifiers of HTTP/3 settings.
pub mod setting {
    #![allow(missing_docs, reason = "the constants are the registered names")]
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
    pub const H3_DATAGRAM: u64 = 0x33;
}

/// Encodes a variable-length integer (RFC 9000 §16).
///
/// # Panics
/// If `value` has more than 62 bits.
#[must_use]
pub fn varint(value: u64) -> Vec<u8> {
    let (bits, len) = [(6, 1), (14, 2), (30, 4), (62, 8)]
        .into_iter()
        .find(|(bits, _)| value < 1 << bits)
        .expect("the number has at most 62 bits");
    let tag = u64::from(len == 2) + 2 * u64::from(len == 4) + 3 * u64::from(len == 8);
    let tagged = value | tag << bits;
    tagged.to_be_bytes()[8 - len..].to_vec()
}

/// Parses the variable-length integer at the start of `bytes`. Returns the integer and the remaining bytes.
fn parse_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let len = match bytes.first()? >> 6 {
        0 => 1,
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let (integer, rest) = bytes.split_at_checked(len)?;
    let mut value = u64::from(integer[0] & 0x3f);
    for byte in &integer[1..] {
        value = value * 256 + u64::from(*byte);
    }
    Some((value, rest))
}

/// An HTTP/3 frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The type of the frame.
    pub kind: u64,
    /// The payload of the frame.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Makes a frame of any type.
    #[must_use]
    pub fn new(kind: u64, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            payload: payload.into(),
        }
    }

    /// Makes a HEADERS frame with a field section.
    #[must_use]
    pub fn headers(section: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::HEADERS, section)
    }

    /// Makes a DATA frame.
    #[must_use]
    pub fn data(content: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::DATA, content)
    }

    /// Makes a SETTINGS frame.
    #[must_use]
    pub fn settings(values: &[(u64, u64)]) -> Self {
        let values = values.iter();
        let payload: Vec<u8> = values
            .flat_map(|&(id, value)| [varint(id), varint(value)].concat())
            .collect();
        Self::new(kind::SETTINGS, payload)
    }

    /// Makes a frame whose payload is an identifier: GOAWAY, MAX_PUSH_ID or CANCEL_PUSH.
    #[must_use]
    pub fn with_id(kind: u64, id: u64) -> Self {
        Self::new(kind, varint(id))
    }

    /// Makes a PRIORITY_UPDATE frame for a request.
    #[must_use]
    pub fn priority_update(stream: u64, value: &str) -> Self {
        let mut payload = varint(stream);
        payload.extend_from_slice(value.as_bytes());
        Self::new(kind::PRIORITY_UPDATE, payload)
    }

    /// Encodes the frame.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = varint(self.kind);
        bytes.extend(varint(self.payload.len() as u64));
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Parses the frame at the start of `bytes`. Returns the frame and its length in bytes with the header, or `None` if it is
    /// incomplete.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (kind, rest) = parse_varint(bytes)?;
        let (len, rest) = parse_varint(rest)?;
        let payload = rest.get(..usize::try_from(len).ok()?)?;
        let header = bytes.len() - rest.len();
        Some((Self::new(kind, payload), header + payload.len()))
    }

    /// Parses all frames in `bytes`.
    ///
    /// # Panics
    /// If the last frame is incomplete.
    #[must_use]
    pub fn parse_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (frame, len) = Self::parse(bytes).expect("the bytes end with a complete frame");
            frames.push(frame);
            bytes = &bytes[len..];
        }
        frames
    }

    /// The identifiers and values of a SETTINGS frame.
    ///
    /// # Panics
    /// If the value of an identifier is missing.
    #[must_use]
    pub fn values(&self) -> Vec<(u64, u64)> {
        let mut rest = &self.payload[..];
        let mut values = Vec::new();
        while !rest.is_empty() {
            let (id, after) = parse_varint(rest).expect("the bytes begin with an identifier");
            let (value, after) =
                parse_varint(after).expect("the identifier is followed by a value");
            values.push((id, value));
            rest = after;
        }
        values
    }

    /// The identifier at the start of the frame's payload.
    ///
    /// # Panics
    /// If the payload has no identifier.
    #[must_use]
    pub fn id(&self) -> u64 {
        parse_varint(&self.payload)
            .expect("the bytes begin with an identifier")
            .0
    }
}
