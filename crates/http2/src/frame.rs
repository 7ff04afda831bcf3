//! Frames (RFC 9113 §4 and §6): conversion between bytes and typed values, without any state of a connection.

use crate::error::{ErrorCode, PeerError};
use crate::scheduler::Priority;

/// Length of a frame header in bytes.
pub const HEADER_LEN: usize = 9;
/// The largest payload in bytes that every endpoint accepts, and the largest that this one accepts (RFC 9113 §4.2).
pub const MAX_FRAME_SIZE: usize = 16_384;
/// The first bytes that a client sends on a connection (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream identifier: 31 bits (RFC 9113 §5.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u32);

impl StreamId {
    /// Stream 0, which stands for the connection as a whole.
    pub const CONNECTION: Self = Self(0);
    /// The largest stream identifier, 2^31-1.
    pub const MAX: Self = Self(0x7fff_ffff);

    /// The stream identifier in the low 31 bits of `value`; the highest bit is reserved and ignored.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x7fff_ffff)
    }

    /// The identifier as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether the identifier is odd: clients open streams with such identifiers.
    #[must_use]
    pub const fn is_client(self) -> bool {
        self.0 % 2 == 1
    }
}

/// A frame type (RFC 9113 §6, and extensions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameType(pub u8);

#[allow(missing_docs, reason = "the constants are the registered names")]
impl FrameType {
    pub const DATA: Self = Self(0);
    pub const HEADERS: Self = Self(1);
    pub const PRIORITY: Self = Self(2);
    pub const RST_STREAM: Self = Self(3);
    pub const SETTINGS: Self = Self(4);
    pub const PUSH_PROMISE: Self = Self(5);
    pub const PING: Self = Self(6);
    pub const GOAWAY: Self = Self(7);
    pub const WINDOW_UPDATE: Self = Self(8);
    pub const CONTINUATION: Self = Self(9);
    /// The frame ORIGIN (RFC 8336).
    pub const ORIGIN: Self = Self(12);
    /// The frame PRIORITY_UPDATE (RFC 9218 §7.1).
    pub const PRIORITY_UPDATE: Self = Self(16);

    pub(crate) const fn invalid(self) -> &'static str {
        match self {
            Self::DATA => "invalid DATA frame",
            Self::HEADERS => "invalid HEADERS frame",
            Self::PRIORITY => "invalid PRIORITY frame",
            Self::RST_STREAM => "invalid RST_STREAM frame",
            Self::SETTINGS => "invalid SETTINGS frame",
            Self::PING => "invalid PING frame",
            Self::GOAWAY => "invalid GOAWAY frame",
            Self::WINDOW_UPDATE => "invalid WINDOW_UPDATE frame",
            Self::PRIORITY_UPDATE => "invalid PRIORITY_UPDATE frame",
            _ => "",
        }
    }

    pub(crate) const fn invalid_stream_id(self) -> &'static str {
        match self {
            Self::DATA => "invalid stream id in DATA frame",
            Self::HEADERS => "invalid stream id in HEADERS frame",
            Self::PRIORITY => "invalid stream id in PRIORITY frame",
            Self::RST_STREAM => "invalid stream id in RST_STREAM frame",
            Self::SETTINGS => "invalid stream id in SETTINGS frame",
            Self::GOAWAY => "invalid stream id in GOAWAY frame",
            Self::WINDOW_UPDATE => "invalid stream id in WINDOW_UPDATE frame",
            Self::CONTINUATION => "invalid stream id in CONTINUATION frame",
            Self::PRIORITY_UPDATE => "invalid stream id in PRIORITY_UPDATE frame",
            _ => "",
        }
    }
}

/// Flags of a frame.
pub mod flags {
    /// END_STREAM on DATA and HEADERS: this is the sender's last frame on the stream.
    pub const END_STREAM: u8 = 0x1;
    /// ACK on SETTINGS and PING: the frame is an acknowledgement.
    pub const ACK: u8 = 0x1;
    /// END_HEADERS on HEADERS, PUSH_PROMISE and CONTINUATION: the field block ends with this frame.
    pub const END_HEADERS: u8 = 0x4;
    /// PADDED on DATA and HEADERS: the payload has padding.
    pub const PADDED: u8 = 0x8;
    /// PRIORITY on HEADERS: the payload begins with the stream's dependency and weight.
    pub const PRIORITY: u8 = 0x20;
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub len: usize,
    /// The type of the frame.
    pub kind: FrameType,
    /// The flags of the frame.
    pub flags: u8,
    /// The stream of the frame; 0 for frames that concern the connection.
    pub stream: StreamId,
}

