//! The lines of a message's head: their ends, and the syntax of field lines (RFC 9112 §2.2, §5). Used for requests and
//! responses.

use std::ops::Range;

use h2o_http::{Known, is_token_byte};

use crate::FieldError;

/// Which line ends are accepted in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// Both CRLF and a bare line feed are accepted (RFC 9112 §2.2 allows recipients to accept the latter).
    Lenient,
    /// Only CRLF is accepted.
    Strict,
}

impl LineEnds {
    pub(crate) const fn new(strict: bool) -> Self {
        if strict { Self::Strict } else { Self::Lenient }
    }

    /// Length of the line end at the start of `text`; `None` if there is none.
    #[inline]
    pub(crate) fn at(self, text: &[u8]) -> Result<Option<usize>, FieldError> {
        if text.first_chunk() == Some(b"\r\n") {
            return Ok(Some(2));
        }
        match text {
            [b'\n', ..] => match self {
                Self::Lenient => Ok(Some(1)),
                Self::Strict => Err(FieldError::BareLineFeed),
            },
            _ => Ok(None),
        }
    }
}

/// One line of a field section. All positions are offsets in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Field {
        known: Option<Known>,
        name: Range<usize>,
        /// The range of the value, without surrounding blanks.
        value: Range<usize>,
        next: usize,
    },
    /// The empty line that ends the field section.
    End { next: usize },
}

/// Reads the line that starts at the offset `at`. The input must have a line feed at or after `at`.
#[inline(always)]
pub(crate) fn scan_line(input: &[u8], at: usize, ends: LineEnds) -> Result<Line, FieldError> {
    let line = input.get(at..).unwrap_or_default();
    if let [b'\r' | b'\n', ..] = line
        && let Some(len) = ends.at(line)?
    {
        return Ok(Line::End { next: at + len });
    }
    let (known, name_len) = match Known::before_colon(line) {
        Some((known, len)) => (Some(known), len),
        None => (None, other_name_len(line)?),
    };
    let mut start = name_len + 1;
    while let Some(b' ' | b'\t') = line.get(start) {
        start += 1;
    }
    let mut end = start + text_len::<0x20>(&line[start..]);
    let next = match ends.at(&line[end..])? {
        Some(len) => at + end + len,
        None => return Err(FieldError::ValueInvalid),
    };
    // Trims trailing blanks: SP and HTAB are the only bytes up to 0x20 that are allowed in a value.
    while end > start && line[end - 1] <= b' ' {
        end -= 1;
    }
    Ok(Line::Field {
        known,
        name: at..at + name_len,
        value: at + start..at + end,
        next,
    })
}

/// Length of the field name at the start of `line`, which is not a well-known one.
fn other_name_len(line: &[u8]) -> Result<usize, FieldError> {
    if let [b' ' | b'\t', ..] = line {
        return Err(FieldError::Folded);
    }
    let name_len = token_len(line);
    match line.get(name_len) {
        Some(b':') if name_len > 0 => Ok(name_len),
        Some(b' ' | b'\t') if name_len > 0 => Err(FieldError::BlankBeforeColon),
        _ => Err(FieldError::NameInvalid),
    }
}

/// Length of the token at the start of `text`.
#[inline]
pub(crate) fn token_len(text: &[u8]) -> usize {
    text.iter()
        .position(|&byte| !is_token_byte(byte))
        .unwrap_or(text.len())
}

/// Length of `text` up to the first byte below `FLOOR` or the first DEL. If `FLOOR` is 0x20, spaces are allowed and, as an
/// exception, horizontal tabs. Bytes from 0x80 on are allowed.
///
/// Reads eight bytes at a time, since most of a head is field values (benchmark `head`).
#[inline]
pub(crate) fn text_len<const FLOOR: u8>(text: &[u8]) -> usize {
    let mut rest = text;
    while let Some((bytes, tail)) = rest.split_first_chunk::<8>() {
        let found = below_or_del::<FLOOR>(u64::from_le_bytes(*bytes));
        if found == 0 {
            rest = tail;
            continue;
        }
        let before = (found.trailing_zeros() / 8) as usize;
        if FLOOR != 0x20 || bytes[before] != b'\t' {
            return text.len() - rest.len() + before;
        }
        rest = &rest[before + 1..];
    }
    let stops = |byte: u8| (byte < FLOOR || byte == 0x7f) && (FLOOR != 0x20 || byte != b'\t');
    let last = rest.iter().position(|&byte| stops(byte));
    text.len() - rest.len() + last.unwrap_or(rest.len())
}

