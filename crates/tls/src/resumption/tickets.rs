//! Keys that encrypt session tickets, and their rotation.

use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey,
    UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{hmac, rand};
use std::fmt;
use std::sync::Arc;

use crate::resumption::binding::Binding;

const NAME_LEN: usize = 16;
const IV_LEN: usize = 16;
/// Number of seconds after its creation before a new key encrypts tickets: all servers that share the keys must have read it by
/// then.
const ACTIVATION_SECS: u64 = 60;

/// Limit of the number of keys in a ring after a rotation. A server that shares no keys has about five.
const MAX_KEYS: usize = 64;

/// The ciphers that a ticket key may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketCipher {
    Aes128Cbc,
    Aes256Cbc,
}

impl TicketCipher {
    /// The names of ciphers that a configuration may use, for messages.
    pub(crate) const NAMES: &str = "`aes-128-cbc` or `aes-256-cbc`";

    /// Finds a cipher by OpenSSL's name, in any letter case.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("aes-256-cbc") {
            Some(Self::Aes256Cbc)
        } else if name.eq_ignore_ascii_case("aes-128-cbc") {
            Some(Self::Aes128Cbc)
        } else {
            None
        }
    }

    /// The name of the cipher in OpenSSL.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Aes128Cbc => "AES-128-CBC",
            Self::Aes256Cbc => "AES-256-CBC",
        }
    }

    fn key_len(self) -> usize {
        match self {
            Self::Aes128Cbc => 16,
            Self::Aes256Cbc => 32,
        }
    }
}

/// The hash functions that a ticket key may use for its HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketHash {
    /// HMAC with SHA-1 is safe: it does not need collision resistance (RFC 6194 §3.3).
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl TicketHash {
    /// The names of hash functions that a configuration may use, for messages.
    pub(crate) const NAMES: &str = "`sha1`, `sha256`, `sha384` or `sha512`";

    /// Finds a hash function by name, in any letter case, with or without a hyphen.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        match &*name.to_ascii_lowercase() {
            "sha1" | "sha-1" => Some(Self::Sha1),
            "sha256" | "sha-256" => Some(Self::Sha256),
            "sha384" | "sha-384" => Some(Self::Sha384),
            "sha512" | "sha-512" => Some(Self::Sha512),
            _ => None,
        }
    }

    /// The name of the hash function in OpenSSL.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha384 => "SHA384",
            Self::Sha512 => "SHA512",
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    /// Length in bytes of the HMAC key: the block size of the hash function. H2O compatibility: H2O's keys have this length, and
    /// servers may share them.
    fn key_len(self) -> usize {
        self.hmac().digest_algorithm().block_len()
    }
}

/// The algorithms of a ticket key: a cipher, and a hash function for the HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketAlgorithms {
    pub(crate) cipher: TicketCipher,
    pub(crate) hash: TicketHash,
}

impl TicketAlgorithms {
    /// Number of bytes of key material: those for the cipher, followed by those for the HMAC.
    pub(crate) fn material_len(self) -> usize {
        self.cipher.key_len() + self.hash.key_len()
    }
}

/// The secret, made from a ticket key, from which the keys of QUIC connection ids, tokens and stateless resets are derived. H2O
/// compatibility: as in H2O, servers that share ticket keys share these secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicSecret {
    /// The number of the secret: the first byte of the ticket key's name.
    pub number: u8,
    /// The secret. Tickets cannot be decrypted with it.
    pub secret: [u8; 32],
}

impl QuicSecret {
    fn new(number: u8, material: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"h2o quic");
        let mut secret = [0; 32];
        secret.copy_from_slice(hmac::sign(&key, material).as_ref());
        Self { number, secret }
    }
}

impl fmt::Debug for QuicSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("QuicSecret")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// The secret bytes of a ticket key, in the form in which servers share them.
pub(super) struct Material(pub(super) Box<[u8]>);

impl fmt::Debug for Material {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Material(..)")
    }
}

/// A key that encrypts and decrypts session tickets.
#[derive(Debug)]
pub(crate) struct TicketKey {
    pub(super) name: [u8; NAME_LEN],
    pub(super) algorithms: TicketAlgorithms,
    pub(super) material: Material,
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
    mac: hmac::Key,
    /// The key encrypts tickets from the Unix time `not_before` until the Unix time `not_after`.
    pub(super) not_before: u64,
    pub(super) not_after: u64,
    quic_secret: QuicSecret,
}

