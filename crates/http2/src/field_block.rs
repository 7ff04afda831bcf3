//! Field sections on the wire: a HEADERS frame with its CONTINUATION frames, received and sent.

use crate::connection::{Connection, cost};
use crate::error::PeerError;
use crate::frame::{self, FrameHeader, FrameType, HEADER_LEN, StreamId, flags};
use crate::scheduler::Priority;

/// Limits of one field section that a peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionLimits {
    /// Maximum number of CONTINUATION frames. A flood of small frames would cost this side far more than the peer (CVE-2024-27316 and
    /// similar attacks).
    pub continuations: u8,
    /// Maximum number of bytes of the encoded section, over all its frames.
    pub bytes: usize,
}

impl SectionLimits {
    /// The limits for clients: eight CONTINUATION frames of 16 KiB each hold more than any sensible section has.
    pub const OF_CLIENTS: Self = Self {
        continuations: 8,
        bytes: 64 * 1024,
    };
    /// The limits for backends, of which the configuration has chosen each: as much as over the other HTTP versions.
    pub const OF_BACKENDS: Self = Self {
        continuations: 128,
        bytes: h2o_http::MAX_HEAD,
    };
}

/// A field section of which the last frame was not received yet.
#[derive(Debug)]
pub(crate) struct FieldBlock {
    pub(crate) stream: StreamId,
    /// The flags of the section's HEADERS frame.
    pub(crate) flags: u8,
    pub(crate) priority: Option<Priority>,
    pub(crate) bytes: Vec<u8>,
    continuations: u8,
}

/// A complete field section.
pub(crate) struct Section<'a> {
    pub(crate) stream: StreamId,
    pub(crate) flags: u8,
    pub(crate) priority: Option<Priority>,
    pub(crate) bytes: std::borrow::Cow<'a, [u8]>,
}

impl Connection {
    /// Handles a HEADERS frame. Returns the field section if this frame completes it.
    #[inline]
    pub(crate) fn on_headers<'a>(
        &mut self,
        header: &FrameHeader,
        payload: &'a [u8],
    ) -> Result<Option<Section<'a>>, PeerError> {
        if header.stream == StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(FrameType::HEADERS));
        }
        let mut bytes = frame::without_padding(header, payload)?;
        let mut priority = None;
        if header.has(flags::PRIORITY) {
            let (given, rest) = frame::parse_priority(bytes).ok_or(PeerError::PriorityCutOff)?;
            if given.dependency == header.stream.get() {
                return Err(PeerError::SelfDependency);
            }
            priority = Some(given);
            bytes = rest;
        }
        if header.has(flags::END_HEADERS) {
            return Ok(Some(Section {
                stream: header.stream,
                flags: header.flags,
                priority,
                bytes: bytes.into(),
            }));
        }
        self.begin_block(header, priority, bytes);
        Ok(None)
    }

    pub(crate) fn begin_block(
        &mut self,
        header: &FrameHeader,
        priority: Option<Priority>,
        bytes: &[u8],
    ) {
        self.block = Some(Box::new(FieldBlock {
            stream: header.stream,
            flags: header.flags,
            priority,
            bytes: bytes.to_vec(),
            continuations: 0,
        }));
    }

    /// Handles a CONTINUATION frame. Returns the field section if this frame completes it.
    pub(crate) fn on_continuation(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Option<Section<'static>>, PeerError> {
        let Some(mut block) = self.block.take() else {
            return Err(if header.stream == StreamId::CONNECTION {
                PeerError::StreamIdOf(FrameType::CONTINUATION)
            } else {
                PeerError::StrayContinuation
            });
        };
        block.continuations += 1;
        if payload.is_empty() {
            self.charge(cost::EMPTY);
        }
        let is_end = header.has(flags::END_HEADERS);
        let limits = self.section_limits;
        if block.bytes.len() + payload.len() > limits.bytes
            || block.continuations > limits.continuations
            || (block.continuations == limits.continuations && !is_end)
        {
            return Err(PeerError::ContinuationFlood);
        }
        block.bytes.extend_from_slice(payload);
        if !is_end {
            self.block = Some(block);
            return Ok(None);
        }
        Ok(Some(Section {
            stream: block.stream,
            flags: block.flags,
            priority: block.priority,
            bytes: block.bytes.into(),
        }))
    }
}

/// Writes the header of the frame that begins a field section, with a length of 0, which [`end_section`] corrects. Returns
/// the position of the header in `out`.
#[inline]
pub(crate) fn begin_section(
    out: &mut Vec<u8>,
    kind: FrameType,
    frame_flags: u8,
    stream: StreamId,
) -> usize {
    let at = out.len();
    out.extend_from_slice(&frame::header(
        0,
        kind,
        frame_flags | flags::END_HEADERS,
        stream,
    ));
    at
}

/// Ends the field section whose frame header is at the position `at` of `out`: writes its length into the header, and moves
/// bytes beyond the size of one frame (`max`) into CONTINUATION frames. Returns the length of the section in bytes.
#[inline]
pub(crate) fn end_section(out: &mut Vec<u8>, at: usize, stream: StreamId, max: usize) -> usize {
    let len = out.len() - at - HEADER_LEN;
    if len > max {
        split_section(out, at, stream, max);
    } else {
        frame::patch_len(out, at, len);
    }
    len
}

#[cold]
fn split_section(out: &mut Vec<u8>, at: usize, stream: StreamId, max: usize) {
    let rest = out.split_off(at + HEADER_LEN + max);
    frame::patch_len(out, at, max);
    out[at + 4] &= !flags::END_HEADERS;
    let mut chunks = rest.chunks(max).peekable();
    while let Some(chunk) = chunks.next() {
        let end = if chunks.peek().is_none() {
            flags::END_HEADERS
        } else {
            0
        };
        out.extend_from_slice(&frame::header(
            chunk.len(),
            FrameType::CONTINUATION,
            end,
            stream,
        ));
        out.extend_from_slice(chunk);
    }
}
