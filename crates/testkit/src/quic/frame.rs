//! Frames of QUIC (RFC 9000 §19), as bytes.

use crate::http3::varint;

/// A frame: its type, and fields that are numbers.
fn numbers(kind: u64, fields: &[u64]) -> Vec<u8> {
    let mut frame = varint(kind);
    frame.extend(fields.iter().flat_map(|field| varint(*field)));
    frame
}

/// The same, with bytes at the end.
fn with_bytes(kind: u64, fields: &[u64], bytes: &[u8]) -> Vec<u8> {
    let mut frame = numbers(kind, fields);
    frame.extend(bytes);
    frame
}

/// PADDING, so many bytes.
#[must_use]
pub fn padding(len: usize) -> Vec<u8> {
    vec![0; len]
}

/// PING.
#[must_use]
pub fn ping() -> Vec<u8> {
    vec![1]
}

/// ACK of ranges of packet numbers, ends included, in ascending order. Nothing for no range.
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

/// RESET_STREAM.
#[must_use]
pub fn reset_stream(stream: u64, code: u64, final_size: u64) -> Vec<u8> {
    numbers(4, &[stream, code, final_size])
}

/// STOP_SENDING.
#[must_use]
pub fn stop_sending(stream: u64, code: u64) -> Vec<u8> {
    numbers(5, &[stream, code])
}

/// CRYPTO.
#[must_use]
pub fn crypto(offset: u64, data: &[u8]) -> Vec<u8> {
    with_bytes(6, &[offset, data.len() as u64], data)
}

/// STREAM, with offset and length.
#[must_use]
pub fn stream(stream: u64, offset: u64, data: &[u8], fin: bool) -> Vec<u8> {
    let kind = 0x0e | u64::from(fin);
    with_bytes(kind, &[stream, offset, data.len() as u64], data)
}

/// MAX_DATA.
#[must_use]
pub fn max_data(most: u64) -> Vec<u8> {
    numbers(0x10, &[most])
}

/// MAX_STREAM_DATA.
#[must_use]
pub fn max_stream_data(stream: u64, most: u64) -> Vec<u8> {
    numbers(0x11, &[stream, most])
}

/// STREAM_DATA_BLOCKED.
#[must_use]
pub fn stream_data_blocked(stream: u64, at: u64) -> Vec<u8> {
    numbers(0x15, &[stream, at])
}

/// NEW_CONNECTION_ID.
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

/// RETIRE_CONNECTION_ID.
#[must_use]
pub fn retire_connection_id(sequence: u64) -> Vec<u8> {
    numbers(0x19, &[sequence])
}

/// PATH_CHALLENGE.
#[must_use]
pub fn path_challenge(data: [u8; 8]) -> Vec<u8> {
    with_bytes(0x1a, &[], &data)
}

/// PATH_RESPONSE.
#[must_use]
pub fn path_response(data: [u8; 8]) -> Vec<u8> {
    with_bytes(0x1b, &[], &data)
}

/// CONNECTION_CLOSE of the application.
#[must_use]
pub fn close(code: u64) -> Vec<u8> {
    numbers(0x1d, &[code, 0])
}

/// DATAGRAM (RFC 9221), with a length.
#[must_use]
pub fn datagram(data: &[u8]) -> Vec<u8> {
    with_bytes(0x31, &[data.len() as u64], data)
}

/// A reader of what a frame is made of.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// A number of variable length (RFC 9000 §16).
    pub(super) fn number(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let len = 1 << (first >> 6);
        let bytes = self.bytes(len)?;
        let rest = bytes[1..].iter();
        Some(rest.fold(u64::from(first & 0x3f), |value, byte| {
            value << 8 | u64::from(*byte)
        }))
    }

    /// Skips so many numbers.
    pub(super) fn numbers(&mut self, count: usize) -> Option<()> {
        (0..count).try_for_each(|_| self.number().map(drop))
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Bytes behind their length.
    pub(super) fn prefixed(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }
}
