//! Integers with a prefix (RFC 7541 §5.1), which begin in the low bits of a byte whose high bits are flags.
//!
//! HPACK and QPACK both encode numbers in this form.

/// Why an integer could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixedError {
    /// The input ends before the integer does.
    Incomplete,
    /// The integer needs more than 32 bits, or more bytes than 32 bits need.
    TooLarge,
}

/// Appends the integer `value` to `out` with a prefix of `bits` bits (1 to 8). The high bits of the first byte are `flags`.
#[inline]
pub fn encode(flags: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let full = full_prefix(bits);
    match u8::try_from(value) {
        Ok(value) if value < full => out.push(flags | value),
        _ => encode_long(flags | full, value - usize::from(full), out),
    }
}

#[cold]
fn encode_long(first: u8, mut rest: usize, out: &mut Vec<u8>) {
    out.push(first);
    while rest >= 0x80 {
        out.push(0x80 | low_byte(rest));
        rest >>= 7;
    }
    out.push(low_byte(rest));
}

/// Decodes an integer with a prefix of `bits` bits (1 to 8) at the start of `input`; the flags above the prefix are
/// ignored. Returns the integer and the rest of the input.
///
/// # Errors
/// Returns a [`PrefixedError`] if the input is too short or the value too large.
#[inline]
pub fn decode(input: &[u8], bits: u32) -> Result<(u32, &[u8]), PrefixedError> {
    let full = full_prefix(bits);
    let (first, rest) = input.split_first().ok_or(PrefixedError::Incomplete)?;
    match first & full {
        prefix if prefix < full => Ok((u32::from(prefix), rest)),
        prefix => decode_long(prefix, rest),
    }
}

#[cold]
fn decode_long(prefix: u8, mut rest: &[u8]) -> Result<(u32, &[u8]), PrefixedError> {
    let mut value = u64::from(prefix);
    // A prefix and five groups of seven bits cover 32 bits; their sum fits in 64.
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, after) = rest.split_first().ok_or(PrefixedError::Incomplete)?;
        rest = after;
        value += u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            let value = u32::try_from(value).map_err(|_| PrefixedError::TooLarge)?;
            return Ok((value, rest));
        }
    }
    Err(PrefixedError::TooLarge)
}

/// Like [`decode`], for integers of up to 62 bits.
///
/// # Errors
/// Returns a [`PrefixedError`] if the input is too short or the value too large.
pub fn decode_wide(input: &[u8], bits: u32) -> Result<(u64, &[u8]), PrefixedError> {
    let full = full_prefix(bits);
    let (first, mut rest) = input.split_first().ok_or(PrefixedError::Incomplete)?;
    let mut value = u64::from(first & full);
    if value < u64::from(full) {
        return Ok((value, rest));
    }
    // A prefix and nine groups of seven bits fit in 64 bits.
    for shift in (0..63).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(PrefixedError::Incomplete)?;
        rest = after;
        value += u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return match value >> 62 {
                0 => Ok((value, rest)),
                _ => Err(PrefixedError::TooLarge),
            };
        }
    }
    Err(PrefixedError::TooLarge)
}

const fn full_prefix(bits: u32) -> u8 {
    debug_assert!(bits >= 1 && bits <= 8);
    u8::MAX >> (8 - bits)
}

const fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(flags: u8, bits: u32, value: usize) -> Vec<u8> {
        let mut out = Vec::new();
        encode(flags, bits, value, &mut out);
        out
    }

    #[test]
    fn the_examples_of_rfc_7541_appendix_c_1() {
        assert_eq!(encoded(0xe0, 5, 10), [0xea]);
        assert_eq!(encoded(0, 5, 1337), [0x1f, 0x9a, 0x0a]);
        assert_eq!(encoded(0, 8, 42), [42]);
        assert_eq!(decode(&[0xea], 5), Ok((10, &[][..])));
        assert_eq!(decode(&[0x1f, 0x9a, 0x0a, 7], 5), Ok((1337, &[7][..])));
        assert_eq!(decode(&[42], 8), Ok((42, &[][..])));
    }

    #[test]
    fn integers_come_back_and_prefixes_of_them_are_incomplete() {
        for bits in 1..=8 {
            let full = usize::from(full_prefix(bits));
            let near = [0, 1, full - 1, full, full + 1, full + 127, full + 128];
            let far = [70_000, (1 << 28) + full, u32::MAX as usize];
            for value in near.into_iter().chain(far) {
                let mut bytes = encoded(0, bits, value);
                for end in 0..bytes.len() {
                    assert_eq!(decode(&bytes[..end], bits), Err(PrefixedError::Incomplete));
                }
                bytes.push(0xff);
                let (got, rest) = decode(&bytes, bits).unwrap();
                assert_eq!((got as usize, rest), (value, &[0xff][..]));
            }
        }
    }

    #[test]
    fn integers_beyond_32_bits_are_refused() {
        let largest = u32::MAX as usize;
        assert!(decode(&encoded(0, 5, largest), 5).is_ok());
        assert_eq!(
            decode(&encoded(0, 5, largest + 1), 5),
            Err(PrefixedError::TooLarge)
        );
        let endless = [&[0x1f][..], &[0x80; 5]].concat();
        assert_eq!(decode(&endless, 5), Err(PrefixedError::TooLarge));
        assert_eq!(decode(&endless[..5], 5), Err(PrefixedError::Incomplete));
    }

    #[test]
    fn wide_integers_have_up_to_62_bits() {
        let largest = (1 << 62) - 1;
        for bits in 1..=8 {
            for value in [0, 1, 254, 255, 256, 1 << 32, largest - 1, largest] {
                let mut bytes = encoded(0, bits, value);
                for end in 0..bytes.len() {
                    let got = decode_wide(&bytes[..end], bits);
                    assert_eq!(got, Err(PrefixedError::Incomplete));
                }
                bytes.push(7);
                assert_eq!(decode_wide(&bytes, bits), Ok((value as u64, &[7][..])));
            }
            for value in [largest + 1, usize::MAX] {
                let bytes = encoded(0, bits, value);
                assert_eq!(decode_wide(&bytes, bits), Err(PrefixedError::TooLarge));
            }
        }
        let endless = [&[0x1f][..], &[0x80; 9]].concat();
        assert_eq!(decode_wide(&endless, 5), Err(PrefixedError::TooLarge));
        assert_eq!(
            decode_wide(&endless[..9], 5),
            Err(PrefixedError::Incomplete)
        );
    }
}
