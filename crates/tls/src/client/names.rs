//! Checks whether a certificate is for the backend's host, by H2O's rules for names.

use std::net::IpAddr;

use crate::{AlternativeName, Certificate};
use rustls::pki_types::ServerName;

use super::verifier::INVALID;

pub(super) const MISMATCH: &str = "certificate name mismatch";

/// Whether the common name of a certificate may be compared with the backend's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommonName {
    /// The common name is compared with the host if the certificate has no alternative names.
    Counts,
    Ignored,
}

/// Searches the alternative names of the certificate for `name`, or compares `name` with the common name if the certificate has no
/// such extension and the common name may be used (H2O compatibility: H2O does both). Unlike H2O, addresses are also compared with
/// alternative names that are addresses.
///
/// # Errors
/// The message for the client and the log, if the certificate is for another host.
pub(super) fn check(
    certificate: &Certificate<'_>,
    name: &ServerName<'_>,
    use_of_common_name: CommonName,
) -> Result<(), &'static str> {
    let text = name.to_str();
    let Some(mut names) = certificate.alternative_names() else {
        let common_name = certificate.common_name().ok_or(INVALID)?;
        if use_of_common_name == CommonName::Ignored {
            return Err(MISMATCH);
        }
        return is_name_for(common_name, name, &text)?
            .then_some(())
            .ok_or(MISMATCH);
    };
    loop {
        let is_for = match names.next() {
            None => return Err(MISMATCH),
            Some(None) => return Err(INVALID),
            Some(Some(AlternativeName::Dns(presented))) => is_name_for(presented, name, &text)?,
            Some(Some(AlternativeName::Ip(address))) => {
                matches!(name, ServerName::IpAddress(wanted) if IpAddr::from(*wanted) == address)
            }
            Some(Some(AlternativeName::Other)) => false,
        };
        if is_for {
            return Ok(());
        }
    }
}

/// Whether the certificate's name `presented` is for the backend's host, `text`. `*.` stands for one label, but not in an address.
fn is_name_for(presented: &[u8], name: &ServerName<'_>, text: &str) -> Result<bool, &'static str> {
    // Refuse names with a zero byte, such as "www.example.com\0.example.org": an authority may have signed one for the
    // owner of example.org.
    if presented.contains(&0) {
        return Err(INVALID);
    }
    let text = text.as_bytes();
    let text = text.strip_suffix(b".").unwrap_or(text);
    if let Some(domain) = presented.strip_prefix(b"*.")
        && matches!(name, ServerName::DnsName(_))
    {
        let label_len = text.iter().position(|byte| *byte == b'.').unwrap_or(0);
        return Ok(label_len > 0 && text[label_len + 1..].eq_ignore_ascii_case(domain));
    }
    Ok(text.eq_ignore_ascii_case(presented))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};

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
        super::check(&Certificate::parse(der).unwrap(), &name, CommonName::Counts)
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
        // The test writes a zero byte in the place of the `-`: the name keeps its length, so the certificate stays well-formed.
        let mut der = named(&[], vec![dns("www.example.com-.example.org")]);
        let at = der
            .windows(5)
            .position(|window| window == b".com-")
            .unwrap();
        der[at + 4] = 0;
        assert_eq!(check(&der, "www.example.com"), Err(INVALID));
    }

    #[test]
    fn bytes_cut_or_changed_never_panic() {
        let der = named(&["common.example"], vec![dns("www.example.com")]);
        let name = ServerName::try_from("www.example.com").unwrap();
        for len in 0..der.len() {
            assert!(Certificate::parse(&der[..len]).is_none(), "{len}");
        }
        for at in 0..der.len() {
            for byte in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x83, 0xff] {
                let mut der = der.clone();
                der[at] = byte;
                if let Some(certificate) = Certificate::parse(&der) {
                    let _ = super::check(&certificate, &name, CommonName::Counts);
                }
            }
        }
    }
}
