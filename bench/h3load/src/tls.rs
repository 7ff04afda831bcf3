//! TLS settings of the client: one cipher suite and one group, those of the HTTP/1 and HTTP/2 cases, and any certificate is accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::Fault;

/// Accepts every certificate, because the harness made it, and counts them: a handshake without a certificate resumed a session.
#[derive(Debug)]
pub(crate) struct Certificates {
    provider: Arc<CryptoProvider>,
    seen: AtomicU64,
}

impl Certificates {
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl ServerCertVerifier for Certificates {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.seen.fetch_add(1, Ordering::Relaxed);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The TLS settings for all connections, and the counter of certificates.
pub(crate) fn config(resumes: bool) -> Result<(Arc<QuicClientConfig>, Arc<Certificates>), Fault> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![provider::kx_group::X25519],
        ..provider::default_provider()
    });
    let certificates = Arc::new(Certificates {
        provider: Arc::clone(&provider),
        seen: AtomicU64::new(0),
    });
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&certificates) as _)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.resumption = if resumes {
        Resumption::store(Arc::new(ClientSessionMemoryCache::new(64)))
    } else {
        Resumption::disabled()
    };
    Ok((Arc::new(QuicClientConfig::try_from(tls)?), certificates))
}
