//! Caches of the latest request section and response head. Requests of one kind often follow each other (calls of one
//! method, polls, health checks), and an index into a header table keeps its meaning until a field enters the table.

use std::ops::Range;

use super::{RequestSection, set_path};
use crate::{RequestHead, ResponseHead, StatusCode, prefixed, string_literal};

/// Longest request section that is remembered.
const MAX_SECTION_LEN: usize = 128;

/// Most bytes of fields of a response head that is remembered.
const MAX_FIELDS_LEN: usize = 512;

/// The latest request section, with its result. The result is stored once the section came twice in a row, at most with
/// another path: the requests for the parts of a page differ only in their paths.
///
/// `G` is the generation of the decoder: it changes whenever a section may have another meaning than before.
#[derive(Debug, Default)]
pub struct RequestMemo<G> {
    section: Vec<u8>,
    /// The range of the path's string; empty if the path cannot be replaced.
    path: Range<usize>,
    generation: G,
    said: Option<Box<(RequestHead, RequestSection)>>,
}

impl<G: Copy + PartialEq> RequestMemo<G> {
    /// Reads a section that equals the two before it, except for its path. Otherwise returns `None`, and the head is
    /// unchanged or cleared. `scratch` is for the text of the path.
    #[inline]
    pub fn recall(
        &self,
        section: &[u8],
        end_stream: bool,
        generation: G,
        scratch: &mut Vec<u8>,
        head: &mut RequestHead,
    ) -> Option<RequestSection> {
        let (kept, request) = &**self.said.as_ref()?;
        if self.generation != generation || request.end_stream != end_stream {
            return None;
        }
        if self.section == section {
            head.copy_from(kept);
            return Some(*request);
        }
        scratch.clear();
        let (text, _) = string_literal::decode(self.path_in(section)?, 7, scratch).ok()?;
        head.copy_from(kept);
        set_path(head, text.bytes(scratch)).then_some(*request)
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

    /// Remembers the result of a section that did not change the table. `path` finds the string of `:path` in the section,
    /// whose length has a prefix of seven bits, if no table stores it.
    #[inline]
    pub fn note(
        &mut self,
        section: &[u8],
        generation: G,
        path: impl FnOnce(&[u8]) -> Option<Range<usize>>,
        head: &RequestHead,
        request: RequestSection,
    ) {
        if section.len() > MAX_SECTION_LEN {
            return;
        }
        let is_usual = request.refusal.is_none() && !request.is_tunnel;
        let comes_again = self.generation == generation
            && (self.section == section || self.path_in(section).is_some());
        self.said = (is_usual && comes_again).then(|| Box::new((head.clone(), request)));
        self.path = path(section).unwrap_or_default();
        self.section.clear();
        self.section.extend_from_slice(section);
        self.generation = generation;
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn retained(&self) -> usize {
        let said = self.said.as_ref().map_or(0, |said| {
            size_of::<(RequestHead, RequestSection)>() + said.0.headers.retained()
        });
        self.section.capacity() + said
    }
}

/// The latest response head, and the state it depended on.
///
/// `G` is the generation of the encoder: it changes whenever a field may be written in another way than before.
#[derive(Debug, Default)]
pub struct ResponseMemo<G> {
    /// The fields in wire form, then `server`.
    fields: Vec<u8>,
    fields_len: usize,
    status: Option<StatusCode>,
    length: Option<u64>,
    generation: G,
    section: Vec<u8>,
}

impl<G: Copy + PartialEq> ResponseMemo<G> {
    /// The encoded section for `head`, if it equals the remembered head.
    #[inline]
    #[must_use]
    pub fn find(&self, head: &ResponseHead<'_>, generation: G) -> Option<&[u8]> {
        let wire = head.headers.wire()?;
        let (fields, server) = self.fields.split_at_checked(self.fields_len)?;
        let is_same = self.status == Some(head.status)
            && self.length == head.length
            && self.generation == generation
            && fields == wire
            && server == head.server.unwrap_or_default();
        is_same.then_some(&self.section)
    }

    /// Remembers `section`, which was written for `head` and did not change the encoder. Returns whether it is remembered.
    #[inline]
    pub fn note(&mut self, head: &ResponseHead<'_>, generation: G, section: &[u8]) -> bool {
        let Some(wire) = head
            .headers
            .wire()
            .filter(|wire| wire.len() <= MAX_FIELDS_LEN)
        else {
            return false;
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
        true
    }

    /// Bytes of memory held.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.fields.capacity() + self.section.capacity()
    }
}
