//! The encoder of field blocks (RFC 7541 §6).

use h2o_http::dynamic_table::ENTRY_OVERHEAD;
use h2o_http::encoder_table::{EncodedName, EncoderTable};
use h2o_http::field_section::{NameKind, Pseudo, field_hash, pseudo_hash};
use h2o_http::{Known, Name, StatusCode, prefixed, string_literal};

use super::static_table;

/// Maximum size in bytes of the dynamic table that the encoder uses, even if the peer allows more.
const MAX_TABLE_SIZE: u32 = 4096;
/// Maximum number of dynamic table entries that the encoder remembers. The peer's table may still have older ones, to which
/// the encoder does not refer.
const MAX_ENTRIES: u32 = 32;
/// Cookies shorter than this number of bytes are kept out of the table: an attacker could find out their values by trial
/// (RFC 7541 §7.1.3).
const MIN_INDEXED_COOKIE: usize = 20;
/// How many values of `etag` and `last-modified` are remembered as sent once, by their hashes. These fields belong to
/// single resources and enter the table only if they are sent again.
const TRIALS: usize = 4;

/// The HPACK state of the sender for one direction of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: EncoderTable,
    /// Whether the table has shrunk, so that the next block must tell the peer (RFC 7541 §4.2).
    tell_size: bool,
    /// Hashes of the last fields that were sent once, and that enter the dynamic table if they are sent again. `tried`
    /// counts all fields that were ever noted here.
    trials: [u32; TRIALS],
    tried: u32,
}

