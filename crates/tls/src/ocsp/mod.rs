//! The client side of OCSP (RFC 6960): makes the request for the status of a certificate of this server, and checks the
//! response of the OCSP responder. The caller sends the request.

mod request;
mod response;

use std::fmt;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::x509::{Certificate, is_signed_by, same_name};

pub use response::OcspStatus;

/// A certificate for whose status an OCSP responder is asked, with the certificate of its issuer, both in DER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcspSubject {
    certificate: Vec<u8>,
    issuer: Vec<u8>,
}

/// Why no OCSP responder can be asked for the status of a certificate, or why its response is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspError {
    /// There is no certificate to ask for, or a certificate is malformed.
    NoCertificate,
    /// None of the other certificates in the chain is that of the issuer.
    NoIssuer,
    /// The responder's answer is not an OCSP response, or a malformed one.
    Malformed,
    /// The response has this OCSPResponseStatus, which is not `successful`: the responder refuses the request.
    Refused(u8),
    /// The OCSP response is not about the certificate that was asked for.
    OtherCertificate,
    /// The OCSP response gives the certificate the status `unknown`.
    Unknown,
    /// The OCSP response is signed neither by the issuer of the certificate nor by a responder that the issuer has certified
    /// for this purpose.
    NotSigned,
    /// The OCSP response becomes valid only in the future.
    NotYetValid,
    /// The OCSP response has expired.
    Ended,
}

impl OcspSubject {
    /// Takes the first certificate of a chain as the one to ask for, and finds the certificate of its issuer among the others.
    ///
    /// # Errors
    /// If the certificate or that of its issuer is missing or malformed.
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

    /// Does the same as [`Self::of_chain`] with a chain in PEM form.
    ///
    /// # Errors
    /// If the certificate or that of its issuer is missing or malformed.
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

    /// The URL of the OCSP responder that the certificate names; `None` if it names none that is asked by plain HTTP.
    #[must_use]
    pub fn responder(&self) -> Option<&str> {
        Certificate::parse(&self.certificate)?.ocsp_responder()
    }

    /// The OCSP request for the status of the certificate, in DER.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let subject = self.parse();
        subject.map_or(Vec::new(), |subject| subject.request())
    }

    /// Checks that an OCSP response is about the certificate, that the issuer or a responder certified by the issuer has
    /// signed it, and that it is valid at the time `now`, given as time since the Unix epoch.
    ///
    /// # Errors
    /// Why the OCSP response is refused.
    pub fn check(&self, response: &[u8], now: Duration) -> Result<OcspStatus, OcspError> {
        let subject = self.parse().ok_or(OcspError::NoCertificate)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        subject.check(response, now)
    }
}

/// The two parsed certificates of an [`OcspSubject`].
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
                "the file lacks the certificate of the issuer, without which the responder cannot be asked; append that certificate"
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
            Self::OtherCertificate => "the response is about another certificate",
            Self::Unknown => "the responder does not know the certificate",
            Self::NotSigned => {
                "the response is signed neither by the issuer nor by a responder that the issuer has certified"
            }
            Self::NotYetValid => "the response is not valid yet",
            Self::Ended => "the response has expired",
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests;
