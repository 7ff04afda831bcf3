//! The static table of HPACK (RFC 7541 Appendix A).

use h2o_http::Known;
use h2o_http::field_section::{NameKind, Pseudo};

/// Number of entries of the static table. The indices of the dynamic table begin after them (RFC 7541 §2.3.3).
pub(super) const LEN: u32 = 61;

/// The entries of the static table. The first one has the index 1.
pub(super) static FIELDS: [(NameKind, &str); LEN as usize] = {
    const fn pseudo(name: Pseudo, value: &str) -> (NameKind, &str) {
        (NameKind::Pseudo(name), value)
    }
    const fn name(known: Known) -> (NameKind, &'static str) {
        (NameKind::Known(known), "")
    }
    [
        pseudo(Pseudo::Authority, ""),
        pseudo(Pseudo::Method, "GET"),
        pseudo(Pseudo::Method, "POST"),
        pseudo(Pseudo::Path, "/"),
        pseudo(Pseudo::Path, "/index.html"),
        pseudo(Pseudo::Scheme, "http"),
        pseudo(Pseudo::Scheme, "https"),
        pseudo(Pseudo::Status, "200"),
        pseudo(Pseudo::Status, "204"),
        pseudo(Pseudo::Status, "206"),
        pseudo(Pseudo::Status, "304"),
        pseudo(Pseudo::Status, "400"),
        pseudo(Pseudo::Status, "404"),
        pseudo(Pseudo::Status, "500"),
        name(Known::AcceptCharset),
        (NameKind::Known(Known::AcceptEncoding), "gzip, deflate"),
        name(Known::AcceptLanguage),
        name(Known::AcceptRanges),
        name(Known::Accept),
        name(Known::AccessControlAllowOrigin),
        name(Known::Age),
        name(Known::Allow),
        name(Known::Authorization),
        name(Known::CacheControl),
        name(Known::ContentDisposition),
        name(Known::ContentEncoding),
        name(Known::ContentLanguage),
        name(Known::ContentLength),
        name(Known::ContentLocation),
        name(Known::ContentRange),
        name(Known::ContentType),
        name(Known::Cookie),
        name(Known::Date),
        name(Known::Etag),
        name(Known::Expect),
        name(Known::Expires),
        name(Known::From),
        name(Known::Host),
        name(Known::IfMatch),
        name(Known::IfModifiedSince),
        name(Known::IfNoneMatch),
        name(Known::IfRange),
        name(Known::IfUnmodifiedSince),
        name(Known::LastModified),
        name(Known::Link),
        name(Known::Location),
        name(Known::MaxForwards),
        name(Known::ProxyAuthenticate),
        name(Known::ProxyAuthorization),
        name(Known::Range),
        name(Known::Referer),
        name(Known::Refresh),
        name(Known::RetryAfter),
        name(Known::Server),
        name(Known::SetCookie),
        name(Known::StrictTransportSecurity),
        name(Known::TransferEncoding),
        name(Known::UserAgent),
        name(Known::Vary),
        name(Known::Via),
        name(Known::WwwAuthenticate),
    ]
};

/// For each well-known name the index of its first entry, or 0 if the static table does not have the name.
static KNOWN: [u8; Known::ALL.len()] = {
    let mut indices = [0; Known::ALL.len()];
    let mut index = 1;
    while index as u32 <= LEN {
        if let NameKind::Known(known) = FIELDS[index as usize - 1].0 {
            assert!(indices[known as usize] == 0);
            indices[known as usize] = index;
        }
        index += 1;
    }
    indices
};

/// The index of the first entry with this name; 0 if there is none.
#[inline]
pub(super) fn index_of(name: NameKind) -> u8 {
    match name {
        NameKind::Known(known) => KNOWN[known as usize],
        NameKind::Pseudo(Pseudo::Authority) => 1,
        NameKind::Pseudo(Pseudo::Method) => 2,
        NameKind::Pseudo(Pseudo::Path) => 4,
        NameKind::Pseudo(Pseudo::Scheme) => 6,
        NameKind::Pseudo(Pseudo::Status) => 8,
        NameKind::Pseudo(Pseudo::Protocol | Pseudo::Unknown)
        | NameKind::Other
        | NameKind::Invalid => 0,
    }
}

/// The index of the entry with this name and value. `first` is the index of the first entry with the name.
#[inline]
pub(super) fn exact_match(name: NameKind, first: u8, value: &[u8]) -> Option<u8> {
    let from = usize::from(first).checked_sub(1)?;
    // Entries with the same name are adjacent.
    let mut entries = FIELDS[from..].iter().take_while(|entry| entry.0 == name);
    let at = entries.position(|entry| entry.1.as_bytes() == value)?;
    Some(first + u8::try_from(at).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_by_both() {
        for (index, (name, value)) in (1..).zip(&FIELDS) {
            let first = index_of(*name);
            assert!(first != 0 && first <= index);
            assert_eq!(FIELDS[usize::from(first) - 1].0, *name);
            assert_eq!(exact_match(*name, first, value.as_bytes()), Some(index));
            assert_eq!(exact_match(*name, first, b"else"), None);
        }
        // Spot checks against RFC 7541 Appendix A.
        assert_eq!(index_of(NameKind::Known(Known::Date)), 33);
        assert_eq!(index_of(NameKind::Known(Known::Location)), 46);
        assert_eq!(index_of(NameKind::Known(Known::WwwAuthenticate)), 61);
        assert_eq!(index_of(NameKind::Known(Known::KeepAlive)), 0);
        assert_eq!(index_of(NameKind::Other), 0);
        assert_eq!(exact_match(NameKind::Other, 0, b""), None);
    }
}
