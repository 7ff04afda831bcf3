//! A hash table from stream identifiers to nodes of the dependency tree, with linear probing. If a client chooses
//! identifiers that collide, a search visits all known streams at worst, and those are few because of the limits on open,
//! closed and idle streams. With `hashbrown` in its place the micro-benchmark `scheduler/small` needs 4 % more instructions.

#[derive(Clone, Copy)]
struct IndexEntry {
    /// The stream identifier; 0, which no stream has, marks a free entry.
    stream: u32,
    node: u32,
}

const FREE: IndexEntry = IndexEntry { stream: 0, node: 0 };
const SMALLEST: usize = 32;

pub(super) struct Index {
    /// Empty, or a power of two of entries, at least a quarter of which is free.
    entries: Vec<IndexEntry>,
    len: usize,
}

impl Index {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn get(&self, stream: u32) -> Option<u32> {
        if self.len == 0 || stream == 0 {
            return None;
        }
        let at = self.find(stream);
        (self.entries[at].stream == stream).then(|| self.entries[at].node)
    }

    /// Sets the node of a stream; an earlier one is replaced.
    pub(super) fn insert(&mut self, stream: u32, node: u32) {
        debug_assert_ne!(stream, 0);
        if (self.len + 1) * 4 > self.entries.len() * 3 {
            self.resize((self.entries.len() * 2).max(SMALLEST));
        }
        let at = self.find(stream);
        self.len += usize::from(self.entries[at].stream == 0);
        self.entries[at] = IndexEntry { stream, node };
    }

    pub(super) fn remove(&mut self, stream: u32) {
        if self.get(stream).is_none() {
            return;
        }
        self.len -= 1;
        let mask = self.entries.len() - 1;
        let mut hole = self.find(stream);
        let mut at = hole;
        // The following entries move up towards the place where a search for them begins, until a free entry ends the
        // sequence.
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.stream == 0 {
                break;
            }
            let home = home(entry.stream, mask);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = FREE;
    }

    pub(super) fn shrink(&mut self) {
        self.resize((self.len * 2).next_power_of_two().max(SMALLEST));
    }

    /// The index of the stream's entry, or of the free entry where it would be inserted.
    fn find(&self, stream: u32) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = home(stream, mask);
        while self.entries[at].stream != stream && self.entries[at].stream != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    fn resize(&mut self, size: usize) {
        let old = std::mem::replace(&mut self.entries, vec![FREE; size]);
        for entry in old.into_iter().filter(|entry| entry.stream != 0) {
            let at = self.find(entry.stream);
            self.entries[at] = entry;
        }
    }
}

/// The index where the search for a stream begins: the upper bits of the product with 2^32 over the golden ratio, which
/// puts identifiers that differ by two far apart. If long-lived streams had adjacent entries, searches for others would be
/// long.
fn home(stream: u32, mask: usize) -> usize {
    let bits = (mask + 1).trailing_zeros();
    (stream.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::scheduler::tests::Random;

    #[test]
    fn agrees_with_a_hash_map() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut index, mut model) = (Index::new(), HashMap::new());
            for _ in 0..2_000 {
                // Identifiers that differ by multiples of 64 collide in a table of 32 entries; neighbouring ones do not.
                let stream = random.below(40) * [1, 2, 64][random.below(3) as usize] + 1;
                if random.below(2) == 0 {
                    let node = random.below(1000);
                    index.insert(stream, node);
                    model.insert(stream, node);
                } else {
                    index.remove(stream);
                    model.remove(&stream);
                }
                if random.below(100) == 0 {
                    index.shrink();
                }
                assert_eq!(index.len, model.len(), "seed {seed}");
                for (&stream, &node) in &model {
                    assert_eq!(index.get(stream), Some(node), "seed {seed}");
                }
                assert_eq!(index.get(2_000_001), None);
            }
        }
    }
}
