//! The head of a request, in the form that the engines of all HTTP versions produce.

use crate::{Headers, Method, Span, StatusCode, path};

/// HTTP version of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(
    missing_docs,
    reason = "the name of each variant is the number of the HTTP version"
)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
    Http3,
}

impl Version {
    /// The text of the version in logs and CGI variables, such as `HTTP/1.1`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        }
    }
}

/// Scheme of a request's target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the schemes are named by their text")]
pub enum Scheme {
    #[default]
    Http,
    Https,
    /// The scheme `masque`, which drafts of CONNECT-UDP used.
    Masque,
}

impl Scheme {
    /// The name of the scheme, as URIs have it before `://`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Masque => "masque",
        }
    }

    /// The port that an authority without a port means in this scheme.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https | Self::Masque => 443,
        }
    }
}

/// The length of a request's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// The request has no content.
    #[default]
    None,
    /// The length in bytes that `Content-Length` announces. It may be 0.
    Known(u64),
    /// The length is not announced: chunked in HTTP/1, or a body without `content-length` in HTTP/2 and HTTP/3.
    Unknown,
    /// The request opens a tunnel: bytes are forwarded in both directions until either side ends it.
    Tunnel,
}

/// Parses the value of `content-length` (RFC 9110 §8.6): 1 to 19 digits, which always fit in 64 bits. Returns `None` for
/// anything else.
#[must_use]
pub fn parse_content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = value.iter().map(|digit| u64::from(digit - b'0'));
    Some(digits.fold(0, |sum, digit| sum * 10 + digit))
}

/// Default limit in bytes of a message's head, for clients over HTTP/1 and for backends over all protocols. H2O compatibility: H2O allows
/// 8192 bytes for the request line and 4096 for each of 100 fields.
pub const MAX_HEAD: usize = 417_792;

/// A request head. All text is in the arena of `headers`. A connection refills the same value for each request, so that a
/// request costs no allocation.
///
/// `Host`, `Content-Length`, `Transfer-Encoding`, `Expect` and `Upgrade` are not among `headers`: engines interpret them,
/// and this type has methods for their values.
///
/// Heads are equal if they were made in the same way from the same bytes, see [`Headers`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// The method of the request.
    pub method: Method,
    /// The scheme, from the target or, if the target has none, from the transport.
    pub scheme: Scheme,
    /// The HTTP version of the request.
    pub version: Version,
    /// The fields. Their arena also holds the text of the target, authority, `Upgrade` and `Expect`.
    pub headers: Headers,
    /// The length of the request's content.
    pub body: BodyLength,
    target: Span,
    query_at: Option<u32>,
    normal: Span,
    nul: bool,
    authority: Span,
    upgrade: Span,
    expect: Span,
}

impl RequestHead {
    /// Clears the head and keeps its memory for the next request.
    pub fn clear(&mut self) {
        let Self {
            method,
            scheme,
            version,
            headers,
            body,
            target,
            query_at,
            normal,
            nul,
            authority,
            upgrade,
            expect,
        } = self;
        headers.clear();
        if *method != Method::Get {
            *method = Method::Get;
        }
        *scheme = Scheme::default();
        *version = Version::default();
        *body = BodyLength::None;
        *query_at = None;
        *nul = false;
        for span in [target, normal, authority, upgrade, expect] {
            *span = Span::default();
        }
    }

    /// Replaces this head by a copy of `other` and reuses the memory.
    #[inline]
    pub fn copy_from(&mut self, other: &Self) {
        let Self {
            method,
            scheme,
            version,
            headers,
            body,
            target,
            query_at,
            normal,
            nul,
            authority,
            upgrade,
            expect,
        } = other;
        if self.method != *method {
            self.method = method.clone();
        }
        self.headers.copy_from(headers);
        (self.scheme, self.version, self.body) = (*scheme, *version, *body);
        (self.target, self.query_at, self.normal) = (*target, *query_at, *normal);
        (self.nul, self.authority) = (*nul, *authority);
        (self.upgrade, self.expect) = (*upgrade, *expect);
    }

