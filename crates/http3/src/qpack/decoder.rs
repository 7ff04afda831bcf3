//! The decoder of field sections, which also executes the instructions of the peer's encoder (RFC 9204 §2.2).

use h2o_http::dynamic_table::{DynamicTable, TableEntry};
use h2o_http::field_section::{DecodedField, Flaws, NameKind, Pseudo};
use h2o_http::prefixed::{self, PrefixedError};
use h2o_http::string_literal::{self, StringError, Text};

use super::{MIN_ENTRY, QpackError, static_table};
use crate::stream_id::StreamId;

/// Properties of a dynamic table entry. They are computed when the entry is inserted, so that later references to it need
/// not compute them again.
#[derive(Clone, Copy, Debug)]
struct Note {
    kind: NameKind,
    flaws: Flaws,
}

/// Whether a section could be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The section was decoded, and its fields were passed to the sink.
    Done,
    /// The section refers to entries that have not arrived. No field was passed to the sink. The section can be decoded
    /// after this number of insertions.
    Blocked(u64),
}

/// The QPACK state of the receiver for one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable<Note>,
    /// The maximum capacity in bytes that was announced to the peer, which sets the actual capacity.
    max_capacity: u32,
    /// Number of insertions into the table so far.
    inserted: u64,
    /// Number of insertions that were acknowledged to the peer's encoder.
    reported: u64,
    /// The start of an encoder instruction of which the end has not arrived.
    partial: Vec<u8>,
    /// Buffer for the name and value of a literal field, if they cannot be borrowed from the input.
    scratch: Vec<u8>,
}

/// A field line that the peer encoded as a literal.
struct Literal<'b> {
    name: Text<'b>,
    value: Text<'b>,
    note: Note,
    never_indexed: bool,
}

/// The prefix of an encoded field section (RFC 9204 §4.5.1).
#[derive(Clone, Copy, Debug)]
struct Prefix {
    required: u64,
    base: u64,
}