/// How to write a field that is in neither the static nor the dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indexing {
    /// The field is written as a literal that enters the dynamic table (RFC 7541 §6.2.1).
    Incremental,
    /// The field is written as a literal that does not enter the table (RFC 7541 §6.2.2).
    Without,
    /// The field is written as a literal that intermediaries must not put into a table either (RFC 7541 §6.2.3). Its value
    /// is not Huffman-coded, since the length of the code would depend on the text. H2O compatibility: H2O sends short
    /// cookies like this.
    Never,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with the initial table size of HTTP/2. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            table: EncoderTable::new(MAX_TABLE_SIZE),
            tell_size: false,
            trials: [0; TRIALS],
            tried: 0,
        }
    }

    /// Applies the peer's `SETTINGS_HEADER_TABLE_SIZE`: the encoder's table shrinks if it is larger; a higher value does
    /// not make it grow again.
    pub fn set_peer_table_size(&mut self, size: u32) {
        if size < self.table.entries().max_size() {
            self.table.resize(size);
            self.tell_size = true;
        }
    }

    /// A value that changes whenever the encoder may write the same field differently than before.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> (u32, u32) {
        // The size of the table is part of the encoder's generation, since shrinking the table evicts entries without
        // inserting any.
        let changes = self.table.entries().inserted().wrapping_add(self.tried);
        (changes, self.table.entries().len())
    }

    /// Whether the next field block must begin with a size update.
    #[inline]
    #[must_use]
    pub const fn has_size_update(&self) -> bool {
        self.tell_size
    }

    /// Begins a field block, with a size update if one is due. Must be called before the first field of the block.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if self.tell_size {
            self.tell_size = false;
            prefixed::encode(0x20, 5, self.table.entries().max_size() as usize, out);
        }
    }

    /// Appends the field `:status`.
    #[inline]
    pub fn status(&mut self, status: StatusCode, out: &mut Vec<u8>) {
        let index = match status.as_u16() {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => return self.pseudo(Pseudo::Status, &status.digits(), out),
        };
        out.push(0x80 | index);
    }

    /// Appends a pseudo-header field, which must not be [`Pseudo::Unknown`].
    pub fn pseudo(&mut self, pseudo: Pseudo, value: &[u8], out: &mut Vec<u8>) {
        debug_assert!(pseudo != Pseudo::Unknown);
        let name = EncodedName::pseudo(pseudo);
        let hash = pseudo_hash(pseudo, value);
        if !self.indexed(name, value, hash, out) {
            self.text(name, value, hash, out);
        }
    }

    /// Appends a regular field.
    #[inline]
    pub fn field(&mut self, name: Name<'_>, value: &[u8], out: &mut Vec<u8>) {
        self.field_hashed(name, value, field_hash(name, value), out);
    }

    /// Appends a regular field whose [`field_hash`] is `hash`.
    #[inline]
    pub fn field_hashed(&mut self, name: Name<'_>, value: &[u8], hash: u32, out: &mut Vec<u8>) {
        if !self.indexed(EncodedName::lookup(name), value, hash, out) {
            self.text(name.into(), value, hash, out);
        }
    }

    /// Appends a field that must not enter any table: it was received with
    /// [`never_indexed`](super::DecodedField::never_indexed) (RFC 7541 §6.2.3).
    pub fn never_indexed(&mut self, name: Name<'_>, value: &[u8], out: &mut Vec<u8>) {
        self.literal(Indexing::Never, name.into(), value, out);
    }

    /// Number of dynamic table entries that the encoder remembers.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.table.entries().len() as usize
    }

    /// Whether the encoder remembers no entries of the dynamic table.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.entries().is_empty()
    }

    /// The names and values in the dynamic table, newest first.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let entries = self.table.entries().iter();
        entries.map(|entry| (entry.name(), entry.value()))
    }

    /// Bytes of memory that the encoder has allocated, for accounting.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.table.retained()
    }

    /// Appends the index of a field that is in the dynamic table; returns false if it is not.
    #[inline(always)]
    fn indexed(&self, name: EncodedName<'_>, value: &[u8], hash: u32, out: &mut Vec<u8>) -> bool {
        let age = self.table.find(name, value, hash);
        if let Some(age) = age {
            let index = static_table::LEN + 1 + age;
            prefixed::encode(0x80, 7, index as usize, out);
        }
        age.is_some()
    }

    /// Appends a field that is not in the dynamic table, and inserts it if later fields are likely to refer to it.
    #[inline(never)]
    fn text(&mut self, name: EncodedName<'_>, value: &[u8], hash: u32, out: &mut Vec<u8>) {
        let first = static_table::index_of(name.kind);
        if let Some(index) = static_table::exact_match(name.kind, first, value) {
            out.push(0x80 | index);
            return;
        }
        let indexing = self.indexing(name, value.len(), hash);
        self.literal(indexing, name, value, out);
        if indexing == Indexing::Incremental {
            self.table.keep(MAX_ENTRIES - 1);
            self.table.insert(name, value, hash);
        }
    }

    /// How to write a field that is sent for the first time.
    fn indexing(&mut self, name: EncodedName<'_>, value_len: usize, hash: u32) -> Indexing {
        let size = name.text.len() + value_len + ENTRY_OVERHEAD as usize;
        match name.kind {
            // Lengths and paths rarely repeat, and their entries would evict others that do.
            NameKind::Known(Known::ContentLength) | NameKind::Pseudo(Pseudo::Path) => {
                Indexing::Without
            }
            NameKind::Known(Known::Cookie | Known::SetCookie) if value_len < MIN_INDEXED_COOKIE => {
                Indexing::Never
            }
            // The entry of a field larger than half of the table would evict too many others.
            _ if size > self.table.entries().max_size() as usize / 2 => Indexing::Without,
            // Each file has its own `etag` and `last-modified`: they enter the table only if the same file is requested
            // again.
            NameKind::Known(Known::Etag | Known::LastModified) if self.is_new(hash) => {
                Indexing::Without
            }
            _ => Indexing::Incremental,
        }
    }

    /// Whether the hash of a field is not among those of the last fields that were sent once. If so, the encoder remembers
    /// it.
    fn is_new(&mut self, hash: u32) -> bool {
        if self.trials.contains(&hash) {
            return false;
        }
        let at = self.tried as usize % TRIALS;
        self.trials[at] = hash;
        self.tried = self.tried.wrapping_add(1);
        true
    }

    /// Appends a literal field. Its name is written as an index if one of the tables has the name.
    fn literal(&self, indexing: Indexing, name: EncodedName<'_>, value: &[u8], out: &mut Vec<u8>) {
        let (flags, bits) = match indexing {
            Indexing::Incremental => (0x40, 6),
            Indexing::Without => (0, 4),
            Indexing::Never => (0x10, 4),
        };
        let index = match static_table::index_of(name.kind) {
            0 => {
                let age = self.table.find_name(name);
                age.map(|age| static_table::LEN + 1 + age)
            }
            index => Some(u32::from(index)),
        };
        prefixed::encode(flags, bits, index.unwrap_or(0) as usize, out);
        if index.is_none() {
            string_literal::encode(0, 7, name.text, out);
        }
        if indexing == Indexing::Never {
            string_literal::encode_plain(0, 7, value, out);
        } else {
            string_literal::encode(0, 7, value, out);
        }
    }
}
