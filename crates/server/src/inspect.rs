//! Finds likely mistakes in a valid configuration. They are warnings and not errors: a configuration that H2O accepts
//! must start.

use h2o_config::Error;
use h2o_exchange::{
    CertificateInfo, Certificates, Clock, HostName, PathCheck, PathChecks, Resources, RunningUser,
};

use crate::site::listen::Listeners;
use crate::site::load::LoadedConfig;
use crate::sockets::bind::probe;

/// A certificate is reported when it has fewer days left than this. A certificate that is valid for less than four times as long is
/// reported in the last quarter of its life, since certificates with a short life are renewed often.
const SOON_DAYS: i64 = 14;

const DAY: i64 = 86_400;

impl LoadedConfig {
    /// Checks, with the rights of the user that starts the server, the files that the server opens at its start: directories of logs,
    /// certificates.
    #[must_use]
    pub fn inspect_as_starting_user(&self) -> Vec<String> {
        let checks = self.site.shared.get::<PathChecks>();
        let paths = checks
            .0
            .iter()
            .filter_map(PathCheck::check_as_starting_user);
        let mut warnings: Vec<String> = paths.map(|error| error.to_warning()).collect();
        warnings.extend(self.inspect_certificates());
        warnings
    }

    /// Checks whether the certificates are valid now, and for the names of their hosts.
    #[must_use]
    pub fn inspect_certificates(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let now = i64::try_from(Clock::default().unix().as_secs()).unwrap_or(i64::MAX);
        let certificates = self.site.shared.get::<Certificates>().list();
        for certificate in &*certificates {
            let amiss = validity(certificate, now)
                .into_iter()
                .chain(names(certificate));
            warnings.extend(amiss.map(|text| {
                let place = &certificate.place;
                format!("[warning] [{place}] in command listen, {text}")
            }));
        }
        warnings
    }

    /// Checks whether the configured ports can be bound. Called only for `-t` (test of the configuration): a start fails anyway if
    /// they cannot.
    #[must_use]
    pub fn inspect_ports(&self) -> Vec<String> {
        let listeners = self.site.shared.get::<Listeners>();
        let failures = probe(&listeners, &self.settings());
        failures.iter().map(Error::to_warning).collect()
    }

    /// Checks, with the rights of the user that starts the server, what its start would open. Called for `-t` and by a supervisor: a
    /// server that starts tells by itself what it cannot open.
    #[must_use]
    pub fn inspect_resources(&self) -> Vec<String> {
        let resources = self.site.shared.get::<Resources>();
        let failures = resources.0.iter().map(|resource| resource.check());
        failures.flatten().map(|error| error.to_warning()).collect()
    }

    /// Checks, with the rights of the user that the server runs as, the files that it reads while it runs: document roots.
    #[must_use]
    pub fn inspect_as_running_user(&self, user: RunningUser<'_>) -> Vec<String> {
        let checks = self.site.shared.get::<PathChecks>();
        let amiss = checks
            .0
            .iter()
            .filter_map(|check| check.check_as_running_user(user));
        let mut warnings: Vec<String> = amiss.map(|error| error.to_warning()).collect();
        // Before, root can still give the directory to the user.
        let acme = self
            .acme()
            .filter(|acme| user.is_current && acme.loader.is_none());
        if let Some(acme) = acme.filter(|acme| !acme.state.is_writable()) {
            let (directory, user) = (acme.state.path().display(), user.name);
            warnings.push(format!(
                "[warning] `acme`: user {user} may not write into {directory}, so no certificate is obtained or renewed (run `chown -R {user} {directory}`)"
            ));
        }
        warnings
    }
}

/// How many hosts a warning about a certificate names.
const MOST_NAMES: usize = 10;

fn validity(certificate: &CertificateInfo, now: i64) -> Option<String> {
    let CertificateInfo {
        file,
        not_before,
        not_after,
        ..
    } = certificate;
    let life = (not_after - not_before) / DAY;
    match certificate.days_left(now) {
        _ if now < *not_before => Some(format!(
            "the certificate in {file} is not valid before {}: clients refuse it (is the clock right?)",
            date(*not_before)
        )),
        days if days < 0 => Some(format!(
            "the certificate in {file} expired on {}: clients refuse it (renew it)",
            date(*not_after)
        )),
        days if days < SOON_DAYS.min(life / 4) => Some(format!(
            "the certificate in {file} expires on {}, in {days} days (renew it)",
            date(*not_after)
        )),
        _ => None,
    }
}

