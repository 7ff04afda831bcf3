//! Idle connections to the backends of an upstream, kept for later requests on their worker.
//!
//! H2O has one pool for all threads and takes the connection that was idle longest, whatever its backend. Here each worker has its
//! own pool, so that no request waits for another thread; idle connections of other workers are not used. The balancer chooses the
//! backend of every request; of the idle connections to that backend, the one that was idle longest is taken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use h2o_exchange::{Timer, Worker};
use h2o_log::report;

use crate::local_upstream::LocalUpstream;
use crate::plain_stream::IdleState;

/// Shortest interval between two sweeps, which close connections that were idle for too long (H2O compatibility: H2O sweeps once
/// per second).
const SWEEP: Duration = Duration::from_secs(1);
/// Longest interval between two sweeps.
const LONGEST_SWEEP: Duration = Duration::from_secs(60);

/// Idle connections of one protocol to the backends of an upstream.
pub(crate) struct IdlePool<C> {
    upstream: Rc<LocalUpstream>,
    /// The idle connections of each backend; the one that was idle longest comes first.
    backends: Box<[RefCell<VecDeque<IdleConnection<C>>>]>,
    /// Whether the task that sweeps is running.
    is_swept: Cell<bool>,
}

struct IdleConnection<C> {
    connection: C,
    since: Instant,
}

impl<C: 'static> IdlePool<C> {
    pub(crate) fn new(upstream: Rc<LocalUpstream>) -> Self {
        Self {
            backends: upstream
                .backends
                .iter()
                .map(|_| RefCell::default())
                .collect(),
            upstream,
            is_swept: Cell::new(false),
        }
    }

    /// Number of idle connections to `backend`.
    pub(crate) fn len(&self, backend: usize) -> usize {
        self.backends[backend].borrow().len()
    }

    /// Takes the connection to `backend` that was idle longest and that `check` finds usable. Closes connections that it finds
    /// unusable.
    pub(crate) fn take(
        &self,
        backend: usize,
        now: Instant,
        mut check: impl FnMut(&mut C) -> IdleState,
    ) -> Option<C> {
        self.clean(backend, now);
        loop {
            let idle = self.backends[backend].borrow_mut().pop_front();
            let mut connection = idle?.connection;
            match check(&mut connection) {
                IdleState::Quiet => return Some(connection),
                IdleState::Closed => warn_once(
                    &CLOSED,
                    "detected close by upstream before the expected timeout",
                    if self.upstream.settings.fastcgi.is_some() {
                        "the application keeps idle connections for less than `fastcgi.timeout.keepalive`"
                    } else {
                        "the backend keeps idle connections for less than `proxy.timeout.keepalive`"
                    },
                ),
                IdleState::Unexpected => {
                    warn_once(
                        &TALKED,
                        "unexpectedly received data to a pooled socket",
                        "the backend has sent bytes that answer no request",
                    );
                }
            }
        }
    }

    /// Adds a connection that has no outstanding requests.
    ///
    /// Must be called where tasks of the worker can be [spawned](Worker::spawn).
    pub(crate) fn put(self: &Rc<Self>, backend: usize, connection: C, worker: &Worker) {
        if !self.is_swept.replace(true) {
            let timer = Timer::new(&worker.timers);
            worker.spawn(sweep(Rc::downgrade(self), timer));
        }
        let since = worker.clock.now();
        self.expire(backend, since);
        let connection = IdleConnection { connection, since };
        self.backends[backend].borrow_mut().push_back(connection);
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        for idle in &self.backends {
            idle.borrow_mut().clear();
        }
    }

    fn expire(&self, backend: usize, now: Instant) {
        let life = self.upstream.settings.keepalive;
        let mut idle = self.backends[backend].borrow_mut();
        while (idle.front()).is_some_and(|idle| now.saturating_duration_since(idle.since) >= life) {
            idle.pop_front();
        }
    }

    /// Closes connections to `backend` that exceeded the idle timeout; all of them if the backend is down.
    fn clean(&self, backend: usize, now: Instant) {
        self.expire(backend, now);
        if self.upstream.is_down(backend) {
            self.backends[backend].borrow_mut().clear();
        }
    }

    /// Closes idle connections that must not be used any more. Returns when to sweep again; `None` if the pool is empty.
    fn sweep(&self, now: Instant) -> Option<Duration> {
        for backend in 0..self.backends.len() {
            self.clean(backend, now);
        }
        let backends = self.backends.iter().map(|idle| idle.borrow());
        let since = backends
            .filter_map(|idle| Some(idle.front()?.since))
            .min()?;
        if self.upstream.health.is_some() {
            // The sweep runs often, because a backend may go down at any time, and its idle connections are then closed.
            return Some(SWEEP);
        }
        Some((since + self.upstream.settings.keepalive).saturating_duration_since(now))
    }
}

