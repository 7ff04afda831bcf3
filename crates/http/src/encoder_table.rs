//! The dynamic table as an encoder of HPACK or QPACK keeps it: entries are found by the hash of their field.

use crate::Name;
use crate::dynamic_table::{DynamicTable, TableEntry};
use crate::field_section::{NameKind, Pseudo};

/// Number of chains of entries (hash buckets); a power of two.
const CHAINS: usize = 64;

/// The note that an encoder attaches to each entry of its dynamic table.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    hash: u32,
    name: NameKind,
    /// The low 16 bits of the insertion number of the previous entry in the same hash chain, which may have been evicted.
    older: u16,
}

/// The name of a field that an encoder looks for in its dynamic table.
#[derive(Clone, Copy, Debug)]
pub struct EncodedName<'a> {
    /// What kind of name it is: pseudo-header, well-known or other.
    pub kind: NameKind,
    /// The text of the name.
    pub text: &'a [u8],
}

impl<'a> EncodedName<'a> {
    /// The name of a pseudo-header field.
    #[inline]
    #[must_use]
    pub const fn pseudo(pseudo: Pseudo) -> Self {
        Self {
            kind: NameKind::Pseudo(pseudo),
            text: pseudo.as_str().as_bytes(),
        }
    }

    /// A name to search for with [`EncoderTable::find`]. Its `text` is empty if the kind alone identifies the name.
    #[inline]
    #[must_use]
    pub const fn lookup(name: Name<'a>) -> Self {
        match name {
            Name::Known(known) => Self {
                kind: NameKind::Known(known),
                text: b"",
            },
            Name::Other(text) => Self {
                kind: NameKind::Other,
                text: text.as_bytes(),
            },
        }
    }

    #[inline]
    fn is_of(&self, entry: &TableEntry<'_, Note>) -> bool {
        entry.note().name == self.kind
            && (self.kind != NameKind::Other || entry.name() == self.text)
    }
}

impl<'a> From<Name<'a>> for EncodedName<'a> {
    #[inline]
    fn from(name: Name<'a>) -> Self {
        match name {
            Name::Known(known) => Self {
                kind: NameKind::Known(known),
                text: known.as_str().as_bytes(),
            },
            Name::Other(text) => Self {
                kind: NameKind::Other,
                text: text.as_bytes(),
            },
        }
    }
}

/// The dynamic table of an encoder, with an index by hash. It never has 2^16 entries or more at a time.
#[derive(Debug)]
pub struct EncoderTable {
    table: DynamicTable<Note>,
    /// For each hash chain the low 16 bits of the insertion number of its newest entry. The notes of the entries link to
    /// the older ones.
    newest: [u16; CHAINS],
}

impl EncoderTable {
    /// An empty table for entries of at most `max_size` bytes (RFC 7541 §4.1), which allocates nothing before the first
    /// entry.
    #[must_use]
    pub const fn new(max_size: u32) -> Self {
        Self {
            table: DynamicTable::new(max_size),
            newest: [0; CHAINS],
        }
    }

    /// The dynamic table without the index.
    #[must_use]
    pub const fn entries(&self) -> &DynamicTable<Note> {
        &self.table
    }

    /// Changes the maximum size of the table in bytes. Evicts the oldest entries if necessary.
    pub fn resize(&mut self, max_size: u32) {
        self.table.resize(max_size);
    }

    /// Evicts the oldest entries until at most `count` are left.
    pub fn keep(&mut self, count: u32) {
        self.table.keep(count);
    }

