//! The access control list of `proxy.connect`: which addresses clients may connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use h2o_config::{Command, Error};

/// An access control list, as entries in order. The first entry that matches an address decides; an address without a
/// match is denied.
#[derive(Debug)]
pub(super) struct Acl(Box<[AclEntry]>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AclEntry {
    pub(super) permits: bool,
    pub(super) addresses: Addresses,
    pub(super) ports: RangeInclusive<u16>,
}

/// The addresses that an entry matches: all, or those that equal `bits` where `mask` has ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    Any,
    V4 { bits: u32, mask: u32 },
    V6 { bits: u128, mask: u128 },
}

impl Acl {
    /// Reads the list from the argument of `proxy.connect` or `proxy.connect-udp`.
    ///
    /// # Errors
    /// H2O's message about an invalid entry, at the position of the entry.
    pub(super) fn read(command: &Command<'_>) -> Result<Self, Error> {
        let entries = command.node.sequence()?.iter().map(|node| {
            let text = node
                .as_str()
                .ok_or_else(|| node.error("ACL entry must be a scalar"))?;
            AclEntry::parse(text).map_err(|message| {
                node.error(message).with_hint(
                    "write addresses, not names, such as `+192.0.2.0/24:443`, `-[::1]` or `+*:443`",
                )
            })
        });
        Ok(Self(entries.collect::<Result<_, _>>()?))
    }

    /// Whether clients may connect to `target`.
    ///
    /// Unspecified addresses are never permitted, in any form: Linux connects them to the loopback, which would bypass
    /// entries that deny the loopback. H2O has no such rule.
    pub(super) fn permits(&self, target: SocketAddr) -> bool {
        let is_unspecified = match target.ip() {
            IpAddr::V4(address) => address.is_unspecified(),
            IpAddr::V6(address) => {
                address.is_unspecified() || ipv4_within(address).is_some_and(|a| a.is_unspecified())
            }
        };
        if is_unspecified {
            return false;
        }
        let entry = self.0.iter().find(|entry| entry.matches(target));
        entry.is_some_and(|entry| entry.permits)
    }

    /// Whether the list may permit any address with this port.
    pub(super) fn may_permit(&self, port: u16) -> bool {
        let mut entries = self.0.iter().filter(|entry| entry.ports.contains(&port));
        let decides = entries.find(|entry| entry.permits || entry.addresses == Addresses::Any);
        decides.is_some_and(|entry| entry.permits)
    }
}

/// The IPv4 address that is reached through an IPv6 address. It is one of these: an IPv4-mapped address (RFC 4291
/// §2.5.5.2), an IPv4-compatible one (§2.5.5.1), or one translated with the well-known prefix (RFC 6052 §2.1).
fn ipv4_within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    const COMPATIBLE: [u16; 6] = [0; 6];
    const MAPPED: [u16; 6] = [0, 0, 0, 0, 0, 0xffff];
    const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
    let [prefix @ .., _, _] = address.segments();
    let has_inner = match prefix {
        MAPPED | TRANSLATED => true,
        COMPATIBLE => !address.is_loopback(),
        _ => false,
    };
    let [.., a, b, c, d] = address.octets();
    has_inner.then(|| Ipv4Addr::new(a, b, c, d))
}

