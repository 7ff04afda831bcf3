//! The target of a tunnel request.

use std::net::Ipv6Addr;

use h2o_http::authority;

/// A host with a port, to which a client wants a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The name of the host, or its numeric address without brackets.
    pub(super) host: String,
    /// The port, which is never 0.
    pub(super) port: u16,
}

impl Target {
    /// Reads `host:port`. Both the host and the port are required.
    pub(super) fn from_authority(authority: &[u8]) -> Option<Self> {
        let (host, port) = authority::split(authority)?;
        let host = host
            .strip_prefix(b"[")
            .and_then(|host| host.strip_suffix(b"]"))
            .unwrap_or(host);
        Self::new(host, port?)
    }

    /// Reads the path `[/]HOST/PORT/`, which was already unescaped (RFC 9298 §2 with the default template, after the
    /// path of the handler). H2O compatibility: H2O requires the last slash.
    pub(super) fn from_path(path: &[u8]) -> Option<Self> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let mut parts = path.split(|byte| *byte == b'/');
        let (host, port) = (parts.next()?, parts.next()?);
        if parts.next() != Some(b"") || parts.next().is_some() {
            return None;
        }
        let is_number = (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
        if host.first() == Some(&b'[') {
            // IPv6 addresses have no brackets in the path (RFC 9298 §3).
            return None;
        }
        let port: u16 = str::from_utf8(port)
            .ok()
            .filter(|_| is_number)?
            .parse()
            .ok()?;
        // H2O compatibility: H2O does not accept port 65535 here.
        (port < u16::MAX).then(|| Self::new(host, port)).flatten()
    }

    fn new(host: &[u8], port: u16) -> Option<Self> {
        let host = str::from_utf8(host).ok()?;
        // A host with a colon that is no IPv6 address, or with bytes not allowed in hosts, is refused: it must not
        // reach the resolver.
        let is_host = host.parse::<Ipv6Addr>().is_ok()
            || authority::split(host.as_bytes()).is_some_and(|(name, _)| name == host.as_bytes());
        (is_host && port != 0).then(|| Self {
            host: host.to_owned(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(target: Option<Target>) -> String {
        target.map_or("none".to_owned(), |target| {
            format!("{} {}", target.host, target.port)
        })
    }

    #[test]
    fn authorities_have_a_host_and_a_port() {
        let cases: &[(&[u8], &str)] = &[
            (b"a.example:443", "a.example 443"),
            (b"192.0.2.1:1", "192.0.2.1 1"),
            (b"[2001:db8::1]:65535", "2001:db8::1 65535"),
            (b"a.example", "none"),
            (b"a.example:", "none"),
            (b"a.example:0", "none"),
            (b"a.example:65536", "none"),
            (b":80", "none"),
            (b"2001:db8::1", "none"),
            (b"http://a.example:80", "none"),
            (b"a@b:80", "none"),
            (b"\xff\xfe:80", "none"),
            (b"", "none"),
        ];
        for (authority, want) in cases {
            let got = show(Target::from_authority(authority));
            assert_eq!(got, *want, "{}", authority.escape_ascii());
        }
    }

    #[test]
    fn paths_have_a_host_and_a_port_between_slashes() {
        let cases: &[(&[u8], &str)] = &[
            (b"/a.example/443/", "a.example 443"),
            (b"192.0.2.1/53/", "192.0.2.1 53"),
            (b"/2001:db8::1/65534/", "2001:db8::1 65534"),
            (b"/a.example/443", "none"),
            (b"/a.example/443/x", "none"),
            (b"/a.example/443//", "none"),
            (b"//443/", "none"),
            (b"/a.example//", "none"),
            (b"/a.example/0/", "none"),
            (b"/a.example/65535/", "none"),
            (b"/a.example/+80/", "none"),
            (b"/a.example/000080/", "none"),
            (b"/a:b/80/", "none"),
            (b"/[::1]/80/", "none"),
            (b"/a b/80/", "none"),
            (b"/a\0/80/", "none"),
            (b"/*/*/", "none"),
            (b"/", "none"),
            (b"", "none"),
        ];
        for (path, want) in cases {
            let got = show(Target::from_path(path));
            assert_eq!(got, *want, "{}", path.escape_ascii());
        }
    }
}