    /// A copy of this request with other fields, authority and target. `Expect` and `Upgrade` are left out: they have been
    /// handled.
    #[must_use]
    pub fn rebuilt(&self, fields: &Headers, authority: &[u8], target: &[u8]) -> Self {
        let mut fresh = Self {
            method: self.method.clone(),
            scheme: self.scheme,
            version: self.version,
            headers: fields.clone(),
            body: self.body,
            ..Self::default()
        };
        let authority = fresh.headers.store(authority);
        fresh.set_authority(authority);
        let target = fresh.headers.store(target);
        fresh.set_target(target);
        fresh
    }

    /// Sets path and query to the span `target` in the arena of `headers`, and computes the normal form of the path.
    pub fn set_target(&mut self, target: Span) {
        let text = self.headers.text(target);
        let query_at = path::query_at(text);
        let raw_path = target.prefix(query_at.unwrap_or(target.len()));
        self.target = target;
        self.query_at = query_at.map(|at| u32::try_from(at).unwrap_or(u32::MAX));
        self.nul = false;
        self.normal = raw_path;
        if !path::is_normal(self.headers.text(raw_path)) {
            let mut normal = Vec::with_capacity(raw_path.len() + 1);
            self.nul = path::normalize(self.headers.text(raw_path), &mut normal).nul;
            self.normal = self.headers.store(&normal);
        }
    }

    /// Like [`RequestHead::set_target`], for a caller that has scanned the target already.
    #[inline]
    pub fn set_scanned_target(&mut self, target: Span, scanned: &path::TargetScan) {
        if !scanned.is_normal {
            self.set_target(target);
            return;
        }
        self.target = target;
        self.nul = false;
        match scanned.query_at {
            None => {
                self.query_at = None;
                self.normal = target;
            }
            Some(at) => {
                self.query_at = Some(u32::try_from(at).unwrap_or(u32::MAX));
                self.normal = target.prefix(at);
            }
        }
    }