    /// The age of the entry with this name and value, if the table has one; the newest entry has age 0.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, name: EncodedName<'_>, value: &[u8], hash: u32) -> Option<u32> {
        let newest = self.next_number().wrapping_sub(1);
        let number = self.newest[chain_of(hash)];
        let mut age = u32::from(newest.wrapping_sub(number));
        loop {
            let entry = self.table.get(age)?;
            if entry.note().hash == hash {
                // If the newest entry with this hash is another field, the search ends: two fields of one table hardly ever
                // have the same hash.
                return (name.is_of(&entry) && entry.has_value(value)).then_some(age);
            }
            let older = u32::from(newest.wrapping_sub(entry.note().older));
            // Only the low 16 bits of insertion numbers are kept: the number of an evicted entry may equal that of an entry
            // in the table.
            if older <= age {
                return None;
            }
            age = older;
        }
    }

    /// The age of the newest entry with this name, whatever its value; the newest entry has age 0.
    #[must_use]
    pub fn find_name(&self, name: EncodedName<'_>) -> Option<u32> {
        let age = self.table.iter().position(|entry| name.is_of(&entry))?;
        u32::try_from(age).ok()
    }

    /// Inserts a field, and evicts the oldest entries if necessary. Returns false if the field is larger than the table's
    /// maximum size, which leaves the table empty.
    pub fn insert(&mut self, name: EncodedName<'_>, value: &[u8], hash: u32) -> bool {
        let number = self.next_number();
        let chain = &mut self.newest[chain_of(hash)];
        let note = Note {
            hash,
            name: name.kind,
            older: *chain,
        };
        let is_inserted = self.table.insert(name.text, value, note);
        if is_inserted {
            *chain = number;
        }
        is_inserted
    }

    /// The low 16 bits of the insertion number that the next entry will have.
    #[inline]
    const fn next_number(&self) -> u16 {
        let [low, high, ..] = self.table.inserted().to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Bytes of memory that the table has allocated.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.table.retained()
    }
}

const fn chain_of(hash: u32) -> usize {
    hash as usize % CHAINS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Known;
    use crate::field_section::field_hash;

    #[test]
    fn fields_are_found_by_their_age_until_they_are_evicted() {
        let mut table = EncoderTable::new(4096);
        let mut held: Vec<(Name<'_>, Vec<u8>)> = Vec::new();
        // Inserts more entries than 16-bit insertion numbers can tell apart.
        for round in 0..70_000_u32 {
            let name = match round % 3 {
                0 => Name::Known(Known::Date),
                1 => Name::Other("x-a"),
                _ => Name::Other("x-b"),
            };
            let value = (round / 2).to_string().into_bytes();
            let hash = field_hash(name, &value);
            assert_eq!(table.find(name.into(), &value, hash), None);
            assert!(table.insert(name.into(), &value, hash));
            held.insert(0, (name, value));
            held.truncate(table.entries().len() as usize);
            if round % 977 == 0 {
                for (age, (name, value)) in held.iter().enumerate() {
                    let found = table.find((*name).into(), value, field_hash(*name, value));
                    assert_eq!(found.map(|age| age as usize), Some(age));
                }
            }
        }
        assert_eq!(table.find_name(Name::Other("x-c").into()), None);
        let (first, _) = held[0];
        assert_eq!(table.find_name(first.into()), Some(0));
        table.keep(1);
        assert_eq!(table.entries().len(), 1);
        assert!(table.retained() > 0);
    }

    #[test]
    fn hashes_that_are_equal_do_not_make_fields_equal() {
        let mut table = EncoderTable::new(4096);
        let name = EncodedName::pseudo(Pseudo::Path);
        assert!(table.insert(name, b"/a", 7));
        assert_eq!(table.find(name, b"/b", 7), None);
        assert_eq!(table.find(Name::Other(":path").into(), b"/a", 7), None);
        assert_eq!(table.find(name, b"/a", 7), Some(0));
    }

    #[test]
    fn a_field_that_is_too_large_empties_the_table() {
        let mut table = EncoderTable::new(64);
        let name = Name::Other("x").into();
        assert!(table.insert(name, b"1", 1));
        assert!(!table.insert(name, &[b'v'; 40], 2));
        assert!(table.entries().is_empty());
        assert_eq!(table.find(name, b"1", 1), None);
    }
}
