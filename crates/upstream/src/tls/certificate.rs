//! What is read of a certificate beside the chain that rustls checks: names as H2O takes them, and what tells one failure from
//! another. rustls' own parser refuses version 1 certificates, which small private authorities make, and knows no common names.

use std::net::IpAddr;

use rustls::pki_types::{ServerName, UnixTime};

/// No certificate can be used at all that looks like this.
pub(super) const INVALID: &str = "invalid certificate";
pub(super) const MISMATCH: &str = "certificate name mismatch";
pub(super) const EXPIRED: &str = "certificate has expired";
pub(super) const NOT_YET_VALID: &str = "certificate is not yet valid";

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

/// A certificate (RFC 5280 §4.1), in parts as they are encoded.
pub(super) struct Certificate<'a> {
    pub(super) is_version1: bool,
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
    pub(super) public_key: PublicKey<'a>,
    /// Seconds since the Unix epoch, both inclusive.
    validity: (i64, i64),
    /// The GeneralNames of subjectAltName.
    alternative_names: Option<&'a [u8]>,
}

/// A SubjectPublicKeyInfo.
pub(super) struct PublicKey<'a> {
    /// As an element.
    pub(super) whole: &'a [u8],
    /// Without tag and length.
    pub(super) content: &'a [u8],
    /// The AlgorithmIdentifier without tag and length.
    pub(super) algorithm: &'a [u8],
    pub(super) key: &'a [u8],
}

impl<'a> Certificate<'a> {
    pub(super) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut certificate = Reader(Reader(der).content_of(SEQUENCE)?);
        let mut tbs = Reader(certificate.content_of(SEQUENCE)?);
        let is_version1 = tbs.content_if(VERSION).is_none();
        // serialNumber, signature
        tbs.element()?;
        tbs.element()?;
        let issuer = tbs.content_of(SEQUENCE)?;
        let mut validity = Reader(tbs.content_of(SEQUENCE)?);
        let validity = (time(validity.element()?)?, time(validity.element()?)?);
        let subject = tbs.content_of(SEQUENCE)?;
        let public_key = PublicKey::parse(tbs.element()?)?;
        let mut alternative_names = None;
        while !tbs.0.is_empty() {
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
            validity,
            alternative_names,
        })
    }

    pub(super) fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// # Errors
    /// The text for the client.
    pub(super) fn check_time(&self, now: UnixTime) -> Result<(), &'static str> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < self.validity.0 {
            return Err(NOT_YET_VALID);
        }
        if now > self.validity.1 {
            return Err(EXPIRED);
        }
        Ok(())
    }

    /// Looks for `name` among the alternative names, or if there is no such extension compares it with the common name (H2O
    /// compatibility). Unlike H2O, addresses are also found among the alternative names that are addresses.
    ///
    /// # Errors
    /// The text for the client.
    pub(super) fn check_name(&self, name: &ServerName<'_>) -> Result<(), &'static str> {
        let text = name.to_str();
        let is_for = match self.alternative_names {
            Some(names) => find_name(names, name, &text)?,
            None => is_name_for(common_name(self.subject).ok_or(INVALID)?, name, &text)?,
        };
        if is_for { Ok(()) } else { Err(MISMATCH) }
    }
}

