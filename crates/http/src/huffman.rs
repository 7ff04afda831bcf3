//! The Huffman code of RFC 7541 Appendix B, which HPACK and QPACK share.
//!
//! The code is canonical: codes are assigned by length, then by symbol. The table of code lengths therefore defines the
//! whole code, and the other tables are computed from it at compile time.

/// Why bytes could not be decoded (RFC 7541 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HuffmanError {
    /// The text is followed by more than seven bits of padding.
    PaddingTooLong,
    /// The bits after the last symbol are not a prefix of the end-of-string symbol, whose bits are the only valid padding.
    PaddingInvalid,
    /// The text contains the end-of-string symbol.
    EndOfString,
}

/// Number of symbols: all 256 bytes, and the end of the string.
const SYMBOLS: usize = 257;
/// Length in bits of the longest code, which is that of the end of the string.
const LONGEST: u32 = 30;
/// The end-of-string symbol. The first of its bits, all ones, are used as padding; the whole symbol is never sent.
const END_OF_STRING: u16 = 256;

/// Length in bits of the code of each symbol (RFC 7541 Appendix B).
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The Huffman code of each byte, in the low bits of the word.
static CODES: [u32; 256] = {
    let canonical = canonical();
    let mut codes = [0; 256];
    let mut place = 0;
    while place < SYMBOLS {
        let symbol = canonical.symbols[place] as usize;
        let len = LENGTHS[symbol] as usize;
        if symbol < codes.len() {
            #[expect(clippy::cast_possible_truncation, reason = "the table has 257 entries")]
            let nth = place as u32 - canonical.places[len] as u32;
            codes[symbol] = canonical.first[len] + nth;
        }
        place += 1;
    }
    codes
};

/// The Huffman code as tables for decoding, indexed by the length of a code in bits.
struct Canonical {
    /// The symbols, sorted by the length of their code, then by their number.
    symbols: [u16; SYMBOLS],
    /// For each length in bits, the first code of that length; `places` has the index of its symbol in `symbols`.
    first: [u32; LONGEST as usize + 1],
    places: [u16; LONGEST as usize + 1],
    /// For each length in bits, the number of codes of that length.
    counts: [u16; LONGEST as usize + 1],
}

static CANONICAL: Canonical = canonical();

#[expect(
    clippy::cast_possible_truncation,
    reason = "there are 257 symbols, and the table has 257 entries"
)]
const fn canonical() -> Canonical {
    let mut made = Canonical {
        symbols: [0; SYMBOLS],
        first: [0; LONGEST as usize + 1],
        places: [0; LONGEST as usize + 1],
        counts: [0; LONGEST as usize + 1],
    };
    let mut place = 0;
    let mut code = 0;
    let mut len = 1;
    while len <= LONGEST as usize {
        code <<= 1;
        made.first[len] = code;
        made.places[len] = place as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == len {
                made.symbols[place] = symbol as u16;
                made.counts[len] += 1;
                place += 1;
                code += 1;
            }
            symbol += 1;
        }
        len += 1;
    }
    // Checks that the code is complete: every sequence of bits decodes to a symbol.
    assert!(place == SYMBOLS && code == 1 << LONGEST);
    made
}

/// Length in bytes of the Huffman code of `text`, including the padding.
#[inline]
#[must_use]
pub fn encoded_len(text: &[u8]) -> usize {
    let bits = |&byte: &u8| usize::from(LENGTHS[usize::from(byte)]);
    text.iter().map(bits).sum::<usize>().div_ceil(8)
}

/// Appends the Huffman code of `text` to `out`: [`encoded_len`] bytes.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    // The low `pending` bits of `word` are still to be written; before each symbol they are fewer than 32.
    let mut word = 0_u64;
    let mut pending = 0;
    for &byte in text {
        let len = u32::from(LENGTHS[usize::from(byte)]);
        word = word << len | u64::from(CODES[usize::from(byte)]);
        pending += len;
        if pending >= 32 {
            pending -= 32;
            let [_, _, _, _, a, b, c, d] = (word >> pending).to_be_bytes();
            out.extend_from_slice(&[a, b, c, d]);
        }
    }
    // The last byte is padded with ones (RFC 7541 §5.2).
    let word = word << (32 - pending) | u64::from(u32::MAX >> pending);
    let [_, _, _, _, last @ ..] = word.to_be_bytes();
    out.extend_from_slice(&last[..pending.div_ceil(8) as usize]);
}

