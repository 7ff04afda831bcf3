//! Writes times as the function `strftime` of the C library does in the C locale.

use jiff::civil::{DateTime, Weekday};

/// A time in the local time zone.
pub(crate) struct Local {
    /// Date and time of day in the local time zone.
    pub(crate) civil: DateTime,
    /// The time in seconds since the Unix epoch.
    pub(crate) epoch: i64,
    /// Offset of the time zone in seconds east of UTC.
    pub(crate) offset: i32,
    /// Abbreviation of the time zone's name.
    pub(crate) zone: Box<str>,
}

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Flags between `%` and the letter of a conversion (the extensions of glibc).
#[derive(Clone, Copy, Default)]
struct Flags {
    /// The flag for padding: `-` (none), `_` (blanks) or `0`; `None` for the default of the conversion.
    pad: Option<u8>,
    /// The flag `^`, for upper case.
    upper: bool,
    /// The flag `#`: names are written in upper case, the text of `%p` in lower case.
    swap: bool,
    width: usize,
}

/// Appends the time `at` in `format`. Text of the format that is no conversion is copied.
pub(crate) fn strftime(format: &str, at: &Local, out: &mut Vec<u8>) {
    let mut rest = format.as_bytes();
    while let Some(percent) = memchr::memchr(b'%', rest) {
        out.extend_from_slice(&rest[..percent]);
        rest = &rest[percent..];
        let (flags, after) = Flags::read(&rest[1..]);
        match after.split_first() {
            Some((&letter, tail)) if convert(letter, flags, at, out) => rest = tail,
            _ => {
                out.push(b'%');
                rest = &rest[1..];
            }
        }
    }
    out.extend_from_slice(rest);
}

impl Flags {
    fn read(mut rest: &[u8]) -> (Self, &[u8]) {
        let mut flags = Self::default();
        while let Some((&byte, tail)) = rest.split_first() {
            match byte {
                b'0'..=b'9' if byte != b'0' || flags.width > 0 => {
                    // The width is limited to 99, which is enough for any field of a log line.
                    flags.width = (flags.width * 10 + usize::from(byte - b'0')).min(99);
                }
                b'-' | b'_' | b'0' => flags.pad = Some(byte),
                b'^' => flags.upper = true,
                b'#' => flags.swap = true,
                // The modifiers `E` and `O`, for alternative calendars and digits, have no effect in the C locale.
                b'E' | b'O' => {}
                _ => break,
            }
            rest = tail;
        }
        (flags, rest)
    }

    fn number(self, value: i64, width: usize, pad: u8, out: &mut Vec<u8>) {
        let pad = self.pad.unwrap_or(pad);
        let width = if self.width > 0 { self.width } else { width };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value.unsigned_abs());
        let missing = width.saturating_sub(digits.len() + usize::from(value < 0));
        if pad == b'_' {
            out.resize(out.len() + missing, b' ');
        }
        if value < 0 {
            out.push(b'-');
        }
        if pad == b'0' {
            out.resize(out.len() + missing, b'0');
        }
        out.extend_from_slice(digits.as_bytes());
    }

    fn text(self, text: &str, out: &mut Vec<u8>) {
        let pad = if self.pad == Some(b'0') { b'0' } else { b' ' };
        let missing = self.width.saturating_sub(text.len());
        out.resize(out.len() + missing, pad);
        if self.upper || self.swap {
            out.extend(text.bytes().map(|byte| byte.to_ascii_uppercase()));
        } else {
            out.extend_from_slice(text.as_bytes());
        }
    }

    fn composed(self, format: &str, at: &Local, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        strftime(format, at, &mut text);
        let flags = Self {
            swap: false,
            ..self
        };
        flags.text(&String::from_utf8_lossy(&text), out);
    }
}

