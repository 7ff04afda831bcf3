//! Verifies the signatures of certificates, of OCSP responses and of TLS handshakes.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, Error};

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

/// Verifies the signature of a peer over a handshake of TLS 1.2. The peer's certificate may have version 1, unlike with the
/// function of rustls.
///
/// # Errors
/// The signature is not valid.
pub(crate) fn verify_handshake12(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(version1) = Certificate::parse(cert).filter(|cert| cert.is_version1) else {
        return verify_tls12_signature(message, cert, dss, algorithms);
    };
    // rustls cannot take the key from a version 1 certificate, and has no function that verifies with a key alone.
    let key = &version1.public_key;
    let mapping = algorithms.mapping.iter();
    let mut algorithms = mapping
        .filter(|(scheme, _)| *scheme == dss.scheme)
        .flat_map(|(_, algorithms)| *algorithms)
        .filter(|algorithm| algorithm.public_key_alg_id().as_ref() == key.algorithm);
    let is_valid = algorithms.any(|algorithm| {
        let verified = algorithm.verify_signature(key.key, message, dss.signature());
        verified.is_ok()
    });
    if is_valid {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}

/// Does the same as [`verify_handshake12`] for TLS 1.3.
///
/// # Errors
/// The signature is not valid.
pub(crate) fn verify_handshake13(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match Certificate::parse(cert) {
        Some(version1) if version1.is_version1 => {
            let key = SubjectPublicKeyInfoDer::from(version1.subject_public_key_info);
            verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
        }
        _ => verify_tls13_signature(message, cert, dss, algorithms),
    }
}
