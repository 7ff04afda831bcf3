//! Encodes field blocks (RFC 7541 §6).

use h2o_http::dynamic_table::{DynamicTable, ENTRY_OVERHEAD, TableEntry};
use h2o_http::field_section::{NameKind, Pseudo, field_hash, pseudo_hash};
use h2o_http::{Known, Name, StatusCode, prefixed, string_literal};

use super::static_table;

/// The largest table that we use, even if the peer allows more.
const MAX_TABLE_SIZE: u32 = 4096;
/// How many entries we remember. The peer's table may have older ones, which we do not refer to.
const MAX_ENTRIES: u32 = 32;
/// Shorter cookies are kept out of the table: an attacker could find them by trial (RFC 7541 §7.1.3).
const MIN_INDEXED_COOKIE: usize = 20;
/// How many values of single resources (`etag`, `last-modified`) we remember as sent once, by their hash.
const TRIALS: usize = 4;
/// Number of hash chains of entries; a power of two.
const CHAINS: usize = 64;

/// Our note on an entry of the table.
#[derive(Clone, Copy, Debug)]
struct Note {
    hash: u32,
    name: NameKind,
    /// The low byte of the number of the entry before this one in its chain, which may be evicted.
    older: u8,
}

/// The sending side of one direction of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable<Note>,
    /// For each chain, the low byte of the number of its newest entry.
    newest: Option<Box<[u8; CHAINS]>>,
    /// Whether the table has shrunk and the peer must be told (RFC 7541 §4.2).
    tell_size: bool,
    /// Hashes of fields that enter the table when they are sent again, and the number of such fields so far.
    trials: [u32; TRIALS],
    tried: u32,
}

