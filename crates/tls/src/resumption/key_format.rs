//! The text form of ticket keys, in files and in stores that servers share. H2O compatibility: this is H2O's form, so that both
//! servers can share the keys.

use std::fmt::Write;

use h2o_config::{Attribute, Kinds, Memory, Node};

use crate::resumption::tickets::{KeyRing, TicketAlgorithms, TicketCipher, TicketHash, TicketKey};

/// Times above this are read as milliseconds, which some documentation asks for; as seconds, they would be after the year 5138.
const MILLISECONDS_FROM: u64 = 100_000_000_000;

/// The attributes of a ticket key in the text form.
pub(crate) const ATTRIBUTES: [Attribute; 6] = [
    Attribute::required(
        "name",
        Kinds::SCALAR,
        "32 hexadecimal digits",
        "Identifies the key in tickets.",
    ),
    Attribute::required(
        "cipher",
        Kinds::SCALAR,
        "aes-128-cbc|aes-256-cbc",
        "Encryption of the ticket.",
    ),
    Attribute::required(
        "hash",
        Kinds::SCALAR,
        "sha1|sha256|sha384|sha512",
        "Authentication of the ticket (HMAC).",
    ),
    Attribute::required(
        "key",
        Kinds::SCALAR,
        "hexadecimal digits",
        "The key of the cipher, then that of the HMAC. The length depends on both; the error message for a wrong length has \
         the right one.",
    ),
    Attribute::required(
        "not_before",
        Kinds::SCALAR,
        "SECONDS since 1970",
        "When the server begins to encrypt tickets with this key.",
    ),
    Attribute::required(
        "not_after",
        Kinds::SCALAR,
        "SECONDS since 1970",
        "Until when tickets that were encrypted with this key are accepted.",
    ),
];

/// Reads the ticket keys of a text. `name` stands for the text in messages.
///
/// # Errors
/// A message that says what is wrong, and where.
pub(crate) fn parse(name: &str, text: &[u8]) -> Result<KeyRing, h2o_config::Error> {
    let source = Memory::new().file(name, text);
    parse_keys(&h2o_config::load(name, &source)?)
}