/// Number of bits that the decoder looks up in the table `PAIRS` at once.
const SEEN: u32 = 11;

/// What the decoder finds in its table for the next [`SEEN`] bits: two symbols if both codes fit in these bits, one if only
/// the first fits, and none if the first code is longer.
#[derive(Clone, Copy)]
struct Pair {
    symbols: [u8; 2],
    /// Length in bits of the first code; 0 if the code is longer than [`SEEN`] bits.
    first_len: u8,
    /// Length in bits of both codes together; if only the first one fits in [`SEEN`] bits, its length.
    len: u8,
}

static PAIRS: [Pair; 1 << SEEN] = {
    const NONE: Pair = Pair {
        symbols: [0; 2],
        first_len: 0,
        len: 0,
    };
    let canonical = canonical();
    let mut pairs = [NONE; 1 << SEEN];
    let mut seen = 0;
    while seen < pairs.len() {
        #[expect(clippy::cast_possible_truncation, reason = "the number has 11 bits")]
        let bits = seen as u32;
        if let Some((first, first_len)) = short_symbol(&canonical, bits, SEEN) {
            let left = SEEN - first_len as u32;
            let after = bits & ((1 << left) - 1);
            pairs[seen] = match short_symbol(&canonical, after, left) {
                Some((second, len)) => Pair {
                    symbols: [first, second],
                    first_len,
                    len: first_len + len,
                },
                None => Pair {
                    symbols: [first, 0],
                    first_len,
                    len: first_len,
                },
            };
        }
        seen += 1;
    }
    pairs
};

/// The byte whose code is at the start of the `width` bits, and the length of that code in bits. `None` if the code is
/// longer than `width` bits.
const fn short_symbol(canonical: &Canonical, bits: u32, width: u32) -> Option<(u8, u8)> {
    let mut len = 1;
    while len <= width {
        let nth = (bits >> (width - len)).wrapping_sub(canonical.first[len as usize]);
        if nth < canonical.counts[len as usize] as u32 {
            let symbol = canonical.symbols[canonical.places[len as usize] as usize + nth as usize];
            #[expect(
                clippy::cast_possible_truncation,
                reason = "only codes of bytes are short enough for this table"
            )]
            return Some((symbol as u8, len as u8));
        }
        len += 1;
    }
    None
}

/// The bits of an encoded text that are still to be decoded. The next bits are the `count` highest bits of `word`.
struct Bits<'a> {
    input: &'a [u8],
    /// How many bytes of the input have been moved into `word`.
    taken: usize,
    word: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    const fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            taken: 0,
            word: 0,
            count: 0,
        }
    }

    /// Moves whole bytes of the input into `word` until it has at least 56 bits or the input ends. The bits after the end
    /// of the input are zero.
    #[inline]
    fn refill(&mut self) {
        let left = self.input.get(self.taken..).unwrap_or_default();
        let (bytes, most) = match left.first_chunk::<8>() {
            Some(bytes) => (u64::from_be_bytes(*bytes), 8),
            None => (self.last_bytes(left), left.len()),
        };
        // Bits of the next byte may get into `word` below the `count` valid bits; the next refill writes the same bits
        // there.
        self.word |= bytes >> self.count;
        let taken = ((63 - self.count) / 8).min(u32::try_from(most).unwrap_or(0));
        self.taken += taken as usize;
        self.count += 8 * taken;
    }

    /// The bytes of `left`, the last ones of the input and fewer than eight, in the highest bits of a word.
    #[inline]
    fn last_bytes(&self, left: &[u8]) -> u64 {
        let bytes = match self.input.last_chunk::<8>() {
            Some(last) => u64::from_be_bytes(*last),
            None => left
                .iter()
                .fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
        let bits = 8 * u32::try_from(left.len()).unwrap_or(0);
        bytes.checked_shl(64 - bits).unwrap_or(0)
    }

    fn is_at_end(&self) -> bool {
        self.taken == self.input.len()
    }

    #[inline]
    fn skip(&mut self, count: u32) {
        self.word <<= count;
        self.count -= count;
    }

    #[inline]
    fn pair(&self) -> Pair {
        PAIRS[(self.word >> (64 - SEEN)) as usize]
    }

    /// The symbol of a code that is longer than [`SEEN`] bits, and the length of the code in bits, which may be more than
    /// the bits that are left.
    #[cold]
    fn long_symbol(&self) -> (u16, u32) {
        for len in SEEN + 1..=LONGEST {
            let at = len as usize;
            let code = self.word >> (64 - len);
            let nth = code.wrapping_sub(u64::from(CANONICAL.first[at]));
            if nth < u64::from(CANONICAL.counts[at]) {
                let nth = u16::try_from(nth).unwrap_or(u16::MAX);
                return (
                    CANONICAL.symbols[usize::from(CANONICAL.places[at] + nth)],
                    len,
                );
            }
        }
        (END_OF_STRING, LONGEST)
    }

    /// Checks that the remaining bits are valid padding.
    fn finish(&self) -> Result<(), HuffmanError> {
        if self.word.leading_ones() < self.count {
            Err(HuffmanError::PaddingInvalid)
        } else if self.count > 7 {
            Err(HuffmanError::PaddingTooLong)
        } else {
            Ok(())
        }
    }
}

