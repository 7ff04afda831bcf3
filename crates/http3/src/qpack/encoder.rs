//! The encoder of field sections (RFC 9204 §2.1, §4.5), which also reads the acknowledgements of the peer's decoder (§4.4).
//!
//! The dynamic table is for fields that are sent repeatedly. A field enters it when it is sent a second time within a short
//! while, so that fields that are sent once cost nothing. The encoder refers to an entry once the peer has acknowledged it:
//! no section ever has to wait for the encoder stream, however many waiting streams the peer allows.

use std::collections::VecDeque;

use h2o_http::dynamic_table::ENTRY_OVERHEAD;
use h2o_http::encoder_table::{EncodedName, EncoderTable};
use h2o_http::field_section::{NameKind, Pseudo, field_hash, pseudo_hash};
use h2o_http::prefixed::{self, PrefixedError};
use h2o_http::{Known, Name, StatusCode, string_literal};

use super::{MIN_ENTRY, QpackError, encode_number, static_table};
use crate::stream_id::StreamId;

/// Cookies shorter than this number of bytes are kept out of the table: an attacker could find out their values by trial
/// (RFC 9204 §7.1.3).
const MIN_INDEXED_COOKIE: usize = 20;
/// How many of the fields sent last are remembered, by their hashes; a power of two.
const LATELY: usize = 64;
/// Maximum number of sections that refer to the dynamic table and that the peer has not acknowledged. Once it is reached,
/// new sections do not refer to the table.
const MAX_OUTSTANDING: usize = 256;
/// Size in bytes of the largest table that the encoder uses: its entries are distinguished by 16-bit numbers.
const LARGEST_TABLE: u32 = 1 << 20;
/// Maximum length in bytes of an acknowledgement on the decoder stream.
const MAX_INSTRUCTION: usize = 11;

/// The dynamic table entries to which a section refers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// The number of insertions that the section requires; 0 if it does not refer to the dynamic table.
    required: u64,
    /// The absolute index of the oldest entry to which the section refers.
    oldest: u64,
}

/// The QPACK state of the sender for one direction of a connection.
#[derive(Debug)]
pub struct Encoder {
    /// The dynamic table; `None` until the peer announces the capacity of its table.
    table: Option<Box<EncoderTable>>,
    /// Maximum size in bytes that the encoder lets the table have.
    limit: u32,
    /// The maximum number of entries in a table of the capacity that the peer announced.
    max_entries: u64,
    /// Whether the peer must be told the table's capacity, which is done before the first insertion.
    tells_capacity: bool,
    /// Number of insertions so far; `known` is the number of those that the peer has acknowledged.
    inserted: u64,
    known: u64,
    /// Sections that refer to the table and that the peer has not acknowledged, in the order in which they were written.
    outstanding: VecDeque<(StreamId, References)>,
    /// Hashes of the fields sent last; the place of a hash follows from its low bits.
    lately: Option<Box<[u32; LATELY]>>,
    /// A part of [`Self::generation`]: grows with each sent field that was not among the remembered ones, and when the peer
    /// announces the capacity of its table.
    tried: u64,
    /// The start of an acknowledgement of which the end has not arrived.
    partial: Partial,
}

#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    bytes: [u8; MAX_INSTRUCTION],
    len: u8,
}

/// The writer of one field section, which [`Encoder::section`] begins.
#[derive(Debug)]
pub struct SectionWriter<'e> {
    encoder: &'e mut Encoder,
    out: &'e mut Vec<u8>,
    /// The buffer of the encoder stream; `None` if that stream has no room for more.
    instructions: Option<&'e mut Vec<u8>>,
    /// The position in `out` where the section begins.
    at: usize,
    references: References,
    /// The section may refer to the entries that were inserted before this number of insertions.
    base: u64,
}