impl TicketKey {
    /// Makes a ticket key. `material` must have [`TicketAlgorithms::material_len`] bytes.
    ///
    /// # Errors
    /// If `material` has another length.
    pub(crate) fn new(
        name: [u8; NAME_LEN],
        algorithms: TicketAlgorithms,
        material: &[u8],
        not_before: u64,
        not_after: u64,
    ) -> Result<Self, Unspecified> {
        let TicketAlgorithms { cipher, hash } = algorithms;
        let (key, mac_key) = material
            .split_at_checked(cipher.key_len())
            .ok_or(Unspecified)?;
        let unbound = || match cipher {
            TicketCipher::Aes128Cbc => UnboundCipherKey::new(&AES_128, key),
            TicketCipher::Aes256Cbc => UnboundCipherKey::new(&AES_256, key),
        };
        Ok(Self {
            name,
            algorithms,
            material: Material(material.into()),
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(unbound()?)?,
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(unbound()?)?,
            mac: hmac::Key::new(hash.hmac(), mac_key),
            not_before,
            not_after,
            quic_secret: QuicSecret::new(name[0], material),
        })
    }

    pub(crate) fn quic_secret(&self) -> &QuicSecret {
        &self.quic_secret
    }

    fn generate(
        algorithms: TicketAlgorithms,
        not_before: u64,
        lifetime_secs: u64,
    ) -> Result<Self, Unspecified> {
        let mut name = [0; NAME_LEN];
        let mut material = vec![0; algorithms.material_len()];
        rand::fill(&mut name)?;
        rand::fill(&mut material)?;
        Self::new(
            name,
            algorithms,
            &material,
            not_before,
            not_before.saturating_add(lifetime_secs),
        )
    }

    /// Encrypts a session. Returns the ticket: the key's name, IV, encrypted session and MAC. The MAC also covers `binding`, which
    /// is not sent.
    pub(crate) fn seal(&self, plain: &[u8], binding: &Binding) -> Option<Vec<u8>> {
        let mut state = plain.to_vec();
        let context = self.encrypting.encrypt(&mut state).ok()?;
        let iv: &[u8] = (&context).try_into().ok()?;
        let mut ticket = Vec::with_capacity(NAME_LEN + IV_LEN + state.len() + self.tag_len());
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(iv);
        ticket.extend_from_slice(&state);
        let tag = self.tag(&ticket, binding).sign();
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    /// Decrypts a ticket; `None` unless this key encrypted it with this `binding`.
    pub(crate) fn open(&self, ticket: &[u8], binding: &Binding) -> Option<Vec<u8>> {
        let sealed_len = ticket.len().checked_sub(self.tag_len())?;
        let (sealed, tag) = ticket.split_at(sealed_len);
        let (name, rest) = sealed.split_first_chunk::<NAME_LEN>()?;
        let (iv, state) = rest.split_first_chunk::<IV_LEN>()?;
        if *name != self.name {
            return None;
        }
        // The MACs are compared in constant time, before anything is decrypted.
        let mut authenticated = sealed.to_vec();
        authenticated.extend_from_slice(binding);
        hmac::verify(&self.mac, &authenticated, tag).ok()?;
        let mut plain = state.to_vec();
        let context = DecryptionContext::Iv128(FixedLength::from(iv));
        let len = self.decrypting.decrypt(&mut plain, context).ok()?.len();
        plain.truncate(len);
        Some(plain)
    }

    fn tag(&self, sealed: &[u8], binding: &Binding) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.mac);
        context.update(sealed);
        context.update(binding);
        context
    }

    fn tag_len(&self) -> usize {
        self.mac.algorithm().tag_len()
    }

    fn is_usable(&self, now: u64) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// The ticket keys that a server knows, newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRing(Vec<Arc<TicketKey>>);

impl KeyRing {
    /// Sorts `keys` by the time from which they encrypt.
    pub(crate) fn new(keys: Vec<TicketKey>) -> Self {
        let mut ring = Self(keys.into_iter().map(Arc::new).collect());
        ring.sort();
        ring
    }

    fn sort(&mut self) {
        self.0.sort_by_key(|key| std::cmp::Reverse(key.not_before));
    }

    /// All keys, newest first.
    pub(crate) fn keys(&self) -> &[Arc<TicketKey>] {
        &self.0
    }

