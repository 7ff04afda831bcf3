//! Reads `link` fields, as far as pushes need them. H2O compatibility: H2O's syntax is simpler than that of RFC 8288, without
//! quotes.

use h2o_http::Scheme;

/// One element of a `link` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'a> {
    /// The whole text of the element.
    pub(super) text: &'a [u8],
    /// The URL between `<` and `>`; `None` if the element does not begin with it.
    pub(super) url: Option<&'a [u8]>,
    /// Whether the element has `rel=preload`.
    pub(super) preload: bool,
    /// Whether the element has `nopush`.
    pub(super) nopush: bool,
    /// Whether the element has `critical`.
    pub(super) critical: bool,
    /// Whether the element has `x-http2-push-only`.
    pub(super) push_only: bool,
}

impl Element<'_> {
    /// Whether the element asks the server to push the resource.
    pub(super) fn is_to_be_pushed(&self) -> bool {
        self.preload && !self.nopush
    }
}

/// The elements of a field's value. A comma between `<` and `>` is part of the URL, other commas end an element.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = Element<'_>> {
    let mut rest = value;
    std::iter::from_fn(move || {
        rest = trim_start(rest, |byte| is_blank(byte) || byte == b',');
        if rest.is_empty() {
            return None;
        }
        let url = rest
            .strip_prefix(b"<")
            .and_then(|behind| Some(&behind[..memchr::memchr(b'>', behind)?]));
        let parameters_at = url.map_or(0, |url| url.len() + 2);
        let end = memchr::memchr(b',', &rest[parameters_at..])
            .map_or(rest.len(), |comma| parameters_at + comma);
        let (text, tail) = rest.split_at(end);
        let mut element = Element {
            text: text.trim_ascii_end(),
            url,
            preload: false,
            nopush: false,
            critical: false,
            push_only: false,
        };
        if url.is_some() {
            for parameter in text[parameters_at..].split(|&byte| byte == b';') {
                element.note(parameter.trim_ascii());
            }
        }
        rest = tail;
        Some(element)
    })
}

impl Element<'_> {
    fn note(&mut self, parameter: &[u8]) {
        let is = |name: &[u8]| parameter.eq_ignore_ascii_case(name);
        self.preload |= is(b"rel=preload");
        self.nopush |= is(b"nopush");
        self.critical |= is(b"critical");
        self.push_only |= is(b"x-http2-push-only");
    }
}

/// The value of a `link` field without its `x-http2-push-only` elements: `None` if it has no such element, `Some(None)`
/// if nothing is left.
pub(super) fn without_push_only(value: &[u8]) -> Option<Option<Vec<u8>>> {
    if !elements(value).any(|element| element.push_only) {
        return None;
    }
    let kept: Vec<_> = elements(value)
        .filter(|element| !element.push_only)
        .map(|element| element.text)
        .collect();
    Some((!kept.is_empty()).then(|| kept.join(&b", "[..])))
}

/// The request that a relative reference in a `link` field is resolved against.
pub(super) struct Base<'a> {
    /// The scheme of the request.
    pub(super) scheme: Scheme,
    /// The authority of the client's request.
    pub(super) authority: &'a [u8],
    /// The path and query of the request.
    pub(super) target: &'a [u8],
}

/// Resolves a reference to a path and query (RFC 3986 §5.2). `None` if the reference leads to another scheme or, unless
/// `any_authority`, to another authority, or cannot be a `:path`.
pub(super) fn resolve(url: &[u8], base: &Base<'_>, any_authority: bool) -> Option<Vec<u8>> {
    // Other characters than visible ASCII must be escaped in a URI (RFC 3986 §2).
    if !url.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    let url = &url[..memchr::memchr(b'#', url).unwrap_or(url.len())];
    let hierarchy = match scheme(url) {
        // A reference such as `http:a`, which has no authority, is refused: browsers and RFC 3986 §5.2.2 differ on its
        // meaning.
        Some((scheme, rest)) => Some(rest).filter(|rest| {
            rest.starts_with(b"//") && scheme.eq_ignore_ascii_case(base.scheme.as_str().as_bytes())
        })?,
        None => url,
    };
    if let Some(behind) = hierarchy.strip_prefix(b"//") {
        let end = behind
            .iter()
            .position(|&byte| matches!(byte, b'/' | b'?'))
            .unwrap_or(behind.len());
        let (authority, path) = behind.split_at(end);
        if !any_authority && !authority.eq_ignore_ascii_case(base.authority) {
            return None;
        }
        return Some(without_dot_segments(path));
    }
    let (base_path, base_query) = split_query(base.target);
    Some(match hierarchy.first() {
        None => without_dot_segments(&[base_path, base_query].concat()),
        Some(b'/') => without_dot_segments(hierarchy),
        Some(b'?') => without_dot_segments(&[base_path, hierarchy].concat()),
        Some(_) => {
            let folder = memchr::memrchr(b'/', base_path).map_or(0, |at| at + 1);
            without_dot_segments(&[&base_path[..folder], hierarchy].concat())
        }
    })
}

/// The scheme of a reference, and the rest after its colon (RFC 3986 §3.1).
fn scheme(url: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = url
        .iter()
        .position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte))
        .filter(|&at| at > 0 && url[at] == b':' && url[0].is_ascii_alphabetic())?;
    Some((&url[..colon], &url[colon + 1..]))
}

