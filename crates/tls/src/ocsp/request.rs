//! Requests (RFC 6960 §4.1.1).

use aws_lc_rs::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512, digest};

use super::ParsedSubject;
use crate::x509::{INTEGER, NULL, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, element};

/// 1.3.14.3.2.26
const SHA1_ID: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];

/// The hash functions of a CertID, with their identifiers.
static HASHES: [(&[u8], &Algorithm); 4] = [
    (SHA1_ID, &SHA1_FOR_LEGACY_USE_ONLY),
    // 2.16.840.1.101.3.4.2.1 to 3
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

/// What a CertID says of the issuer.
#[derive(PartialEq, Eq)]
pub(super) struct IssuerHashes {
    pub(super) name: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// The SHA-1 digest, which identifies issuers and responders.
pub(super) fn sha1(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

impl ParsedSubject<'_> {
    /// The hashes of the issuer's name and key by the hash function of this identifier; `None` if that is unknown.
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

    /// A request without signature and extensions. The issuer is identified by SHA-1, as RFC 5019 §2.1.1 demands, because
    /// responders that answer from a store know no other form.
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
        // OCSPRequest, TBSRequest, requestList, Request
        (0..4).fold(id, |inner, _| element(SEQUENCE, &[&inner]))
    }
}
