//! Verifies the certificates of clients (`client-ca-file`).

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::Certificate;
use crate::client::{PlainChain, is_valid_at};
use crate::x509::{verify_handshake12, verify_handshake13};

/// Accepts what OpenSSL accepts beyond rustls: certificates that `client-ca-file` itself contains, such as self-signed ones of
/// single clients, and those of X.509 version 1, which `openssl x509 -req` makes by default.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    by_rustls: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    /// The certificates of `client-ca-file`.
    listed: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ClientVerifier {
    /// # Errors
    /// The reason why rustls refuses the authorities.
    pub(super) fn new(
        roots: RootCertStore,
        listed: Vec<CertificateDer<'static>>,
    ) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = Arc::new(roots);
        let by_rustls =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| error.to_string())?;
        Ok(Self {
            by_rustls,
            roots,
            listed,
            provider,
        })
    }

    /// Whether a certificate that rustls refuses is trusted nevertheless. A listed certificate must match as a whole: its own
    /// signature proves nothing.
    fn trusts(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> bool {
        let Some(leaf) = Certificate::parse(end_entity).filter(|leaf| is_valid_at(leaf, now))
        else {
            return false;
        };
        if self.listed.contains(end_entity) {
            return true;
        }
        if !leaf.is_version1 {
            return false;
        }
        let algorithms = self.provider.signature_verification_algorithms;
        let chain = PlainChain::new(&self.roots, intermediates, algorithms, now);
        let issuers = chain.issuers(&leaf);
        // A certificate of version 1 has only a common name, which name constraints do not cover.
        issuers.iter().any(|issuer| !issuer.has_name_constraints())
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_rustls.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .by_rustls
            .verify_client_cert(end_entity, intermediates, now);
        verified.or_else(|error| {
            if self.trusts(end_entity, intermediates, now) {
                Ok(ClientCertVerified::assertion())
            } else {
                Err(error)
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_handshake12(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_handshake13(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_rustls.supported_verify_schemes()
    }
}
