//! Searches for bytes of text, eight at a time, in a little-endian word: the first byte of the text is the lowest byte of
//! the word.
//!
//! A search marks a byte that it finds by setting the byte's high bit in the result. The lowest mark is always correct;
//! borrows of the subtraction can set false marks above it.

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGH: u64 = ONES << 7;

/// The eight bytes of `text` from `at` on as a word, padded with zeroes after the end of the text.
#[inline]
pub(crate) fn load(text: &[u8], at: usize) -> u64 {
    let rest = text.get(at..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => load_rest(rest),
    }
}

#[cold]
fn load_rest(rest: &[u8]) -> u64 {
    let last_first = rest.iter().take(8).rev();
    last_first.fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Marks the bytes of `word` that equal `byte`.
#[inline]
pub(crate) const fn marks_of(word: u64, byte: u8) -> u64 {
    let differ = word ^ (ONES * byte as u64);
    differ.wrapping_sub(ONES) & !differ & HIGH
}

/// Marks the bytes of `word` that are below `floor` (at most 0x80), and those that are DEL.
#[inline]
pub(crate) const fn marks_below_or_del(word: u64, floor: u8) -> u64 {
    let below = word.wrapping_sub(ONES * floor as u64);
    let del = (word ^ (ONES * 0x7f)).wrapping_sub(ONES);
    // The subtractions also mark bytes above 0x7f; `!word` removes those marks.
    (below | del) & !word & HIGH
}

/// The bits of a word below the lowest mark; all bits if there is no mark.
#[inline]
pub(crate) const fn before_mark(marks: u64) -> u64 {
    (marks & marks.wrapping_neg()).wrapping_sub(1)
}

/// How many bytes of a word are before the lowest mark.
#[inline]
pub(crate) const fn bytes_before(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

/// The word with the letters among its bytes converted to lower case.
#[inline]
pub(crate) const fn fold_case(word: u64) -> u64 {
    let low = word & !HIGH;
    let from_a = low + ONES * (0x80 - b'A' as u64);
    let above_z = low + ONES * (0x7f - b'Z' as u64);
    let upper = (from_a ^ above_z) & !word & HIGH;
    word | upper >> 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_told_from_the_others_wherever_it_stands() {
        for byte in 0..=255u8 {
            for at in 0..8 {
                let mut text = [b'b'; 8];
                text[at] = byte;
                let word = load(&text, 0);
                let find = |is_found: bool| if is_found { at } else { 8 };
                assert_eq!(bytes_before(marks_of(word, b':')), find(byte == b':'));
                let stops = byte < 0x21 || byte == 0x7f;
                let marks = marks_below_or_del(word, 0x21);
                assert_eq!(bytes_before(marks), find(stops), "{byte:#x}");
                let lower = text.to_ascii_lowercase();
                assert_eq!(fold_case(word).to_le_bytes()[..], lower[..]);
            }
        }
    }

    #[test]
    fn words_beyond_the_end_are_padded() {
        assert_eq!(load(b"abc", 1).to_le_bytes(), *b"bc\0\0\0\0\0\0");
        assert_eq!((load(b"abc", 3), load(b"abc", 9)), (0, 0));
        assert_eq!(load(b"0123456789", 1).to_le_bytes(), *b"12345678");
        assert_eq!((before_mark(0), before_mark(0x8000)), (u64::MAX, 0x7fff));
    }
}
