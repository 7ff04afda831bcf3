//! Conditional requests for files (RFC 9110 §13).
//!
//! H2O compatibility: H2O ignores `If-Match` and `If-Unmodified-Since`. They guard against lost updates, and this handler
//! updates nothing.

use h2o_http::{Headers, Known, date};

/// The validators of a file, with which conditions of requests are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validators<'a> {
    /// The entity tag of the file with its quotes; always a strong one.
    pub(super) etag: &'a [u8],
    /// The modification time of the file, in seconds since the Unix epoch.
    pub(super) modified: i64,
}

/// Whether the client has the current file already (RFC 9110 §13.2.2), so that the response is 304.
#[inline]
pub(super) fn is_not_modified(request: &Headers, validators: Validators<'_>) -> bool {
    if request.get(Known::IfNoneMatch).is_some() {
        // If a request has If-None-Match, its If-Modified-Since is ignored, whether or not a tag matches (RFC 9110
        // §13.1.3).
        let mut tags = request.get_all(Known::IfNoneMatch);
        return tags.any(|value| lists_tag(value, validators.etag));
    }
    request
        .get(Known::IfModifiedSince)
        .and_then(date::parse)
        .is_some_and(|since| since >= validators.modified)
}

/// Whether the field `If-Range` of the request allows its `Range` field to apply (RFC 9110 §13.1.5). H2O compatibility:
/// H2O accepts a date that is not older than the file; the RFC requires equality.
pub(super) fn range_holds(request: &Headers, validators: Validators<'_>) -> bool {
    match request.get(Known::IfRange) {
        None => true,
        Some(value) => match date::parse(value) {
            Some(since) => since >= validators.modified,
            None => value == validators.etag,
        },
    }
}

/// Whether `value`, from an `If-None-Match` field, has `etag` by weak comparison (RFC 9110 §8.8.3.2, §13.1.2). Elements
/// after a malformed one are ignored.
fn lists_tag(value: &[u8], etag: &[u8]) -> bool {
    if value == b"*" {
        return true;
    }
    let mut rest = value;
    loop {
        while let [b' ' | b'\t' | b',', tail @ ..] = rest {
            rest = tail;
        }
        let opaque = rest.strip_prefix(b"W/").unwrap_or(rest);
        let Some(len) = tag_len(opaque) else {
            return false;
        };
        if opaque[..len] == *etag {
            return true;
        }
        rest = &opaque[len..];
    }
}

/// Length of the quoted entity tag at the start of `text`; `None` if there is no valid tag.
fn tag_len(text: &[u8]) -> Option<usize> {
    let inner = text.strip_prefix(b"\"")?;
    Some(memchr::memchr(b'"', inner)? + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALIDATORS: Validators<'static> = Validators {
        etag: b"\"65937d25-17\"",
        modified: 784_111_777,
    };

    fn headers(fields: &[(Known, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in fields {
            headers.push(*name, value.as_bytes());
        }
        headers
    }

    #[test]
    fn if_none_match_takes_lists_weak_tags_and_the_star() {
        let cases = [
            (r#""65937d25-17""#, true),
            (r#"W/"65937d25-17""#, true),
            (r#""a", "65937d25-17""#, true),
            (r#""a","b" ,W/"65937d25-17", "c""#, true),
            (r#",, "65937d25-17""#, true),
            (r#""a,"65937d25-17""#, false),
            ("*", true),
            ("* ", false),
            (r#""a", *"#, false),
            (r#"w/"65937d25-17""#, false),
            (r#"W/ "65937d25-17""#, false),
            ("65937d25-17", false),
            (r#"'65937d25-17'"#, false),
            (r#""65937d25-17"#, false),
            (r#""65937d25-1""#, false),
            (r#""65937d25-170""#, false),
            (r#""65937D25-17""#, false),
            (r#"a, "65937d25-17""#, false),
            ("", false),
            ("\"", false),
        ];
        for (value, want) in cases {
            let request = headers(&[(Known::IfNoneMatch, value)]);
            assert_eq!(is_not_modified(&request, VALIDATORS), want, "{value}");
        }
        let two_lines = [
            (Known::IfNoneMatch, r#""a""#),
            (Known::IfNoneMatch, r#""65937d25-17""#),
        ];
        assert!(is_not_modified(&headers(&two_lines), VALIDATORS));
    }

    #[test]
    fn if_modified_since_is_an_imf_fixdate_not_older_than_the_file() {
        let cases = [
            ("Sun, 06 Nov 1994 08:49:36 GMT", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", true),
            ("Sunday, 06-Nov-94 08:49:37 GMT", false),
            ("Sun Nov  6 08:49:37 1994", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT; length=3", false),
            ("", false),
        ];
        for (value, want) in cases {
            let request = headers(&[(Known::IfModifiedSince, value)]);
            assert_eq!(is_not_modified(&request, VALIDATORS), want, "{value}");
        }
        assert!(!is_not_modified(&headers(&[]), VALIDATORS));
    }

    #[test]
    fn if_none_match_hides_if_modified_since() {
        let newer = (Known::IfModifiedSince, "Sun, 06 Nov 1994 08:49:38 GMT");
        for tag in [r#""other""#, "", "garbage"] {
            let request = headers(&[newer, (Known::IfNoneMatch, tag)]);
            assert!(!is_not_modified(&request, VALIDATORS), "{tag}");
        }
    }

    #[test]
    fn preconditions_for_updates_are_ignored() {
        let request = headers(&[
            (Known::IfMatch, r#""other""#),
            (Known::IfUnmodifiedSince, "Sun, 06 Nov 1994 08:49:00 GMT"),
        ]);
        assert!(!is_not_modified(&request, VALIDATORS));
    }

    #[test]
    fn if_range_is_a_date_or_the_strong_tag() {
        let cases = [
            (r#""65937d25-17""#, true),
            (r#"W/"65937d25-17""#, false),
            (r#""other""#, false),
            ("*", false),
            ("", false),
            ("Sun, 06 Nov 1994 08:49:36 GMT", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", true),
            ("Sunday, 06-Nov-94 08:49:37 GMT", false),
        ];
        for (value, want) in cases {
            let request = headers(&[(Known::IfRange, value)]);
            assert_eq!(range_holds(&request, VALIDATORS), want, "{value}");
        }
        assert!(range_holds(&headers(&[]), VALIDATORS));
    }
}
