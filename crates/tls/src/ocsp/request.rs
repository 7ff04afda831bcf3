//! Encodes OCSP requests (RFC 6960 §4.1.1), and computes the hashes that identify the issuer of a certificate in requests
//! and responses.

use aws_lc_rs::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512, digest};

use super::ParsedSubject;
use crate::x509::{INTEGER, NULL, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, element};

/// The object identifier of SHA-1: 1.3.14.3.2.26.
const SHA1_ID: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];

/// The hash functions that an OCSP CertID may use for the issuer's name and key, each with its object identifier.
static HASHES: [(&[u8], &Algorithm); 4] = [
    (SHA1_ID, &SHA1_FOR_LEGACY_USE_ONLY),
    // The object identifiers 2.16.840.1.101.3.4.2.1 to 2.16.840.1.101.3.4.2.3.
    (
        &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01],
        &SHA256,
    ),
    (
        &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02],
        &SHA384,
    ),
    (
        &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03],
        &SHA512,
    ),
];

/// How an OCSP CertID identifies the issuer of a certificate: by a hash of its name and a hash of its public key.
#[derive(PartialEq, Eq)]
pub(super) struct IssuerHashes {
    pub(super) name: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// Computes a SHA-1 digest, by which OCSP messages identify the keys of issuers and of responders.
pub(super) fn sha1(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

impl ParsedSubject<'_> {
    /// Computes the hashes of the issuer's name and key. `hash`: the object identifier of the hash function; `None` is
    /// returned for an unknown one.
    pub(super) fn issuer_hashes(&self, hash: &[u8]) -> Option<IssuerHashes> {
        let (_, algorithm) = HASHES.iter().find(|(id, _)| *id == hash)?;
        let name = element(SEQUENCE, &[self.certificate.issuer]);
        Some(IssuerHashes {
            name: digest(algorithm, &name).as_ref().to_vec(),
            key: digest(algorithm, self.issuer.public_key.key)
                .as_ref()
                .to_vec(),
        })
    }

    /// Encodes an OCSP request for the certificate, without signature and extensions. The issuer is identified by SHA-1
    /// hashes, as RFC 5019 §2.1.1 demands, because responders that answer with responses made beforehand know no other
    /// form.
    pub(super) fn request(&self) -> Vec<u8> {
        let Some(hashes) = self.issuer_hashes(SHA1_ID) else {
            return Vec::new();
        };
        let hash = [element(OBJECT_IDENTIFIER, &[SHA1_ID]), element(NULL, &[])].concat();
        let id = [
            element(SEQUENCE, &[&hash]),
            element(OCTET_STRING, &[&hashes.name]),
            element(OCTET_STRING, &[&hashes.key]),
            element(INTEGER, &[self.certificate.serial]),
        ];
        let id = element(SEQUENCE, &[&id.concat()]);
        // The four enclosing SEQUENCEs, from outside to inside: OCSPRequest, TBSRequest, requestList, Request.
        (0..4).fold(id, |inner, _| element(SEQUENCE, &[&inner]))
    }
}