impl<'a> PublicKey<'a> {
    fn parse(element: Element<'a>) -> Option<Self> {
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
}

/// The content of the extension; `None` if the extensions are malformed.
fn find_alternative_names(extensions: &[u8]) -> Option<Option<&[u8]>> {
    let mut extensions = Reader(extensions);
    while !extensions.0.is_empty() {
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

fn find_name(names: &[u8], name: &ServerName<'_>, text: &str) -> Result<bool, &'static str> {
    let mut names = Reader(names);
    while !names.0.is_empty() {
        let found = names.element().ok_or(INVALID)?;
        let is_for = match found.tag {
            DNS_NAME => is_name_for(found.content, name, text)?,
            IP_ADDRESS => is_address(found.content, name),
            _ => false,
        };
        if is_for {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_address(octets: &[u8], name: &ServerName<'_>) -> bool {
    let ServerName::IpAddress(address) = name else {
        return false;
    };
    match IpAddr::from(*address) {
        IpAddr::V4(address) => address.octets() == octets,
        IpAddr::V6(address) => address.octets() == octets,
    }
}

/// The first one of a subject.
fn common_name(subject: &[u8]) -> Option<&[u8]> {
    let mut subject = Reader(subject);
    while !subject.0.is_empty() {
        let mut set = Reader(subject.content_of(SET)?);
        while !set.0.is_empty() {
            let mut attribute = Reader(set.content_of(SEQUENCE)?);
            if attribute.content_of(OBJECT_IDENTIFIER)? == COMMON_NAME {
                let value = attribute.element()?;
                return TEXTS.contains(&value.tag).then_some(value.content);
            }
        }
    }
    None
}

/// Compares a name of a certificate with the one of the backend, `text`. `*.` stands for one label, and not within an address.
fn is_name_for(presented: &[u8], name: &ServerName<'_>, text: &str) -> Result<bool, &'static str> {
    // "www.example.com\0.example.org" is a name that an authority may have confirmed, and no host's.
    if presented.contains(&0) {
        return Err(INVALID);
    }
    let text = text.as_bytes();
    let text = text.strip_suffix(b".").unwrap_or(text);
    if let Some(domain) = presented.strip_prefix(b"*.")
        && matches!(name, ServerName::DnsName(_))
    {
        let label_len = text.iter().position(|octet| *octet == b'.').unwrap_or(0);
        return Ok(label_len > 0 && text[label_len + 1..].eq_ignore_ascii_case(domain));
    }
    Ok(text.eq_ignore_ascii_case(presented))
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

/// One element of DER: its tag and content within its whole encoding.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    pub(super) whole: &'a [u8],
}

impl<'a> Element<'a> {
    fn content_of(self, tag: u8) -> Option<&'a [u8]> {
        (self.tag == tag).then_some(self.content)
    }
}

/// Takes elements off the front of what is left.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Tags above 30 and lengths of more than three octets do not occur.
    pub(super) fn element(&mut self) -> Option<Element<'a>> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (len, header_len) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81..=0x83 => {
                let octets = usize::from(first & 0x7f);
                let octets_of_len = rest.get(..octets)?.iter();
                let len = octets_of_len.fold(0, |len, octet| len << 8 | usize::from(*octet));
                (len, 2 + octets)
            }
            _ => return None,
        };
        let (whole, rest) = self.0.split_at_checked(header_len + len)?;
        self.0 = rest;
        Some(Element {
            tag,
            content: &whole[header_len..],
            whole,
        })
    }

    fn content_of(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.element()?.content_of(tag)
    }

    /// The content of the next element if it has this tag; otherwise it stays.
    fn content_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() != Some(&tag) {
            return None;
        }
        self.content_of(tag)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType, date_time_ymd,
    };

    use super::*;

    fn named(common_names: &[&str], alternative_names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
        for name in common_names {
            let value = DnValue::Utf8String((*name).to_string());
            params.distinguished_name.push(DnType::CommonName, value);
        }
        params.subject_alt_names = alternative_names;
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn check(der: &[u8], name: &str) -> Result<(), &'static str> {
        let name = ServerName::try_from(name).unwrap();
        Certificate::parse(der).unwrap().check_name(&name)
    }

    #[test]
    fn alternative_names_match_as_they_are_or_by_one_label() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let der = named(
            &["common.example"],
            vec![
                dns("www.Example.com"),
                dns("*.wild.example"),
                SanType::IpAddress(address),
                dns("192.0.2.2"),
                dns("*.0.2.3"),
            ],
        );
        for name in [
            "www.example.com",
            "WWW.EXAMPLE.COM",
            "www.example.com.",
            "a.wild.example",
            "A.WILD.example",
            "192.0.2.1",
            "192.0.2.2",
        ] {
            assert_eq!(check(&der, name), Ok(()), "{name}");
        }
        for name in [
            "example.com",
            "a.www.example.com",
            "wild.example",
            "a.b.wild.example",
            "common.example",
            "192.0.2.3",
            "2001:db8::1",
            "wild",
        ] {
            assert_eq!(check(&der, name), Err(MISMATCH), "{name}");
        }
    }

    #[test]
    fn the_common_name_counts_without_alternative_names() {
        let der = named(&["*.example.com"], Vec::new());
        assert_eq!(check(&der, "www.example.com"), Ok(()));
        assert_eq!(check(&der, "example.com"), Err(MISMATCH));
        let der = named(&["192.0.2.1"], Vec::new());
        assert_eq!(check(&der, "192.0.2.1"), Ok(()));
        assert_eq!(check(&named(&[], Vec::new()), "name"), Err(INVALID));
    }

    #[test]
    fn names_with_a_nul_are_no_names() {
        let der = named(&["www.example.com\0.example.org"], Vec::new());
        assert_eq!(check(&der, "www.example.com"), Err(INVALID));
        // The same length, so that the certificate stays well-formed.
        let mut der = named(&[], vec![dns("www.example.com-.example.org")]);
        let at = der
            .windows(5)
            .position(|window| window == b".com-")
            .unwrap();
        der[at + 4] = 0;
        assert_eq!(check(&der, "www.example.com"), Err(INVALID));
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
    fn validity_includes_its_ends() {
        let mut params = CertificateParams::new(["name".to_string()]).unwrap();
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after = date_time_ymd(2050, 1, 1);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        let certificate = Certificate::parse(&der).unwrap();
        assert!(certificate.is_self_issued() && !certificate.is_version1);
        for (now, want) in [
            (1_735_689_599, Err(NOT_YET_VALID)),
            (1_735_689_600, Ok(())),
            (2_524_608_000, Ok(())),
            (2_524_608_001, Err(EXPIRED)),
        ] {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
            assert_eq!(certificate.check_time(now), want);
        }
    }

    #[test]
    fn octets_cut_or_changed_never_panic() {
        let der = named(&["common.example"], vec![dns("www.example.com")]);
        let name = ServerName::try_from("www.example.com").unwrap();
        for len in 0..der.len() {
            assert!(Certificate::parse(&der[..len]).is_none(), "{len}");
        }
        for at in 0..der.len() {
            for octet in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x83, 0xff] {
                let mut der = der.clone();
                der[at] = octet;
                if let Some(certificate) = Certificate::parse(&der) {
                    let _ = certificate.check_name(&name);
                }
            }
        }
    }
}
