//! Writes IP addresses as text without allocating.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

/// Length in bytes of the longest text of an address: IPv6 with an IPv4 address at its end.
const LONGEST: usize = 46;

/// Space for the text of an IP address.
pub(crate) struct IpText([u8; LONGEST]);

impl Default for IpText {
    fn default() -> Self {
        Self([0; LONGEST])
    }
}

impl IpText {
    /// Writes the text of an address, and returns it. IPv4 is written without Rust's formatting machinery, which is slower, because many
    /// requests to backends contain the client's address.
    pub(crate) fn write(&mut self, ip: IpAddr) -> &[u8] {
        let len = match ip {
            IpAddr::V4(ip) => self.write_v4(ip),
            IpAddr::V6(ip) => {
                let mut rest = &mut self.0[..];
                // The text of an address always fits.
                let _ = write!(rest, "{ip}");
                LONGEST - rest.len()
            }
        };
        &self.0[..len]
    }

    fn write_v4(&mut self, ip: Ipv4Addr) -> usize {
        let mut len = 0;
        let mut push = |byte| {
            self.0[len] = byte;
            len += 1;
        };
        for (at, octet) in ip.octets().into_iter().enumerate() {
            if at > 0 {
                push(b'.');
            }
            if octet >= 100 {
                push(b'0' + octet / 100);
            }
            if octet >= 10 {
                push(b'0' + octet / 10 % 10);
            }
            push(b'0' + octet % 10);
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_rust_writes_them() {
        for text in ["192.0.2.1", "0.0.0.0", "255.255.255.255", "2001:db8::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(IpText::default().write(ip), text.as_bytes());
        }
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let ip: IpAddr = longest.parse().unwrap();
        assert_eq!(IpText::default().write(ip), longest.as_bytes());
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(IpText::default().write(mapped), b"::ffff:192.0.2.1");
    }
}
