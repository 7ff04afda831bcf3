//! Octets that have come and were not taken yet.

use std::collections::VecDeque;

use bytes::Bytes;

/// Octets of one piece of memory: besides what is queued, no more than a piece goes to waste at either end of the queue.
const PIECE: usize = 32 * 1024;

/// Octets in the order in which they came. Whoever fills it bounds it; it holds little more memory than octets, however they come.
#[derive(Default)]
pub struct OctetQueue {
    /// What is being taken.
    front: Bytes,
    /// Full pieces behind it.
    pieces: VecDeque<Bytes>,
    /// What came last. It is put together: a peer that sends octets one by one is not to cost a multiple of them.
    back: Vec<u8>,
    len: usize,
}

impl OctetQueue {
    /// Octets in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts octets behind the others.
    pub fn push(&mut self, mut octets: &[u8]) {
        self.len += octets.len();
        while !octets.is_empty() {
            let (now, later) = octets.split_at(octets.len().min(PIECE - self.back.len()));
            let needed = self.back.len() + now.len();
            if needed > self.back.capacity() {
                let doubled = (2 * self.back.capacity()).min(PIECE);
                self.back
                    .reserve_exact(needed.max(doubled) - self.back.len());
            }
            self.back.extend_from_slice(now);
            if self.back.len() == PIECE {
                self.pieces.push_back(std::mem::take(&mut self.back).into());
            }
            octets = later;
        }
    }

    /// The first octets, at most `max`; none only if there are none.
    #[must_use]
    pub fn take(&mut self, max: usize) -> Bytes {
        if self.front.is_empty() {
            let next = self.pieces.pop_front();
            self.front = next.unwrap_or_else(|| std::mem::take(&mut self.back).into());
        }
        let taken = self.front.split_to(max.min(self.front.len()));
        self.len -= taken.len();
        taken
    }

    /// All of it, if it is one piece.
    #[must_use]
    pub fn take_whole(&mut self) -> Option<Bytes> {
        let first = self.take(usize::MAX);
        if self.is_empty() {
            return Some(first);
        }
        self.len += first.len();
        self.front = first;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_come_out_in_order_whatever_the_pieces() {
        for (pushed, taken) in [
            (1, 7),
            (7, 1),
            (16_384, 16_384),
            (5_000, 49_152),
            (100_000, 999),
        ] {
            let all: Vec<u8> = (0..150_000_u32)
                .map(|n| n.to_le_bytes()[n as usize % 2])
                .collect();
            let mut queue = OctetQueue::default();
            let mut got = Vec::new();
            for (number, octets) in all.chunks(pushed).enumerate() {
                queue.push(octets);
                if number % 3 == 0 {
                    got.extend_from_slice(&queue.take(taken));
                }
            }
            while !queue.is_empty() {
                let piece = queue.take(taken);
                assert!((1..=taken).contains(&piece.len()));
                got.extend_from_slice(&piece);
            }
            assert!(got == all, "{pushed} {taken}");
            assert_eq!(queue.take(1), Bytes::new());
        }
    }

    #[test]
    fn memory_is_what_is_queued_and_not_more_than_a_piece() {
        for step in [1, 100, 8_192, 9_000, 16_384, 65_536] {
            let mut queue = OctetQueue::default();
            while queue.len() < 262_144 {
                queue.push(&vec![0; step]);
                let held = queue.pieces.len() * PIECE + queue.back.capacity();
                assert!(held <= queue.len() + PIECE / 2, "{step} {}", queue.len());
            }
        }
    }

    #[test]
    fn one_piece_is_taken_as_a_whole() {
        let mut queue = OctetQueue::default();
        assert_eq!(queue.take_whole(), Some(Bytes::new()));
        queue.push(b"con");
        queue.push(b"tent");
        assert_eq!(queue.take_whole(), Some(Bytes::from_static(b"content")));
        queue.push(&[0; PIECE + 1]);
        assert_eq!((queue.take_whole(), queue.len()), (None, PIECE + 1));
        let _ = queue.take(PIECE);
        assert_eq!(queue.take_whole(), Some(Bytes::from_static(&[0])));
    }
}
