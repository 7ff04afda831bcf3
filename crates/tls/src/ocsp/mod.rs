//! OCSP (RFC 6960) as a client: asks for the status of the server's own certificate, and checks the answer.

mod request;
mod response;

use std::fmt;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::x509::{Certificate, is_signed_by, same_name};

pub use response::OcspStatus;

/// A certificate whose status is asked for, with the certificate of its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcspSubject {
    certificate: Vec<u8>,
    issuer: Vec<u8>,
}

/// Why nobody can be asked for the status of a certificate, or why an answer does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspError {
    /// There is no certificate, or it is malformed.
    NoCertificate,
    /// None of the other certificates has issued the certificate.
    NoIssuer,
    /// The answer is not an OCSP response.
    Malformed,
    /// The responder refuses; its OCSPResponseStatus.
    Refused(u8),
    /// The answer is not about the certificate.
    OtherCertificate,
    /// The responder does not know the certificate.
    Unknown,
    /// Neither the issuer nor a responder that the issuer has certified for it has signed the answer.
    NotSigned,
    /// The answer is of the future.
    NotYetValid,
    /// The answer has ended.
    Ended,
}

impl OcspSubject {
    /// The first certificate of a chain, whose issuer is among the others.
    ///
    /// # Errors
    /// One of the two is missing.
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Result<Self, OcspError> {
        let (leaf, others) = chain.split_first().ok_or(OcspError::NoCertificate)?;
        let certificate = Certificate::parse(leaf).ok_or(OcspError::NoCertificate)?;
        let issuer = others
            .iter()
            .find(|other| {
                Certificate::parse(other).is_some_and(|other| has_issued(&other, &certificate))
            })
            .ok_or(OcspError::NoIssuer)?;
        Ok(Self {
            certificate: leaf.to_vec(),
            issuer: issuer.to_vec(),
        })
    }

    /// The same for certificates in PEM form.
    ///
    /// # Errors
    /// One of the two is missing.
    pub fn of_pem(text: &[u8]) -> Result<Self, OcspError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        Self::of_chain(&chain.map_err(|_| OcspError::NoCertificate)?)
    }

    fn parse(&self) -> Option<ParsedSubject<'_>> {
        Some(ParsedSubject {
            certificate: Certificate::parse(&self.certificate)?,
            issuer: Certificate::parse(&self.issuer)?,
        })
    }

    /// The URL of the responder that the certificate names.
    #[must_use]
    pub fn responder(&self) -> Option<&str> {
        Certificate::parse(&self.certificate)?.ocsp_responder()
    }

    /// The request in DER.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let subject = self.parse();
        subject.map_or(Vec::new(), |subject| subject.request())
    }

    /// Checks an answer: whether it is about the certificate, signed by somebody who may, and valid now. `now`: time since the
    /// Unix epoch.
    ///
    /// # Errors
    /// Why the answer does not count.
    pub fn check(&self, response: &[u8], now: Duration) -> Result<OcspStatus, OcspError> {
        let subject = self.parse().ok_or(OcspError::NoCertificate)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        subject.check(response, now)
    }
}

/// An [`OcspSubject`], parsed.
struct ParsedSubject<'a> {
    certificate: Certificate<'a>,
    issuer: Certificate<'a>,
}

fn has_issued(issuer: &Certificate<'_>, certificate: &Certificate<'_>) -> bool {
    same_name(issuer.subject, certificate.issuer) && is_signed_by(certificate, &issuer.public_key)
}

impl fmt::Display for OcspError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoCertificate => "there is no certificate, or it is malformed",
            Self::NoIssuer => {
                "the file has no certificate of the issuer; append it, the responder cannot be asked without it"
            }
            Self::Malformed => "the answer is not an OCSP response",
            Self::Refused(status) => {
                let meaning = match status {
                    1 => "malformedRequest",
                    2 => "internalError",
                    3 => "tryLater",
                    5 => "sigRequired",
                    6 => "unauthorized",
                    _ => "an unknown error",
                };
                return write!(f, "the responder answered with {meaning}");
            }
            Self::OtherCertificate => "the response is not of this certificate",
            Self::Unknown => "the responder does not know the certificate",
            Self::NotSigned => {
                "the response is signed neither by the issuer nor by a responder that the issuer has certified"
            }
            Self::NotYetValid => "the response is not valid yet",
            Self::Ended => "the response is not valid any more",
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests;
