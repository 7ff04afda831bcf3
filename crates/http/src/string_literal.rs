//! String literals of HPACK and QPACK (RFC 7541 §5.2, RFC 9204 §4.1.2): a bit that tells whether the Huffman code is used,
//! the length, and the text.
//!
//! HPACK encodes the length as an integer with a prefix of seven bits. QPACK has shorter prefixes, too, with flags above
//! the Huffman bit.

use std::ops::Range;

use crate::huffman::{self, HuffmanError};
use crate::prefixed::{self, PrefixedError};

/// Why a string literal could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringError {
    /// The length of the string is malformed, or the input ends before the string does.
    Length(PrefixedError),
    /// The text is not a valid Huffman code.
    Huffman(HuffmanError),
}

impl From<PrefixedError> for StringError {
    fn from(error: PrefixedError) -> Self {
        Self::Length(error)
    }
}

/// The text of a decoded string literal.
#[derive(Clone, Debug)]
pub enum Text<'i> {
    /// The string was sent without the Huffman code; it is used where it is in the input.
    Plain(&'i [u8]),
    /// The string was decoded to this part of the decoder's scratch buffer.
    Scratch(Range<usize>),
}

impl<'i> Text<'i> {
    /// The bytes of the text; `scratch` is the buffer that was given to the decoder.
    #[must_use]
    pub fn bytes<'a>(&self, scratch: &'a [u8]) -> &'a [u8]
    where
        'i: 'a,
    {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Scratch(range) => scratch.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Appends `text` as a string literal, by the Huffman code if that is shorter. The length has a prefix of `bits` bits (1 to
/// 7); above it in the first byte are the Huffman bit and then `flags`.
#[inline]
pub fn encode(flags: u8, bits: u32, text: &[u8], out: &mut Vec<u8>) {
    let encoded_len = huffman::encoded_len(text);
    if encoded_len < text.len() {
        prefixed::encode(flags | 1 << bits, bits, encoded_len, out);
        huffman::encode(text, out);
    } else {
        encode_plain(flags, bits, text, out);
    }
}

/// Like [`encode`], but never uses the Huffman code.
#[inline]
pub fn encode_plain(flags: u8, bits: u32, text: &[u8], out: &mut Vec<u8>) {
    prefixed::encode(flags, bits, text.len(), out);
    out.extend_from_slice(text);
}

/// Decodes the string literal at the start of `input`, whose length has a prefix of `bits` bits; flags above the Huffman
/// bit are ignored. Returns the text and the rest of the input. A Huffman-coded text is decoded to the end of `scratch`.
///
/// # Errors
/// Returns a [`StringError`] if the literal is incomplete or malformed.
#[inline]
pub fn decode<'i>(
    input: &'i [u8],
    bits: u32,
    scratch: &mut Vec<u8>,
) -> Result<(Text<'i>, &'i [u8]), StringError> {
    let is_huffman = input.first().is_some_and(|first| first & 1 << bits != 0);
    let (len, rest) = prefixed::decode(input, bits)?;
    let (text, rest) = rest
        .split_at_checked(len as usize)
        .ok_or(PrefixedError::Incomplete)?;
    if !is_huffman {
        return Ok((Text::Plain(text), rest));
    }
    let start = scratch.len();
    huffman::decode(text, scratch).map_err(StringError::Huffman)?;
    Ok((Text::Scratch(start..scratch.len()), rest))
}

/// The input after the string literal at its start; `None` if the literal is incomplete.
#[must_use]
pub fn skip(input: &[u8], bits: u32) -> Option<&[u8]> {
    let (len, rest) = prefixed::decode(input, bits).ok()?;
    rest.get(len as usize..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_whatever_their_prefix_and_flags() {
        let texts: [&[u8]; 5] = [b"", b"www.example.com", b"\xff\xfe", b"\0", &[b'a'; 300]];
        for bits in 3..=7 {
            let flags = if bits < 7 { 0x80 } else { 0 };
            for text in texts {
                for encode in [encode, encode_plain] {
                    let mut bytes = Vec::new();
                    encode(flags, bits, text, &mut bytes);
                    assert_eq!(bytes[0] & 0x80 & flags, flags);
                    for end in 0..bytes.len() {
                        let got = decode(&bytes[..end], bits, &mut Vec::new());
                        let want = StringError::Length(PrefixedError::Incomplete);
                        assert_eq!(got.expect_err("the string literal is incomplete"), want);
                        assert_eq!(skip(&bytes[..end], bits), None);
                    }
                    bytes.push(7);
                    let mut scratch = b"before".to_vec();
                    let (got, rest) =
                        decode(&bytes, bits, &mut scratch).expect("the string literal is valid");
                    assert_eq!((got.bytes(&scratch), rest), (text, &[7][..]));
                    assert_eq!(skip(&bytes, bits), Some(&[7][..]));
                }
            }
        }
    }

    #[test]
    fn the_huffman_code_is_used_where_it_is_shorter() {
        // The example of RFC 7541 appendix C.4.1.
        let mut bytes = Vec::new();
        encode(0, 7, b"www.example.com", &mut bytes);
        assert_eq!(
            bytes,
            b"\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"
        );
        bytes.clear();
        encode(0x20, 3, b"\xff\xff", &mut bytes);
        assert_eq!(bytes, [0x22, 0xff, 0xff]);
        let wrong = decode(&[0x81, 0xff], 7, &mut Vec::new());
        assert!(matches!(wrong, Err(StringError::Huffman(_))));
    }
}
