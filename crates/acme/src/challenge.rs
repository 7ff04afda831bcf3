//! Answers to the authority's questions, which stand as long as the value lives.

use std::path::PathBuf;

use h2o_tls::ChallengeCertificate;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::PrivateKeyDer;

use crate::failure::{Cause, Failure};
use crate::{Challenge, StateDirectory};

/// An answer that is in place.
pub(crate) enum Answer {
    /// A file below the path that each host serves.
    File(PathBuf),
    /// The certificate for connections of the protocol `acme-tls/1`.
    Certificate(#[expect(dead_code, reason = "dropping it ends the answer")] ChallengeCertificate),
}

/// A question of the authority.
pub(crate) struct Question<'a> {
    pub(crate) name: &'a str,
    pub(crate) token: &'a str,
    pub(crate) key_authorization: &'a str,
    pub(crate) digest: &'a [u8],
}

impl Answer {
    /// Puts the answer in place.
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
            // A file that stays answers a question that is not asked again.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The certificate of RFC 8737 §3.
fn certificate(name: &str, digest: &[u8]) -> Result<ChallengeCertificate, String> {
    let failed =
        |error: rcgen::Error| format!("failed to make the certificate of a challenge: {error}");
    let key = KeyPair::generate().map_err(failed)?;
    let mut parameters = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = parameters.self_signed(&key).map_err(failed)?;
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    ChallengeCertificate::present(name, certificate.der().clone(), key)
}
