//! The retry budget of an upstream.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The settings of `proxy.retry`: limits of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Limit of the retries of one request.
    pub attempts: u32,
    /// Limit of the retries per hundred requests of the upstream. A few retries per second are always allowed in addition.
    pub budget: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 2,
            budget: 20,
        }
    }
}

/// The retry budget of an upstream, shared by the workers: retries must not multiply the load of a backend that fails.
///
/// Every request adds the configured percentage of one retry to the budget. Every retry beyond the free retries of its second
/// takes one whole retry from the budget.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    percentage: u32,
    /// The budget that was saved, in hundredths of a retry.
    saved: AtomicI64,
    /// Upper 32 bits: the latest second of any worker's clock. Lower 32 bits: the free retries used in that second.
    floor: AtomicU64,
    origin: Instant,
}

/// The cost of a retry, in the unit of `saved`.
const RETRY: i64 = 100;
/// Upper limit of `saved`: 1000 retries, which a sudden outage may use up at once.
const MAX_SAVED: i64 = 1000 * RETRY;
/// Free retries per second, so that low-traffic upstreams can retry at all.
const FLOOR: u32 = 10;

impl RetryBudget {
    pub(crate) const fn new(percentage: u32, origin: Instant) -> Self {
        Self {
            percentage,
            saved: AtomicI64::new(0),
            floor: AtomicU64::new(0),
            origin,
        }
    }

    /// Adds the share of `requests` requests to the budget: `percentage` hundredths of a retry each.
    pub(crate) fn earn(&self, requests: u32) {
        let paid = i64::from(requests) * i64::from(self.percentage);
        // Two threads may exceed the limit together for a moment, which does no harm.
        let saved = self.saved.fetch_add(paid, Relaxed) + paid;
        if saved > MAX_SAVED {
            self.saved.fetch_sub(saved - MAX_SAVED, Relaxed);
        }
    }

    /// Takes one retry from the budget. Returns false if none is left.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.origin).as_secs();
        self.take_of_floor(second) || self.take_of_saved()
    }

    fn take_of_floor(&self, second: u64) -> bool {
        let next = |floor: u64| {
            let (counted, taken) = (floor >> 32, floor & 0xffff_ffff);
            match taken {
                // The clocks of workers differ a little: if this worker's second is older, it counts as the current one.
                _ if counted < second => Some(second << 32 | 1),
                _ if taken < u64::from(FLOOR) => Some(floor + 1),
                _ => None,
            }
        };
        self.floor.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    fn take_of_saved(&self) -> bool {
        let next = |saved: i64| (saved >= RETRY).then(|| saved - RETRY);
        self.saved.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn origin() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn taken(budget: &RetryBudget, now: Instant, wanted: usize) -> usize {
        (0..wanted).filter(|_| budget.take(now)).count()
    }

    #[test]
    fn a_few_tries_per_second_are_free() {
        let origin = origin();
        let budget = RetryBudget::new(0, origin);
        for second in [0, 1, 2, 7] {
            let now = origin + Duration::from_secs(second);
            assert_eq!(taken(&budget, now, 50), 10, "{second}");
        }
        // A worker whose clock is behind counts its retries in the latest second, not in an earlier one of its own.
        assert_eq!(taken(&budget, origin, 50), 0);
    }

    #[test]
    fn beyond_that_requests_pay_for_tries() {
        let origin = origin();
        let cases = [
            // Each case: percentage, requests, and the retries allowed beyond the free ones.
            (20, 4, 0),
            (20, 5, 1),
            (20, 104, 20),
            (100, 7, 7),
            (0, 1000, 0),
            (50, 1_000_000, 1000),
        ];
        for (percentage, requests, want) in cases {
            let budget = RetryBudget::new(percentage, origin);
            for _ in 0..requests / 32 {
                budget.earn(32);
            }
            budget.earn(requests % 32);
            let got = taken(&budget, origin, 10_000) - 10;
            assert_eq!(got, want, "{percentage}% of {requests}");
        }
    }

    #[test]
    fn threads_share_what_there_is() {
        let origin = origin();
        let budget = RetryBudget::new(100, origin);
        budget.earn(90);
        let counts: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| taken(&budget, origin, 100)))
                .collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(counts.iter().sum::<usize>(), 100);
    }
}
