//! IMF-fixdate (RFC 9110 §5.6.7), the only date format of HTTP that this server writes or reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of an IMF-fixdate in bytes.
pub const LEN: usize = 29;

/// Formats the time `seconds` after the Unix epoch like `Sun, 06 Nov 1994 08:49:37 GMT`.
///
/// A time before the epoch or after the year 9999 is replaced by the nearest time that the format can express.
#[must_use]
pub fn format(seconds: i64) -> [u8; LEN] {
    const LAST: u64 = 253_402_300_799;
    let seconds = u64::try_from(seconds).unwrap_or(0).min(LAST);
    let text = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    text.as_bytes()
        .try_into()
        .unwrap_or(*b"Thu, 01 Jan 1970 00:00:00 GMT")
}

/// The seconds since the Unix epoch that an IMF-fixdate denotes; `None` for any other text. H2O compatibility: H2O ignores
/// dates in the two obsolete formats.
#[must_use]
pub fn parse(text: &[u8]) -> Option<i64> {
    if text.len() != LEN {
        return None;
    }
    let time: SystemTime = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_imf_fixdate_only() {
        assert_eq!(&format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), None);
        assert_eq!(parse(b"Sun Nov  6 08:49:37 1994"), None);
        assert_eq!(parse(b"Sun, 99 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(&format(-5), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&format(i64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