/// Writes ticket keys as text.
pub(crate) fn to_text(ring: &KeyRing) -> String {
    let mut text = String::new();
    for key in ring.keys() {
        let TicketAlgorithms { cipher, hash } = key.algorithms;
        let (name, material) = (hex(&key.name), hex(&key.material.0));
        let (cipher, hash) = (cipher.name(), hash.name());
        let _ = write!(
            text,
            "- name: {name}\n  cipher: {cipher}\n  hash: {hash}\n  key: {material}\n  not_before: {}\n  not_after: {}\n",
            key.not_before, key.not_after
        );
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse_keys(node: &Node) -> Result<KeyRing, h2o_config::Error> {
    let keys: Result<Vec<TicketKey>, _> = node.sequence()?.iter().map(parse_key).collect();
    Ok(KeyRing::new(keys?))
}

fn parse_key(node: &Node) -> Result<TicketKey, h2o_config::Error> {
    let attributes = node.attributes(&ATTRIBUTES)?;
    let name_node = attributes.require("name")?;
    let name = parse_hex(name_node.scalar()?)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| name_node.error("`name` must be a string of 32 hexadecimal digits"))?;
    let cipher_node = attributes.require("cipher")?;
    let cipher = TicketCipher::by_name(cipher_node.scalar()?).ok_or_else(|| {
        cipher_node
            .error("unknown cipher algorithm")
            .with_hint(TicketCipher::NAMES)
    })?;
    let hash_node = attributes.require("hash")?;
    let hash = TicketHash::by_name(hash_node.scalar()?).ok_or_else(|| {
        hash_node
            .error("unknown hash algorithm")
            .with_hint(TicketHash::NAMES)
    })?;
    let algorithms = TicketAlgorithms { cipher, hash };
    let key_node = attributes.require("key")?;
    let text = key_node.scalar()?;
    let digits = 2 * algorithms.material_len();
    if text.len() != digits {
        return Err(key_node.error(format!(
            "length of the `key` attribute is incorrect (is {}, must be {digits})",
            text.len()
        )));
    }
    let material = parse_hex(text)
        .ok_or_else(|| key_node.error("`key` must be a string of hexadecimal digits"))?;
    let not_before = parse_time(attributes.require("not_before")?)?;
    let not_after_node = attributes.require("not_after")?;
    let not_after = parse_time(not_after_node)?;
    if not_before > not_after {
        return Err(
            not_after_node.error("`not_after` must be equal to or greater than `not_before`")
        );
    }
    TicketKey::new(name, algorithms, &material, not_before, not_after)
        .map_err(|_| key_node.error("the cipher and the hash cannot use this `key`"))
}

fn parse_time(node: &Node) -> Result<u64, h2o_config::Error> {
    let time: u64 = node.integer("%lu", 0..=u64::MAX)?;
    Ok(if time > MILLISECONDS_FROM {
        // The seconds do not exceed `MILLISECONDS_FROM`: this server may write them, and servers that read them must not take
        // them for milliseconds.
        (time / 1000).min(MILLISECONDS_FROM)
    } else {
        time
    })
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| Some(digit(&pair[0])? << 4 | digit(&pair[1])?))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The text of a ticket key, with these attributes changed.
    pub(crate) fn entry(changes: &[(&str, &str)]) -> String {
        let key = "ab".repeat(96);
        let mut fields = vec![
            ("name", "000102030405060708090a0b0c0d0e0F"),
            ("cipher", "AES-256-CBC"),
            ("hash", "SHA256"),
            ("key", &*key),
            ("not_before", "1000"),
            ("not_after", "2000"),
        ];
        for (name, value) in changes {
            for field in &mut fields {
                if field.0 == *name {
                    field.1 = value;
                }
            }
        }
        let lines: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}\n"))
            .collect();
        format!("- {}", lines.join("  "))
    }

    fn parse_text(text: &str) -> Result<KeyRing, String> {
        parse("f", text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_read_in_the_shared_format() {
        let ring = parse_text(&entry(&[])).unwrap();
        assert!(ring.active(999).is_none());
        assert!(ring.active(1000).is_some());
        assert!(ring.active(2000).is_none());
        let short = "cd".repeat(80);
        let long = "cd".repeat(32 + 128);
        for changes in [
            &[("cipher", "aes-128-cbc"), ("key", &*short)][..],
            &[("hash", "sha-256")],
            &[("hash", "SHA1")],
            &[("hash", "SHA384"), ("key", &*long)],
            &[("hash", "sha512"), ("key", &*long)],
            &[
                ("not_before", "1000000000000"),
                ("not_after", "2000000000000"),
            ],
        ] {
            assert!(parse_text(&entry(changes)).is_ok(), "{changes:?}");
        }
        let milliseconds = [
            ("not_before", "1600000000000"),
            ("not_after", "1600000001000"),
        ];
        let ring = parse_text(&entry(&milliseconds)).unwrap();
        assert!(ring.active(1_600_000_000).is_some());
        let two = format!(
            "{}{}",
            entry(&[("name", &"11".repeat(16))]),
            entry(&[("name", &"22".repeat(16)), ("not_before", "1500")])
        );
        let ring = parse_text(&two).unwrap();
        assert!(ring.key_of(&[0x22; 16], 1999).is_some());
        assert!(ring.key_of(&[0x33; 16], 1999).is_none());
    }

    #[test]
    fn keys_are_written_as_they_are_read() {
        let other = [
            ("name", &*"22".repeat(16)),
            ("not_before", "500"),
            ("hash", "SHA1"),
        ];
        let text = entry(&[("name", &"a1".repeat(16))]) + &entry(&other);
        assert_eq!(to_text(&parse_text(&text).unwrap()), text);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = |result: Result<KeyRing, String>| result.map(|_| ()).unwrap_err();
        let cases = [
            (
                "name",
                "00",
                "`name` must be a string of 32 hexadecimal digits",
            ),
            (
                "name",
                "0g0102030405060708090a0b0c0d0e0f",
                "`name` must be a string of 32 hexadecimal digits",
            ),
            ("cipher", "des-ede3-cbc", "unknown cipher algorithm"),
            ("hash", "sha224", "unknown hash algorithm"),
            (
                "key",
                "0102",
                "length of the `key` attribute is incorrect (is 4, must be 192)",
            ),
            ("not_before", "soon", "argument must match the format: %lu"),
            (
                "not_after",
                "999",
                "`not_after` must be equal to or greater than `not_before`",
            ),
        ];
        for (name, value, want) in cases {
            let error = text(parse_text(&entry(&[(name, value)])));
            assert!(error.contains(want), "{error}");
        }
        let bad_digit = "zz".repeat(96);
        let error = text(parse_text(&entry(&[("key", &bad_digit)])));
        assert!(
            error.contains("`key` must be a string of hexadecimal digits"),
            "{error}"
        );
        assert_eq!(
            text(parse_text("x")),
            "[f:1] argument must be a sequence (column 1)"
        );
        let error = text(parse_text("- name: x\n"));
        assert_eq!(
            error,
            "[f:1] cannot find mandatory attribute: cipher (column 3)"
        );
    }
}
