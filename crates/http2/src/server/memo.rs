//! Caches of the latest request section and response head. Requests of one kind often follow each other (calls of one
//! method, polls, health checks), and an index into a header table keeps its meaning until a field enters the table.

use std::ops::Range;

use h2o_http::field_section::{self, RequestSection};
use h2o_http::{RequestHead, ResponseHead, StatusCode, prefixed};

use crate::hpack::{Decoder, Encoder, path_string};

/// Longest request section that is remembered.
const MAX_SECTION_LEN: usize = 128;

/// Most bytes of fields of a response head that is remembered.
const MAX_FIELDS_LEN: usize = 512;

/// The latest request section, with its result. The result is stored once the section came twice in a row, at most with
/// another path: the requests for the parts of a page differ only in their paths.
#[derive(Debug, Default)]
pub(super) struct RequestMemo {
    section: Vec<u8>,
    /// The range of the path's string; empty if the path cannot be replaced.
    path: Range<usize>,
    generation: (u32, u32),
    said: Option<Box<(RequestHead, RequestSection)>>,
}

impl RequestMemo {
    /// Reads a section that equals the two before it, except for its path. Otherwise returns `None`, and the head is
    /// unchanged or cleared.
    #[inline]
    pub(super) fn recall(
        &self,
        section: &[u8],
        end_stream: bool,
        decoder: &mut Decoder,
        head: &mut RequestHead,
    ) -> Option<RequestSection> {
        let (kept, request) = &**self.said.as_ref()?;
        if self.generation != decoder.generation() || request.end_stream != end_stream {
            return None;
        }
        if self.section == section {
            head.copy_from(kept);
            return Some(*request);
        }
        let (text, _) = decoder.text(self.path_in(section)?).ok()?;
        head.copy_from(kept);
        field_section::set_path(head, text).then_some(*request)
    }

    /// The string of the path in `section`, if the rest equals the remembered section.
    #[inline]
    fn path_in<'s>(&self, section: &'s [u8]) -> Option<&'s [u8]> {
        if self.path.is_empty() {
            return None;
        }
        let before = self.section.get(..self.path.start)?;
        let after = self.section.get(self.path.end..)?;
        let string = section.strip_prefix(before)?.strip_suffix(after)?;
        let (len, text) = prefixed::decode(string, 7).ok()?;
        (len as usize == text.len()).then_some(string)
    }

    /// Remembers the result of a section. `generation`: that of the decoder before the section.
    #[inline]
    pub(super) fn note(
        &mut self,
        section: &[u8],
        generation: (u32, u32),
        decoder: &Decoder,
        head: &RequestHead,
        request: RequestSection,
    ) {
        // A section that changes the table size has another meaning the next time.
        let changes = matches!(section.first(), Some(0x20..=0x3f));
        if changes || generation != decoder.generation() || section.len() > MAX_SECTION_LEN {
            return;
        }
        let is_usual = request.refusal.is_none() && !request.is_tunnel;
        let comes_again = self.generation == generation
            && (self.section == section || self.path_in(section).is_some());
        self.said = (is_usual && comes_again).then(|| Box::new((head.clone(), request)));
        self.path = path_string(section).unwrap_or_default();
        self.section.clear();
        self.section.extend_from_slice(section);
        self.generation = generation;
    }

    /// Bytes of memory held.
    pub(super) fn retained(&self) -> usize {
        let said = self.said.as_ref().map_or(0, |said| {
            size_of::<(RequestHead, RequestSection)>() + said.0.headers.retained()
        });
        self.section.capacity() + said
    }
}

/// The latest response head, and the state it depended on.
#[derive(Debug, Default)]
pub(super) struct HeadMemo {
    /// The fields in wire form, then `server`.
    fields: Vec<u8>,
    fields_len: usize,
    status: Option<StatusCode>,
    length: Option<u64>,
    generation: (u32, u32),
    section: Vec<u8>,
}

impl HeadMemo {
    /// The encoded section for `head`, if it equals the remembered head.
    #[inline]
    pub(super) fn find(&self, head: &ResponseHead<'_>, encoder: &Encoder) -> Option<&[u8]> {
        let wire = head.headers.wire()?;
        let (fields, server) = self.fields.split_at_checked(self.fields_len)?;
        let is_same = self.status == Some(head.status)
            && self.length == head.length
            && self.generation == encoder.generation()
            && fields == wire
            && server == head.server.unwrap_or_default()
            && !encoder.has_size_update();
        is_same.then_some(&self.section)
    }

    /// Remembers `section`, written for `head`, if no field has entered the table since `generation`.
    #[inline]
    pub(super) fn note(
        &mut self,
        head: &ResponseHead<'_>,
        encoder: &Encoder,
        generation: (u32, u32),
        section: &[u8],
    ) {
        if generation != encoder.generation() {
            return;
        }
        let Some(wire) = head
            .headers
            .wire()
            .filter(|wire| wire.len() <= MAX_FIELDS_LEN)
        else {
            return;
        };
        self.fields.clear();
        self.fields.extend_from_slice(wire);
        self.fields
            .extend_from_slice(head.server.unwrap_or_default());
        self.fields_len = wire.len();
        self.status = Some(head.status);
        self.length = head.length;
        self.generation = generation;
        self.section.clear();
        self.section.extend_from_slice(section);
    }

    /// Bytes of memory held.
    pub(super) const fn retained(&self) -> usize {
        self.fields.capacity() + self.section.capacity()
    }
}