impl FrameHeader {
    /// Parses the frame header at the start of `input`. Returns `None` if it is not complete.
    #[inline]
    #[must_use]
    pub fn parse(input: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, d, e, f, g] = *input.first_chunk::<HEADER_LEN>()?;
        Some(Self {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind: FrameType(kind),
            flags,
            stream: StreamId::new(u32::from_be_bytes([d, e, f, g])),
        })
    }

    /// Whether the frame has the flag.
    #[inline]
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The bytes of a frame header. `len` must be less than 2^24.
#[inline]
#[must_use]
pub const fn header(len: usize, kind: FrameType, flags: u8, stream: StreamId) -> [u8; HEADER_LEN] {
    debug_assert!(
        len < 1 << 24,
        "the payload of a frame is shorter than 2^24 bytes"
    );
    #[allow(clippy::cast_possible_truncation, reason = "the length is below 2^24")]
    let [_, a, b, c] = (len as u32).to_be_bytes();
    let [d, e, f, g] = stream.get().to_be_bytes();
    [a, b, c, kind.0, flags, d, e, f, g]
}

/// Overwrites the length in the frame header at the position `at`.
pub(crate) fn patch_len(out: &mut [u8], at: usize, len: usize) {
    let bytes = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    out[at..at + 3].copy_from_slice(&bytes[1..]);
}

/// Writes RST_STREAM (RFC 9113 §6.4).
pub fn rst_stream(out: &mut Vec<u8>, stream: StreamId, code: ErrorCode) {
    out.extend_from_slice(&header(4, FrameType::RST_STREAM, 0, stream));
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Writes WINDOW_UPDATE (RFC 9113 §6.9); `increment` is not 0.
pub fn window_update(out: &mut Vec<u8>, stream: StreamId, increment: u32) {
    debug_assert!(
        increment > 0 && increment < 1 << 31,
        "the increment of WINDOW_UPDATE is 1 to 2^31-1"
    );
    out.extend_from_slice(&header(4, FrameType::WINDOW_UPDATE, 0, stream));
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Writes PING (RFC 9113 §6.7).
pub fn ping(out: &mut Vec<u8>, flags: u8, data: [u8; 8]) {
    out.extend_from_slice(&header(8, FrameType::PING, flags, StreamId::CONNECTION));
    out.extend_from_slice(&data);
}

/// Writes SETTINGS (RFC 9113 §6.5).
pub fn settings(out: &mut Vec<u8>, values: &[(u16, u32)]) {
    let len = 6 * values.len();
    out.extend_from_slice(&header(len, FrameType::SETTINGS, 0, StreamId::CONNECTION));
    for (id, value) in values {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes SETTINGS with ACK, the acknowledgement of the peer's SETTINGS.
pub fn settings_ack(out: &mut Vec<u8>) {
    out.extend_from_slice(&header(
        0,
        FrameType::SETTINGS,
        flags::ACK,
        StreamId::CONNECTION,
    ));
}

/// Writes GOAWAY (RFC 9113 §6.8).
pub fn goaway(out: &mut Vec<u8>, last: StreamId, code: ErrorCode, text: &str) {
    let len = 8 + text.len();
    out.extend_from_slice(&header(len, FrameType::GOAWAY, 0, StreamId::CONNECTION));
    out.extend_from_slice(&last.get().to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Writes an ORIGIN frame (RFC 8336 §2) for `origins`, each at most 65,535 bytes.
pub fn origin(out: &mut Vec<u8>, origins: &[Box<str>]) {
    let at = out.len();
    out.extend_from_slice(&header(0, FrameType::ORIGIN, 0, StreamId::CONNECTION));
    for origin in origins {
        // An origin that does not fit its length field or the frame is left out.
        let Ok(len) = u16::try_from(origin.len()) else {
            continue;
        };
        if out.len() - at - HEADER_LEN + 2 + origin.len() > MAX_FRAME_SIZE {
            continue;
        }
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(origin.as_bytes());
    }
    let len = out.len() - at - HEADER_LEN;
    patch_len(out, at, len);
}

/// The payload of DATA or HEADERS without its padding (RFC 9113 §6.1).
///
/// # Errors
/// Returns [`PeerError::Padding`] if the padding is longer than the payload.
pub fn without_padding<'a>(header: &FrameHeader, payload: &'a [u8]) -> Result<&'a [u8], PeerError> {
    if !header.has(flags::PADDED) {
        return Ok(payload);
    }
    let error = PeerError::Padding(header.kind);
    let (&padding, rest) = payload.split_first().ok_or(error)?;
    let len = rest.len().checked_sub(usize::from(padding)).ok_or(error)?;
    Ok(&rest[..len])
}

/// Parses the priority at the start of a payload (RFC 7540 §6.3). Returns it with the rest of the payload.
#[must_use]
pub fn parse_priority(payload: &[u8]) -> Option<(Priority, &[u8])> {
    let (&[a, b, c, d, weight], rest) = payload.split_first_chunk::<5>()?;
    let word = u32::from_be_bytes([a, b, c, d]);
    let priority = Priority {
        exclusive: word >> 31 != 0,
        dependency: StreamId::new(word).get(),
        weight: u16::from(weight) + 1,
    };
    Some((priority, rest))
}