fn split_query(target: &[u8]) -> (&[u8], &[u8]) {
    target.split_at(h2o_http::path::query_at(target).unwrap_or(target.len()))
}

/// Resolves `.` and `..` in the path (RFC 3986 §5.2.4). The result begins with a slash; the query is kept.
fn without_dot_segments(target: &[u8]) -> Vec<u8> {
    let (path, query) = split_query(target);
    let mut out = Vec::with_capacity(target.len() + 1);
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut segments = path.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." | b".." => {
                if segment == b".." {
                    out.truncate(memchr::memrchr(b'/', &out).unwrap_or(0));
                }
                if is_last {
                    out.push(b'/');
                }
            }
            segment => {
                out.push(b'/');
                out.extend_from_slice(segment);
            }
        }
    }
    out.extend_from_slice(query);
    out
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trim_start(text: &[u8], skip: impl Fn(u8) -> bool) -> &[u8] {
    let start = text.iter().position(|&byte| !skip(byte));
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the URL of each element and the first letters of its flags, with `|` between elements.
    fn shown(value: &str) -> String {
        let all: Vec<_> = elements(value.as_bytes())
            .map(|element| {
                let url = element
                    .url
                    .map_or("-".into(), |url| url.escape_ascii().to_string());
                let flags = [
                    (element.preload, 'p'),
                    (element.nopush, 'n'),
                    (element.critical, 'c'),
                    (element.push_only, 'x'),
                ];
                let flags = flags.iter().filter(|flag| flag.0).map(|flag| flag.1);
                format!("{url} {}", flags.collect::<String>())
            })
            .collect();
        all.join("|")
    }

    #[test]
    fn elements_begin_with_a_url_in_angle_brackets() {
        let cases = [
            ("</a>; rel=preload", "/a p"),
            ("</a>;rel=preload;nopush", "/a pn"),
            (
                " , </a> ; REL=Preload ; Critical,,</b>;x-HTTP2-push-only",
                "/a pc|/b x",
            ),
            ("</a,b>; rel=preload, </c>", "/a,b p|/c "),
            ("</a>; rel=\"preload\"", "/a "),
            ("</a>; rel=preload2; nopushx", "/a "),
            ("</a>; as=style; rel=preload; crossorigin", "/a p"),
            ("</a>; title=\"x, </b>; rel=preload\"", "/a |/b "),
            ("/a; rel=preload", "- "),
            ("</a; rel=preload", "- "),
            ("<>; rel=preload", " p"),
            ("", ""),
            (" ,\t, ", ""),
            ("<", "- "),
        ];
        for (value, want) in cases {
            assert_eq!(shown(value), want, "{value}");
        }
    }

    #[test]
    fn push_only_elements_are_taken_out() {
        let cases = [
            ("</a>; rel=preload", None),
            ("/a; x-http2-push-only", None),
            ("</a>; rel=preload; x-http2-push-only", Some(None)),
            (" , </a>;x-http2-push-only, ", Some(None)),
            (
                "</a>; rel=preload; x-http2-push-only, </b,c>; rel=preload ,d;e",
                Some(Some("</b,c>; rel=preload, d;e")),
            ),
        ];
        for (value, want) in cases {
            let want = want.map(|left: Option<&str>| left.map(|left| left.as_bytes().to_vec()));
            assert_eq!(without_push_only(value.as_bytes()), want, "{value}");
        }
    }

    #[test]
    fn references_are_resolved_within_the_origin() {
        let base = Base {
            scheme: Scheme::Https,
            authority: b"a.test:8443",
            target: b"/d/e/f?q=/x",
        };
        let cases = [
            ("/a", Some("/a")),
            ("/a?b#c", Some("/a?b")),
            ("a", Some("/d/e/a")),
            ("./a/./b/.", Some("/d/e/a/b/")),
            ("../a", Some("/d/a")),
            ("../../../../a/..", Some("/")),
            ("/a/../b//c/..?../x", Some("/b//?../x")),
            ("?z", Some("/d/e/f?z")),
            ("", Some("/d/e/f?q=/x")),
            ("#x", Some("/d/e/f?q=/x")),
            ("//a.test:8443/b", Some("/b")),
            ("//A.Test:8443", Some("/")),
            ("HTTPS://a.test:8443?b", Some("/?b")),
            ("https://a.test:8443/b/%2e%2e/c", Some("/b/%2e%2e/c")),
            ("https://a.test/b", None),
            ("https://u@a.test:8443/b", None),
            ("http://a.test:8443/b", None),
            ("https:/b", None),
            ("data:text/css,x", None),
            ("a:b", None),
            ("./a:b", Some("/d/e/a:b")),
            (":b", Some("/d/e/:b")),
            ("1a:b", Some("/d/e/1a:b")),
            ("/a b", None),
            ("/a\u{e4}", None),
            ("/a\0", None),
        ];
        for (url, want) in cases {
            let got = resolve(url.as_bytes(), &base, false);
            assert_eq!(got.as_deref(), want.map(str::as_bytes), "{url}");
        }
        assert_eq!(
            resolve(b"//b.test/c", &base, true).as_deref(),
            Some(&b"/c"[..])
        );
        assert_eq!(resolve(b"http://b.test/c", &base, true), None);
    }
}
