//! Normalisation of request paths: percent-decoding and dot segments (RFC 3986 §5.2.4, §6.2.2). H2O compatibility: the
//! normal form is the same as H2O's.

use crate::words;

/// Properties of a path that were found while it was normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathFlags {
    /// Whether the path has a NUL after decoding, which is not allowed in file names.
    pub nul: bool,
}

/// The result of one scan over the target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetScan {
    /// Length of the target in bytes.
    pub len: usize,
    /// The position of the first `?` in the target.
    pub query_at: Option<usize>,
    /// Whether the path is certainly its own normal form. If false, the caller normalises the path.
    pub is_normal: bool,
}

/// Scans the request target at the start of `text`, which ends before the first blank, control byte or DEL.
#[inline]
#[must_use]
pub fn scan_target(text: &[u8]) -> TargetScan {
    let mut at = 0;
    let mut odd = 0;
    let mut slash_before = 0;
    loop {
        let word = words::load(text, at);
        let end = words::marks_below_or_del(word, 0x21) | words::marks_of(word, b'?');
        let slashes = words::marks_of(word, b'/');
        let dots = words::marks_of(word, b'.') & (slashes << 8 | slash_before);
        odd |= (dots | words::marks_of(word, b'%')) & words::before_mark(end);
        if end != 0 {
            at += words::bytes_before(end);
            break;
        }
        slash_before = slashes >> 56;
        at += 8;
    }
    let is_normal = odd == 0 && text.first() == Some(&b'/');
    let query_at = (text.get(at) == Some(&b'?')).then_some(at);
    if query_at.is_some() {
        at = blank_at(text, at);
    }
    TargetScan {
        len: at,
        query_at,
        is_normal,
    }
}

/// The position in `text` of the first blank, control byte or DEL from `at` on; the length of the text if it has none.
fn blank_at(text: &[u8], mut at: usize) -> usize {
    loop {
        let end = words::marks_below_or_del(words::load(text, at), 0x21);
        if end != 0 {
            return at + words::bytes_before(end);
        }
        at += 8;
    }
}

/// The position of the first `?` in a target, where the query starts.
#[must_use]
pub fn query_at(target: &[u8]) -> Option<usize> {
    memchr::memchr(b'?', target)
}

/// Whether `path` (without query) is its own normal form, as most paths are.
#[must_use]
pub fn is_normal(path: &[u8]) -> bool {
    // Most paths are short: one plain pass over the bytes beats several vectorised searches.
    let mut before = 0;
    let is_odd = |&byte: &u8| {
        let odd = byte == b'%' || byte == 0 || (byte == b'.' && before == b'/');
        before = byte;
        odd
    };
    path.first() == Some(&b'/') && !path.iter().any(is_odd)
}

/// Appends the normal form of `path` (without query) to `out`.
///
/// `%XX` is decoded once, malformed escapes stay literal, `.` and `..` segments are resolved after decoding and never lead
/// above the root, repeated slashes are kept, a missing leading `/` is added.
pub fn normalize(path: &[u8], out: &mut Vec<u8>) -> PathFlags {
    normalize_traced(path, out, None)
}

/// Length of the prefix of `path` (without query) from which the first `normal_len` bytes of its normal form were made. The
/// rest of `path` is the part below a mount point, as the client wrote it.
#[must_use]
pub fn raw_len(path: &[u8], normal_len: usize) -> usize {
    let (mut normal, mut ends) = (Vec::with_capacity(path.len() + 1), Vec::new());
    normalize_traced(path, &mut normal, Some(&mut ends));
    match normal_len.checked_sub(1) {
        None => 0,
        Some(last) => ends.get(last).copied().unwrap_or(path.len()),
    }
}

