//! Choosing among the hosts of a listener, by name, however many there are.

use h2o_http::{Scheme, authority};
use rustc_hash::FxHashMap;

use crate::Host;

/// Up to so many hosts their names are compared one after the other.
const FEW: usize = 8;
/// Octets of the longest name that is looked up; a longer one is compared with each host. DNS has none (RFC 1035 §2.3.4).
const LONGEST: usize = 255;

/// The hosts that a listener serves.
#[derive(Debug, Default)]
pub struct HostTable {
    /// Indices into the hosts of the site, in order of mention.
    hosts: Box<[u32]>,
    /// The first that is not strict.
    fallback: Option<u32>,
    names: Option<Names>,
}

/// Places in [`HostTable::hosts`], each list in order.
#[derive(Debug, Default)]
struct Names {
    exact: FxHashMap<Box<[u8]>, Vec<u32>>,
    /// `*.suffix`, by the suffix with its dot.
    suffixes: FxHashMap<Box<[u8]>, Vec<u32>>,
    longest_suffix: usize,
    /// Other wildcards.
    others: Vec<u32>,
}

impl HostTable {
    /// The table for `served`, indices into the site's `hosts`.
    #[must_use]
    pub fn new(hosts: &[Host], served: &[u32]) -> Self {
        let is_fallback = |&index: &u32| !hosts[index as usize].strict;
        Self {
            hosts: served.into(),
            fallback: served.iter().copied().find(is_fallback),
            names: (served.len() > FEW).then(|| Names::new(hosts, served)),
        }
    }

    /// Chooses a host of `hosts`, those the table was made for, for an authority, or `None` if every host is strict and
    /// none matches (H2O compatibility: file order, first match wins; a single host is taken without comparing names
    /// unless it is strict).
    #[inline]
    #[must_use]
    pub fn select(&self, hosts: &[Host], authority: &[u8], scheme: Scheme) -> Option<u32> {
        if self.hosts.len() > 1 || self.fallback.is_none() {
            let found = authority::split(authority)
                .and_then(|(host, port)| self.find(hosts, host, port, scheme));
            if found.is_some() {
                return found;
            }
        }
        self.fallback
    }

    fn find(&self, hosts: &[Host], host: &[u8], port: Option<u16>, scheme: Scheme) -> Option<u32> {
        let matches = |index: u32| hosts[index as usize].name.matches(host, port, scheme);
        let mut lower = [0; LONGEST];
        let (Some(names), Some(lower)) = (&self.names, lower.get_mut(..host.len())) else {
            return self.hosts.iter().copied().find(|&index| matches(index));
        };
        lower.copy_from_slice(host);
        lower.make_ascii_lowercase();
        let place = names.first(lower, |place| matches(self.hosts[place as usize]))?;
        Some(self.hosts[place as usize])
    }
}

impl Names {
    fn new(hosts: &[Host], served: &[u32]) -> Self {
        let mut names = Self::default();
        for (place, &index) in (0..).zip(served) {
            let name = hosts[index as usize].name.name.as_bytes();
            let list = match name {
                [b'*', suffix @ ..] if suffix.starts_with(b".") => {
                    names.longest_suffix = names.longest_suffix.max(suffix.len());
                    names.suffixes.entry(suffix.into()).or_default()
                }
                [b'*', ..] => &mut names.others,
                _ => names.exact.entry(name.into()).or_default(),
            };
            list.push(place);
        }
        names
    }

    /// The first place of all whose names are that of `host`, which is in lower case, and that `matches`.
    fn first(&self, host: &[u8], matches: impl Fn(u32) -> bool) -> Option<u32> {
        let of_list = |list: &Vec<u32>| list.iter().copied().find(|&place| matches(place));
        let mut first = of_list(&self.others);
        let mut consider = |list: Option<&Vec<u32>>| {
            if let Some(place) = list.and_then(of_list) {
                first = Some(first.map_or(place, |first| first.min(place)));
            }
        };
        consider(self.exact.get(host));
        let shortest_start = host.len().saturating_sub(self.longest_suffix).max(1);
        for at in shortest_start..host.len() {
            if host[at] == b'.' {
                consider(self.suffixes.get(&host[at..]));
            }
        }
        first
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
                table.select(&hosts, authority.as_bytes(), *scheme),
                Some(*want),
                "{authority}"
            );
        }
        let one = HostTable::new(&hosts, &[3]);
        assert_eq!(one.select(&hosts, b"anything", Scheme::Http), Some(3));
    }

    #[test]
    fn strict_hosts_are_no_fallback() {
        let hosts = hosts(&[("a.test", None, true), ("b.test", None, true)]);
        let both = table(&hosts);
        assert_eq!(both.select(&hosts, b"b.test", Scheme::Http), Some(1));
        assert_eq!(both.select(&hosts, b"c.test", Scheme::Http), None);
        let one = HostTable::new(&hosts, &[0]);
        assert_eq!(one.select(&hosts, b"a.test", Scheme::Http), Some(0));
        assert_eq!(one.select(&hosts, b"c.test", Scheme::Http), None);
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
        // All orders that begin somewhere else and have another step.
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
                        let got = table.select(&hosts, authority.as_bytes(), Scheme::Http);
                        assert_eq!(got.map(|at| at as usize), want, "{authority} {some:?}");
                    }
                }
            }
        }
    }
}
