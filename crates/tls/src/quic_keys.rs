//! Keys for QUIC packets (RFC 9001 §5) that take little memory while they are not used.
//!
//! What a cipher computes from a key before it can encrypt takes more than 500 bytes. A QUIC connection has four keys, and twelve while
//! its handshake is under way. A key of this module holds only the bytes that it was made of. Each thread keeps what was computed from
//! the keys that it has used last; what was computed from other keys is dropped, and computed again when they are used.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::LocalKey;

use aws_lc_rs::aead::quic::{self as header_protection, HeaderProtectionKey};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, UnboundKey};
use aws_lc_rs::error::Unspecified;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::crypto::cipher::{AeadKey, Iv, Nonce};
use rustls::quic::{self, Algorithm, Suite, Tag};
use rustls::{CipherSuite, CipherSuiteCommon, Error, SupportedCipherSuite, Tls13CipherSuite};

/// For how many keys of packets, and for how many keys of headers, a thread keeps what was computed from them: those of 128 connections
/// that are busy at the same time.
const KEPT: usize = 256;
/// A thread keeps what it computes from a key only after this number of uses of the key; before, it drops the result after each use.
/// Few keys of a handshake are used more often, so handshakes take no memory for what is computed from their keys.
const FIRST_USES: u8 = 3;
/// Length in bytes of the tag that authenticates a packet, with every cipher suite (RFC 9001 §5.3).
const TAG_LEN: usize = 16;
/// Length in bytes of the part of a packet from which the mask of its header is computed (RFC 9001 §5.4.2).
const SAMPLE_LEN: usize = 16;

/// The ciphers of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cipher {
    Aes128,
    Aes256,
    ChaCha20,
}

impl Cipher {
    const fn of(suite: CipherSuite) -> Option<&'static Self> {
        Some(match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => &Self::Aes128,
            CipherSuite::TLS13_AES_256_GCM_SHA384 => &Self::Aes256,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => &Self::ChaCha20,
            _ => return None,
        })
    }

    const fn of_packets(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128 => &aead::AES_128_GCM,
            Self::Aes256 => &aead::AES_256_GCM,
            Self::ChaCha20 => &aead::CHACHA20_POLY1305,
        }
    }

    const fn of_headers(self) -> &'static header_protection::Algorithm {
        match self {
            Self::Aes128 => &header_protection::AES_128,
            Self::Aes256 => &header_protection::AES_256,
            Self::ChaCha20 => &header_protection::CHACHA20,
        }
    }
}

impl Algorithm for Cipher {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn quic::PacketKey> {
        Box::new(PacketKey {
            place: Place::new(&PACKETS),
            key,
            iv,
            cipher: *self,
        })
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn quic::HeaderProtectionKey> {
        Box::new(HeaderKey {
            place: Place::new(&HEADERS),
            key,
            cipher: *self,
        })
    }

    fn aead_key_len(&self) -> usize {
        self.of_packets().key_len()
    }
}

/// The suites of TLS 1.3 with the keys of this module. They are made once and never freed, because rustls needs references that are
/// valid for ever.
static SUITES: LazyLock<Vec<&'static Tls13CipherSuite>> = LazyLock::new(|| {
    let suites = ALL_CIPHER_SUITES
        .iter()
        .filter_map(SupportedCipherSuite::tls13);
    let with_small_keys = suites.map(|suite| {
        let common = &suite.common;
        let suite: &Tls13CipherSuite = Box::leak(Box::new(Tls13CipherSuite {
            common: CipherSuiteCommon {
                suite: common.suite,
                hash_provider: common.hash_provider,
                confidentiality_limit: common.confidentiality_limit,
            },
            hkdf_provider: suite.hkdf_provider,
            aead_alg: suite.aead_alg,
            quic: match Cipher::of(common.suite) {
                Some(cipher) => Some(cipher),
                None => suite.quic,
            },
        }));
        suite
    });
    with_small_keys.collect()
});

/// Returns the same cipher suite with keys for QUIC that take little memory while they are not used.
pub(crate) fn with_small_keys(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let known = SUITES
        .iter()
        .find(|known| known.common.suite == suite.suite());
    known.map_or(suite, |known| SupportedCipherSuite::Tls13(known))
}

/// The cipher suite of Initial packets (RFC 9001 §5.2). Its keys take little memory while they are not used.
#[must_use]
pub fn initial_suite() -> Option<Suite> {
    let suite = CipherSuite::TLS13_AES_128_GCM_SHA256;
    let mut suites = SUITES.iter();
    suites
        .find(|known| known.common.suite == suite)?
        .quic_suite()
}

