//! Answers to the challenges of a certificate authority. An answer stays in place until its [`Answer`] is dropped.

use std::path::PathBuf;

use h2o_tls::ChallengeCertificate;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::PrivateKeyDer;

use crate::failure::{Cause, Failure};
use crate::{Challenge, StateDirectory};

/// An answer to a challenge that is in place, so that the authority can check it.
pub(crate) enum Answer {
    /// A file in the directory that each host serves below `/.well-known/acme-challenge`.
    File(PathBuf),
    /// The certificate for TLS connections of the ALPN protocol `acme-tls/1`.
    Certificate(
        #[expect(
            dead_code,
            reason = "dropping the certificate ends the answer to the challenge"
        )]
        ChallengeCertificate,
    ),
}

/// A challenge of the certificate authority: what it will ask this server for.
pub(crate) struct Question<'a> {
    pub(crate) name: &'a str,
    pub(crate) token: &'a str,
    pub(crate) key_authorization: &'a str,
    pub(crate) digest: &'a [u8],
}

impl Answer {
    /// Puts the answer in place: writes the file, or hands the certificate to the TLS acceptors.
    pub(crate) fn give(
        challenge: Challenge,
        state: &StateDirectory,
        question: &Question<'_>,
    ) -> Result<Self, Failure> {
        match challenge {
            Challenge::Http01 => {
                let text = question.key_authorization.as_bytes();
                state.write_answer(question.token, text).map(Self::File)
            }
            Challenge::TlsAlpn01 => {
                let certificate = certificate(question.name, question.digest);
                certificate
                    .map(Self::Certificate)
                    .map_err(|text| Failure::new(Cause::Local, text))
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Self::File(path) = self {
            // If the file cannot be removed, it does no harm: the authority does not ask for it again.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Creates the self-signed certificate that answers the challenge TLS-ALPN-01 (RFC 8737 §3).
fn certificate(name: &str, digest: &[u8]) -> Result<ChallengeCertificate, String> {
    let failed = |error: rcgen::Error| {
        format!("failed to make the certificate that answers the challenge tls-alpn-01: {error}")
    };
    let key = KeyPair::generate().map_err(failed)?;
    let mut parameters = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = parameters.self_signed(&key).map_err(failed)?;
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    ChallengeCertificate::present(name, certificate.der().clone(), key)
}
