//! Private keys in PEM form.

use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::sign::SigningKey;

/// Reads a private key in PEM form.
///
/// # Errors
/// The reason why the key cannot be used.
pub fn parse(pem: &[u8]) -> Result<Arc<dyn SigningKey>, String> {
    if is_encrypted(pem) {
        return Err("the private key is encrypted, which is not supported; decrypt the key with `openssl pkey`".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        Error::NoItemsFound => "no private key in PEM form".to_owned(),
        error => error.to_string(),
    })?;
    rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)
        .map_err(|_| "the key is not an RSA (2048 to 8192 bits), ECDSA or Ed25519 key".to_owned())
}

/// Whether a private key is encrypted. In PKCS#8 form the PEM label tells, in older forms a header line (RFC 1421
/// §4.6.1.1).
fn is_encrypted(pem: &[u8]) -> bool {
    let contains = |needle: &[u8]| pem.windows(needle.len()).any(|window| window == needle);
    contains(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || contains(b"Proc-Type: 4,ENCRYPTED")
}