/// How to write a field that is in neither table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indexing {
    /// It enters the table (RFC 7541 §6.2.1).
    Incremental,
    /// It does not (RFC 7541 §6.2.2).
    Without,
    /// Intermediaries must not put it into a table either (RFC 7541 §6.2.3). Not Huffman-coded, since the length of the
    /// code depends on the text. H2O compatibility: H2O sends short cookies like this.
    Never,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with the initial table size. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            table: DynamicTable::new(MAX_TABLE_SIZE),
            newest: None,
            tell_size: false,
            trials: [0; TRIALS],
            tried: 0,
        }
    }

    /// The peer has sent `SETTINGS_HEADER_TABLE_SIZE`. Shrinks our table if necessary; it does not grow again.
    pub fn set_peer_table_size(&mut self, size: u32) {
        if size < self.table.max_size() {
            self.table.resize(size);
            self.tell_size = true;
        }
    }

    /// Changes whenever the same field might be written differently than before.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> (u32, u32) {
        // Shrinking the table evicts entries without inserting any.
        let changes = self.table.inserted().wrapping_add(self.tried);
        (changes, self.table.len())
    }

    /// Whether the next block must begin with a size update.
    #[inline]
    #[must_use]
    pub const fn has_size_update(&self) -> bool {
        self.tell_size
    }

    /// Begins a field block. Must be called before its first field.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if self.tell_size {
            self.tell_size = false;
            prefixed::encode(0x20, 5, self.table.max_size() as usize, out);
        }
    }

    /// Appends `:status`.
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

    /// Appends a pseudo-header field; not for [`Pseudo::Unknown`].
    pub fn pseudo(&mut self, pseudo: Pseudo, value: &[u8], out: &mut Vec<u8>) {
        debug_assert!(pseudo != Pseudo::Unknown);
        let name = NameKind::Pseudo(pseudo);
        let text = pseudo.as_str().as_bytes();
        let hash = pseudo_hash(pseudo, value);
        if !self.indexed(name, text, value, hash, out) {
            self.text(name, text, value, hash, out);
        }
    }

    /// Appends a field.
    #[inline]
    pub fn field(&mut self, name: Name<'_>, value: &[u8], out: &mut Vec<u8>) {
        self.field_hashed(name, value, field_hash(name, value), out);
    }

    /// Appends a field whose [`field_hash`] is `hash`.
    #[inline]
    pub fn field_hashed(&mut self, name: Name<'_>, value: &[u8], hash: u32, out: &mut Vec<u8>) {
        let is_indexed = match name {
            Name::Known(known) => self.indexed(NameKind::Known(known), b"", value, hash, out),
            Name::Other(text) => self.indexed(NameKind::Other, text.as_bytes(), value, hash, out),
        };
        if !is_indexed {
            let (kind, text) = kind_of(name);
            self.text(kind, text, value, hash, out);
        }
    }

    /// Appends a field that must not enter any table: it was received with
    /// [`never_indexed`](super::DecodedField::never_indexed) (RFC 7541 §6.2.3).
    pub fn never_indexed(&mut self, name: Name<'_>, value: &[u8], out: &mut Vec<u8>) {
        let (kind, text) = kind_of(name);
        self.literal(Indexing::Never, kind, text, value, out);
    }

    /// Number of entries of the dynamic table that we remember.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.table.len() as usize
    }

    /// Whether we remember no entries of the dynamic table.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Names and values in the dynamic table, newest first.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.table.iter().map(|entry| (entry.name(), entry.value()))
    }

    /// Bytes of memory held, for accounting.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.table.retained()
            + self
                .newest
                .as_ref()
                .map_or(0, |chains| size_of_val(&**chains))
    }

    /// Appends the index of a field that is in the dynamic table; returns false if it is not. `text`: the name, needed if
    /// `name` does not imply it.
    #[inline(always)]
    fn indexed(
        &self,
        name: NameKind,
        text: &[u8],
        value: &[u8],
        hash: u32,
        out: &mut Vec<u8>,
    ) -> bool {
        let age = self.find(name, text, value, hash);
        if let Some(age) = age {
            let index = static_table::LEN + 1 + age;
            prefixed::encode(0x80, 7, index as usize, out);
        }
        age.is_some()
    }

    /// Appends a field that is not in the dynamic table, and inserts it if that is likely to pay.
    #[inline(never)]
    fn text(&mut self, name: NameKind, text: &[u8], value: &[u8], hash: u32, out: &mut Vec<u8>) {
        if let Some(index) = static_table::exact_match(name, static_table::index_of(name), value) {
            out.push(0x80 | index);
            return;
        }
        let indexing = self.indexing(name, text.len(), value.len(), hash);
        self.literal(indexing, name, text, value, out);
        if indexing == Indexing::Incremental {
            self.insert(name, text, value, hash);
        }
    }

    /// How to write a field the first time.
    fn indexing(
        &mut self,
        name: NameKind,
        name_len: usize,
        value_len: usize,
        hash: u32,
    ) -> Indexing {
        let size = name_len + value_len + ENTRY_OVERHEAD as usize;
        match name {
            // Lengths and paths rarely repeat, and would evict fields that do.
            NameKind::Known(Known::ContentLength) | NameKind::Pseudo(Pseudo::Path) => {
                Indexing::Without
            }
            NameKind::Known(Known::Cookie | Known::SetCookie) if value_len < MIN_INDEXED_COOKIE => {
                Indexing::Never
            }
            // A field larger than half of the table would evict too much.
            _ if size > self.table.max_size() as usize / 2 => Indexing::Without,
            // Each file has its own: they are inserted only if the same file is requested again.
            NameKind::Known(Known::Etag | Known::LastModified) if self.is_new(hash) => {
                Indexing::Without
            }
            _ => Indexing::Incremental,
        }
    }

    /// Whether the field was not sent lately. Remembers it as sent.
    fn is_new(&mut self, hash: u32) -> bool {
        if self.trials.contains(&hash) {
            return false;
        }
        let at = self.tried as usize % TRIALS;
        self.trials[at] = hash;
        self.tried = self.tried.wrapping_add(1);
        true
    }

    /// The age of the entry equal to this field, if there is one.
    #[inline(always)]
    fn find(&self, name: NameKind, text: &[u8], value: &[u8], hash: u32) -> Option<u32> {
        let newest = self.next_number().wrapping_sub(1);
        let number = self.newest.as_ref()?[chain_of(hash)];
        let mut age = u32::from(newest.wrapping_sub(number));
        loop {
            let entry = self.table.get(age)?;
            if entry.note().hash == hash {
                // Older entries with the same hash are not searched: there is hardly ever one.
                let is_same = is_named(&entry, name, text) && entry.value() == value;
                return is_same.then_some(age);
            }
            let older = u32::from(newest.wrapping_sub(entry.note().older));
            // The number of an evicted entry may equal that of another entry.
            if older <= age {
                return None;
            }
            age = older;
        }
    }

    /// The low byte of the number of the next entry. It identifies an entry, since there are few.
    #[inline]
    fn next_number(&self) -> u8 {
        let [low, ..] = self.table.inserted().to_le_bytes();
        low
    }

    fn insert(&mut self, name: NameKind, text: &[u8], value: &[u8], hash: u32) {
        self.table.keep(MAX_ENTRIES - 1);
        let number = self.next_number();
        let newest = self.newest.get_or_insert_with(|| Box::new([0; CHAINS]));
        let chain = &mut newest[chain_of(hash)];
        let note = Note {
            hash,
            name,
            older: *chain,
        };
        if self.table.insert(text, value, note) {
            *chain = number;
        }
    }

    /// Appends a literal field; its name is an index if possible.
    fn literal(
        &self,
        indexing: Indexing,
        name: NameKind,
        text: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) {
        let (flags, bits) = match indexing {
            Indexing::Incremental => (0x40, 6),
            Indexing::Without => (0, 4),
            Indexing::Never => (0x10, 4),
        };
        let index = match static_table::index_of(name) {
            0 => self.find_name(name, text),
            index => Some(u32::from(index)),
        };
        prefixed::encode(flags, bits, index.unwrap_or(0) as usize, out);
        if index.is_none() {
            string_literal::encode(0, 7, text, out);
        }
        if indexing == Indexing::Never {
            string_literal::encode_plain(0, 7, value, out);
        } else {
            string_literal::encode(0, 7, value, out);
        }
    }

    /// The index of an entry with this name, which is not in the static table.
    fn find_name(&self, name: NameKind, text: &[u8]) -> Option<u32> {
        let same_name = |entry: TableEntry<'_, Note>| is_named(&entry, name, text);
        let age = self.table.iter().position(same_name)?;
        Some(static_table::LEN + 1 + u32::try_from(age).ok()?)
    }
}

#[inline]
fn kind_of(name: Name<'_>) -> (NameKind, &[u8]) {
    match name {
        Name::Known(known) => (NameKind::Known(known), known.as_str().as_bytes()),
        Name::Other(text) => (NameKind::Other, text.as_bytes()),
    }
}

#[inline]
fn is_named(entry: &TableEntry<'_, Note>, name: NameKind, text: &[u8]) -> bool {
    entry.note().name == name && (name != NameKind::Other || entry.name() == text)
}

fn chain_of(hash: u32) -> usize {
    hash as usize % CHAINS
}
