//! What a worker has learnt about the protocols of a backend.

use std::time::{Duration, Instant};

/// Whether HTTP/3 connections to a backend can be opened. After a failure they are not tried for a while, which doubles with
/// each further failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Http3Memory {
    /// Number of failed attempts since the last success.
    failures: u32,
    /// Until when no HTTP/3 connection is opened.
    pause_ends: Option<Instant>,
}

impl Http3Memory {
    /// The pause after the first failure.
    const FIRST_PAUSE: Duration = Duration::from_secs(10);
    /// The longest pause after a failure.
    const LONGEST_PAUSE: Duration = Duration::from_secs(600);

    /// Whether an HTTP/3 connection may be opened now.
    pub(crate) fn may_connect(self, now: Instant) -> bool {
        self.pause_ends.is_none_or(|ends| ends <= now)
    }

    /// Whether the last attempt to open a connection failed, so that a request should not wait for the next one.
    pub(crate) const fn has_failed(self) -> bool {
        self.failures > 0
    }

    /// Records a failed attempt to open a connection.
    pub(crate) fn fail(self, now: Instant) -> Self {
        let pause = Self::FIRST_PAUSE * (1 << self.failures.min(8));
        Self {
            failures: self.failures.saturating_add(1),
            pause_ends: Some(now + pause.min(Self::LONGEST_PAUSE)),
        }
    }

    /// The length of the pause before HTTP/3 is tried again, which has just begun; for the log.
    pub(crate) fn pause(self, now: Instant) -> Duration {
        (self.pause_ends).map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now))
    }

    /// Records that another attempt is made, so that no other request makes one at the same time.
    pub(crate) fn begin_attempt(self, now: Instant) -> Self {
        Self {
            pause_ends: Some(now + Self::FIRST_PAUSE),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_minutes_and_end_with_a_success() {
        let begin = tokio::time::Instant::now().into_std();
        let mut memory = Http3Memory::default();
        assert!(memory.may_connect(begin) && !memory.has_failed());
        let mut now = begin;
        for want in [10, 20, 40, 80, 160, 320, 600, 600, 600, 600] {
            memory = memory.fail(now);
            let pause = Duration::from_secs(want);
            assert_eq!(memory.pause(now), pause);
            assert!(!memory.may_connect(now + pause - Duration::from_nanos(1)));
            now += pause;
            assert!(memory.may_connect(now) && memory.has_failed());
            memory = memory.begin_attempt(now);
            assert!(
                !memory.may_connect(now),
                "no second attempt begins during the first"
            );
        }
    }
}