impl Decoder {
    /// A decoder for a peer to which `max_capacity` was announced (`SETTINGS_QPACK_MAX_TABLE_CAPACITY`; more than 2^30
    /// counts as 2^30). Allocates nothing.
    #[must_use]
    pub const fn new(max_capacity: u32) -> Self {
        const LARGEST: u32 = 1 << 30;
        Self {
            table: DynamicTable::new(0),
            max_capacity: if max_capacity < LARGEST {
                max_capacity
            } else {
                LARGEST
            },
            inserted: 0,
            reported: 0,
            partial: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Decodes a complete field section of a stream and passes its fields to `sink`, in order. Appends the acknowledgement
    /// for the peer's encoder, if one is due, to `instructions`, which the caller sends on the decoder stream.
    ///
    /// # Errors
    /// Returns [`QpackError::Section`] if the section is malformed, or an error of `sink`. Either ends the decoding. If
    /// only the message is malformed, `sink` should note that and return `Ok`.
    #[inline]
    pub fn decode<E: From<QpackError>>(
        &mut self,
        stream: StreamId,
        section: &[u8],
        instructions: &mut Vec<u8>,
        mut sink: impl FnMut(DecodedField<'_>) -> Result<(), E>,
    ) -> Result<Decoded, E> {
        let (prefix, mut rest) = self.prefix(section)?;
        if prefix.required > self.inserted {
            return Ok(Decoded::Blocked(prefix.required));
        }
        while let Some(&first) = rest.first() {
            match first {
                0xc0.. => {
                    let (index, after) = prefixed::decode(rest, 6).map_err(QpackError::from)?;
                    rest = after;
                    let entry = static_entry(index)?;
                    sink(DecodedField {
                        name: entry.kind.spelt(|| entry.name()),
                        value: entry.value.as_bytes(),
                        flaws: Flaws::NONE,
                        never_indexed: false,
                    })?;
                }
                0x80..0xc0 | 0x10..0x20 => {
                    let (entry, after) = self.indexed(first, &prefix, rest)?;
                    rest = after;
                    let note = entry.note();
                    sink(DecodedField {
                        name: note.kind.spelt(|| entry.name()),
                        value: entry.value(),
                        flaws: note.flaws,
                        never_indexed: false,
                    })?;
                }
                0x20..0x80 | 0x00..0x10 => {
                    let (literal, after) = self.literal(first, &prefix, rest)?;
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
        }
        self.acknowledge(stream, prefix.required, instructions);
        Ok(Decoded::Done)
    }

    /// Appends the acknowledgement of a decoded section for the peer's encoder (RFC 9204 §4.4.1), if the section requires
    /// one.
    fn acknowledge(&mut self, stream: StreamId, required: u64, instructions: &mut Vec<u8>) {
        if required > 0 {
            encode_number(0x80, 7, stream.get(), instructions);
            self.reported = self.reported.max(required);
        }
    }

    /// Appends a stream cancellation for the peer's encoder: the stream ends before all of its sections were decoded (RFC
    /// 9204 §2.2.2.2).
    pub fn cancel(&self, stream: StreamId, instructions: &mut Vec<u8>) {
        if self.max_capacity > 0 {
            encode_number(0x40, 6, stream.get(), instructions);
        }
    }

    /// Executes the instructions of the peer's encoder, which may be split anywhere. Appends the number of new insertions
    /// to `instructions`, which the caller sends on the decoder stream.
    ///
    /// # Errors
    /// Returns [`QpackError::EncoderStream`] if an instruction cannot be executed. The decoder must not be used any more
    /// then.
    pub fn receive(&mut self, input: &[u8], instructions: &mut Vec<u8>) -> Result<(), QpackError> {
        if self.partial.is_empty() {
            let taken = self.follow(input)?;
            self.partial.extend_from_slice(&input[taken..]);
        } else {
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.extend_from_slice(input);
            let taken = self.follow(&bytes)?;
            bytes.drain(..taken);
            self.partial = bytes;
        }
        self.check_partial()?;
        let new = self.inserted - self.reported;
        if new > 0 {
            encode_number(0, 6, new, instructions);
            self.reported = self.inserted;
        }
        Ok(())
    }

    /// Checks the length of an incomplete instruction: it cannot be longer than any encoding of an entry that fits the
    /// table.
    fn check_partial(&self) -> Result<(), QpackError> {
        // The longest Huffman code of a byte has 30 bits, hence four bytes for each byte of text, and three integers have
        // up to six bytes each.
        let most = 4 * self.table.max_size() as usize + 18;
        if self.partial.len() > most {
            return Err(QpackError::EncoderStream);
        }
        Ok(())
    }

    /// Executes all complete instructions in `input`. Returns their length in bytes.
    fn follow(&mut self, input: &[u8]) -> Result<usize, QpackError> {
        let mut rest = input;
        while !rest.is_empty() {
            match self.instruction(rest) {
                Ok(after) => rest = after,
                Err(StringError::Length(PrefixedError::Incomplete)) => break,
                Err(_) => return Err(QpackError::EncoderStream),
            }
        }
        Ok(input.len() - rest.len())
    }

    /// Executes the instruction at the start of `input` (RFC 9204 §4.3). Returns the rest of the input.
    fn instruction<'i>(&mut self, input: &'i [u8]) -> Result<&'i [u8], StringError> {
        const WRONG: StringError = StringError::Length(PrefixedError::TooLarge);
        const CUT_OFF: StringError = StringError::Length(PrefixedError::Incomplete);
        let &first = input.first().ok_or(CUT_OFF)?;
        self.scratch.clear();
        let (name, note, rest) = match first {
            0x80.. => {
                let (index, rest) = prefixed::decode(input, 6)?;
                string_literal::skip(rest, 7).ok_or_else(|| incomplete(rest, 7))?;
                let (name, note) = if first & 0x40 != 0 {
                    static_name(index).map_err(|_| WRONG)?
                } else {
                    self.dynamic_name(u64::from(index)).ok_or(WRONG)?
                };
                (name, note, rest)
            }
            0x40..0x80 => {
                let value = string_literal::skip(input, 5).ok_or_else(|| incomplete(input, 5))?;
                string_literal::skip(value, 7).ok_or_else(|| incomplete(value, 7))?;
                let (name, rest) = string_literal::decode(input, 5, &mut self.scratch)?;
                let (kind, flaws) = NameKind::of(name.bytes(&self.scratch));
                (name, Note { kind, flaws }, rest)
            }
            0x20..0x40 => {
                let (capacity, rest) = prefixed::decode(input, 5)?;
                if capacity > self.max_capacity {
                    return Err(WRONG);
                }
                self.table.resize(capacity);
                return Ok(rest);
            }
            0x00..0x20 => {
                let (index, rest) = prefixed::decode(input, 5)?;
                let entry = self.table.get(index).ok_or(WRONG)?;
                let note = *entry.note();
                // The text is copied, because inserting the new entry may evict the entry that it duplicates.
                self.scratch.extend_from_slice(entry.name());
                let len = self.scratch.len();
                self.scratch.extend_from_slice(entry.value());
                let (name, value) = self.scratch.split_at(len);
                if !self.table.insert(name, value, note) {
                    return Err(WRONG);
                }
                self.inserted += 1;
                return Ok(rest);
            }
        };
        let (value, rest) = string_literal::decode(rest, 7, &mut self.scratch)?;
        let bytes = value.bytes(&self.scratch);
        let note = Note {
            kind: note.kind,
            flaws: note.flaws.and(Flaws::in_value(bytes)),
        };
        // It is an error to insert an entry that is larger than the table (RFC 9204 §3.2.2).
        if !self.table.insert(name.bytes(&self.scratch), bytes, note) {
            return Err(WRONG);
        }
        self.inserted += 1;
        Ok(rest)
    }

    /// The length from which the limit of a section's decoded text is computed, as twice this length plus a constant: the
    /// section's own length, plus half the size of the dynamic table, since a section may refer to every entry once.
    #[inline]
    #[must_use]
    pub(crate) const fn text_len(&self, section: &[u8]) -> usize {
        section.len() + self.table.size() as usize / 2
    }

    /// A value that changes whenever `section` may have another meaning than before. It never changes for a section that
    /// refers to no entry of the dynamic table.
    #[inline]
    #[must_use]
    pub fn generation(&self, section: &[u8]) -> u64 {
        match section.first() {
            None | Some(0) => 0,
            Some(_) => self.inserted,
        }
    }

    /// Acknowledges a section whose bytes were decoded before and that was received again on a stream, without decoding it.
    /// The acknowledgement for the peer's encoder is appended to `instructions`.
    ///
    /// # Errors
    /// Returns [`QpackError::Section`] if the section is malformed.
    #[inline]
    pub fn repeat(
        &mut self,
        stream: StreamId,
        section: &[u8],
        instructions: &mut Vec<u8>,
    ) -> Result<(), QpackError> {
        let (prefix, _) = self.prefix(section)?;
        self.acknowledge(stream, prefix.required, instructions);
        Ok(())
    }

    /// A buffer into which callers may decode text between two field sections, so that they need no buffer of their own.
    #[inline]
    pub(crate) const fn scratch(&mut self) -> &mut Vec<u8> {
        &mut self.scratch
    }

    /// Number of insertions into the table so far.
    #[inline]
    #[must_use]
    pub const fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Number of entries in the dynamic table.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.table.len() as usize
    }

    /// Whether the dynamic table has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of memory that the decoder has allocated, for accounting.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.table.retained() + self.scratch.capacity() + self.partial.capacity()
    }

    /// Frees the memory that is only needed while decoding; for idle connections.
    pub fn shrink(&mut self) {
        self.scratch = Vec::new();
        self.partial.shrink_to_fit();
    }

    /// Decodes the prefix of a section (RFC 9204 §4.5.1). Returns it with the rest of the section.
    #[inline]
    fn prefix<'b>(&self, section: &'b [u8]) -> Result<(Prefix, &'b [u8]), QpackError> {
        if let [0, 0, rest @ ..] = section {
            let nothing = Prefix {
                required: 0,
                base: 0,
            };
            return Ok((nothing, rest));
        }
        let (encoded, rest) = prefixed::decode(section, 8)?;
        let required = self.required(u64::from(encoded))?;
        let is_negative = rest.first().is_some_and(|first| first & 0x80 != 0);
        let (delta, rest) = prefixed::decode(rest, 7)?;
        let delta = u64::from(delta);
        let base = if is_negative {
            required.checked_sub(delta + 1).ok_or(QpackError::Section)?
        } else {
            required + delta
        };
        Ok((Prefix { required, base }, rest))
    }

