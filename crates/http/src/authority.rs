//! The authority of a URI without user information: `host[:port]` (RFC 3986 §3.2).

/// Splits an authority into host and port. The host of an IPv6 literal keeps its brackets.
///
/// Returns `None` if the host is empty or has a byte that is not allowed in a host, or if there is no port after the colon.
/// An empty port (`example.com:`) counts as absent (RFC 3986 §3.2.3).
#[inline]
#[must_use]
pub fn split(authority: &[u8]) -> Option<(&[u8], Option<u16>)> {
    let host_end = if authority.first() == Some(&b'[') {
        let close = memchr::memchr(b']', authority)?;
        let address = std::str::from_utf8(&authority[1..close]).ok()?;
        address.parse::<std::net::Ipv6Addr>().ok()?;
        close + 1
    } else {
        // The host ends at the colon, or at the first byte that is not allowed in a host name; in the latter case the match
        // below rejects the authority.
        name_len(authority)
    };
    let (host, rest) = authority.split_at(host_end);
    if host.is_empty() {
        return None;
    }
    match rest {
        [] | [b':'] => Some((host, None)),
        [b':', digits @ ..] if digits.len() <= 5 => {
            let mut port = 0;
            for byte in digits {
                let digit = u32::from(byte.wrapping_sub(b'0'));
                if digit > 9 {
                    return None;
                }
                port = port * 10 + digit;
            }
            Some((host, Some(u16::try_from(port).ok()?)))
        }
        _ => None,
    }
}

/// Whether [`split`] accepts `authority`.
#[inline]
#[must_use]
pub fn is_valid(authority: &[u8]) -> bool {
    let at = name_len(authority);
    match &authority[at..] {
        [] => at > 0,
        [b':', digits @ ..] if at > 0 && digits.len() <= 5 => {
            let mut port = 0;
            for byte in digits {
                let digit = u32::from(byte.wrapping_sub(b'0'));
                if digit > 9 {
                    return false;
                }
                port = port * 10 + digit;
            }
            port <= u32::from(u16::MAX)
        }
        // Takes the slow path for brackets, which are rare, and for bytes that are not allowed in an authority.
        _ => split(authority).is_some(),
    }
}

/// How many bytes at the beginning of `text` form a reg-name, the host of an authority that is not in brackets (RFC 3986
/// §3.2.2).
#[inline]
fn name_len(text: &[u8]) -> usize {
    let mut len = 0;
    while let Some(&byte) = text.get(len)
        && HOST_BYTES[usize::from(byte)]
    {
        len += 1;
    }
    if text.get(len) == Some(&b'%') {
        return escaped_name_len(text, len);
    }
    len
}

/// Continues [`name_len`] for a text whose first `len` bytes are allowed in a host name and whose next byte is a percent
/// sign.
#[cold]
fn escaped_name_len(text: &[u8], mut len: usize) -> usize {
    while let Some(&byte) = text.get(len) {
        if HOST_BYTES[usize::from(byte)] {
            len += 1;
        } else if is_escape(&text[len..]) {
            len += 3;
        } else {
            break;
        }
    }
    len
}

/// Whether `text` begins with a percent sign and two hexadecimal digits (RFC 3986 §2.1).
fn is_escape(text: &[u8]) -> bool {
    matches!(text, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

static HOST_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "the number is below 256")]
        let as_byte = byte as u8;
        table[byte] = is_host_byte(as_byte);
        byte += 1;
    }
    table
};

/// Whether `byte` is allowed in a reg-name (RFC 3986 §3.2.2: unreserved, sub-delims); escapes are handled apart. Bytes from
/// 0x80 on are accepted, since some clients send host names in raw UTF-8.
const fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || byte >= 0x80
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b';'
                | b'='
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_split_at_the_port() {
        type Want = Option<(&'static [u8], Option<u16>)>;
        let cases: &[(&[u8], Want)] = &[
            (b"a.example", Some((b"a.example", None))),
            (b"a.example:8080", Some((b"a.example", Some(8080)))),
            (b"a.example:", Some((b"a.example", None))),
            (b"[::1]:443", Some((b"[::1]", Some(443)))),
            (b"[::1]", Some((b"[::1]", None))),
            (b"127.0.0.1", Some((b"127.0.0.1", None))),
            (b"", None),
            (b":80", None),
            (b"a:b", None),
            (b"a:99999", None),
            (b"a:65535", Some((b"a", Some(65535)))),
            (b"a:65536", None),
            (b"a:000080", None),
            (b"a:-1", None),
            (b"a:+1", None),
            (b"a:80:80", None),
            (b"a b", None),
            (b"a/b", None),
            (b"a@b", None),
            (b"a,b", None),
            (b"a?b", None),
            (b"a#b", None),
            (b"[::1", None),
            (b"[zz]", None),
            (b"[::1]x", None),
            (b"a%2Db:1", Some((b"a%2Db", Some(1)))),
            (b"%41", Some((b"%41", None))),
            (b"a.test%", None),
            (b"a.test%:80", None),
            (b"a.test%zz", None),
            (b"a.test%4", None),
            (b"a.test%4:1", None),
        ];
        for (input, want) in cases {
            assert_eq!(split(input), *want, "{}", input.escape_ascii());
            let is_valid = is_valid(input);
            assert_eq!(is_valid, want.is_some(), "{}", input.escape_ascii());
        }
    }
}
