//! Golomb-Rice coded sets of numbers, used by CASPer and cache digests. The numbers ascend. For each, the distance to the
//! one before, minus one, is written: first its high bits in unary (this many 0 bits, then a 1 bit), then its low bits.

/// Reads bits, the most significant first.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Number of bits read so far.
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn bit(&mut self) -> Option<u64> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (7 - self.at % 8) & 1;
        self.at += 1;
        Some(bit.into())
    }

    /// Reads the next `count` bits as a number. `None` if fewer bits are left.
    pub(super) fn bits(&mut self, count: u32) -> Option<u64> {
        (0..count).try_fold(0, |number, _| Some(number << 1 | self.bit()?))
    }

    /// Returns the number of 0 bits up to the next 1 bit, and skips that bit, too; `None` without a 1 bit: the rest is padding.
    fn unary(&mut self) -> Option<u64> {
        let mut zeros = 0;
        while self.bit()? == 0 {
            zeros += 1;
        }
        Some(zeros)
    }

    /// Passes the numbers of the set that follows to `add`, in ascending order. `None` if the last one is cut off or a
    /// number is not below `limit`.
    pub(super) fn numbers(
        &mut self,
        low_bits: u32,
        limit: u64,
        mut add: impl FnMut(u64),
    ) -> Option<()> {
        let mut least = 0_u64;
        while let Some(high) = self.unary() {
            let low = self.bits(low_bits)?;
            // The sum cannot overflow: `high` is at most the number of bits.
            let number = high
                .checked_shl(low_bits)
                .and_then(|high| least.checked_add(high | low))
                .filter(|number| *number < limit)?;
            add(number);
            least = number + 1;
        }
        Some(())
    }
}

/// Encodes a set of ascending numbers. The last byte is padded with 0 bits.
pub(super) fn encode(numbers: impl Iterator<Item = u64>, low_bits: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut len = 0;
    let mut push = |bit: bool| {
        if len % 8 == 0 {
            out.push(0);
        }
        if let Some(last) = out.last_mut() {
            *last |= u8::from(bit) << (7 - len % 8);
        }
        len += 1;
    };
    let mut least = 0;
    for number in numbers {
        let distance = number - least;
        for _ in 0..distance >> low_bits {
            push(false);
        }
        push(true);
        for bit in (0..low_bits).rev() {
            push(distance >> bit & 1 == 1);
        }
        least = number + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_bits_as_worked_out_by_hand() {
        let cases: &[(&[u64], u32, &[u8])] = &[
            (&[], 6, b""),
            (&[0], 6, &[0b1000_0000]),
            (&[0, 1], 6, &[0b1000_0001, 0b0000_0000]),
            (&[63], 6, &[0b1111_1110]),
            (&[64], 6, &[0b0100_0000]),
            // The number 5 is written as 1 000101; the distance 200 - 6 = 3 * 64 + 2 as 0001 000010.
            (&[5, 200], 6, &[0b1000_1010, 0b0010_0001, 0b0000_0000]),
            (&[0, 1, 3], 0, &[0b1101_0000]),
            (&[7], 2, &[0b0111_0000]),
        ];
        for (numbers, low_bits, want) in cases {
            let bytes = encode(numbers.iter().copied(), *low_bits);
            assert_eq!(&bytes, want, "{numbers:?}");
            let mut back = Vec::new();
            let mut reader = BitReader::new(&bytes);
            let read = reader.numbers(*low_bits, 201, |number| back.push(number));
            assert_eq!((read, &back[..]), (Some(()), *numbers), "{numbers:?}");
        }
    }

    #[test]
    fn cut_off_and_too_large_numbers_are_refused() {
        let cases: &[(&[u8], u64, Option<()>)] = &[
            (&[0b0000_0010], 1000, None),
            (&[0b1111_1110], 64, Some(())),
            (&[0b1111_1110], 63, None),
            (&[0b1111_1111, 0b1111_1110], 65, None),
            (&[0; 1000], 1, Some(())),
        ];
        for (bytes, limit, want) in cases {
            let got = BitReader::new(bytes).numbers(6, *limit, |_| ());
            assert_eq!(got, *want, "{bytes:?}");
        }
    }
}
