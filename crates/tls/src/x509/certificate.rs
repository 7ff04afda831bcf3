//! The fields of an X.509 certificate (RFC 5280 §4.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::x509::der::{Element, Reader};

const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// DER tags of the version and the extensions in a certificate: constructed, context-specific, numbers 0 and 3.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// DER tags of a dNSName and an iPAddress in a GeneralName: primitive, context-specific, numbers 2 and 7.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// DER tag of the keyIdentifier in an AuthorityKeyIdentifier: primitive, context-specific, number 0.
const KEY_IDENTIFIER: u8 = 0x80;
/// DER tags of UTF8String, PrintableString, TeletexString and IA5String, in which a host name has one byte per character.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];

/// The object identifier of the attribute commonName: 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// The object identifier of the extension keyUsage: 2.5.29.15.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
/// The object identifier of the extension subjectAltName: 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// The object identifier of the extension basicConstraints: 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
/// The object identifier of the extension nameConstraints: 2.5.29.30.
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x1e];
/// The object identifier of the extension authorityKeyIdentifier: 2.5.29.35.
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
/// The object identifier of the extension extKeyUsage: 2.5.29.37.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// The object identifier of the extension authorityInfoAccess: 1.3.6.1.5.5.7.1.1.
const AUTHORITY_INFO_ACCESS: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x01];
/// The object identifier of the access method id-ad-ocsp: 1.3.6.1.5.5.7.48.1.
const OCSP_ACCESS: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01];
/// DER tag of a uniformResourceIdentifier in a GeneralName: primitive, context-specific, number 6.
const URI: u8 = 0x86;
/// The object identifier of the purpose anyExtendedKeyUsage: 2.5.29.37.0.
const ANY_PURPOSE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
/// The object identifier of the purpose id-kp-serverAuth: 1.3.6.1.5.5.7.3.1.
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
/// The object identifier of the extended key usage id-kp-OCSPSigning: 1.3.6.1.5.5.7.3.9.
const OCSP_SIGNING: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x09];
/// The bit keyCertSign in the first byte of the extension KeyUsage.
const KEY_CERT_SIGN: u8 = 0x04;

/// The parts of an X.509 certificate, in their encoded form.
#[derive(Clone, Debug)]
pub struct Certificate<'a> {
    /// Whether the certificate has version 1, which has no extensions.
    pub is_version1: bool,
    /// The serial number: the content of an INTEGER.
    pub serial: &'a [u8],
    /// The name of the issuer: the content of an RDNSequence.
    pub issuer: &'a [u8],
    /// The name of the subject: the content of an RDNSequence.
    pub subject: &'a [u8],
    /// The SubjectPublicKeyInfo, as a whole DER element.
    pub subject_public_key_info: &'a [u8],
    /// The SubjectPublicKeyInfo, split into its parts.
    pub public_key: PublicKey<'a>,
    /// Start of the certificate's validity, in seconds since the Unix epoch.
    pub not_before: i64,
    /// End of the certificate's validity, in seconds since the Unix epoch.
    pub not_after: i64,
    /// The signed part: the TBSCertificate as an element.
    pub tbs: &'a [u8],
    /// The AlgorithmIdentifier of the signature, without tag and length; the certificate has it inside and outside of the signed
    /// part.
    pub signature_algorithm: &'a [u8],
    /// The bits of the certificate's signature.
    pub signature: &'a [u8],
    /// The extensions of the certificate that this parser supports.
    extensions: Extensions<'a>,
}

/// Contents of the supported extensions (RFC 5280 §4.2.1).
#[derive(Clone, Copy, Debug, Default)]
struct Extensions<'a> {
    alternative_names: Option<&'a [u8]>,
    basic_constraints: Option<&'a [u8]>,
    key_usage: Option<&'a [u8]>,
    extended_key_usage: Option<&'a [u8]>,
    name_constraints: Option<&'a [u8]>,
    /// The keyIdentifier in the extension authorityKeyIdentifier.
    authority_key_id: Option<&'a [u8]>,
    /// The content of the extension authorityInfoAccess.
    authority_info_access: Option<&'a [u8]>,
    /// Whether the certificate has a critical extension that this parser does not support.
    has_unknown_critical: bool,
}

