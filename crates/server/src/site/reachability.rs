//! Finds hosts that no request can reach by their name.

use std::borrow::Cow;

use h2o_config::{Error, Pos};
use h2o_exchange::{Endpoint, Host, HostName};

use crate::site::listen::{Listener, ProxyProtocol};

/// Limit of the warnings: a file that has one such mistake may have thousands.
const MOST: usize = 20;

/// Returns a warning for each host that no request can reach by its name. Behind [`MOST`] hosts there is one warning for all others. `keys` holds the positions of the hosts in the
/// configuration file.
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
        // If a proxy is in front of the server, requests name the port of the proxy.
        let is_behind_a_proxy = |listener: &&Listener| {
            listener.proxy_protocol != ProxyProtocol::Off
                || matches!(listener.endpoint, Endpoint::Unix(_))
        };
        if let Some(above) = shadowing(hosts, index, &own) {
            let text =
                format!("the host `{above}`, which is above this one, gets all of its requests");
            let error = Error::at(pos.clone(), text).in_command("hosts", pos);
            warnings.push(error.with_hint("write the host with the wildcard below this one"));
            continue;
        }
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
        let repair = format!(
            "add the host {}, unless a port mapping is in front of the listener",
            ports.join(" or ")
        );
        let error = match host.name.port {
            Some(port) => Error::at(
                pos.clone(),
                format!(
                    "the host has no listener on port {port}: no request that names the port of a listener reaches it by its name"
                ),
            ),
            None if own.iter().all(takes_the_rest) => continue,
            None => Error::at(
                pos.clone(),
                "a host name without a port stands for port 80, or 443 with TLS, and the host has no listener on that port: no request that names the port of a listener reaches it by its name",
            ),
        };
        warnings.push(error.in_command("hosts", pos).with_hint(repair));
    }
    if warnings.len() > MOST {
        let others = warnings.len() - MOST;
        warnings.truncate(MOST + 1);
        if let Some(last) = warnings.last_mut() {
            last.message = format!("{others} more hosts have such mistakes");
            last.hint = None;
        }
    }
    warnings
}

/// The host with a wildcard that precedes the host `index` on each of its listeners, and matches all that it matches (H2O compatibility:
/// the first match in file order wins).
fn shadowing<'h>(hosts: &'h [Host], index: u32, own: &[&Listener]) -> Option<Cow<'h, str>> {
    let host = &hosts.get(index as usize)?.name;
    let precedes = |other: u32, listener: &Listener| {
        let mut attached = listener.hosts.iter().flatten();
        attached.find(|host| **host == index || **host == other) == Some(&other)
    };
    let above = (0..index).find(|&other| {
        let wildcard = &hosts[other as usize].name;
        let suffix = wildcard.name.strip_prefix('*');
        suffix.is_some_and(|suffix| host.name.len() > suffix.len() && host.name.ends_with(suffix))
            && wildcard.port == host.port
            && !own.is_empty()
            && own.iter().all(|listener| precedes(other, listener))
    })?;
    let HostName { name, port } = &hosts[above as usize].name;
    Some(match port {
        Some(port) => format!("{name}:{port}").into(),
        None => Cow::Borrowed(name),
    })
}

#[cfg(test)]
mod tests {
    use h2o_config::Memory;

    #[test]
    fn a_host_below_a_wildcard_that_takes_its_requests_is_reported() {
        for (hosts, want) in [
            (["*.a.test", "x.a.test"], Some("*.a.test")),
            (["*", "a.test"], Some("*")),
            (["*.a.test", "*.b.a.test"], Some("*.a.test")),
            (["*.a.test:80", "x.a.test:80"], Some("*.a.test:80")),
            (["x.a.test", "*.a.test"], None),
            (["*.a.test", "a.test"], None),
            (["*.a.test:80", "x.a.test:81"], None),
        ] {
            let mut text = "listen: 80\nlisten: 81\nhosts:\n".to_owned();
            for name in hosts {
                text += &format!("  \"{name}\": {{ paths: {{ /: {{ status: ON }} }} }}\n");
            }
            let loaded = crate::load("f", &Memory::new().file("f", text)).unwrap();
            let told = want.map(|above| {
                format!(
                    "[warning] [f:5] in command hosts, the host `{above}`, which is above this one, gets all of its requests (column 3; write the host with the wildcard below this one)"
                )
            });
            assert_eq!(loaded.warnings, Vec::from_iter(told), "{hosts:?}");
        }
    }

    #[test]
    fn a_mistake_of_many_hosts_is_not_told_for_each_of_them() {
        let mut text = "listen: 80\nhosts:\n".to_owned();
        for number in 0..100 {
            text += &format!("  \"h{number}:81\": {{ paths: {{ /: {{ status: ON }} }} }}\n");
        }
        let loaded = crate::load("f", &Memory::new().file("f", text)).unwrap();
        assert_eq!(loaded.warnings.len(), super::MOST + 1);
        assert_eq!(
            loaded.warnings.last().unwrap(),
            "[warning] [f:23] in command hosts, 80 more hosts have such mistakes (column 3)"
        );
    }

    fn hosts_warned_of(listen: &str, hosts: &[(&str, &str)]) -> Vec<u32> {
        let mut text = format!("{listen}\nhosts:\n");
        for (name, settings) in hosts {
            text += &format!("  \"{name}\": {{ {settings} paths: {{ /: {{ status: ON }} }} }}\n");
        }
        let loaded = crate::load("f", &Memory::new().file("f", text)).unwrap();
        let lines = loaded.warnings.iter().map(|warning| {
            assert!(
                warning.contains("no request that names the port"),
                "{warning}"
            );
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