impl AclEntry {
    /// Reads an entry of the list: `+` or `-`, then `ADDRESS[/MASK][:PORT]`. H2O compatibility: H2O also accepts the
    /// mask after the port.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const FORMAT: &str =
            "failed to parse input, expected format is: [+-]address[/netmask][:port[-port]]";
        let (permits, text) = match text.as_bytes() {
            [b'+', ..] => (true, &text[1..]),
            [b'-', ..] => (false, &text[1..]),
            _ => return Err("ACL entry must begin with + or -"),
        };
        let (address, is_v6, mut rest) = if let Some(text) = text.strip_prefix('[') {
            let (address, rest) = text.split_once(']').ok_or(FORMAT)?;
            (address, true, rest)
        } else {
            let end = text.find(['/', ':']).unwrap_or(text.len());
            (&text[..end], false, &text[end..])
        };
        if address.is_empty() {
            return Err(FORMAT);
        }
        let (mut mask, mut ports) = (None, None);
        while !rest.is_empty() {
            let (part, is_mask) = match (rest.strip_prefix('/'), rest.strip_prefix(':')) {
                (Some(part), _) if mask.is_none() => (part, true),
                (_, Some(part)) if ports.is_none() => (part, false),
                _ => return Err(FORMAT),
            };
            let end = part.find(['/', ':']).unwrap_or(part.len());
            let (part, behind) = part.split_at(end);
            rest = behind;
            if is_mask {
                mask = Some(number(part).filter(|mask| *mask > 0).ok_or(FORMAT)?);
            } else {
                ports = Some(parse_ports(part).ok_or(FORMAT)?);
            }
        }
        let (low, high) = ports.unwrap_or((0, u16::MAX));
        let addresses = if address == "*" && !is_v6 {
            if mask.is_some() {
                return Err("wildcard address (*) cannot have a netmask");
            }
            Addresses::Any
        } else {
            parse_network(address, is_v6, mask)?
        };
        if low > high {
            return Err("port range end must be >= start");
        }
        Ok(Self {
            permits,
            addresses,
            ports: low..=high,
        })
    }

    pub(super) fn matches(&self, target: SocketAddr) -> bool {
        if !self.ports.contains(&target.port()) {
            return false;
        }
        match (&self.addresses, target.ip()) {
            (Addresses::Any, _) => true,
            (Addresses::V4 { bits, mask }, IpAddr::V4(address)) => {
                address.to_bits() & mask == *bits
            }
            (Addresses::V6 { bits, mask }, IpAddr::V6(address)) => {
                address.to_bits() & mask == *bits
            }
            // An entry for an IPv4 address also matches IPv6 addresses by which that address is reached. H2O does not
            // compare these.
            (Addresses::V4 { bits, mask }, IpAddr::V6(address)) => {
                !self.permits
                    && ipv4_within(address).is_some_and(|address| address.to_bits() & mask == *bits)
            }
            (Addresses::V6 { .. }, IpAddr::V4(_)) => false,
        }
    }
}

fn parse_network(address: &str, is_v6: bool, mask: Option<u32>) -> Result<Addresses, &'static str> {
    const MASK: &str = "invalid address mask";
    const ADDRESS: &str = "failed to parse address";
    if is_v6 {
        let address: std::net::Ipv6Addr = address.parse().map_err(|_| ADDRESS)?;
        let len = mask.unwrap_or(u128::BITS);
        let host_bits = u128::BITS.checked_sub(len).ok_or(MASK)?;
        let mask = u128::MAX << host_bits;
        let bits = address.to_bits() & mask;
        return Ok(Addresses::V6 { bits, mask });
    }
    let address: std::net::Ipv4Addr = address.parse().map_err(|_| ADDRESS)?;
    let len = mask.unwrap_or(u32::BITS);
    let host_bits = u32::BITS.checked_sub(len).ok_or(MASK)?;
    let mask = u32::MAX << host_bits;
    let bits = address.to_bits() & mask;
    Ok(Addresses::V4 { bits, mask })
}

/// Reads the ports of an entry: `N`, `LOW-HIGH` or `*`.
fn parse_ports(text: &str) -> Option<(u16, u16)> {
    if text == "*" {
        return Some((0, u16::MAX));
    }
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let port = |text| u16::try_from(number(text)?).ok();
    Some((port(low)?, port(high)?))
}

