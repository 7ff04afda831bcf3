//! How many requests may be made again.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// When requests are made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Most retries of one request.
    pub attempts: u32,
    /// How many of a hundred requests are made again at most; a few per second may be in any case.
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

/// What is left for retries, shared by the workers: a backend that is in trouble must not get several times the load.
///
/// Every request pays in its percentage of a retry, and every retry beyond the floor costs a whole one.
#[derive(Debug)]
pub(crate) struct Budget {
    percentage: u32,
    /// Hundredths of retries.
    saved: AtomicI64,
    /// The second that is counted in, in the upper half, and the free retries made in it, in the lower.
    floor: AtomicU64,
    origin: Instant,
}

/// A retry, in the unit that requests pay in.
const TRY: i64 = 100;
/// Most that is saved: what a sudden failure may cost at once.
const MAX_SAVED: i64 = 1000 * TRY;
/// Free retries per second, so that low-traffic upstreams can retry at all.
const FLOOR: u32 = 10;

impl Budget {
    pub(crate) const fn new(percentage: u32, origin: Instant) -> Self {
        Self {
            percentage,
            saved: AtomicI64::new(0),
            floor: AtomicU64::new(0),
            origin,
        }
    }

    /// So many requests were made.
    pub(crate) fn pay_in(&self, requests: u32) {
        let paid = i64::from(requests) * i64::from(self.percentage);
        // What two threads add beyond the limit at the same time does not matter.
        let saved = self.saved.fetch_add(paid, Relaxed) + paid;
        if saved > MAX_SAVED {
            self.saved.fetch_sub(saved - MAX_SAVED, Relaxed);
        }
    }

    /// True if a request may be made again, which is then paid for.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.origin).as_secs();
        self.take_of_floor(second) || self.take_of_saved()
    }

    fn take_of_floor(&self, second: u64) -> bool {
        let next = |floor: u64| {
            let (counted, taken) = (floor >> 32, floor & 0xffff_ffff);
            match taken {
                // Clocks of workers differ a little: time does not go back.
                _ if counted < second => Some(second << 32 | 1),
                _ if taken < u64::from(FLOOR) => Some(floor + 1),
                _ => None,
            }
        };
        self.floor.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    fn take_of_saved(&self) -> bool {
        let next = |saved: i64| (saved >= TRY).then(|| saved - TRY);
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

    fn taken(budget: &Budget, now: Instant, wanted: usize) -> usize {
        (0..wanted).filter(|_| budget.take(now)).count()
    }

    #[test]
    fn a_few_tries_per_second_are_free() {
        let origin = origin();
        let budget = Budget::new(0, origin);
        for second in [0, 1, 2, 7] {
            let now = origin + Duration::from_secs(second);
            assert_eq!(taken(&budget, now, 50), 10, "{second}");
        }
        // A worker whose clock is behind.
        assert_eq!(taken(&budget, origin, 50), 0);
    }

    #[test]
    fn beyond_that_requests_pay_for_tries() {
        let origin = origin();
        let cases = [
            // Percentage, requests, tries beyond the floor.
            (20, 4, 0),
            (20, 5, 1),
            (20, 104, 20),
            (100, 7, 7),
            (0, 1000, 0),
            (50, 1_000_000, 1000),
        ];
        for (percentage, requests, want) in cases {
            let budget = Budget::new(percentage, origin);
            for _ in 0..requests / 32 {
                budget.pay_in(32);
            }
            budget.pay_in(requests % 32);
            let got = taken(&budget, origin, 10_000) - 10;
            assert_eq!(got, want, "{percentage}% of {requests}");
        }
    }

    #[test]
    fn threads_share_what_there_is() {
        let origin = origin();
        let budget = Budget::new(100, origin);
        budget.pay_in(90);
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
