//! Encoding field sections (RFC 9204 §2.1, §4.5), and reading what the peer's decoder says of them (§4.4).
//!
//! The table serves fields that come again. A field that was written lately enters it when it is written once more, so that one that
//! does not come again costs nothing. It is referred to once the peer has acknowledged it: no section ever waits for the encoder
//! stream, however many the peer would allow to.

use std::collections::VecDeque;

use h2o_http::dynamic_table::ENTRY_OVERHEAD;
use h2o_http::encoder_table::{EncodedName, EncoderTable};
use h2o_http::field_section::{NameKind, Pseudo, field_hash, pseudo_hash};
use h2o_http::prefixed::{self, PrefixedError};
use h2o_http::{Known, Name, StatusCode, string_literal};

use super::{MIN_ENTRY, QpackError, encode_number, static_table};
use crate::stream_id::StreamId;

/// Cookies shorter than this number of bytes are kept out of the table: an attacker could find them by trial (RFC 9204
/// §7.1.3).
const MIN_INDEXED_COOKIE: usize = 20;
/// How many recently written fields we remember, by their hash; a power of two.
const LATELY: usize = 64;
/// Limit of the sections that refer to the dynamic table and that the peer has not acknowledged. Once it is reached, new
/// sections do not refer to the table.
const MAX_OUTSTANDING: usize = 256;
/// The largest table in bytes: entries are distinguished by 16 bits.
const LARGEST_TABLE: u32 = 1 << 20;
/// Bytes of an acknowledgement at most.
const MAX_INSTRUCTION: usize = 11;

/// What a section refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// The number of insertions that the section requires; 0 if it does not refer to the dynamic table.
    required: u64,
    /// The oldest entry.
    oldest: u64,
}

/// The sending side of one direction of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: EncoderTable,
    /// Bytes of table that we want at most.
    limit: u32,
    /// The most entries that a table of the capacity announced by the peer can have.
    max_entries: u64,
    /// Whether the peer must be told the table's capacity before the first insertion.
    tells_capacity: bool,
    /// Number of insertions so far, and of those that the peer has acknowledged.
    inserted: u64,
    known: u64,
    /// Sections that the peer has not acknowledged, in the order in which they were written.
    outstanding: VecDeque<(StreamId, References)>,
    /// The hashes of fields written lately.
    lately: Option<Box<[u32; LATELY]>>,
    /// How many fields were written that were not among the remembered ones.
    tried: u64,
    /// The start of an acknowledgement whose end has not arrived.
    partial: Partial,
}

#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    bytes: [u8; MAX_INSTRUCTION],
    len: u8,
}

/// Writes one section: [`Encoder::section`] begins it.
#[derive(Debug)]
pub struct SectionWriter<'e> {
    encoder: &'e mut Encoder,
    out: &'e mut Vec<u8>,
    /// The buffer of the encoder stream; `None` if it has no room for more.
    instructions: Option<&'e mut Vec<u8>>,
    /// Where the section begins.
    at: usize,
    references: References,
    /// The section may refer to entries that were inserted before this one.
    base: u64,
}

impl Encoder {
    /// An encoder with a table of at most `limit` bytes. There is none before the peer has announced its capacity. Allocates nothing.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self {
            table: EncoderTable::new(0),
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

    /// The peer has announced `SETTINGS_QPACK_MAX_TABLE_CAPACITY`, which it does once.
    pub fn set_peer_capacity(&mut self, capacity: u64) {
        let size = u32::try_from(capacity).map_or(self.limit, |size| size.min(self.limit));
        self.max_entries = capacity / u64::from(MIN_ENTRY);
        self.tells_capacity = size > 0;
        self.table.resize(size);
        self.tried += 1;
    }

