//! Writes the header of the PROXY protocol, version 1.

use std::net::{IpAddr, SocketAddr};

use h2o_exchange::{Address, ConnectionInfo};

/// The PROXY header at the start of a connection to a backend. It has two addresses: the client's, and that of our end of the
/// connection on which the request has arrived. The client's address is that of its connection, unless a proxy in front of this server
/// has reported another one in `client`.
pub(crate) fn line(client: Option<&SocketAddr>, connection: &ConnectionInfo) -> Vec<u8> {
    let client = client.map_or(connection.peer, |&client| Address::Ip(client));
    let local = match client {
        Address::Ip(_) => connection.transport.local_address(),
        Address::Unix => None,
    };
    let (family, peer, local) = match (client, local) {
        (Address::Ip(peer @ SocketAddr::V4(_)), Some(Address::Ip(local @ SocketAddr::V4(_)))) => {
            ("TCP4", peer, local)
        }
        (Address::Ip(peer @ SocketAddr::V6(_)), Some(Address::Ip(local @ SocketAddr::V6(_)))) => {
            ("TCP6", peer, local)
        }
        // The families differ: a proxy in front of this server may have reported an IPv6 client over an IPv4 connection, or the
        // reverse.
        (Address::Ip(peer), Some(Address::Ip(local))) => ("TCP6", mapped(peer), mapped(local)),
        _ => return b"PROXY UNKNOWN\r\n".to_vec(),
    };
    let (peer_port, local_port) = (peer.port(), local.port());
    let (peer, local) = (peer.ip(), local.ip());
    format!("PROXY {family} {peer} {local} {peer_port} {local_port}\r\n").into_bytes()
}

/// The address as an IPv6 address; an IPv4 address is mapped (RFC 4291 §2.5.5.2).
fn mapped(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    SocketAddr::from((ip, address.port()))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use h2o_exchange::{Clock, Transport};

    use super::*;

    struct Local(Option<Address>);

    impl Transport for Local {
        fn local_address(&self) -> Option<Address> {
            self.0
        }
        fn congestion_controller(&self) -> Option<String> {
            None
        }
        fn delivery_rate(&self) -> Option<u64> {
            None
        }
    }

    #[test]
    fn lines_name_both_ends_of_one_family() {
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        let cases = [
            (
                ip("192.0.2.7:4000"),
                Some(ip("192.0.2.1:80")),
                "PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\n",
            ),
            (
                ip("[2001:db8::7]:4000"),
                Some(ip("[2001:db8::1]:80")),
                "PROXY TCP6 2001:db8::7 2001:db8::1 4000 80\r\n",
            ),
            (
                ip("192.0.2.7:4000"),
                Some(ip("[2001:db8::1]:80")),
                "PROXY TCP6 ::ffff:192.0.2.7 2001:db8::1 4000 80\r\n",
            ),
            (
                ip("[2001:db8::7]:4000"),
                Some(ip("192.0.2.1:80")),
                "PROXY TCP6 2001:db8::7 ::ffff:192.0.2.1 4000 80\r\n",
            ),
            (ip("192.0.2.7:4000"), None, "PROXY UNKNOWN\r\n"),
            (Address::Unix, Some(Address::Unix), "PROXY UNKNOWN\r\n"),
        ];
        for (peer, local, want) in cases {
            let client = ConnectionInfo {
                id: 1,
                peer,
                accepted: Clock::default().now(),
                tls: None,
                transport: Rc::new(Local(local)),
                listener: Rc::default(),
            };
            assert_eq!(line(None, &client), want.as_bytes());
            if let Address::Ip(told) = peer {
                let client = ConnectionInfo {
                    peer: Address::Unix,
                    ..client
                };
                assert_eq!(line(Some(&told), &client), want.as_bytes());
            }
        }
    }
}