/// Runs sweeps until the pool is empty or dropped.
async fn sweep<C: 'static>(pool: Weak<IdlePool<C>>, timer: Timer) {
    let mut pause = SWEEP;
    loop {
        timer.set_after(pause.clamp(SWEEP, LONGEST_SWEEP));
        timer.fired().await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let Some(next) = pool.sweep(timer.clock().now()) else {
            pool.is_swept.set(false);
            return;
        };
        pause = next;
    }
}

static CLOSED: AtomicBool = AtomicBool::new(false);
static TALKED: AtomicBool = AtomicBool::new(false);

/// Logs a warning once per process. H2O compatibility: `text` is H2O's, with the number in its issue tracker, because scripts search logs
/// for it.
fn warn_once(has_warned: &AtomicBool, text: &str, reason: &str) {
    if !has_warned.swap(true, Relaxed) {
        report!(warning, "{text} (see issue #679): {reason}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::upstream::tests::settings;
    use crate::{BackendUrl, Balancing, Upstream, UpstreamSettings};

    const KEEPALIVE: Duration = Duration::from_secs(5);

    /// Runs a test on a pool of numbers that stand for connections to two backends.
    fn on_pool(test: impl AsyncFnOnce(&Rc<Worker>, Rc<IdlePool<u32>>)) {
        let settings = UpstreamSettings {
            keepalive: KEEPALIVE,
            ..settings()
        };
        let url = |url| (BackendUrl::parse(url).expect("the URL is valid"), 1);
        let backends = vec![url("http://a/"), url("http://b/")];
        let upstream = Upstream::new(backends, Balancing::RoundRobin, settings);
        let pool = Rc::new(IdlePool::new(Rc::new(LocalUpstream::new(&upstream))));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(LocalOptions::default())
            .expect("a runtime starts");
        runtime.block_on(async {
            let worker = Worker::new(0, Arc::default(), Arc::default());
            worker.run(test(&worker, pool)).await;
        });
    }

    #[test]
    fn the_connection_that_was_idle_for_longest_is_taken_for_its_own_backend() {
        on_pool(async |worker, pool| {
            for (backend, connection) in [(0, 1), (1, 2), (0, 3)] {
                pool.put(backend, connection, worker);
            }
            let now = worker.clock.now();
            let take = |backend| pool.take(backend, now, |_| IdleState::Quiet);
            assert_eq!((pool.len(0), pool.len(1)), (2, 1));
            assert_eq!([take(0), take(0), take(0)], [Some(1), Some(3), None]);
            assert_eq!([take(1), take(1)], [Some(2), None]);
        });
    }

    #[test]
    fn connections_that_the_backend_has_closed_or_that_talk_are_passed_over() {
        on_pool(async |worker, pool| {
            (1..=4).for_each(|connection| pool.put(0, connection, worker));
            let check = |connection: &mut u32| match connection {
                1 => IdleState::Closed,
                2 => IdleState::Unexpected,
                _ => IdleState::Quiet,
            };
            assert_eq!(pool.take(0, worker.clock.now(), check), Some(3));
            assert_eq!(pool.len(0), 1);
        });
    }

    #[test]
    fn connections_are_closed_when_their_time_is_over_also_if_no_request_comes() {
        on_pool(async |worker, pool| {
            pool.put(0, 1, worker);
            worker.sleep(KEEPALIVE / 2).await;
            pool.put(1, 2, worker);
            worker.sleep(KEEPALIVE * 3 / 4).await;
            assert_eq!((pool.len(0), pool.len(1)), (0, 1));
            // The task that sweeps ends with the last connection, and a new one starts with the next connection.
            worker.sleep(KEEPALIVE).await;
            assert!(pool.len(1) == 0 && !pool.is_swept.get());
            pool.put(0, 3, worker);
            let later = worker.clock.now() + KEEPALIVE;
            assert_eq!(pool.take(0, later, |_| IdleState::Quiet), None);
        });
    }
}
