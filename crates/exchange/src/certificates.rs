//! The certificates that listeners present: for warnings and the status page.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use crate::HostName;

/// Facts about a certificate that a listener presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The path of the certificate: its `certificate-file`.
    pub file: Box<str>,
    /// Position of the certificate's directive in the configuration: `FILE:LINE`.
    pub place: Box<str>,
    /// Labels of the listeners that present the certificate: `ANY:443`, `127.0.0.1:8443`.
    pub listeners: Vec<Arc<str>>,
    /// The hosts for which the certificate is presented. A global certificate is presented for those hosts of its
    /// listener that have no certificate of their own.
    pub hosts: Vec<HostName>,
    /// The names and addresses in the certificate: its subject alternative names or, without any, its common name.
    pub names: Vec<Box<str>>,
    /// Whether the server obtains the certificate by ACME, for names that the configuration lists.
    pub is_obtained: bool,
    /// Whether the certificate is one that the server has signed itself, until the first one is obtained by ACME.
    pub is_stand_in: bool,
    /// Begin of the certificate's validity, in seconds since the Unix epoch.
    pub not_before: i64,
    /// End of the certificate's validity, in seconds since the Unix epoch.
    pub not_after: i64,
}

impl CertificateInfo {
    /// Whole days from `now`, in seconds since the Unix epoch, until the certificate expires; negative if it has
    /// expired.
    #[must_use]
    pub fn days_left(&self, now: i64) -> i64 {
        (self.not_after - now).div_euclid(86_400)
    }

    /// Whether the certificate is valid for `host`, a name or an address without brackets (RFC 6125 §6.4.3: `*.` stands
    /// for one label).
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        if let Ok(address) = host.parse::<IpAddr>() {
            let mut names = self.names.iter();
            return names.any(|name| name.parse() == Ok(address));
        }
        let domain = host.split_once('.').map(|(_, domain)| domain);
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(wild) => domain.is_some_and(|domain| domain.eq_ignore_ascii_case(wild)),
            None => name.eq_ignore_ascii_case(host),
        })
    }
}

/// The certificates in use; clones share the list. Stored in [`crate::Site::shared`], and updated when certificates are
/// reloaded.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<RwLock<Arc<[CertificateInfo]>>>);

impl Certificates {
    /// The list of certificates: each file once, in the order of the configuration.
    #[must_use]
    pub fn list(&self) -> Arc<[CertificateInfo]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the list of certificates that all clones share.
    pub fn set(&self, list: Arc<[CertificateInfo]>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = list;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(names: &[&str]) -> CertificateInfo {
        CertificateInfo {
            file: "f".into(),
            place: "h2o.conf:1".into(),
            listeners: Vec::new(),
            hosts: Vec::new(),
            names: names.iter().map(|name| (*name).into()).collect(),
            is_obtained: false,
            is_stand_in: false,
            not_before: 0,
            not_after: 86_400 * 10,
        }
    }

    #[test]
    fn the_day_of_the_end_is_day_zero() {
        let info = info(&[]);
        for (now, days) in [(0, 10), (1, 9), (86_400 * 9 + 1, 0), (86_400 * 10, 0)] {
            assert_eq!(info.days_left(now), days, "{now}");
        }
        assert_eq!(info.days_left(86_400 * 10 + 1), -1);
    }

    #[test]
    fn wildcards_stand_for_one_label() {
        let info = info(&["a.test", "*.Wild.test", "192.0.2.1", "2001:db8::1"]);
        for host in [
            "A.test",
            "a.test.",
            "b.wild.test",
            "192.0.2.1",
            "2001:db8:0::1",
        ] {
            assert!(info.is_for(host), "{host}");
        }
        for host in [
            "b.test",
            "wild.test",
            "a.b.wild.test",
            "192.0.2.2",
            "x.a.test",
        ] {
            assert!(!info.is_for(host), "{host}");
        }
    }
}
