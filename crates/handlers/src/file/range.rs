//! The `Range` field (RFC 9110 §14.2).

/// Most elements of a `Range` field. RFC 9110 §14.2 lets a server ignore a field with many small ranges, which costs
/// far more to answer than to send. A field with more elements is ignored and the whole file is sent.
pub(super) const MAX_ELEMENTS: usize = 64;

/// Consecutive bytes of a file, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    /// Offset of the first byte.
    pub(super) first: u64,
    /// Offset of the last byte.
    pub(super) last: u64,
}

impl ByteRange {
    pub(super) const fn len(self) -> u64 {
        self.last - self.first + 1
    }
}

/// The ranges of a file that a `Range` field selects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// The field has too many ranges and is ignored: the whole file is sent.
    Whole,
    /// The field selects no byte that exists: the response is 416. H2O compatibility: H2O also answers 416 to a
    /// malformed field or another unit, which RFC 9110 §14.2 would ignore.
    Nothing,
    /// The field selects one range.
    One(ByteRange),
    /// The field selects at least two ranges that neither overlap nor touch, in the requested order.
    Several(Vec<ByteRange>),
}

/// Reads the value of a `Range` field for a file of `size` bytes. Ranges that overlap or touch are joined (RFC 9110
/// §15.3.7.2), so the response is never longer than the file.
pub(super) fn select(value: &[u8], size: u64) -> Selection {
    let Some(list) = value.strip_prefix(b"bytes=") else {
        return Selection::Nothing;
    };
    let mut ranges = Vec::new();
    let mut count = 0;
    for element in list.split(|&byte| byte == b',') {
        let element = trim_blanks(element);
        if element.is_empty() {
            continue;
        }
        count += 1;
        if count > MAX_ELEMENTS {
            return Selection::Whole;
        }
        let Some(asked) = parse_element(element) else {
            return Selection::Nothing;
        };
        if let Some(range) = asked.within(size) {
            merge(&mut ranges, range);
        }
    }
    match ranges.as_slice() {
        [] => Selection::Nothing,
        [range] => Selection::One(*range),
        [_, _, ..] => Selection::Several(ranges),
    }
}

