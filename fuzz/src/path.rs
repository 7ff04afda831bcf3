//! Normalisation of paths, authorities and URI references.

use h2o_http::{Reference, RequestHead, authority, path as paths};

/// Normalised paths have no dot segments, authorities are split without loss, and references lead to valid targets.
///
/// # Panics
/// If an invariant does not hold.
pub fn path(input: &[u8]) {
    check_path(input);
    check_head(input);
    check_authority(input);
    check_reference(input);
}

fn check_path(input: &[u8]) {
    let raw = &input[..paths::query_at(input).unwrap_or(input.len())];
    let mut normal = Vec::new();
    let found = paths::normalize(raw, &mut normal);
    assert!(normal.starts_with(b"/"));
    for segment in normal.split(|&byte| byte == b'/') {
        assert!(
            segment != b"." && segment != b"..",
            "{}",
            normal.escape_ascii()
        );
    }
    assert_eq!(found.nul, normal_has_nul(raw));
    assert!(normal.len() <= raw.len() + 1);
    if paths::is_normal(raw) {
        assert_eq!(normal, raw);
    }
    if !normal.contains(&b'%') {
        let mut again = Vec::new();
        paths::normalize(&normal, &mut again);
        assert_eq!(again, normal, "normalizing the path again changed it");
    }
}

/// Whether the path contains a NUL anywhere, also in a segment that `..` removes.
fn normal_has_nul(raw: &[u8]) -> bool {
    raw.contains(&0) || raw.windows(3).any(|escape| escape == b"%00")
}

fn check_head(input: &[u8]) {
    let mut head = RequestHead::default();
    let target = head.headers.store(input);
    head.set_target(target);
    assert_eq!(head.target(), input);
    assert_eq!([head.raw_path(), head.query()].concat(), input);
    assert!(head.query().is_empty() || head.query().starts_with(b"?"));
    assert!(head.path().starts_with(b"/"));
}

fn check_authority(input: &[u8]) {
    let Some((host, port)) = authority::split(input) else {
        return;
    };
    assert!(!host.is_empty() && input.starts_with(host));
    for byte in b"@/?# \r\n\0," {
        assert!(!host.contains(byte), "{}", host.escape_ascii());
    }
    let rest = &input[host.len()..];
    match port {
        None => assert!(rest.is_empty() || rest == b":"),
        Some(port) => {
            let digits = std::str::from_utf8(&rest[1..]).expect("digits are ASCII");
            assert_eq!(digits.parse(), Ok(port));
        }
    }
}

fn check_reference(input: &[u8]) {
    let Some(reference) = Reference::parse(input) else {
        return;
    };
    for byte in b"?# \r\n\0" {
        let authority = reference.authority.unwrap_or_default();
        // The text between the brackets of an IP literal is not checked, so it may contain the byte.
        assert!(authority.starts_with(b"[") || !authority.contains(byte));
    }
    for current in [&b"/a/b?c"[..], b"/", b"*", b""] {
        let target = reference.target(current);
        assert!(target.starts_with(b"/"), "{}", target.escape_ascii());
        for byte in b"# \r\n\0" {
            assert!(!target.contains(byte), "{}", target.escape_ascii());
        }
    }
}
