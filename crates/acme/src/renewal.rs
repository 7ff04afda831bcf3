//! When a certificate is renewed, and when a failed attempt is repeated. This module reads no clock: the times are
//! arguments.

use std::time::Duration;

use crate::failure::Cause;

/// Longest pause after a failed attempt. Until it is reached, each failure in a row doubles the pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// How long to wait before the next attempt, after `failures` attempts that failed in a row.
pub(crate) fn pause_after(failures: u32, cause: Cause) -> Duration {
    let first = match cause {
        Cause::Unreachable | Cause::AccountUnknown | Cause::Local => Duration::from_secs(5),
        Cause::Refused => Duration::from_secs(120),
    };
    let doubled = 2_u32.checked_pow(failures.saturating_sub(1));
    let pause = doubled.and_then(|times| first.checked_mul(times));
    pause.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}

/// The validity of a certificate: its begin and end in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

/// The window in which an authority wants a certificate renewed (RFC 9773 §4.2), in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: i64,
    pub(crate) end: i64,
}

/// When to renew a certificate. `random`, from 0 to 1, chooses a time in the window; without one it is after two thirds
/// of the lifetime.
pub(crate) fn renewal_time(validity: Validity, window: Option<Window>, random: f64) -> i64 {
    let lifetime = validity
        .not_after
        .saturating_sub(validity.not_before)
        .max(0);
    let usual = validity.not_after.saturating_sub(lifetime / 3);
    // RFC 9773 §4.2: a window that ends before it starts is invalid.
    let Some(window) = window.filter(|window| window.start < window.end) else {
        return usual;
    };
    // The times come from the authority and may be anything, so they are limited to the validity of the certificate.
    let within = |time: i64| time.max(validity.not_before).min(validity.not_after);
    let (start, end) = (within(window.start), within(window.end));
    let len = Duration::from_secs(end.abs_diff(start)).mul_f64(random.clamp(0.0, 1.0));
    let chosen = start.saturating_add(i64::try_from(len.as_secs()).unwrap_or(i64::MAX));
    // A window that reaches to the end of the validity would leave no time for a second attempt.
    chosen.min(validity.not_after.saturating_sub(lifetime / 10))
}

/// How long a certificate that was obtained at the time `now` is used at least, whatever the authority advises: a third of the time for which
/// it is still valid, but at most a day. Without this limit, a wrong clock or a wrong advice would have a new certificate renewed at once, again
/// and again. A certificate that has expired already is used for an hour.
pub(crate) fn shortest_use(validity: Validity, now: i64) -> Duration {
    const HOUR: Duration = Duration::from_secs(3600);
    match u64::try_from(validity.not_after.saturating_sub(now)) {
        Ok(left @ 1..) => Duration::from_secs(left / 3).min(24 * HOUR),
        Ok(0) | Err(_) => HOUR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_certificate_is_used_for_a_while_even_if_it_is_due() {
        const DAY: u64 = 86_400;
        // The validity, the time, and the seconds of use.
        let cases = [
            ((0, 90 * 86_400), 0, DAY),
            ((0, 12), 0, 4),
            ((0, 9000), 8000, 333),
            // The clock of this machine is far ahead.
            ((0, 90 * 86_400), 70 * 86_400, DAY),
            ((0, 90 * 86_400), 100 * 86_400, 3600),
            ((i64::MIN, i64::MAX), i64::MIN, DAY),
        ];
        for ((not_before, not_after), now, want) in cases {
            let validity = Validity {
                not_before,
                not_after,
            };
            let got = shortest_use(validity, now);
            assert_eq!(got.as_secs(), want, "{validity:?} {now}");
        }
    }

    const MONTHS: Validity = Validity {
        not_before: 1000,
        not_after: 10_000,
    };

    #[test]
    fn without_advice_a_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
        assert_eq!(renewal_time(MONTHS, None, 0.5), 7000);
        let never_valid = Validity {
            not_before: 10,
            not_after: 5,
        };
        assert_eq!(renewal_time(never_valid, None, 0.5), 5);
        let invalid = Window { start: 9, end: 9 };
        assert_eq!(renewal_time(MONTHS, Some(invalid), 0.5), 7000);
    }

    #[test]
    fn the_authority_may_say_when_a_certificate_is_renewed() {
        let window = |start, end| Some(Window { start, end });
        let cases = [
            (window(2000, 4000), 0.0, 2000),
            (window(2000, 4000), 0.5, 3000),
            (window(2000, 4000), 1.0, 4000),
            // A window before the certificate is valid: the authority will revoke the certificate, so the renewal is
            // due at once.
            (window(10, 20), 0.5, 1000),
            // The renewal is not so late that one failed attempt would leave the server without a valid certificate.
            (window(1000, 10_000), 1.0, 9100),
            (window(20_000, 30_000), 0.0, 9100),
            (window(i64::MIN, i64::MAX), 1.0, 9100),
        ];
        for (window, random, want) in cases {
            assert_eq!(
                renewal_time(MONTHS, window, random),
                want,
                "{window:?} {random}"
            );
        }
    }

    #[test]
    fn pauses_double_up_to_an_hour_and_are_longer_where_attempts_are_counted() {
        let pauses = |cause| [1, 2, 3, 6, 40, u32::MAX].map(|n| pause_after(n, cause).as_secs());
        assert_eq!(pauses(Cause::Unreachable), [5, 10, 20, 160, 3600, 3600]);
        assert_eq!(pauses(Cause::Refused), [120, 240, 480, 3600, 3600, 3600]);
    }
}
