//! base64url without padding (RFC 4648 §5), which is how fields of HTTP carry binary values.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// When this engine decodes, it ignores the bits after the last whole byte.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// Encodes bytes as base64url without padding.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    ENGINE.encode(bytes)
}

/// Decodes base64url without padding; `None` if the text is something else. H2O compatibility: H2O accepts the `+` and `/`
/// of plain base64, too.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let to_url_safe = |letter: &u8| match *letter {
        b'+' => b'-',
        b'/' => b'_',
        other => other,
    };
    let text: Vec<u8> = text.iter().map(to_url_safe).collect();
    ENGINE.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_urls() {
        let cases: &[(&[u8], &str)] = &[
            (b"", ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg"),
            (&[0xfb, 0xff, 0xfe], "-__-"),
        ];
        for (bytes, text) in cases {
            assert_eq!(encode(bytes), *text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(*bytes));
        }
        let lenient: &[(&[u8], &[u8])] = &[(b"+//-", &[0xfb, 0xff, 0xfe]), (b"Zh", b"f")];
        for (text, bytes) in lenient {
            assert_eq!(decode(text).as_deref(), Some(*bytes));
        }
        for bad in ["A", "AAAAA", "AA=", "AA==", "A A", "AA\u{e4}"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