/// A SubjectPublicKeyInfo: the public key of a certificate, with its algorithm.
#[derive(Clone, Copy, Debug)]
pub struct PublicKey<'a> {
    /// The whole content of the structure, without tag and length.
    pub content: &'a [u8],
    /// The AlgorithmIdentifier without tag and length.
    pub algorithm: &'a [u8],
    /// The bits of the public key.
    pub key: &'a [u8],
}

/// An entry of subjectAltName (RFC 5280 §4.2.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlternativeName<'a> {
    /// A host name (dNSName).
    Dns(&'a [u8]),
    /// An IP address (iPAddress).
    Ip(IpAddr),
    /// A name of another form.
    Other,
}

impl<'a> Certificate<'a> {
    /// Parses a certificate; `None` if it is malformed.
    #[must_use]
    pub fn parse(der: &'a [u8]) -> Option<Self> {
        let mut certificate = Reader(Reader(der).content_of(SEQUENCE)?);
        let signed = certificate.element()?;
        let mut tbs = Reader(signed.content_of(SEQUENCE)?);
        let is_version1 = tbs.content_if(VERSION).is_none();
        let serial = tbs.content_of(INTEGER)?;
        let signature_algorithm = tbs.content_of(SEQUENCE)?;
        let issuer = tbs.content_of(SEQUENCE)?;
        let mut validity = Reader(tbs.content_of(SEQUENCE)?);
        let (not_before, not_after) = (time(validity.element()?)?, time(validity.element()?)?);
        let subject = tbs.content_of(SEQUENCE)?;
        let subject_public_key_info = tbs.element()?;
        let public_key = PublicKey::of_element(subject_public_key_info)?;
        let mut extensions = Extensions::default();
        while !tbs.is_empty() {
            let element = tbs.element()?;
            if element.tag == EXTENSIONS {
                extensions = Extensions::parse(Reader(element.content).content_of(SEQUENCE)?)?;
            }
        }
        // Both signature algorithms of a certificate must be the same (RFC 5280 §4.1.1.2).
        if certificate.content_of(SEQUENCE)? != signature_algorithm {
            return None;
        }
        let signature = bits(certificate.content_of(BIT_STRING)?)?;
        Some(Self {
            is_version1,
            serial,
            issuer,
            subject,
            subject_public_key_info: subject_public_key_info.whole,
            public_key,
            not_before,
            not_after,
            tbs: signed.whole,
            signature_algorithm,
            signature,
            extensions,
        })
    }

    /// Whether issuer and subject have the same name.
    #[must_use]
    pub fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// The entries of subjectAltName; a malformed entry is `None`, and so are all after it. The result is `None` if the
    /// certificate does not have the extension.
    #[must_use]
    pub fn alternative_names(
        &self,
    ) -> Option<impl Iterator<Item = Option<AlternativeName<'a>>> + use<'a>> {
        let mut names = Reader(self.extensions.alternative_names?);
        Some(std::iter::from_fn(move || {
            if names.is_empty() {
                return None;
            }
            let element = names.element();
            if element.is_none() {
                names = Reader(&[]);
            }
            Some(element.map(alternative_name))
        }))
    }