impl Encoder {
    /// An encoder with a table of at most `limit` bytes. The table is empty until the peer announces its capacity.
    /// Allocates nothing.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self {
            table: None,
            limit: if limit < LARGEST_TABLE {
                limit
            } else {
                LARGEST_TABLE
            },
            max_entries: 0,
            tells_capacity: false,
            inserted: 0,
            known: 0,
            outstanding: VecDeque::new(),
            lately: None,
            tried: 0,
            partial: Partial {
                bytes: [0; MAX_INSTRUCTION],
                len: 0,
            },
        }
    }

    /// Applies the peer's `SETTINGS_QPACK_MAX_TABLE_CAPACITY`, which it announces once.
    pub fn set_peer_capacity(&mut self, capacity: u64) {
        let size = u32::try_from(capacity).map_or(self.limit, |size| size.min(self.limit));
        self.max_entries = capacity / u64::from(MIN_ENTRY);
        self.tells_capacity = size > 0;
        if size > 0 {
            self.table = Some(Box::new(EncoderTable::new(size)));
        }
        self.tried += 1;
    }

    /// A value that changes whenever the encoder may write the same field differently than before.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> (u64, u64) {
        (self.inserted + self.tried, self.known)
    }

    /// Begins a field section at the end of `out`. Instructions for the peer are appended to `instructions`, the buffer of
    /// the encoder stream. `None` means that this stream has no room: the section then uses only the entries that the
    /// dynamic table already has.
    #[inline]
    pub fn section<'e>(
        &'e mut self,
        out: &'e mut Vec<u8>,
        instructions: Option<&'e mut Vec<u8>>,
    ) -> SectionWriter<'e> {
        let at = out.len();
        out.extend_from_slice(&[0, 0]);
        let base = if self.can_refer() { self.known } else { 0 };
        SectionWriter {
            encoder: self,
            out,
            instructions,
            at,
            references: References::default(),
            base,
        }
    }

    /// Whether a section with these references that was written before can be sent again.
    #[inline]
    #[must_use]
    pub fn can_repeat(&self, references: References) -> bool {
        references.required == 0 || self.can_refer()
    }

    /// Notes that a section with these references was sent on a stream.
    #[inline]
    pub fn note(&mut self, stream: StreamId, references: References) {
        if references.required > 0 {
            self.outstanding.push_back((stream, references));
        }
    }

    #[inline]
    fn can_refer(&self) -> bool {
        self.outstanding.len() < MAX_OUTSTANDING
    }

    /// Reads the acknowledgements on the decoder stream of the peer, which may be split anywhere.
    ///
    /// # Errors
    /// Returns [`QpackError::DecoderStream`] if an acknowledgement matches nothing that was sent. The encoder must not be
    /// used any more then.
    pub fn receive(&mut self, mut input: &[u8]) -> Result<(), QpackError> {
        while !input.is_empty() {
            if self.partial.len == 0
                && let Some(rest) = self.acknowledgement(input)?
            {
                input = rest;
                continue;
            }
            let Some((&byte, rest)) = input.split_first() else {
                break;
            };
            input = rest;
            let Partial { bytes, len } = &mut self.partial;
            let Some(next) = bytes.get_mut(usize::from(*len)) else {
                return Err(QpackError::DecoderStream);
            };
            *next = byte;
            *len += 1;
            let had = self.partial;
            let had = had.bytes.get(..usize::from(had.len)).unwrap_or_default();
            if self.acknowledgement(had)?.is_some() {
                self.partial.len = 0;
            }
        }
        Ok(())
    }

    /// Executes the instruction at the start of `input`. Returns the rest of the input; `None` if the instruction is not
    /// complete.
    fn acknowledgement<'i>(&mut self, input: &'i [u8]) -> Result<Option<&'i [u8]>, QpackError> {
        let Some(&first) = input.first() else {
            return Ok(None);
        };
        let bits = match first {
            0x80.. => 7,
            0x00..0x80 => 6,
        };
        let (value, rest) = match prefixed::decode_wide(input, bits) {
            Ok(decoded) => decoded,
            Err(PrefixedError::Incomplete) => return Ok(None),
            Err(PrefixedError::TooLarge) => return Err(QpackError::DecoderStream),
        };
        match first {
            0x80.. => self.on_section_acknowledged(StreamId::new(value))?,
            0x40..0x80 => {
                let is_other = |&(stream, _): &(StreamId, References)| stream.get() != value;
                self.outstanding.retain(is_other);
            }
            0x00..0x40 => {
                if value == 0 || value > self.inserted - self.known {
                    return Err(QpackError::DecoderStream);
                }
                self.known += value;
            }
        }
        Ok(Some(rest))
    }

    fn on_section_acknowledged(&mut self, stream: StreamId) -> Result<(), QpackError> {
        let at = self.outstanding.iter().position(|&(id, _)| id == stream);
        let section = at.and_then(|at| self.outstanding.remove(at));
        // An acknowledged section also acknowledges the insertions that it requires, but those are known already: sections
        // only refer to acknowledged entries.
        section.map(drop).ok_or(QpackError::DecoderStream)
    }

    /// Inserts a field if the table has room, or if unneeded entries can be evicted to make room. `oldest` is the oldest
    /// entry to which the section that is being written refers; it must stay.
    fn insert(
        &mut self,
        name: EncodedName<'_>,
        value: &[u8],
        hash: u32,
        oldest: Option<u64>,
        instructions: &mut Vec<u8>,
    ) {
        let Some(table) = &self.table else {
            return;
        };
        let entries = table.entries();
        let size = name.text.len() + value.len() + ENTRY_OVERHEAD as usize;
        // The entry of a field larger than half of the table would evict others that are of more use.
        if size > entries.max_size() as usize / 2 {
            return;
        }
        let needed = (entries.size() as usize + size).saturating_sub(entries.max_size() as usize);
        if needed > 0 && !self.can_evict(needed, oldest) {
            return;
        }
        if std::mem::take(&mut self.tells_capacity) {
            let capacity = entries.max_size() as usize;
            prefixed::encode(0x20, 5, capacity, instructions);
        }
        let run = static_table::run_of(name.kind, name.text);
        if run.is_empty() {
            string_literal::encode(0x40, 5, name.text, instructions);
        } else {
            prefixed::encode(0xc0, 6, usize::from(run.first), instructions);
        }
        string_literal::encode(0, 7, value, instructions);
        let table = self.table.as_mut();
        if table.is_some_and(|table| table.insert(name, value, hash)) {
            self.inserted += 1;
        }
    }

    /// Whether the oldest entries may be evicted to free `needed` bytes (RFC 9204 §2.1.1).
    fn can_evict(&self, needed: usize, oldest: Option<u64>) -> bool {
        let Some(table) = &self.table else {
            return false;
        };
        let entries = table.entries();
        let sections = self.outstanding.iter();
        let referenced = sections.map(|(_, references)| references.oldest);
        let first_needed = referenced.chain(oldest).min().unwrap_or(self.known);
        // Entries that the peer has not acknowledged must stay, too.
        let first_needed = first_needed.min(self.known);
        let mut freed = 0;
        for age in (0..entries.len()).rev() {
            if freed >= needed {
                break;
            }
            let is_needed = self.inserted - 1 - u64::from(age) >= first_needed;
            let Some(entry) = entries.get(age).filter(|_| !is_needed) else {
                return false;
            };
            freed += entry.size() as usize;
        }
        freed >= needed
    }

    /// Whether the field with this hash is among those sent last. Notes it as sent.
    #[inline]
    fn is_repeated(&mut self, hash: u32) -> bool {
        let lately = self.lately.get_or_insert_with(|| Box::new([0; LATELY]));
        let place = &mut lately[hash as usize % LATELY];
        let is_repeated = *place == hash;
        if !is_repeated {
            *place = hash;
            self.tried += 1;
        }
        is_repeated
    }

    /// Number of insertions into the table so far.
    #[must_use]
    pub const fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Number of sections that refer to the table and that the peer has not acknowledged.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Bytes of memory that the encoder has allocated, for accounting.
    #[must_use]
    pub fn retained(&self) -> usize {
        let lately = self.lately.as_ref();
        let table = self.table.as_ref();
        table.map_or(0, |table| size_of_val(&**table) + table.retained())
            + lately.map_or(0, |hashes| size_of_val(&**hashes))
            + self.outstanding.capacity() * size_of::<(StreamId, References)>()
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.outstanding.shrink_to_fit();
    }
}

