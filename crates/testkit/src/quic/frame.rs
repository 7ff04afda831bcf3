//! Encodes QUIC frames (RFC 9000 §19).

use crate::http3::varint;

/// Encodes a frame that consists of its type and of numbers.
fn numbers(kind: u64, fields: &[u64]) -> Vec<u8> {
    let mut frame = varint(kind);
    frame.extend(fields.iter().flat_map(|field| varint(*field)));
    frame
}

/// Encodes a frame that consists of its type, of numbers, and of bytes at the end.
fn with_bytes(kind: u64, fields: &[u64], bytes: &[u8]) -> Vec<u8> {
    let mut frame = numbers(kind, fields);
    frame.extend(bytes);
    frame
}

/// Encodes `len` bytes of PADDING frames.
#[must_use]
pub fn padding(len: usize) -> Vec<u8> {
    vec![0; len]
}

/// Encodes a PING frame.
#[must_use]
pub fn ping() -> Vec<u8> {
    vec![1]
}

/// Encodes an ACK frame for ranges of packet numbers in ascending order, their ends included. Returns no bytes if there is no
/// range.
#[must_use]
pub fn ack(ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut ranges = ranges.iter().rev();
    let Some(&(mut first, last)) = ranges.next() else {
        return Vec::new();
    };
    let others = ranges.len() as u64;
    let mut frame = numbers(2, &[last, 0, others, last - first]);
    for &(start, end) in ranges {
        frame.extend(varint(first - end - 2));
        frame.extend(varint(end - start));
        first = start;
    }
    frame
}

/// Encodes a RESET_STREAM frame.
#[must_use]
pub fn reset_stream(stream: u64, code: u64, final_size: u64) -> Vec<u8> {
    numbers(4, &[stream, code, final_size])
}

/// Encodes a STOP_SENDING frame.
#[must_use]
pub fn stop_sending(stream: u64, code: u64) -> Vec<u8> {
    numbers(5, &[stream, code])
}

/// Encodes a CRYPTO frame.
#[must_use]
pub fn crypto(offset: u64, data: &[u8]) -> Vec<u8> {
    with_bytes(6, &[offset, data.len() as u64], data)
}

/// Encodes a STREAM frame with offset and length.
#[must_use]
pub fn stream(stream: u64, offset: u64, data: &[u8], fin: bool) -> Vec<u8> {
    let kind = 0x0e | u64::from(fin);
    with_bytes(kind, &[stream, offset, data.len() as u64], data)
}

/// Encodes a MAX_DATA frame.
#[must_use]
pub fn max_data(most: u64) -> Vec<u8> {
    numbers(0x10, &[most])
}

/// Encodes a MAX_STREAM_DATA frame.
#[must_use]
pub fn max_stream_data(stream: u64, most: u64) -> Vec<u8> {
    numbers(0x11, &[stream, most])
}

/// Encodes a STREAM_DATA_BLOCKED frame.
#[must_use]
pub fn stream_data_blocked(stream: u64, at: u64) -> Vec<u8> {
    numbers(0x15, &[stream, at])
}

/// Encodes a NEW_CONNECTION_ID frame.
#[must_use]
pub fn new_connection_id(
    sequence: u64,
    retire_prior_to: u64,
    id: &[u8],
    token: [u8; 16],
) -> Vec<u8> {
    let mut frame = numbers(0x18, &[sequence, retire_prior_to, id.len() as u64]);
    frame.extend(id);
    frame.extend(token);
    frame
}

/// Encodes a RETIRE_CONNECTION_ID frame.
#[must_use]
pub fn retire_connection_id(sequence: u64) -> Vec<u8> {
    numbers(0x19, &[sequence])
}

/// Encodes a PATH_CHALLENGE frame.
#[must_use]
pub fn path_challenge(data: [u8; 8]) -> Vec<u8> {
    with_bytes(0x1a, &[], &data)
}

/// Encodes a PATH_RESPONSE frame.
#[must_use]
pub fn path_response(data: [u8; 8]) -> Vec<u8> {
    with_bytes(0x1b, &[], &data)
}

/// Encodes a CONNECTION_CLOSE frame of the application.
#[must_use]
pub fn close(code: u64) -> Vec<u8> {
    numbers(0x1d, &[code, 0])
}

/// Encodes a DATAGRAM frame (RFC 9221) that has a length.
#[must_use]
pub fn datagram(data: &[u8]) -> Vec<u8> {
    with_bytes(0x31, &[data.len() as u64], data)
}

/// Reads the parts of a QUIC frame.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a variable-length number (RFC 9000 §16).
    pub(super) fn number(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let len = 1 << (first >> 6);
        let bytes = self.bytes(len)?;
        let rest = bytes[1..].iter();
        Some(rest.fold(u64::from(first & 0x3f), |value, byte| {
            value << 8 | u64::from(*byte)
        }))
    }

    /// Skips `count` variable-length numbers.
    pub(super) fn numbers(&mut self, count: usize) -> Option<()> {
        (0..count).try_for_each(|_| self.number().map(drop))
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a length, and then as many bytes.
    pub(super) fn prefixed(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }
}
