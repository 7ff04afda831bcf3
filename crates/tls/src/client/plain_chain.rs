//! Verifies certificate chains that rustls does not accept: it compares names byte by byte, and does not parse certificates of
//! version 1.

use std::cell::Cell;

use crate::x509::SignedPart;
use crate::{Certificate, PublicKey, same_name};
use rustls::RootCertStore;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, Der, TrustAnchor, UnixTime};

use super::verifier::check_time;

/// Limit of the number of authorities between a leaf certificate and its root; rustls has the same limit.
const MAX_AUTHORITIES: usize = 6;
/// Limit of the number of signatures that are verified for one chain: a peer may send many authorities with the same name.
const MAX_SIGNATURES: u32 = 32;

/// The authorities that may form a chain: trusted ones, and those that the peer sent.
pub(crate) struct PlainChain<'a> {
    roots: &'a RootCertStore,
    sent: Vec<Certificate<'a>>,
    algorithms: WebPkiSupportedAlgorithms,
    now: UnixTime,
    signatures: Cell<u32>,
}

/// The authority that issued a certificate.
#[derive(Clone, Copy)]
pub(crate) enum Issuer<'a> {
    Root(&'a TrustAnchor<'static>),
    /// An authority that the peer sent and that a trusted authority has issued.
    Sent(&'a Certificate<'a>),
}

impl<'a> PlainChain<'a> {
    pub(crate) fn new(
        roots: &'a RootCertStore,
        intermediates: &'a [CertificateDer<'_>],
        algorithms: WebPkiSupportedAlgorithms,
        now: UnixTime,
    ) -> Self {
        let sent = intermediates.iter();
        Self {
            roots,
            sent: sent.filter_map(|der| Certificate::parse(der)).collect(),
            algorithms,
            now,
            signatures: Cell::new(0),
        }
    }

    /// The authorities that may have issued the leaf certificate.
    pub(crate) fn issuers(&self, leaf: &Certificate<'_>) -> Vec<Issuer<'_>> {
        self.issuers_of(leaf, 0)
    }

    fn issuers_of(
        &self,
        certificate: &Certificate<'_>,
        authorities_below: usize,
    ) -> Vec<Issuer<'_>> {
        let roots = self.roots.roots.iter().map(Issuer::Root);
        roots
            .chain(self.sent.iter().map(Issuer::Sent))
            .filter(|issuer| same_name(issuer.name(), certificate.issuer))
            // The signature is checked before the issuer's own chain, so that the limit on signatures limits all work.
            .filter(|issuer| self.is_signed_by(certificate, *issuer))
            .filter(|issuer| match issuer {
                Issuer::Root(_) => true,
                Issuer::Sent(sent) => self.is_authority(sent, authorities_below),
            })
            .collect()
    }

    /// Whether a chain leads from an authority sent by the backend to a trusted one.
    fn is_authority(&self, certificate: &Certificate<'_>, authorities_below: usize) -> bool {
        let issuers = || self.issuers_of(certificate, authorities_below + 1);
        authorities_below < MAX_AUTHORITIES
            && certificate.may_issue_plainly(authorities_below)
            && check_time(certificate, self.now).is_ok()
            && issuers()
                .iter()
                .any(|issuer| !issuer.has_name_constraints())
    }

    /// Whether the issuer has signed the certificate.
    fn is_signed_by(&self, certificate: &Certificate<'_>, issuer: Issuer<'_>) -> bool {
        let signatures = self.signatures.get() + 1;
        self.signatures.set(signatures);
        let Some(key) = issuer.key().filter(|_| signatures <= MAX_SIGNATURES) else {
            return false;
        };
        SignedPart::of_certificate(certificate).verifies_by(&self.algorithms, &key)
    }
}

impl<'a> Issuer<'a> {
    fn name(&self) -> &[u8] {
        match self {
            Self::Root(root) => &root.subject,
            Self::Sent(certificate) => certificate.subject,
        }
    }

    fn key(self) -> Option<PublicKey<'a>> {
        match self {
            Self::Root(root) => PublicKey::parse_content(&root.subject_public_key_info),
            Self::Sent(certificate) => Some(certificate.public_key),
        }
    }

    pub(crate) fn has_name_constraints(&self) -> bool {
        match self {
            Self::Root(root) => root.name_constraints.is_some(),
            Self::Sent(certificate) => certificate.has_name_constraints(),
        }
    }

    /// The issuer as a trust anchor of rustls, under the name `name`.
    pub(super) fn into_anchor(self, name: &[u8]) -> TrustAnchor<'static> {
        let (key, constraints) = match self {
            Self::Root(root) => (
                &*root.subject_public_key_info,
                root.name_constraints.clone(),
            ),
            Self::Sent(certificate) => (certificate.public_key.content, None),
        };
        TrustAnchor {
            subject: Der::from(name.to_vec()),
            subject_public_key_info: Der::from(key.to_vec()),
            name_constraints: constraints,
        }
    }
}