/// Like [`normalize`]. For each byte of the normal form, the position in `path` after the text that the byte was made from
/// is stored in `ends`.
fn normalize_traced(
    path: &[u8],
    out: &mut Vec<u8>,
    mut ends: Option<&mut Vec<usize>>,
) -> PathFlags {
    let mut flags = PathFlags::default();
    let base = out.len();
    out.push(b'/');
    let mut rest = path.strip_prefix(b"/").unwrap_or(path);
    if let Some(ends) = &mut ends {
        ends.push(path.len() - rest.len());
    }
    // Start in `out` of the segment that is being written; the text before it ends in a slash.
    let mut segment = out.len();
    loop {
        let byte = next_decoded(rest).map(|(byte, tail)| {
            rest = tail;
            byte
        });
        match byte {
            None | Some(b'/') => {
                let dots = match &out[segment..] {
                    b"." => 1,
                    b".." => 2,
                    _ => 0,
                };
                if dots > 0 {
                    out.truncate(segment);
                    if dots == 2 {
                        // A `..` also removes the slash before it, and the segment before that slash.
                        let keep = out[base..segment - 1]
                            .iter()
                            .rposition(|&o| o == b'/')
                            .unwrap_or(0);
                        out.truncate(base + keep + 1);
                    }
                } else if byte.is_some() {
                    out.push(b'/');
                }
                if byte.is_none() {
                    return flags;
                }
                segment = out.len();
            }
            Some(byte) => {
                flags.nul |= byte == 0;
                out.push(byte);
            }
        }
        if let Some(ends) = &mut ends {
            // This step of the normalisation has appended at most one byte to `out`, but it may have removed segments from
            // `out`.
            ends.resize(out.len() - base, path.len() - rest.len());
        }
    }
}

/// Whether a path has segments that lead to a parent directory, or that other servers may take for such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotSegments {
    /// The path has no dot segments.
    None,
    /// The path has a `.` or `..` segment, perhaps after decoding: [`normalize`] resolves it.
    Plain,
    /// The path has dots that only some servers take for a segment: they are followed by a `;`, where path parameters begin
    /// (RFC 3986 §3.3), or by a `#`, or have a `\` on one side.
    Disguised,
}

/// Finds out what dot segments `path` (without query) has. Escapes are decoded once.
#[must_use]
pub fn dot_segments(path: &[u8]) -> DotSegments {
    /// Value of `len` for a segment that does not consist of at most two dots.
    const OTHER: usize = 3;
    let is_dots = |len: usize| len == 1 || len == 2;
    let (mut flags, mut len, mut is_behind_backslash) = (DotSegments::None, 0, false);
    let mut rest = path;
    while let Some((byte, tail)) = next_decoded(rest) {
        rest = tail;
        match byte {
            b'/' => {
                if is_dots(len) && is_behind_backslash {
                    return DotSegments::Disguised;
                }
                if is_dots(len) {
                    flags = DotSegments::Plain;
                }
                (len, is_behind_backslash) = (0, false);
            }
            b'\\' | b';' | b'#' if is_dots(len) => return DotSegments::Disguised,
            b'\\' => (len, is_behind_backslash) = (0, true),
            b'.' => len = OTHER.min(len + 1),
            _ => len = OTHER,
        }
    }
    match (is_dots(len), is_behind_backslash) {
        (true, true) => DotSegments::Disguised,
        (true, false) => DotSegments::Plain,
        (false, _) => flags,
    }
}

/// The next byte of a path, decoded if it is escaped, and the rest of the path.
fn next_decoded(path: &[u8]) -> Option<(u8, &[u8])> {
    if let [b'%', high, low, tail @ ..] = path
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high << 4 | low, tail));
    }
    path.split_first().map(|(&byte, tail)| (byte, tail))
}