/// Appends the text of one conversion. Returns false and appends nothing if its letter is unknown.
fn convert(letter: u8, flags: Flags, at: &Local, out: &mut Vec<u8>) -> bool {
    let date = at.civil.date();
    let year = i64::from(date.year());
    let hour = i64::from(at.civil.hour());
    let twelve = (hour + 11) % 12 + 1;
    let weekday = date.weekday();
    let sunday_based = weekday.to_sunday_zero_offset();
    let day_name = DAYS[usize::from(sunday_based.unsigned_abs())];
    let month_name = MONTHS[usize::from(date.month().unsigned_abs()) - 1];
    let day_of_year = i64::from(date.day_of_year());
    let iso = date.iso_week_date();
    let week = |first: Weekday| (day_of_year + 6 - i64::from(weekday.since(first))) / 7;
    match letter {
        b'%' => flags.text("%", out),
        b'n' => flags.text("\n", out),
        b't' => flags.text("\t", out),
        b'a' => flags.text(&day_name[..3], out),
        b'A' => flags.text(day_name, out),
        b'b' | b'h' => flags.text(&month_name[..3], out),
        b'B' => flags.text(month_name, out),
        b'c' => flags.composed("%a %b %e %H:%M:%S %Y", at, out),
        b'C' => flags.number(year.div_euclid(100), 2, b'0', out),
        b'd' => flags.number(i64::from(date.day()), 2, b'0', out),
        b'D' | b'x' => flags.composed("%m/%d/%y", at, out),
        b'e' => flags.number(i64::from(date.day()), 2, b'_', out),
        b'F' => flags.composed("%Y-%m-%d", at, out),
        b'g' => flags.number(i64::from(iso.year()).rem_euclid(100), 2, b'0', out),
        b'G' => flags.number(i64::from(iso.year()), 1, b'0', out),
        b'H' => flags.number(hour, 2, b'0', out),
        b'I' => flags.number(twelve, 2, b'0', out),
        b'j' => flags.number(day_of_year, 3, b'0', out),
        b'k' => flags.number(hour, 2, b'_', out),
        b'l' => flags.number(twelve, 2, b'_', out),
        b'm' => flags.number(i64::from(date.month()), 2, b'0', out),
        b'M' => flags.number(i64::from(at.civil.minute()), 2, b'0', out),
        b'p' if flags.swap => flags.lower(meridian(hour), out),
        b'p' => flags.text(meridian(hour), out),
        b'P' => flags.lower(meridian(hour), out),
        b'r' => flags.composed("%I:%M:%S %p", at, out),
        b'R' => flags.composed("%H:%M", at, out),
        b's' => flags.number(at.epoch, 1, b'0', out),
        b'S' => flags.number(i64::from(at.civil.second()), 2, b'0', out),
        b'T' | b'X' => flags.composed("%H:%M:%S", at, out),
        b'u' => flags.number(i64::from(weekday.to_monday_one_offset()), 1, b'0', out),
        b'U' => flags.number(week(Weekday::Sunday), 2, b'0', out),
        b'V' => flags.number(i64::from(iso.week()), 2, b'0', out),
        b'w' => flags.number(i64::from(sunday_based), 1, b'0', out),
        b'W' => flags.number(week(Weekday::Monday), 2, b'0', out),
        b'y' => flags.number(year.rem_euclid(100), 2, b'0', out),
        b'Y' => flags.number(year, 1, b'0', out),
        b'z' => offset(at.offset, flags, out),
        b'Z' if flags.swap => flags.lower(&at.zone, out),
        b'Z' => flags.text(&at.zone, out),
        _ => return false,
    }
    true
}

const fn meridian(hour: i64) -> &'static str {
    if hour < 12 { "AM" } else { "PM" }
}

impl Flags {
    fn lower(self, text: &str, out: &mut Vec<u8>) {
        let flags = Self {
            upper: false,
            swap: false,
            ..self
        };
        flags.text(&text.to_ascii_lowercase(), out);
    }
}

/// Appends the offset of a time zone in the form `+0100`.
fn offset(seconds: i32, flags: Flags, out: &mut Vec<u8>) {
    out.push(if seconds < 0 { b'-' } else { b'+' });
    let minutes = i64::from(seconds.abs() / 60);
    let flags = Flags {
        width: flags.width.saturating_sub(1),
        ..flags
    };
    flags.number(minutes / 60 * 100 + minutes % 60, 4, b'0', out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn at(civil: DateTime) -> Local {
        let epoch = civil.to_zoned(jiff::tz::TimeZone::UTC).unwrap();
        Local {
            civil,
            epoch: epoch.timestamp().as_second() + 8 * 3600,
            offset: -8 * 3600,
            zone: "PST".into(),
        }
    }

    fn text(format: &str, at: &Local) -> String {
        let mut out = Vec::new();
        strftime(format, at, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn conversions_are_those_of_the_c_library() {
        let afternoon = at(date(2006, 1, 2).at(15, 4, 5, 0));
        // The expected texts are output of `TZ=PST8 date -d @1136243045 +FORMAT`.
        let cases = [
            ("%a %A %b %B %h", "Mon Monday Jan January Jan"),
            ("%c", "Mon Jan  2 15:04:05 2006"),
            ("%C %d %e %j", "20 02  2 002"),
            ("%D|%F|%x", "01/02/06|2006-01-02|01/02/06"),
            ("%g %G %V", "06 2006 01"),
            ("%H %I %k %l %M %S", "15 03 15  3 04 05"),
            ("%p %P %#p", "PM pm pm"),
            ("%r|%R|%T|%X", "03:04:05 PM|15:04|15:04:05|15:04:05"),
            ("%s", "1136243045"),
            ("%u %w %U %W", "1 1 01 01"),
            ("%m %y %Y", "01 06 2006"),
            ("%z %Z", "-0800 PST"),
            ("%%%n%t", "%\n\t"),
            ("%-d %-H %_m %0e %-e", "2 15  1 02 2"),
            ("%^a %^B %#Z", "MON JANUARY pst"),
            ("%EY %Od", "2006 02"),
            ("%5Y %03d %10A", "02006 002     Monday"),
            ("%Q %", "%Q %"),
            ("%-Q% ", "%-Q% "),
            ("no conversion \u{e9}", "no conversion \u{e9}"),
            ("", ""),
        ];
        for (format, want) in cases {
            assert_eq!(text(format, &afternoon), want, "{format}");
        }
    }

    #[test]
    fn midnight_and_noon_are_twelve() {
        let midnight = at(date(2024, 12, 30).at(0, 0, 0, 0));
        assert_eq!(text("%I %l %p %G-%V", &midnight), "12 12 AM 2025-01");
        let noon = at(date(2023, 1, 1).at(12, 0, 0, 0));
        assert_eq!(text("%I%p %U %W %G-%V %j", &noon), "12PM 01 00 2022-52 001");
    }
}