impl SectionWriter<'_> {
    /// Appends the field `:status`.
    #[inline]
    pub fn status(&mut self, status: StatusCode) {
        let index = match status.as_u16() {
            100 => 63,
            103 => 24,
            200 => 25,
            204 => 64,
            206 => 65,
            302 => 66,
            304 => 26,
            400 => 67,
            403 => 68,
            404 => 27,
            421 => 69,
            425 => 70,
            500 => 71,
            503 => 28,
            _ => return self.pseudo(Pseudo::Status, &status.digits()),
        };
        prefixed::encode(0xc0, 6, index, self.out);
    }

    /// Appends a pseudo-header field, which must not be [`Pseudo::Unknown`].
    pub fn pseudo(&mut self, pseudo: Pseudo, value: &[u8]) {
        debug_assert!(pseudo != Pseudo::Unknown);
        self.encode(EncodedName::pseudo(pseudo), value, || {
            pseudo_hash(pseudo, value)
        });
    }

    /// Appends a regular field.
    #[inline]
    pub fn field(&mut self, name: Name<'_>, value: &[u8]) {
        self.encode(name.into(), value, || field_hash(name, value));
    }

    #[inline]
    fn encode(&mut self, name: EncodedName<'_>, value: &[u8], hash: impl FnOnce() -> u32) {
        let run = static_table::run_of(name.kind, name.text);
        if let Some(index) = static_table::exact_match(run, value) {
            prefixed::encode(0xc0, 6, usize::from(index), self.out);
            return;
        }
        if self.encoder.table.is_some() && self.dynamic(name, value, hash()) {
            return;
        }
        literal(name, run, value, self.out);
    }

    /// Appends a reference to the field's entry in the dynamic table, if there is one and the peer has acknowledged it. If
    /// there is no entry and the field is likely to be sent again, inserts it. Returns whether the field was written.
    #[inline]
    fn dynamic(&mut self, name: EncodedName<'_>, value: &[u8], hash: u32) -> bool {
        let table = self.encoder.table.as_ref();
        let Some(age) = table.and_then(|table| table.find(name, value, hash)) else {
            if is_worth_a_place(name, value)
                && self.encoder.is_repeated(hash)
                && let Some(instructions) = &mut self.instructions
            {
                let oldest = (self.references.required > 0).then_some(self.references.oldest);
                self.encoder.insert(name, value, hash, oldest, instructions);
            }
            return false;
        };
        let index = self.encoder.inserted - 1 - u64::from(age);
        if index >= self.base {
            return false;
        }
        self.references = match self.references.required {
            0 => References {
                required: index + 1,
                oldest: index,
            },
            required => References {
                required: required.max(index + 1),
                oldest: self.references.oldest.min(index),
            },
        };
        encode_number(0x80, 6, self.base - 1 - index, self.out);
        true
    }

    /// Ends the section, which the caller sends on `stream`. Returns the entries to which it refers.
    #[inline]
    pub fn finish(self, stream: StreamId) -> References {
        let references = self.references;
        if references.required > 0 {
            let required = references.required % (2 * self.encoder.max_entries) + 1;
            let delta = self.base - references.required;
            match (u8::try_from(required), u8::try_from(delta)) {
                // Usually both numbers fit in the two bytes reserved for the prefix, so that the section need not be moved.
                (Ok(required @ ..=0xfe), Ok(delta @ ..=0x7e)) => {
                    self.out[self.at] = required;
                    self.out[self.at + 1] = delta;
                }
                _ => {
                    let mut prefix = Vec::with_capacity(8);
                    encode_number(0, 8, required, &mut prefix);
                    encode_number(0, 7, delta, &mut prefix);
                    self.out.splice(self.at..self.at + 2, prefix);
                }
            }
            self.encoder.note(stream, references);
        }
        references
    }
}

