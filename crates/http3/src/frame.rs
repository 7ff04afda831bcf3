//! Frames (RFC 9114 §7): their types, and how they are read from a stream whatever pieces it comes in.

use std::borrow::Cow;

use crate::varint;

/// Bytes of a frame's payload at most, DATA excepted (H2O has the same limit).
pub const MAX_PAYLOAD: u64 = 8192 + 4096 * 100;

/// The type of a frame (RFC 9114 §11.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameType(pub u64);

#[allow(missing_docs, reason = "the constants are the registered names")]
impl FrameType {
    pub const DATA: Self = Self(0x00);
    pub const HEADERS: Self = Self(0x01);
    pub const CANCEL_PUSH: Self = Self(0x03);
    pub const SETTINGS: Self = Self(0x04);
    pub const PUSH_PROMISE: Self = Self(0x05);
    pub const GOAWAY: Self = Self(0x07);
    pub const MAX_PUSH_ID: Self = Self(0x0d);
    pub const PRIORITY_UPDATE: Self = Self(0xf0700);
    pub const PRIORITY_UPDATE_PUSH: Self = Self(0xf0701);
}

impl FrameType {
    /// Whether the type is one that HTTP/2 had, and that HTTP/3 frames never have (RFC 9114 §7.2.8).
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        matches!(self.0, 0x02 | 0x06 | 0x08 | 0x09)
    }
}

/// Appends the header of a frame with `len` bytes of payload.
#[inline]
pub fn header(kind: FrameType, len: u64, out: &mut Vec<u8>) {
    varint::encode(kind.0, out);
    varint::encode(len, out);
}

/// Appends a frame.
pub fn write(kind: FrameType, payload: &[u8], out: &mut Vec<u8>) {
    header(kind, payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// Bytes of the header that [`begin_section`] leaves room for: the type, and a length of two bytes.
const SECTION_HEADER: usize = 3;

/// Begins a HEADERS frame; [`end_section`] fills the length in.
#[inline]
pub(crate) fn begin_section(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[1, 0x40, 0]);
    at
}

/// Ends the frame begun at `at`. Gives the length of its payload.
#[inline]
pub(crate) fn end_section(out: &mut Vec<u8>, at: usize) -> usize {
    let len = out.len() - at - SECTION_HEADER;
    match u16::try_from(len) {
        // A length of two bytes also where one would do: nothing is moved.
        Ok(short @ ..0x4000) => {
            let [high, low] = short.to_be_bytes();
            out[at + 1..at + SECTION_HEADER].copy_from_slice(&[0x40 | high, low]);
        }
        _ => {
            let mut header = Vec::with_capacity(8);
            varint::encode(len as u64, &mut header);
            out.splice(at + 1..at + SECTION_HEADER, header);
        }
    }
    len
}

/// What becomes of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// It is handed out as it comes.
    Content,
    /// It is handed out when all of it has come.
    Whole,
    /// It is dropped.
    Skip,
}