/// Marks each byte of the word that is below `FLOOR` or is DEL by its high bit. Only the lowest mark is reliable: borrows
/// of the subtraction can set false marks above it.
#[inline]
const fn below_or_del<const FLOOR: u8>(bytes: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let below = bytes.wrapping_sub(ONES * FLOOR as u64);
    let del = (bytes ^ (ONES * 0x7f)).wrapping_sub(ONES);
    (below | del) & !bytes & (ONES << 7)
}

/// Finds the end of a message's head in growing input, and scans each byte only once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadScan {
    /// Number of bytes of the input scanned so far.
    scanned: u32,
    /// Start of the first line that has not been checked yet.
    line: u32,
}

/// The result of [`HeadScan::find_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadEnd {
    /// The head is complete; it ends at the offset `end` of the input.
    Complete { end: usize },
    /// The end of the head has not arrived, and the input is shorter than the limit. `lines` is the position after the last
    /// line whose end this call found; 0 if it found none.
    Incomplete { lines: usize },
    /// The head is longer than the limit.
    TooLarge,
}

impl HeadScan {
    /// Number of bytes that earlier calls of [`HeadScan::find_end`] scanned.
    pub(crate) const fn scanned(self) -> usize {
        self.scanned as usize
    }

    /// Searches `input`, which includes the input of earlier calls, for the empty line that ends the head.
    ///
    /// An empty line at the very start does not end the head (RFC 9112 §2.2), but a second one does.
    pub(crate) fn find_end(&mut self, input: &[u8], max_head: usize) -> HeadEnd {
        let max_head = max_head.min(u32::MAX as usize);
        let within = &input[..input.len().min(max_head)];
        let mut lines = 0;
        for feed in memchr::memchr_iter(b'\n', &within[self.scanned()..]) {
            let at = feed + self.scanned();
            if ends_head(within, at) {
                return HeadEnd::Complete { end: at + 1 };
            }
            lines = at + 1;
        }
        if input.len() >= max_head {
            return HeadEnd::TooLarge;
        }
        self.scanned = u32::try_from(within.len()).unwrap_or(u32::MAX);
        HeadEnd::Incomplete { lines }
    }