    /// The number of insertions that a section requires, from its encoded form (RFC 9204 §4.5.1.1).
    fn required(&self, encoded: u64) -> Result<u64, QpackError> {
        if encoded == 0 {
            return Ok(0);
        }
        let max_entries = u64::from(self.max_capacity / MIN_ENTRY);
        let full_range = 2 * max_entries;
        if encoded > full_range {
            return Err(QpackError::Section);
        }
        let max_value = self.inserted + max_entries;
        let max_wrapped = max_value / full_range * full_range;
        let mut required = max_wrapped + encoded - 1;
        if required > max_value {
            required = required
                .checked_sub(full_range)
                .ok_or(QpackError::Section)?;
        }
        if required == 0 {
            return Err(QpackError::Section);
        }
        Ok(required)
    }

    /// The dynamic table entry to which an indexed field line refers, and the bytes after the line.
    #[inline]
    fn indexed<'b>(
        &self,
        first: u8,
        prefix: &Prefix,
        line: &'b [u8],
    ) -> Result<(TableEntry<'_, Note>, &'b [u8]), QpackError> {
        let (index, rest) = if first >= 0x80 {
            let (index, rest) = prefixed::decode(line, 6)?;
            (prefix.relative(index)?, rest)
        } else {
            let (index, rest) = prefixed::decode(line, 4)?;
            (prefix.post_base(index), rest)
        };
        Ok((self.entry(prefix, index)?, rest))
    }

    /// The dynamic table entry with this absolute index. It is an error if the prefix of the section does not allow the
    /// reference.
    #[inline]
    fn entry(&self, prefix: &Prefix, index: u64) -> Result<TableEntry<'_, Note>, QpackError> {
        if index >= prefix.required {
            return Err(QpackError::Section);
        }
        let age = u32::try_from(self.inserted - 1 - index).map_err(|_| QpackError::Section)?;
        self.table.get(age).ok_or(QpackError::Section)
    }

    /// The name of the dynamic table entry that is `age` entries older than the newest one, with its properties.
    fn dynamic_name(&mut self, age: u64) -> Option<(Text<'static>, Note)> {
        let entry = self.table.get(u32::try_from(age).ok()?)?;
        let note = Note {
            kind: entry.note().kind,
            flaws: entry.note().flaws.of_name(),
        };
        if let Some(text) = note.kind.fixed_text() {
            return Some((Text::Plain(text), note));
        }
        // The name is copied, because inserting the new entry may evict the entry that has the name.
        let start = self.scratch.len();
        self.scratch.extend_from_slice(entry.name());
        Some((Text::Scratch(start..self.scratch.len()), note))
    }

    /// Decodes a literal field line whose first byte is `first`. Returns the field and the bytes after the line.
    fn literal<'b>(
        &mut self,
        first: u8,
        prefix: &Prefix,
        line: &'b [u8],
    ) -> Result<(Literal<'b>, &'b [u8]), QpackError> {
        self.scratch.clear();
        let (name, mut note, never_indexed, rest) = match first {
            0x40.. => {
                let (index, rest) = prefixed::decode(line, 4)?;
                let (name, note) = if first & 0x10 != 0 {
                    static_name(index)?
                } else {
                    self.line_name(prefix, prefix.relative(index)?)?
                };
                (name, note, first & 0x20 != 0, rest)
            }
            0x20..0x40 => {
                let (name, rest) = string_literal::decode(line, 3, &mut self.scratch)?;
                let (kind, flaws) = NameKind::of(name.bytes(&self.scratch));
                (name, Note { kind, flaws }, first & 0x10 != 0, rest)
            }
            0x00..0x20 => {
                let (index, rest) = prefixed::decode(line, 3)?;
                let (name, note) = self.line_name(prefix, prefix.post_base(index))?;
                (name, note, first & 0x08 != 0, rest)
            }
        };
        let (value, rest) = string_literal::decode(rest, 7, &mut self.scratch)?;
        note.flaws = note.flaws.and(Flaws::in_value(value.bytes(&self.scratch)));
        let literal = Literal {
            name,
            value,
            note,
            never_indexed,
        };
        Ok((literal, rest))
    }

    /// The name of the dynamic table entry with this absolute index, for a field line.
    fn line_name(
        &mut self,
        prefix: &Prefix,
        index: u64,
    ) -> Result<(Text<'static>, Note), QpackError> {
        if index >= prefix.required {
            return Err(QpackError::Section);
        }
        self.dynamic_name(self.inserted - 1 - index)
            .ok_or(QpackError::Section)
    }
}

