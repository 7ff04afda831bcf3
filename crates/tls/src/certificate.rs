//! The fields of an X.509 certificate (RFC 5280 §4.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::der::{Element, Reader};

const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Constructed, context-specific, of a certificate: numbers 0 and 3.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Primitive, context-specific, of a GeneralName: numbers 2 and 7.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// UTF8String, PrintableString, TeletexString, IA5String: texts of one octet per character, as far as host names go.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A certificate in parts as they are encoded.
#[derive(Clone, Debug)]
pub struct Certificate<'a> {
    /// Whether it is of version 1, which has no extensions.
    pub is_version1: bool,
    /// The name of the issuer: the content of an RDNSequence.
    pub issuer: &'a [u8],
    /// The name of the subject: the content of an RDNSequence.
    pub subject: &'a [u8],
    /// The key that the certificate speaks for.
    pub public_key: PublicKey<'a>,
    /// First second of its validity, from the Unix epoch.
    pub not_before: i64,
    /// Last second of its validity, from the Unix epoch.
    pub not_after: i64,
    /// The GeneralNames of subjectAltName.
    alternative_names: Option<&'a [u8]>,
}

/// A SubjectPublicKeyInfo.
#[derive(Clone, Copy, Debug)]
pub struct PublicKey<'a> {
    /// As an element.
    pub whole: &'a [u8],
    /// Without tag and length.
    pub content: &'a [u8],
    /// The AlgorithmIdentifier without tag and length.
    pub algorithm: &'a [u8],
    /// The bits of the key.
    pub key: &'a [u8],
}

/// An entry of subjectAltName (RFC 5280 §4.2.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlternativeName<'a> {
    /// dNSName
    Dns(&'a [u8]),
    /// iPAddress
    Ip(IpAddr),
    /// Any other form.
    Other,
}

impl<'a> Certificate<'a> {
    /// Reads a certificate; `None` if it is malformed.
    #[must_use]
    pub fn parse(der: &'a [u8]) -> Option<Self> {
        let mut certificate = Reader(Reader(der).content_of(SEQUENCE)?);
        let mut tbs = Reader(certificate.content_of(SEQUENCE)?);
        let is_version1 = tbs.content_if(VERSION).is_none();
        // serialNumber, signature
        tbs.element()?;
        tbs.element()?;
        let issuer = tbs.content_of(SEQUENCE)?;
        let mut validity = Reader(tbs.content_of(SEQUENCE)?);
        let (not_before, not_after) = (time(validity.element()?)?, time(validity.element()?)?);
        let subject = tbs.content_of(SEQUENCE)?;
        let public_key = PublicKey::of_element(tbs.element()?)?;
        let mut alternative_names = None;
        while !tbs.is_empty() {
            let element = tbs.element()?;
            if element.tag == EXTENSIONS {
                let extensions = Reader(element.content).content_of(SEQUENCE)?;
                alternative_names = find_alternative_names(extensions)?;
            }
        }
        Some(Self {
            is_version1,
            issuer,
            subject,
            public_key,
            not_before,
            not_after,
            alternative_names,
        })
    }

    /// Whether issuer and subject have the same name.
    #[must_use]
    pub fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// The entries of subjectAltName, each `None` from where they are malformed on; `None` if there is no such extension.
    #[must_use]
    pub fn alternative_names(
        &self,
    ) -> Option<impl Iterator<Item = Option<AlternativeName<'a>>> + use<'a>> {
        let mut names = Reader(self.alternative_names?);
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

    /// The first common name of the subject, if it is a text of one octet per character.
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
    let octets = element.content;
    match element.tag {
        DNS_NAME => AlternativeName::Dns(octets),
        IP_ADDRESS => {
            let v4 = <[u8; 4]>::try_from(octets).map(|octets| Ipv4Addr::from(octets).into());
            let v6 = <[u8; 16]>::try_from(octets).map(|octets| Ipv6Addr::from(octets).into());
            v4.or(v6)
                .map_or(AlternativeName::Other, AlternativeName::Ip)
        }
        _ => AlternativeName::Other,
    }
}

/// The content of the extension; `None` if the extensions are malformed.
fn find_alternative_names(extensions: &[u8]) -> Option<Option<&[u8]>> {
    let mut extensions = Reader(extensions);
    while !extensions.is_empty() {
        let mut extension = Reader(extensions.content_of(SEQUENCE)?);
        let is_wanted = extension.content_of(OBJECT_IDENTIFIER)? == SUBJECT_ALT_NAME;
        // Whether it is critical may stand between.
        let mut value = extension.element()?;
        if value.tag != OCTET_STRING {
            value = extension.element()?;
        }
        if is_wanted {
            let names = value.content_of(OCTET_STRING)?;
            return Some(Some(Reader(names).content_of(SEQUENCE)?));
        }
    }
    Some(None)
}

impl<'a> PublicKey<'a> {
    /// Reads a SubjectPublicKeyInfo; `None` if it is malformed.
    #[must_use]
    pub fn parse(der: &'a [u8]) -> Option<Self> {
        Self::of_element(Reader(der).element()?)
    }

    fn of_element(element: Element<'a>) -> Option<Self> {
        let content = element.content_of(SEQUENCE)?;
        let mut reader = Reader(content);
        let algorithm = reader.content_of(SEQUENCE)?;
        let (&[0], key) = reader.content_of(BIT_STRING)?.split_first_chunk()? else {
            return None;
        };
        Some(Self {
            whole: element.whole,
            content,
            algorithm,
            key,
        })
    }

    /// The algorithm's identifier and its parameters. Those may be left out or NULL for RSA (RFC 4055 §1.2).
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

/// Compares two SubjectPublicKeyInfos: the key, and the algorithm by its identifier and, where that does not say it all, by
/// its parameters. Malformed ones equal nothing.
#[must_use]
pub fn same_public_key(one: &[u8], other: &[u8]) -> bool {
    let (Some(one), Some(other)) = (PublicKey::parse(one), PublicKey::parse(other)) else {
        return false;
    };
    one.key == other.key
        && one.algorithm_parts().is_some()
        && one.algorithm_parts() == other.algorithm_parts()
}

/// A Time (RFC 5280 §4.1.2.5) as seconds since the Unix epoch.
fn time(element: Element<'_>) -> Option<i64> {
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
    // Years that begin in March end with the day that is sometimes there.
    let year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    /// Of the first of March of the year 0 to the epoch.
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
        let wrap = |tag: u8, content: &[u8]| {
            let len = u8::try_from(content.len()).unwrap();
            [&[tag, len][..], content].concat()
        };
        let der = wrap(0x30, &wrap(0x30, &tbs));
        let certificate = Certificate::parse(&der).unwrap();
        assert!(certificate.is_version1);
        assert_eq!(certificate.public_key.whole, key);
        let version2 = [&[0xa0, 3, 2, 1, 1][..], &tbs].concat();
        let der = wrap(0x30, &wrap(0x30, &version2));
        assert!(!Certificate::parse(&der).unwrap().is_version1);
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
    fn octets_cut_or_changed_never_panic() {
        let der = named(&["common.example"], vec![dns("www.example.com")]);
        for len in 0..der.len() {
            assert!(Certificate::parse(&der[..len]).is_none(), "{len}");
        }
        for at in 0..der.len() {
            for octet in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x83, 0xff] {
                let mut der = der.clone();
                der[at] = octet;
                if let Some(certificate) = Certificate::parse(&der) {
                    let names = certificate.alternative_names();
                    let _ = names.map(Iterator::count);
                    let _ = certificate.common_name();
                }
            }
        }
    }
}
