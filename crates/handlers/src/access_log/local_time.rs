//! Times of the wall clock in the local time zone, as text. Each format is written once per second.

use std::cell::RefCell;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::strftime::{Local, strftime};

/// The format of `%t`, without its brackets.
pub(crate) const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";

/// Most formatted times that a worker keeps. Each format of the running configuration needs one; beyond this number,
/// texts of earlier configurations are dropped.
const KEPT: usize = 32;

/// A worker's cache of formatted times.
pub(crate) struct LocalTime {
    zone: TimeZone,
    made: RefCell<Vec<FormattedSecond>>,
}

/// The text of a second in one format.
struct FormattedSecond {
    format: Box<str>,
    second: u64,
    text: Vec<u8>,
}

/// The default uses the system's time zone. Each worker looks it up once, as C programs look it up once per process.
impl Default for LocalTime {
    fn default() -> Self {
        Self::new(TimeZone::system())
    }
}

impl LocalTime {
    pub(crate) const fn new(zone: TimeZone) -> Self {
        Self {
            zone,
            made: RefCell::new(Vec::new()),
        }
    }

    /// Appends the time `at`, counted since the Unix epoch, in a `strftime` format.
    pub(crate) fn write(&self, format: &str, at: Duration, out: &mut Vec<u8>) {
        let second = at.as_secs();
        let mut made = self.made.borrow_mut();
        let index = made.iter().position(|made| *made.format == *format);
        let index = index.unwrap_or_else(|| {
            if made.len() >= KEPT {
                made.clear();
            }
            made.push(FormattedSecond {
                format: format.into(),
                second: u64::MAX,
                text: Vec::new(),
            });
            made.len() - 1
        });
        let made = &mut made[index];
        if made.second != second {
            made.second = second;
            made.text.clear();
            strftime(format, &self.local(second), &mut made.text);
        }
        out.extend_from_slice(&made.text);
    }

    /// The time `at` in the format of `%t`, without the brackets.
    pub(crate) fn common(&self, at: Duration) -> String {
        let mut text = Vec::new();
        self.write(COMMON, at, &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    fn local(&self, second: u64) -> Local {
        let timestamp = i64::try_from(second)
            .ok()
            .and_then(|second| Timestamp::from_second(second).ok())
            .unwrap_or(Timestamp::MAX);
        let info = self.zone.to_offset_info(timestamp);
        Local {
            civil: info.offset().to_datetime(timestamp),
            epoch: timestamp.as_second(),
            offset: info.offset().seconds(),
            zone: info.abbreviation().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_formatted_once_and_the_next_one_again() {
        let time = LocalTime::new(TimeZone::UTC);
        let at = Duration::from_millis(1_136_239_445_900);
        assert_eq!(time.common(at), "02/Jan/2006:22:04:05 +0000");
        time.made.borrow_mut()[0].text = b"kept".to_vec();
        assert_eq!(time.common(at + Duration::from_millis(99)), "kept");
        let next = at + Duration::from_millis(100);
        assert_eq!(time.common(next), "02/Jan/2006:22:04:06 +0000");
    }

    #[test]
    fn no_more_texts_are_kept_than_the_limit() {
        let time = LocalTime::new(TimeZone::UTC);
        for n in 0..KEPT * 3 {
            time.write(&format!("{n} %S"), Duration::ZERO, &mut Vec::new());
            assert!(time.made.borrow().len() <= KEPT);
        }
    }

    #[test]
    fn zones_shift_the_time_and_follow_daylight_saving() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let time = LocalTime::new(zone);
        let mut text = Vec::new();
        time.write(
            "%F %T %z %Z|",
            Duration::from_secs(1_704_067_199),
            &mut text,
        );
        time.write("%F %T %z %Z", Duration::from_secs(1_719_792_000), &mut text);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "2024-01-01 00:59:59 +0100 CET|2024-07-01 02:00:00 +0200 CEST"
        );
    }
}