/// A part of a stream.
#[derive(Debug)]
pub(crate) enum Piece<'i> {
    /// Payload of a DATA frame, empty if the frame is.
    Data(&'i [u8]),
    /// A frame with its payload.
    Frame(FrameType, Cow<'i, [u8]>),
    /// A frame begins that is skipped.
    Skipped,
}

/// Bytes of the longest header of a frame.
const MAX_HEADER: usize = 16;

/// Where in a frame a stream has come to.
#[derive(Debug)]
enum Place {
    /// Between two frames, or in the header of one, of which these bytes have come.
    Header { bytes: [u8; MAX_HEADER], len: u8 },
    /// In a payload that is handed out as it comes; so many bytes are left.
    Content(u64),
    /// In a payload that is dropped.
    Skip(u64),
    /// In a payload that is collected.
    Whole {
        kind: FrameType,
        left: usize,
        bytes: Vec<u8>,
    },
}

const BETWEEN: Place = Place::Header {
    bytes: [0; MAX_HEADER],
    len: 0,
};

/// Reads the frames of a stream. Allocates only for payloads that come in several pieces, and only what has come.
#[derive(Debug)]
pub(crate) struct FrameReader {
    place: Place,
}

impl FrameReader {
    pub(crate) const fn new() -> Self {
        Self { place: BETWEEN }
    }

    /// True between two frames: where a stream may end.
    pub(crate) const fn is_between_frames(&self) -> bool {
        matches!(self.place, Place::Header { len: 0, .. })
    }

    /// Takes the next piece off `input`; `None`: all of `input` is taken. `accept` is asked about each frame when its header has
    /// come.
    pub(crate) fn next<'i, E>(
        &mut self,
        input: &mut &'i [u8],
        accept: impl FnOnce(FrameType, u64) -> Result<Disposition, E>,
    ) -> Result<Option<Piece<'i>>, E> {
        if let Place::Skip(left) = &mut self.place {
            take_up_to(input, left);
            if *left > 0 {
                return Ok(None);
            }
            self.place = BETWEEN;
        }
        if let Place::Header { .. } = self.place {
            let Some((kind, len)) = self.header(input) else {
                return Ok(None);
            };
            match accept(kind, len)? {
                Disposition::Content if len == 0 => return Ok(Some(Piece::Data(&[]))),
                Disposition::Content => self.place = Place::Content(len),
                Disposition::Skip => {
                    if len > 0 {
                        self.place = Place::Skip(len);
                    }
                    return Ok(Some(Piece::Skipped));
                }
                Disposition::Whole => {
                    let left = usize::try_from(len).unwrap_or(usize::MAX);
                    if let Some((payload, rest)) = input.split_at_checked(left) {
                        *input = rest;
                        return Ok(Some(Piece::Frame(kind, payload.into())));
                    }
                    self.place = Place::Whole {
                        kind,
                        left,
                        bytes: Vec::new(),
                    };
                }
            }
        }
        Ok(self.payload(input))
    }

    /// The header of the next frame, if it is complete.
    #[inline]
    fn header(&mut self, input: &mut &[u8]) -> Option<(FrameType, u64)> {
        let Place::Header { bytes, len } = &mut self.place else {
            return None;
        };
        if *len == 0
            && let Some((kind, after)) = varint::decode(input)
            && let Some((len, rest)) = varint::decode(after)
        {
            *input = rest;
            return Some((FrameType(kind), len));
        }
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            // Two integers are never longer than the room for them.
            *bytes.get_mut(usize::from(*len))? = byte;
            *len += 1;
            let had = bytes.get(..usize::from(*len))?;
            if let Some((kind, after)) = varint::decode(had)
                && let Some((payload_len, _)) = varint::decode(after)
            {
                self.place = BETWEEN;
                return Some((FrameType(kind), payload_len));
            }
        }
        None
    }

    fn payload<'i>(&mut self, input: &mut &'i [u8]) -> Option<Piece<'i>> {
        if input.is_empty() {
            return None;
        }
        match &mut self.place {
            Place::Header { .. } | Place::Skip(_) => None,
            Place::Content(left) => {
                let piece = take_up_to(input, left);
                if *left == 0 {
                    self.place = BETWEEN;
                }
                Some(Piece::Data(piece))
            }
            Place::Whole { kind, left, bytes } => {
                let (piece, rest) = input.split_at((*left).min(input.len()));
                *input = rest;
                bytes.extend_from_slice(piece);
                *left -= piece.len();
                if *left > 0 {
                    return None;
                }
                let whole = Piece::Frame(*kind, std::mem::take(bytes).into());
                self.place = BETWEEN;
                Some(whole)
            }
        }
    }

    /// Bytes of memory held.
    pub(crate) const fn retained(&self) -> usize {
        match &self.place {
            Place::Whole { bytes, .. } => bytes.capacity(),
            Place::Header { .. } | Place::Content(_) | Place::Skip(_) => 0,
        }
    }
}

fn take_up_to<'i>(input: &mut &'i [u8], left: &mut u64) -> &'i [u8] {
    let most = usize::try_from(*left)
        .unwrap_or(usize::MAX)
        .min(input.len());
    let (piece, rest) = input.split_at(most);
    *input = rest;
    *left -= piece.len() as u64;
    piece
}
