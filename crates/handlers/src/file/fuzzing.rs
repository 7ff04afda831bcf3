//! Entry points for fuzzing: they take bytes and check invariants of the file handler's parsers.

use h2o_http::{Headers, Known};

use super::conditional::{Validators, is_not_modified, range_holds};
use super::range::{ByteRange, MAX_ELEMENTS, Selection, select};

/// Reads the value of a `Range` field for a file. `input` has the size of the file in eight bytes, then the value.
pub fn range(input: &[u8]) {
    let Some((size, value)) = input.split_first_chunk() else {
        return;
    };
    let size = u64::from_be_bytes(*size);
    let ranges = match select(value, size) {
        Selection::Whole => {
            assert!(value.split(|&byte| byte == b',').count() > MAX_ELEMENTS);
            return;
        }
        Selection::Nothing => return,
        Selection::One(range) => vec![range],
        Selection::Several(ranges) => {
            assert!(ranges.len() > 1 && ranges.len() <= MAX_ELEMENTS);
            ranges
        }
    };
    assert!(value.starts_with(b"bytes="));
    for range in &ranges {
        assert!(range.first <= range.last && range.last < size);
    }
    let touch = |one: &ByteRange, two: &ByteRange| {
        one.first <= two.last.saturating_add(1) && two.first <= one.last.saturating_add(1)
    };
    for (at, one) in ranges.iter().enumerate() {
        assert!(ranges[at + 1..].iter().all(|two| !touch(one, two)));
    }
    let sent: u128 = ranges.iter().map(|range| u128::from(range.len())).sum();
    assert!(sent <= u128::from(size));
    // A request for exactly the chosen ranges must choose the same ranges again.
    let texts = ranges.iter().map(|r| format!("{}-{}", r.first, r.last));
    let again = format!("bytes={}", texts.collect::<Vec<_>>().join(","));
    match select(again.as_bytes(), size) {
        Selection::One(range) => assert_eq!([range], *ranges),
        Selection::Several(same) => assert_eq!(same, ranges),
        Selection::Whole | Selection::Nothing => panic!("{again}"),
    }
}

/// Evaluates the conditions of a request. `input` has one line per field: `If-None-Match`, `If-Modified-Since`,
/// `If-Range`, and `If-None-Match` once more. An empty line leaves its field out.
pub fn conditional(input: &[u8]) {
    const NAMES: [Known; 4] = [
        Known::IfNoneMatch,
        Known::IfModifiedSince,
        Known::IfRange,
        Known::IfNoneMatch,
    ];
    let validators = Validators {
        etag: b"\"65937d25-17\"",
        modified: 784_111_777,
    };
    let mut request = Headers::new();
    for (name, line) in NAMES.into_iter().zip(input.split(|&byte| byte == b'\n')) {
        if !line.is_empty() {
            request.push(name, line);
        }
    }
    let unchanged = is_not_modified(&request, validators);
    let holds = range_holds(&request, validators);
    let has_tag =
        |line: &[u8]| line == b"*" || memchr::memmem::find(line, validators.etag).is_some();
    if request.get(Known::IfNoneMatch).is_some() {
        assert!(!unchanged || request.get_all(Known::IfNoneMatch).any(has_tag));
    } else if unchanged {
        assert_eq!(
            request.get(Known::IfModifiedSince).map(<[u8]>::len),
            Some(29)
        );
    }
    if let Some(value) = request.get(Known::IfRange) {
        assert!(!holds || value == validators.etag || value.len() == 29);
    } else {
        assert!(holds);
    }
    // The exact entity tag always matches.
    request.push(Known::IfNoneMatch, validators.etag);
    assert!(is_not_modified(&request, validators));
}
