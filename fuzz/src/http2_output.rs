//! Reads what an HTTP/2 engine writes, with code that shares only HPACK with the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use h2o_http2::hpack::{Decoder, HpackError};

/// Names and values of a field section, with its pseudo-header fields.
pub(crate) type Section = Vec<(Vec<u8>, Vec<u8>)>;

/// Reader of one direction of a connection.
pub(crate) struct Output {
    bytes: Vec<u8>,
    decoder: Decoder,
    section: Option<(u32, u8, Vec<u8>)>,
    /// Field sections of each stream.
    pub(crate) sections: BTreeMap<u32, Vec<Section>>,
    pub(crate) ended: BTreeSet<u32>,
    pub(crate) reset: BTreeSet<u32>,
    /// Bytes of content of each stream.
    pub(crate) content: BTreeMap<u32, usize>,
    /// The stream of each DATA frame, and the range of its content in `all`.
    pieces: Vec<(u32, Range<usize>)>,
    pub(crate) has_goaway: bool,
    /// All bytes that the engine has written.
    pub(crate) all: Vec<u8>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            decoder: Decoder::new(4096),
            section: None,
            sections: BTreeMap::new(),
            ended: BTreeSet::new(),
            reset: BTreeSet::new(),
            content: BTreeMap::new(),
            pieces: Vec::new(),
            has_goaway: false,
            all: Vec::new(),
        }
    }

    /// Takes over bytes that the engine has written; they must be complete frames.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>) {
        self.all.extend_from_slice(out);
        self.bytes.append(out);
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = &bytes[..];
        if let Some(frames) = rest.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") {
            rest = frames;
        }
        while !rest.is_empty() {
            let (header, after) = rest.split_at(9);
            let len =
                usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
            assert!(
                len <= 16_384,
                "a frame is longer than any client must accept"
            );
            let (_, after) = after.split_at(len);
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            let end = self.all.len() - after.len();
            self.frame(header[3], header[4], stream, end - len..end);
            rest = after;
        }
    }

    /// The content that was sent on a stream.
    pub(crate) fn content_of(&self, stream: u32) -> Vec<u8> {
        let pieces = self.pieces.iter().filter(|(of, _)| *of == stream);
        pieces
            .flat_map(|(_, piece)| &self.all[piece.clone()])
            .copied()
            .collect()
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, place: Range<usize>) {
        let payload = &self.all[place.clone()];
        assert!(
            self.section.is_none() || kind == 9,
            "another frame interrupts a field section"
        );
        if matches!(kind, 0 | 1) {
            assert!(!self.ended.contains(&stream), "a frame behind END_STREAM");
            assert!(!self.reset.contains(&stream), "a frame behind RST_STREAM");
        }
        match kind {
            0 => {
                assert!(self.sections.contains_key(&stream), "DATA ahead of HEADERS");
                *self.content.entry(stream).or_default() += payload.len();
                self.pieces.push((stream, place));
                if flags & 1 != 0 {
                    self.ended.insert(stream);
                }
            }
            1 => {
                let bytes = payload.to_vec();
                self.section(stream, flags, flags, bytes);
            }
            9 => {
                let (begun, first, mut bytes) = self
                    .section
                    .take()
                    .expect("CONTINUATION follows HEADERS without END_HEADERS");
                assert_eq!(begun, stream);
                bytes.extend_from_slice(payload);
                self.section(stream, flags, first, bytes);
            }
            3 => {
                self.reset.insert(stream);
            }
            7 => self.has_goaway = true,
            8 => assert_ne!(payload, [0; 4], "a WINDOW_UPDATE frame has the increment 0"),
            4 | 6 => assert_eq!(stream, 0),
            other => panic!("the engine sent a frame of type {other}"),
        }
    }

    fn section(&mut self, stream: u32, flags: u8, first: u8, bytes: Vec<u8>) {
        if flags & 4 == 0 {
            self.section = Some((stream, first, bytes));
            return;
        }
        let mut section = Section::new();
        let read = self.decoder.decode(&bytes, |field| {
            assert!(
                field.flaws.is_none(),
                "the engine sent a field that receivers must refuse"
            );
            section.push((field.name.as_bytes().to_vec(), field.value.to_vec()));
            Ok::<(), HpackError>(())
        });
        assert_eq!(read, Ok(()));
        self.sections.entry(stream).or_default().push(section);
        if first & 1 != 0 {
            self.ended.insert(stream);
        }
    }
}
