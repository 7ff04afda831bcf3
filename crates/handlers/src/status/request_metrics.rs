//! The directive `metrics`: counts requests and their durations by host and path, for the metrics that `status` shows.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use h2o_config::Directive;
use h2o_exchange::{Exchange, LocalSite, Logger, PathRoute, Scope};
use hashbrown::HashMap;

pub(super) const DIRECTIVE: Directive<Scope> = Directive::global(
    "metrics",
    "ON|OFF",
    "OFF",
    "Not in H2O: counts requests and their durations by host and path, for `metrics` below the path of `status`. The labels \
     are the keys of the configuration. The first 64 pairs of host and path that get a request have series of their own, all \
     others share one with the labels `other`. Takes 11 KiB of memory per worker thread.",
    |scope, command| {
        let metrics = scope.shared.edit::<Metrics>();
        if let Some(collected) = metrics.0.take() {
            scope
                .loggers
                .retain(|logger| !std::ptr::addr_eq(Arc::as_ptr(logger), Arc::as_ptr(&collected)));
        }
        if command.node.on_off()? {
            let running = scope.running.as_ref();
            let running = running.and_then(|site| site.shared.get::<Metrics>().0.clone());
            let collected = running.unwrap_or_default();
            scope.shared.edit::<Metrics>().0 = Some(Arc::clone(&collected));
            scope.loggers.push(collected);
        }
        Ok(())
    },
);

/// The upper limits of the buckets for durations of requests. Longer durations are in one more bucket.
pub(super) const LIMITS: [Duration; 12] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// The classes of status by which requests are counted. The last class is for requests that ended without a response.
pub(super) const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// Most pairs of host and path that have a series of their own.
const NAMED: usize = 64;

/// The counts by host and path that a configuration collects; `None` if it collects none.
#[derive(Clone, Default)]
pub(super) struct Metrics(pub(super) Option<Arc<RequestMetrics>>);

/// The counts of all workers, which continue after a reload.
#[derive(Default)]
pub(super) struct RequestMetrics(Mutex<Collected>);

#[derive(Default)]
struct Collected {
    /// The labels of each series, at most [`NAMED`]; the series after the last one counts all other pairs of host and
    /// path.
    labels: Vec<Labels>,
    workers: Vec<Arc<WorkerCounts>>,
}

/// The host and the path of the configuration to which a request was routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labels {
    pub(super) host: Box<str>,
    /// The configured path; empty for requests that match no path.
    pub(super) path: Box<str>,
}

/// The counts of one worker. Only this worker writes them.
type WorkerCounts = [PathCounts; NAMED + 1];

/// The counts of one pair of host and path.
#[derive(Default)]
struct PathCounts {
    classes: [AtomicU64; CLASSES.len()],
    buckets: [AtomicU64; LIMITS.len() + 1],
    micros: AtomicU64,
}

/// The counts for one pair of host and path, summed over all workers.
pub(super) struct Series {
    pub(super) labels: Labels,
    /// Number of requests by class of status, in the order of [`CLASSES`].
    pub(super) classes: [u64; CLASSES.len()],
    /// Number of requests by bucket of duration, in the order of [`LIMITS`]. Each request is counted in one bucket
    /// only.
    pub(super) buckets: [u64; LIMITS.len() + 1],
    pub(super) micros: u64,
}

/// A worker's own counts, and the series in which it counts the requests of each path. They need no lock, except for
/// the worker's first request of a path.
#[derive(Default)]
struct LocalMetrics(RefCell<Option<Current>>);

struct Current {
    collection: Arc<RequestMetrics>,
    counts: Arc<WorkerCounts>,
    site: Weak<LocalSite>,
    /// The series of the paths of `site` that have had requests, by the address of the path, which stays the same as long as the
    /// site lives.
    series: HashMap<usize, usize>,
}

impl Logger for RequestMetrics {
    fn log(&self, exchange: &Exchange) {
        let site = &exchange.site;
        let local = exchange.worker.local::<LocalMetrics>();
        let mut current = local.0.borrow_mut();
        let current = match &mut *current {
            Some(current) if std::ptr::eq(Arc::as_ptr(&current.collection), self) => current,
            other => {
                let Some(collection) = site.shared.get::<Metrics>().0.clone() else {
                    return;
                };
                other.insert(Current {
                    counts: collection.add_worker(),
                    collection,
                    site: Weak::new(),
                    series: HashMap::new(),
                })
            }
        };
        if !std::ptr::eq(current.site.as_ptr(), Rc::as_ptr(site)) {
            current.site = Rc::downgrade(site);
            current.series.clear();
        }
        let path = site.path(exchange.route);
        let address = std::ptr::from_ref(path) as usize;
        let collection = &current.collection;
        let series = *current.series.entry(address).or_insert_with(|| {
            collection.series_of(Labels {
                host: site.host(exchange.route).authority.clone(),
                path: path_label(path),
            })
        });
        current.counts[series].count(exchange);
    }
}

