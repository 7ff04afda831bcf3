//! Maps the path of a request to the path of a backend's resource, and `location` fields of backends back to URLs of
//! this server.

use std::borrow::Cow;

use h2o_http::path::DotSegments;
use h2o_http::{Reference, RequestHead, Scheme, authority, escape, path};
use h2o_upstream::BackendUrl;

/// How the path of a request becomes the path for the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathMapping {
    /// The rest of the request's path after the configured path is appended to the path of the backend's URL.
    Below,
    /// The whole request target is sent to the backend unchanged: it comes from an internal redirect that the backend
    /// asked for.
    Whole,
}

impl PathMapping {
    /// The part of a request's path to append to the path of the backend's URL, with the query. `mount` is the
    /// configured path.
    pub(super) fn rest<'a>(self, mount: &str, request: &'a RequestHead) -> Cow<'a, [u8]> {
        match self {
            Self::Below => below(mount.as_bytes(), request),
            Self::Whole => request.target().into(),
        }
    }

    /// The path and query for the backend, in pieces. `base` is the path of the backend's URL, `rest` the result of
    /// [`PathMapping::rest`].
    pub(super) fn target<'a>(self, mount: &str, base: &'a [u8], rest: &'a [u8]) -> [&'a [u8]; 3] {
        match self {
            Self::Below => forwarded(mount, base, rest),
            Self::Whole => redirected(base, rest),
        }
    }
}

/// Whether a backend might read dots in the path of the request as going up in directories where this server does not:
/// the request could then leave the path of the backend's URL.
pub(super) fn has_disguised_dots(request: &RequestHead) -> bool {
    let path = request.raw_path();
    let is_suspect = !request.is_path_plain() || memchr::memchr(b'\\', path).is_some();
    is_suspect && path::dot_segments(path) == DotSegments::Disguised
}

/// The path and query for a backend that has redirected a request of this server to `target`. The result is below
/// `base`, the path of the backend's URL. H2O prepends `base` even if `target` begins with it.
fn redirected<'a>(base: &'a [u8], target: &'a [u8]) -> [&'a [u8]; 3] {
    let bare = base.strip_suffix(b"/").unwrap_or(base);
    let is_below = target
        .strip_prefix(bare)
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/' | b'?')));
    if is_below {
        return [target, b"", b""];
    }
    [bare, target, b""]
}

/// Whether a reference in the response to a request with this `scheme` and `authority` leads to the server that has
/// sent it.
pub(super) fn stays(url: &[u8], scheme: Scheme, authority: &[u8]) -> bool {
    let Some(reference) = Reference::parse(url) else {
        return false;
    };
    let Some(theirs) = reference.authority else {
        return true;
    };
    if reference.scheme.is_some_and(|theirs| theirs != scheme) {
        return false;
    }
    let named = |authority| {
        let (host, port) = authority::split(authority)?;
        Some((host, port.unwrap_or(scheme.default_port())))
    };
    match (named(theirs), named(authority)) {
        (Some((theirs, port)), Some((ours, own_port))) => {
            theirs.eq_ignore_ascii_case(ours) && port == own_port
        }
        // The authority names a Unix socket, so there is no port to compare.
        _ => theirs == authority,
    }
}

/// The path and query for a backend, in pieces. `base` is the path of the backend's URL, `rest` the request's path
/// after the configured path `mount`.
fn forwarded<'a>(mount: &str, base: &'a [u8], rest: &'a [u8]) -> [&'a [u8]; 3] {
    let begins_with_slash = mount.ends_with('/') || rest.starts_with(b"/");
    match (base.strip_suffix(b"/"), begins_with_slash) {
        (Some(bare), true) if mount.ends_with('/') => [bare, b"/", rest],
        (Some(bare), true) => [bare, b"", rest],
        (Some(_), false) => [base, b"", rest],
        (None, _) if mount.ends_with('/') => [base, b"/", rest],
        (None, _) => [base, b"", rest],
    }
}

