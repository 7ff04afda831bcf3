//! Whether a backend can be reached, as one worker has observed it.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Whether a backend can be reached, as one worker has observed it: after a failed or slow attempt to connect, other backends are
/// preferred for a while. This is not used for backends with health checks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reachability {
    /// Number of attempts to connect that are in progress.
    attempts: u32,
    /// When the first of the attempts in progress began, or when the last connection was established since then.
    since: Option<Instant>,
    /// When the last attempt failed; `None` if an attempt has succeeded since.
    failed: Option<Instant>,
}

impl Reachability {
    /// How long other backends are preferred after a failure.
    const PAUSE: Duration = Duration::from_secs(1);
    /// How long an attempt may take before other backends are preferred.
    const SLOW_ATTEMPT: Duration = Duration::from_millis(100);

    pub(crate) fn is_doubtful(self, now: Instant) -> bool {
        let age = |at: Instant| now.saturating_duration_since(at);
        let has_failed = self.failed.is_some_and(|at| age(at) < Self::PAUSE);
        let is_slow = || self.since.is_some_and(|at| age(at) >= Self::SLOW_ATTEMPT);
        has_failed || (self.attempts > 0 && is_slow())
    }

    /// Records a failed attempt to connect.
    pub(crate) fn fail(self, now: Instant) -> Self {
        Self {
            failed: Some(now),
            ..self
        }
    }

    fn begin(self, now: Instant) -> Self {
        Self {
            attempts: self.attempts + 1,
            since: self.since.filter(|_| self.attempts > 0).or(Some(now)),
            failed: self.failed,
        }
    }
}

/// An attempt to connect that is in progress, as long as this value lives.
pub(crate) struct Opening<'r>(&'r Cell<Reachability>);

impl<'r> Opening<'r> {
    /// Begins an attempt to connect, which lasts until the returned value is dropped.
    pub(crate) fn begin(reach: &'r Cell<Reachability>, now: Instant) -> Self {
        reach.update(|reach| reach.begin(now));
        Self(reach)
    }

    pub(crate) fn on_established(&self, now: Instant) {
        self.0.update(|reach| Reachability {
            since: Some(now),
            failed: None,
            ..reach
        });
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.update(|reach| Reachability {
            attempts: reach.attempts - 1,
            ..reach
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_doubtful_after_a_failure_and_while_an_attempt_takes_long() {
        let begin = tokio::time::Instant::now().into_std();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        let reach = Cell::new(Reachability::default());
        let doubts = |milliseconds| reach.get().is_doubtful(after(milliseconds));
        let attempt = |milliseconds| Opening::begin(&reach, after(milliseconds));
        assert!(!doubts(0));
        let first = attempt(0);
        let second = attempt(50);
        assert!(!doubts(99) && doubts(100), "the first attempt takes long");
        drop(first);
        assert!(
            doubts(100),
            "the second attempt began before the first had an outcome"
        );
        second.on_established(after(110));
        assert!(!doubts(110) && !doubts(209) && doubts(210));
        drop(second);
        assert!(
            !doubts(210),
            "without an attempt in progress the backend is not doubtful"
        );
        let third = attempt(300);
        assert!(
            !doubts(399),
            "the time of a new attempt counts from its own beginning"
        );
        reach.update(|reach| reach.fail(after(400)));
        drop(third);
        assert!(doubts(400) && doubts(1399) && !doubts(1400));
        let fourth = attempt(1400);
        fourth.on_established(after(1400));
        assert!(!doubts(1400));
    }
}
