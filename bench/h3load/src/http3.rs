//! The part of HTTP/3 that a client needs which sends GET requests and uses no dynamic table.

use bytes::Bytes;

use crate::Fault;

const DATA: u64 = 0;
const HEADERS: u64 = 1;
/// Bytes of a field section that are kept at most. Only the status is read, which is in the first bytes.
const MAX_KEPT: usize = 4096;

/// The first bytes of the client's control stream: its type, and SETTINGS without parameters.
pub(crate) const CONTROL: &[u8] = &[0, 4, 0];
/// H3_NO_ERROR (RFC 9114 §8.1).
pub(crate) const NO_ERROR: u32 = 0x100;

/// The HEADERS frame of a GET request. Names are from the static table of QPACK, values are not compressed.
pub(crate) fn request(authority: &str, path: &str) -> Bytes {
    // Required Insert Count and Base, both 0; then `:method: GET` and `:scheme: https`.
    let mut section = vec![0, 0, 0xc0 | 17, 0xc0 | 23];
    for (index, value) in [(0, authority), (1, path), (95, "h3load")] {
        prefixed(0x50, 4, index, &mut section);
        prefixed(0, 7, value.len(), &mut section);
        section.extend_from_slice(value.as_bytes());
    }
    let mut frame = vec![1];
    // The length as a variable-length integer of two bytes (RFC 9000 §16).
    frame.extend_from_slice(
        &(0x4000 | u16::try_from(section.len()).unwrap_or(0x3fff)).to_be_bytes(),
    );
    frame.extend_from_slice(&section);
    frame.into()
}

/// Appends an integer with a prefix of `bits` bits, behind the other bits of `first` (RFC 7541 §5.1).
fn prefixed(first: u8, bits: u8, value: usize, out: &mut Vec<u8>) {
    let most = (1 << bits) - 1;
    if value < most {
        out.push(first | u8::try_from(value).unwrap_or(0));
        return;
    }
    out.push(first | u8::try_from(most).unwrap_or(0));
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(0x80 | u8::try_from(rest & 0x7f).unwrap_or(0));
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(0));
}

/// The part of a response's stream that comes next.
#[derive(Debug)]
enum Stage {
    /// The rest of a frame's type and length, of which this many bytes have been received.
    FrameHead([u8; 16], usize),
    /// The rest of a frame of this type: this many bytes.
    Frame(u64, u64),
}

/// A response that is being received.
#[derive(Debug)]
pub(crate) struct Response {
    stage: Stage,
    head: Vec<u8>,
    /// Bytes of all field sections of the response.
    pub(crate) head_len: u64,
    /// Bytes of the response's body.
    pub(crate) body_len: u64,
}

impl Default for Response {
    fn default() -> Self {
        Self {
            stage: Stage::FrameHead([0; 16], 0),
            head: Vec::new(),
            head_len: 0,
            body_len: 0,
        }
    }
}

