//! Datagrams that one server forwards to another, wrapped so that the receiver learns the client's addresses.
//!
//! H2O compatibility: H2O's servers forward in this form to each other. It looks like a long header of a version that does
//! not exist, and is not authenticated: the receiver must check that the sender's address is that of a known server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of the wrapper: a long header without a packet type, and a version that does not exist.
const HEADER: [u8; 5] = [0x80, 0x91, 0xc1, 0x70, 0x00];
/// Limit of the number of times that a datagram is forwarded.
pub const MAX_HOPS: u8 = 4;
/// The number of bytes by which wrapping lengthens a datagram at most.
pub const MAX_OVERHEAD: u16 = 5 + 2 * 19 + 1;

/// What the wrapper of a forwarded datagram says about the datagram inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The local address that the client sent the datagram to, if the first server knew it.
    pub local: Option<SocketAddr>,
    /// The client's address.
    pub remote: SocketAddr,
    /// How many more times the datagram may be forwarded.
    pub hops: u8,
}

/// Whether a received datagram is one that another server has wrapped and forwarded.
pub fn is_forwarded(datagram: &[u8]) -> bool {
    datagram.starts_with(&HEADER)
}

impl Forwarded {
    /// Appends the wrapper that stands before the forwarded datagram.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&HEADER);
        encode_address(self.local, out);
        encode_address(Some(self.remote), out);
        out.push(self.hops);
    }

    /// Unwraps a forwarded datagram: returns the addresses and the datagram inside; `None` if the wrapper is malformed.
    pub fn decode(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let rest = datagram.strip_prefix(&HEADER)?;
        let (local, rest) = decode_address(rest)?;
        let (remote, rest) = decode_address(rest)?;
        let (&hops, inner) = rest.split_first()?;
        let forwarded = Self {
            local,
            remote: remote?,
            hops,
        };
        // Servers never wrap a datagram twice, so a wrapper inside another one is malformed.
        (!is_forwarded(inner) && hops <= MAX_HOPS).then_some((forwarded, inner))
    }
}

fn encode_address(address: Option<SocketAddr>, out: &mut Vec<u8>) {
    let Some(address) = address else {
        out.push(0);
        return;
    };
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Reads an address, which may be absent, from the start of `input`. Returns it and the bytes after it.
fn decode_address(input: &[u8]) -> Option<(Option<SocketAddr>, &[u8])> {
    let (kind, rest) = input.split_first()?;
    let (ip, rest): (IpAddr, _) = match kind {
        0 => return Some((None, rest)),
        4 => {
            let (ip, rest) = rest.split_first_chunk::<4>()?;
            (Ipv4Addr::from(*ip).into(), rest)
        }
        6 => {
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            (Ipv6Addr::from(*ip).into(), rest)
        }
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let address = SocketAddr::new(ip, u16::from_be_bytes(*port));
    Some((Some(address), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_form_is_that_of_h2o() {
        let forwarded = Forwarded {
            local: Some(address("192.0.2.1:443")),
            remote: address("[2001:db8::1]:50000"),
            hops: 4,
        };
        let mut wrapped = Vec::new();
        forwarded.encode(&mut wrapped);
        assert!(is_forwarded(&wrapped));
        let mut want = b"\x80\x91\xc1\x70\0\x04\xc0\0\x02\x01\x01\xbb\x06\x20\x01\x0d\xb8".to_vec();
        want.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xc3, 0x50, 4]);
        assert_eq!(wrapped, want);
        wrapped.extend_from_slice(b"packet");
        assert_eq!(
            Forwarded::decode(&wrapped),
            Some((forwarded, &b"packet"[..]))
        );
        // A wrapper that is cut off at any byte is refused.
        for len in 0..want.len() {
            assert_eq!(Forwarded::decode(&wrapped[..len]), None, "{len}");
        }
    }

    #[test]
    fn the_longest_form_is_known() {
        let address = address("[::1]:1");
        let mut wrapped = Vec::new();
        let forwarded = Forwarded {
            local: Some(address),
            remote: address,
            hops: 0,
        };
        forwarded.encode(&mut wrapped);
        assert_eq!(wrapped.len(), usize::from(MAX_OVERHEAD));
    }

    #[test]
    fn nothing_is_forwarded_for_ever() {
        let forwarded = |hops| {
            let mut wrapped = Vec::new();
            let forwarded = Forwarded {
                local: None,
                remote: address("192.0.2.1:443"),
                hops,
            };
            forwarded.encode(&mut wrapped);
            wrapped
        };
        assert!(Forwarded::decode(&forwarded(MAX_HOPS)).is_some());
        assert_eq!(Forwarded::decode(&forwarded(MAX_HOPS + 1)), None);
        let twice = [forwarded(4), forwarded(4)].concat();
        assert_eq!(Forwarded::decode(&twice), None);
        // A wrapper without the client's address is refused: the client could not be answered.
        assert_eq!(Forwarded::decode(b"\x80\x91\xc1\x70\0\0\0\x04packet"), None);
        assert_eq!(Forwarded::decode(b"\x80\x91\xc1\x70\0\x05"), None);
    }
}
