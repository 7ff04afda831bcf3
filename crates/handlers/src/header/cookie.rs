//! Removes single cookies from `cookie` fields.

use h2o_config::{Error, Node};
use h2o_http::{Headers, Known, Name};

/// Reads the cookie names that a rule lists. They are case-sensitive (RFC 6265 §5.4).
pub(super) fn read_all(list: &[Node]) -> Result<Box<[Box<str>]>, Error> {
    list.iter()
        .map(|node| {
            let name = node.scalar()?.trim_ascii();
            if name.is_empty() || name.contains(['=', ';']) {
                return Err(node
                    .error("invalid cookie name")
                    .with_hint("write a name without `=` and `;`"));
            }
            Ok(name.into())
        })
        .collect()
}

pub(super) fn is_among(names: &[Box<str>], name: &[u8]) -> bool {
    names.iter().any(|known| known.as_bytes() == name)
}

/// Keeps the cookies for whose name `keep` returns true. A `cookie` field without cookies left is removed.
pub(super) fn retain(headers: &mut Headers, keep: impl Fn(&[u8]) -> bool) {
    // Responses rarely have a `cookie` field; without one, the memory of the header block is not touched.
    if headers.get(Known::Cookie).is_none() {
        return;
    }
    headers.edit(|field| {
        if field.name != Name::Known(Known::Cookie) {
            return None;
        }
        let value = join(pairs(field.value).filter(|(name, _)| keep(name)));
        Some((!value.is_empty()).then_some(value))
    });
}

/// The cookies in the value of a `cookie` field (RFC 6265 §4.2.1) as pairs of name and value, without blanks around
/// them. A cookie without `=` has an empty value.
fn pairs(value: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    value
        .split(|&byte| byte == b';')
        .map(|pair| {
            let (name, value) = match memchr::memchr(b'=', pair) {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &b""[..]),
            };
            (name.trim_ascii(), value.trim_ascii())
        })
        .filter(|(name, value)| !name.is_empty() || !value.is_empty())
}

fn join<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut joined = Vec::new();
    for (name, value) in pairs {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(name);
        if !value.is_empty() {
            joined.push(b'=');
            joined.extend_from_slice(value);
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_dropped_by_exact_name_and_the_rest_is_joined_again() {
        let cases = [
            ("a=1; c=2;b = 3;d=;f", &["a", "b"][..], "c=2; d; f"),
            ("a=1", &["a"], ""),
            ("A=1", &["a"], "A=1"),
            ("a=1=2", &[], "a=1=2"),
            (" ; ;a=1;;", &[], "a=1"),
            ("=1", &[], "=1"),
            ("", &[], ""),
        ];
        for (input, drop, want) in cases {
            let mut headers = Headers::new();
            headers.push(Known::Cookie, input.as_bytes());
            retain(&mut headers, |name| {
                !drop.iter().any(|dropped| dropped.as_bytes() == name)
            });
            let got = headers.get(Known::Cookie).unwrap_or_default();
            assert_eq!(got.escape_ascii().to_string(), want, "{input}");
        }
    }
}
