//! The certificates that listeners present, for warnings and for the status page.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use crate::HostName;

/// What is known of a certificate that a listener presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Its `certificate-file`.
    pub file: Box<str>,
    /// Where the configuration names the file: `FILE:LINE`.
    pub place: Box<str>,
    /// The listeners that present it, as messages name them: `ANY:443`, `127.0.0.1:8443`.
    pub listeners: Vec<Arc<str>>,
    /// The host entries it is presented for. One of the global level is presented for all hosts of its listener that have
    /// none of their own.
    pub hosts: Vec<HostName>,
    /// The names and addresses it is for: its alternative names, or without any its common name.
    pub names: Vec<Box<str>>,
    /// First second of its validity, from the Unix epoch.
    pub not_before: i64,
    /// Last second of its validity, from the Unix epoch.
    pub not_after: i64,
}

impl CertificateInfo {
    /// Whole days until it expires, counted from `now` in seconds since the Unix epoch; negative once it has.
    #[must_use]
    pub fn days_left(&self, now: i64) -> i64 {
        (self.not_after - now).div_euclid(86_400)
    }

    /// Whether a client that asks for `host`, a name or an address without brackets, finds it among the names (RFC 6125
    /// §6.4.3: `*.` stands for one label).
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

/// The certificates that are in use; clones share the list. It is in [`crate::Site::shared`], and renewed when certificates
/// are loaded anew while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<RwLock<Arc<[CertificateInfo]>>>);

impl Certificates {
    /// In order of the configuration, each file once.
    #[must_use]
    pub fn list(&self) -> Arc<[CertificateInfo]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes `list` for the certificates in use.
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