    /// The key that encrypts new tickets at the time `now`.
    pub(crate) fn active(&self, now: u64) -> Option<&Arc<TicketKey>> {
        let newest = self.0.iter().find(|key| key.not_before <= now);
        newest.filter(|key| key.is_usable(now))
    }

    /// All keys that have not expired, beginning with the one that encrypts new tickets.
    pub(crate) fn active_first(&self, now: u64) -> impl Iterator<Item = &Arc<TicketKey>> {
        let active = self.active(now);
        let is_other = move |key: &&Arc<TicketKey>| {
            now < key.not_after && active.is_none_or(|active| !Arc::ptr_eq(active, key))
        };
        active.into_iter().chain(self.0.iter().filter(is_other))
    }

    /// The key that encrypted `ticket`, unless it has expired. The key need not encrypt here yet: another server may already use
    /// it.
    pub(crate) fn key_of(&self, ticket: &[u8], now: u64) -> Option<&Arc<TicketKey>> {
        let name = ticket.first_chunk::<NAME_LEN>()?;
        let key = self.0.iter().find(|key| key.name == *name);
        key.filter(|key| now < key.not_after)
    }

    /// Whether [`Self::rotate`] would change something.
    pub(crate) fn is_stale(&self, now: u64, lifetime_secs: u64) -> bool {
        self.active(now).is_none()
            || self.0.iter().any(|key| key.not_after <= now)
            || self
                .0
                .first()
                .is_none_or(|newest| newest.not_before.saturating_add(lifetime_secs / 4) <= now)
    }

