//! The static table of QPACK (RFC 9204 Appendix A).

use h2o_http::Known;
use h2o_http::field_section::{NameKind, Pseudo};

/// Number of entries of the static table.
pub(super) const LEN: usize = 99;

/// An entry of the static table: the kind of its name, the text of the name if the kind does not imply it, and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) kind: NameKind,
    text: &'static str,
    pub(super) value: &'static str,
}

impl Entry {
    /// The text of the entry's name.
    pub(super) fn name(&self) -> &'static [u8] {
        self.kind.fixed_text().unwrap_or(self.text.as_bytes())
    }
}

/// The entries of the static table. The first one has the index 0.
pub(super) static FIELDS: [Entry; LEN] = {
    const fn pseudo(name: Pseudo, value: &'static str) -> Entry {
        Entry {
            kind: NameKind::Pseudo(name),
            text: "",
            value,
        }
    }
    const fn known(name: Known, value: &'static str) -> Entry {
        Entry {
            kind: NameKind::Known(name),
            text: "",
            value,
        }
    }
    const fn other(text: &'static str, value: &'static str) -> Entry {
        Entry {
            kind: NameKind::Other,
            text,
            value,
        }
    }
    [
        pseudo(Pseudo::Authority, ""),
        pseudo(Pseudo::Path, "/"),
        known(Known::Age, "0"),
        known(Known::ContentDisposition, ""),
        known(Known::ContentLength, "0"),
        known(Known::Cookie, ""),
        known(Known::Date, ""),
        known(Known::Etag, ""),
        known(Known::IfModifiedSince, ""),
        known(Known::IfNoneMatch, ""),
        known(Known::LastModified, ""),
        known(Known::Link, ""),
        known(Known::Location, ""),
        known(Known::Referer, ""),
        known(Known::SetCookie, ""),
        pseudo(Pseudo::Method, "CONNECT"),
        pseudo(Pseudo::Method, "DELETE"),
        pseudo(Pseudo::Method, "GET"),
        pseudo(Pseudo::Method, "HEAD"),
        pseudo(Pseudo::Method, "OPTIONS"),
        pseudo(Pseudo::Method, "POST"),
        pseudo(Pseudo::Method, "PUT"),
        pseudo(Pseudo::Scheme, "http"),
        pseudo(Pseudo::Scheme, "https"),
        pseudo(Pseudo::Status, "103"),
        pseudo(Pseudo::Status, "200"),
        pseudo(Pseudo::Status, "304"),
        pseudo(Pseudo::Status, "404"),
        pseudo(Pseudo::Status, "503"),
        known(Known::Accept, "*/*"),
        known(Known::Accept, "application/dns-message"),
        known(Known::AcceptEncoding, "gzip, deflate, br"),
        known(Known::AcceptRanges, "bytes"),
        other("access-control-allow-headers", "cache-control"),
        other("access-control-allow-headers", "content-type"),
        known(Known::AccessControlAllowOrigin, "*"),
        known(Known::CacheControl, "max-age=0"),
        known(Known::CacheControl, "max-age=2592000"),
        known(Known::CacheControl, "max-age=604800"),
        known(Known::CacheControl, "no-cache"),
        known(Known::CacheControl, "no-store"),
        known(Known::CacheControl, "public, max-age=31536000"),
        known(Known::ContentEncoding, "br"),
        known(Known::ContentEncoding, "gzip"),
        known(Known::ContentType, "application/dns-message"),
        known(Known::ContentType, "application/javascript"),
        known(Known::ContentType, "application/json"),
        known(Known::ContentType, "application/x-www-form-urlencoded"),
        known(Known::ContentType, "image/gif"),
        known(Known::ContentType, "image/jpeg"),
        known(Known::ContentType, "image/png"),
        known(Known::ContentType, "text/css"),
        known(Known::ContentType, "text/html; charset=utf-8"),
        known(Known::ContentType, "text/plain"),
        known(Known::ContentType, "text/plain;charset=utf-8"),
        known(Known::Range, "bytes=0-"),
        known(Known::StrictTransportSecurity, "max-age=31536000"),
        known(
            Known::StrictTransportSecurity,
            "max-age=31536000; includesubdomains",
        ),
        known(
            Known::StrictTransportSecurity,
            "max-age=31536000; includesubdomains; preload",
        ),
        known(Known::Vary, "accept-encoding"),
        known(Known::Vary, "origin"),
        known(Known::XContentTypeOptions, "nosniff"),
        other("x-xss-protection", "1; mode=block"),
        pseudo(Pseudo::Status, "100"),
        pseudo(Pseudo::Status, "204"),
        pseudo(Pseudo::Status, "206"),
        pseudo(Pseudo::Status, "302"),
        pseudo(Pseudo::Status, "400"),
        pseudo(Pseudo::Status, "403"),
        pseudo(Pseudo::Status, "421"),
        pseudo(Pseudo::Status, "425"),
        pseudo(Pseudo::Status, "500"),
        known(Known::AcceptLanguage, ""),
        other("access-control-allow-credentials", "FALSE"),
        other("access-control-allow-credentials", "TRUE"),
        other("access-control-allow-headers", "*"),
        other("access-control-allow-methods", "get"),
        other("access-control-allow-methods", "get, post, options"),
        other("access-control-allow-methods", "options"),
        other("access-control-expose-headers", "content-length"),
        other("access-control-request-headers", "content-type"),
        other("access-control-request-method", "get"),
        other("access-control-request-method", "post"),
        known(Known::AltSvc, "clear"),
        known(Known::Authorization, ""),
        known(
            Known::ContentSecurityPolicy,
            "script-src 'none'; object-src 'none'; base-uri 'none'",
        ),
        known(Known::EarlyData, "1"),
        other("expect-ct", ""),
        known(Known::Forwarded, ""),
        known(Known::IfRange, ""),
        known(Known::Origin, ""),
        known(Known::Purpose, "prefetch"),
        known(Known::Server, ""),
        other("timing-allow-origin", "*"),
        known(Known::UpgradeInsecureRequests, "1"),
        known(Known::UserAgent, ""),
        known(Known::XForwardedFor, ""),
        known(Known::XFrameOptions, "deny"),
        known(Known::XFrameOptions, "sameorigin"),
    ]
};