fn trim_blanks(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// An element of a `Range` field. A number that does not fit in 64 bits is read as the largest one that does.
enum RequestedRange {
    From(u64),
    Between(u64, u64),
    Suffix(u64),
}

impl RequestedRange {
    /// The part of the requested range that a file of `size` bytes has; `None` if it has no byte of the range.
    fn within(&self, size: u64) -> Option<ByteRange> {
        let end = size.checked_sub(1)?;
        let (first, last) = match *self {
            Self::From(first) => (first, end),
            Self::Between(first, last) if first > last => return None,
            Self::Between(first, last) => (first, last.min(end)),
            Self::Suffix(0) => return None,
            Self::Suffix(len) => (size.saturating_sub(len), end),
        };
        (first <= end).then_some(ByteRange { first, last })
    }
}

fn parse_element(element: &[u8]) -> Option<RequestedRange> {
    let dash = memchr::memchr(b'-', element)?;
    let (first, last) = (&element[..dash], &element[dash + 1..]);
    match (first, last) {
        ([], last) => Some(RequestedRange::Suffix(parse_number(last)?)),
        (first, []) => Some(RequestedRange::From(parse_number(first)?)),
        (first, last) => Some(RequestedRange::Between(
            parse_number(first)?,
            parse_number(last)?,
        )),
    }
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

/// Adds a range. Ranges that it overlaps or touches are joined with it, at the place of the first of them.
fn merge(ranges: &mut Vec<ByteRange>, mut range: ByteRange) {
    let mut place = None;
    let mut at = 0;
    while let Some(other) = ranges.get(at).copied() {
        // The addition cannot overflow, because both `last` are smaller than the size of a file.
        if other.first <= range.last + 1 && range.first <= other.last + 1 {
            range.first = range.first.min(other.first);
            range.last = range.last.max(other.last);
            ranges.remove(at);
            place = Some(place.unwrap_or(at).min(at));
            // The joined range may touch one that it did not touch before.
            at = 0;
        } else {
            at += 1;
        }
    }
    ranges.insert(place.unwrap_or(ranges.len()), range);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(value: &str, size: u64) -> String {
        let text = |ranges: &[ByteRange]| {
            let texts: Vec<_> = ranges
                .iter()
                .map(|range| format!("{}-{}", range.first, range.last))
                .collect();
            texts.join(",")
        };
        match select(value.as_bytes(), size) {
            Selection::Whole => "whole".into(),
            Selection::Nothing => "nothing".into(),
            Selection::One(range) => text(&[range]),
            Selection::Several(ranges) => text(&ranges),
        }
    }

    #[test]
    fn ranges_of_a_hundred_bytes() {
        let cases = [
            ("bytes=0-0", "0-0"),
            ("bytes=0-99", "0-99"),
            ("bytes=0-100", "0-99"),
            ("bytes=0-", "0-99"),
            ("bytes=99-", "99-99"),
            ("bytes=99-99", "99-99"),
            ("bytes=100-", "nothing"),
            ("bytes=100-100", "nothing"),
            ("bytes=-1", "99-99"),
            ("bytes=-99", "1-99"),
            ("bytes=-100", "0-99"),
            ("bytes=-101", "0-99"),
            ("bytes=-0", "nothing"),
            ("bytes=5-4", "nothing"),
            ("bytes=5-4,7-7", "7-7"),
            ("bytes=18446744073709551615-", "nothing"),
            ("bytes=18446744073709551616-", "nothing"),
            ("bytes=1-99999999999999999999999999", "1-99"),
            ("bytes=-99999999999999999999999999", "0-99"),
            ("bytes=0-1,5-6", "0-1,5-6"),
            ("bytes=5-6,0-1", "5-6,0-1"),
            ("bytes= 0-1 ,\t5-6 ,, ,", "0-1,5-6"),
            ("bytes=,", "nothing"),
            ("bytes=", "nothing"),
            ("bytes", "nothing"),
            ("", "nothing"),
            ("Bytes=0-1", "nothing"),
            ("bytes =0-1", "nothing"),
            ("octets=0-1", "nothing"),
            ("bytes=0", "nothing"),
            ("bytes=-", "nothing"),
            ("bytes=0-1-", "nothing"),
            ("bytes=--1", "nothing"),
            ("bytes=0 - 1", "nothing"),
            ("bytes=+0-1", "nothing"),
            ("bytes=a-b", "nothing"),
            ("bytes=0-1;5-6", "nothing"),
            ("bytes=0-1,x", "nothing"),
        ];
        for (value, want) in cases {
            assert_eq!(show(value, 100), want, "{value}");
        }
    }

    #[test]
    fn overlapping_and_touching_ranges_become_one_where_the_first_stood() {
        let cases = [
            ("bytes=0-9,5-14", "0-14"),
            ("bytes=0-9,10-14", "0-14"),
            ("bytes=0-9,11-14", "0-9,11-14"),
            ("bytes=10-14,0-9", "0-14"),
            ("bytes=20-29,0-9,40-49,5-25", "0-29,40-49"),
            ("bytes=40-49,20-29,0-9,5-25", "40-49,0-29"),
            ("bytes=0-0,2-2,4-4,1-1", "0-2,4-4"),
            ("bytes=0-,0-,0-", "0-99"),
        ];
        for (value, want) in cases {
            assert_eq!(show(value, 100), want, "{value}");
        }
    }

    #[test]
    fn empty_file_has_no_range() {
        for value in ["bytes=0-", "bytes=0-0", "bytes=-1"] {
            assert_eq!(show(value, 0), "nothing");
        }
    }

    #[test]
    fn field_with_more_than_64_elements_is_ignored() {
        let field = |count: usize| {
            let elements: Vec<_> = (0..count).map(|n| format!("{}-{}", n * 2, n * 2)).collect();
            format!("bytes={}", elements.join(","))
        };
        assert_eq!(show(&field(MAX_ELEMENTS), 1000).split(',').count(), 64);
        assert_eq!(show(&field(MAX_ELEMENTS + 1), 1000), "whole");
        let dropped = format!("bytes={}0-0", "-0,".repeat(MAX_ELEMENTS));
        assert_eq!(
            show(&dropped, 1000),
            "whole",
            "elements that are dropped count towards the limit"
        );
    }

    #[test]
    fn largest_file_is_handled() {
        let last = u64::MAX - 1;
        assert_eq!(show("bytes=0-,5-6", u64::MAX), format!("0-{last}"));
        assert_eq!(show("bytes=-1", u64::MAX), format!("{last}-{last}"));
    }
}
