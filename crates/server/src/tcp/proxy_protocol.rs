//! The PROXY protocol, versions 1 and 2, by which a load balancer in front of this server sends the client's address
//! before any other bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest PROXY header of version 1, a line, including CR LF (PROXY protocol specification, section 2.1).
const MAX_LINE: usize = 107;
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// What the first bytes of a connection turn out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParseResult {
    /// Too few bytes have come to tell whether there is a PROXY header.
    Incomplete,
    /// The connection has no PROXY header: its first bytes belong to TLS or HTTP.
    Absent,
    /// A PROXY header of `len` bytes; `source` is the client's address, if the header has one.
    Header {
        len: usize,
        source: Option<SocketAddr>,
    },
}

/// Parses the first bytes of a connection as a PROXY header.
pub(crate) fn parse(input: &[u8]) -> ParseResult {
    if starts_alike(input, V2_SIGNATURE) {
        return parse_v2(input);
    }
    if starts_alike(input, b"PROXY ") {
        return parse_v1(input);
    }
    ParseResult::Absent
}

fn starts_alike(input: &[u8], prefix: &[u8]) -> bool {
    let len = input.len().min(prefix.len());
    input[..len] == prefix[..len]
}

fn parse_v1(input: &[u8]) -> ParseResult {
    let Some(end) = input.iter().take(MAX_LINE).position(|&byte| byte == b'\n') else {
        return if input.len() < MAX_LINE {
            ParseResult::Incomplete
        } else {
            ParseResult::Absent
        };
    };
    let Some(line) = input[..end]
        .strip_suffix(b"\r")
        .and_then(|line| line.strip_prefix(b"PROXY "))
    else {
        return ParseResult::Absent;
    };
    let len = end + 1;
    // H2O compatibility: H2O keeps the address of the socket for any protocol word that does not begin with T, such as
    // UNKNOWN.
    if line.first() != Some(&b'T') {
        return ParseResult::Header { len, source: None };
    }
    let source = std::str::from_utf8(line).ok().and_then(|line| {
        let mut words = line.split(' ');
        let family = words.next()?;
        let address: IpAddr = words.next()?.parse().ok()?;
        let _destination = words.next()?;
        let port: u16 = words.next()?.parse().ok()?;
        let _destination_port = words.next()?;
        let fits = match family {
            "TCP4" => address.is_ipv4(),
            "TCP6" => address.is_ipv6(),
            _ => false,
        };
        (fits && words.next().is_none()).then(|| SocketAddr::new(address, port))
    });
    source.map_or(ParseResult::Absent, |source| ParseResult::Header {
        len,
        source: Some(source),
    })
}

/// Reads a PROXY header of version 2 (PROXY protocol specification, section 2.2). Its TLV extensions are skipped.
fn parse_v2(input: &[u8]) -> ParseResult {
    let Some(header) = input.first_chunk::<16>() else {
        return ParseResult::Incomplete;
    };
    let len = 16 + usize::from(u16::from_be_bytes([header[14], header[15]]));
    let (version, command) = (header[12] >> 4, header[12] & 15);
    if version != 2 || command > 1 {
        return ParseResult::Absent;
    }
    let Some(body) = input.get(16..len) else {
        return ParseResult::Incomplete;
    };
    // The command LOCAL: the load balancer opened the connection for itself, for example in a health check.
    if command == 0 {
        return ParseResult::Header { len, source: None };
    }
    let port = |at: usize| {
        body.get(at..at + 2)
            .map(|p| u16::from_be_bytes([p[0], p[1]]))
    };
    let source = match header[13] >> 4 {
        1 => body
            .first_chunk::<4>()
            .zip(port(8))
            .map(|(ip, port)| SocketAddr::new(Ipv4Addr::from(*ip).into(), port)),
        2 => body
            .first_chunk::<16>()
            .zip(port(32))
            .map(|(ip, port)| SocketAddr::new(Ipv6Addr::from(*ip).into(), port)),
        _ => return ParseResult::Header { len, source: None },
    };
    source.map_or(ParseResult::Absent, |source| ParseResult::Header {
        len,
        source: Some(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut out = V2_SIGNATURE.to_vec();
        out.extend_from_slice(&[0x20 | command, family, 0, u8::try_from(body.len()).unwrap()]);
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn headers_of_both_versions_name_the_client() {
        let source = |text: &str| Some(text.parse().unwrap());
        let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\n";
        let six = b"PROXY TCP6 2001:db8::1 2001:db8::2 5000 80\r\n";
        let four2 = v2(
            1,
            0x11,
            &[192, 0, 2, 9, 10, 0, 0, 1, 0x13, 0x88, 0, 80, 4, 0, 0],
        );
        let mut six_body = vec![0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        six_body.extend_from_slice(&[0; 16]);
        six_body.extend_from_slice(&[0x13, 0x88, 0, 80]);
        let six2 = v2(1, 0x21, &six_body);
        let local = v2(0, 0, &[]);
        let cases: &[(&[u8], Option<SocketAddr>)] = &[
            (line, source("192.0.2.1:5000")),
            (six, source("[2001:db8::1]:5000")),
            (b"PROXY UNKNOWN ffff::f ignored\r\n", None),
            (b"PROXY UNKNOWN\r\n", None),
            // The destination is not read.
            (
                b"PROXY TCP4 192.0.2.1 balancer 5000 99999\r\n",
                source("192.0.2.1:5000"),
            ),
            (&four2, source("192.0.2.9:5000")),
            (&six2, source("[2001:db8::7]:5000")),
            (&local, None),
        ];
        for (input, want) in cases {
            assert_eq!(
                parse(input),
                ParseResult::Header {
                    len: input.len(),
                    source: *want
                },
                "{}",
                input.escape_ascii()
            );
            for cut in 0..input.len() {
                assert_eq!(
                    parse(&input[..cut]),
                    ParseResult::Incomplete,
                    "{}",
                    input[..cut].escape_ascii()
                );
            }
            let mut longer = input.to_vec();
            longer.extend_from_slice(b"GET / HTTP/1.1\r\n");
            assert_eq!(
                parse(&longer),
                ParseResult::Header {
                    len: input.len(),
                    source: *want
                }
            );
        }
    }

    #[test]
    fn anything_else_is_left_to_tls_or_http() {
        let bad2 = v2(3, 0x11, &[0; 12]);
        let short2 = v2(1, 0x11, &[0; 3]);
        let cases: &[&[u8]] = &[
            b"GET / HTTP/1.1\r\n",
            b"\x16\x03\x01",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 5000\r\n",
            b"PROXY TCP4 2001:db8::1 192.0.2.2 5000 80\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 99999 80\r\n",
            b"PROXY TCP9 192.0.2.1 192.0.2.2 5000 80\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\n",
            &bad2,
            &short2,
            &[b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat(),
        ];
        for input in cases {
            assert_eq!(
                parse(input),
                ParseResult::Absent,
                "{}",
                input.escape_ascii()
            );
        }
    }
}
