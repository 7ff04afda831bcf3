//! Chooses the host of a request by the name in its authority, fast for any number of hosts.

use std::borrow::Cow;

use h2o_http::{Scheme, authority};
use rustc_hash::FxHashMap;

use crate::Host;

/// The hosts that a listener serves.
#[derive(Debug, Default)]
pub struct HostTable {
    /// Hosts without wildcard, by their name. Hosts of one name differ in port, and are in the order of the
    /// configuration.
    by_name: FxHashMap<Box<[u8]>, Vec<HostEntry>>,
    /// Hosts named `*.suffix`, by their suffix including its dot.
    by_suffix: FxHashMap<Box<[u8]>, Vec<HostEntry>>,
    longest_suffix: usize,
    /// Hosts with other wildcards, in the order of the configuration: the text after the `*`, and the host.
    wildcards: Vec<(Box<[u8]>, HostEntry)>,
    /// The only host of the listener, chosen without comparing names.
    only: Option<u32>,
    /// The first host that is not strict: it takes the requests that match no host.
    fallback: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct HostEntry {
    /// Position of the host in the order of the configuration.
    place: usize,
    /// Index into [`crate::Site::hosts`].
    host: u32,
    port: Option<u16>,
}

impl HostTable {
    /// Creates a table of the hosts whose indices in the site's `hosts` are `served`.
    #[must_use]
    pub fn new(hosts: &[Host], served: &[u32]) -> Self {
        let mut table = Self::default();
        for (place, &host) in served.iter().enumerate() {
            let Host { name, strict, .. } = &hosts[host as usize];
            let port = name.port;
            let entry = HostEntry { place, host, port };
            match name.name.as_bytes() {
                [b'*', suffix @ ..] if suffix.starts_with(b".") => {
                    table.longest_suffix = table.longest_suffix.max(suffix.len());
                    let list = table.by_suffix.entry(suffix.into());
                    list.or_default().push(entry);
                }
                [b'*', suffix @ ..] => table.wildcards.push((suffix.into(), entry)),
                name => table.by_name.entry(name.into()).or_default().push(entry),
            }
            if !strict {
                table.fallback.get_or_insert(host);
            }
        }
        table.only = table.fallback.filter(|_| served.len() == 1);
        table
    }

    /// Chooses the host for a request's authority; `None` if no host matches and every host is strict (never a
    /// fallback). H2O compatibility: as in H2O, the first match in file order wins, and a single host that is not
    /// strict takes every request.
    #[inline]
    #[must_use]
    pub fn select(&self, authority: &[u8], scheme: Scheme) -> Option<u32> {
        if self.only.is_some() {
            return self.only;
        }
        let found = self.find(authority, scheme).map(|entry| entry.host);
        found.or(self.fallback)
    }

    fn find(&self, authority: &[u8], scheme: Scheme) -> Option<HostEntry> {
        let (host, port) = authority::split(authority)?;
        let port = port.unwrap_or(scheme.default_port());
        // A cheap test whether lower-casing the name can be skipped: clients mostly send lower case. Bit 0x20 is set in
        // lower-case letters, digits, `-` and `.`, and is not set in capital letters. The loop has no early exit, so
        // that the compiler can vectorise it.
        const LOWER: u8 = 0x20;
        let may_have_upper = host.iter().fold(LOWER, |common, byte| common & byte) == 0;
        let lower: Cow<'_, [u8]> = if may_have_upper {
            host.to_ascii_lowercase().into()
        } else {
            host.into()
        };
        let has_port = |entry: &&HostEntry| entry.port.unwrap_or(scheme.default_port()) == port;
        let list = self.by_name.get(&*lower);
        let exact = list.and_then(|list| list.iter().find(has_port).copied());
        if self.longest_suffix == 0 && self.wildcards.is_empty() {
            return exact;
        }
        earlier(exact, self.find_wildcard(&lower, has_port))
    }

    /// The first host with a wildcard that matches `name`, which the caller has converted to lower case.
    fn find_wildcard(
        &self,
        name: &[u8],
        has_port: impl Fn(&&HostEntry) -> bool,
    ) -> Option<HostEntry> {
        // `*` matches every name; other wildcards need at least one character before the suffix.
        let matches = |suffix: &[u8]| {
            suffix.is_empty() || name.len() > suffix.len() && name.ends_with(suffix)
        };
        let mut others = self.wildcards.iter();
        let other = others.find(|(suffix, entry)| matches(suffix) && has_port(&entry));
        let mut first = other.map(|(_, entry)| *entry);
        // At least one character of the name must stand before the dot of `.suffix`.
        let start = name.len().saturating_sub(self.longest_suffix).max(1);
        for at in start..name.len() {
            if name[at] == b'.'
                && let Some(list) = self.by_suffix.get(&name[at..])
            {
                first = earlier(first, list.iter().find(&has_port).copied());
            }
        }
        first
    }
}