    /// The identifier of the issuer's key (RFC 5280 §4.2.1.1).
    #[must_use]
    pub fn authority_key_id(&self) -> Option<&'a [u8]> {
        self.extensions.authority_key_id
    }

    /// The first URL of an OCSP responder in the certificate (RFC 5280 §4.2.2.1) that has the scheme `http`. Responders with
    /// `https` are passed over: responses are signed anyway, and asking over TLS would need the status of another certificate
    /// first.
    #[must_use]
    pub fn ocsp_responder(&self) -> Option<&'a str> {
        let mut descriptions = Reader(self.extensions.authority_info_access.unwrap_or_default());
        std::iter::from_fn(|| descriptions.content_of(SEQUENCE)).find_map(|description| {
            let mut description = Reader(description);
            if description.content_of(OBJECT_IDENTIFIER)? != OCSP_ACCESS {
                return None;
            }
            let url = std::str::from_utf8(description.content_of(URI)?).ok()?;
            url.starts_with("http://").then_some(url)
        })
    }

    /// Whether the owner of this certificate may sign OCSP responses in the name of the authority that has issued it (RFC 6960
    /// §4.2.2.2). A certificate with a critical extension that is unknown here is refused, as the extension may forbid it.
    #[must_use]
    pub fn may_sign_ocsp_responses(&self) -> bool {
        let mut purposes = Reader(self.extensions.extended_key_usage.unwrap_or_default());
        !self.extensions.has_unknown_critical
            && std::iter::from_fn(|| purposes.content_of(OBJECT_IDENTIFIER))
                .any(|purpose| purpose == OCSP_SIGNING)
    }

    /// Whether the certificate limits the names of certificates below it (RFC 5280 §4.2.1.10).
    #[must_use]
    pub fn has_name_constraints(&self) -> bool {
        self.extensions.name_constraints.is_some()
    }

    /// Whether the certificate may issue others if it is trusted. As in OpenSSL, a self-issued certificate of version 1 may,
    /// and one without BasicConstraints may if its key may sign certificates.
    #[must_use]
    pub fn may_be_root(&self) -> bool {
        match (
            self.may_sign_certificates(),
            self.extensions.basic_constraints,
        ) {
            (Some(false), _) => false,
            (_, Some(constraints)) => path_len(constraints).is_some(),
            (Some(true), None) => true,
            (None, None) => self.is_version1 && self.is_self_issued(),
        }
    }

    /// The keyCertSign bit of KeyUsage (RFC 5280 §4.2.1.3); `None` without that extension.
    fn may_sign_certificates(&self) -> Option<bool> {
        let usage = self.extensions.key_usage?;
        Some(first_byte(usage).is_some_and(|bits| bits & KEY_CERT_SIGN != 0))
    }

    /// Whether the certificate may issue certificates of servers, with `authorities_below` authorities between it and the
    /// server's, and has no extension that limits them in ways not checked here, such as name constraints.
    #[must_use]
    pub fn may_issue_plainly(&self, authorities_below: usize) -> bool {
        let extensions = &self.extensions;
        if self.is_version1 || self.has_name_constraints() || extensions.has_unknown_critical {
            return false;
        }
        let is_authority = extensions
            .basic_constraints
            .and_then(path_len)
            .is_some_and(|limit| limit.is_none_or(|limit| authorities_below <= limit));
        let may_sign = self.may_sign_certificates().unwrap_or(true);
        let is_for_servers = extensions.extended_key_usage.is_none_or(|purposes| {
            let mut purposes = Reader(purposes);
            std::iter::from_fn(|| purposes.content_of(OBJECT_IDENTIFIER))
                .any(|purpose| purpose == SERVER_AUTH || purpose == ANY_PURPOSE)
        });
        is_authority && may_sign && is_for_servers
    }

    /// The first common name of the subject, if it has one byte per character.
    #[must_use]
    pub fn common_name(&self) -> Option<&'a [u8]> {
        let mut subject = Reader(self.subject);
        while !subject.is_empty() {
            let mut set = Reader(subject.content_of(SET)?);
            while !set.is_empty() {
                let mut attribute = Reader(set.content_of(SEQUENCE)?);
                if attribute.content_of(OBJECT_IDENTIFIER)? == COMMON_NAME {
                    let value = attribute.element()?;
                    return TEXTS.contains(&value.tag).then_some(value.content);
                }
            }
        }
        None
    }
}

fn alternative_name(element: Element<'_>) -> AlternativeName<'_> {
    let bytes = element.content;
    match element.tag {
        DNS_NAME => AlternativeName::Dns(bytes),
        IP_ADDRESS => {
            let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
            let v6 = <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into());
            v4.or(v6)
                .map_or(AlternativeName::Other, AlternativeName::Ip)
        }
        _ => AlternativeName::Other,
    }
}

impl<'a> Extensions<'a> {
    /// Parses the extensions of a certificate; `None` if they are malformed.
    fn parse(extensions: &'a [u8]) -> Option<Self> {
        let mut found = Self::default();
        let mut authority_key = None;
        let mut extensions = Reader(extensions);
        while !extensions.is_empty() {
            let mut extension = Reader(extensions.content_of(SEQUENCE)?);
            let identifier = extension.content_of(OBJECT_IDENTIFIER)?;
            let is_critical = extension
                .content_if(BOOLEAN)
                .is_some_and(|value| value != [0]);
            let value = extension.content_of(OCTET_STRING)?;
            let (slot, tag) = match identifier {
                AUTHORITY_KEY_ID => (&mut authority_key, SEQUENCE),
                AUTHORITY_INFO_ACCESS => (&mut found.authority_info_access, SEQUENCE),
                SUBJECT_ALT_NAME => (&mut found.alternative_names, SEQUENCE),
                BASIC_CONSTRAINTS => (&mut found.basic_constraints, SEQUENCE),
                KEY_USAGE => (&mut found.key_usage, BIT_STRING),
                EXTENDED_KEY_USAGE => (&mut found.extended_key_usage, SEQUENCE),
                NAME_CONSTRAINTS => (&mut found.name_constraints, SEQUENCE),
                _ => {
                    found.has_unknown_critical |= is_critical;
                    continue;
                }
            };
            // A certificate has at most one extension of each kind (RFC 5280 §4.2).
            if slot.is_some() {
                return None;
            }
            *slot = Some(Reader(value).content_of(tag)?);
        }
        found.authority_key_id =
            authority_key.and_then(|content| Reader(content).content_if(KEY_IDENTIFIER));
        Some(found)
    }
}