impl Response {
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while let Some(&first) = bytes.first() {
            match &mut self.stage {
                Stage::FrameHead(head, len) => {
                    let place = head.get_mut(*len).ok_or_else(|| {
                        fault("the type and length of a frame have too many bytes")
                    })?;
                    *place = first;
                    *len += 1;
                    bytes = &bytes[1..];
                    let mut read = &head[..*len];
                    if let (Some(kind), Some(left)) = (varint(&mut read), varint(&mut read)) {
                        self.stage = next(kind, left);
                    }
                }
                Stage::Frame(kind, left) => {
                    let len = bytes.len().min(usize::try_from(*left)?);
                    let (these, rest) = bytes.split_at(len);
                    bytes = rest;
                    *left -= len as u64;
                    match *kind {
                        DATA => self.body_len += len as u64,
                        HEADERS => {
                            self.head_len += len as u64;
                            let room = MAX_KEPT.saturating_sub(self.head.len());
                            self.head.extend_from_slice(&these[..len.min(room)]);
                        }
                        _ => {}
                    }
                    self.stage = next(*kind, *left);
                }
            }
        }
        Ok(())
    }

    /// The status of a complete response.
    pub(crate) fn status(&self) -> Result<u16, Fault> {
        if !matches!(self.stage, Stage::FrameHead(_, 0)) {
            return Err(fault("a response ends within a frame"));
        }
        let field = self
            .head
            .get(2..)
            .ok_or_else(|| fault("a response has no fields"))?;
        // Indices of statuses in the static table (RFC 9204 Appendix A).
        if let [indexed, rest @ ..] = field
            && indexed & 0xc0 == 0xc0
        {
            let index = match (indexed & 0x3f, rest) {
                (63, [more, ..]) => 63 + u16::from(*more),
                (index, _) => u16::from(index),
            };
            return match index {
                24 => Ok(103),
                25 => Ok(200),
                26 => Ok(304),
                27 => Ok(404),
                28 => Ok(503),
                64 => Ok(204),
                65 => Ok(206),
                67 => Ok(400),
                68 => Ok(403),
                71 => Ok(500),
                _ => Err(fault("the first field is not a status")),
            };
        }
        // The value follows a name from the static table, and is not compressed.
        let digits = field.windows(4).take(3).find_map(|four| match four {
            [3, digits @ ..] if digits.iter().all(u8::is_ascii_digit) => Some(digits),
            _ => None,
        });
        let digits = digits
            .ok_or_else(|| fault("a status is encoded in a form that h3load does not know"))?;
        Ok(std::str::from_utf8(digits)?.parse()?)
    }
}

fn next(kind: u64, left: u64) -> Stage {
    if left == 0 {
        Stage::FrameHead([0; 16], 0)
    } else {
        Stage::Frame(kind, left)
    }
}

fn fault(text: &str) -> Fault {
    Fault(text.to_owned())
}

/// Takes a variable-length integer off the front (RFC 9000 §16).
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let (own, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    let value = own
        .iter()
        .skip(1)
        .fold(u64::from(first & 0x3f), |value, byte| {
            value << 8 | u64::from(*byte)
        });
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_may_come_in_pieces_of_any_size() {
        let mut bytes = vec![0x21, 2, 7, 7, 1, 3, 0, 0, 0xc0 | 25, 0, 0x40, 100];
        bytes.extend_from_slice(&[b'#'; 100]);
        for size in 1..bytes.len() {
            let mut response = Response::default();
            for piece in bytes.chunks(size) {
                response.receive(piece).unwrap();
            }
            assert_eq!(response.status().unwrap(), 200);
            assert_eq!((response.head_len, response.body_len), (3, 100));
        }
    }

    #[test]
    fn a_response_that_ends_within_a_frame_is_an_error() {
        let mut response = Response::default();
        response.receive(&[1, 3, 0, 0, 0xd9, 0, 5, 1]).unwrap();
        assert!(response.status().is_err());
    }

    #[test]
    fn a_status_beside_the_static_table_is_read() {
        for (section, status) in [
            (&[0, 0, 0xff, 8, 1][..], Some(500)),
            (&[0, 0, 0x5f, 9, 3, b'3', b'0', b'1'], Some(301)),
            (&[0, 0, 0xc1], None),
        ] {
            let mut response = Response::default();
            response
                .receive(&[1, u8::try_from(section.len()).unwrap()])
                .unwrap();
            response.receive(section).unwrap();
            assert_eq!(response.status().ok(), status);
        }
    }

    #[test]
    fn long_values_have_lengths_of_several_bytes() {
        let mut out = Vec::new();
        prefixed(0, 7, 300, &mut out);
        // 300 is 127, which fills the prefix, and 45 + 1 * 128 in the two bytes that follow.
        assert_eq!(out, [0x7f, 0x80 | 45, 1]);
    }
}
