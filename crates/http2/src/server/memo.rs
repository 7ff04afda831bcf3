//! The latest heads of both directions, as they were and as they are on the wire: requests of one kind follow each other
//! (calls of one method, polls, checks), and an index into a header table means the same until something enters it.

use h2o_http::{RequestHead, StatusCode};

use super::ResponseHead;
use crate::fields::RequestSection;
use crate::hpack::{Decoder, Encoder};

/// Octets of a request's section above which it is not remembered.
const MAX_SECTION_LEN: usize = 128;

/// Octets of fields above which a head is not remembered.
const MAX_FIELDS_LEN: usize = 512;

/// A request's section that was decoded. What it says is only kept once it has come twice in a row.
#[derive(Debug, Default)]
pub(super) struct RequestMemo {
    section: Vec<u8>,
    generation: (u32, u32),
    said: Option<Box<(RequestHead, RequestSection)>>,
}

impl RequestMemo {
    /// What the section says, if it is the same as last time and the time before.
    #[inline]
    pub(super) fn find(
        &self,
        section: &[u8],
        decoder: &Decoder,
    ) -> Option<(&RequestHead, RequestSection)> {
        let (head, request) = &**self.said.as_ref()?;
        let is_same = self.section == section && self.generation == decoder.generation();
        is_same.then_some((head, *request))
    }

    /// Notes what a section said. `generation` is that of the decoder before it.
    #[inline]
    pub(super) fn note(
        &mut self,
        section: &[u8],
        generation: (u32, u32),
        decoder: &Decoder,
        head: &RequestHead,
        request: RequestSection,
    ) {
        // A section that changes the table means something else the next time.
        let changes = matches!(section.first(), Some(0x20..=0x3f));
        if changes || generation != decoder.generation() || section.len() > MAX_SECTION_LEN {
            return;
        }
        if self.section == section && self.generation == generation {
            self.said = Some(Box::new((head.clone(), request)));
            return;
        }
        self.said = None;
        self.section.clear();
        self.section.extend_from_slice(section);
        self.generation = generation;
    }

    /// Octets of memory held.
    pub(super) fn retained(&self) -> usize {
        let said = self.said.as_ref().map_or(0, |said| {
            size_of::<(RequestHead, RequestSection)>() + said.0.headers.retained()
        });
        self.section.capacity() + said
    }
}

/// A response head that was written, and what it depended on.
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
    /// The field section to write for `head`, if it is the same as last time.
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

    /// Remembers `section`, written for `head`, if nothing entered the table since `generation`.
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

    /// Octets of memory held.
    pub(super) const fn retained(&self) -> usize {
        self.fields.capacity() + self.section.capacity()
    }
}
