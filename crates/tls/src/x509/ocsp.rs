//! Parses OCSP responses (RFC 6960 §4.2.1), as far as a server that staples them needs it. The signature is not checked here.

use crate::x509::certificate::{
    GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, time,
};
use crate::x509::der::Reader;

const ENUMERATED: u8 = 0x0a;
/// DER tags: constructed, context-specific, numbers 0 to 2.
const TAGGED: [u8; 3] = [0xa0, 0xa1, 0xa2];
/// The object identifier of the response type id-pkix-ocsp-basic: 1.3.6.1.5.5.7.48.1.1.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];

/// From when until when an OCSP response is valid, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcspValidity {
    /// The field thisUpdate: from when the response is valid.
    pub from: i64,
    /// The field nextUpdate: until when the response is valid; `None`: the responder always has newer information.
    pub until: Option<i64>,
}

/// From when until when a successful response is valid for the certificate with this serial number; `None` if the response is
/// malformed, not successful, or not of this certificate.
#[must_use]
pub fn ocsp_validity(response: &[u8], serial: &[u8]) -> Option<OcspValidity> {
    let mut whole = Reader(response);
    let mut response = Reader(whole.content_of(SEQUENCE)?);
    let is_successful = response.content_of(ENUMERATED)? == [0];
    if !is_successful || !whole.is_empty() {
        return None;
    }
    let mut bytes = Reader(Reader(response.content_of(TAGGED[0])?).content_of(SEQUENCE)?);
    if bytes.content_of(OBJECT_IDENTIFIER)? != BASIC {
        return None;
    }
    let mut basic = Reader(Reader(bytes.content_of(OCTET_STRING)?).content_of(SEQUENCE)?);
    let mut data = Reader(basic.content_of(SEQUENCE)?);
    // Skips the version, the responder's identity and the time of production.
    let _ = data.content_if(TAGGED[0]);
    if !TAGGED[1..].contains(&data.element()?.tag) {
        return None;
    }
    data.content_of(GENERALIZED_TIME)?;
    let mut singles = Reader(data.content_of(SEQUENCE)?);
    while !singles.is_empty() {
        let mut single = Reader(singles.content_of(SEQUENCE)?);
        let mut certificate = Reader(single.content_of(SEQUENCE)?);
        // Skips the hash algorithm, and the hashes of the issuer's name and key.
        for tag in [SEQUENCE, OCTET_STRING, OCTET_STRING] {
            certificate.content_of(tag)?;
        }
        let is_ours = certificate.content_of(INTEGER)? == serial;
        // Skips the certificate's status: good, revoked or unknown.
        single.element()?;
        let from = time(single.element()?)?;
        let until = match single.content_if(TAGGED[0]) {
            Some(next) => Some(time(Reader(next).element()?)?),
            None => None,
        };
        if is_ours {
            return Some(OcspValidity { from, until });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        let header = match len {
            0..=0x7f => vec![tag, len],
            _ => vec![tag, 0x81, len],
        };
        [header, content.to_vec()].concat()
    }

    /// A response about two certificates; the second one has this serial number, and `until` is the end of its validity.
    fn response(status: u8, serial: &[u8], until: Option<&str>) -> Vec<u8> {
        let single = |serial: &[u8], until: Option<&str>| {
            let id = [
                element(SEQUENCE, &element(OBJECT_IDENTIFIER, &[0x2b])),
                element(OCTET_STRING, b"name"),
                element(OCTET_STRING, b"key"),
                element(INTEGER, serial),
            ];
            let next = until.map(|text| element(GENERALIZED_TIME, text.as_bytes()));
            let parts = [
                element(SEQUENCE, &id.concat()),
                element(0x80, &[]),
                element(GENERALIZED_TIME, b"19700101000010Z"),
                next.map_or(Vec::new(), |next| element(TAGGED[0], &next)),
            ];
            element(SEQUENCE, &parts.concat())
        };
        let singles = [single(&[9], None), single(serial, until)].concat();
        let data = [
            element(TAGGED[2], &element(OCTET_STRING, b"responder")),
            element(GENERALIZED_TIME, b"19700101000000Z"),
            element(SEQUENCE, &singles),
        ];
        let basic = element(SEQUENCE, &element(SEQUENCE, &data.concat()));
        let bytes = [
            element(OBJECT_IDENTIFIER, BASIC),
            element(OCTET_STRING, &basic),
        ];
        let parts = [
            element(ENUMERATED, &[status]),
            element(TAGGED[0], &element(SEQUENCE, &bytes.concat())),
        ];
        element(SEQUENCE, &parts.concat())
    }

    #[test]
    fn a_response_counts_for_its_certificate_and_time() {
        let valid = |until| Some(OcspValidity { from: 10, until });
        let until = Some("19700101000020Z");
        let cases = [
            (response(0, &[1], until), valid(Some(20))),
            (response(0, &[1], None), valid(None)),
            (response(0, &[2], until), None),
            (response(3, &[1], until), None),
            ([response(0, &[1], until), vec![0]].concat(), None),
            (Vec::new(), None),
        ];
        for (response, want) in cases {
            assert_eq!(ocsp_validity(&response, &[1]), want, "{response:x?}");
        }
    }

    #[test]
    fn no_part_of_a_response_is_one() {
        let whole = response(0, &[1], Some("19700101000020Z"));
        for end in 0..whole.len() {
            assert_eq!(ocsp_validity(&whole[..end], &[1]), None);
        }
    }
}