/// A key that protects the content of packets in one direction.
struct PacketKey {
    place: Place<LessSafeKey>,
    key: AeadKey,
    iv: Iv,
    cipher: Cipher,
}

impl PacketKey {
    #[inline]
    fn with<R>(
        &self,
        use_it: impl FnOnce(&LessSafeKey) -> Result<R, Unspecified>,
    ) -> Result<R, Unspecified> {
        let compute = || {
            let key = UnboundKey::new(self.cipher.of_packets(), self.key.as_ref())?;
            Ok(LessSafeKey::new(key))
        };
        self.place.with(compute, use_it)
    }

    #[inline]
    fn nonce(&self, number: u64) -> aead::Nonce {
        aead::Nonce::assume_unique_for_key(Nonce::new(&self.iv, number).0)
    }
}

impl quic::PacketKey for PacketKey {
    fn encrypt_in_place(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut [u8],
    ) -> Result<Tag, Error> {
        let nonce = self.nonce(number);
        let sealed = self
            .with(|key| key.seal_in_place_separate_tag(nonce, Aad::from(header), payload))
            .map_err(|_| Error::EncryptError)?;
        Ok(Tag::from(sealed.as_ref()))
    }

    fn decrypt_in_place<'a>(
        &self,
        number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        let nonce = self.nonce(number);
        let opened = self.with(|key| {
            let opened = key.open_in_place(nonce, Aad::from(header), payload)?;
            Ok(opened.len())
        });
        let len = opened.map_err(|_| Error::DecryptError)?;
        Ok(&payload[..len])
    }

    fn tag_len(&self) -> usize {
        TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        // The number of packets that may be encrypted with one key (RFC 9001 §B.1.1).
        match self.cipher {
            Cipher::Aes128 | Cipher::Aes256 => 1 << 23,
            Cipher::ChaCha20 => u64::MAX,
        }
    }

    fn integrity_limit(&self) -> u64 {
        // The number of packets that may fail authentication before the connection must end (RFC 9001 §6.6 and §B.1.2).
        match self.cipher {
            Cipher::Aes128 | Cipher::Aes256 => 1 << 52,
            Cipher::ChaCha20 => 1 << 36,
        }
    }
}

/// A key that protects the headers of packets in one direction (RFC 9001 §5.4).
struct HeaderKey {
    place: Place<Box<HeaderProtectionKey>>,
    key: AeadKey,
    cipher: Cipher,
}

impl HeaderKey {
    /// Computes the mask for the header of the packet from which `sample` is.
    #[inline]
    fn mask(&self, sample: &[u8]) -> Result<[u8; 5], Error> {
        let compute = || {
            let key = HeaderProtectionKey::new(self.cipher.of_headers(), self.key.as_ref())?;
            Ok(Box::new(key))
        };
        self.place
            .with(compute, |key| key.new_mask(sample))
            .map_err(|_| Error::General("sample of invalid length".into()))
    }
}

/// The bits of a packet's first byte that are protected, if its header is a long one or not (RFC 9001 §5.4.1).
#[inline]
const fn protected_bits(first: u8) -> u8 {
    if first & 0x80 != 0 { 0x0f } else { 0x1f }
}

/// Applies the mask to the packet number, whose length is in the unprotected first byte of the packet.
#[inline]
fn mask_number(first: u8, number: &mut [u8], mask: &[u8; 5]) {
    let len = usize::from(first & 0b11) + 1;
    for (byte, mask) in number.iter_mut().zip(&mask[1..]).take(len) {
        *byte ^= mask;
    }
}

impl quic::HeaderProtectionKey for HeaderKey {
    fn encrypt_in_place(
        &self,
        sample: &[u8],
        first: &mut u8,
        number: &mut [u8],
    ) -> Result<(), Error> {
        let mask = self.mask(sample)?;
        mask_number(*first, number, &mask);
        *first ^= mask[0] & protected_bits(*first);
        Ok(())
    }

    fn decrypt_in_place(
        &self,
        sample: &[u8],
        first: &mut u8,
        number: &mut [u8],
    ) -> Result<(), Error> {
        let mask = self.mask(sample)?;
        *first ^= mask[0] & protected_bits(*first);
        mask_number(*first, number, &mask);
        Ok(())
    }

    fn sample_len(&self) -> usize {
        SAMPLE_LEN
    }
}