    /// A value that changes whenever the same field might be encoded differently than before.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> (u64, u64) {
        (self.inserted + self.tried, self.known)
    }

    /// Begins an encoded field section, which is appended to `out`. `instructions` collects what is to be sent on the encoder stream;
    /// with `None` that stream has no room, and the section uses only what the dynamic table already has.
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

    /// Whether a section with these references, which was written before, can be written again.
    #[inline]
    #[must_use]
    pub fn can_repeat(&self, references: References) -> bool {
        references.required == 0 || self.can_refer()
    }

    /// Notes that a section with these references was written on a stream.
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

    /// Reads the acknowledgements on the peer's decoder stream, which may be split anywhere.
    ///
    /// # Errors
    /// [`QpackError::DecoderStream`]: there is nothing to acknowledge. That ends the use of this encoder.
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

    /// Reads the instruction at the start of `input`, and gives what follows it. `None`: it is not complete.
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
        // What a section refers to is known already: no need to look at how many insertions it requires.
        section.map(drop).ok_or(QpackError::DecoderStream)
    }

    /// Inserts a field if the table has room, or if entries that nobody needs can be evicted for it. `oldest`: the oldest
    /// entry that the section being written refers to, which must stay.
    fn insert(
        &mut self,
        name: EncodedName<'_>,
        value: &[u8],
        hash: u32,
        oldest: Option<u64>,
        instructions: &mut Vec<u8>,
    ) {
        let entries = self.table.entries();
        let size = name.text.len() + value.len() + ENTRY_OVERHEAD as usize;
        // A field that takes a large part of the table would evict fields that are of more use.
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
        if self.table.insert(name, value, hash) {
            self.inserted += 1;
        }
    }

    /// Whether the oldest entries that take `needed` bytes may be evicted (RFC 9204 §2.1.1).
    fn can_evict(&self, needed: usize, oldest: Option<u64>) -> bool {
        let entries = self.table.entries();
        let sections = self.outstanding.iter();
        let referenced = sections.map(|(_, references)| references.oldest);
        let first_needed = referenced.chain(oldest).min().unwrap_or(self.known);
        // What is not acknowledged stays, too.
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

    /// Whether a field was written lately. Remembers it as written.
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

    /// Insertions so far.
    #[must_use]
    pub const fn inserted(&self) -> u64 {
        self.inserted
    }

    /// The number of sections that the peer has not acknowledged.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Bytes of memory held, for accounting.
    #[must_use]
    pub fn retained(&self) -> usize {
        let lately = self.lately.as_ref();
        self.table.retained()
            + lately.map_or(0, |hashes| size_of_val(&**hashes))
            + self.outstanding.capacity() * size_of::<(StreamId, References)>()
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.outstanding.shrink_to_fit();
    }
}

impl SectionWriter<'_> {
    /// Appends `:status`.
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

    /// Appends a pseudo-header field, which is not [`Pseudo::Unknown`].
    pub fn pseudo(&mut self, pseudo: Pseudo, value: &[u8]) {
        debug_assert!(pseudo != Pseudo::Unknown);
        self.encode(EncodedName::pseudo(pseudo), value, || {
            pseudo_hash(pseudo, value)
        });
    }

    /// Appends a field.
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
        if self.encoder.table.entries().max_size() > 0 && self.dynamic(name, value, hash()) {
            return;
        }
        literal(name, run, value, self.out);
    }

    /// Appends the index of a field, if it is in the dynamic table and the peer has acknowledged it. If it is not in the
    /// table and is likely to be sent again, inserts it.
    #[inline]
    fn dynamic(&mut self, name: EncodedName<'_>, value: &[u8], hash: u32) -> bool {
        let Some(age) = self.encoder.table.find(name, value, hash) else {
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

    /// Ends the section, which is sent on the stream `stream`.
    #[inline]
    pub fn finish(self, stream: StreamId) -> References {
        let references = self.references;
        if references.required > 0 {
            let required = references.required % (2 * self.encoder.max_entries) + 1;
            let delta = self.base - references.required;
            match (u8::try_from(required), u8::try_from(delta)) {
                // Mostly both fit their prefixes, and nothing is moved.
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

/// Whether a field is likely to be sent again often enough to be worth an entry. Lengths and paths seldom are.
#[inline]
fn is_worth_a_place(name: EncodedName<'_>, value: &[u8]) -> bool {
    match name.kind {
        NameKind::Known(Known::ContentLength) | NameKind::Pseudo(Pseudo::Path) => false,
        kind => !is_sensitive(kind, value),
    }
}

/// Whether the field must be marked so that no intermediary puts it into a table.
#[inline]
fn is_sensitive(kind: NameKind, value: &[u8]) -> bool {
    matches!(kind, NameKind::Known(Known::Cookie | Known::SetCookie))
        && value.len() < MIN_INDEXED_COOKIE
}

/// Appends a field as text, the name as an index if the static table has it.
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
        // Such a field is not Huffman-coded either: the length of the code depends on the text.
        string_literal::encode_plain(0, 7, value, out);
    } else {
        string_literal::encode(0, 7, value, out);
    }
}
