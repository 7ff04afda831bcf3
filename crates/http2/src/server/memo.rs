//! The latest response head, as it was and as it was written: responses of one kind follow each other, and an index into
//! the header table means the same until something enters the table.

use h2o_http::StatusCode;

use super::ResponseHead;
use crate::hpack::Encoder;

/// Octets of fields above which a head is not remembered.
const MAX_FIELDS_LEN: usize = 512;

/// A response head that was written, and what it depended on.
#[derive(Debug, Default)]
pub(super) struct HeadMemo {
    /// The fields in wire form, then `server`.
    fields: Vec<u8>,
    fields_len: usize,
    status: Option<StatusCode>,
    length: Option<u64>,
    generation: u32,
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
        generation: u32,
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
