//! Parses OCSP responses (RFC 6960 §4.2.1), and checks their signature, their time and what they are about.

use super::request::{IssuerHashes, sha1};
use super::{OcspError, ParsedSubject, has_issued};
use crate::x509::{
    BIT_STRING, Certificate, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, Reader,
    SEQUENCE, SignedPart, bits, same_name, time,
};

const ENUMERATED: u8 = 0x0a;
/// The constructed, context-specific DER tags with the numbers 0 to 2.
const TAGGED: [u8; 3] = [0xa0, 0xa1, 0xa2];
/// The DER tags of the choices of CertStatus: `good` and `unknown` have no content, `revoked` contains a time and
/// perhaps a reason.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;
const UNKNOWN: u8 = 0x82;
/// The object identifier of the response type id-pkix-ocsp-basic: 1.3.6.1.5.5.7.48.1.1.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// How many seconds the clock of an OCSP responder may be ahead of the server's: a response that is valid only from
/// then on is accepted.
const CLOCK_DIFFERENCE: i64 = 300;
/// How many of the certificates in an OCSP response are examined at most: for each one, up to two signatures are
/// verified.
const MAX_CERTIFICATES: usize = 8;

/// What an accepted OCSP response says of the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcspStatus {
    /// When the OCSP response or the certificate of its signer expires, in seconds since the Unix epoch; `None` if
    /// neither limit exists.
    pub until: Option<i64>,
    /// Whether the certificate that was asked for has been revoked.
    pub is_revoked: bool,
}

/// A parsed BasicOCSPResponse, the only supported type of OCSP response.
struct BasicResponse<'a> {
    signed: SignedPart<'a>,
    responder: Responder<'a>,
    /// The encoded SingleResponses: the statuses of one or more certificates.
    singles: &'a [u8],
    /// The encoded certificates that the response contains, among which that of its signer is looked for.
    certificates: &'a [u8],
}

/// A ResponderID: how an OCSP response identifies the responder that has signed it.
enum Responder<'a> {
    /// The responder's name: the content of an RDNSequence, without tag and length.
    Name(&'a [u8]),
    /// The SHA-1 digest of the responder's public key.
    Key(&'a [u8]),
}

/// A parsed SingleResponse: the status of one certificate and the time for which it is valid.
struct SingleResponse<'a> {
    /// The object identifier of the hash function by which the issuer is identified.
    hash: &'a [u8],
    issuer: IssuerHashes,
    serial: &'a [u8],
    status: u8,
    from: i64,
    until: Option<i64>,
}

impl<'a> BasicResponse<'a> {
    fn parse(response: &'a [u8]) -> Result<Self, OcspError> {
        let mut status = None;
        let parsed = Self::parse_successful(response, &mut status);
        match status {
            Some(status @ 1..) => Err(OcspError::Refused(status)),
            Some(0) | None => parsed.ok_or(OcspError::Malformed),
        }
    }

    /// Parses an OCSP response; returns `None` if it is malformed or not successful. `status` receives the
    /// OCSPResponseStatus: an unsuccessful response consists of this field only, so the caller tells the two cases
    /// apart by it.
    fn parse_successful(response: &'a [u8], status: &mut Option<u8>) -> Option<Self> {
        let mut whole = Reader(response);
        let mut response = Reader(whole.content_of(SEQUENCE)?);
        let &[value] = response.content_of(ENUMERATED)? else {
            return None;
        };
        *status = Some(value).filter(|_| whole.is_empty());
        let mut bytes = Reader(Reader(response.content_of(TAGGED[0])?).content_of(SEQUENCE)?);
        if bytes.content_of(OBJECT_IDENTIFIER)? != BASIC || !whole.is_empty() {
            return None;
        }
        let mut basic = Reader(Reader(bytes.content_of(OCTET_STRING)?).content_of(SEQUENCE)?);
        let data = basic.element()?;
        let algorithm = basic.content_of(SEQUENCE)?;
        let signature = bits(basic.content_of(BIT_STRING)?)?;
        let certificates = match basic.content_if(TAGGED[0]) {
            Some(certificates) => Reader(certificates).content_of(SEQUENCE)?,
            None => &[],
        };
        let signed = SignedPart {
            message: data.whole,
            algorithm,
            signature,
        };
        let mut data = Reader(data.content_of(SEQUENCE)?);
        // Skips the version of the response, which may be absent.
        let _ = data.content_if(TAGGED[0]);
        let responder = data.element()?;
        let mut id = Reader(responder.content);
        let responder = match responder.tag {
            tag if tag == TAGGED[1] => Responder::Name(id.content_of(SEQUENCE)?),
            tag if tag == TAGGED[2] => Responder::Key(id.content_of(OCTET_STRING)?),
            _ => return None,
        };
        data.content_of(GENERALIZED_TIME)?;
        Some(Self {
            signed,
            responder,
            singles: data.content_of(SEQUENCE)?,
            certificates,
        })
    }