/// Reads a number that consists of digits only.
fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[&str]) -> Acl {
        let parse = |entry: &&str| AclEntry::parse(entry).unwrap();
        Acl(entries.iter().map(parse).collect())
    }

    #[test]
    fn the_first_entry_that_matches_decides() {
        let local = [
            "-127.0.0.0/8",
            "-[::1]",
            "+*:443",
            "+192.0.2.0/24:8000-8099",
        ];
        let cases: &[(&[&str], &str, bool)] = &[
            (&[], "192.0.2.1:80", false),
            (&["+*"], "192.0.2.1:80", true),
            (&["+*"], "[2001:db8::1]:80", true),
            (&["-*", "+*"], "192.0.2.1:80", false),
            (&["+192.0.2.1"], "192.0.2.1:80", true),
            (&["+192.0.2.1"], "192.0.2.2:80", false),
            // Bits of an address after those of the mask are ignored.
            (&["+192.0.2.77/31"], "192.0.2.76:80", true),
            (&["+192.0.2.77/31"], "192.0.2.78:80", false),
            (&["+10.0.0.0:80/8"], "10.255.255.255:80", true),
            (&["+10.0.0.0:80/8"], "10.255.255.255:81", false),
            (&["+10.0.0.0:80/8"], "11.0.0.0:80", false),
            (&["+0.0.0.0/1"], "127.255.255.255:1", true),
            (&["+0.0.0.0/1"], "128.0.0.0:1", false),
            (&["+[2001:db8::]/32"], "[2001:db8:ffff::1]:1", true),
            (&["+[2001:db8::]/32"], "[2001:db9::1]:1", false),
            (&["+[2001:db8::]/32"], "32.1.13.184:1", false),
            (&["+[::]/1:5-6"], "[7fff::]:6", true),
            (&["+[::]/1:5-6"], "[8000::]:6", false),
            (&["+[::]/1:5-6"], "[::]:7", false),
            (&["+*:*"], "192.0.2.1:65535", true),
            (&["+*:0"], "192.0.2.1:1", false),
            (&local, "127.1.2.3:443", false),
            (&local, "[::1]:443", false),
            (&local, "192.0.2.9:443", true),
            (&local, "192.0.2.9:8000", true),
            (&local, "192.0.2.9:8099", true),
            (&local, "192.0.2.9:8100", false),
            (&local, "192.0.3.9:8000", false),
            // IPv4-mapped and similar IPv6 addresses: an entry that denies the IPv4 address denies them too, but one
            // that permits it does not permit them.
            (&local, "[::ffff:127.0.0.1]:443", false),
            (&local, "[::ffff:192.0.2.9]:443", true),
            (&["+192.0.2.9"], "[::ffff:192.0.2.9]:443", false),
            (&local, "[::127.0.0.1]:443", false),
            (&local, "[::192.0.2.9]:443", true),
            (&local, "[64:ff9b::127.0.0.1]:443", false),
            (&local, "[64:ff9b::192.0.2.9]:443", true),
            (&local, "[64:ff9b:1::127.0.0.1]:443", true),
            (&["-0.0.0.0/8", "+*"], "[::1]:443", true),
        ];
        for (entries, target, want) in cases {
            let got = acl(entries).permits(target.parse().unwrap());
            assert_eq!(got, *want, "{entries:?} {target}");
        }
    }

    #[test]
    fn unspecified_addresses_are_never_permitted() {
        let open = acl(&["+0.0.0.0", "+[::]", "+[::ffff:0.0.0.0]", "+*"]);
        for target in [
            "0.0.0.0:80",
            "[::]:80",
            "[::ffff:0.0.0.0]:80",
            "[::0.0.0.0]:80",
            "[64:ff9b::]:80",
        ] {
            assert!(!open.permits(target.parse().unwrap()), "{target}");
        }
        for target in ["0.0.0.1:80", "[::1]:80", "[::ffff:0.0.0.1]:80"] {
            assert!(open.permits(target.parse().unwrap()), "{target}");
        }
    }

    #[test]
    fn ports_are_judged_before_addresses_are_known() {
        let cases: &[(&[&str], bool)] = &[
            (&[], false),
            (&["-*"], false),
            (&["+*:443"], false),
            (&["+*:80"], true),
            (&["-*:80", "+*"], false),
            (&["-*:443", "+*"], true),
            (&["-10.0.0.0/8", "-[::1]"], false),
            (&["-10.0.0.0/8", "+*:79-81"], true),
            (&["+192.0.2.1:443", "+[2001:db8::]/32:80"], true),
        ];
        for (entries, want) in cases {
            assert_eq!(acl(entries).may_permit(80), *want, "{entries:?}");
        }
    }

    #[test]
    fn malformed_entries_have_different_errors() {
        let format =
            "failed to parse input, expected format is: [+-]address[/netmask][:port[-port]]";
        let address = "failed to parse address";
        let mask = "invalid address mask";
        let cases = [
            ("", "ACL entry must begin with + or -"),
            ("192.0.2.1", "ACL entry must begin with + or -"),
            ("é", "ACL entry must begin with + or -"),
            ("+", format),
            ("+:80", format),
            ("+/8", format),
            ("+::1", format),
            ("+[::1", format),
            ("+[::1]x", format),
            ("+[::1]é", format),
            ("+[]", format),
            ("+1.2.3.4:", format),
            ("+1.2.3.4:é", format),
            ("+1.2.3.4/", format),
            ("+1.2.3.4/0", format),
            ("+1.2.3.4/8/8", format),
            ("+1.2.3.4:1:1", format),
            ("+1.2.3.4:65536", format),
            ("+1.2.3.4:-1", format),
            ("+1.2.3.4:1-", format),
            ("+1.2.3.4:1-2-3", format),
            ("+1.2.3.4:+1", format),
            ("+1.2.3.4/x", format),
            ("+1.2.3.4/4294967296", format),
            ("+1.2.3.4/33", mask),
            ("+1.2.3.4:80/33", mask),
            ("+[::1]/129", mask),
            ("+*/8", "wildcard address (*) cannot have a netmask"),
            ("+*:80/8", "wildcard address (*) cannot have a netmask"),
            ("+example.com", address),
            ("+1.2.3", address),
            ("+[1.2.3.4]", address),
            ("+[*]", address),
            ("+é", address),
            ("+1.2.3.4:81-80", "port range end must be >= start"),
        ];
        for (entry, want) in cases {
            assert_eq!(AclEntry::parse(entry), Err(want), "{entry}");
        }
    }
}
