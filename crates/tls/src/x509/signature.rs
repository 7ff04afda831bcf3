//! Verifies the signatures of certificates and of OCSP responses.

use rustls::crypto::WebPkiSupportedAlgorithms;

use crate::{Certificate, PublicKey};

/// The signed part of a certificate or of an OCSP response, with the signature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignedPart<'a> {
    /// The octets that were signed.
    pub(crate) message: &'a [u8],
    /// The content of the signature's AlgorithmIdentifier, without tag and length.
    pub(crate) algorithm: &'a [u8],
    /// The bits of the signature.
    pub(crate) signature: &'a [u8],
}

impl<'a> SignedPart<'a> {
    pub(crate) fn of_certificate(certificate: &Certificate<'a>) -> Self {
        Self {
            message: certificate.tbs,
            algorithm: certificate.signature_algorithm,
            signature: certificate.signature,
        }
    }

    /// Whether the signature was made with the private key that belongs to this public key, by an algorithm that the
    /// server accepts for signatures of TLS certificates.
    pub(crate) fn verifies(&self, key: &PublicKey<'_>) -> bool {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        self.verifies_by(&provider.signature_verification_algorithms, key)
    }

    /// Does the same as [`Self::verifies`], but accepts these signature algorithms instead of the default ones.
    pub(crate) fn verifies_by(
        &self,
        algorithms: &WebPkiSupportedAlgorithms,
        key: &PublicKey<'_>,
    ) -> bool {
        let mut algorithms = algorithms.all.iter().filter(|algorithm| {
            algorithm.public_key_alg_id().as_ref() == key.algorithm
                && algorithm.signature_alg_id().as_ref() == self.algorithm
        });
        algorithms.any(|algorithm| {
            let verified = algorithm.verify_signature(key.key, self.message, self.signature);
            verified.is_ok()
        })
    }
}

/// Whether a certificate is signed with the private key that belongs to this public key.
pub(crate) fn is_signed_by(certificate: &Certificate<'_>, key: &PublicKey<'_>) -> bool {
    SignedPart::of_certificate(certificate).verifies(key)
}
