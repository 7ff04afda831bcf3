//! The directive `duration-stats`: collects the durations of requests, and shows percentiles of them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use h2o_config::Directive;
use h2o_exchange::{Exchange, Logger, Scope};

pub(super) const DIRECTIVE: Directive<Scope> = Directive::global(
    "duration-stats",
    "ON|OFF",
    "OFF",
    "Collects how long requests take, for the module `durations` of `status`: percentiles of the times that the access log has \
     for each request, in microseconds, at most 1 % off. Takes 112 KiB of memory per worker thread.",
    |scope, command| {
        let stats = scope.shared.edit::<DurationStats>();
        if let Some(collected) = stats.0.take() {
            scope
                .loggers
                .retain(|logger| !std::ptr::addr_eq(Arc::as_ptr(logger), Arc::as_ptr(&collected)));
        }
        if command.node.on_off()? {
            let running = scope.running.as_ref();
            let running = running.and_then(|site| site.shared.get::<DurationStats>().0.clone());
            let collected = running.unwrap_or_default();
            scope.shared.edit::<DurationStats>().0 = Some(Arc::clone(&collected));
            scope.loggers.push(collected);
        }
        Ok(())
    },
);

/// The measured durations, by their names in the report.
pub(super) const NAMES: [&str; 7] = [
    "connect-time",
    "header-time",
    "body-time",
    "request-total-time",
    "process-time",
    "response-time",
    "duration",
];

/// For each of these percentages, the report has the duration that this share of requests did not exceed; 0 stands for
/// the shortest duration.
pub(super) const PERCENTILES: [u64; 5] = [0, 25, 50, 75, 99];

/// The samples that a configuration collects; `None` if it collects none.
#[derive(Clone, Default)]
pub(super) struct DurationStats(pub(super) Option<Arc<DurationSamples>>);

/// The samples of durations on all workers.
pub(super) struct DurationSamples {
    /// Number that identifies the configuration to which the samples belong.
    id: u64,
    workers: Mutex<Vec<Arc<Sample>>>,
}

/// The sample of durations on one worker. Only this worker writes it.
struct Sample {
    histograms: [Histogram; NAMES.len()],
    /// Duration of a turn of the worker's event loop, in nanoseconds.
    turn_nanos: AtomicU64,
}

/// The sample of this worker, with the identifier of the [`DurationSamples`] that it belongs to.
#[derive(Default)]
struct WorkerSample(RefCell<Option<(u64, Arc<Sample>)>>);

impl Default for DurationSamples {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            workers: Mutex::default(),
        }
    }
}

impl Logger for DurationSamples {
    fn log(&self, exchange: &Exchange) {
        let current = exchange.worker.local::<WorkerSample>();
        let mut current = current.0.borrow_mut();
        let sample = match &*current {
            Some((id, sample)) if *id == self.id => sample,
            Some(_) | None => &current.insert((self.id, self.add_worker())).1,
        };
        for (histogram, duration) in sample.histograms.iter().zip(durations(exchange)) {
            if let Some(duration) = duration {
                histogram.add(duration);
            }
        }
        let turn = exchange.worker.clock.turn_time();
        let nanos = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
        sample.turn_nanos.store(nanos, Relaxed);
    }
}