/// Adjacent entries of the static table with the same name: the index of the first, and their number. A few entries are
/// apart from the others with their name: only the decoder uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u8,
    pub(super) len: u8,
}

impl Run {
    const NONE: Self = Self { first: 0, len: 0 };

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// For each well-known name the run of its entries.
static KNOWN: [Run; Known::ALL.len()] = {
    let mut runs = [Run::NONE; Known::ALL.len()];
    let mut index = 0;
    while index < LEN {
        if let NameKind::Known(known) = FIELDS[index].kind {
            let run = &mut runs[known as usize];
            #[expect(clippy::cast_possible_truncation, reason = "the table has 99 entries")]
            if run.len == 0 {
                run.first = index as u8;
            }
            assert!(run.first as usize + run.len as usize == index);
            run.len += 1;
        }
        index += 1;
    }
    runs
};

/// The run of the entries with this name; empty if the static table does not have the name.
#[inline]
pub(super) fn run_of(name: NameKind, text: &[u8]) -> Run {
    match name {
        NameKind::Known(known) => KNOWN[known as usize],
        NameKind::Pseudo(Pseudo::Authority) => Run { first: 0, len: 1 },
        NameKind::Pseudo(Pseudo::Path) => Run { first: 1, len: 1 },
        NameKind::Pseudo(Pseudo::Method) => Run { first: 15, len: 7 },
        NameKind::Pseudo(Pseudo::Scheme) => Run { first: 22, len: 2 },
        NameKind::Pseudo(Pseudo::Status) => Run { first: 24, len: 5 },
        NameKind::Other => other(text),
        NameKind::Pseudo(Pseudo::Protocol | Pseudo::Unknown) | NameKind::Invalid => Run::NONE,
    }
}

fn other(text: &[u8]) -> Run {
    let (first, len) = match text {
        b"access-control-allow-headers" => (33, 2),
        b"x-xss-protection" => (62, 1),
        b"access-control-allow-credentials" => (73, 2),
        b"access-control-allow-methods" => (76, 3),
        b"access-control-expose-headers" => (79, 1),
        b"access-control-request-headers" => (80, 1),
        b"access-control-request-method" => (81, 2),
        b"expect-ct" => (87, 1),
        b"timing-allow-origin" => (93, 1),
        _ => return Run::NONE,
    };
    Run { first, len }
}

/// The index of the entry with this value in a run.
#[inline]
pub(super) fn exact_match(run: Run, value: &[u8]) -> Option<u8> {
    let entries = FIELDS.get(usize::from(run.first)..)?;
    let at = entries
        .iter()
        .take(usize::from(run.len))
        .position(|entry| entry.value.as_bytes() == value)?;
    Some(run.first + u8::try_from(at).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_by_both() {
        for (index, entry) in FIELDS.iter().enumerate() {
            let run = run_of(entry.kind, entry.name());
            assert!(!run.is_empty(), "{entry:?}");
            assert_eq!(FIELDS[usize::from(run.first)].name(), entry.name());
            assert_eq!(exact_match(run, b"else"), None);
            let is_apart = index == 75 || (63..72).contains(&index);
            let found = exact_match(run, entry.value.as_bytes()).map(usize::from);
            assert_eq!(found, (!is_apart).then_some(index), "{entry:?}");
        }
        assert!(run_of(NameKind::Other, b"x-a").is_empty());
        assert!(run_of(NameKind::Known(Known::Host), b"").is_empty());
        assert!(run_of(NameKind::Pseudo(Pseudo::Protocol), b"").is_empty());
        assert_eq!(exact_match(Run::NONE, b""), None);
    }
}