/// The part of the request's target after the configured path, as the client wrote it. H2O compatibility: H2O does not
/// change it either. If it has dot segments, the normal form is sent instead: servers differ in what they take for a
/// segment (`x%2f/..`, `//..`), so the request might leave the path of the backend's URL.
fn below<'a>(mount: &[u8], request: &'a RequestHead) -> Cow<'a, [u8]> {
    let target = request.target();
    // A target of at most one byte is `/`, `*`, or the empty path of CONNECT: nothing follows the configured path.
    if target.len() <= 1 {
        return Cow::default();
    }
    if request.is_path_plain() {
        return target.get(mount.len()..).unwrap_or_default().into();
    }
    let raw_path = request.raw_path();
    let is_plain_so_far = mount == b"/" && raw_path.starts_with(mount);
    let len = if is_plain_so_far || request.path() == raw_path {
        mount.len()
    } else {
        path::raw_len(raw_path, mount.len())
    };
    let rest = raw_path.get(len..).unwrap_or_default();
    // If an escaped slash follows the configured path, the normal form is sent: some servers do not read an escaped
    // slash as the end of a segment.
    let is_apart = mount.ends_with(b"/") || matches!(rest.first(), None | Some(b'/'));
    if is_apart && path::dot_segments(rest) == DotSegments::None {
        return target.get(len..).unwrap_or_default().into();
    }
    let normal = request.path().get(mount.len()..).unwrap_or_default();
    let mut rest = Vec::with_capacity(target.len());
    escape::uri(normal, b"/@:", &mut rest);
    rest.extend_from_slice(request.query());
    rest.into()
}

/// A client's request, with the configured path by which it was routed.
#[derive(Clone, Copy)]
pub(super) struct MountedRequest<'a> {
    pub(super) scheme: Scheme,
    pub(super) authority: &'a [u8],
    /// The configured path.
    pub(super) mount: &'a str,
}

/// The `location` for the client in place of a backend's `location` that leads below the backend's URL; `None` to leave
/// it unchanged.
///
/// H2O compatibility: H2O ignores `https` URLs. If the configured path has no trailing slash and the path of the
/// backend's URL has one, H2O drops the slash.
pub(super) fn relocated(
    location: &[u8],
    backend: &BackendUrl,
    place: MountedRequest<'_>,
) -> Option<Vec<u8>> {
    let (scheme, rest) = location.split_at_checked(7)?;
    if !scheme.eq_ignore_ascii_case(b"http://") {
        return None;
    }
    // The slashes within the brackets of `[unix:/path]` do not end the host.
    let brackets = match rest.first() {
        Some(b'[') => memchr::memchr(b']', rest)?,
        _ => 0,
    };
    let ends = |byte: &u8| matches!(byte, b'/' | b'?' | b'#');
    let end = rest[brackets..].iter().position(ends);
    let (host, path) = rest.split_at(end.map_or(rest.len(), |end| brackets + end));
    if !is_host_of(backend, host) {
        return None;
    }
    // An absent path means `/` (RFC 9110 §4.2.3).
    let path = match path.first() {
        Some(b'/') => path.to_vec(),
        _ => [b"/", path].concat(),
    };
    let rest = path.strip_prefix(&*backend.path)?;
    let mut url = Vec::with_capacity(place.authority.len() + place.mount.len() + rest.len() + 9);
    url.extend_from_slice(place.scheme.as_str().as_bytes());
    url.extend_from_slice(b"://");
    url.extend_from_slice(place.authority);
    url.extend_from_slice(place.mount.as_bytes());
    if backend.path.ends_with(b"/") && !place.mount.ends_with('/') {
        url.push(b'/');
    }
    url.extend_from_slice(rest);
    Some(url)
}

