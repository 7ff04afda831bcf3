//! Delays the new requests of clients that reset many requests (H2O compatibility: H2O does so over HTTP/2, `http2-dos-delay`).

use std::time::Instant;

use super::RequestLimits;

/// How often the client of a connection has reset requests.
#[derive(Debug, Default)]
pub(super) struct Resets {
    /// Number of requests that the client has reset, minus the number that were answered since.
    count: usize,
    delay_until: Option<Instant>,
}

impl Resets {
    /// Counts a request that the client has reset.
    pub(super) fn on_reset(&mut self, limits: &RequestLimits, now: Instant) {
        self.count = (self.count + 1).min(limits.resets);
        if self.count == limits.resets && !self.is_delaying(now) && !limits.reset_delay.is_zero() {
            self.delay_until = Some(now + limits.reset_delay);
        }
    }

    /// Counts a request that was answered.
    #[inline]
    pub(super) const fn on_finished(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Whether new requests of the client have to wait.
    #[inline]
    pub(super) fn is_delaying(&self, now: Instant) -> bool {
        self.delay_until.is_some_and(|until| until > now)
    }

    /// Lets new requests start again if the delay has passed.
    pub(super) fn end_delay(&mut self, now: Instant) {
        self.delay_until = self.delay_until.filter(|&until| until > now);
    }

    /// When the delay of new requests ends.
    pub(super) const fn delay_until(&self) -> Option<Instant> {
        self.delay_until
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DELAY: Duration = Duration::from_millis(100);

    fn limits(resets: usize, reset_delay: Duration) -> RequestLimits {
        RequestLimits {
            running: 1,
            resets,
            streaming: 1,
            reset_delay,
            sends_interims: false,
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the test may start at any instant"
    )]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn as_many_resets_as_may_run_delay_new_requests_and_answers_make_up_for_resets() {
        let (now, limits) = (start(), limits(3, DELAY));
        let mut resets = Resets::default();
        for _ in 0..10 {
            resets.on_reset(&limits, now);
            resets.on_reset(&limits, now);
            resets.on_finished();
            resets.on_finished();
        }
        assert!(!resets.is_delaying(now));
        for _ in 0..3 {
            assert!(!resets.is_delaying(now));
            resets.on_reset(&limits, now);
        }
        assert!(resets.is_delaying(now));
        // Further resets do not lengthen the delay.
        resets.on_reset(&limits, now + DELAY / 2);
        assert_eq!(resets.delay_until(), Some(now + DELAY));
        assert!(!resets.is_delaying(now + DELAY));
    }

    #[test]
    fn a_delay_that_has_passed_is_no_deadline_and_can_begin_again() {
        let (now, limits) = (start(), limits(1, DELAY));
        let mut resets = Resets::default();
        resets.on_reset(&limits, now);
        resets.end_delay(now + DELAY / 2);
        assert_eq!(resets.delay_until(), Some(now + DELAY));
        resets.end_delay(now + DELAY);
        assert_eq!(resets.delay_until(), None);
        resets.on_reset(&limits, now + 2 * DELAY);
        assert_eq!(resets.delay_until(), Some(now + 3 * DELAY));
    }

    #[test]
    fn resets_delay_nothing_where_that_is_off() {
        let (now, limits) = (start(), limits(1, Duration::ZERO));
        let mut resets = Resets::default();
        for _ in 0..5 {
            resets.on_reset(&limits, now);
        }
        assert_eq!(resets.delay_until(), None);
    }
}
