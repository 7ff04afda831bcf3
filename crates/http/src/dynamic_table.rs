//! The dynamic table of HPACK and QPACK (RFC 7541 §2.3.2, §4, RFC 9204 §3.2). The caller can attach a value of its own, a
//! note, to each entry.
//!
//! The names and values of the entries are adjacent in one buffer. Bytes of evicted entries stay at its front until new
//! entries need the room. The lengths and positions of the entries are in a ring of records.

/// What an entry counts against the table's maximum size in addition to the lengths of its name and value (RFC 7541 §4.1).
pub const ENTRY_OVERHEAD: u32 = 32;

/// Number of bytes that the first entry makes the table allocate for names and values, unless the table's maximum is
/// smaller.
const FIRST_BYTES: usize = 128;
/// Number of records that the first entry makes the table allocate.
const FIRST_RECORDS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Record<N> {
    /// Position of the entry's bytes, counted from the first byte ever inserted into the table, modulo 2^32.
    start: u32,
    name_len: u32,
    value_len: u32,
    note: N,
}

impl<N> Record<N> {
    const fn size(&self) -> u32 {
        self.name_len + self.value_len + ENTRY_OVERHEAD
    }
}

/// An entry of a dynamic table. Its name and value are located in the table's buffer only when they are read.
#[derive(Clone, Copy, Debug)]
pub struct TableEntry<'a, N> {
    record: &'a Record<N>,
    table: &'a DynamicTable<N>,
}

impl<'a, N> TableEntry<'a, N> {
    /// The note that the caller attached to the entry when it was inserted.
    #[inline]
    #[must_use]
    pub const fn note(&self) -> &'a N {
        &self.record.note
    }

    /// The name of the entry.
    #[inline]
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.bytes(0, self.record.name_len)
    }

    /// The value of the entry.
    #[inline]
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        self.bytes(self.record.name_len, self.record.value_len)
    }

    /// Whether the value of the entry is `value`.
    #[inline]
    #[must_use]
    pub fn has_value(&self, value: &[u8]) -> bool {
        self.record.value_len as usize == value.len()
            && self.bytes_at(self.record.name_len, value.len()) == Some(value)
    }

    /// The entry's size in bytes as it counts against the table's maximum (RFC 7541 §4.1).
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.record.size()
    }

    #[inline]
    fn bytes(&self, skip: u32, len: u32) -> &'a [u8] {
        self.bytes_at(skip, len as usize).unwrap_or_default()
    }

    #[inline]
    fn bytes_at(&self, skip: u32, len: usize) -> Option<&'a [u8]> {
        let start = self.record.start.wrapping_sub(self.table.dropped) as usize + skip as usize;
        self.table.bytes.get(start..start + len)
    }
}

/// A dynamic table. Sizes of the table and of its entries are in bytes, counted as RFC 7541 §4.1 says: 32 for each entry
/// besides its text.
#[derive(Debug)]
pub struct DynamicTable<N> {
    /// Names and values of the entries from the oldest to the newest, preceded by those of evicted entries.
    bytes: Vec<u8>,
    /// Number of bytes inserted into the table so far that are no longer in `bytes`, modulo 2^32.
    dropped: u32,
    /// A ring with a record per entry; its length is a power of two, or zero.
    records: Vec<Record<N>>,
    /// Number of entries inserted so far, modulo 2^32.
    inserted: u32,
    len: u32,
    /// Sum of the sizes of the entries (RFC 7541 §4.1).
    size: u32,
    max_size: u32,
}

impl<N: Copy> DynamicTable<N> {
    /// An empty dynamic table, which allocates nothing before the first entry.
    #[must_use]
    pub const fn new(max_size: u32) -> Self {
        Self {
            bytes: Vec::new(),
            dropped: 0,
            records: Vec::new(),
            inserted: 0,
            len: 0,
            size: 0,
            max_size,
        }
    }

    /// The number of entries in the table.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the table has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sum of the sizes of the entries (RFC 7541 §4.1).
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The maximum size of the table: entries are evicted to stay within it (RFC 7541 §4.2).
    #[must_use]
    pub const fn max_size(&self) -> u32 {
        self.max_size
    }

    /// How many entries have been inserted since the table was made, modulo 2^32.
    #[must_use]
    pub const fn inserted(&self) -> u32 {
        self.inserted
    }

    /// Bytes of memory that the table has allocated.
    #[must_use]
    pub const fn retained(&self) -> usize {
        self.bytes.capacity() + self.records.capacity() * size_of::<Record<N>>()
    }