/// The text of a configured path for the label.
fn path_label(path: &PathRoute) -> Box<str> {
    match &path.pattern {
        Some(pattern) => format!("~ {}", pattern.text()).into(),
        None => path.path.clone(),
    }
}

impl PathCounts {
    fn count(&self, exchange: &Exchange) {
        let class = exchange.sent.status.map(|status| status.as_u16() / 100);
        let class = match class {
            Some(class @ 1..=5) => usize::from(class) - 1,
            Some(_) | None => CLASSES.len() - 1,
        };
        add(&self.classes[class], 1);
        let timings = &exchange.timings;
        let Some(end) = timings.response_end else {
            return;
        };
        let duration = end.saturating_duration_since(timings.begun);
        add(&self.buckets[bucket_of(duration)], 1);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        add(&self.micros, micros);
    }
}

fn bucket_of(duration: Duration) -> usize {
    LIMITS.partition_point(|limit| *limit < duration)
}

/// The addition need not be atomic, because only this worker writes.
fn add(value: &AtomicU64, n: u64) {
    value.store(value.load(Relaxed).wrapping_add(n), Relaxed);
}

impl RequestMetrics {
    #[cold]
    fn add_worker(&self) -> Arc<WorkerCounts> {
        let counts: Arc<WorkerCounts> = Arc::new(std::array::from_fn(|_| PathCounts::default()));
        self.collected().workers.push(Arc::clone(&counts));
        counts
    }

    /// The index of the series with these labels. A new pair of labels gets a series of its own if there is room for
    /// one.
    #[cold]
    fn series_of(&self, labels: Labels) -> usize {
        let mut collected = self.collected();
        let known = collected.labels.iter().position(|known| *known == labels);
        known.unwrap_or_else(|| {
            let next = collected.labels.len();
            if next < NAMED {
                collected.labels.push(labels);
            }
            next
        })
    }

    fn collected(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All series that have counted a request.
    pub(super) fn series(&self) -> Vec<Series> {
        let collected = self.collected();
        let other = Labels {
            host: "other".into(),
            path: "other".into(),
        };
        let labels = collected.labels.iter().cloned();
        let mut labels: Vec<Labels> = labels.collect();
        labels.resize(labels.len().max(NAMED), other.clone());
        labels.push(other);
        let series = labels.into_iter().enumerate().map(|(index, labels)| {
            let counts = collected.workers.iter().map(|worker| &worker[index]);
            let sum = |value: &dyn Fn(&PathCounts) -> &AtomicU64| {
                let values = counts.clone().map(|counts| value(counts).load(Relaxed));
                values.fold(0, u64::wrapping_add)
            };
            Series {
                labels,
                classes: std::array::from_fn(|class| sum(&|counts| &counts.classes[class])),
                buckets: std::array::from_fn(|bucket| sum(&|counts| &counts.buckets[bucket])),
                micros: sum(&|counts| &counts.micros),
            }
        });
        let used = |series: &Series| series.classes.iter().any(|count| *count > 0);
        series.filter(used).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_of_the_limit_that_it_does_not_exceed() {
        for (micros, want) in [(0, 0), (1000, 0), (1001, 1), (10_000_000, 11)] {
            assert_eq!(bucket_of(Duration::from_micros(micros)), want, "{micros}");
        }
        assert_eq!(bucket_of(Duration::from_secs(11)), LIMITS.len());
    }

    #[test]
    fn a_million_hosts_and_paths_have_no_more_series_than_are_allowed() {
        let metrics = RequestMetrics::default();
        let counts = metrics.add_worker();
        for number in 0..1_000_000 {
            let series = metrics.series_of(Labels {
                host: format!("host{}", number % 1000).into(),
                path: format!("/{number}").into(),
            });
            add(&counts[series].classes[1], 1);
        }
        let series = metrics.series();
        assert_eq!(series.len(), NAMED + 1);
        let last = series.last().unwrap();
        assert_eq!((&*last.labels.host, &*last.labels.path), ("other", "other"));
        assert_eq!(last.classes[1], 1_000_000 - 64);
        let text = super::super::exposition::tests::of_series(&series);
        let lines = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!((65..2_000).contains(&lines), "{lines}");
    }
}
