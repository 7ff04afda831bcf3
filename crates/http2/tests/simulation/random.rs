//! Random numbers that are the same everywhere and always (SplitMix64).

pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("64 bits");
        usize::try_from(self.next() % limit).expect("below a usize")
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Octets of the given length, line ends and digits among them.
    pub(crate) fn octets(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| self.pick(b"\r\n0123456789abc\0\xff :;"))
            .collect()
    }

    /// A field value: no controls, no blanks at the ends.
    pub(crate) fn value(&mut self) -> Vec<u8> {
        let len = self.below(40);
        let mut value: Vec<u8> = (0..len)
            .map(|_| self.pick(b"abcXYZ019 \t,;=\"\xc3\xa9%/"))
            .collect();
        if let [first, .., last] = &mut value[..] {
            (*first, *last) = (b'a', b'z');
        }
        if let [only] = &mut value[..] {
            *only = b'x';
        }
        value
    }
}