    /// Finds out who has signed this response (RFC 6960 §4.2.2.2). Returns when the certificate of the signer expires,
    /// if that is a responder certified by the issuer, and `None` if the issuer itself has signed.
    fn signer_end(&self, issuer: &Certificate<'_>, now: i64) -> Result<Option<i64>, OcspError> {
        if self.is_signed_by(issuer) {
            return Ok(None);
        }
        let mut certificates = Reader(self.certificates);
        std::iter::from_fn(|| certificates.element())
            .take(MAX_CERTIFICATES)
            .filter_map(|element| Certificate::parse(element.whole))
            .find(|delegate| {
                let is_valid = (delegate.not_before..=delegate.not_after).contains(&now);
                is_valid
                    && delegate.may_sign_ocsp_responses()
                    && self.is_signed_by(delegate)
                    && has_issued(issuer, delegate)
            })
            .map(|delegate| Some(delegate.not_after))
            .ok_or(OcspError::NotSigned)
    }

    fn is_signed_by(&self, signer: &Certificate<'_>) -> bool {
        let is_named = match self.responder {
            Responder::Name(name) => same_name(name, signer.subject),
            Responder::Key(hash) => hash == sha1(signer.public_key.key),
        };
        is_named && self.signed.verifies(&signer.public_key)
    }
}

impl<'a> SingleResponse<'a> {
    fn parse(content: &'a [u8]) -> Option<Self> {
        let mut single = Reader(content);
        let mut id = Reader(single.content_of(SEQUENCE)?);
        let hash = Reader(id.content_of(SEQUENCE)?).content_of(OBJECT_IDENTIFIER)?;
        let issuer = IssuerHashes {
            name: id.content_of(OCTET_STRING)?.to_vec(),
            key: id.content_of(OCTET_STRING)?.to_vec(),
        };
        let serial = id.content_of(INTEGER)?;
        let status = single.element()?.tag;
        let from = time(single.element()?)?;
        let until = match single.content_if(TAGGED[0]) {
            Some(next) => Some(time(Reader(next).element()?)?),
            None => None,
        };
        Some(Self {
            hash,
            issuer,
            serial,
            status,
            from,
            until,
        })
    }
}

impl ParsedSubject<'_> {
    /// See [`super::OcspSubject::check`].
    pub(super) fn check(&self, response: &[u8], now: i64) -> Result<OcspStatus, OcspError> {
        let basic = BasicResponse::parse(response)?;
        let ours = self.single_response(&basic)?;
        let signer_end = basic.signer_end(&self.issuer, now)?;
        if ours.from > now.saturating_add(CLOCK_DIFFERENCE) {
            return Err(OcspError::NotYetValid);
        }
        // The response is used no longer than the certificate of its signer is valid: clients refuse it afterwards.
        let until = match (ours.until, signer_end) {
            (Some(until), Some(end)) => Some(until.min(end)),
            (until, end) => until.or(end),
        };
        if until.is_some_and(|until| until <= now) {
            return Err(OcspError::Ended);
        }
        match ours.status {
            GOOD | REVOKED => Ok(OcspStatus {
                until,
                is_revoked: ours.status == REVOKED,
            }),
            UNKNOWN => Err(OcspError::Unknown),
            _ => Err(OcspError::Malformed),
        }
    }

    /// Returns the part of an OCSP response that is about the certificate.
    fn single_response<'r>(
        &self,
        basic: &BasicResponse<'r>,
    ) -> Result<SingleResponse<'r>, OcspError> {
        let mut singles = Reader(basic.singles);
        while !singles.is_empty() {
            let single = singles.content_of(SEQUENCE).and_then(SingleResponse::parse);
            let single = single.ok_or(OcspError::Malformed)?;
            if single.serial == self.certificate.serial
                && self.issuer_hashes(single.hash).as_ref() == Some(&single.issuer)
            {
                return Ok(single);
            }
        }
        Err(OcspError::OtherCertificate)
    }
}
