//! The URL of a backend.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use h2o_http::Scheme;

/// Length in bytes of the longest path of a Unix-domain socket (`sun_path`), without the terminating zero.
pub const MAX_UNIX_PATH: usize = 107;

/// The host in the URL of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendHost {
    /// A name in lower case, resolved for every new connection.
    Name(Box<str>),
    /// An IP address, which is connected to directly.
    Ip(IpAddr),
    /// The path of a Unix-domain socket.
    Unix(Box<Path>),
}

/// The URL of a backend: `http://` or `https://`, host, port, path. H2O compatibility: H2O takes the scheme in lower
/// case only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendUrl {
    /// The scheme of the URL: `http` or `https`.
    pub scheme: Scheme,
    /// The host of the URL.
    pub host: BackendHost,
    /// The port of the URL; unused for Unix-domain sockets.
    pub port: u16,
    /// The authority of the URL: `host:port` as configured but in lower case, or `[unix:/path]` with the path
    /// unchanged.
    pub authority: Box<str>,
    /// Path and query of the URL, with which the path of every request begins; at least `/`.
    pub path: Box<[u8]>,
}

impl BackendUrl {
    /// Parses a URL; `None` if it cannot be the URL of a backend.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = if let Some(rest) = url.strip_prefix("http://") {
            (Scheme::Http, rest)
        } else {
            (Scheme::Https, url.strip_prefix("https://")?)
        };
        // The path of a Unix-domain socket contains slashes, so the host ends at `]`.
        let host_end = match rest.strip_prefix('[') {
            Some(inner) => inner.find(']')? + 2,
            None => rest.find([':', '/', '?']).unwrap_or(rest.len()),
        };
        let (host_text, rest) = rest.split_at(host_end);
        let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (port_text, path) = rest.split_at(path_at);
        let host = parse_host(host_text)?;
        let port = match port_text.strip_prefix(':') {
            Some(digits) => parse_port(digits)?,
            None if port_text.is_empty() => scheme.default_port(),
            None => return None,
        };
        if !h2o_http::is_visible(path.as_bytes()) {
            return None;
        }
        let path = if path.starts_with('/') {
            path.into()
        } else {
            format!("/{path}")
        };
        let authority = match &host {
            BackendHost::Unix(_) => format!("{host_text}{port_text}"),
            BackendHost::Name(_) | BackendHost::Ip(_) => {
                format!("{host_text}{port_text}").to_ascii_lowercase()
            }
        };
        Some(Self {
            scheme,
            host,
            port,
            authority: authority.into(),
            path: path.into_bytes().into(),
        })
    }

    /// Like [`BackendUrl::parse`], for a URL whose path and query may have bytes that are no UTF-8.
    #[must_use]
    pub fn parse_bytes(url: &[u8]) -> Option<Self> {
        let error = match std::str::from_utf8(url) {
            Ok(text) => return Self::parse(text),
            Err(error) => error,
        };
        let (text, rest) = url.split_at(error.valid_up_to());
        let text = std::str::from_utf8(text).ok()?;
        let mut parsed = Self::parse(text)?;
        let before_path = parsed.scheme.as_str().len() + "://".len() + parsed.authority.len();
        if text.len() <= before_path || !h2o_http::is_visible(rest) {
            return None;
        }
        parsed.path = [&parsed.path, rest].concat().into();
        Some(parsed)
    }

    /// The URL without query and fragment, for messages.
    #[must_use]
    pub fn to_text(&self) -> String {
        let (scheme, authority) = (self.scheme.as_str(), &self.authority);
        format!("{scheme}://{authority}{}", self.path.escape_ascii())
    }

    /// The name that the backend's certificate must contain: the host as written in the URL, IPv6 addresses without brackets.
    #[must_use]
    pub fn tls_name(&self) -> &str {
        match self.authority.strip_prefix('[') {
            Some(inner) => inner.rsplit_once(']').map_or(inner, |(inner, _)| inner),
            None => self
                .authority
                .split_once(':')
                .map_or(&self.authority, |(host, _)| host),
        }
    }
}

fn parse_host(text: &str) -> Option<BackendHost> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?;
        return match inner.strip_prefix("unix:") {
            Some(path) => {
                let fits = (1..=MAX_UNIX_PATH).contains(&path.len()) && !path.contains('\0');
                fits.then(|| BackendHost::Unix(Path::new(path).into()))
            }
            None => Some(BackendHost::Ip(inner.parse::<Ipv6Addr>().ok()?.into())),
        };
    }
    if let Ok(address) = text.parse::<std::net::Ipv4Addr>() {
        return Some(BackendHost::Ip(address.into()));
    }
    h2o_http::authority::is_valid(text.as_bytes())
        .then(|| BackendHost::Name(text.to_ascii_lowercase().into()))
}