    /// The entry with this age: the newest has age 0, the one before it age 1.
    #[inline]
    #[must_use]
    pub fn get(&self, age: u32) -> Option<TableEntry<'_, N>> {
        if age >= self.len {
            return None;
        }
        let slot = self.slot(self.inserted.wrapping_sub(1 + age));
        let record = self.records.get(slot)?;
        Some(TableEntry {
            record,
            table: self,
        })
    }

    /// The entries of the table, newest first.
    pub fn iter(&self) -> impl Iterator<Item = TableEntry<'_, N>> {
        (0..self.len).map_while(|age| self.get(age))
    }

    /// Changes the maximum size of the table. Evicts the oldest entries if they do not fit any more (RFC 7541 §4.3).
    pub fn resize(&mut self, max_size: u32) {
        self.max_size = max_size;
        self.evict_above(max_size);
    }

    /// Evicts the oldest entries until at most `count` are left.
    pub fn keep(&mut self, count: u32) {
        while self.len > count {
            self.evict();
        }
    }

    /// Inserts an entry, and evicts the oldest ones if necessary. An entry larger than the table's maximum leaves the table
    /// empty (RFC 7541 §4.4). Returns whether the entry is in the table.
    #[inline]
    pub fn insert(&mut self, name: &[u8], value: &[u8], note: N) -> bool {
        let (Some((name_len, value_len)), Some(room)) = (
            u32::try_from(name.len())
                .ok()
                .zip(u32::try_from(value.len()).ok()),
            self.room_beside(name.len() + value.len()),
        ) else {
            self.keep(0);
            return false;
        };
        self.evict_above(room);
        self.reserve(name.len() + value.len());
        let record = Record {
            start: self.end(),
            name_len,
            value_len,
            note,
        };
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        if self.len as usize == self.records.len() {
            self.add_records(record);
        }
        let slot = self.slot(self.inserted);
        self.records[slot] = record;
        self.inserted = self.inserted.wrapping_add(1);
        self.len += 1;
        self.size += record.size();
        true
    }

    /// How large the older entries may be together beside a new entry with `bytes` bytes of name and value; `None` if the
    /// new entry alone is larger than the table's maximum.
    fn room_beside(&self, bytes: usize) -> Option<u32> {
        let size = u32::try_from(bytes).ok()?.checked_add(ENTRY_OVERHEAD)?;
        self.max_size.checked_sub(size)
    }

    fn evict_above(&mut self, size: u32) {
        while self.size > size {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let oldest = self.slot(self.inserted.wrapping_sub(self.len));
        self.size -= self.records[oldest].size();
        self.len -= 1;
    }

    /// The position of the next entry's name in the sense of [`Record::start`].
    fn end(&self) -> u32 {
        // The buffer is at most twice as long as the maximum size of the table, which fits 31 bits.
        self.dropped
            .wrapping_add(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX))
    }

    /// Makes room in the buffer for the `len` bytes of a new entry, which fits the maximum size of the table.
    fn reserve(&mut self, len: usize) {
        if self.bytes.capacity() - self.bytes.len() >= len {
            return;
        }
        let live = (self.size - self.len * ENTRY_OVERHEAD) as usize;
        let dead = self.bytes.len() - live;
        if dead >= live + len {
            // Moving the live bytes to the front is cheap on average: at least as many bytes have been inserted since the
            // last move.
            self.bytes.copy_within(dead.., 0);
            self.bytes.truncate(live);
            self.dropped = self
                .dropped
                .wrapping_add(u32::try_from(dead).unwrap_or(u32::MAX));
        }
        if self.bytes.capacity() - self.bytes.len() < len {
            // Reserved exactly, so that the buffer is never longer than twice the largest maximum size: bytes of evicted
            // entries are less than half of it here, so the live bytes and the new entry fit.
            let double = (2 * self.bytes.capacity()).max(FIRST_BYTES);
            let double = double.min(2 * self.max_size as usize);
            let wanted = double.max(self.bytes.len() + len);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    /// Doubles the ring of records; `filler` is stored in the unused places.
    #[cold]
    fn add_records(&mut self, filler: Record<N>) {
        let wanted = (2 * self.records.len()).max(FIRST_RECORDS);
        let mut records = Vec::new();
        records.reserve_exact(wanted);
        records.resize(wanted, filler);
        for age in 0..self.len {
            let nth = self.inserted.wrapping_sub(1 + age);
            records[nth as usize & (wanted - 1)] = self.records[self.slot(nth)];
        }
        self.records = records;
    }

    /// The index in the ring of the record that the `nth` insertion made.
    #[inline]
    fn slot(&self, nth: u32) -> usize {
        nth as usize & self.records.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain model of the table: the name, value and note of each entry, newest first.
    type Model = Vec<(Vec<u8>, Vec<u8>, u32)>;

    fn model_size(model: &Model) -> usize {
        model.iter().map(|(n, v, _)| n.len() + v.len() + 32).sum()
    }

    #[test]
    fn a_table_holds_what_the_rules_say_and_memory_is_bounded() {
        let mut table = DynamicTable::new(4096);
        // Makes the counters of bytes and insertions start just below 2^32, as after long use, so that they wrap around.
        table.dropped = u32::MAX - 5_000;
        table.inserted = u32::MAX - 100;
        let mut model = Model::new();
        let mut max_size = 4096;
        for round in 0..5_000_u32 {
            if round % 97 == 96 {
                max_size = (round * 7919 % 4097) as usize;
                table.resize(u32::try_from(max_size).unwrap());
                while model_size(&model) > max_size {
                    model.pop();
                }
            }
            let name = vec![b'n'; (round * 31 % 40) as usize];
            let long = if round % 50 == 0 { 4200 } else { 60 };
            let value = vec![round.to_le_bytes()[0]; (round * 17 % long) as usize];
            let fits = name.len() + value.len() + 32 <= max_size;
            assert_eq!(table.insert(&name, &value, round), fits);
            model.insert(0, (name, value, round));
            while model_size(&model) > max_size {
                model.pop();
            }
            let got: Model = table
                .iter()
                .map(|e| (e.name().to_vec(), e.value().to_vec(), *e.note()))
                .collect();
            assert_eq!(got, model);
            assert_eq!(table.size as usize, model_size(&model));
            assert_eq!(table.len() as usize, model.len());
            assert!(table.get(table.len()).is_none());
            assert!(table.retained() <= 8192 + 128 * size_of::<Record<u32>>());
        }
    }

    #[test]
    fn empty_entries_are_bounded_by_their_overhead() {
        let mut table = DynamicTable::new(4096);
        assert_eq!(table.retained(), 0);
        for _ in 0..1000 {
            assert!(table.insert(b"", b"", ()));
        }
        assert_eq!((table.len(), table.records.len()), (128, 128));
        table.keep(3);
        assert_eq!((table.len(), table.size), (3, 96));
        table.resize(31);
        assert_eq!((table.len(), table.size), (0, 0));
        assert!(!table.insert(b"", b"", ()));
    }
}
