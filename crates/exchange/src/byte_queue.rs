//! A queue of received bytes.

use std::collections::VecDeque;

use bytes::Bytes;

/// Size in bytes of the chunks in which the queue allocates: at most one chunk of memory is wasted at each end of the
/// queue.
const CHUNK: usize = 32 * 1024;
/// A piece of at least this many bytes is queued without copying; smaller ones are copied together.
const MIN_WHOLE: usize = 48 * 1024;

/// A queue of bytes. Its memory is little more than its bytes, however small the pieces in which they arrive. The
/// caller limits its length.
#[derive(Debug, Default)]
pub struct ByteQueue {
    /// The next bytes to take from the queue.
    front: Bytes,
    /// Full chunks and large pieces, which follow the bytes of `front`.
    pieces: VecDeque<Bytes>,
    /// The buffer at the end of the queue, in which small pieces are combined. Without it, a peer that sends single
    /// bytes would cost a multiple of their size in memory.
    back: Vec<u8>,
    len: usize,
}

impl ByteQueue {
    /// Number of bytes in the queue.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the queue is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes to the end of the queue.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.back.len()));
            let needed = self.back.len() + now.len();
            if needed > self.back.capacity() {
                let doubled = (2 * self.back.capacity()).min(CHUNK);
                self.back
                    .reserve_exact(needed.max(doubled) - self.back.len());
            }
            self.back.extend_from_slice(now);
            if self.back.len() == CHUNK {
                self.pieces.push_back(std::mem::take(&mut self.back).into());
            }
            bytes = later;
        }
    }

    /// Appends a piece to the queue; small pieces are copied, large ones are not.
    pub fn push_piece(&mut self, piece: Bytes) {
        if piece.len() < MIN_WHOLE {
            self.push(&piece);
            return;
        }
        self.len += piece.len();
        self.end_back();
        self.pieces.push_back(piece);
    }

    /// Moves all bytes of another queue to the end of this one.
    pub fn append(&mut self, later: Self) {
        self.end_back();
        self.len += later.len;
        self.pieces
            .extend((!later.front.is_empty()).then_some(later.front));
        self.pieces.extend(later.pieces);
        self.back = later.back;
    }

    /// Moves the buffer `back` to the end of `pieces`, even if it is not full.
    fn end_back(&mut self) {
        if !self.back.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.back).into());
        }
    }

    /// Splits off the first bytes of the queue, at most `max`, as a queue of their own.
    #[must_use]
    pub fn split_to(&mut self, max: usize) -> Self {
        if max >= self.len {
            return std::mem::take(self);
        }
        let mut first = Self::default();
        while first.len < max {
            let piece = self.take(max - first.len);
            first.len += piece.len();
            first.pieces.push_back(piece);
        }
        first
    }

    /// All bytes of the queue in order. The bytes stay in the queue.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.front)
            .chain(&self.pieces)
            .map(|piece| &piece[..])
            .chain(std::iter::once(&self.back[..]))
            .filter(|slice| !slice.is_empty())
    }

    /// Takes the first bytes of the queue, at most `max`. The result is empty only if the queue is empty.
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

    /// Takes all bytes of the queue, if they are in one piece of memory.
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
    fn bytes_come_out_in_order_whatever_the_pieces() {
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
            let mut queue = ByteQueue::default();
            let mut got = Vec::new();
            for (number, bytes) in all.chunks(pushed).enumerate() {
                queue.push(bytes);
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
    fn queues_are_joined_and_parted_in_order() {
        let all: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let filled = |bytes: &[u8]| {
            let mut queue = ByteQueue::default();
            let (small, large) = bytes.split_at(bytes.len().min(40_000));
            queue.push(small);
            queue.push_piece(Bytes::copy_from_slice(large));
            queue
        };
        for at in [0, 1, 40_000, 99_999, 199_999, 200_000] {
            let mut first = filled(&all[..at]);
            first.append(filled(&all[at..]));
            assert_eq!(first.len(), all.len());
            let seen: Vec<&[u8]> = first.slices().collect();
            assert!(seen.concat() == all, "{at}");
            for cut in [0, 7, 40_001, 200_000] {
                let mut rest = filled(&all[..at]);
                rest.append(filled(&all[at..]));
                let _ = rest.take(0);
                let first = rest.split_to(cut);
                assert_eq!((first.len(), rest.len()), (cut, all.len() - cut));
                let both: Vec<&[u8]> = first.slices().chain(rest.slices()).collect();
                assert!(both.concat() == all, "{at} {cut}");
            }
        }
    }

    #[test]
    fn large_pieces_are_not_copied() {
        let piece = Bytes::from(vec![7; MIN_WHOLE]);
        let mut queue = ByteQueue::default();
        queue.push(b"first");
        queue.push_piece(piece.clone());
        assert_eq!(queue.take(9), "first");
        assert_eq!(queue.take(usize::MAX).as_ptr(), piece.as_ptr());
    }

    #[test]
    fn memory_is_what_is_queued_and_not_more_than_a_piece() {
        for step in [1, 100, 8_192, 9_000, 16_384, 65_536] {
            let mut queue = ByteQueue::default();
            while queue.len() < 262_144 {
                queue.push(&vec![0; step]);
                let held = queue.pieces.len() * CHUNK + queue.back.capacity();
                assert!(held <= queue.len() + CHUNK / 2, "{step} {}", queue.len());
            }
        }
    }

    #[test]
    fn one_piece_is_taken_as_a_whole() {
        let mut queue = ByteQueue::default();
        assert_eq!(queue.take_whole(), Some(Bytes::new()));
        queue.push(b"con");
        queue.push(b"tent");
        assert_eq!(queue.take_whole(), Some(Bytes::from_static(b"content")));
        queue.push(&[0; CHUNK + 1]);
        assert_eq!((queue.take_whole(), queue.len()), (None, CHUNK + 1));
        let _ = queue.take(CHUNK);
        assert_eq!(queue.take_whole(), Some(Bytes::from_static(&[0])));
    }
}
