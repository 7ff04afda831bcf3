//! Which resource of a backend a request is for, and which of ours a `location` of the backend names.

use h2o_http::{Reference, RequestHead, Scheme, authority, path};
use h2o_upstream::BackendUrl;

/// What a backend is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// What the request has below the key of its path.
    Below,
    /// All of the request's target: a server has told us to go there.
    Whole,
}

impl Aim {
    /// Path and query to ask a backend for, in pieces. `mount` is the key of the path, `base` the path of the backend's URL.
    pub(super) fn target<'a>(
        self,
        mount: &str,
        base: &'a [u8],
        request: &'a RequestHead,
    ) -> [&'a [u8]; 3] {
        match self {
            Self::Below => forwarded(mount, base, request),
            Self::Whole => redirected(base, request.target()),
        }
    }
}

/// Path and query to ask a backend for that has told us to go to `target`: below the `base` of its URL. H2O puts that in
/// front also where it is there already.
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

/// True if a reference in the answer to what was sent with this `scheme` and `authority` leads to the same server.
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
        // A Unix-domain socket.
        _ => theirs == authority,
    }
}

/// Path and query to ask a backend for, in pieces: the `base` of its URL, and what the request has below the path key
/// `mount`, which is handed on as it was written (H2O compatibility).
fn forwarded<'a>(mount: &str, base: &'a [u8], request: &'a RequestHead) -> [&'a [u8]; 3] {
    let rest = below(mount.as_bytes(), request);
    let begins_with_slash = mount.ends_with('/') || rest.starts_with(b"/");
    match (base.strip_suffix(b"/"), begins_with_slash) {
        (Some(bare), true) if mount.ends_with('/') => [bare, b"/", rest],
        (Some(bare), true) => [bare, b"", rest],
        (Some(_), false) => [base, b"", rest],
        (None, _) if mount.ends_with('/') => [base, b"/", rest],
        (None, _) => [base, b"", rest],
    }
}

/// The part of the target behind the octets that stand for the key of the path.
fn below<'a>(mount: &[u8], request: &'a RequestHead) -> &'a [u8] {
    let target = request.target();
    // `/`, `*`, or the nothing of CONNECT.
    if target.len() <= 1 {
        return b"";
    }
    if mount == b"/" {
        return target.strip_prefix(b"/").unwrap_or(target);
    }
    let raw_path = request.raw_path();
    let len = if request.path() == raw_path {
        mount.len()
    } else {
        path::raw_len(raw_path, mount.len())
    };
    target.get(len..).unwrap_or_default()
}

/// The place of a client's request.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) scheme: Scheme,
    pub(super) authority: &'a [u8],
    /// The key of the path it was routed to.
    pub(super) mount: &'a str,
}

/// What a client is to be told in place of a `location` below the URL of the backend; `None` if it is not there.
///
/// H2O compatibility: `https` URLs are never looked at. Where the key of the path has no slash at its end and the path of the
/// backend has one, H2O loses it.
pub(super) fn relocated(
    location: &[u8],
    backend: &BackendUrl,
    place: Place<'_>,
) -> Option<Vec<u8>> {
    let (scheme, rest) = location.split_at_checked(7)?;
    if !scheme.eq_ignore_ascii_case(b"http://") {
        return None;
    }
    // The path of a Unix-domain socket has slashes of its own.
    let brackets = match rest.first() {
        Some(b'[') => memchr::memchr(b']', rest)?,
        _ => 0,
    };
    let ends = |octet: &u8| matches!(octet, b'/' | b'?' | b'#');
    let end = rest[brackets..].iter().position(ends);
    let (host, path) = rest.split_at(end.map_or(rest.len(), |end| brackets + end));
    if !is_host_of(backend, host) {
        return None;
    }
    // An absent path is `/` (RFC 9110 §4.2.3).
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

/// True if the authority of an `http` URL is the backend's host and port.
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

    #[test]
    fn redirects_of_a_backend_lead_below_its_url() {
        let cases = [
            // Path of the backend, where it sends us; sent.
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
            let sent = Aim::Whole
                .target("/mount", base.as_bytes(), &head(target))
                .concat();
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
            // Key of the path, path of the backend, request, sent.
            ("/", "/", "/", "/"),
            ("/", "/", "/x/../y?q=1", "/x/../y?q=1"),
            ("/", "/", "//x", "//x"),
            ("/", "/", "/%2e%2E/%00", "/%2e%2E/%00"),
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
            ("/a", "/base", "/a/x%2Fy/../z", "/base/x%2Fy/../z"),
            ("/a", "/base", "/foo/../%61/f", "/base/f"),
            ("/a", "/base", "/%61?%61", "/base?%61"),
            ("/a", "/base", "/a/../a/f", "/base/f"),
            ("/a", "/base", "/./a/./f", "/base/./f"),
            ("/a", "/base/", "/a", "/base/"),
            ("/a", "/base/", "/a/f", "/base/f"),
            ("/b/", "/base/", "/b/", "/base/"),
            ("/b/", "/base/", "/b/f", "/base/f"),
            ("/b/", "/base", "/b/", "/base/"),
            ("/b/", "/base", "/b/f?q", "/base/f?q"),
            ("/b/", "/base/", "/b/x/../f", "/base/x/../f"),
            ("/b/", "/base/", "/b/../b/f", "/base/f"),
            ("/c", "/", "/c", "/"),
            ("/c", "/", "/c?q", "/?q"),
            ("/c", "/", "/c/d", "/d"),
            ("/c", "/", "/c//d", "//d"),
        ];
        for (mount, base, target, want) in cases {
            let head = head(target);
            let got = forwarded(mount, base.as_bytes(), &head).concat();
            let got = got.escape_ascii().to_string();
            assert_eq!(got, want, "{mount} {base} {target}");
        }
    }

    #[test]
    fn no_dot_segments_lead_out_of_the_path_of_the_backend() {
        let parts = ["/", "a", "..", ".", "%2e", "/a", "%2F", "b"];
        for seed in 0..parts.len().pow(5) {
            let target: String = (0..5)
                .map(|at| parts[seed / parts.len().pow(at) % parts.len()])
                .collect();
            let head = head(&target);
            let is_below = head.path() == b"/a" || head.path().starts_with(b"/a/");
            if !is_below || target.len() == 1 {
                continue;
            }
            let mut sent = Vec::new();
            path::normalize(&forwarded("/a", b"/base", &head).concat(), &mut sent);
            let want = [b"/base", &head.path()[2..]].concat();
            assert_eq!(
                sent.escape_ascii().to_string(),
                want.escape_ascii().to_string(),
                "{target}"
            );
        }
    }

    #[test]
    fn locations_below_the_backend_stay_below_our_key_whatever_they_are() {
        let parts = ["http://", "[", "]", "/", "b", ":81", "?", "#", "/v"];
        let place = Place {
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
            // URL of the backend, key of the path, its `location`, ours.
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
            let place = Place {
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
