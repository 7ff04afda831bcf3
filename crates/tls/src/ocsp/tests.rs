//! Tests of OCSP requests and responses. The tests encode and sign the responses themselves; the crate `rcgen` makes
//! the certificates.

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SerialNumber, SigningKey,
};

use super::request::sha1;
use super::*;
use crate::x509::{
    BIT_STRING, GENERALIZED_TIME, INTEGER, NULL, OBJECT_IDENTIFIER, OCTET_STRING, Reader, SEQUENCE,
    element,
};

const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// The object identifier of the signature algorithm ecdsa-with-SHA256: 1.2.840.10045.4.3.2.
const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const GOOD: &[u8] = &[0x80, 0];
const UNKNOWN: &[u8] = &[0x82, 0];
/// The time at which the tests check responses, since the Unix epoch: a day in the year 2026.
const NOW: Duration = Duration::from_secs(1_780_000_000);

struct Authority {
    params: CertificateParams,
    key: KeyPair,
    der: Vec<u8>,
}

/// Makes a key and a certificate for it, which `authority` issues; without an authority the certificate is self-signed.
fn make(
    authority: Option<&Authority>,
    name: &str,
    tune: impl FnOnce(&mut CertificateParams),
) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2025, 1, 1);
    params.not_after = rcgen::date_time_ymd(2035, 1, 1);
    tune(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = match authority {
        None => params.self_signed(&key).unwrap(),
        Some(authority) => {
            let issuer = Issuer::from_params(&authority.params, &authority.key);
            params.signed_by(&key, &issuer).unwrap()
        }
    };
    Authority {
        der: certificate.der().to_vec(),
        params,
        key,
    }
}

fn authority(name: &str) -> Authority {
    make(None, name, |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    })
}

/// Makes the certificate extension authorityInfoAccess. Each entry has the last number of an access method's object
/// identifier (1: OCSP, 2: certificates of the issuer) and a URL.
fn access(entries: &[(u8, &str)]) -> CustomExtension {
    let entries = entries.iter().map(|(method, url)| {
        let method = [0x2b, 6, 1, 5, 5, 7, 0x30, *method];
        let parts = [
            element(OBJECT_IDENTIFIER, &[&method]),
            element(0x86, &[url.as_bytes()]),
        ];
        element(SEQUENCE, &[&parts.concat()])
    });
    let content = element(SEQUENCE, &[&entries.collect::<Vec<_>>().concat()]);
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], content)
}

fn leaf(authority: &Authority, serial: &[u8]) -> Vec<u8> {
    let made = make(Some(authority), "a.test", |params| {
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let entries = [
            (2, "http://ca.test/ca.crt"),
            (1, "ldap://a"),
            (1, "http://b/c"),
        ];
        params.custom_extensions.push(access(&entries));
    });
    made.der
}

fn delegate(authority: &Authority, purpose: ExtendedKeyUsagePurpose) -> Authority {
    make(Some(authority), "responder", |params| {
        params.extended_key_usages = vec![purpose];
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
    })
}

/// The parts of an OCSP response that a test encodes: [`Draft::new`] describes a correct response, and each test
/// changes one part.
struct Draft<'a> {
    authority: &'a Authority,
    signer: &'a Authority,
    /// Whether the response identifies its signer by the name; otherwise by the hash of the key.
    is_by_name: bool,
    certificates: Vec<&'a [u8]>,
    serial: &'a [u8],
    status: Vec<u8>,
    from: &'a str,
    until: Option<&'a str>,
}

impl<'a> Draft<'a> {
    fn new(authority: &'a Authority) -> Self {
        Self {
            authority,
            signer: authority,
            is_by_name: true,
            certificates: Vec::new(),
            serial: &[0x12, 0x34],
            status: GOOD.to_vec(),
            from: "20260101000000Z",
            until: Some("20270101000000Z"),
        }
    }

    fn single(&self, serial: &[u8]) -> Vec<u8> {
        let issuer = Certificate::parse(&self.authority.der).unwrap();
        let hash = [element(OBJECT_IDENTIFIER, &[SHA1]), element(NULL, &[])].concat();
        let name = element(SEQUENCE, &[issuer.subject]);
        let id = [
            element(SEQUENCE, &[&hash]),
            element(OCTET_STRING, &[&sha1(&name)]),
            element(OCTET_STRING, &[&sha1(issuer.public_key.key)]),
            element(INTEGER, &[serial]),
        ];
        let next = self
            .until
            .map(|text| element(GENERALIZED_TIME, &[text.as_bytes()]));
        let parts = [
            element(SEQUENCE, &[&id.concat()]),
            self.status.clone(),
            element(GENERALIZED_TIME, &[self.from.as_bytes()]),
            next.map_or(Vec::new(), |next| element(0xa0, &[&next])),
        ];
        element(SEQUENCE, &[&parts.concat()])
    }

