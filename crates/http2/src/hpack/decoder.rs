//! The decoder of field blocks (RFC 7541 §3.2).

use std::ops::Range;

use h2o_http::dynamic_table::DynamicTable;
use h2o_http::field_section::{DecodedField, Flaws, NameKind, Pseudo};
use h2o_http::prefixed;
use h2o_http::string_literal::{self, Text};

use super::HpackError;
use super::static_table;

/// Properties of a dynamic table entry. They are computed when the entry is inserted, so that later references to it need
/// not compute them again.
#[derive(Clone, Copy, Debug)]
struct Note {
    kind: NameKind,
    flaws: Flaws,
}

/// The HPACK state of the receiver for one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable<Note>,
    /// The maximum size of the dynamic table that was announced to the peer, in bytes; the peer may choose a smaller one
    /// (RFC 7541 §4.2).
    max_table_size: u32,
    /// Buffer for the name and value of a literal field, if they cannot be borrowed from the block.
    scratch: Vec<u8>,
}

/// A field that the peer encoded as a literal.
struct Literal<'b> {
    name: Text<'b>,
    value: Text<'b>,
    note: Note,
    never_indexed: bool,
}

impl Decoder {
    /// A decoder for a peer to which `max_table_size` was announced (`SETTINGS_HEADER_TABLE_SIZE`, at most 2^30). Allocates
    /// nothing.
    #[must_use]
    pub const fn new(max_table_size: u32) -> Self {
        const LARGEST: u32 = 1 << 30;
        let max_table_size = if max_table_size < LARGEST {
            max_table_size
        } else {
            LARGEST
        };
        Self {
            table: DynamicTable::new(max_table_size),
            max_table_size,
            scratch: Vec::new(),
        }
    }

    /// Decodes a complete field block and passes its fields to `sink`, in order.
    ///
    /// # Errors
    /// Returns an [`HpackError`] if the block is malformed, or an error of `sink`. After either, this decoder must not be
    /// used again: the tables of the two sides differ. If only the message is malformed, `sink` should note that and return
    /// `Ok`.
    pub fn decode<E: From<HpackError>>(
        &mut self,
        block: &[u8],
        mut sink: impl FnMut(DecodedField<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = self.size_updates(block)?;
        while let Some(&first) = rest.first() {
            if first >= 0x80 {
                let (index, after) = prefixed::decode(rest, 7).map_err(HpackError::from)?;
                rest = after;
                sink(self.indexed(index)?)?;
            } else {
                let (literal, after) = self.literal(first, rest)?;
                rest = after;
                let name = || literal.name.bytes(&self.scratch);
                sink(DecodedField {
                    name: literal.note.kind.spelt(name),
                    value: literal.value.bytes(&self.scratch),
                    flaws: literal.note.flaws,
                    never_indexed: literal.never_indexed,
                })?;
            }
        }
        Ok(())
    }

    /// A buffer into which callers may decode Huffman text between two field sections, so that they need no buffer of their
    /// own.
    #[inline]
    pub(crate) const fn scratch(&mut self) -> &mut Vec<u8> {
        &mut self.scratch
    }

    /// A value that changes whenever an index may refer to another field than before. While it is the same, two sections of
    /// the same bytes have the same meaning.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> (u32, u32) {
        (self.table.inserted(), self.table.len())
    }

