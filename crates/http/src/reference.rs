//! URI references (RFC 3986 §4.1) in configurations and in fields of backends' responses.

use std::borrow::Cow;

use crate::Scheme;

/// The parts of a URI reference. H2O compatibility: H2O takes a reference with a scheme other than `http` or `https` (in
/// lower case) for a relative path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// The scheme, if the reference names one.
    pub scheme: Option<Scheme>,
    /// The authority, if the reference names one. It is not validated.
    pub authority: Option<&'a [u8]>,
    /// The path and query.
    path: &'a [u8],
}

impl<'a> Reference<'a> {
    /// Splits a reference into its parts; the fragment is dropped. `None` if the reference has a blank or control
    /// character, or a bracket that is not closed.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        if text
            .iter()
            .any(|byte| byte.is_ascii_control() || *byte == b' ')
        {
            return None;
        }
        let text = text.split(|&byte| byte == b'#').next().unwrap_or_default();
        let (scheme, rest) = match text {
            [b'h', b't', b't', b'p', b':', rest @ ..] if rest.starts_with(b"//") => {
                (Some(Scheme::Http), rest)
            }
            [b'h', b't', b't', b'p', b's', b':', rest @ ..] if rest.starts_with(b"//") => {
                (Some(Scheme::Https), rest)
            }
            rest => (None, rest),
        };
        let Some(rest) = rest.strip_prefix(b"//") else {
            return Some(Self {
                scheme,
                authority: None,
                path: rest,
            });
        };
        // The authority of a Unix-domain socket is a file's path in brackets, whose slashes do not end the authority.
        let brackets = match rest.first() {
            Some(b'[') => memchr::memchr(b']', rest)?,
            _ => 0,
        };
        let end = memchr::memchr2(b'/', b'?', &rest[brackets..]);
        let (authority, path) = rest.split_at(end.map_or(rest.len(), |end| brackets + end));
        Some(Self {
            scheme,
            authority: Some(authority),
            path,
        })
    }

    /// Resolves the reference against the path and query `current` (RFC 3986 §5.2; only dot segments at the beginning of a
    /// relative path are resolved). The result is a path and query that begins with a slash.
    #[must_use]
    pub fn target(&self, current: &[u8]) -> Cow<'a, [u8]> {
        let path = self.path;
        if path.starts_with(b"/") {
            return path.into();
        }
        if self.authority.is_some() {
            return [b"/", path].concat().into();
        }
        // A target of a request that does not begin with a slash is `*` or, for CONNECT, an authority.
        let current = if current.starts_with(b"/") {
            current
        } else {
            b"/"
        };
        if path.is_empty() {
            return current.to_vec().into();
        }
        let query_at = memchr::memchr(b'?', current).unwrap_or(current.len());
        let current = &current[..query_at];
        if path.starts_with(b"?") {
            return [current, path].concat().into();
        }
        let mut directory = parent(current);
        let mut rest = path;
        loop {
            if let Some(behind) = rest.strip_prefix(b"../") {
                directory = parent(directory);
                rest = behind;
            } else if let Some(behind) = rest.strip_prefix(b"./") {
                rest = behind;
            } else {
                return [directory, b"/", rest].concat().into();
            }
        }
    }
}

/// The directory of `path`: the part before the last slash.
fn parent(path: &[u8]) -> &[u8] {
    &path[..memchr::memrchr(b'/', path).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_scheme_authority_and_path() {
        use Scheme::{Http, Https};
        let cases: &[(&str, Option<Scheme>, Option<&str>, &str)] = &[
            // each row: the reference; its scheme, authority, and the target that it resolves to against /a/b?q
            ("http://h:8/x?y#z", Some(Http), Some("h:8"), "/x?y"),
            ("https://h", Some(Https), Some("h"), "/"),
            ("http://h?q/r", Some(Http), Some("h"), "/?q/r"),
            ("http://#f", Some(Http), Some(""), "/"),
            ("//h/x", None, Some("h"), "/x"),
            ("http://[::1]:8/x", Some(Http), Some("[::1]:8"), "/x"),
            (
                "http://[unix:/a/b]/x",
                Some(Http),
                Some("[unix:/a/b]"),
                "/x",
            ),
            ("/x/../y?z", None, None, "/x/../y?z"),
            ("x", None, None, "/a/x"),
            ("./x", None, None, "/a/x"),
            ("../x/../y", None, None, "/x/../y"),
            ("../.././../x?../y", None, None, "/x?../y"),
            ("?x", None, None, "/a/b?x"),
            ("", None, None, "/a/b?q"),
            ("#f", None, None, "/a/b?q"),
            ("ftp://h/x", None, None, "/a/ftp://h/x"),
            ("HTTP://h/x", None, None, "/a/HTTP://h/x"),
            ("http:/x", None, None, "/a/http:/x"),
        ];
        for &(text, scheme, authority, target) in cases {
            let reference = Reference::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(reference.scheme, scheme, "{text}");
            assert_eq!(reference.authority, authority.map(str::as_bytes), "{text}");
            let got = reference.target(b"/a/b?q");
            assert_eq!(got.escape_ascii().to_string(), target, "{text}");
        }
        for (text, current, want) in [
            ("x", "", "/x"),
            ("", "", "/"),
            ("", "*", "/"),
            ("?x", "h:443", "/?x"),
            ("x", "/", "/x"),
            ("x", "/a/?b/c", "/a/x"),
        ] {
            let reference = Reference::parse(text.as_bytes()).unwrap();
            let got = reference.target(current.as_bytes());
            assert_eq!(*got, *want.as_bytes(), "{text} {current}");
        }
    }

    #[test]
    fn what_no_target_has_is_no_reference() {
        for text in [
            "http://[",
            "//[::1",
            "/a b",
            "/a\rb",
            "/\x7f",
            "http://h\0/",
        ] {
            assert_eq!(Reference::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