/// The one of two hosts that comes first in the configuration.
fn earlier(one: Option<HostEntry>, other: Option<HostEntry>) -> Option<HostEntry> {
    match (one, other) {
        (Some(one), Some(other)) if one.place < other.place => Some(one),
        (one, other) => other.or(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostName;

    fn hosts(names: &[(&str, Option<u16>, bool)]) -> Vec<Host> {
        let host = |&(name, port, strict): &(&str, Option<u16>, bool)| Host {
            name: HostName {
                name: name.into(),
                port,
            },
            strict,
            ..Host::default()
        };
        names.iter().map(host).collect()
    }

    fn table(hosts: &[Host]) -> HostTable {
        let all: Vec<_> = (0..).take(hosts.len()).collect();
        HostTable::new(hosts, &all)
    }

    #[test]
    fn hosts_are_chosen_in_file_order_with_ports_of_the_scheme() {
        let hosts = hosts(&[
            ("default", None, false),
            ("*.example.com", None, false),
            ("a.example.com", None, false),
            ("b.test", Some(8080), false),
        ]);
        let table = table(&hosts);
        let cases: &[(&str, Scheme, u32)] = &[
            ("a.example.com", Scheme::Http, 1),
            ("A.EXAMPLE.com:80", Scheme::Http, 1),
            ("a.example.com:443", Scheme::Https, 1),
            ("a.example.com:8080", Scheme::Http, 0),
            ("x.y.example.com", Scheme::Http, 1),
            (".example.com", Scheme::Http, 0),
            ("b.test", Scheme::Http, 0),
            ("b.test:8080", Scheme::Http, 3),
            ("", Scheme::Http, 0),
            ("bad host", Scheme::Http, 0),
        ];
        for (authority, scheme, want) in cases {
            assert_eq!(
                table.select(authority.as_bytes(), *scheme),
                Some(*want),
                "{authority}"
            );
        }
        let one = HostTable::new(&hosts, &[3]);
        assert_eq!(one.select(b"anything", Scheme::Http), Some(3));
    }

    #[test]
    fn strict_hosts_are_no_fallback() {
        let hosts = hosts(&[("a.test", None, true), ("b.test", None, true)]);
        let both = table(&hosts);
        assert_eq!(both.select(b"b.test", Scheme::Http), Some(1));
        assert_eq!(both.select(b"c.test", Scheme::Http), None);
        let one = HostTable::new(&hosts, &[0]);
        assert_eq!(one.select(b"a.test", Scheme::Http), Some(0));
        assert_eq!(one.select(b"c.test", Scheme::Http), None);
    }

    #[test]
    fn many_hosts_are_chosen_as_if_they_were_compared_one_by_one() {
        let names = [
            "a.test",
            "b.a.test",
            "*.a.test",
            "*.test",
            "*test",
            "*",
            "[::1]",
            "*.b.a.test",
            "c.test",
            "x",
        ];
        let mut kinds = Vec::new();
        for (n, name) in names.iter().enumerate() {
            for port in [None, Some(80), Some(8080)] {
                kinds.push((*name, port, n % 3 == 0));
            }
        }
        let long = format!("{}.a.test", "l".repeat(300));
        let asked = [
            "a.test",
            "B.a.Test",
            "c.b.a.test",
            ".a.test",
            "a.test.",
            "atest",
            "test",
            "x",
            "y",
            "[::1]",
            "",
            "..",
            &long,
        ];
        // Builds tables of host names of different kinds in many orders: beginning at every name of the list, and
        // taking names at several distances from each other.
        for start in 0..kinds.len() {
            for step in [1, 7, 11, 29] {
                let at = |n: usize| kinds[(start + n * step) % kinds.len()];
                let some: Vec<_> = (0..kinds.len() - start % 3 * 9).map(at).collect();
                let hosts = hosts(&some);
                let table = table(&hosts);
                for host in asked {
                    for (port, authority) in [
                        (None, host.to_owned()),
                        (Some(80), format!("{host}:80")),
                        (Some(8080), format!("{host}:8080")),
                        (Some(1), format!("{host}:1")),
                    ] {
                        let matches = |it: &Host| {
                            !host.is_empty() && it.name.matches(host.as_bytes(), port, Scheme::Http)
                        };
                        let found = hosts.iter().position(matches);
                        let want = found.or_else(|| hosts.iter().position(|it| !it.strict));
                        let got = table.select(authority.as_bytes(), Scheme::Http);
                        assert_eq!(got.map(|at| at as usize), want, "{authority} {some:?}");
                    }
                }
            }
        }
    }
}