/// Formats the date, without the time of day, of a Unix time.
fn date(unix: i64) -> String {
    // `text` looks like `Sun, 06 Nov 1994 08:49:37 GMT`.
    let text = h2o_http::date::format(unix);
    String::from_utf8_lossy(&text[5..16]).into_owned()
}

/// Returns a warning that names the hosts which present this certificate although none of its names matches them.
fn names(certificate: &CertificateInfo) -> Option<String> {
    // A name without a dot, such as `default`, marks a catch-all entry and is no real host name.
    let is_public = |name: &str| name.contains(['.', ':']) || name == "localhost";
    let is_missing = |host: &&HostName| {
        let name = host.name.trim_matches(['[', ']']);
        // ACME obtains no certificate for a wildcard host: the certificate is for the names that the configuration lists for that host.
        let is_listed = certificate.is_obtained && name.starts_with('*');
        is_public(name) && !is_listed && !certificate.is_for(name)
    };
    let mut missing: Vec<String> = certificate
        .hosts
        .iter()
        .filter(is_missing)
        .map(|host| format!("`{}`", host.name))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let others = missing.len().saturating_sub(MOST_NAMES);
    missing.truncate(MOST_NAMES);
    let others = match others {
        0 => String::new(),
        others => format!(" and {others} more hosts"),
    };
    let names = match &*certificate.names {
        [] => "it has no names".to_owned(),
        names => format!("its names: {}", names.join(", ")),
    };
    Some(format!(
        "the certificate in {} is not for {}{others}: clients refuse it ({names})",
        certificate.file,
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(hosts: &[&str], names: &[&str]) -> CertificateInfo {
        let host = |name: &&str| HostName {
            name: (*name).into(),
            port: None,
        };
        CertificateInfo {
            file: "a.crt".into(),
            place: "f:1".into(),
            listeners: Vec::new(),
            hosts: hosts.iter().map(host).collect(),
            names: names.iter().map(|name| (*name).into()).collect(),
            is_obtained: false,
            is_stand_in: false,
            not_before: 0,
            not_after: 90 * DAY,
        }
    }

    #[test]
    fn the_end_of_a_certificate_does_not_come_unannounced() {
        let long = certificate(&[], &[]);
        let soon = "the certificate in a.crt expires on 01 Apr 1970, in 13 days (renew it)";
        let cases = [
            (0, None),
            (76 * DAY, None),
            (76 * DAY + 1, Some(soon)),
            (
                90 * DAY + 1,
                Some(
                    "the certificate in a.crt expired on 01 Apr 1970: clients refuse it (renew it)",
                ),
            ),
            (
                -1,
                Some(
                    "the certificate in a.crt is not valid before 01 Jan 1970: clients refuse it (is the clock right?)",
                ),
            ),
        ];
        for (now, want) in cases {
            assert_eq!(validity(&long, now).as_deref(), want, "{now}");
        }
        let short = CertificateInfo {
            not_after: 8 * DAY,
            ..certificate(&[], &[])
        };
        assert_eq!(validity(&short, 6 * DAY), None);
        assert!(validity(&short, 6 * DAY + 1).is_some());
    }

    #[test]
    fn a_certificate_is_not_presented_for_foreign_names_unannounced() {
        let names = ["a.test", "*.b.test", "192.0.2.1"];
        for host in [
            "a.test",
            "*.b.test",
            "x.b.test",
            "192.0.2.1",
            "default",
            "*",
        ] {
            let certificate = certificate(&[host], &names);
            assert_eq!(super::names(&certificate), None, "{host}");
        }
        for host in ["c.test", "b.test", "*.c.test", "[::1]", "localhost"] {
            let text = super::names(&certificate(&[host, "a.test"], &names)).unwrap();
            let want = format!(
                "the certificate in a.crt is not for `{host}`: clients refuse it (its names: a.test, *.b.test, 192.0.2.1)"
            );
            assert_eq!(text, want);
        }
        let many: Vec<String> = (0..1000).map(|number| format!("{number}.c.test")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = super::names(&certificate(&many, &names)).unwrap();
        assert!(
            text.contains("`9.c.test` and 990 more hosts: clients refuse it"),
            "{text}"
        );
        // A certificate from ACME for a wildcard host has only the names that the configuration lists for the host.
        let obtained = CertificateInfo {
            is_obtained: true,
            ..certificate(&["*.c.test"], &["x.c.test"])
        };
        assert_eq!(super::names(&obtained), None);
        let text = super::names(&certificate(&["a.test"], &[])).unwrap();
        assert!(text.ends_with("(it has no names)"), "{text}");
    }
}