    fn encode(&self) -> Vec<u8> {
        let signer = Certificate::parse(&self.signer.der).unwrap();
        let responder = match self.is_by_name {
            true => element(0xa1, &[&element(SEQUENCE, &[signer.subject])]),
            false => {
                let key = sha1(signer.public_key.key);
                element(0xa2, &[&element(OCTET_STRING, &[&key])])
            }
        };
        let singles = [self.single(&[9]), self.single(self.serial)].concat();
        let data = [
            responder,
            element(GENERALIZED_TIME, &[b"20260101000000Z"]),
            element(SEQUENCE, &[&singles]),
        ];
        let data = element(SEQUENCE, &[&data.concat()]);
        let signature = self.signer.key.sign(&data).unwrap();
        let mut basic = vec![
            data,
            element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[ECDSA_SHA256])]),
            element(BIT_STRING, &[&[0], &signature]),
        ];
        if !self.certificates.is_empty() {
            let certificates = element(SEQUENCE, &self.certificates);
            basic.push(element(0xa0, &[&certificates]));
        }
        whole(0, &element(SEQUENCE, &[&basic.concat()]))
    }
}

/// Encodes an OCSPResponse with this OCSPResponseStatus and this BasicOCSPResponse.
fn whole(status: u8, basic: &[u8]) -> Vec<u8> {
    let bytes = [
        element(OBJECT_IDENTIFIER, &[BASIC]),
        element(OCTET_STRING, &[basic]),
    ];
    let bytes = element(SEQUENCE, &[&bytes.concat()]);
    element(
        SEQUENCE,
        &[&element(0x0a, &[&[status]]), &element(0xa0, &[&bytes])],
    )
}

fn subject(authority: &Authority) -> OcspSubject {
    let chain = [leaf(authority, &[0x12, 0x34]), authority.der.clone()];
    OcspSubject::of_chain(&chain.map(CertificateDer::from)).unwrap()
}

#[test]
fn the_issuer_is_found_by_its_name_and_its_signature() {
    let (ours, other) = (authority("ca"), authority("other"));
    let namesake = authority("ca");
    let leaf = leaf(&ours, &[1]);
    let of = |others: &[&Authority]| {
        let others = others.iter().map(|other| other.der.clone());
        let chain: Vec<_> = std::iter::once(leaf.clone()).chain(others).collect();
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        OcspSubject::of_chain(&chain).map(|subject| subject.issuer)
    };
    assert_eq!(of(&[&other, &namesake, &ours]), Ok(ours.der.clone()));
    assert_eq!(of(&[&other, &namesake]), Err(OcspError::NoIssuer));
    assert_eq!(of(&[]), Err(OcspError::NoIssuer));
    assert_eq!(OcspSubject::of_chain(&[]), Err(OcspError::NoCertificate));
    assert_eq!(
        OcspSubject::of_pem(b"no PEM"),
        Err(OcspError::NoCertificate)
    );
}

#[test]
fn a_request_names_the_certificate_and_the_responder_is_the_first_one_of_http() {
    let authority = authority("ca");
    let subject = subject(&authority);
    assert_eq!(subject.responder(), Some("http://b/c"));
    let request = subject.request();
    let mut inner = Reader(&request);
    // Enters the nested SEQUENCEs OCSPRequest, TBSRequest, requestList, Request and CertID.
    for _ in 0..5 {
        inner = Reader(inner.content_of(SEQUENCE).unwrap());
    }
    let single = Draft::new(&authority).single(&[0x12, 0x34]);
    let mut single = Reader(Reader(&single).content_of(SEQUENCE).unwrap());
    assert_eq!(inner.0, single.content_of(SEQUENCE).unwrap());
}

