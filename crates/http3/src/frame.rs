//! Frames of HTTP/3 (RFC 9114 §7): their types, and a reader that takes them from a stream in pieces of any size.

use std::borrow::Cow;

use crate::varint;

/// Maximum length of a frame's payload in bytes, except for DATA. H2O compatibility: H2O has the same limit.
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
    /// Whether the type is one of HTTP/2 that HTTP/3 frames must never have (RFC 9114 §7.2.8).
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

/// Appends a frame with this payload.
pub fn write(kind: FrameType, payload: &[u8], out: &mut Vec<u8>) {
    header(kind, payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// Number of bytes that [`begin_section`] reserves for a frame header: one for the type, and two for the length.
const SECTION_HEADER: usize = 3;

/// Begins a HEADERS frame at the end of `out`; [`end_section`] writes its length. Returns the position of the frame.
#[inline]
pub(crate) fn begin_section(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[1, 0x40, 0]);
    at
}

/// Ends the HEADERS frame that begins at the position `at`: writes its length. Returns the length of its payload in bytes.
#[inline]
pub(crate) fn end_section(out: &mut Vec<u8>, at: usize) -> usize {
    let len = out.len() - at - SECTION_HEADER;
    match u16::try_from(len) {
        // The length is always encoded in two bytes, even if one would do, so that the payload need not be moved.
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

/// How the reader handles a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The payload is reported in pieces, as it arrives.
    Content,
    /// The payload is reported once it is complete.
    Whole,
    /// The payload is dropped.
    Skip,
}

/// A part of a stream, as [`FrameReader::next`] returns it.
#[derive(Debug)]
pub(crate) enum Piece<'i> {
    /// A part of the payload of a DATA frame; empty if the frame is empty.
    Data(&'i [u8]),
    /// A complete frame with its payload.
    Frame(FrameType, Cow<'i, [u8]>),
    /// The start of a frame whose payload the reader drops.
    Skipped,
}

/// Length in bytes of the longest frame header.
const MAX_HEADER: usize = 16;

/// The position of a reader within the frames of a stream.
#[derive(Debug)]
enum Place {
    /// The position is between two frames, or within a frame header; the first `len` of the header's `bytes` have arrived.
    Header { bytes: [u8; MAX_HEADER], len: u8 },
    /// The position is within a payload that is reported in pieces; this number of bytes is still to come.
    Content(u64),
    /// The position is within a payload that is dropped; this number of bytes is still to come.
    Skip(u64),
    /// The position is within a payload that is collected; `left` bytes are still to come.
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

/// Reads the frames of a stream. The reader allocates only for payloads that arrive in several pieces and are reported as a
/// whole, and only for the bytes that have arrived.
#[derive(Debug)]
pub(crate) struct FrameReader {
    place: Place,
}

impl FrameReader {
    pub(crate) const fn new() -> Self {
        Self { place: BETWEEN }
    }

    /// Whether the position is between two frames, where a stream may end.
    pub(crate) const fn is_between_frames(&self) -> bool {
        matches!(self.place, Place::Header { len: 0, .. })
    }

    /// Removes the next piece from `input`; returns `None` if all of `input` is consumed. `accept` decides how each frame
    /// is handled, once the frame's header is complete.
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

    /// Removes the header of the next frame from `input`, and returns its type and length if it is complete.
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
            // A header consists of two integers, which always fit in the buffer.
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

    /// Bytes of memory that the reader has allocated.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `input` in parts of `part` bytes. Returns the pieces in words; pieces of the same payload are joined.
    fn pieces(input: &[u8], part: usize) -> Vec<String> {
        let mut reader = FrameReader::new();
        let mut said: Vec<String> = Vec::new();
        let mut is_inside = false;
        for mut part in input.chunks(part) {
            loop {
                let piece = reader.next(&mut part, |kind, _| {
                    is_inside = false;
                    Ok::<_, ()>(match kind {
                        FrameType::DATA => Disposition::Content,
                        FrameType::HEADERS => Disposition::Whole,
                        _ => Disposition::Skip,
                    })
                });
                match piece.expect("the frames are valid") {
                    None => break,
                    Some(Piece::Skipped) => said.push("skipped".to_owned()),
                    Some(Piece::Frame(kind, payload)) => {
                        said.push(format!("{kind:?} {}", payload.escape_ascii()));
                    }
                    Some(Piece::Data(data)) => {
                        let data = data.escape_ascii().to_string();
                        match said.last_mut().filter(|_| is_inside) {
                            Some(last) => last.push_str(&data),
                            None => said.push(format!("data {data}")),
                        }
                        is_inside = true;
                    }
                }
            }
            assert!(part.is_empty(), "the reader consumes all bytes");
        }
        said.push(format!("{}", reader.is_between_frames()));
        said
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let mut input = Vec::new();
        write(FrameType::HEADERS, b"section", &mut input);
        write(FrameType::DATA, b"", &mut input);
        write(FrameType::DATA, b"content", &mut input);
        write(FrameType(0x21), b"grease", &mut input);
        write(FrameType(0x21), b"", &mut input);
        write(FrameType(crate::varint::MAX), b"more", &mut input);
        write(FrameType::HEADERS, b"", &mut input);
        write(FrameType::DATA, &[b'x'; 100], &mut input);
        // Type and length are integers encoded in more bytes than they need.
        input.extend_from_slice(b"\x40\0\x80\0\0\x02ab");
        input.extend_from_slice(b"\xc0\0\0\0\0\0\0\x01\xc0\0\0\0\0\0\0\x02cd");
        let want = pieces(&input, usize::MAX);
        let long = format!("data {}", "x".repeat(100));
        let frames = [
            "FrameType(1) section",
            "data ",
            "data content",
            "skipped",
            "skipped",
            "skipped",
            "FrameType(1) ",
            &long,
            "data ab",
            "FrameType(1) cd",
            "true",
        ];
        assert_eq!(want, frames);
        for part in 1..input.len() {
            assert_eq!(pieces(&input, part), want, "input in parts of {part} bytes");
        }
    }

    #[test]
    fn a_stream_ends_between_two_frames() {
        let mut input = Vec::new();
        write(FrameType::HEADERS, b"section", &mut input);
        let first = input.len();
        write(FrameType::DATA, b"content", &mut input);
        let second = input.len();
        write(FrameType(0x21), b"grease", &mut input);
        let ends = [first, second, input.len()];
        for end in 1..=input.len() {
            let said = pieces(&input[..end], 3);
            let want = ends.contains(&end).to_string();
            assert_eq!(
                said.last(),
                Some(&want),
                "the first {end} bytes of the input"
            );
        }
    }

    #[test]
    fn errors_come_with_the_header() {
        let mut reader = FrameReader::new();
        let mut header = Vec::new();
        super::header(FrameType::SETTINGS, 1 << 40, &mut header);
        for byte in &header[..header.len() - 1] {
            let mut part = std::slice::from_ref(byte);
            let piece = reader.next(&mut part, |_, _| Err::<Disposition, _>("too soon"));
            assert!(matches!(piece, Ok(None)));
        }
        let mut last = &header[header.len() - 1..];
        let error = reader.next(&mut last, |kind, len| Err::<Disposition, _>((kind, len)));
        assert_eq!(
            error.expect_err("a frame longer than allowed is an error"),
            (FrameType::SETTINGS, 1 << 40)
        );
    }

    #[test]
    fn only_what_has_come_is_held() {
        let mut reader = FrameReader::new();
        let accept = |_, _| Ok::<_, ()>(Disposition::Whole);
        let mut input = Vec::new();
        super::header(FrameType::HEADERS, 400_000, &mut input);
        input.extend_from_slice(&[0; 100]);
        assert!(matches!(reader.next(&mut &input[..], accept), Ok(None)));
        assert!(
            (100..1000).contains(&reader.retained()),
            "{}",
            reader.retained()
        );
        let rest = vec![0; 399_900];
        let piece = reader.next(&mut &rest[..], accept);
        let Ok(Some(Piece::Frame(FrameType::HEADERS, payload))) = piece else {
            panic!("the whole frame has arrived");
        };
        assert_eq!((payload.len(), reader.retained()), (400_000, 0));
    }

    #[test]
    fn sections_of_any_length_get_their_frame() {
        for len in [0, 1, 63, 64, 16_383, 16_384, 100_000] {
            let mut out = b"before".to_vec();
            let at = begin_section(&mut out);
            out.resize(out.len() + len, b's');
            assert_eq!(end_section(&mut out, at), len);
            let mut rest = &out[6..];
            let mut reader = FrameReader::new();
            let piece = reader.next(&mut rest, |_, _| Ok::<_, ()>(Disposition::Whole));
            let Ok(Some(Piece::Frame(FrameType::HEADERS, section))) = piece else {
                panic!("the reader found no HEADERS frame");
            };
            assert_eq!((section.len(), rest.len()), (len, 0));
            assert!(section.iter().all(|byte| *byte == b's'));
        }
    }
}