    /// Checks the complete lines of an incomplete head, so that invalid input is refused without waiting for the rest.
    /// `lines` is the input up to the position from [`HeadScan::find_end`]. `first` checks the first line and returns the
    /// position after it, or `None` if it is not complete.
    pub(crate) fn check_lines<E: From<FieldError>>(
        &mut self,
        lines: &[u8],
        ends: LineEnds,
        first: impl FnOnce(&[u8]) -> Result<Option<usize>, E>,
    ) -> Result<(), E> {
        if self.is_in_first_line() {
            let Some(next) = first(lines)? else {
                return Ok(());
            };
            self.line = u32::try_from(next).unwrap_or(u32::MAX);
        }
        while (self.line as usize) < lines.len() {
            let (Line::Field { next, .. } | Line::End { next }) =
                scan_line(lines, self.line as usize, ends)?;
            self.line = u32::try_from(next).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    /// Whether the first line of the head is still incomplete, as far as [`HeadScan::check_lines`] has seen.
    pub(crate) const fn is_in_first_line(self) -> bool {
        self.line == 0
    }
}

/// Whether the line feed at the offset `at` ends an empty line other than the one that is allowed at the start.
#[inline]
fn ends_head(input: &[u8], at: usize) -> bool {
    match input[..at] {
        [] | [b'\r'] => false,
        [.., b'\n'] | [.., b'\n', b'\r'] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_the_first_byte_below_the_floor() {
        for fill in [b'a', 0x80, 0xff, b' ', b'~'] {
            for len in 0..40 {
                for stop in 0..=255u8 {
                    let mut text = vec![fill; 40];
                    text[len] = stop;
                    let blank_stops = fill == b' ';
                    let passes = (0x20..=0xff).contains(&stop) && stop != 0x7f;
                    let want = if passes || stop == b'\t' { 40 } else { len };
                    assert_eq!(text_len::<0x20>(&text), want, "{stop} in {fill} at {len}");
                    let passes = passes && stop != b' ';
                    let want = if passes { 40 } else { len };
                    let want = if blank_stops && len > 0 { 0 } else { want };
                    if !(blank_stops && len == 0 && passes) {
                        assert_eq!(text_len::<0x21>(&text), want, "{stop} in {fill} at {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_are_fields_or_the_end() {
        type Want = Result<Option<(&'static [u8], &'static [u8])>, FieldError>;
        let cases: &[(&[u8], Want)] = &[
            (b"a:b\r\n", Ok(Some((b"a", b"b")))),
            (b"a: \t b c \t\n", Ok(Some((b"a", b"b c")))),
            (b"A-b:\r\n", Ok(Some((b"A-b", b"")))),
            (b"a: \r\n", Ok(Some((b"a", b"")))),
            (b"a: \xff\tb\r\n", Ok(Some((b"a", b"\xff\tb")))),
            (b"\r\n", Ok(None)),
            (b"\n", Ok(None)),
            (b":b\r\n", Err(FieldError::NameInvalid)),
            (b"ab\r\n", Err(FieldError::NameInvalid)),
            (b"a\xc3: b\r\n", Err(FieldError::NameInvalid)),
            (b"a : b\r\n", Err(FieldError::BlankBeforeColon)),
            (b" a: b\r\n", Err(FieldError::Folded)),
            (b"\ta\r\n", Err(FieldError::Folded)),
            (b"a: b\0\r\n", Err(FieldError::ValueInvalid)),
            (b"a: b\rc\r\n", Err(FieldError::ValueInvalid)),
            (b"a: b\r\r\n", Err(FieldError::ValueInvalid)),
            (b"a: \x7f\r\n", Err(FieldError::ValueInvalid)),
            (b"\r\r\n", Err(FieldError::NameInvalid)),
        ];
        for (input, want) in cases {
            let got = scan_line(input, 0, LineEnds::Lenient).map(|line| match line {
                Line::Field {
                    name, value, next, ..
                } => {
                    assert_eq!(next, input.len());
                    Some((&input[name], &input[value]))
                }
                Line::End { next } => {
                    assert_eq!(next, input.len());
                    None
                }
            });
            assert_eq!(got, *want, "{}", input.escape_ascii());
        }
        for input in [&b"a: b\n"[..], b"\n"] {
            let got = scan_line(input, 0, LineEnds::Strict);
            assert_eq!(got, Err(FieldError::BareLineFeed));
        }
    }

    #[test]
    fn heads_end_at_the_first_empty_line_after_a_line() {
        let cases: &[(&[u8], usize)] = &[
            (b"a\r\n\r\nxyz", 5),
            (b"a\n\nxyz", 3),
            (b"a\r\n\nxyz", 4),
            (b"\r\na\r\n\r\nxyz", 7),
            (b"\na\n\r\nxyz", 5),
            (b"\r\n\r\nxyz", 4),
            (b"\n\nxyz", 2),
        ];
        for (input, end) in cases {
            for step in 1..=input.len() {
                let mut scan = HeadScan::default();
                let mut seen = 0;
                let found = loop {
                    seen = (seen + step).min(input.len());
                    if let HeadEnd::Complete { end } = scan.find_end(&input[..seen], 100) {
                        break end;
                    }
                };
                assert_eq!(found, *end, "{}", input.escape_ascii());
            }
        }
        let mut scan = HeadScan::default();
        assert_eq!(
            scan.find_end(b"abcd\r\n", 7),
            HeadEnd::Incomplete { lines: 6 }
        );
        assert_eq!(scan.find_end(b"abcd\r\n\r", 7), HeadEnd::TooLarge);
        let mut scan = HeadScan::default();
        assert_eq!(
            scan.find_end(b"abc\r\n\r\n", 7),
            HeadEnd::Complete { end: 7 }
        );
    }
}
