//! Ticket keys in a file that several servers share.

use std::fs;
use std::time::SystemTime;

use h2o_config::{Attribute, Kinds, Node, OsSource};

use super::tickets::{KeyRing, TicketCipher, TicketKey};

/// Seconds between two looks at the file.
const POLL_SECS: u64 = 10;
/// Times above this are taken for milliseconds, which other documentation asks for; as seconds it is the year 5138.
const MILLISECONDS_FROM: u64 = 100_000_000_000;

const ATTRIBUTES: [Attribute; 6] = [
    Attribute::required("name", Kinds::SCALAR),
    Attribute::required("cipher", Kinds::SCALAR),
    Attribute::required("hash", Kinds::SCALAR),
    Attribute::required("key", Kinds::SCALAR),
    Attribute::required("not_before", Kinds::SCALAR),
    Attribute::required("not_after", Kinds::SCALAR),
];

/// The file and what was last seen of it.
#[derive(Debug)]
pub(super) struct TicketFile {
    path: Box<str>,
    modified: Option<SystemTime>,
    next_poll: u64,
}

impl TicketFile {
    pub(super) fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            modified: None,
            next_poll: 0,
        }
    }

    /// True if it is time for [`Self::poll`].
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.next_poll <= now
    }

    /// The keys, if the file has changed. On a failure the old ones stay in use.
    ///
    /// # Errors
    /// The line for the error log.
    pub(super) fn poll(&mut self, now: u64) -> Result<Option<KeyRing>, String> {
        self.next_poll = now + POLL_SECS;
        let path = &*self.path;
        let modified = fs::metadata(path)
            .and_then(|metadata| metadata.modified())
            .map_err(|error| {
                format!(
                    "cannot load session ticket secrets from file:{path}:{}",
                    super::identity::io_reason(&error)
                )
            })?;
        if self.modified == Some(modified) {
            return Ok(None);
        }
        let keys = load(path).map_err(|reason| {
            format!("failed to load session ticket secrets from file:{path}:{reason}")
        })?;
        self.modified = Some(modified);
        Ok(Some(keys))
    }
}

fn load(path: &str) -> Result<KeyRing, String> {
    let node = h2o_config::load(path, &OsSource).map_err(|error| error.to_string())?;
    parse(&node).map_err(|error| error.to_string())
}

fn parse(node: &Node) -> Result<KeyRing, h2o_config::Error> {
    let keys: Result<Vec<TicketKey>, _> = node.sequence()?.iter().map(parse_key).collect();
    Ok(KeyRing::new(keys?))
}

fn parse_key(node: &Node) -> Result<TicketKey, h2o_config::Error> {
    let attributes = node.attributes(&ATTRIBUTES)?;
    let name_node = attributes.require("name")?;
    let name = parse_hex(name_node.scalar()?)
        .and_then(|octets| octets.try_into().ok())
        .ok_or_else(|| name_node.error("`name` must be a string of 32 hexadecimal digits"))?;
    let cipher_node = attributes.require("cipher")?;
    let cipher = TicketCipher::by_name(cipher_node.scalar()?)
        .ok_or_else(|| cipher_node.error("unknown cipher algorithm"))?;
    let hash = attributes.require("hash")?;
    if !is_sha256(hash.scalar()?) {
        return Err(hash.error("unknown hash algorithm"));
    }
    let key_node = attributes.require("key")?;
    let text = key_node.scalar()?;
    let digits = 2 * cipher.material_len();
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
    TicketKey::new(name, cipher, &material, not_before, not_after)
        .map_err(|_| key_node.error("`key` is not usable"))
}

/// SHA-256 under the names in use.
pub(super) fn is_sha256(name: &str) -> bool {
    name.eq_ignore_ascii_case("sha256") || name.eq_ignore_ascii_case("sha-256")
}

fn parse_time(node: &Node) -> Result<u64, h2o_config::Error> {
    let time: u64 = node.integer("%lu", 0..=u64::MAX)?;
    Ok(if time > MILLISECONDS_FROM {
        time / 1000
    } else {
        time
    })
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |octet: &u8| {
        char::from(*octet)
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