impl Prefix {
    /// The absolute index for an index relative to the base (RFC 9204 §3.2.5).
    #[inline]
    fn relative(&self, index: u32) -> Result<u64, QpackError> {
        self.base
            .checked_sub(u64::from(index) + 1)
            .ok_or(QpackError::Section)
    }

    /// The absolute index for a post-base index (RFC 9204 §3.2.6).
    #[inline]
    fn post_base(&self, index: u32) -> u64 {
        self.base + u64::from(index)
    }
}

/// Why a string at the start of `input` could not be skipped.
#[cold]
fn incomplete(input: &[u8], bits: u32) -> StringError {
    match prefixed::decode(input, bits) {
        Ok(_) => PrefixedError::Incomplete.into(),
        Err(error) => error.into(),
    }
}

#[inline]
fn static_entry(index: u32) -> Result<&'static static_table::Entry, QpackError> {
    static_table::FIELDS
        .get(index as usize)
        .ok_or(QpackError::Section)
}

fn static_name(index: u32) -> Result<(Text<'static>, Note), QpackError> {
    let entry = static_entry(index)?;
    let note = Note {
        kind: entry.kind,
        flaws: Flaws::NONE,
    };
    Ok((Text::Plain(entry.name()), note))
}

/// Appends an integer of up to 62 bits with a prefix of `bits` bits, below the `flags` of the first byte.
#[inline]
pub(crate) fn encode_number(flags: u8, bits: u32, value: u64, out: &mut Vec<u8>) {
    // The conversion loses nothing: `usize` has 64 bits on every system that this server supports.
    prefixed::encode(
        flags,
        bits,
        usize::try_from(value).unwrap_or(usize::MAX),
        out,
    );
}

/// The range in `section` of the string literal of `:path`, if that field is a literal whose name is in the static table.
/// `section` must have been decoded without an error.
#[must_use]
pub fn path_string(section: &[u8]) -> Option<std::ops::Range<usize>> {
    let (_, rest) = prefixed::decode(section, 8).ok()?;
    let (_, mut rest) = prefixed::decode(rest, 7).ok()?;
    loop {
        let &first = rest.first()?;
        rest = match first {
            0x80.. => prefixed::decode(rest, 6).ok()?.1,
            0x40..0x80 => {
                let (index, after) = prefixed::decode(rest, 4).ok()?;
                let end = string_literal::skip(after, 7)?;
                let is_static = first & 0x10 != 0;
                if is_static
                    && static_entry(index)
                        .is_ok_and(|entry| entry.kind == NameKind::Pseudo(Pseudo::Path))
                {
                    return Some(section.len() - after.len()..section.len() - end.len());
                }
                end
            }
            0x20..0x40 => string_literal::skip(string_literal::skip(rest, 3)?, 7)?,
            0x10..0x20 => prefixed::decode(rest, 4).ok()?.1,
            0x00..0x10 => string_literal::skip(prefixed::decode(rest, 3).ok()?.1, 7)?,
        };
    }
}