type Table<K> = LocalKey<RefCell<Computed<K>>>;

thread_local! {
    static PACKETS: RefCell<Computed<LessSafeKey>> = const { RefCell::new(Computed::new()) };
    static HEADERS: RefCell<Computed<Box<HeaderProtectionKey>>> = const { RefCell::new(Computed::new()) };
}

/// What a thread has computed from the keys that it has used last.
struct Computed<K> {
    entries: Vec<Entry<K>>,
    /// Indexes of the entries without content.
    free: Vec<u32>,
    /// Index of the entry that is looked at next when the table is full and needs a place.
    next: usize,
}

struct Entry<K> {
    /// The number of the key.
    key: u64,
    /// What was computed from the key; `None` once the key is dropped.
    computed: Option<K>,
    /// Whether the key was used since [`Computed::next`] has last passed the entry.
    is_used: bool,
}

impl<K> Computed<K> {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            next: 0,
        }
    }

    #[inline]
    fn get(&mut self, index: u32, key: u64) -> Option<&K> {
        let entry = self.entries.get_mut(index as usize)?;
        if entry.key != key {
            return None;
        }
        entry.is_used = true;
        entry.computed.as_ref()
    }

    /// Keeps what was computed from a key. In a full table it takes the place of a key that was not used for some time. Returns the
    /// index of its entry.
    fn insert(&mut self, key: u64, computed: K) -> u32 {
        let entry = Entry {
            key,
            computed: Some(computed),
            is_used: true,
        };
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None if self.entries.len() < KEPT => {
                self.entries.push(entry);
                return u32::try_from(self.entries.len() - 1).unwrap_or(NOWHERE);
            }
            None => loop {
                let index = self.next;
                self.next = (index + 1) % self.entries.len();
                if !std::mem::take(&mut self.entries[index].is_used) {
                    break index;
                }
            },
        };
        self.entries[index] = entry;
        u32::try_from(index).unwrap_or(NOWHERE)
    }

    fn remove(&mut self, index: u32, key: u64) {
        if let Some(entry) = self.entries.get_mut(index as usize)
            && entry.key == key
            && entry.computed.take().is_some()
        {
            self.free.push(index);
        }
    }
}

/// Stands for "no entry" of a table.
const NOWHERE: u32 = u32::MAX;

/// Where to find what was computed from a key.
struct Place<K: 'static> {
    table: &'static Table<K>,
    /// The number of the key, which no other key of the process has.
    key: u64,
    /// Index of the key's entry in the table of the thread that has used the key last. The entry may be another key's by now.
    index: AtomicU32,
    /// How often the key was used, up to [`FIRST_USES`].
    uses: AtomicU8,
}

impl<K> Place<K> {
    fn new(table: &'static Table<K>) -> Self {
        static KEYS: AtomicU64 = AtomicU64::new(0);
        Self {
            table,
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            index: AtomicU32::new(NOWHERE),
            uses: AtomicU8::new(0),
        }
    }

    /// Calls `use_it` with what was computed from the key; `compute` computes it if the thread has not kept it.
    #[inline]
    fn with<R>(
        &self,
        compute: impl FnOnce() -> Result<K, Unspecified>,
        use_it: impl FnOnce(&K) -> Result<R, Unspecified>,
    ) -> Result<R, Unspecified> {
        self.table.with_borrow_mut(|table| {
            if let Some(computed) = table.get(self.index.load(Ordering::Relaxed), self.key) {
                return use_it(computed);
            }
            self.compute(table, compute, use_it)
        })
    }

    #[cold]
    fn compute<R>(
        &self,
        table: &mut Computed<K>,
        compute: impl FnOnce() -> Result<K, Unspecified>,
        use_it: impl FnOnce(&K) -> Result<R, Unspecified>,
    ) -> Result<R, Unspecified> {
        let computed = compute()?;
        let result = use_it(&computed);
        let uses = self.uses.load(Ordering::Relaxed);
        if uses < FIRST_USES {
            self.uses.store(uses + 1, Ordering::Relaxed);
        } else {
            let index = table.insert(self.key, computed);
            self.index.store(index, Ordering::Relaxed);
        }
        result
    }
}