/// Appends the text that the Huffman code `input` encodes, at most 8/5 times as long as `input`.
///
/// # Errors
/// Returns a [`HuffmanError`] if `input` is not a valid code with its padding; nothing is appended then.
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), HuffmanError> {
    /// Texts of up to this many bytes are decoded on the stack; most texts are short.
    const SHORT: usize = 64;
    let start = out.len();
    if input.len() * 8 / 5 + 2 <= SHORT {
        let mut room = [0; SHORT];
        let len = decode_into(input, &mut room)?;
        out.extend_from_slice(&room[..len]);
        return Ok(());
    }
    // The shortest codes have five bits, so the text has at most 8/5 of the input's length. Two more bytes are needed since
    // a look-up writes two bytes even if it finds only one symbol.
    out.resize(start + input.len() * 8 / 5 + 2, 0);
    let decoded = decode_into(input, &mut out[start..]);
    out.truncate(start + *decoded.as_ref().unwrap_or(&0));
    decoded.map(|_| ())
}

/// Decodes the Huffman code `input` into `room`. Returns the length of the text.
fn decode_into(input: &[u8], room: &mut [u8]) -> Result<usize, HuffmanError> {
    let mut bits = Bits::new(input);
    let mut at = 0;
    loop {
        bits.refill();
        while bits.count >= SEEN {
            let pair = bits.pair();
            if pair.len == 0 {
                break;
            }
            room[at..at + 2].copy_from_slice(&pair.symbols);
            at += 1 + usize::from(pair.len != pair.first_len);
            bits.skip(u32::from(pair.len));
        }
        if bits.count < LONGEST && !bits.is_at_end() {
            continue;
        }
        // The next code is longer than [`SEEN`] bits, or the input ends within it.
        let pair = bits.pair();
        let (symbol, len) = match pair.first_len {
            0 => bits.long_symbol(),
            len => (u16::from(pair.symbols[0]), u32::from(len)),
        };
        if len > bits.count {
            return bits.finish().map(|()| at);
        }
        room[at] = u8::try_from(symbol).map_err(|_| HuffmanError::EndOfString)?;
        at += 1;
        bits.skip(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        encode(text, &mut out);
        assert_eq!(out.len(), 6 + encoded_len(text));
        out.split_off(6)
    }

    fn decoded(input: &[u8]) -> Result<Vec<u8>, HuffmanError> {
        let mut out = b"before".to_vec();
        let result = decode(input, &mut out);
        assert_eq!(out[..6], *b"before");
        let text = out.split_off(6);
        assert!(result.is_ok() || text.is_empty());
        result.map(|()| text)
    }

    /// Packs a text of the characters 0 and 1 into bytes, one bit per character.
    fn packed(bits: &str) -> Vec<u8> {
        assert_eq!(bits.len() % 8, 0);
        let byte = |chunk: &[u8]| chunk.iter().fold(0, |o, &b| o << 1 | u8::from(b == b'1'));
        bits.as_bytes().chunks(8).map(byte).collect()
    }

    #[test]
    fn codes_are_those_of_rfc_7541_appendix_b() {
        let rows: &[(u8, u32, u8)] = &[
            (0, 0x1ff8, 13),
            (1, 0x007f_ffd8, 23),
            (9, 0x00ff_ffea, 24),
            (10, 0x3fff_fffc, 30),
            (22, 0x3fff_fffe, 30),
            (b' ', 0x14, 6),
            (b'#', 0xffa, 12),
            (b'&', 0xf8, 8),
            (b'0', 0, 5),
            (b'9', 0x1f, 6),
            (b'<', 0x7ffc, 15),
            (b'A', 0x21, 6),
            (b'Z', 0xfd, 8),
            (b'\\', 0x7fff0, 19),
            (b'_', 0x22, 6),
            (b'a', 3, 5),
            (b'v', 0x77, 7),
            (b'z', 0x7b, 7),
            (b'|', 0x7fc, 11),
            (b'~', 0x1ffd, 13),
            (127, 0x0fff_fffc, 28),
            (128, 0xfffe6, 20),
            (143, 0x007f_ffdf, 23),
            (159, 0x00ff_ffef, 24),
            (178, 0x003f_ffe0, 22),
            (191, 0x007f_fff1, 23),
            (195, 0x7fff1, 19),
            (207, 0x01ff_ffed, 25),
            (213, 0x03ff_ffe7, 26),
            (215, 0x00ff_fff2, 24),
            (226, 0xfffed, 20),
            (230, 0x001f_ffe8, 21),
            (233, 0x003f_ffeb, 22),
            (239, 0x007f_fff4, 23),
            (243, 0x03ff_ffed, 26),
            (249, 0x0fff_fffe, 28),
            (254, 0x07ff_fff0, 27),
            (255, 0x03ff_ffee, 26),
        ];
        for &(byte, code, len) in rows {
            let at = usize::from(byte);
            assert_eq!((CODES[at], LENGTHS[at]), (code, len), "{byte}");
        }
    }

    #[test]
    fn the_examples_of_rfc_7541_appendix_c() {
        let cases: &[(&[u8], &[u8])] = &[
            (
                b"www.example.com",
                b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            ),
            (b"no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
            (b"custom-key", b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f"),
            (b"302", b"\x64\x02"),
            (
                b"Mon, 21 Oct 2013 20:13:21 GMT",
                b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff",
            ),
            (b"", b""),
        ];
        for &(text, code) in cases {
            assert_eq!(encoded(text), code);
            assert_eq!(decoded(code).as_deref(), Ok(text));
        }
    }

    #[test]
    fn every_byte_comes_back_wherever_it_stands() {
        for byte in 0..=255 {
            for before in 0..12 {
                for after in [0, 1, 2, 20] {
                    let text = [&vec![b'w'; before][..], &[byte], &vec![b'0'; after]].concat();
                    assert_eq!(decoded(&encoded(&text)).as_deref(), Ok(&text[..]));
                }
            }
        }
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(decoded(&encoded(&all)), Ok(all));
    }

    #[test]
    fn padding_is_less_than_an_byte_of_ones_and_the_end_is_not_spelt_out() {
        let end = "1".repeat(30);
        // The code of '0' is 00000, of 'a' 00011, of ':' 1011100 and of '=' 100000.
        let cases: &[(&str, Result<&[u8], HuffmanError>)] = &[
            ("00000111", Ok(b"0")),
            ("1011100100000111", Ok(b":=")),
            ("00000110", Err(HuffmanError::PaddingInvalid)),
            ("00000000", Err(HuffmanError::PaddingInvalid)),
            ("00000101", Err(HuffmanError::PaddingInvalid)),
            ("11111111", Err(HuffmanError::PaddingTooLong)),
            ("0000011111111111", Err(HuffmanError::PaddingTooLong)),
            ("0000011111111110", Err(HuffmanError::PaddingInvalid)),
            (&format!("{end}11"), Err(HuffmanError::EndOfString)),
            (&format!("00000{end}00011"), Err(HuffmanError::EndOfString)),
            (
                &format!("{}{end}{}11", "00000".repeat(16), "00011".repeat(16)),
                Err(HuffmanError::EndOfString),
            ),
            (
                &format!("00000{}000", "1".repeat(24)),
                Err(HuffmanError::PaddingInvalid),
            ),
        ];
        for (bits, want) in cases {
            assert_eq!(decoded(&packed(bits)).as_deref(), want.as_deref(), "{bits}");
        }
    }

    #[test]
    fn what_decodes_is_the_code_of_what_it_decodes_to() {
        // Pseudo-random bytes; short inputs made of them are valid codes often enough for the test.
        let mut state = 7_u64;
        let mut valid = 0;
        for round in 0..20_000_usize {
            let input: Vec<u8> = (0..round % 24)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    state.to_be_bytes()[0] | (u8::from(round % 3 == 0) * 0xf0)
                })
                .collect();
            if let Ok(text) = decoded(&input) {
                assert_eq!(encoded(&text), input);
                valid += usize::from(!input.is_empty());
            }
        }
        assert!(valid > 50, "{valid}");
    }
}