/// Whether a field is likely to be sent often enough to be worth an entry. Lengths and paths rarely are.
#[inline]
fn is_worth_a_place(name: EncodedName<'_>, value: &[u8]) -> bool {
    match name.kind {
        NameKind::Known(Known::ContentLength) | NameKind::Pseudo(Pseudo::Path) => false,
        kind => !is_sensitive(kind, value),
    }
}

/// Whether the field must be marked so that no intermediary puts it into a table: short cookies.
#[inline]
fn is_sensitive(kind: NameKind, value: &[u8]) -> bool {
    matches!(kind, NameKind::Known(Known::Cookie | Known::SetCookie))
        && value.len() < MIN_INDEXED_COOKIE
}

/// Appends a field as a literal; its name is written as an index if the static table has the name.
#[inline(never)]
fn literal(name: EncodedName<'_>, run: static_table::Run, value: &[u8], out: &mut Vec<u8>) {
    let is_sensitive = is_sensitive(name.kind, value);
    if run.is_empty() {
        let flags = if is_sensitive { 0x30 } else { 0x20 };
        string_literal::encode(flags, 3, name.text, out);
    } else {
        let flags = if is_sensitive { 0x70 } else { 0x50 };
        prefixed::encode(flags, 4, usize::from(run.first), out);
    }
    if is_sensitive {
        // The value is not Huffman-coded either, since the length of the code would depend on the text.
        string_literal::encode_plain(0, 7, value, out);
    } else {
        string_literal::encode(0, 7, value, out);
    }
}
