//! HPACK (RFC 7541): an encoder of literals, and a small decoder.

use std::collections::HashMap;
use std::sync::LazyLock;

/// A header field: name and value.
pub type Field = (Vec<u8>, Vec<u8>);

/// The representation of a literal field (RFC 7541 §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Literal without indexing.
    Without,
    /// Literal with incremental indexing.
    Incremental,
    /// Literal that is never indexed.
    Never,
}

/// Encodes fields as literals without indexing and without Huffman coding.
#[must_use]
pub fn encode<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    encode_with(Indexing::Without, fields)
}

/// Encodes fields as literals without Huffman coding.
#[must_use]
pub fn encode_with<N: AsRef<[u8]>, V: AsRef<[u8]>>(
    indexing: Indexing,
    fields: &[(N, V)],
) -> Vec<u8> {
    let first = match indexing {
        Indexing::Without => 0,
        Indexing::Incremental => 0x40,
        Indexing::Never => 0x10,
    };
    let mut section = Vec::new();
    for (name, value) in fields {
        section.push(first);
        for text in [name.as_ref(), value.as_ref()] {
            encode_integer(&mut section, 0, 7, text.len());
            section.extend_from_slice(text);
        }
    }
    section
}

/// Encodes an integer with a prefix of this many bits (RFC 7541 §5.1); `first` holds the bits before the prefix.
pub fn encode_integer(section: &mut Vec<u8>, first: u8, prefix: u8, value: usize) {
    let most = (1 << prefix) - 1;
    if value < most {
        section.push(first | u8::try_from(value).unwrap_or(u8::MAX));
        return;
    }
    section.push(first | u8::try_from(most).unwrap_or(u8::MAX));
    let mut rest = value - most;
    while rest >= 128 {
        section.push(0x80 | u8::try_from(rest % 128).unwrap_or_default());
        rest /= 128;
    }
    section.push(u8::try_from(rest).unwrap_or_default());
}

/// Encodes the field section of a GET request.
#[must_use]
pub fn get(path: &str) -> Vec<u8> {
    request("GET", path)
}

/// Encodes the field section of a POST request.
#[must_use]
pub fn post(path: &str) -> Vec<u8> {
    request("POST", path)
}

fn request(method: &str, path: &str) -> Vec<u8> {
    encode(&[
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "www.example.com"),
    ])
}

/// An HPACK decoder for the server's field sections, with its state.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The entries of the dynamic table, the newest first.
    dynamic: Vec<Field>,
    size: usize,
    limit: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            dynamic: Vec::new(),
            size: 0,
            limit: 4096,
        }
    }
}

impl Decoder {
    /// Number of entries of the dynamic table, and its size (RFC 7541 §4.1).
    #[must_use]
    pub fn table(&self) -> (usize, usize) {
        (self.dynamic.len(), self.size)
    }

    /// Decodes a field section.
    ///
    /// # Panics
    /// If the section is invalid.
    pub fn decode(&mut self, section: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        let mut rest = Input(section);
        while let Some(&first) = rest.0.first() {
            match first {
                0x80.. => {
                    let index = rest.integer(7);
                    fields.push(self.field(index));
                }
                0x40.. => {
                    let field = self.literal(&mut rest, 6);
                    self.insert(field.clone());
                    fields.push(field);
                }
                0x20.. => {
                    self.limit = rest.integer(5);
                    self.evict();
                }
                _ => fields.push(self.literal(&mut rest, 4)),
            }
        }
        fields
    }

    /// Decodes a field section to text, with U+FFFD for invalid UTF-8.
    ///
    /// # Panics
    /// If the section is invalid.
    pub fn decode_text(&mut self, section: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let fields = self.decode(section).into_iter();
        fields
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    fn literal(&self, input: &mut Input<'_>, prefix: u8) -> Field {
        let name = match input.integer(prefix) {
            0 => input.string(),
            index => self.field(index).0,
        };
        (name, input.string())
    }

    fn field(&self, index: usize) -> Field {
        let at = index.checked_sub(1).expect("the HPACK index is not 0");
        if let Some((name, value)) = STATIC.get(at) {
            return ((*name).into(), (*value).into());
        }
        let known = self.dynamic.get(at - STATIC.len());
        known
            .unwrap_or_else(|| panic!("the HPACK tables have no entry {index}"))
            .clone()
    }

    fn insert(&mut self, field: Field) {
        self.size += size(&field);
        self.dynamic.insert(0, field);
        self.evict();
    }

    fn evict(&mut self) {
        while self.size > self.limit {
            let oldest = self.dynamic.pop();
            self.size -= oldest.as_ref().map_or(self.size, size);
        }
    }
}

/// The size of a field in the dynamic table (RFC 7541 §4.1).
fn size((name, value): &Field) -> usize {
    name.len() + value.len() + 32
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self
            .0
            .split_first()
            .expect("the field section has another byte");
        self.0 = rest;
        *first
    }

