//! Networks in the configuration, written as `ADDRESS[/BITS]`.

use std::net::IpAddr;

use h2o_config::{Error, Node};
use h2o_exchange::Address;

/// A network: the addresses that begin with the same bits. IPv4-mapped IPv6 addresses (RFC 4291 §2.5.5.2) count as IPv4
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// The first address of the network as a number: the bits behind the prefix are 0.
    bits: u128,
    mask: u128,
    is_v4: bool,
}

impl Network {
    /// Reads a network from a node of the configuration.
    ///
    /// # Errors
    /// The message about a text that is not a network.
    pub(crate) fn read(node: &Node) -> Result<Self, Error> {
        let text = node.scalar()?;
        Self::parse(text).ok_or_else(|| {
            node.error(format!("`{text}` is not an address or a network"))
                .with_hint("write an address or a network, such as `192.0.2.1`, `10.0.0.0/8` or `2001:db8::/32`")
        })
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let (bits, is_v4) = number(address.parse().ok()?);
        let width = if is_v4 { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|prefix| *prefix <= width)?
            }
            Some(_) => return None,
            None => width,
        };
        let mask = u128::MAX.checked_shl(width - prefix).unwrap_or(0);
        Some(Self {
            bits: bits & mask,
            mask,
            is_v4,
        })
    }

    /// Whether the address is in the network. Clients of Unix sockets are in no network.
    pub(crate) fn contains(&self, address: Address) -> bool {
        match address {
            Address::Ip(address) => self.contains_ip(address.ip()),
            Address::Unix => false,
        }
    }

    /// Whether the IP address is in the network.
    pub(crate) fn contains_ip(&self, address: IpAddr) -> bool {
        let (bits, is_v4) = number(address);
        is_v4 == self.is_v4 && bits & self.mask == self.bits
    }
}

/// The address as a number, and whether it is an IPv4 address.
fn number(address: IpAddr) -> (u128, bool) {
    match address.to_canonical() {
        IpAddr::V4(address) => (u128::from(address.to_bits()), true),
        IpAddr::V6(address) => (address.to_bits(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_begins_alike() {
        for (network, address, want) in [
            ("192.0.2.1", "192.0.2.1", Some(true)),
            ("192.0.2.1", "192.0.2.2", Some(false)),
            ("10.1.2.3/8", "10.255.0.1", Some(true)),
            ("10.1.2.3/8", "11.0.0.1", Some(false)),
            ("10.0.0.0/8", "::ffff:10.0.0.1", Some(true)),
            ("::ffff:10.0.0.1", "10.0.0.1", Some(true)),
            ("0.0.0.0/0", "255.0.0.1", Some(true)),
            ("0.0.0.0/0", "2001:db8::1", Some(false)),
            ("::/0", "2001:db8::1", Some(true)),
            ("::/0", "10.0.0.1", Some(false)),
            ("2001:db8::/32", "2001:db8:ffff::1", Some(true)),
            ("2001:db8::/32", "2001:db9::1", Some(false)),
            ("10.0.0.0/33", "10.0.0.0", None),
            ("10.0.0.0/", "10.0.0.0", None),
            ("10.0.0.0/+8", "10.0.0.0", None),
            ("::/129", "::", None),
            ("example.com", "::", None),
            ("", "::", None),
        ] {
            let address = Address::Ip((address.parse::<IpAddr>().unwrap(), 1).into());
            let got = Network::parse(network).map(|network| network.contains(address));
            assert_eq!(got, want, "{network} {address}");
        }
        let all = Network::parse("::/0").unwrap();
        assert!(!all.contains(Address::Unix));
    }
}
