//! Puts together the received bytes of streams, and the numbers of received packets.

use std::collections::BTreeMap;

/// The received bytes of a stream, or of the handshake.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// All bytes from the beginning of the stream up to the first gap.
    pub(super) data: Vec<u8>,
    /// Pieces of the stream after a gap, by offset.
    pieces: BTreeMap<u64, Vec<u8>>,
    pub(super) end: Option<u64>,
    /// Error code of RESET_STREAM, if it was received.
    pub(super) reset: Option<u64>,
}

impl Incoming {
    pub(super) fn receive(&mut self, offset: u64, data: &[u8]) {
        let piece = self.pieces.entry(offset).or_default();
        if piece.len() < data.len() {
            *piece = data.to_vec();
        }
        while let Some(entry) = self.pieces.first_entry() {
            let have = self.data.len() as u64;
            if have < *entry.key() {
                break;
            }
            let (offset, piece) = entry.remove_entry();
            let known =
                usize::try_from(have - offset).expect("the length of a stream fits into a usize");
            self.data.extend(piece.get(known..).unwrap_or_default());
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.end == Some(self.data.len() as u64)
    }
}

/// The packet numbers that were received.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Ranges of packet numbers in ascending order, their ends included.
    ranges: Vec<(u64, u64)>,
}

impl Numbers {
    /// Adds a packet number. Returns whether it is new.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let at = self.ranges.partition_point(|range| range.1 < number);
        if self.ranges.get(at).is_some_and(|range| range.0 <= number) {
            return false;
        }
        let joins_before = at > 0 && self.ranges[at - 1].1 + 1 == number;
        let joins_after = self
            .ranges
            .get(at)
            .is_some_and(|range| range.0 == number + 1);
        match (joins_before, joins_after) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = number,
            (false, true) => self.ranges[at].0 = number,
            (false, false) => self.ranges.insert(at, (number, number)),
        }
        true
    }

    pub(super) fn largest(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.1)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        self.ranges.iter().flat_map(|range| range.0..=range.1)
    }

    /// The ranges with the largest packet numbers, at most 32.
    pub(super) fn newest(&self) -> &[(u64, u64)] {
        &self.ranges[self.ranges.len().saturating_sub(32)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_join_to_ranges_in_any_order() {
        let mut numbers = Numbers::default();
        for number in [5, 3, 9, 4, 0, 1, 8] {
            assert!(numbers.insert(number), "{number}");
            assert!(!numbers.insert(number), "{number}");
        }
        assert_eq!(numbers.newest(), [(0, 1), (3, 5), (8, 9)]);
        assert_eq!(numbers.largest(), Some(9));
    }

    #[test]
    fn pieces_join_to_a_stream_in_any_order() {
        let mut stream = Incoming::default();
        for (offset, piece) in [(4, "efgh"), (8, "i"), (2, "cd"), (4, "ef"), (0, "abc")] {
            stream.receive(offset, piece.as_bytes());
        }
        stream.end = Some(9);
        assert_eq!(
            (stream.data.as_slice(), stream.is_whole()),
            (&b"abcdefghi"[..], true)
        );
    }
}
