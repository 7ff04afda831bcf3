//! Responses (RFC 6960 §4.2.1).

use super::request::{IssuerHashes, sha1};
use super::{OcspError, ParsedSubject, has_issued};
use crate::x509::{
    BIT_STRING, Certificate, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, Reader,
    SEQUENCE, SignedPart, bits, same_name, time,
};

const ENUMERATED: u8 = 0x0a;
/// Constructed, context-specific: numbers 0 to 2.
const TAGGED: [u8; 3] = [0xa0, 0xa1, 0xa2];
/// CertStatus: `good` and `unknown` are empty, `revoked` has a time and perhaps a reason.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;
const UNKNOWN: u8 = 0x82;
/// id-pkix-ocsp-basic: 1.3.6.1.5.5.7.48.1.1
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// How far the clock of a responder may be ahead, in seconds.
const CLOCK_DIFFERENCE: i64 = 300;
/// Most certificates of a response that are looked at: each one may cost two signatures.
const MAX_CERTIFICATES: usize = 8;

/// What a response that counts says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcspStatus {
    /// When the response ends, in seconds since the Unix epoch; `None`: it names no end.
    pub until: Option<i64>,
    /// Whether the certificate has been revoked.
    pub is_revoked: bool,
}

/// A BasicOCSPResponse.
struct BasicResponse<'a> {
    signed: SignedPart<'a>,
    responder: Responder<'a>,
    /// The SingleResponses.
    singles: &'a [u8],
    /// The certificates that the responder has sent along.
    certificates: &'a [u8],
}

/// A ResponderID.
enum Responder<'a> {
    /// The content of an RDNSequence.
    Name(&'a [u8]),
    /// The SHA-1 digest of the key.
    Key(&'a [u8]),
}

/// A SingleResponse.
struct SingleResponse<'a> {
    /// Identifier of the hash function.
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

    /// `status`: the OCSPResponseStatus that was read, with which a response ends that is not successful.
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
        // The version.
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

    /// When the right to have signed this response ends, `None` for the issuer itself (RFC 6960 §4.2.2.2).
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
        // Clients refuse a response whose signer's certificate has ended.
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

    /// What a response says of the certificate.
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