/// Reads basicConstraints (RFC 5280 §4.2.1.9): the limit of authorities below this authority, or `Some(None)` if it has no limit;
/// `None` if the certificate is not that of an authority.
fn path_len(basic_constraints: &[u8]) -> Option<Option<usize>> {
    let mut reader = Reader(basic_constraints);
    if reader.content_if(BOOLEAN)? == [0] {
        return None;
    }
    if reader.is_empty() {
        return Some(None);
    }
    match reader.content_of(INTEGER)? {
        &[len @ 0..=0x7f] => Some(Some(usize::from(len))),
        _ => None,
    }
}

/// The bits of a DER BIT STRING that consists of whole bytes, given the string's content; `None` for any other number of bits.
pub(crate) fn bits(content: &[u8]) -> Option<&[u8]> {
    match content.split_first_chunk()? {
        (&[0], bits) => Some(bits),
        _ => None,
    }
}

/// The first byte of a BIT STRING of any length.
fn first_byte(content: &[u8]) -> Option<u8> {
    match content {
        [0..=7, first, ..] => Some(*first),
        _ => None,
    }
}

impl<'a> PublicKey<'a> {
    /// Parses a SubjectPublicKeyInfo; `None` if it is malformed.
    #[must_use]
    pub fn parse(der: &'a [u8]) -> Option<Self> {
        Self::of_element(Reader(der).element()?)
    }

    fn of_element(element: Element<'a>) -> Option<Self> {
        Self::parse_content(element.content_of(SEQUENCE)?)
    }

    /// Parses the content of a SubjectPublicKeyInfo, without tag and length; `None` if it is malformed.
    #[must_use]
    pub fn parse_content(content: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(content);
        Some(Self {
            content,
            algorithm: reader.content_of(SEQUENCE)?,
            key: bits(reader.content_of(BIT_STRING)?)?,
        })
    }

    /// The algorithm's identifier and parameters. For RSA, the parameters may be absent or NULL (RFC 4055 §1.2).
    fn algorithm_parts(&self) -> Option<(&'a [u8], &'a [u8])> {
        let mut algorithm = Reader(self.algorithm);
        let identifier = algorithm.content_of(OBJECT_IDENTIFIER)?;
        let parameters = match algorithm.0 {
            [0x05, 0x00] => &[],
            parameters => parameters,
        };
        Some((identifier, parameters))
    }
}

/// Compares two SubjectPublicKeyInfos: key, algorithm identifier, and parameters where they matter. A malformed one equals no
/// other.
#[must_use]
pub fn same_public_key(one: &[u8], other: &[u8]) -> bool {
    let (Some(one), Some(other)) = (PublicKey::parse(one), PublicKey::parse(other)) else {
        return false;
    };
    one.key == other.key
        && one.algorithm_parts().is_some()
        && one.algorithm_parts() == other.algorithm_parts()
}

