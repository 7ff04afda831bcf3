//! Variable-length integers (RFC 9000 §16).

/// The largest integer that can be encoded.
pub const MAX: u64 = (1 << 62) - 1;

/// Length in bytes of the integer whose first byte is `first`.
#[inline]
const fn len_of(first: u8) -> usize {
    1 << (first >> 6)
}

/// Decodes the integer at the start of `input`. Returns it with the rest of the input; `None` if it is not complete.
#[inline]
#[must_use]
pub fn decode(input: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = input.split_first()?;
    if first < 0x40 {
        return Some((u64::from(first), rest));
    }
    decode_long(first, input)
}

fn decode_long(first: u8, input: &[u8]) -> Option<(u64, &[u8])> {
    let (bytes, rest) = input.split_at_checked(len_of(first))?;
    let value = bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte));
    Some((value & (u64::MAX >> (66 - 8 * bytes.len())), rest))
}

/// Appends the encoding of `value`, which is at most [`MAX`], in as few bytes as it needs.
#[inline]
pub fn encode(value: u64, out: &mut Vec<u8>) {
    debug_assert!(value <= MAX);
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    match value {
        0..0x40 => out.push(h),
        0x40..0x4000 => out.extend_from_slice(&[0x40 | g, h]),
        0x4000..0x4000_0000 => out.extend_from_slice(&[0x80 | e, f, g, h]),
        _ => out.extend_from_slice(&[0xc0 | a, b, c, d, e, f, g, h]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_9000_appendix_a_1() {
        let cases: &[(&[u8], u64)] = &[
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for &(bytes, value) in cases {
            assert_eq!(decode(bytes), Some((value, &[][..])));
        }
    }

    #[test]
    fn integers_come_back_and_prefixes_of_them_are_incomplete() {
        let edges = [
            (0, 1),
            (0x3f, 1),
            (0x40, 2),
            (0x3fff, 2),
            (0x4000, 4),
            (0x3fff_ffff, 4),
            (0x4000_0000, 8),
            (MAX, 8),
        ];
        for (value, len) in edges {
            let mut bytes = Vec::new();
            encode(value, &mut bytes);
            assert_eq!(bytes.len(), len);
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), None);
            }
            bytes.push(0xff);
            assert_eq!(decode(&bytes), Some((value, &[0xff][..])));
        }
    }
}