    /// Drops expired keys, and generates a new one if none is usable or the newest key has reached a quarter of its lifetime.
    ///
    /// # Errors
    /// If the random number generator fails.
    pub(crate) fn rotate(
        &mut self,
        now: u64,
        lifetime_secs: u64,
        algorithms: TicketAlgorithms,
    ) -> Result<(), Unspecified> {
        self.0.retain(|key| key.not_after > now);
        let not_before = if self.active(now).is_none() {
            now
        } else if self
            .0
            .first()
            .is_none_or(|newest| newest.not_before.saturating_add(lifetime_secs / 4) <= now)
        {
            now + ACTIVATION_SECS
        } else {
            return Ok(());
        };
        // Other servers may have added any number of keys. The oldest are dropped, because a new key needs a name whose first byte
        // no other key has.
        self.0.truncate(MAX_KEYS - 1);
        let key = loop {
            let key = TicketKey::generate(algorithms, not_before, lifetime_secs)?;
            // The first byte of the name is the key's number in QUIC connection ids (H2O compatibility: as in H2O).
            if self.0.iter().all(|other| other.name[0] != key.name[0]) {
                break key;
            }
        };
        self.0.insert(0, Arc::new(key));
        self.sort();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Binding = [1; 32];
    const LIFETIME: u64 = 3600;
    const ALGORITHMS: TicketAlgorithms = TicketAlgorithms {
        cipher: TicketCipher::Aes256Cbc,
        hash: TicketHash::Sha256,
    };

    fn rotate(ring: &mut KeyRing, now: u64) {
        ring.rotate(now, LIFETIME, ALGORITHMS).unwrap();
        assert!(!ring.is_stale(now, LIFETIME));
    }

    fn times(ring: &KeyRing) -> Vec<(u64, u64)> {
        ring.0
            .iter()
            .map(|key| (key.not_before, key.not_after))
            .collect()
    }

    #[test]
    fn keys_are_renewed_after_a_quarter_of_their_life_and_dropped_at_its_end() {
        let mut ring = KeyRing::default();
        assert!(ring.is_stale(1000, LIFETIME));
        rotate(&mut ring, 1000);
        assert_eq!(times(&ring), [(1000, 4600)]);
        rotate(&mut ring, 1899);
        assert_eq!(times(&ring), [(1000, 4600)]);
        assert!(ring.is_stale(1900, LIFETIME));
        rotate(&mut ring, 1900);
        assert_eq!(times(&ring), [(1960, 5560), (1000, 4600)]);
        // The new key becomes active 60 s later.
        let name = |ring: &KeyRing, now| ring.active(now).map(|key| key.not_before);
        assert_eq!(name(&ring, 1959), Some(1000));
        assert_eq!(name(&ring, 1960), Some(1960));
        // After a time without rotation, only a key that is still valid is kept and used.
        rotate(&mut ring, 4600);
        assert_eq!(times(&ring), [(4660, 8260), (1960, 5560)]);
        // No key is usable any more, so the new key encrypts at once.
        rotate(&mut ring, 9000);
        assert_eq!(times(&ring), [(9000, 12_600)]);
        assert_eq!(name(&ring, 12_600), None);
    }

    #[test]
    fn names_differ_in_their_first_byte() {
        let mut ring = KeyRing::default();
        for round in 0..100 {
            ring.rotate(1000 + 100 * round, 400, ALGORITHMS).unwrap();
            let mut first: Vec<u8> = ring.0.iter().map(|key| key.name[0]).collect();
            first.sort_unstable();
            first.dedup();
            assert_eq!(first.len(), ring.0.len());
        }
    }

    #[test]
    fn secrets_for_quic_begin_with_the_active_key_and_follow_the_keys() {
        let mut ring = KeyRing::default();
        rotate(&mut ring, 1000);
        rotate(&mut ring, 1900);
        let secrets = |now| -> Vec<_> {
            let keys = ring.active_first(now);
            keys.map(|key| key.quic_secret().clone()).collect()
        };
        let [old, new] = &secrets(1959)[..] else {
            panic!("the store has two ticket keys");
        };
        assert_ne!(old, new);
        assert_eq!(secrets(1960), [new.clone(), old.clone()]);
        assert_eq!(secrets(4600), std::slice::from_ref(new));
    }

    #[test]
    fn tickets_are_opened_whole_by_their_key_for_their_binding() {
        use TicketCipher::{Aes128Cbc, Aes256Cbc};
        use TicketHash::{Sha1, Sha256, Sha384, Sha512};
        for (cipher, hash, tag_len) in [
            (Aes128Cbc, Sha1, 20),
            (Aes256Cbc, Sha256, 32),
            (Aes128Cbc, Sha384, 48),
            (Aes256Cbc, Sha512, 64),
        ] {
            let key = TicketKey::generate(TicketAlgorithms { cipher, hash }, 0, 1).unwrap();
            assert_eq!(key.seal(b"", &ONE).unwrap().len(), 16 + 16 + 16 + tag_len);
            for plain in [&b""[..], b"x", &[7; 16], &[9; 300]] {
                let ticket = key.seal(plain, &ONE).unwrap();
                assert_eq!(key.open(&ticket, &ONE).as_deref(), Some(plain));
                assert_ne!(
                    key.seal(plain, &ONE).unwrap(),
                    ticket,
                    "each ticket has a new IV"
                );
                assert_eq!(key.open(&ticket, &[2; 32]), None);
                for len in 0..ticket.len() {
                    assert_eq!(key.open(&ticket[..len], &ONE), None);
                }
                for position in 0..ticket.len() {
                    let mut damaged = ticket.clone();
                    damaged[position] ^= 1;
                    assert_eq!(key.open(&damaged, &ONE), None);
                }
            }
        }
    }

    #[test]
    fn tickets_find_their_key_by_name() {
        let mut ring = KeyRing::default();
        rotate(&mut ring, 1000);
        let old = ring.active(1000).unwrap().seal(b"old", &ONE).unwrap();
        rotate(&mut ring, 2000);
        let new = ring.active(2060).unwrap().seal(b"new", &ONE).unwrap();
        for (ticket, plain) in [(&old, b"old"), (&new, b"new")] {
            let key = ring.key_of(ticket, 2060).unwrap();
            assert_eq!(key.open(ticket, &ONE).as_deref(), Some(&plain[..]));
        }
        assert!(ring.key_of(&[0; 15], 2060).is_none());
        assert!(KeyRing::default().key_of(&old, 2060).is_none());
    }

    #[test]
    fn tickets_are_not_opened_after_the_end_of_their_key() {
        let mut ring = KeyRing::default();
        rotate(&mut ring, 1000);
        let ticket = ring.active(1000).unwrap().seal(b"x", &ONE).unwrap();
        assert!(ring.key_of(&ticket, 4599).is_some());
        assert!(ring.key_of(&ticket, 4600).is_none());
        // The clocks of the servers may differ, so a ticket may be encrypted with a key that is not active here yet.
        assert!(ring.key_of(&ticket, 999).is_some());
    }
}