impl DurationSamples {
    #[cold]
    fn add_worker(&self) -> Arc<Sample> {
        let sample = Arc::new(Sample {
            histograms: std::array::from_fn(|_| Histogram::default()),
            turn_nanos: AtomicU64::new(0),
        });
        self.workers().push(Arc::clone(&sample));
        sample
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Sample>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For each of [`NAMES`] the durations at [`PERCENTILES`], in microseconds; 0 before there is a sample.
    pub(super) fn percentiles(&self) -> [[u64; PERCENTILES.len()]; NAMES.len()] {
        let workers = self.workers();
        std::array::from_fn(|index| {
            let histograms = workers.iter().map(|sample| &sample.histograms[index]);
            let counts = sum(histograms);
            PERCENTILES.map(|percent| value_at(&counts, percent))
        })
    }

    /// For each worker that has served requests: the duration of a turn of its event loop, in nanoseconds.
    pub(super) fn turn_nanos(&self) -> Vec<u64> {
        let workers = self.workers();
        let turns = workers.iter().map(|sample| sample.turn_nanos.load(Relaxed));
        turns.collect()
    }
}

/// The durations of a finished request, in the order of [`NAMES`].
fn durations(exchange: &Exchange) -> [Option<Duration>; NAMES.len()] {
    let timings = &exchange.timings;
    let begun = Some(timings.begun);
    let between =
        |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
    [
        between(Some(exchange.connection.accepted), begun),
        between(begun, timings.head),
        between(timings.head, timings.processed),
        between(begun, timings.processed),
        between(timings.processed, timings.response_start),
        between(timings.response_start, timings.response_end),
        between(begun, timings.response_end),
    ]
}

/// Each duration below this number of microseconds has a bucket of its own.
const EXACT: u64 = 128;
/// Number of buckets for each further power of two: half the width of a bucket is less than 1 % of its values.
const PER_POWER: u64 = 64;
/// Number of powers of two above [`EXACT`] that have buckets. Durations above 38 hours are in the last bucket.
const POWERS: u64 = 30;
#[expect(clippy::cast_possible_truncation, reason = "2048")]
const BUCKETS: usize = (EXACT + POWERS * PER_POWER) as usize;

/// A histogram: the number of durations in each bucket, which has durations of similar length.
struct Histogram(Box<[AtomicU64]>);

impl Default for Histogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Histogram {
    fn add(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let count = &self.0[bucket_of(micros)];
        // The addition need not be atomic, because only this worker writes.
        count.store(count.load(Relaxed) + 1, Relaxed);
    }
}

fn sum<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Vec<u64> {
    let mut counts = vec![0; BUCKETS];
    for histogram in histograms {
        for (sum, count) in counts.iter_mut().zip(&histogram.0) {
            *sum += count.load(Relaxed);
        }
    }
    counts
}

fn bucket_of(micros: u64) -> usize {
    let bucket = match micros.checked_ilog2() {
        Some(power) if micros >= EXACT => {
            let power = u64::from(power);
            let part = (micros >> (power - PER_POWER.ilog2() as u64)) - PER_POWER;
            EXACT + (power - u64::from(EXACT.ilog2())) * PER_POWER + part
        }
        Some(_) | None => micros,
    };
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// The duration in the middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let Some(above) = bucket.checked_sub(EXACT) else {
        return bucket;
    };
    let (power, part) = (above / PER_POWER, above % PER_POWER);
    // The buckets of the first power of two above [`EXACT`] have twice the width, because EXACT is two times PER_POWER.
    let width = 2 << power;
    (PER_POWER + part) * width + width / 2
}

/// The duration that `percent` of the counted durations do not exceed.
fn value_at(counts: &[u64], percent: u64) -> u64 {
    let total: u64 = counts.iter().sum();
    let rank = (total * percent).div_ceil(100).max(1);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    bucket.map_or(0, value_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_told_with_more_than_one_percent_of_error() {
        let mut value = 0_u64;
        let mut last = 0;
        while value < 1 << 37 {
            let bucket = bucket_of(value);
            assert!(bucket >= last, "{value}");
            last = bucket;
            let told = value_of(bucket);
            assert!(told.abs_diff(value) * 100 <= value, "{value}: {told}");
            value += 1 + value / 1000;
        }
        assert_eq!(last, BUCKETS - 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_values_that_so_many_do_not_exceed() {
        let at = |values: &[u64]| {
            let histogram = Histogram::default();
            for &value in values {
                histogram.add(Duration::from_micros(value));
            }
            let counts = sum(std::iter::once(&histogram));
            PERCENTILES.map(|percent| value_at(&counts, percent))
        };
        assert_eq!(at(&[]), [0; 5]);
        assert_eq!(at(&[7]), [7; 5]);
        assert_eq!(at(&[4, 3, 2, 1]), [1, 1, 2, 3, 4]);
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(at(&hundred), [1, 25, 50, 75, 99]);
    }
}