/// Whether the authority of an `http` URL is the backend's host and port.
fn is_host_of(backend: &BackendUrl, text: &[u8]) -> bool {
    if text.starts_with(b"[unix:") {
        return text == backend.authority.as_bytes();
    }
    let theirs = authority::split(text);
    let ours = authority::split(backend.authority.as_bytes());
    let (Some((theirs, port)), Some((ours, _))) = (theirs, ours) else {
        return false;
    };
    theirs.eq_ignore_ascii_case(ours) && port.unwrap_or(Scheme::Http.default_port()) == backend.port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(target: &str) -> RequestHead {
        let mut head = RequestHead::default();
        let target = head.headers.store(target.as_bytes());
        head.set_target(target);
        head
    }

    fn sent(mapping: PathMapping, mount: &str, base: &str, head: &RequestHead) -> Vec<u8> {
        let rest = mapping.rest(mount, head);
        mapping.target(mount, base.as_bytes(), &rest).concat()
    }

    #[test]
    fn redirects_of_a_backend_lead_below_its_url() {
        let cases = [
            // Each row: the path of the backend's URL, the target of the backend's redirect, the target sent to the
            // backend.
            ("/", "/x?y", "/x?y"),
            ("/base", "/x", "/base/x"),
            ("/base", "/base", "/base"),
            ("/base", "/base/x", "/base/x"),
            ("/base", "/base?x", "/base?x"),
            ("/base", "/basement", "/base/basement"),
            ("/base/", "/x", "/base/x"),
            ("/base/", "/base/x", "/base/x"),
        ];
        for (base, target, want) in cases {
            let sent = sent(PathMapping::Whole, "/mount", base, &head(target));
            assert_eq!(sent.escape_ascii().to_string(), want, "{base} {target}");
        }
    }

    #[test]
    fn references_stay_at_a_server_that_they_name_or_do_not_name() {
        let cases = [
            ("/x", "b:81", true),
            ("x", "b:81", true),
            ("http://B:81/x", "b:81", true),
            ("//b:81", "b:81", true),
            ("http://b/", "b:80", true),
            ("http://[unix:/s]/x", "[unix:/s]", true),
            ("http://b/", "b:81", false),
            ("https://b:81/", "b:81", false),
            ("http://c:81/", "b:81", false),
            ("http://[unix:/t]/x", "[unix:/s]", false),
            ("http://[", "[", false),
        ];
        for (url, authority, want) in cases {
            let stays = stays(url.as_bytes(), Scheme::Http, authority.as_bytes());
            assert_eq!(stays, want, "{url} {authority}");
        }
    }

    #[test]
    fn what_is_below_the_key_of_the_path_is_forwarded_as_written() {
        let cases = [
            // Each row: the configured path, the path of the backend's URL, the target of the request, the target sent
            // to the backend.
            ("/", "/", "/", "/"),
            ("/", "/", "/x/../y?q=1", "/y?q=1"),
            ("/", "/", "/.x/..y/...?/../", "/.x/..y/...?/../"),
            ("/", "/", "//x", "//x"),
            ("/", "/", "/%2e%2E/%00", "/%00"),
            ("/", "/", "/%2e%2e./%00", "/%2e%2e./%00"),
            ("/", "/", "*", "/"),
            ("/", "/", "", "/"),
            ("/", "/base", "/", "/base/"),
            ("/", "/base", "/x", "/base/x"),
            ("/", "/base/", "/x", "/base/x"),
            ("/", "/base/", "//x", "/base//x"),
            ("/", "/?a=", "/x?b", "/?a=/x?b"),
            ("/a", "/base", "/a", "/base"),
            ("/a", "/base", "/a/", "/base/"),
            ("/a", "/base", "/a?x", "/base?x"),
            ("/a", "/base", "/a/f", "/base/f"),
            ("/a", "/base", "/a//f", "/base//f"),
            ("/a", "/base", "/a/x%2Fy/z", "/base/x%2Fy/z"),
            ("/a", "/base", "/a/x%2Fy/../z%20?%41", "/base/x/z%20?%41"),
            ("/a", "/base", "/a/%252e%252e/./%61", "/base/%252e%252e/a"),
            ("/a", "/base", "/foo/../%61/f", "/base/f"),
            ("/a", "/base", "/%61?%61", "/base?%61"),
            ("/a", "/base", "/a/../a/f", "/base/f"),
            ("/a", "/base", "/./a/./f", "/base/f"),
            ("/a", "/base", "/a/..;/f", "/base/..;/f"),
            ("/a", "/base", "/a%2Ff%2Fg?%2F", "/base/f/g?%2F"),
            ("/a/", "/base", "/a%2Ff%2Fg", "/base/f%2Fg"),
            ("/a", "/base/", "/a", "/base/"),
            ("/a", "/base/", "/a/f", "/base/f"),
            ("/b/", "/base/", "/b/", "/base/"),
            ("/b/", "/base/", "/b/f", "/base/f"),
            ("/b/", "/base", "/b/", "/base/"),
            ("/b/", "/base", "/b/f?q", "/base/f?q"),
            ("/b/", "/base/", "/b/x/../f", "/base/f"),
            ("/b/", "/base/", "/b/../b/f", "/base/f"),
            ("/c", "/", "/c", "/"),
            ("/c", "/", "/c?q", "/?q"),
            ("/c", "/", "/c/d", "/d"),
            ("/c", "/", "/c//d", "//d"),
        ];
        for (mount, base, target, want) in cases {
            let got = sent(PathMapping::Below, mount, base, &head(target));
            let got = got.escape_ascii().to_string();
            assert_eq!(got, want, "{mount} {base} {target}");
        }
    }

    /// Resolves a path as a server would that decodes escapes, merges slashes, or is odd: an odd server reads
    /// backslashes as slashes and knows path parameters.
    fn resolved(path: &[u8], decodes: bool, merges_slashes: bool, is_odd: bool) -> String {
        let text = String::from_utf8_lossy(path).into_owned();
        let text = if decodes {
            text.replace("%2e", ".")
                .replace("%2F", "/")
                .replace("%5c", "\\")
        } else {
            text
        };
        let text = if is_odd {
            text.replace('\\', "/")
        } else {
            text
        };
        let mut segments = Vec::new();
        for segment in text[1..].split('/') {
            let name = if is_odd {
                segment.split([';', '#']).next().unwrap_or_default()
            } else {
                segment
            };
            match name {
                "." => {}
                ".." => {
                    segments.pop();
                }
                "" if merges_slashes => {}
                _ => segments.push(segment),
            }
        }
        format!("/{}", segments.join("/"))
    }

    #[test]
    fn no_dot_segments_lead_out_of_the_path_of_the_backend() {
        let parts = [
            "/", "a", "..", ".", "%2e", "/a", "%2F", "b", ";", "\\", "%5c",
        ];
        let mut count = 0;
        for (mount, length) in [("/a", 5), ("/", 4)] {
            for seed in 0..parts.len().pow(length) {
                let target: String = (0..length)
                    .map(|at| parts[seed / parts.len().pow(at) % parts.len()])
                    .collect();
                let head = head(&format!("/{target}"));
                let is_below =
                    mount == "/" || head.path() == b"/a" || head.path().starts_with(b"/a/");
                if !is_below || has_disguised_dots(&head) {
                    continue;
                }
                count += 1;
                let sent = sent(PathMapping::Below, mount, "/base", &head);
                for way in 0..8 {
                    let there = resolved(&sent, way & 1 > 0, way & 2 > 0, way & 4 > 0);
                    let is_below = there == "/base" || there.starts_with("/base/");
                    assert!(is_below, "{target}: {} is {there}", sent.escape_ascii());
                }
            }
        }
        assert!(count > 10_000, "{count}");
    }

    #[test]
    fn dots_that_only_some_servers_take_for_segments_are_noticed() {
        for target in ["/a/..;/x", "/a/..\\x", "/a\\..", "/%2e%2e%5cx", "/..;?q"] {
            assert!(has_disguised_dots(&head(target)), "{target}");
        }
        for target in ["/a/../x", "/a\\b;c", "/?/..;/", "/.;a/..b", "*", ""] {
            let want = target == "/.;a/..b";
            assert_eq!(has_disguised_dots(&head(target)), want, "{target}");
        }
    }

    #[test]
    fn locations_below_the_backend_stay_below_our_key_whatever_they_are() {
        let parts = ["http://", "[", "]", "/", "b", ":81", "?", "#", "/v"];
        let place = MountedRequest {
            scheme: Scheme::Http,
            authority: b"c",
            mount: "/m",
        };
        for url in ["http://b:81/v", "http://[unix:/]/v"] {
            let backend = BackendUrl::parse(url).unwrap();
            for seed in 0..parts.len().pow(5) {
                let location: String = (0..5)
                    .map(|at| parts[seed / parts.len().pow(at) % parts.len()])
                    .collect();
                let ours = relocated(location.as_bytes(), &backend, place);
                let is_ours = ours.is_none_or(|ours| ours.starts_with(b"http://c/m"));
                assert!(is_ours, "{location}");
            }
        }
    }

    #[test]
    fn locations_of_the_backend_become_ours() {
        let cases = [
            // Each row: the URL of the backend, the configured path, the backend's `location`, the `location` for the
            // client.
            ("http://b:81", "/", "http://b:81/foo", "https://C:8/foo"),
            ("http://b:81", "/", "HTTP://B:81/foo", "https://C:8/foo"),
            ("http://b:81", "/", "http://b:81", "https://C:8/"),
            ("http://b:81", "/", "http://b:81?q", "https://C:8/?q"),
            ("http://b", "/", "http://b/foo?x#y", "https://C:8/foo?x#y"),
            ("http://b", "/", "http://b:80/", "https://C:8/"),
            ("http://b:80", "/", "http://b/", "https://C:8/"),
            (
                "http://b/base",
                "/a",
                "http://b/base/foo",
                "https://C:8/a/foo",
            ),
            ("http://b/base", "/a", "http://b/base", "https://C:8/a"),
            (
                "http://b/base/",
                "/b/",
                "http://b/base/foo",
                "https://C:8/b/foo",
            ),
            ("http://b", "/c", "http://b/foo", "https://C:8/c/foo"),
            ("http://[::1]:9", "/", "http://[::1]:9/x", "https://C:8/x"),
            (
                "http://[unix:/A/b.sock]/v",
                "/",
                "http://[unix:/A/b.sock]/v/x",
                "https://C:8//x",
            ),
            ("https://b:80/", "/", "http://b/x", "https://C:8/x"),
            ("http://b/base", "/a", "http://b/other", ""),
            ("http://b:81", "/", "http://b/foo", ""),
            ("http://b:81", "/", "http://b:82/foo", ""),
            ("http://b", "/", "http://c/foo", ""),
            ("http://b", "/", "http://u@b/foo", ""),
            ("http://b", "/", "https://b/foo", ""),
            ("https://b", "/", "https://b/foo", ""),
            ("https://b", "/", "http://b/foo", ""),
            ("http://b", "/", "/foo", ""),
            ("http://b", "/", "foo", ""),
            ("http://b", "/", "//b/foo", ""),
            ("http://b", "/", "http://", ""),
            ("http://b", "/", "http://[::1", ""),
            ("http://b", "/", "", ""),
        ];
        for (backend, mount, location, want) in cases {
            let backend = BackendUrl::parse(backend).unwrap();
            let place = MountedRequest {
                scheme: Scheme::Https,
                authority: b"C:8",
                mount,
            };
            let got = relocated(location.as_bytes(), &backend, place).unwrap_or_default();
            let got = got.escape_ascii().to_string();
            assert_eq!(got, want, "{} {mount} {location}", backend.authority);
        }
    }
}
