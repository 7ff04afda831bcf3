//! Request targets (RFC 9112 §3.2), and the rules for requests whose target is an authority.

use std::ops::Range;

use h2o_http::path::TargetScan;
use h2o_http::{Method, RequestHead, Scheme, Span, Version, authority};

use crate::PeerError;

/// Stores the target of a request in `head`. An absolute target also sets the authority and scheme, which then replace
/// those of `Host` and the connection (RFC 9112 §3.2). The arena of `head` starts with `input`.
#[inline]
pub(crate) fn set_target(
    input: &[u8],
    at: usize,
    scanned: &TargetScan,
    head: &mut RequestHead,
) -> Result<(), PeerError> {
    let whole = Span::new(at, scanned.len);
    if input[at] == b'/' && head.method != Method::Connect {
        head.set_scanned_target(whole, scanned);
        return Ok(());
    }
    set_other_target(input, at..at + scanned.len, whole, head)
}

/// Stores a target that is not a path.
fn set_other_target(
    input: &[u8],
    target: Range<usize>,
    whole: Span,
    head: &mut RequestHead,
) -> Result<(), PeerError> {
    let text = &input[target.clone()];
    if head.method == Method::Connect {
        head.set_authority(whole);
        head.set_target(whole);
        return Ok(());
    }
    // H2O compatibility: H2O recognises schemes in lower case only.
    let scheme = [Scheme::Http, Scheme::Https, Scheme::Masque]
        .into_iter()
        .find(|scheme| {
            text.strip_prefix(scheme.as_str().as_bytes())
                .is_some_and(|rest| rest.starts_with(b"://"))
        });
    let Some(scheme) = scheme else {
        head.set_target(whole);
        return Ok(());
    };
    let authority_at = target.start + scheme.as_str().len() + 3;
    let rest = &input[authority_at..target.end];
    let authority_len = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    // Also refuses user information, which is not allowed in a target (RFC 9110 §4.2.4): no host may have an `@`.
    authority::split(&rest[..authority_len]).ok_or(PeerError::AuthorityInvalid)?;
    head.scheme = scheme;
    head.set_authority(Span::new(authority_at, authority_len));
    let path = &rest[authority_len..];
    if path.first() == Some(&b'/') {
        head.set_target(Span::new(authority_at + authority_len, path.len()));
    } else {
        let mut rooted = Vec::with_capacity(path.len() + 1);
        rooted.push(b'/');
        rooted.extend_from_slice(path);
        let rooted = head.headers.store(&rooted);
        head.set_target(rooted);
    }
    Ok(())
}

/// Whether a request for a tunnel has the form that its method requires, and `Host`, if there is one, agrees with the
/// target of CONNECT. The handler checks that the target is `host:port` (RFC 9110 §9.3.6), since it can explain an error in
/// `proxy-status` (RFC 9209). In CONNECT-UDP drafts the authority is part of an absolute target with the path `/`.
pub(crate) fn is_connect_fit(head: &RequestHead, host: &[u8]) -> bool {
    let target = head.target();
    let names_peer = if head.method == Method::Connect {
        host.is_empty() || host == target
    } else {
        head.scheme != Scheme::Http && target == b"/"
    };
    names_peer && head.version == Version::Http11
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, request_head};

    #[test]
    fn targets_have_four_forms() {
        type Want = Result<(Scheme, &'static str, &'static str, &'static str), PeerError>;
        let bad_authority = Err(PeerError::AuthorityInvalid);
        let cases: &[(&str, Want)] = &[
            (
                "GET /a/../b?c",
                Ok((Scheme::Http, "h:1", "/b", "/a/../b?c")),
            ),
            ("GET //x/y", Ok((Scheme::Http, "h:1", "//x/y", "//x/y"))),
            ("OPTIONS *", Ok((Scheme::Http, "h:1", "/*", "*"))),
            ("GET foo", Ok((Scheme::Http, "h:1", "/foo", "foo"))),
            ("GET ?q", Ok((Scheme::Http, "h:1", "/", "?q"))),
            (
                "GET http://a.b/c?d",
                Ok((Scheme::Http, "a.b", "/c", "/c?d")),
            ),
            (
                "GET https://a.b:8443/c",
                Ok((Scheme::Https, "a.b:8443", "/c", "/c")),
            ),
            ("GET https://a.b", Ok((Scheme::Https, "a.b", "/", "/"))),
            ("GET http://a.b?d", Ok((Scheme::Http, "a.b", "/", "/?d"))),
            (
                "GET http://[::1]:80/",
                Ok((Scheme::Http, "[::1]:80", "/", "/")),
            ),
            (
                "GET HTTP://a.b/c",
                Ok((Scheme::Http, "h:1", "/HTTP://a.b/c", "HTTP://a.b/c")),
            ),
            (
                "GET http:/a.b",
                Ok((Scheme::Http, "h:1", "/http:/a.b", "http:/a.b")),
            ),
            ("CONNECT h:1", Ok((Scheme::Http, "h:1", "/h:1", "h:1"))),
            (
                "CONNECT-UDP masque://a.b/",
                Ok((Scheme::Masque, "a.b", "/", "/")),
            ),
            (
                "CONNECT-UDP https://a.b:4/",
                Ok((Scheme::Https, "a.b:4", "/", "/")),
            ),
            ("GET http://u@a.b/", bad_authority),
            ("GET http://u:p@a.b/", bad_authority),
            ("GET http:///c", bad_authority),
            ("GET http://?c", bad_authority),
            ("GET http://a.b:x/", bad_authority),
            ("GET http://a.b#c", bad_authority),
            ("CONNECT h:2", Err(PeerError::ConnectInvalid)),
            ("CONNECT h", Err(PeerError::ConnectInvalid)),
            ("CONNECT /h:1", Err(PeerError::ConnectInvalid)),
            ("CONNECT-UDP masque://a.b/c", Err(PeerError::ConnectInvalid)),
            ("CONNECT-UDP http://a.b/", Err(PeerError::ConnectInvalid)),
            ("CONNECT-UDP /", Err(PeerError::ConnectInvalid)),
            ("GET masque://a.b/", Err(PeerError::MasqueInvalid)),
        ];
        for (line, want) in cases {
            let input = format!("{line} HTTP/1.1\r\nHost: h:1\r\n\r\n");
            let mut head = RequestHead::default();
            let settings = Settings::default();
            let got = request_head::parse(input.as_bytes(), &settings, Scheme::Http, &mut head);
            let got = got.map(|_| {
                let text = |bytes| std::str::from_utf8(bytes).unwrap();
                let target = text(head.target());
                (
                    head.scheme,
                    text(head.authority()),
                    text(head.path()),
                    target,
                )
            });
            assert_eq!(got, *want, "{line}");
        }
    }

    #[test]
    fn handlers_see_what_connect_names_whatever_it_is() {
        for target in ["h", "h:", "h:0", "h:99999", "u@h:1", "/h:1", "[::1"] {
            for host in [format!("Host: {target}\r\n"), String::new()] {
                let input = format!("CONNECT {target} HTTP/1.1\r\n{host}\r\n");
                let mut head = RequestHead::default();
                let settings = Settings::default();
                request_head::parse(input.as_bytes(), &settings, Scheme::Http, &mut head)
                    .unwrap_or_else(|error| panic!("{input}: {error:?}"));
                assert_eq!(head.authority(), target.as_bytes());
            }
        }
    }
}
