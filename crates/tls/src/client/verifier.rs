//! Verifies a backend's certificate, with OpenSSL's error texts, which H2O shows.

use std::fmt;
use std::sync::Arc;

use crate::x509::{verify_handshake12, verify_handshake13};
use crate::{Certificate, same_name};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::names::{self, CommonName};
use super::plain_chain::PlainChain;
use super::trust::Trust;

/// The certificate cannot be parsed, or has an invalid field.
pub(super) const INVALID: &str = "invalid certificate";
const EXPIRED: &str = "certificate has expired";
const NOT_YET_VALID: &str = "certificate is not yet valid";
pub(super) const SELF_SIGNED: &str = "self-signed certificate";
pub(super) const SELF_SIGNED_IN_CHAIN: &str = "self-signed certificate in certificate chain";
pub(super) const NO_ISSUER: &str = "unable to get local issuer certificate";

/// Limit of the number of certificates that are followed up the chain to find out why it is not trusted; rustls has the same
/// limit.
const MAX_DEPTH: usize = 8;

/// Verifies the backend's certificate chain and name, unless `proxy.ssl.verify-peer` is `OFF`. Whether the backend has
/// the certificate's private key is verified in any case.
#[derive(Debug)]
pub(super) struct Verifier {
    trust: Option<Arc<Trust>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// A message for the client and the log, which travels inside an error of rustls.
pub(super) struct RejectionText(pub(super) &'static str);

/// The library shows the error that it holds by `Debug`.
impl fmt::Debug for RejectionText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl fmt::Display for RejectionText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for RejectionText {}

impl RejectionText {
    fn into_error(self) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    /// The message that this server's verifier has put into an error of a handshake; `None` for other errors.
    pub(super) fn text_in(error: &CertificateError) -> Option<&'static str> {
        match error {
            CertificateError::Other(OtherError(inner)) => Some(inner.downcast_ref::<Self>()?.0),
            _ => None,
        }
    }
}

impl Verifier {
    /// Makes a verifier. Without `trust`, only the backend's signature in the handshake is verified, not its certificate.
    pub(super) fn new(trust: Option<Arc<Trust>>, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { trust, algorithms }
    }

    fn check_chain(
        &self,
        trust: &Trust,
        leaf: &Certificate<'_>,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<CommonName, &'static str> {
        let verified = self.check_by_rustls(&trust.roots, end_entity, intermediates, now);
        let Err(error) = verified else {
            return Ok(trust.use_of_common_name(leaf, intermediates));
        };
        if leaf.is_self_issued() {
            // rustls accepts a trust anchor only as an authority, never as the server itself. OpenSSL trusts every
            // certificate in the CA file, where users put self-signed certificates of backends. The whole certificate
            // must match: its own signature proves nothing, and a certificate with the same name and key could have any
            // other content.
            return if trust.pinned.contains(end_entity) {
                check_time(leaf, now).map(|()| CommonName::Counts)
            } else {
                Err(SELF_SIGNED)
            };
        }
        if trust.is_private()
            && let Some(common_name) =
                self.check_plainly(trust, leaf, end_entity, intermediates, now)
        {
            return Ok(common_name);
        }
        // Like OpenSSL, this reports a missing issuer before any other problem of the chain.
        let missing = missing_issuer(&trust.roots, leaf, intermediates);
        Err(missing.unwrap_or_else(|| text_of(&error)))
    }

    fn check_by_rustls(
        &self,
        roots: &RootCertStore,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)
    }

    /// Accepts chains of small private authorities that rustls refuses: names that are equal only after conversion of string types
    /// (RFC 5280 §7.1), and leaf certificates of version 1. Returns `None` if the chain is not valid under these rules either.
    fn check_plainly(
        &self,
        trust: &Trust,
        leaf: &Certificate<'_>,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<CommonName> {
        let chain = PlainChain::new(&trust.roots, intermediates, self.algorithms, now);
        let issuers = chain.issuers(leaf);
        if !leaf.is_version1 {
            // The issuer becomes a trust anchor under the name that the leaf certificate has for it, so that rustls finds the
            // names equal.
            let roots = issuers
                .into_iter()
                .map(|issuer| issuer.into_anchor(leaf.issuer))
                .collect();
            self.check_by_rustls(&RootCertStore { roots }, end_entity, &[], now)
                .ok()?;
            return Some(trust.use_of_common_name(leaf, intermediates));
        }
        // A leaf certificate of version 1 has only a common name, which name constraints do not cover.
        let is_issued = issuers.iter().any(|issuer| !issuer.has_name_constraints());
        (is_issued && check_time(leaf, now).is_ok()).then_some(CommonName::Counts)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trust) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let reject = |text| RejectionText(text).into_error();
        let leaf = Certificate::parse(end_entity).ok_or_else(|| reject(INVALID))?;
        self.check_chain(trust, &leaf, end_entity, intermediates, now)
            .and_then(|common_name| names::check(&leaf, server_name, common_name))
            .map_err(reject)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_handshake12(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_handshake13(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether the time `now` is within the validity of the certificate.
pub(crate) fn is_valid_at(certificate: &Certificate<'_>, now: UnixTime) -> bool {
    check_time(certificate, now).is_ok()
}

/// Checks that the certificate is valid at the time `now`.
///
/// # Errors
/// The message for the client and the log.
pub(super) fn check_time(certificate: &Certificate<'_>, now: UnixTime) -> Result<(), &'static str> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < certificate.not_before {
        return Err(NOT_YET_VALID);
    }
    if now > certificate.not_after {
        return Err(EXPIRED);
    }
    Ok(())
}

/// Follows the chain from the leaf by the names of issuers. Returns the message if it does not lead to the CA file.
fn missing_issuer(
    roots: &RootCertStore,
    leaf: &Certificate<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Option<&'static str> {
    let mut issuer = leaf.issuer;
    for _ in 0..MAX_DEPTH {
        if roots
            .roots
            .iter()
            .any(|root| same_name(&root.subject, issuer))
        {
            return None;
        }
        let sent = intermediates
            .iter()
            .filter_map(|der| Certificate::parse(der));
        let Some(found) = sent
            .into_iter()
            .find(|sent| same_name(sent.subject, issuer))
        else {
            return Some(NO_ISSUER);
        };
        if found.is_self_issued() {
            return Some(SELF_SIGNED_IN_CHAIN);
        }
        issuer = found.issuer;
    }
    Some(NO_ISSUER)
}

/// OpenSSL's text for an error of rustls.
pub(super) fn text_of(error: &Error) -> &'static str {
    let Error::InvalidCertificate(error) = error else {
        return INVALID;
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => EXPIRED,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            NOT_YET_VALID
        }
        CertificateError::UnknownIssuer => NO_ISSUER,
        CertificateError::BadSignature => "certificate signature failure",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "unsuitable certificate purpose"
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "CA signature digest algorithm too weak"
        }
        CertificateError::Other(OtherError(inner)) => match inner.downcast_ref() {
            Some(webpki::Error::CaUsedAsEndEntity) => "unsuitable certificate purpose",
            Some(webpki::Error::EndEntityUsedAsCa) => "invalid CA certificate",
            Some(webpki::Error::PathLenConstraintViolated) => "path length constraint exceeded",
            Some(webpki::Error::MaximumPathDepthExceeded) => "certificate chain too long",
            Some(webpki::Error::NameConstraintViolation) => "permitted subtree violation",
            Some(webpki::Error::UnsupportedCriticalExtension) => "unhandled critical extension",
            _ => INVALID,
        },
        _ => INVALID,
    }
}
