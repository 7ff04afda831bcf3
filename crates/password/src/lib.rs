//! Hashes of passwords, in the forms that Apache's `htpasswd` writes to password files.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};

/// The hash of one password. Comparing a password takes the same time wherever its hash differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordHash {
    /// A bcrypt hash (`$2y$`, `$2b$`, `$2a$`), as text.
    Bcrypt(Box<str>),
    /// A hash by Apache's variant of MD5 (`$apr1$`), as text.
    Apr1(Box<str>),
    /// A SHA-1 hash without salt (`{SHA}`).
    Sha1([u8; 20]),
}

/// Limit of the length in bytes of a password that is hashed: computing `$apr1$` takes time in proportion to the length, and clients send
/// passwords of any length. `htpasswd` makes hashes of at most 255 bytes.
const MAX_PASSWORD: usize = 1024;
/// Highest cost of bcrypt that the server computes, as in `htpasswd`. A comparison then takes some ten seconds.
const MAX_COST: u32 = 17;

impl PasswordHash {
    /// Reads a hash. `None` if it is of another kind or malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(encoded) = text.strip_prefix("{SHA}") {
            let bytes = STANDARD.decode(encoded).ok()?;
            return bytes.try_into().ok().map(Self::Sha1);
        }
        if let Some(rest) = text.strip_prefix("$apr1$") {
            let (salt, hash) = rest.split_once('$')?;
            let is_whole = salt.len() <= 8 && hash.len() == 22;
            return is_whole.then(|| Self::Apr1(text.into()));
        }
        let parts: bcrypt::HashParts = text.parse().ok()?;
        let is_known = ["$2y$", "$2b$", "$2a$"]
            .iter()
            .any(|it| text.starts_with(it));
        (is_known && parts.get_cost() <= MAX_COST).then(|| Self::Bcrypt(text.into()))
    }

    /// Whether this is the hash of `password`. The comparison with a bcrypt hash takes long on purpose. A password of more than 1,024 bytes
    /// never fits.
    #[must_use]
    pub fn fits(&self, password: &[u8]) -> bool {
        if password.len() > MAX_PASSWORD {
            return false;
        }
        match self {
            Self::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
            Self::Apr1(text) => {
                let salt = text.split('$').nth(2).unwrap_or_default();
                let computed = apr1(password, salt.as_bytes());
                computed.is_some_and(|it| verify_slices_are_equal(&it, text.as_bytes()).is_ok())
            }
            Self::Sha1(hash) => {
                let computed = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, password);
                verify_slices_are_equal(computed.as_ref(), hash).is_ok()
            }
        }
    }

    /// Whether the kind of hash is weak: an attacker who has the hash finds the password quickly by guessing.
    #[must_use]
    pub fn is_weak(&self) -> bool {
        match self {
            Self::Sha1(_) => true,
            Self::Bcrypt(_) | Self::Apr1(_) => false,
        }
    }
}

/// Computes the hash `$apr1$` of a password, in the form that Apache's `htpasswd -m` writes. `None` if the password has more than 1,024
/// bytes.
#[must_use]
pub fn apr1(password: &[u8], salt: &[u8]) -> Option<Vec<u8>> {
    const ROUNDS: u32 = 1000;
    if password.len() > MAX_PASSWORD {
        return None;
    }
    let salt = &salt[..salt.len().min(8)];
    let mut alternate = Md5::new();
    for part in [password, salt, password] {
        alternate.update(part);
    }
    let alternate = alternate.finalize();

    let mut first = Md5::new();
    for part in [password, b"$apr1$", salt] {
        first.update(part);
    }
    for chunk in password.chunks(alternate.len()) {
        first.update(&alternate[..chunk.len()]);
    }
    let mut rest = password.len();
    while rest > 0 {
        let byte = if rest & 1 == 1 { &[0] } else { &password[..1] };
        first.update(byte);
        rest >>= 1;
    }
    let mut result = first.finalize();

    for round in 0..ROUNDS {
        let is_odd = round % 2 == 1;
        let mut next = Md5::new();
        next.update(if is_odd { password } else { &result });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if is_odd { &result[..] } else { password });
        result = next.finalize();
    }

    let mut text = [b"$apr1$", salt, b"$"].concat();
    // The bytes of the hash are encoded in groups of up to three, in this order.
    for group in [
        &[0, 6, 12][..],
        &[1, 7, 13],
        &[2, 8, 14],
        &[3, 9, 15],
        &[4, 10, 5],
        &[11],
    ] {
        const LETTERS: &[u8; 64] =
            b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut bits = group
            .iter()
            .fold(0, |bits, index| bits << 8 | usize::from(result[*index]));
        for _ in 0..=group.len() {
            text.push(LETTERS[bits & 63]);
            bits >>= 6;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_fit_their_passwords_only() {
        // The hashes were made by `openssl passwd -apr1`, by `htpasswd -s`, and by bcrypt at its lowest cost.
        let hashes = [
            "$apr1$xy$VH1ahWB.kZg.TUyTC9ZzW1",
            "{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=",
            &bcrypt::hash("123456", 4).unwrap(),
        ];
        let passwords = ["a longer password than sixteen octets", "123456", "123456"];
        for (hash, password) in hashes.iter().zip(passwords) {
            let hash = PasswordHash::parse(hash).unwrap();
            assert!(hash.fits(password.as_bytes()), "{hash:?}");
            assert!(!hash.fits(b"other") && !hash.fits(b""), "{hash:?}");
            assert_eq!(hash.is_weak(), matches!(hash, PasswordHash::Sha1(_)));
        }
    }

    #[test]
    fn a_password_that_is_too_long_fits_no_hash() {
        let hash_of = |password: &[u8]| {
            let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, password);
            PasswordHash::Sha1(digest.as_ref().try_into().unwrap())
        };
        let long = [b'a'; MAX_PASSWORD + 1];
        assert!(hash_of(&long[1..]).fits(&long[1..]));
        assert!(!hash_of(&long).fits(&long));
        assert!(apr1(&long[1..], b"salt").is_some() && apr1(&long, b"salt").is_none());
    }

    #[test]
    fn other_kinds_and_malformed_hashes_are_none() {
        for text in [
            "",
            "secret",
            "$1$xy$VH1ahWB.kZg.TUyTC9ZzW1",
            "$apr1$xy",
            "$apr1$xy$short",
            "$apr1$longer-than-8$VH1ahWB.kZg.TUyTC9ZzW1",
            "{SHA}",
            "{SHA}AAAA",
            "{SHA}?",
            "$2y$",
            "$2y$31$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234",
            "$2x$04$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234",
        ] {
            assert_eq!(PasswordHash::parse(text), None, "{text}");
        }
    }
}
