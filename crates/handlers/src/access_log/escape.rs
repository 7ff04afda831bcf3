//! Escapes text from clients and backends in log lines.

/// How values are escaped in log lines. H2O compatibility: H2O escapes exactly these sets of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Escape {
    /// A missing value is `-`; `"` and bytes outside 0x20..=0x7c become `\xNN`. A backslash stays as it is.
    #[default]
    Apache,
    /// A missing value is `null`; `"` and `\` get a backslash, bytes outside 0x20..=0x7d become `\u00NN`.
    Json,
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl Escape {
    /// The text that a log line has for a missing value.
    pub(crate) const fn null(self) -> &'static [u8] {
        match self {
            Self::Apache => b"-",
            Self::Json => b"null",
        }
    }

    /// Appends `text` to `out`, escaped.
    pub(crate) fn write(self, text: &[u8], out: &mut Vec<u8>) {
        if self.is_clean(text) {
            out.extend_from_slice(text);
            return;
        }
        for &byte in text {
            self.write_byte(byte, out);
        }
    }

    /// Whether the text has no byte to escape, as most texts. The loop has no early exit, so that it compiles to vector
    /// code.
    fn is_clean(self, text: &[u8]) -> bool {
        match self {
            Self::Apache => text.iter().fold(true, |clean, &byte| {
                clean & (byte.wrapping_sub(0x20) <= 0x7c - 0x20) & (byte != b'"')
            }),
            Self::Json => text.iter().fold(true, |clean, &byte| {
                clean & (byte.wrapping_sub(0x20) <= 0x7d - 0x20) & (byte != b'"') & (byte != b'\\')
            }),
        }
    }

    fn write_byte(self, byte: u8, out: &mut Vec<u8>) {
        let prefix: &[u8] = match (self, byte) {
            (Self::Json, b'"' | b'\\') => {
                out.extend_from_slice(&[b'\\', byte]);
                return;
            }
            (Self::Apache, 0x20..=0x7c) if byte != b'"' => return out.push(byte),
            (Self::Json, 0x20..=0x7d) => return out.push(byte),
            (Self::Apache, _) => b"\\x",
            (Self::Json, _) => b"\\u00",
        };
        out.extend_from_slice(prefix);
        out.push(HEX[usize::from(byte >> 4)]);
        out.push(HEX[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_escaped_as_its_mode_says() {
        for byte in 0..=255u8 {
            let apache = if (0x20..=0x7c).contains(&byte) && byte != b'"' {
                char::from(byte).to_string()
            } else {
                format!("\\x{byte:02x}")
            };
            let json = match byte {
                b'"' | b'\\' => format!("\\{}", char::from(byte)),
                0x20..=0x7d => char::from(byte).to_string(),
                _ => format!("\\u00{byte:02x}"),
            };
            for (mode, want) in [(Escape::Apache, apache), (Escape::Json, json)] {
                let mut out = Vec::new();
                mode.write(&[byte], &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), want, "{mode:?}");
                let mut out = Vec::new();
                mode.write(&[b'a', byte, b'z'], &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), format!("a{want}z"));
            }
        }
    }

    #[test]
    fn what_a_client_sends_never_looks_like_an_escape_in_json() {
        let texts: [&[u8]; 8] = [
            b"\"",
            b"\\\"",
            b"\\x22",
            b"\\u0022",
            b"\\",
            b"\x01",
            b"\\u0001",
            b"\xc3\xa9",
        ];
        let written = texts.map(|text| {
            let mut out = Vec::new();
            Escape::Json.write(text, &mut out);
            // A JSON string ends at the first quote without a backslash, so every quote in the output must have one.
            let quotes = out.iter().filter(|&&byte| byte == b'"').count();
            let escaped = out.windows(2).filter(|two| two == b"\\\"").count();
            assert_eq!(quotes, escaped, "{}", out.escape_ascii());
            out
        });
        for (at, one) in written.iter().enumerate() {
            assert!(!written[..at].contains(one), "{}", one.escape_ascii());
        }
    }
}