/// Parses a port. H2O compatibility: H2O refuses 65535 and above. More than five digits are refused because the text
/// becomes part of the `host` field, where many servers, ours included, would refuse them.
fn parse_port(digits: &str) -> Option<u16> {
    if digits.len() > 5 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|&port| port < u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_may_be_no_utf_8() {
        for (url, want) in [
            (&b"http://a/caf\xe9/x"[..], Some(&b"/caf\xe9/x"[..])),
            (b"http://A:8?\xff", Some(b"/?\xff")),
            (b"http://[unix:/s]/\xe9", Some(b"/\xe9")),
            (b"http://a/b", Some(b"/b")),
            (b"http://a\xe9/", None),
            (b"http://a:8\xe9/", None),
            (b"http://[unix:/s\xe9]/", None),
            (b"http\xe9://a/", None),
            (b"http://a/\xe9 b", None),
            (b"http://a/\xe9\r\n", None),
        ] {
            let parsed = BackendUrl::parse_bytes(url);
            let path = parsed.as_ref().map(|url| &*url.path);
            assert_eq!(path, want, "{}", url.escape_ascii());
        }
    }

    #[test]
    fn urls_have_host_port_and_path() {
        let name = |text: &str| BackendHost::Name(text.into());
        let ip = |text: &str| BackendHost::Ip(text.parse().unwrap());
        let unix = |text: &str| BackendHost::Unix(Path::new(text).into());
        let cases = [
            // Each case: the URL, and its host, port, authority, path and the name that the certificate must contain.
            (
                "http://App1.Internal:9000/v2",
                name("app1.internal"),
                9000,
                "app1.internal:9000",
                "/v2",
                "app1.internal",
            ),
            ("http://a", name("a"), 80, "a", "/", "a"),
            ("https://a", name("a"), 443, "a", "/", "a"),
            ("http://a?q", name("a"), 80, "a", "/?q", "a"),
            (
                "http://a:65534?q:/",
                name("a"),
                65534,
                "a:65534",
                "/?q:/",
                "a",
            ),
            (
                "http://127.0.0.1:81/x?y",
                ip("127.0.0.1"),
                81,
                "127.0.0.1:81",
                "/x?y",
                "127.0.0.1",
            ),
            ("http://[::1]:81/", ip("::1"), 81, "[::1]:81", "/", "::1"),
            (
                "http://[FE80::1]",
                ip("fe80::1"),
                80,
                "[fe80::1]",
                "/",
                "fe80::1",
            ),
            (
                "http://[unix:/Run/app2.sock]/v2",
                unix("/Run/app2.sock"),
                80,
                "[unix:/Run/app2.sock]",
                "/v2",
                "unix:/Run/app2.sock",
            ),
        ];
        for (url, host, port, authority, path, tls_name) in cases {
            let read = BackendUrl::parse(url).unwrap_or_else(|| panic!("{url}"));
            assert_eq!((&read.host, read.port), (&host, port), "{url}");
            assert_eq!(&*read.authority, authority, "{url}");
            assert_eq!(&*read.path, path.as_bytes(), "{url}");
            assert_eq!(read.tls_name(), tls_name, "{url}");
        }
    }

    #[test]
    fn what_is_no_backend_is_refused() {
        let long = "x".repeat(MAX_UNIX_PATH + 1);
        let fits = format!("http://[unix:{}]/", &long[1..]);
        assert!(BackendUrl::parse(&fits).is_some());
        let long = format!("http://[unix:{long}]/");
        for url in [
            "",
            "http:/a",
            "HTTP://a/",
            "ftp://a/",
            "a:80",
            "http://",
            "http:///x",
            "http://:80/",
            "http://a:65535/",
            "http://a:70000/",
            "http://a:000080/",
            "http://a:/",
            "http://a:8o/",
            "http://a:+8/",
            "http://a b/",
            "http://a/b c",
            "http://u@a/",
            "http://[::1/",
            "http://[::1]8/",
            "http://[1.2.3.4]/",
            "http://[unix:]/",
            &long,
        ] {
            assert_eq!(BackendUrl::parse(url), None, "{url}");
        }
    }
}