    fn integer(&mut self, prefix: u8) -> usize {
        let most = (1 << prefix) - 1;
        let mut value = usize::from(self.byte()) & most;
        if value < most {
            return value;
        }
        for shift in (0..28).step_by(7) {
            let byte = self.byte();
            value += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        panic!("the number {value} is too large");
    }

    fn string(&mut self) -> Vec<u8> {
        let is_huffman = self.0.first().is_some_and(|&first| first >= 0x80);
        let length = self.integer(7);
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        if is_huffman {
            decode_huffman(bytes)
        } else {
            bytes.to_vec()
        }
    }
}

/// Length in bits of the Huffman code of each byte, and of EOS (RFC 7541 Appendix B). The codes follow from the lengths: codes are
/// assigned in the order of their lengths, and codes of one length in the order of the bytes.
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// Decodes Huffman-coded text.
pub(crate) fn decode_huffman(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let (mut code, mut length) = (0_u32, 0_u8);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if let Some(symbol) = SYMBOLS.get(&(code, length)) {
                text.push(u8::try_from(*symbol).expect("the symbol is a byte, not EOS"));
                (code, length) = (0, 0);
            }
        }
    }
    let is_padding = length < 8 && code == (1 << length) - 1;
    assert!(
        is_padding,
        "Huffman padding consists of the first bits of EOS"
    );
    text
}

/// The byte (256 for EOS) that each Huffman code stands for. The key is the code and its length in bits.
static SYMBOLS: LazyLock<HashMap<(u32, u8), usize>> = LazyLock::new(|| {
    let mut by_length: Vec<usize> = (0..CODE_LENGTHS.len()).collect();
    by_length.sort_by_key(|&symbol| CODE_LENGTHS[symbol]);
    let (mut code, mut length) = (0, 0);
    let symbols = by_length.into_iter().map(|symbol| {
        code <<= CODE_LENGTHS[symbol] - length;
        length = CODE_LENGTHS[symbol];
        code += 1;
        ((code - 1, length), symbol)
    });
    symbols.collect()
});

/// The static table of HPACK (RFC 7541 Appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.chars().filter(|c| !c.is_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
        pairs
            .map(|pair| u8::from_str_radix(&pair, 16).unwrap())
            .collect()
    }

    #[test]
    fn the_code_is_complete() {
        let used: u64 = CODE_LENGTHS.iter().map(|&n| 1_u64 << (30 - n)).sum();
        assert_eq!(used, 1 << 30);
    }

    #[test]
    fn codes_are_those_of_the_rfc() {
        // Some rows of the table in RFC 7541 Appendix B.
        for (symbol, code, length) in [
            (0, 0x1ff8, 13),
            (10, 0x3fff_fffc, 30),
            (32, 0x14, 6),
            (48, 0, 5),
            (88, 0xfc, 8),
            (92, 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (200, 0x3ff_ffe2, 26),
            (255, 0x3ff_ffee, 26),
            (256, 0x3fff_ffff, 30),
        ] {
            assert_eq!(SYMBOLS.get(&(code, length)), Some(&symbol), "{symbol}");
        }
    }

    #[test]
    fn responses_of_the_rfc_are_decoded() {
        // The examples of RFC 7541 C.6.1 to C.6.3, with a dynamic table of 256 bytes.
        let mut decoder = Decoder {
            limit: 256,
            ..Decoder::default()
        };
        let first = decoder.decode(&bytes(
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        ));
        let want = [
            (":status", "302"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ];
        assert_eq!(first, want.map(|(n, v)| (n.into(), v.into())));
        assert_eq!(decoder.table(), (4, 222));
        let second = decoder.decode(&bytes("4883 640e ffc1 c0bf"));
        assert_eq!(second[0], (b":status".to_vec(), b"307".to_vec()));
        assert_eq!(second[3].1, b"https://www.example.com");
        assert_eq!(decoder.table(), (4, 222));
        let third = decoder.decode(&bytes(
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ));
        assert_eq!(
            third[5].1,
            b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
        );
        assert_eq!(decoder.table(), (3, 215));
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let long = "x".repeat(5000);
        let fields = [(":path", "/"), ("a", &*long), ("b", "")];
        for indexing in [Indexing::Without, Indexing::Incremental, Indexing::Never] {
            let section = encode_with(indexing, &fields);
            let decoded = Decoder::default().decode(&section);
            assert_eq!(
                decoded,
                fields.map(|(n, v)| (n.into(), v.into())),
                "{indexing:?}"
            );
        }
    }
}