    /// Path and query as received (or as set by an internal redirect).
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.headers.text(self.target)
    }

    /// The path as received, without the query.
    #[must_use]
    pub fn raw_path(&self) -> &[u8] {
        let target = self.target();
        self.query_at
            .and_then(|at| target.get(..at as usize))
            .unwrap_or(target)
    }

    /// The query with its `?`; empty if there is none.
    #[must_use]
    pub fn query(&self) -> &[u8] {
        self.query_at
            .and_then(|at| self.target().get(at as usize..))
            .unwrap_or_default()
    }

    /// The normalised path: decoded, dot segments resolved, always starting with `/`.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.headers.text(self.normal)
    }

    /// Whether the path was received in its normal form: no escapes, no segment that begins with a dot.
    #[must_use]
    pub const fn is_path_plain(&self) -> bool {
        self.normal.is_at(self.target)
    }

    /// Whether the normalised path has a NUL, which is not allowed in file names.
    #[must_use]
    pub const fn path_has_nul(&self) -> bool {
        self.nul
    }

    /// Sets the authority to the span `authority` in the arena of `headers`.
    pub const fn set_authority(&mut self, authority: Span) {
        self.authority = authority;
    }

    /// `host[:port]` as received; empty if the request named none.
    #[must_use]
    pub fn authority(&self) -> &[u8] {
        self.headers.text(self.authority)
    }

    /// Sets the value of `Upgrade`, a span in the arena of `headers`.
    pub const fn set_upgrade(&mut self, token: Span) {
        self.upgrade = token;
    }

    /// The value of the request's `Upgrade` field; empty if the request has none.
    #[must_use]
    pub fn upgrade(&self) -> &[u8] {
        self.headers.text(self.upgrade)
    }

    /// Whether the request asks for a tunnel: CONNECT, or an upgrade to another protocol. An upgrade to HTTP/2, which the
    /// server handles itself, does not count.
    #[must_use]
    pub fn asks_for_tunnel(&self) -> bool {
        self.body == BodyLength::Tunnel
            || !matches!(self.upgrade(), b"" | b"h2c" | b"h2c-14" | b"h2c-16")
    }

    /// Whether a response with this status opens the tunnel that the request asks for: any 2xx to CONNECT (RFC 9110 §9.3.6,
    /// RFC 8441 §5), 101 to an upgrade (RFC 9110 §7.8). Extended CONNECT accepts both: a backend may answer 101, and the
    /// client sees 200.
    #[must_use]
    pub fn is_tunnel_opened_by(&self, status: StatusCode) -> bool {
        let is_upgrade = !self.upgrade().is_empty();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return is_upgrade && self.asks_for_tunnel();
        }
        self.body == BodyLength::Tunnel && (200..300).contains(&status.as_u16())
    }

    /// Sets the value of `Expect`, a span in the arena of `headers`.
    pub const fn set_expect(&mut self, value: Span) {
        self.expect = value;
    }

    /// The value of the request's `Expect` field; empty if the request has none.
    #[must_use]
    pub fn expect(&self) -> &[u8] {
        self.headers.text(self.expect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_is_one_to_nineteen_digits() {
        let cases: &[(&[u8], Option<u64>)] = &[
            (b"0", Some(0)),
            (b"0000000000000000007", Some(7)),
            (b"9999999999999999999", Some(9_999_999_999_999_999_999)),
            (b"10000000000000000000", None),
            (b"", None),
            (b"+5", None),
            (b"5 ", None),
            (b"5, 5", None),
            (b"0x5", None),
        ];
        for (value, want) in cases {
            assert_eq!(
                parse_content_length(value),
                *want,
                "{}",
                value.escape_ascii()
            );
        }
    }

    #[test]
    fn tunnels_are_opened_by_2xx_to_connect_and_by_101_to_upgrades() {
        let connect = BodyLength::Tunnel;
        // Each row: the request's body, the upgrade token, whether it asks for a tunnel, and the statuses that open one.
        let cases: &[(BodyLength, &str, bool, &[u16])] = &[
            (BodyLength::None, "", false, &[]),
            (BodyLength::Unknown, "", false, &[]),
            (BodyLength::None, "websocket", true, &[101]),
            (BodyLength::None, "h2c", false, &[]),
            (connect, "", true, &[200, 204, 299]),
            (connect, "websocket", true, &[101, 200, 204, 299]),
        ];
        for (body, token, asks, opened_by) in cases {
            let mut head = RequestHead {
                body: *body,
                ..RequestHead::default()
            };
            let span = head.headers.store(token.as_bytes());
            head.set_upgrade(span);
            assert_eq!(head.asks_for_tunnel(), *asks, "{body:?} {token}");
            let opens = [100, 101, 103, 200, 204, 299, 300, 407, 502]
                .into_iter()
                .filter(|&code| {
                    head.is_tunnel_opened_by(
                        StatusCode::new(code).expect("the number is a valid status code"),
                    )
                });
            assert_eq!(opens.collect::<Vec<_>>(), *opened_by, "{body:?} {token}");
        }
    }

    #[test]
    fn targets_split_at_the_first_question_mark() {
        let mut head = RequestHead::default();
        let target = head.headers.store(b"/a%20b/../c?x=/../?y");
        head.set_target(target);
        assert_eq!(head.raw_path(), b"/a%20b/../c");
        assert_eq!(head.path(), b"/c");
        assert_eq!(head.query(), b"?x=/../?y");
        let target = head.headers.store(b"/plain");
        head.set_target(target);
        assert_eq!((head.path(), head.query()), (&b"/plain"[..], &b""[..]));
        head.clear();
        assert_eq!(head.path(), b"");
    }
}
