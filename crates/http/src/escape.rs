//! Escaping of text in generated HTML pages and in field values, and lists in field values.

/// For each byte, whether it is escaped in HTML: `"` `&` `'` `<` `>`.
static SPECIAL: [bool; 256] = {
    let mut special = [false; 256];
    let mut bytes: &[u8] = b"\"&'<>";
    while let [byte, rest @ ..] = bytes {
        special[*byte as usize] = true;
        bytes = rest;
    }
    special
};

/// Whether `text` has no character that HTML needs escaped.
#[must_use]
pub fn is_plain_html(text: &[u8]) -> bool {
    !text.iter().any(|byte| SPECIAL[usize::from(*byte)])
}

/// Appends `text` to `out` with `"` `&` `'` `<` `>` escaped for HTML.
pub fn html(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"&quot;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            _ => out.push(byte),
        }
    }
}

/// Appends `text` to `out`, percent-encoded with upper-case hexadecimal digits. Unreserved characters, sub-delims (RFC 3986
/// §2) and the bytes of `keep` are not encoded. H2O compatibility: H2O leaves the same bytes as they are.
pub fn uri(text: &[u8], keep: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        if byte.is_ascii_alphanumeric()
            || b"-._~!$&'()*+,;=".contains(&byte)
            || keep.contains(&byte)
        {
            out.push(byte);
        } else {
            out.extend_from_slice(&[
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        }
    }
}

/// Whether the comma-separated list `value` has the element `token`; letter case is ignored (RFC 9110 §5.6.1).
#[must_use]
pub fn list_contains(value: &[u8], token: &[u8]) -> bool {
    value
        .split(|&byte| byte == b',')
        .any(|element| element.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        let mut out = Vec::new();
        html(b"<a b='c&\"'>", &mut out);
        assert_eq!(out, b"&lt;a b=&#39;c&amp;&quot;&#39;&gt;");
        out.clear();
        uri(b"/a b:@\xff~*", b"/", &mut out);
        assert_eq!(out, b"/a%20b%3A%40%FF~*");
    }

    #[test]
    fn list_elements_ignore_case_and_blanks() {
        assert!(list_contains(b"a , Keep-Alive", b"keep-alive"));
        assert!(!list_contains(b"keep-alive2", b"keep-alive"));
    }
}