    /// Number of entries in the dynamic table.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.table.len() as usize
    }

    /// Whether the dynamic table has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// The names and values in the dynamic table, newest first.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.table.iter().map(|entry| (entry.name(), entry.value()))
    }

    /// Bytes of memory that the decoder has allocated, for accounting.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.table.retained() + self.scratch.capacity()
    }

    /// Frees the memory that is only needed while decoding; for idle connections.
    pub fn shrink(&mut self) {
        self.scratch = Vec::new();
    }

    /// Applies the size updates at the start of a block (RFC 7541 §4.2). Returns the rest of the block.
    #[inline]
    fn size_updates<'b>(&mut self, mut block: &'b [u8]) -> Result<&'b [u8], HpackError> {
        while let Some(0x20..=0x3f) = block.first() {
            let (size, rest) = prefixed::decode(block, 5)?;
            if size > self.max_table_size {
                return Err(HpackError::TableTooLarge);
            }
            self.table.resize(size);
            block = rest;
        }
        Ok(block)
    }

    /// The field at `index` of the address space of both tables (RFC 7541 §2.3.3). Inlined, so that the field reaches the
    /// sink in registers.
    #[inline(always)]
    fn indexed(&self, index: u32) -> Result<DecodedField<'_>, HpackError> {
        let field = |name, value, flaws| DecodedField {
            name,
            value,
            flaws,
            never_indexed: false,
        };
        if let Some(age) = index.checked_sub(static_table::LEN + 1) {
            let entry = self.table.get(age).ok_or(HpackError::IndexInvalid)?;
            let note = entry.note();
            let name = note.kind.spelt(|| entry.name());
            return Ok(field(name, entry.value(), note.flaws));
        }
        let entry = static_entry(index)?;
        Ok(field(
            entry.0.spelt(|| b""),
            entry.1.as_bytes(),
            Flaws::NONE,
        ))
    }

    /// Decodes a literal field whose first byte is `first`, and inserts it into the dynamic table if that byte asks for it
    /// (RFC 7541 §6.2). Returns the field and the rest of the block.
    fn literal<'b>(
        &mut self,
        first: u8,
        block: &'b [u8],
    ) -> Result<(Literal<'b>, &'b [u8]), HpackError> {
        let (index_bits, inserts) = match first {
            0x40.. => (6, true),
            0x20..0x40 => return Err(HpackError::SizeUpdateLate),
            0x00..0x20 => (4, false),
        };
        self.scratch.clear();
        let (index, rest) = prefixed::decode(block, index_bits)?;
        let (name, mut note, rest) = if index == 0 {
            let (name, rest) = string_literal::decode(rest, 7, &mut self.scratch)?;
            let (kind, flaws) = NameKind::of(name.bytes(&self.scratch));
            (name, Note { kind, flaws }, rest)
        } else {
            let (name, note) = self.indexed_name(index)?;
            (name, note, rest)
        };
        let (value, rest) = string_literal::decode(rest, 7, &mut self.scratch)?;
        let bytes = value.bytes(&self.scratch);
        note.flaws = note.flaws.and(Flaws::in_value(bytes));
        if inserts {
            let _ = self.table.insert(name.bytes(&self.scratch), bytes, note);
        }
        let literal = Literal {
            name,
            value,
            note,
            never_indexed: first & 0xf0 == 0x10,
        };
        Ok((literal, rest))
    }

    /// The name of the entry at `index` of the address space of both tables.
    fn indexed_name(&mut self, index: u32) -> Result<(Text<'static>, Note), HpackError> {
        let Some(age) = index.checked_sub(static_table::LEN + 1) else {
            let kind = static_entry(index)?.0;
            let note = Note {
                kind,
                flaws: Flaws::NONE,
            };
            return Ok((Text::Plain(kind.fixed_text().unwrap_or_default()), note));
        };
        let entry = self.table.get(age).ok_or(HpackError::IndexInvalid)?;
        let note = Note {
            kind: entry.note().kind,
            flaws: entry.note().flaws.of_name(),
        };
        let name = match note.kind.fixed_text() {
            Some(text) => Text::Plain(text),
            // The name is copied, because inserting the new field may evict the entry that has the name (RFC 7541 §4.4).
            None => {
                self.scratch.extend_from_slice(entry.name());
                Text::Scratch(0..self.scratch.len())
            }
        };
        Ok((name, note))
    }
}

/// The entry at `index` of the static table; its indices begin at 1.
#[inline]
fn static_entry(index: u32) -> Result<&'static (NameKind, &'static str), HpackError> {
    static_table::FIELDS
        .get((index as usize).wrapping_sub(1))
        .ok_or(HpackError::IndexInvalid)
}

/// The range in `block` of the string literal of `:path`, if that field is a literal that enters no table and whose name is
/// in the static table. `block` must have been decoded without an error.
pub(crate) fn path_string(block: &[u8]) -> Option<Range<usize>> {
    let mut rest = block;
    loop {
        let &first = rest.first()?;
        let index_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, after) = prefixed::decode(rest, index_bits).ok()?;
        rest = after;
        if matches!(first, 0x20..0x40 | 0x80..) {
            continue;
        }
        if index == 0 {
            rest = string_literal::skip(rest, 7)?;
        }
        let start = block.len() - rest.len();
        rest = string_literal::skip(rest, 7)?;
        if first < 0x20
            && static_entry(index).is_ok_and(|entry| entry.0 == NameKind::Pseudo(Pseudo::Path))
        {
            return Some(start..block.len() - rest.len());
        }
    }
}
