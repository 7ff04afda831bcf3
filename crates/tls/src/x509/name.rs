//! Compares the names of issuers and subjects in certificates.

use crate::x509::der::Reader;

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const VISIBLE_STRING: u8 = 0x1a;
const UNIVERSAL_STRING: u8 = 0x1c;
const BMP_STRING: u8 = 0x1e;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// Whether two RDNSequences, without tag and length, are the same name (RFC 5280 §7.1): the same attributes in the same order.
/// Texts are compared independent of string types, ignoring case and repeated spaces.
///
/// As in OpenSSL, the case of letters outside ASCII matters. A malformed name equals only itself.
#[must_use]
pub fn same_name(one: &[u8], other: &[u8]) -> bool {
    one == other || parse(one).is_some_and(|one| parse(other).is_some_and(|other| one == other))
}

/// An attribute of a name: its type and its value.
type Attribute<'a> = (&'a [u8], Value<'a>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value<'a> {
    Text(String),
    /// A value that is not a text, as a DER element.
    Other(&'a [u8]),
}

/// Splits a name into its relative distinguished names, each with its attributes sorted.
fn parse(name: &[u8]) -> Option<Vec<Vec<Attribute<'_>>>> {
    let mut name = Reader(name);
    let mut parts = Vec::new();
    while !name.is_empty() {
        let mut set = Reader(name.content_of(SET)?);
        let mut attributes = Vec::new();
        while !set.is_empty() {
            let mut attribute = Reader(set.content_of(SEQUENCE)?);
            let kind = attribute.content_of(OBJECT_IDENTIFIER)?;
            let value = attribute.element()?;
            if !attribute.is_empty() {
                return None;
            }
            let text = text(value.tag, value.content);
            attributes.push((kind, text.map_or(Value::Other(value.whole), Value::Text)));
        }
        attributes.sort_unstable();
        parts.push(attributes);
    }
    Some(parts)
}

/// The text of a value, normalised for comparison; `None` if the value is not a text.
fn text(tag: u8, content: &[u8]) -> Option<String> {
    let text: String = match tag {
        UTF8_STRING => std::str::from_utf8(content).ok()?.to_owned(),
        PRINTABLE_STRING | IA5_STRING | VISIBLE_STRING => std::str::from_utf8(content)
            .ok()
            .filter(|text| text.is_ascii())?
            .to_owned(),
        // A TeletexString is read as Latin-1, which authorities write into it in practice.
        TELETEX_STRING => content.iter().map(|&byte| char::from(byte)).collect(),
        BMP_STRING => {
            let (units, []) = content.as_chunks() else {
                return None;
            };
            let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()?
        }
        UNIVERSAL_STRING => {
            let (units, []) = content.as_chunks() else {
                return None;
            };
            let units = units
                .iter()
                .map(|unit| char::from_u32(u32::from_be_bytes(*unit)));
            units.collect::<Option<_>>()?
        }
        _ => return None,
    };
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    Some(words.join(" ").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        [&[tag, len][..], content].concat()
    }

    fn attribute(kind: u8, tag: u8, value: &[u8]) -> Vec<u8> {
        let kind = element(OBJECT_IDENTIFIER, &[0x55, 4, kind]);
        element(SEQUENCE, &[kind, element(tag, value)].concat())
    }

    /// A distinguished name in which each part has one attribute.
    fn name(attributes: &[Vec<u8>]) -> Vec<u8> {
        let parts = attributes
            .iter()
            .flat_map(|attribute| element(SET, attribute));
        parts.collect()
    }

    #[test]
    fn names_are_the_same_whatever_their_string_types() {
        let common_name = |tag: u8, value: &[u8]| name(&[attribute(3, tag, value)]);
        let plain = common_name(PRINTABLE_STRING, b"My Root CA");
        for other in [
            common_name(UTF8_STRING, b"My Root CA"),
            common_name(UTF8_STRING, b" my  ROOT\tca "),
            common_name(TELETEX_STRING, b"My Root CA"),
            common_name(IA5_STRING, b"My Root CA"),
            common_name(BMP_STRING, b"\0M\0y\0 \0R\0o\0o\0t\0 \0C\0A"),
            common_name(
                UNIVERSAL_STRING,
                b"\0\0\0M\0\0\0y\0\0\0 \0\0\0R\0\0\0o\0\0\0o\0\0\0t\0\0\0 \0\0\0C\0\0\0A",
            ),
        ] {
            assert!(same_name(&plain, &other), "{}", other.escape_ascii());
        }
        let umlaut = common_name(UTF8_STRING, "B\u{fc}ro".as_bytes());
        assert!(same_name(&umlaut, &common_name(TELETEX_STRING, b"B\xfcro")));
        assert!(same_name(
            &umlaut,
            &common_name(BMP_STRING, b"\0B\0\xfc\0r\0o")
        ));
    }

    #[test]
    fn names_differ_in_anything_else() {
        let one = |kind: u8, value: &str| attribute(kind, UTF8_STRING, value.as_bytes());
        let (country, unit, common) = (one(6, "DE"), one(11, "x"), one(3, "CA"));
        let plain = name(&[country.clone(), common.clone()]);
        let both = element(SET, &[common.clone(), unit.clone()].concat());
        let swapped = element(SET, &[unit.clone(), common.clone()].concat());
        // The attributes of one relative distinguished name are unordered.
        assert!(same_name(&both, &swapped));
        for other in [
            name(&[common.clone(), country.clone()]),
            name(std::slice::from_ref(&common)),
            name(&[country.clone(), common.clone(), common.clone()]),
            name(&[country.clone(), one(3, "C A")]),
            name(&[country.clone(), one(3, "CB")]),
            name(&[country.clone(), one(10, "CA")]),
            name(&[country.clone(), attribute(3, 0x04, b"CA")]),
            element(SET, &[country.clone(), common.clone()].concat()),
            both.clone(),
            Vec::new(),
            b"\x31\x05\x30".to_vec(),
        ] {
            assert!(!same_name(&plain, &other), "{}", other.escape_ascii());
        }
        // A value of a text type whose bytes are not a text is compared byte by byte.
        let odd = name(&[attribute(3, UTF8_STRING, b"\xff")]);
        assert!(same_name(&odd, &odd.clone()));
        assert!(!same_name(
            &odd,
            &name(&[attribute(3, TELETEX_STRING, b"\xff")])
        ));
        assert!(!same_name(
            &name(&[attribute(3, BMP_STRING, b"\0")]),
            &plain
        ));
    }
}
