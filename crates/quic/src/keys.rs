//! Keys of connection ids, tokens and stateless resets, derived from secrets that servers can share.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::hmac;
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};

/// The keys of one secret.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The secret's number, the first byte of connection ids.
    pub(crate) number: u8,
    pub(crate) prk: Prk,
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Keys {
    /// Derives the keys of `secret` (RFC 5869 with SHA-256). Servers that have the same secret under the same `number` can read
    /// each other's connection ids and tokens. H2O compatibility: these are the ticket keys and the first byte of their name.
    pub fn derive(number: u8, secret: &[u8]) -> Self {
        Self {
            number,
            prk: Salt::new(HKDF_SHA256, &[]).extract(secret),
        }
    }

    pub(crate) fn expand<const N: usize>(&self, label: &[u8]) -> [u8; N] {
        let mut key = [0; N];
        let filled = self
            .prk
            .expand(&[label], Len(N))
            .and_then(|okm| okm.fill(&mut key));
        debug_assert!(filled.is_ok(), "HKDF-SHA256 gives up to 8160 bytes");
        key
    }

    pub(crate) fn reset(&self) -> ResetKey {
        ResetKey(hmac::Key::new(
            hmac::HMAC_SHA256,
            &self.expand::<32>(b"reset"),
        ))
    }

    pub(crate) fn token(&self) -> TokenKey {
        TokenKey(Salt::new(HKDF_SHA256, &[]).extract(&self.expand::<32>(b"address-token")))
    }
}

/// Makes stateless reset tokens of connection ids (RFC 9000 §10.3.2).
pub(crate) struct ResetKey(hmac::Key);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        signature.copy_from_slice(hmac::sign(&self.0, data).as_ref());
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        hmac::verify(&self.0, data, signature).map_err(|_| CryptoError)
    }
}

/// Makes the keys that address tokens are encrypted with, one for each token.
pub(crate) struct TokenKey(Prk);

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random: &[u8]) -> Box<dyn AeadKey> {
        let mut bytes = [0; 32];
        let key = self
            .0
            .expand(&[random], Len(bytes.len()))
            .and_then(|okm| okm.fill(&mut bytes))
            .and_then(|()| UnboundKey::new(&AES_256_GCM, &bytes));
        Box::new(OneToken(key.ok().map(LessSafeKey::new)))
    }
}

/// The key of one token. Without a key nothing is sealed or opened.
struct OneToken(Option<LessSafeKey>);

impl AeadKey for OneToken {
    fn seal(&self, data: &mut Vec<u8>, additional: &[u8]) -> Result<(), CryptoError> {
        let key = self.0.as_ref().ok_or(CryptoError)?;
        key.seal_in_place_append_tag(only_nonce(), Aad::from(additional), data)
            .map_err(|_| CryptoError)
    }

    fn open<'a>(&self, data: &'a mut [u8], additional: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        let key = self.0.as_ref().ok_or(CryptoError)?;
        key.open_in_place(only_nonce(), Aad::from(additional), data)
            .map_err(|_| CryptoError)
    }
}

/// Each key encrypts one token, so its nonce need not differ.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}