/// Converts a Time of a certificate or OCSP response (RFC 5280 §4.1.2.5) to seconds since the Unix epoch.
pub(crate) fn time(element: Element<'_>) -> Option<i64> {
    let (year, rest) = match element.tag {
        UTC_TIME => {
            let (year, rest) = element.content.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2000 } else { 1900 } + year, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = element.content.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    if rest.len() != 11 || rest[10] != b'Z' {
        return None;
    }
    let mut parts = rest[..10].chunks(2).map(number);
    let mut part = || parts.next().flatten();
    let (month, day, hour, minute, second) = (part()?, part()?, part()?, part()?, part()?);
    if !(1..=12).contains(&month) {
        return None;
    }
    // The computation counts years from March, so that the leap day is the last day of a year.
    let year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    /// Number of days from the first of March of the year 0 to the Unix epoch.
    const EPOCH: i64 = 719_468;
    let days = 365 * year + leap_days + day_of_year - EPOCH;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        digits
            .iter()
            .fold(0, |number, digit| number * 10 + i64::from(digit - b'0')),
    )
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn named(common_names: &[&str], alternative_names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
        for name in common_names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = alternative_names;
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after = date_time_ymd(2050, 1, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    #[test]
    fn names_and_dates_are_found() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        let der = named(
            &["common.example"],
            vec![
                dns("www.example.com"),
                SanType::IpAddress(v4),
                SanType::Rfc822Name("a@b.test".try_into().unwrap()),
                SanType::IpAddress(v6),
            ],
        );
        let certificate = Certificate::parse(&der).unwrap();
        assert!(certificate.is_self_issued() && !certificate.is_version1);
        assert_eq!(certificate.common_name(), Some(&b"common.example"[..]));
        let names: Vec<_> = certificate.alternative_names().unwrap().collect();
        assert_eq!(
            names,
            [
                Some(AlternativeName::Dns(b"www.example.com")),
                Some(AlternativeName::Ip(v4)),
                Some(AlternativeName::Other),
                Some(AlternativeName::Ip(v6)),
            ]
        );
        assert_eq!(certificate.not_before, 1_735_689_600);
        assert_eq!(certificate.not_after, 2_524_608_000);
        let der = named(&[], Vec::new());
        let certificate = Certificate::parse(&der).unwrap();
        assert_eq!(certificate.common_name(), None);
        assert!(certificate.alternative_names().is_none());
    }

    #[test]
    fn alternative_names_end_where_they_are_malformed() {
        let mut der = named(&[], vec![dns("a.test"), dns("b.test")]);
        let at = der.windows(6).position(|name| name == b"b.test").unwrap();
        der[at - 1] = 7;
        let certificate = Certificate::parse(&der).unwrap();
        let names: Vec<_> = certificate.alternative_names().unwrap().collect();
        assert_eq!(names, [Some(AlternativeName::Dns(b"a.test")), None]);
    }

    #[test]
    fn version_1_has_no_version_and_no_extensions() {
        let name = [0x30, 0];
        let time = *b"\x17\x0d250101000000Z";
        let validity = [&[0x30, 30][..], &time, &time].concat();
        let key = [0x30, 9, 0x30, 3, 6, 1, 9, 3, 2, 0, 7];
        let tbs = [&[2, 1, 1, 0x30, 0][..], &name, &validity, &name, &key].concat();
        // The fields signatureAlgorithm and signatureValue.
        let signature = [0x30, 0, 3, 2, 0, 9];
        let wrap = |tag: u8, content: &[u8]| {
            let len = u8::try_from(content.len()).unwrap();
            [&[tag, len][..], content].concat()
        };
        let der = wrap(0x30, &[&wrap(0x30, &tbs)[..], &signature].concat());
        let certificate = Certificate::parse(&der).unwrap();
        assert!(certificate.is_version1);
        assert_eq!(certificate.subject_public_key_info, key);
        assert_eq!(certificate.tbs, wrap(0x30, &tbs));
        assert_eq!(certificate.signature, [9]);
        let version2 = [&[0xa0, 3, 2, 1, 1][..], &tbs].concat();
        let der = wrap(0x30, &[&wrap(0x30, &version2)[..], &signature].concat());
        assert!(!Certificate::parse(&der).unwrap().is_version1);
        // A certificate whose two signature algorithms differ is refused (RFC 5280 §4.1.1.2).
        let other = [0x30, 2, 5, 0, 3, 2, 0, 9];
        let der = wrap(0x30, &[&wrap(0x30, &tbs)[..], &other].concat());
        assert!(Certificate::parse(&der).is_none());
    }

    #[test]
    fn only_authorities_that_say_nothing_else_issue_plainly() {
        use rcgen::{
            BasicConstraints, CustomExtension, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
            KeyUsagePurpose, NameConstraints,
        };
        let issues = |below: usize, tune: &dyn Fn(&mut CertificateParams)| {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            tune(&mut params);
            let key = KeyPair::generate().unwrap();
            let der = params.self_signed(&key).unwrap().der().to_vec();
            Certificate::parse(&der).unwrap().may_issue_plainly(below)
        };
        assert!(issues(7, &|_| {}));
        assert!(issues(1, &|params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ClientAuth,
                ExtendedKeyUsagePurpose::ServerAuth,
            ];
        }));
        assert!(!issues(2, &|params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
        }));
        assert!(!issues(0, &|params| params.is_ca = IsCa::NoCa));
        assert!(!issues(0, &|params| params.is_ca = IsCa::ExplicitNoCa));
        assert!(!issues(0, &|params| {
            params.key_usages = vec![KeyUsagePurpose::CrlSign];
        }));
        assert!(!issues(0, &|params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        }));
        assert!(!issues(0, &|params| {
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees: vec![GeneralSubtree::DnsName("a.test".to_owned())],
                excluded_subtrees: Vec::new(),
            });
        }));
        assert!(!issues(0, &|params| {
            let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
            extension.set_criticality(true);
            params.custom_extensions = vec![extension];
        }));
    }

    #[test]
    fn certificates_of_servers_are_no_roots() {
        use rcgen::{BasicConstraints, IsCa, KeyUsagePurpose};
        let is_root = |is_ca: IsCa, usages: &[KeyUsagePurpose]| {
            let mut params = CertificateParams::default();
            params.is_ca = is_ca;
            params.key_usages = usages.to_vec();
            let key = KeyPair::generate().unwrap();
            let der = params.self_signed(&key).unwrap().der().to_vec();
            Certificate::parse(&der).unwrap().may_be_root()
        };
        let any = || IsCa::Ca(BasicConstraints::Unconstrained);
        assert!(is_root(any(), &[]));
        assert!(is_root(any(), &[KeyUsagePurpose::KeyCertSign]));
        assert!(is_root(IsCa::NoCa, &[KeyUsagePurpose::KeyCertSign]));
        assert!(!is_root(any(), &[KeyUsagePurpose::CrlSign]));
        assert!(!is_root(IsCa::NoCa, &[]));
        assert!(!is_root(IsCa::ExplicitNoCa, &[]));
        assert!(!is_root(
            IsCa::ExplicitNoCa,
            &[KeyUsagePurpose::KeyCertSign]
        ));
        assert!(!is_root(IsCa::NoCa, &[KeyUsagePurpose::DigitalSignature]));
    }

    #[test]
    fn absent_parameters_equal_null_ones() {
        let info = |parameters: &[u8]| {
            let algorithm = [&[6, 1, 9][..], parameters].concat();
            let len = u8::try_from(algorithm.len()).unwrap();
            let algorithm = [&[0x30, len][..], &algorithm].concat();
            let content = [&algorithm[..], &[3, 2, 0, 7]].concat();
            [&[0x30, u8::try_from(content.len()).unwrap()][..], &content].concat()
        };
        assert!(same_public_key(&info(&[]), &info(&[5, 0])));
        assert!(same_public_key(&info(&[6, 1, 1]), &info(&[6, 1, 1])));
        assert!(!same_public_key(&info(&[6, 1, 1]), &info(&[6, 1, 2])));
        assert!(!same_public_key(&info(&[]), &info(&[6, 1, 2])));
        assert!(!same_public_key(&[], &[]));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let cases: &[(u8, &str, Option<i64>)] = &[
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229123456Z", Some(951_827_696)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, "20250101000000Z", Some(1_735_689_600)),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "700001000000Z", None),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "70010100000aZ", None),
            (UTC_TIME, "7001010000000", None),
            (GENERALIZED_TIME, "700101000000Z", None),
            (OCTET_STRING, "700101000000Z", None),
        ];
        for (tag, text, want) in cases {
            let element = Element {
                tag: *tag,
                content: text.as_bytes(),
                whole: &[],
            };
            assert_eq!(time(element), *want, "{text}");
        }
    }

    #[test]
    fn bytes_cut_or_changed_never_panic() {
        let der = named(&["common.example"], vec![dns("www.example.com")]);
        for len in 0..der.len() {
            assert!(Certificate::parse(&der[..len]).is_none(), "{len}");
        }
        for at in 0..der.len() {
            for byte in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x83, 0xff] {
                let mut der = der.clone();
                der[at] = byte;
                if let Some(certificate) = Certificate::parse(&der) {
                    let names = certificate.alternative_names();
                    let _ = names.map(Iterator::count);
                    let _ = certificate.common_name();
                }
            }
        }
    }
}