#[test]
fn a_response_counts_if_issuer_or_delegate_has_signed_it() {
    let (ours, other) = (authority("ca"), authority("ca"));
    let subject = subject(&ours);
    let check = |draft: &Draft<'_>| subject.check(&draft.encode(), NOW);
    let year_2027 = 1_798_761_600;
    let year_2030 = 1_893_456_000;
    let good = |until| {
        Ok(OcspStatus {
            until,
            is_revoked: false,
        })
    };
    let mut draft = Draft::new(&ours);
    assert_eq!(check(&draft), good(Some(year_2027)));
    draft.is_by_name = false;
    draft.until = None;
    assert_eq!(check(&draft), good(None));

    // The signer is an authority with the name of the issuer, but with another key.
    draft.signer = &other;
    for is_by_name in [true, false] {
        draft.is_by_name = is_by_name;
        assert_eq!(check(&draft), Err(OcspError::NotSigned));
    }

    let delegated = delegate(&ours, ExtendedKeyUsagePurpose::OcspSigning);
    for is_by_name in [true, false] {
        draft.is_by_name = is_by_name;
        draft.signer = &delegated;
        draft.certificates = vec![&other.der, &delegated.der];
        // The response expires together with the certificate of the responder that has signed it.
        assert_eq!(check(&draft), good(Some(year_2030)));
        let after = Duration::from_secs(year_2030.unsigned_abs() + 86_400);
        let ended = subject.check(&draft.encode(), after);
        assert_eq!(ended, Err(OcspError::NotSigned));
        draft.certificates = Vec::new();
        assert_eq!(check(&draft), Err(OcspError::NotSigned));
    }
    // The signer's certificate has another purpose than signing OCSP responses, or is issued by another authority of
    // the same name.
    for wrong in [
        delegate(&ours, ExtendedKeyUsagePurpose::ServerAuth),
        delegate(&ours, ExtendedKeyUsagePurpose::Any),
        delegate(&other, ExtendedKeyUsagePurpose::OcspSigning),
    ] {
        let mut draft = Draft::new(&ours);
        draft.signer = &wrong;
        draft.certificates = vec![&wrong.der];
        assert_eq!(check(&draft), Err(OcspError::NotSigned));
    }
    // The certificate of the signer is the ninth one in the response, and only eight are examined.
    let mut draft = Draft::new(&ours);
    draft.signer = &delegated;
    draft.certificates = vec![&other.der; 8];
    draft.certificates.push(&delegated.der);
    assert_eq!(check(&draft), Err(OcspError::NotSigned));
    draft.certificates.remove(0);
    assert_eq!(check(&draft), good(Some(year_2027)));
}

#[test]
fn a_response_counts_for_its_certificate_and_time() {
    let (ours, other) = (authority("ca"), authority("ca"));
    let subject = subject(&ours);
    let at = |draft: &Draft<'_>, now: Duration| subject.check(&draft.encode(), now);
    let mut draft = Draft::new(&ours);
    draft.serial = &[0x12, 0x35];
    assert_eq!(at(&draft, NOW), Err(OcspError::OtherCertificate));
    // The response is about a certificate with the same serial number, whose issuer has the same name and another key.
    let mut draft = Draft::new(&other);
    draft.signer = &ours;
    assert_eq!(at(&draft, NOW), Err(OcspError::OtherCertificate));

    let draft = Draft::new(&ours);
    // The response is valid from 2026-01-01 to 2027-01-01; here in seconds since the Unix epoch.
    let (from, until) = (1_767_225_600, 1_798_761_600);
    for (now, want) in [
        (from - 301, Some(OcspError::NotYetValid)),
        (from - 300, None),
        (until - 1, None),
        (until, Some(OcspError::Ended)),
    ] {
        let result = at(&draft, Duration::from_secs(now));
        assert_eq!(result.err(), want, "{now}");
    }

    let mut draft = Draft::new(&ours);
    draft.status = UNKNOWN.to_vec();
    assert_eq!(at(&draft, NOW), Err(OcspError::Unknown));
    let when = element(GENERALIZED_TIME, &[b"20260101000000Z"]);
    draft.status = element(0xa1, &[&when]);
    assert!(at(&draft, NOW).unwrap().is_revoked);
    draft.status = element(0x84, &[]);
    assert_eq!(at(&draft, NOW), Err(OcspError::Malformed));
}

#[test]
fn what_is_no_response_is_an_error_at_every_cut_and_every_flipped_octet() {
    let ours = authority("ca");
    let subject = subject(&ours);
    let response = Draft::new(&ours).encode();
    let check = |bytes: &[u8]| subject.check(bytes, NOW);
    assert!(check(&response).is_ok());
    for end in 0..response.len() {
        assert_eq!(check(&response[..end]), Err(OcspError::Malformed), "{end}");
    }
    for at in 0..response.len() {
        let mut changed = response.clone();
        changed[at] ^= 0x41;
        assert!(check(&changed).is_err(), "octet {at} of {}", response.len());
    }
    let longer = [&response[..], &[0]].concat();
    assert_eq!(check(&longer), Err(OcspError::Malformed));
    for status in [1, 3, 6, 99] {
        let refused = element(SEQUENCE, &[&element(0x0a, &[&[status]])]);
        assert_eq!(check(&refused), Err(OcspError::Refused(status)));
    }
    assert_eq!(check(&whole(0, &[])), Err(OcspError::Malformed));
}
