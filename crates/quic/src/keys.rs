//! Keys of connection ids, tokens and stateless resets, derived from secrets that servers can share.

use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::{hmac, rand};
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};

use crate::id::IdKey;

/// The key material derived from one secret.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The secret's number, the first byte of connection ids.
    number: u8,
    prk: Prk,
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Keys {
    /// Derives the keys of `secret` (RFC 5869 with SHA-256). Servers that have the same secret under the same `number` can read
    /// each other's connection ids and tokens. H2O compatibility: these come from the ticket keys.
    pub fn derive(number: u8, secret: &[u8]) -> Self {
        Self {
            number,
            prk: Salt::new(HKDF_SHA256, &[]).extract(secret),
        }
    }

    fn expand<const N: usize>(&self, label: &[u8]) -> Result<[u8; N], Unspecified> {
        let mut key = [0; N];
        self.prk.expand(&[label], Len(N))?.fill(&mut key)?;
        Ok(key)
    }
}

/// The keys in use, newest first: new ids and tokens are made with the first key, and any key can read them. Replaced when
/// the ticket keys change.
#[derive(Debug)]
pub(crate) struct KeyRing(RwLock<Vec<KeySet>>);

/// The keys made from one secret: those of connection ids, stateless resets and tokens.
#[derive(Debug)]
pub(crate) struct KeySet {
    pub(crate) number: u8,
    pub(crate) ids: IdKey,
    reset: hmac::Key,
    tokens: Prk,
}

impl KeySet {
    fn new(keys: &Keys) -> Result<Self, Unspecified> {
        let tokens = keys.expand::<32>(b"address-token")?;
        Ok(Self {
            number: keys.number,
            ids: IdKey::new(&keys.expand(b"cid")?)?,
            reset: hmac::Key::new(hmac::HMAC_SHA256, &keys.expand::<32>(b"reset")?),
            tokens: Salt::new(HKDF_SHA256, &[]).extract(&tokens),
        })
    }
}

/// A random secret for servers whose configuration gives none.
static SECRET_OF_PROCESS: LazyLock<[u8; 32]> = LazyLock::new(|| {
    let mut secret = [0; 32];
    // If the system has no random numbers, TLS does not work either, so this key does not matter.
    let _ = rand::fill(&mut secret);
    secret
});

impl KeyRing {
    pub(crate) fn new(keys: &[Keys]) -> Arc<Self> {
        let ring = Self(RwLock::new(Vec::new()));
        ring.replace(keys);
        Arc::new(ring)
    }

    /// Replaces the keys. If there are none, the keys are those of this process, which no other server has: its workers have to read each
    /// other's connection ids and tokens.
    pub(crate) fn replace(&self, keys: &[Keys]) {
        let sets = keys.iter().filter_map(|keys| KeySet::new(keys).ok());
        let mut sets: Vec<KeySet> = sets.collect();
        if sets.is_empty() {
            sets.extend(KeySet::new(&Keys::derive(0, &*SECRET_OF_PROCESS)));
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = sets;
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<KeySet>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `read` with the newest keys.
    pub(crate) fn newest<R>(&self, read: impl FnOnce(&KeySet) -> R) -> Option<R> {
        self.read().first().map(read)
    }

    /// Calls `read` with the keys of the secret with this number; `None` if there are none.
    pub(crate) fn numbered<R>(&self, number: u8, read: impl FnOnce(&KeySet) -> R) -> Option<R> {
        let sets = self.read();
        let set = sets.iter().find(|set| set.number == number);
        set.map(read)
    }
}

/// Makes the stateless reset token of a connection id (RFC 9000 §10.3.2), with the key that made the id.
pub(crate) struct ResetKey(pub(crate) Arc<KeyRing>);

impl HmacKey for ResetKey {
    fn sign(&self, id: &[u8], signature: &mut [u8]) {
        let number = id.first().copied().unwrap_or_default();
        let tag = self
            .0
            .numbered(number, |set| hmac::sign(&set.reset, id))
            .or_else(|| self.0.newest(|set| hmac::sign(&set.reset, id)));
        if let Some(tag) = tag {
            signature.copy_from_slice(tag.as_ref());
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, id: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let number = id.first().copied().unwrap_or_default();
        self.0
            .numbered(number, |set| hmac::verify(&set.reset, id, signature))
            .and_then(Result::ok)
            .ok_or(CryptoError)
    }
}

/// Makes the keys by which address tokens are encrypted (RFC 9000 §8.1): a different key for each token and each secret.
pub(crate) struct TokenKey(pub(crate) Arc<KeyRing>);

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random: &[u8]) -> Box<dyn AeadKey> {
        let sets = self.0.read();
        let keys = sets.iter().filter_map(|set| {
            let mut bytes = [0; 32];
            let info = [random];
            let material = set.tokens.expand(&info, Len(bytes.len())).ok()?;
            material.fill(&mut bytes).ok()?;
            let key = UnboundKey::new(&AES_256_GCM, &bytes).ok()?;
            Some(LessSafeKey::new(key))
        });
        Box::new(OneToken(keys.collect()))
    }
}

/// The keys of one token: the first encrypts it, any of them may decrypt it.
struct OneToken(Vec<LessSafeKey>);

impl AeadKey for OneToken {
    fn seal(&self, data: &mut Vec<u8>, additional: &[u8]) -> Result<(), CryptoError> {
        let key = self.0.first().ok_or(CryptoError)?;
        key.seal_in_place_append_tag(only_nonce(), Aad::from(additional), data)
            .map_err(|_| CryptoError)
    }

    fn open<'a>(&self, data: &'a mut [u8], additional: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        for key in &self.0 {
            // Decryption with the wrong key destroys its input, so each attempt works on a copy.
            let mut copy = data.to_vec();
            let opened = key.open_in_place(only_nonce(), Aad::from(additional), &mut copy);
            if let Ok(plain) = opened {
                let room = data.get_mut(..plain.len()).ok_or(CryptoError)?;
                room.copy_from_slice(plain);
                return Ok(room);
            }
        }
        Err(CryptoError)
    }
}

/// A constant nonce is safe here: each key encrypts only one token.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}
