//! What is amiss with a configuration that can be served: warnings, never errors, so that each configuration that H2O takes
//! is taken here.

use h2o_config::{Error, Pos};
use h2o_exchange::{
    CertificateInfo, Certificates, Clock, Endpoint, Host, HostName, PathCheck, PathChecks,
    RunningUser,
};

use crate::site::bind::probe;
use crate::site::listen::ProxyProtocol;
use crate::site::listen::{Listener, Listeners};
use crate::site::load::Loaded;

/// Certificates that expire within so many days are reported, or within a quarter of their life if that is less: those that
/// live for a few days are renewed daily.
const SOON_DAYS: i64 = 14;

const DAY: i64 = 86_400;

impl Loaded {
    /// Looks, with the rights of the starting user, at what the server will open: directories of logs, certificates.
    #[must_use]
    pub fn inspect_as_starting_user(&self) -> Vec<String> {
        let checks = self.site.shared.get::<PathChecks>();
        let paths = checks
            .0
            .iter()
            .filter_map(PathCheck::check_as_starting_user);
        let mut warnings: Vec<String> = paths.map(|error| error.to_warning()).collect();
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

    /// Looks whether the ports can be had that the server is to listen on. For `-t` only: who starts the server finds out
    /// anyway.
    #[must_use]
    pub fn inspect_ports(&self) -> Vec<String> {
        let listeners = self.site.shared.get::<Listeners>();
        let failures = probe(&listeners, &self.settings());
        failures.iter().map(Error::to_warning).collect()
    }

    /// Looks at what the server will read while it runs: document roots.
    #[must_use]
    pub fn inspect_as_running_user(&self, user: RunningUser<'_>) -> Vec<String> {
        let checks = self.site.shared.get::<PathChecks>();
        let amiss = checks
            .0
            .iter()
            .filter_map(|check| check.check_as_running_user(user));
        amiss.map(|error| error.to_warning()).collect()
    }
}

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

/// The day of a time in seconds since the Unix epoch.
fn date(unix: i64) -> String {
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    let text = h2o_http::date::format(unix);
    String::from_utf8_lossy(&text[5..16]).into_owned()
}

/// Hosts that a certificate is presented for without having their name.
fn names(certificate: &CertificateInfo) -> Option<String> {
    // A name without a dot is the mark of an entry that takes what no other does, such as `default`.
    let is_public = |name: &str| name.contains(['.', ':']) || name == "localhost";
    let is_missing = |host: &&HostName| {
        let name = host.name.trim_matches(['[', ']']);
        is_public(name) && !certificate.is_for(name)
    };
    let missing: Vec<String> = certificate
        .hosts
        .iter()
        .filter(is_missing)
        .map(|host| format!("`{}`", host.name))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let names = match &*certificate.names {
        [] => "it has no names".to_owned(),
        names => format!("its names: {}", names.join(", ")),
    };
    Some(format!(
        "the certificate in {} is not for {}: clients refuse it ({names})",
        certificate.file,
        missing.join(", ")
    ))
}

/// Hosts that no request reaches by their name. `keys` are their places.
pub(crate) fn unreachable_hosts(
    hosts: &[Host],
    keys: &[Pos],
    listeners: &[Listener],
) -> Vec<Error> {
    let mut warnings = Vec::new();
    for ((index, host), pos) in (0_u32..).zip(hosts).zip(keys) {
        let own: Vec<&Listener> = listeners
            .iter()
            .filter(|listener| listener.hosts.iter().flatten().any(|host| *host == index))
            .collect();
        // Behind another server the port is the one that clients ask that server at.
        let is_behind_a_proxy = |listener: &&Listener| {
            listener.proxy_protocol != ProxyProtocol::Off
                || matches!(listener.endpoint, Endpoint::Unix(_))
        };
        if own.is_empty() || own.iter().any(is_behind_a_proxy) {
            continue;
        }
        let matches = |listener: &&Listener| match host.name.port {
            Some(_) => listener.port() == host.name.port,
            None => listener.port() == Some(if listener.is_tls() { 443 } else { 80 }),
        };
        if own.iter().any(matches) {
            continue;
        }
        let takes_the_rest = |listener: &&Listener| {
            let mut attached = listener.hosts.iter().flatten();
            let fallback = attached.find(|host| {
                let host = hosts.get(**host as usize);
                host.is_some_and(|host| !host.strict)
            });
            fallback == Some(&index)
        };
        let name = &host.name.name;
        let ports = own.iter().filter_map(|listener| listener.port());
        let mut ports: Vec<String> = ports.map(|port| format!("`{name}:{port}`")).collect();
        ports.dedup();
        let repair = format!("write {}", ports.join(" or "));
        let error = match host.name.port {
            Some(port) => Error::at(
                pos.clone(),
                format!(
                    "the host has no listener on port {port}: no request reaches it by its name"
                ),
            ),
            None if own.iter().all(takes_the_rest) => continue,
            None => Error::at(
                pos.clone(),
                "a name without port is for port 80, or 443 with TLS, where the host has no listener: no request reaches it by its name",
            ),
        };
        warnings.push(error.in_command("hosts", pos).with_hint(repair));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use h2o_config::Memory;

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
        let text = super::names(&certificate(&["a.test"], &[])).unwrap();
        assert!(text.ends_with("(it has no names)"), "{text}");
    }

    fn hosts_warned_of(listen: &str, hosts: &[(&str, &str)]) -> Vec<u32> {
        let mut text = format!("{listen}\nhosts:\n");
        for (name, settings) in hosts {
            text += &format!("  \"{name}\": {{ {settings} paths: {{ /: {{ status: ON }} }} }}\n");
        }
        let loaded = crate::load("f", &Memory::new().file("f", text)).unwrap();
        let lines = loaded.warnings.iter().map(|warning| {
            assert!(warning.contains("no request reaches it"), "{warning}");
            let line = warning.strip_prefix("[warning] [f:").unwrap();
            let line = line.split(']').next().unwrap();
            line.parse::<u32>().unwrap() - 2
        });
        lines.collect()
    }

    #[test]
    fn hosts_that_are_reached_by_their_names_are_not_reported() {
        let unix = "listen: { type: unix, port: /run/s }";
        let behind = "listen: { port: 8080, proxy-protocol: ON }";
        type Case = (
            &'static str,
            &'static [(&'static str, &'static str)],
            &'static [u32],
        );
        let cases: &[Case] = &[
            ("listen: 80", &[("a.test", ""), ("b.test", "")], &[]),
            ("listen: 8080", &[("a.test", "")], &[]),
            ("listen: 8080", &[("a.test", ""), ("b.test", "")], &[2]),
            ("listen: 8080", &[("a.test", ""), ("b.test:8080", "")], &[]),
            ("listen: 8080", &[("a.test", ""), ("*", "")], &[2]),
            ("listen: 8080", &[("a.test:80", "")], &[1]),
            (unix, &[("a.test", ""), ("b.test:81", "")], &[]),
            (behind, &[("a.test", ""), ("b.test", "")], &[]),
            (
                "",
                &[("a.test", "listen: 80,"), ("b.test", "listen: 8080,")],
                &[],
            ),
            (
                "listen: 8080",
                &[("a.test", "strict-match: ON,"), ("b.test", "")],
                &[1],
            ),
            (
                "listen: 80\nlisten: 8080",
                &[("a.test", ""), ("b.test", "")],
                &[],
            ),
        ];
        for (listen, hosts, want) in cases {
            let got = hosts_warned_of(listen, hosts);
            let lines = u32::try_from(listen.lines().count().max(1)).unwrap();
            let got: Vec<u32> = got.iter().map(|line| line + 1 - lines).collect();
            assert_eq!(got, *want, "{listen} {hosts:?}");
        }
    }
}
