//! Ticket keys in a file that several servers share.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use h2o_config::{Attribute, Kinds, Memory, Node};
use h2o_exchange::Resource;
use h2o_log::report;

use crate::clock::unix_now;
use crate::resumption::tickets::{KeyRing, TicketAlgorithms, TicketCipher, TicketHash, TicketKey};

/// Seconds between checks of the file.
const POLL_SECS: u64 = 10;
/// Times above this are taken as milliseconds, which some documentation asks for; as seconds they would be after the
/// year 5138.
const MILLISECONDS_FROM: u64 = 100_000_000_000;

/// The attributes of a key.
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
        "Until when tickets of this key are accepted.",
    ),
];

/// The configured file. It is opened with the other resources, so that only the starting user must be able to read it.
#[derive(Clone, Debug)]
pub(crate) struct SharedTicketFile {
    path: Box<str>,
    opened: Arc<Mutex<Option<(TicketFile, KeyRing)>>>,
}

impl PartialEq for SharedTicketFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for SharedTicketFile {}

impl SharedTicketFile {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            opened: Arc::default(),
        }
    }

    /// The keys read when the resources were opened; empty before.
    pub(crate) fn take(&self) -> (TicketFile, KeyRing) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, ring) = opened
            .take()
            .unwrap_or_else(|| (TicketFile::new(&self.path), KeyRing::default()));
        if file.text.is_some() {
            file.warn_if_exposed();
        }
        (file, ring)
    }
}

impl Resource for SharedTicketFile {
    /// A failure is reported but does not prevent the start: without keys, clients make full handshakes.
    fn open(&self) -> Result<(), String> {
        let mut file = TicketFile::new(&self.path);
        let ring = file.poll_and_log(unix_now()).unwrap_or_default();
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = Some((file, ring));
        Ok(())
    }
}

/// The file with its last contents.
#[derive(Debug)]
pub(crate) struct TicketFile {
    path: Box<str>,
    /// The whole text: a replacement may have the same size and times.
    text: Option<Vec<u8>>,
    next_poll: u64,
}

/// Which other users may read or write the file.
fn is_exposed_to(metadata: &Metadata) -> Option<&'static str> {
    let is_ours = || {
        let groups = nix::unistd::getgroups().unwrap_or_default();
        let mut ours = groups.into_iter().chain([nix::unistd::getegid()]);
        ours.any(|group| group.as_raw() == metadata.gid())
    };
    if metadata.mode() & 0o007 != 0 {
        Some("everybody")
    } else if metadata.mode() & 0o070 != 0 && !is_ours() {
        Some("a group that the server does not belong to")
    } else {
        None
    }
}

impl TicketFile {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            text: None,
            next_poll: 0,
        }
    }

    /// Whether [`Self::poll`] is due.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.next_poll <= now
    }

    /// Like [`Self::poll`], and logs the result.
    pub(crate) fn poll_and_report(&mut self, now: u64) -> Option<KeyRing> {
        let ring = self.poll_and_log(now)?;
        self.warn_if_exposed();
        Some(ring)
    }

    fn poll_and_log(&mut self, now: u64) -> Option<KeyRing> {
        match self.poll(now) {
            Ok(Some(ring)) => {
                report!(notice, "session ticket secrets have been (re)loaded");
                Some(ring)
            }
            Ok(None) => None,
            Err(line) => {
                report!(error, "{line}");
                None
            }
        }
    }

    /// Whoever has these keys can resume others' sessions, and decrypt recorded sessions of TLS 1.2.
    fn warn_if_exposed(&self) {
        let path = &*self.path;
        let metadata = fs::metadata(path).ok();
        if let Some(whom) = metadata.as_ref().and_then(is_exposed_to) {
            report!(
                warning,
                "session ticket secrets in file:{path} can be read by {whom}: only the user that starts the server needs to (chmod 600)"
            );
        }
    }

    /// The keys, if the file has changed. If reading fails, the old ones stay in use.
    ///
    /// # Errors
    /// The line for the error log.
    pub(crate) fn poll(&mut self, now: u64) -> Result<Option<KeyRing>, String> {
        self.next_poll = now + POLL_SECS;
        let path = &*self.path;
        let text = h2o_opener::read(path.as_ref()).map_err(|error| {
            let reason = h2o_log::reason(&error);
            format!("cannot load session ticket secrets from file:{path}:{reason}")
        })?;
        if self.text.as_ref() == Some(&text) {
            return Ok(None);
        }
        let source = Memory::new().file(path, text.clone());
        let keys = h2o_config::load(path, &source)
            .and_then(|node| parse(&node))
            .map_err(|error| {
                format!("failed to load session ticket secrets from file:{path}:{error}")
            })?;
        self.text = Some(text);
        Ok(Some(keys))
    }
}

fn parse(node: &Node) -> Result<KeyRing, h2o_config::Error> {
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
        .map_err(|_| key_node.error("`key` is not usable"))
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
mod tests {
    use super::*;

    fn entry(changes: &[(&str, &str)]) -> String {
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
        let node = h2o_config::load("f", &Memory::new().file("f", text)).unwrap();
        parse(&node).map_err(|error| error.to_string())
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

    #[test]
    fn a_file_that_was_replaced_is_not_taken_for_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys").to_str().unwrap().to_owned();
        let mut file = TicketFile::new(&path);
        assert!(file.is_due(0));
        let error = file.poll(100).unwrap_err();
        assert_eq!(
            error,
            format!(
                "cannot load session ticket secrets from file:{path}:No such file or directory"
            )
        );
        assert!(!file.is_due(109));
        assert!(file.is_due(110));
        // With the same mtime, as copies and backups may have.
        let write = |text: &str| {
            let new = directory.path().join("new");
            std::fs::write(&new, text).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
            let file = std::fs::File::options().write(true).open(&new).unwrap();
            file.set_modified(time).unwrap();
            std::fs::rename(&new, &path).unwrap();
        };
        write(&entry(&[]));
        assert!(file.poll(110).unwrap().is_some());
        assert!(file.poll(120).unwrap().is_none());
        write("nonsense");
        let error = file.poll(130).unwrap_err();
        assert!(error.starts_with(&format!(
            "failed to load session ticket secrets from file:{path}:"
        )));
        // Reported again until it is fixed.
        assert!(file.poll(140).is_err());
        // The last good text is not a change; another key of the same length is.
        write(&entry(&[]));
        assert!(file.poll(150).unwrap().is_none());
        write(&entry(&[("name", &"1".repeat(32))]));
        let ring = file.poll(160).unwrap().unwrap();
        assert!(ring.key_of(&[0x11; 16], 1500).is_some());
    }

    #[test]
    fn files_that_others_can_read_are_not_passed_over_in_silence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, "").unwrap();
        let exposed = |mode: u32| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            is_exposed_to(&fs::metadata(&path).unwrap())
        };
        for mode in [0o600, 0o400, 0o640] {
            assert_eq!(exposed(mode), None, "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o602, 0o777] {
            assert_eq!(exposed(mode), Some("everybody"), "{mode:o}");
        }
    }
}