fn hex(byte: u8) -> Option<u8> {
    (byte as char)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_once_and_never_leave_the_root() {
        let cases: &[(&[u8], &[u8])] = &[
            (b"/", b"/"),
            (b"", b"/"),
            (b"a", b"/a"),
            (b"/a/b", b"/a/b"),
            (b"/a//b", b"/a//b"),
            (b"//", b"//"),
            (b"/.", b"/"),
            (b"/..", b"/"),
            (b"/a/.", b"/a/"),
            (b"/a/..", b"/"),
            (b"/a/../..", b"/"),
            (b"/a/./b", b"/a/b"),
            (b"/a/../b", b"/b"),
            (b"/a/b/../../c", b"/c"),
            (b"/a//../b", b"/a/b"),
            (b"/../../etc/passwd", b"/etc/passwd"),
            (b"/%2e%2e/x", b"/x"),
            (b"/a/..%2fx", b"/x"),
            (b"/a%2f..%2f..%2fx", b"/x"),
            (b"/%252e", b"/%2e"),
            (b"/%zz%4", b"/%zz%4"),
            (b"/%41%", b"/A%"),
            (b"/%3fa", b"/?a"),
            (b"/.a", b"/.a"),
            (b"/...", b"/..."),
            (b"/a..", b"/a.."),
            (b"*", b"/*"),
        ];
        for (input, want) in cases {
            let mut out = b"kept".to_vec();
            normalize(input, &mut out);
            assert_eq!(
                out[4..].escape_ascii().to_string(),
                want.escape_ascii().to_string(),
                "{}",
                input.escape_ascii()
            );
            assert!(
                !is_normal(input) || input == want,
                "{}",
                input.escape_ascii()
            );
        }
    }

    #[test]
    fn the_raw_length_of_a_prefix_counts_what_made_it() {
        let cases: &[(&[u8], usize, usize)] = &[
            (b"/a/f", 0, 0),
            (b"/a/f", 1, 1),
            (b"/a/f", 2, 2),
            (b"/a/f", 4, 4),
            (b"/a/f", 5, 4),
            (b"/%61/f", 2, 4),
            (b"/%61/f", 3, 5),
            (b"/foo/../%61/f", 2, 11),
            (b"/a/../a/f", 2, 7),
            (b"/a/x%2Fy/../z", 2, 2),
            (b"/./a", 2, 4),
            (b"/b/x/../f", 3, 3),
            (b"/%zz", 2, 2),
            (b"*", 1, 0),
            (b"*", 2, 1),
        ];
        for (path, normal_len, want) in cases {
            let got = raw_len(path, *normal_len);
            assert_eq!(got, *want, "{} {normal_len}", path.escape_ascii());
        }
    }

    #[test]
    fn dot_segments_are_found_however_they_are_written() {
        use DotSegments::{Disguised, None, Plain};
        let cases = [
            ("", None),
            ("/", None),
            ("/a.b/...", None),
            ("/.a/..b/a..", None),
            ("//a\\b;c/;/\\", None),
            ("/%252e%252e/", None),
            ("..", Plain),
            ("/.", Plain),
            ("/./x", Plain),
            ("/%2E./x", Plain),
            ("/x%2f..%2Fx", Plain),
            ("/../.x", Plain),
            ("/..;/x", Disguised),
            ("/../..;a=b", Disguised),
            ("/%2e%2e%3b/x", Disguised),
            ("/..#", Disguised),
            ("/..\\x", Disguised),
            ("/x\\..", Disguised),
            ("/x%5c../y", Disguised),
            ("/x\\..\\y", Disguised),
            ("\\.", Disguised),
        ];
        for (path, want) in cases {
            assert_eq!(dot_segments(path.as_bytes()), want, "{path}");
        }
    }

    #[test]
    fn normal_paths_are_recognised() {
        for path in [&b"/"[..], b"/a.txt", b"/a/b.c/", b"//"] {
            assert!(is_normal(path));
        }
        for path in [&b""[..], b"a", b"/.", b"/a/..", b"/%41", b"/.a", b"/a\0"] {
            assert!(!is_normal(path));
        }
    }

    #[test]
    fn one_pass_finds_what_the_searches_find() {
        let parts = [
            "/", ".", "%", "?", "a", "0123456", "\x7e", " ", "\n", "\x7f", "\u{e9}",
        ];
        for seed in 0..parts.len().pow(5) {
            let text: String = (0..5)
                .map(|at| parts[seed / parts.len().pow(at) % parts.len()])
                .collect();
            let text = text.as_bytes();
            let stops = |&byte: &u8| byte < 0x21 || byte == 0x7f;
            let len = text.iter().position(stops).unwrap_or(text.len());
            let query_at = query_at(&text[..len]);
            let is_normal = is_normal(&text[..query_at.unwrap_or(len)]);
            let got = scan_target(text);
            let want = TargetScan {
                len,
                query_at,
                is_normal: got.is_normal,
            };
            assert_eq!(got, want, "{}", text.escape_ascii());
            // In a path with `.//` the scan may take the second slash for a dot, since a search in `words` can mark a wrong
            // byte after the first found one. The scan then does not call the path normal.
            let text = &text[..query_at.unwrap_or(len)];
            let unsure = text.windows(3).any(|three| three == b".//");
            assert!(
                got.is_normal == is_normal || (is_normal && unsure),
                "{}",
                text.escape_ascii()
            );
        }
    }

    #[test]
    fn decoded_nul_is_flagged() {
        assert!(normalize(b"/a%00b", &mut Vec::new()).nul);
        assert!(!normalize(b"/a%01b", &mut Vec::new()).nul);
    }

    #[test]
    fn normal_form_is_a_fixed_point_without_escapes() {
        for input in [&b"/a/../b//c/./d/.."[..], b"/../x/..", b"////..//"] {
            let mut once = Vec::new();
            normalize(input, &mut once);
            let mut twice = Vec::new();
            normalize(&once, &mut twice);
            assert_eq!(once, twice);
        }
    }
}
