//! Counts failures that may be frequent, and limits their log lines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Least time between two log lines about failures of one kind.
const REPORTS: Duration = Duration::from_secs(60);

/// Counts one kind of failure, and limits its log lines.
#[derive(Debug)]
pub(crate) struct FailureCounter {
    count: AtomicU64,
    start: Instant,
    /// Earliest time of the next line in the error log, in milliseconds since `start`.
    next: AtomicU64,
}

impl Default for FailureCounter {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            start: now(),
            next: AtomicU64::new(0),
        }
    }
}

impl FailureCounter {
    /// Counts a failure. Returns whether the caller may write a log line about it.
    pub(crate) fn count(&self) -> bool {
        self.count.fetch_add(1, Relaxed);
        self.is_due()
    }

    /// Number of failures so far.
    pub(crate) fn counted(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub(crate) fn is_due(&self) -> bool {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = millis(now().saturating_duration_since(self.start));
        self.next.load(Relaxed) <= now
            && self.next.swap(now.saturating_add(millis(REPORTS)), Relaxed) <= now
    }
}

/// The current time. Only called for failures, which are rare; any thread may call this.
#[expect(
    clippy::disallowed_methods,
    reason = "any thread may ask for the time here, and only worker threads have a worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_each_time_and_reported_once_a_minute() {
        let mut counter = FailureCounter::default();
        let mut reports = Vec::new();
        for second in 0..200_u64 {
            // Simulates that `second` seconds have passed since the counter was made.
            counter.start = now() - Duration::from_secs(second);
            for _ in 0..3 {
                if counter.count() {
                    reports.push(second);
                }
            }
        }
        assert_eq!(reports, [0, 60, 120, 180]);
        assert_eq!(counter.counted(), 600);
    }

    #[test]
    fn of_many_threads_that_see_it_at_once_one_reports() {
        for _ in 0..50 {
            let counter = FailureCounter::default();
            let count = || (0..100).filter(|_| counter.count()).count();
            let reports: usize = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(count));
                threads
                    .map(|thread| thread.join().expect("no thread panics"))
                    .iter()
                    .sum()
            });
            assert_eq!((reports, counter.counted()), (1, 400));
        }
    }
}
