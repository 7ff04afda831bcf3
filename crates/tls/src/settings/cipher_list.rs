//! OpenSSL's cipher-list language (`openssl-ciphers(1)`), applied to the supported suites.

use rustls::SupportedCipherSuite;

use h2o_config::{Error, Node};

use crate::suites::{self, TLS12, Tls12Suite};

/// Keywords that match every supported suite: those for ephemeral ECDH, AEAD and TLS 1.2, and more general ones.
const KEYWORDS_OF_ALL: [&str; 9] = [
    "ALL", "DEFAULT", "HIGH", "ECDHE", "EECDH", "ECDH", "kECDHE", "kEECDH", "TLSv1.2",
];

/// Parts of the names and keywords of cipher suites up to TLS 1.2 in OpenSSL 3.0, and some of older versions.
const OLD_WORDS: [&str; 66] = [
    // Words for key exchange and authentication.
    "RSA",
    "kRSA",
    "aRSA",
    "DH",
    "DHE",
    "EDH",
    "kDHE",
    "kEDH",
    "kDH",
    "ADH",
    "DSS",
    "aDSS",
    "ECDH",
    "ECDHE",
    "EECDH",
    "kECDHE",
    "kEECDH",
    "AECDH",
    "ECDSA",
    "aECDSA",
    "PSK",
    "kPSK",
    "aPSK",
    "SRP",
    "kSRP",
    "aNULL",
    // Words for encryption.
    "AES",
    "AES128",
    "AES256",
    "AESGCM",
    "AESCCM",
    "AESCCM8",
    "GCM",
    "CCM",
    "CCM8",
    "CBC",
    "CBC3",
    "CHACHA20",
    "POLY1305",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "SEED",
    "IDEA",
    "DES",
    "3DES",
    "RC4",
    "NULL",
    "eNULL",
    // Words for hash functions.
    "MD5",
    "SHA",
    "SHA1",
    "SHA256",
    "SHA384",
    // Words for groups of suites.
    "HIGH",
    "MEDIUM",
    "LOW",
    "EXP",
    "SSLv3",
    "TLSv1",
    "TLSv1.0",
    "COMPLEMENTOFDEFAULT",
];

/// All supported TLS 1.2 suites in the default order.
pub(crate) fn default_suites() -> Vec<SupportedCipherSuite> {
    TLS12.iter().map(|known| known.suite).collect()
}

/// Reads `cipher-suite`. The result is empty if it names only suites that OpenSSL has and we do not support; the caller
/// warns of that.
///
/// # Errors
/// `failed to setup SSL cipher suite` if OpenSSL would have no suite either.
pub(crate) fn parse(
    node: &Node,
    warn: &mut dyn FnMut(&Node, &str),
) -> Result<Vec<SupportedCipherSuite>, Error> {
    let mut list = CipherList::default();
    for item in node
        .scalar()?
        .split([':', ',', ' ', ';'])
        .filter(|item| !item.is_empty())
    {
        list.apply(item);
    }
    let is_known = |item: &&str| item.split(['-', '+']).all(|word| OLD_WORDS.contains(&word));
    if list.chosen.is_empty() && !list.unknown.iter().any(is_known) {
        return Err(node.error("failed to setup SSL cipher suite").with_hint(
            "there is no such suite; supported are those with ECDHE and AES-GCM or ChaCha20-Poly1305",
        ));
    }
    if !list.unknown.is_empty() {
        let text = format!(
            "cipher suites not supported and left out: {}",
            list.unknown.join(", ")
        );
        warn(node, &text);
    }
    Ok(list.chosen.iter().map(|known| known.suite).collect())
}

/// The state while the items of a list are applied from left to right.
#[derive(Default)]
struct CipherList<'a> {
    chosen: Vec<&'static Tls12Suite>,
    /// The suites that `!` has excluded for good.
    killed: Vec<&'static Tls12Suite>,
    /// Items that add suites but match none.
    unknown: Vec<&'a str>,
}

impl<'a> CipherList<'a> {
    fn apply(&mut self, item: &'a str) {
        match item.as_bytes()[0] {
            b'!' => {
                let matched = matching(&item[1..]);
                self.remove(&matched);
                self.killed.extend(matched);
            }
            b'-' => self.remove(&matching(&item[1..])),
            b'+' => {
                let moved: Vec<_> = matching(&item[1..])
                    .into_iter()
                    .filter(|suite| contains(&self.chosen, suite))
                    .collect();
                self.remove(&moved);
                self.chosen.extend(moved);
            }
            b'@' => self.order(&item[1..]),
            _ => self.add(item),
        }
    }

    fn add(&mut self, item: &'a str) {
        let matched = matching(item);
        // OpenSSL silently accepts names of TLS 1.3 suites here, although they have no effect.
        if matched.is_empty() && !suites::is_tls13_name(item) {
            self.unknown.push(item);
        }
        for suite in matched {
            if !contains(&self.chosen, suite) && !contains(&self.killed, suite) {
                self.chosen.push(suite);
            }
        }
    }

    fn remove(&mut self, suites: &[&'static Tls12Suite]) {
        self.chosen.retain(|suite| !contains(suites, suite));
    }

    /// Applies an item that begins with `@`: `@STRENGTH` sorts by key length. `@SECLEVEL` has no effect, because every supported
    /// suite satisfies it.
    fn order(&mut self, command: &str) {
        if command == "STRENGTH" {
            self.chosen
                .sort_by_key(|suite| std::cmp::Reverse(suite.bits));
        }
    }
}

fn contains(suites: &[&'static Tls12Suite], suite: &Tls12Suite) -> bool {
    suites.iter().any(|known| std::ptr::eq(*known, suite))
}

/// The suites that an item matches: the one with this name, or all that match every keyword of `A+B`.
fn matching(item: &str) -> Vec<&'static Tls12Suite> {
    TLS12
        .iter()
        .filter(|suite| {
            item == suite.name
                || item == suite.iana_name
                || item.split('+').all(|keyword| {
                    suite.keywords.contains(&keyword) || KEYWORDS_OF_ALL.contains(&keyword)
                })
        })
        .collect()
}