impl<K> Drop for Place<K> {
    fn drop(&mut self) {
        let index = self.index.load(Ordering::Relaxed);
        if index != NOWHERE {
            // The result is ignored: a thread that ends may have dropped its table before the key, and then no entry is left to remove.
            let _ = self
                .table
                .try_with(|table| table.borrow_mut().remove(index, self.key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cipher suite of TLS 1.3 twice: with the keys of rustls, and with the keys of this module.
    fn suites() -> impl Iterator<Item = (Suite, Suite)> {
        let suites = ALL_CIPHER_SUITES.iter().copied();
        suites.filter_map(|suite| {
            let small = with_small_keys(suite).tls13()?.quic_suite()?;
            Some((suite.tls13()?.quic_suite()?, small))
        })
    }

    fn keys(suite: Suite, id: &[u8], side: rustls::Side) -> quic::Keys {
        suite.keys(id, side, quic::Version::V1)
    }

    #[test]
    fn packets_are_protected_as_by_the_keys_of_rustls() {
        let mut tested = 0;
        for (usual, small) in suites() {
            assert_eq!(usual.quic.aead_key_len(), small.quic.aead_key_len());
            let usual = keys(usual, b"an id", rustls::Side::Client);
            let other = keys(small, b"an id", rustls::Side::Server);
            let small = keys(small, b"an id", rustls::Side::Client);
            for number in 0..10 {
                let (mut one, mut two) = (*b"something", *b"something");
                let header = [0x41, 2, 3];
                let seal = |keys: &quic::Keys, text: &mut [u8]| {
                    let tag = keys.local.packet.encrypt_in_place(number, &header, text);
                    tag.unwrap().as_ref().to_vec()
                };
                let tag = seal(&usual, &mut one);
                assert_eq!(seal(&small, &mut two), tag);
                assert_eq!(one, two);
                for first in [0x43, 0xc1] {
                    let mask = |keys: &quic::Keys| {
                        let (mut first, mut bytes) = (first, [1, 2, 3, 4]);
                        let header = &keys.local.header;
                        header
                            .encrypt_in_place(&tag, &mut first, &mut bytes)
                            .unwrap();
                        (first, bytes)
                    };
                    let (mut masked, mut bytes) = mask(&small);
                    assert_eq!((masked, bytes), mask(&usual));
                    let header = &other.remote.header;
                    header
                        .decrypt_in_place(&tag, &mut masked, &mut bytes)
                        .unwrap();
                    assert_eq!((masked, bytes), (first, [1, 2, 3, 4]));
                }
                let mut packet = [&two[..], &tag].concat();
                let key = &other.remote.packet;
                let opened = key.decrypt_in_place(number, &header, &mut packet);
                assert_eq!(opened.unwrap(), b"something");
                let opened = key.decrypt_in_place(number, b"other", &mut packet);
                assert!(opened.is_err());
            }
            let (usual, small) = (&usual.local.packet, &small.local.packet);
            assert_eq!(usual.tag_len(), small.tag_len());
            assert_eq!(usual.integrity_limit(), small.integrity_limit());
            assert_eq!(usual.confidentiality_limit(), small.confidentiality_limit());
            tested += 1;
        }
        assert_eq!(tested, 3);
    }

    #[test]
    fn a_key_whose_entry_another_key_has_taken_is_computed_again() {
        let (_, suite) = suites().next().unwrap();
        let id = |n: usize| n.to_be_bytes();
        let many: Vec<_> = (0..2 * KEPT)
            .map(|n| keys(suite, &id(n), rustls::Side::Server))
            .collect();
        let seal = |keys: &quic::Keys| {
            let mut text = *b"text";
            keys.local
                .packet
                .encrypt_in_place(1, b"", &mut text)
                .unwrap();
            text
        };
        let first: Vec<_> = many.iter().map(seal).collect();
        for _ in 0..2 * usize::from(FIRST_USES) {
            assert!(many.iter().map(seal).eq(first.iter().copied()));
        }
        PACKETS.with_borrow(|table| assert_eq!(table.entries.len(), KEPT));
        drop(many);
        PACKETS.with_borrow(|table| {
            assert!(table.entries.iter().all(|entry| entry.computed.is_none()));
            assert_eq!(table.free.len(), KEPT);
        });
    }

    #[test]
    fn nothing_is_kept_for_a_key_that_is_used_a_few_times() {
        let (_, suite) = suites().next().unwrap();
        let keys = keys(suite, b"an id", rustls::Side::Server);
        let held = || PACKETS.with_borrow(|table| table.entries.len());
        for uses in 0..=FIRST_USES {
            assert_eq!(held(), 0, "{uses}");
            let mut text = [0; 4];
            keys.local
                .packet
                .encrypt_in_place(1, b"", &mut text)
                .unwrap();
        }
        assert_eq!(held(), 1);
    }
}
