//! Health checks and retries. H2O does not have them, and they are off by default.
//!
//! * **The health** of a backend is a state [`machine`]: results of checks and requests are its events; the time is an argument.
//!   The machines of an upstream are behind one lock ([`Health`]), taken only to record a change, or while some backend is not
//!   fully up. While all backends are up, requests read a few atomics that are not written: the number of backends that are down,
//!   a time from which on the machines must be asked, and for each backend whether it is down and whether its next response
//!   matters.
//! * **Active checks** ([`check`]) run on one thread of the process, with connections of their own.
//! * **Passive checks** are results of requests, reported by [`crate::dispatch`] and [`mod@crate::connect`]: failures to connect,
//!   connections closed and timeouts before a response, and responses. If the backend closes a reused connection, that does not
//!   count: healthy backends do so.
//! * **A backend that is down** is [avoided](Health::is_down): idle connections to it are closed when a request looks for one and
//!   by the sweep, its HTTP/2 connections get no requests, and the balancer skips it. If all backends are down, all are used.
//!   After a pause one request at a time is a [`Probe`]; a response brings the backend up.
//! * **A backend that came up** gets a share of the requests that grows slowly, if `slow-start` is configured: until it is fully
//!   up, shares replace the weights of the balancer.
//! * **Retries** are made by [`crate::dispatch`], within the [`budget`].

mod budget;
pub(crate) mod check;
mod machine;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use h2o_log::report;

pub use budget::Retry;
pub(crate) use budget::RetryBudget;
use machine::{HealthChange, HealthMachine, HealthRules};

use crate::Upstream;

/// The settings of active checks of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Path and query of the request that a check sends.
    pub path: Box<str>,
    /// The `host` field of the check's request; `None`: the backend's host, or `localhost` for a Unix socket.
    pub host: Option<Box<str>>,
    /// The time between two checks.
    pub interval: Duration,
    /// The time limit of a check.
    pub timeout: Duration,
    /// Number of successful checks in a row that bring a backend up.
    pub rise: u32,
    /// Number of failed checks in a row that take a backend down.
    pub fall: u32,
    /// Slow start: how long the share of requests of a backend grows after it came up.
    pub slow_start: Duration,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: "/".into(),
            host: None,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            slow_start: Duration::ZERO,
        }
    }
}

/// The settings of passive checks of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassiveCheck {
    /// Number of failed requests in a row that take a backend down.
    pub fall: u32,
    /// How long a backend that went down gets no requests.
    pub pause: Duration,
}

impl Default for PassiveCheck {
    fn default() -> Self {
        Self {
            fall: 3,
            pause: Duration::from_secs(10),
        }
    }
}

/// The health checks of one backend; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendHealthPolicy {
    /// Active checks: requests that this server makes for the purpose.
    pub active: Option<HealthCheck>,
    /// Passive checks: the results of clients' requests.
    pub passive: Option<PassiveCheck>,
}

impl BackendHealthPolicy {
    const fn is_some(&self) -> bool {
        self.active.is_some() || self.passive.is_some()
    }
}

/// The health of all backends of an upstream. Shared by the workers.
pub(crate) struct Health {
    backends: Box<[PublishedState]>,
    /// Number of backends that are down.
    down: AtomicUsize,
    /// From this time on, in milliseconds since `origin`, the balancer must ask the health state machines which
    /// backends to use.
    needed_from: AtomicU64,
    origin: Instant,
    group: Mutex<Group>,
}

/// The state of a backend that requests can read without the lock.
struct PublishedState {
    /// The name of the backend, for messages.
    name: Box<str>,
    /// Whether the backend has health checks.
    is_watched: bool,
    is_down: AtomicBool,
    response_matters: AtomicBool,
}

struct Group {
    machines: Vec<HealthMachine>,
    /// The state of the balancer while it chooses by shares of requests; see [`crate::balancer`].
    turns: Vec<i64>,
}

/// Value of `needed_from` while the balancer need not ask the health state machines.
const NEVER: u64 = u64::MAX;

/// The backend chosen for a request.
#[derive(Debug)]
pub(crate) struct ChosenBackend {
    pub(crate) backend: usize,
    /// Set if the request is a probe of the health of its backend.
    pub(crate) probe: Option<Box<Probe>>,
}

impl ChosenBackend {
    pub(crate) const fn certain(backend: usize) -> Self {
        Self {
            backend,
            probe: None,
        }
    }
}

/// Marks a request as the probe that shows whether its backend is up again. When this is dropped, another request may be the next
/// probe.
pub(crate) struct Probe {
    upstream: Arc<Upstream>,
    backend: usize,
    number: u32,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "probe {} of {}", self.number, self.backend)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(health) = &self.upstream.health {
            health.change(self.backend, |machine| {
                machine.end_probe(self.number);
                HealthChange::Nothing
            });
        }
    }
}

impl Health {
    /// The health of backends with these names and policies; `None` if no backend has health checks.
    pub(crate) fn new<'c>(
        backends: impl Iterator<Item = (&'c str, &'c BackendHealthPolicy)>,
        origin: Instant,
    ) -> Option<Self> {
        let (mut seen, mut machines, mut is_wanted) = (Vec::new(), Vec::new(), false);
        for (name, policy) in backends {
            is_wanted |= policy.is_some();
            seen.push(PublishedState {
                name: name.into(),
                is_watched: policy.is_some(),
                is_down: AtomicBool::new(false),
                response_matters: AtomicBool::new(false),
            });
            let active = policy.active.as_ref();
            machines.push(HealthMachine::new(HealthRules {
                active: active.map(|active| (active.rise, active.fall)),
                passive: policy.passive,
                slow_start: active.map_or(Duration::ZERO, |active| active.slow_start),
            }));
        }
        let turns = vec![0; machines.len()];
        is_wanted.then(|| Self {
            backends: seen.into(),
            down: AtomicUsize::new(0),
            needed_from: AtomicU64::new(NEVER),
            origin,
            group: Mutex::new(Group { machines, turns }),
        })
    }

    /// Takes over the state of backend number `theirs` of another upstream for backend number `ours` of this one, for each of these pairs.
    pub(crate) fn adopt(&self, other: &Self, pairs: impl Iterator<Item = (usize, usize)>) {
        let other = other.group();
        let group = &mut *self.group();
        for (ours, theirs) in pairs {
            group.machines[ours].adopt(&other.machines[theirs]);
        }
        self.publish(group);
    }

    /// Whether a backend is up; `None` if the backend has no health checks.
    pub(crate) fn is_up(&self, backend: usize) -> Option<bool> {
        let seen = &self.backends[backend];
        seen.is_watched.then(|| !seen.is_down.load(Relaxed))
    }

    /// Whether requests must avoid a backend: it is down, and another one is up.
    pub(crate) fn is_down(&self, backend: usize) -> bool {
        let down = self.down.load(Relaxed);
        down > 0 && down < self.backends.len() && self.backends[backend].is_down.load(Relaxed)
    }

    /// Whether the balancer must ask the state machines: a probe is due, or a backend is in slow start.
    pub(crate) fn needs_balancer(&self, now: Instant) -> bool {
        let from = self.needed_from.load(Relaxed);
        from != NEVER && from <= self.milliseconds(now)
    }

    /// Records that a backend has responded to a request.
    pub(crate) fn on_response(&self, backend: usize, now: Instant) {
        if self.backends[backend].response_matters.load(Relaxed) {
            let change = self.change(backend, |machine| machine.on_response(now));
            self.log_change(backend, change, "");
        }
    }

    /// Records that a request to a backend failed; `why` is for the log.
    pub(crate) fn on_failure(&self, backend: usize, why: &str, now: Instant) {
        let change = self.change(backend, |machine| machine.on_failure(now));
        self.log_change(backend, change, why);
    }

    /// Records the result of an active check of a backend.
    pub(crate) fn on_check(&self, backend: usize, result: Result<(), &str>, now: Instant) {
        let change = self.change(backend, |machine| machine.on_check(result.is_ok(), now));
        self.log_change(backend, change, result.err().unwrap_or_default());
    }

    /// Chooses a backend that was not tried for the request: one that is due for a probe, otherwise one that is up, otherwise any.
    pub(crate) fn choose(
        &self,
        upstream: &Arc<Upstream>,
        tried: &[bool],
        now: Instant,
    ) -> Option<ChosenBackend> {
        let balancer = &upstream.balancer;
        let was_tried = |backend| tried.get(backend) == Some(&true);
        if !self.needs_balancer(now) {
            let is_down = |backend: usize| self.backends[backend].is_down.load(Relaxed);
            let chosen = balancer.choose(|backend| was_tried(backend) || is_down(backend));
            let chosen = chosen.or_else(|| balancer.choose(was_tried));
            return chosen.map(ChosenBackend::certain);
        }
        let group = &mut *self.group();
        let machines = group.machines.iter_mut().enumerate();
        let mut untried = machines.filter(|(backend, _)| !was_tried(*backend));
        let probe =
            untried.find_map(|(backend, machine)| Some((backend, machine.begin_probe(now)?)));
        let shares = self.shares(upstream, group, was_tried, now);
        self.publish(group);
        if let Some((backend, number)) = probe {
            let upstream = Arc::clone(upstream);
            let probe = Probe {
                upstream,
                backend,
                number,
            };
            return Some(ChosenBackend {
                backend,
                probe: Some(Box::new(probe)),
            });
        }
        let chosen = balancer.choose_by(&shares, &mut group.turns);
        let chosen = chosen.or_else(|| balancer.choose(was_tried));
        chosen.map(ChosenBackend::certain)
    }

    /// For each backend that is up and was not tried, its weight times its share of requests; 0 for the others.
    fn shares(
        &self,
        upstream: &Upstream,
        group: &mut Group,
        was_tried: impl Fn(usize) -> bool,
        now: Instant,
    ) -> Vec<u64> {
        let machines = group.machines.iter_mut().zip(&upstream.backends);
        machines
            .enumerate()
            .map(|(index, (machine, backend))| {
                let share = machine.share(now);
                u64::from(if was_tried(index) {
                    0
                } else {
                    share * backend.weight
                })
            })
            .collect()
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        // A poisoned lock can be used: a panic cannot leave the state machines inconsistent.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        backend: usize,
        event: impl FnOnce(&mut HealthMachine) -> HealthChange,
    ) -> HealthChange {
        let group = &mut *self.group();
        let change = event(&mut group.machines[backend]);
        self.publish(group);
        change
    }

    /// Publishes the state of the machines for requests to read. To be called while the lock is held.
    fn publish(&self, group: &Group) {
        for (seen, machine) in self.backends.iter().zip(&group.machines) {
            seen.is_down.store(machine.is_down(), Relaxed);
            seen.response_matters
                .store(machine.response_matters(), Relaxed);
        }
        let down = group.machines.iter().filter(|machine| machine.is_down());
        self.down.store(down.count(), Relaxed);
        let times = group.machines.iter().filter_map(HealthMachine::needed_from);
        let first = times.min().map_or(NEVER, |first| self.milliseconds(first));
        self.needed_from.store(first, Relaxed);
    }

    /// Milliseconds since `origin`, rounded up: rounding down would make a time in the future look reached.
    fn milliseconds(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.origin);
        u64::try_from(passed.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER - 1)
    }

    fn log_change(&self, backend: usize, change: HealthChange, why: &str) {
        let name = &self.backends[backend].name;
        match change {
            HealthChange::Nothing => {}
            HealthChange::Down => report!(warning, "backend {name} is down: {why}"),
            HealthChange::Up => report!(notice, "backend {name} is up again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::settings;
    use crate::{BackendUrl, Balancing, HealthPolicy};

    const FALL: u32 = 2;

    fn origin() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// Three backends with active and passive checks.
    fn upstream(balancing: Balancing) -> Arc<Upstream> {
        let backends = ["http://a/", "http://b/", "http://c/"];
        let backends = backends.map(|url| (BackendUrl::parse(url).expect("the URL is valid"), 1));
        let policy = BackendHealthPolicy {
            active: Some(HealthCheck {
                slow_start: Duration::from_secs(8),
                ..HealthCheck::default()
            }),
            passive: Some(PassiveCheck {
                fall: FALL,
                ..PassiveCheck::default()
            }),
        };
        let policy = HealthPolicy {
            backends: vec![policy; 3],
            retry: None,
        };
        Upstream::with_health_policy(backends.to_vec(), balancing, settings(), policy)
    }

    fn health(upstream: &Upstream) -> &Health {
        upstream
            .health
            .as_ref()
            .expect("the backends of this upstream have health checks")
    }

    fn fail(upstream: &Upstream, backend: usize, now: Instant) {
        for _ in 0..FALL {
            health(upstream).on_failure(backend, "test", now);
        }
    }

    fn chosen(upstream: &Arc<Upstream>, times: usize, now: Instant) -> String {
        (0..times)
            .map(|_| {
                let chosen = upstream.choose(&[], now);
                chosen
                    .expect("the upstream has a backend to choose")
                    .backend
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn nobody_asks_who_does_not_want_to_know() {
        let none = BackendHealthPolicy::default();
        let backends = [("a", &none), ("b", &none)];
        assert!(Health::new(backends.into_iter(), origin()).is_none());
    }

    #[test]
    fn those_that_are_down_are_not_chosen_while_others_are_up() {
        for balancing in [Balancing::RoundRobin, Balancing::LeastConn] {
            let (upstream, now) = (upstream(balancing), origin());
            fail(&upstream, 0, now);
            let avoided = |upstream: &Upstream| [0, 1, 2].map(|backend| upstream.is_down(backend));
            assert_eq!(avoided(&upstream), [true, false, false]);
            assert!(!chosen(&upstream, 6, now).contains('0'), "{balancing:?}");
            // All other backends have failed for this request.
            let last = upstream.choose(&[false, true, true], now);
            assert_eq!(
                last.expect("the first backend was not tried before")
                    .backend,
                0
            );
            assert!(upstream.choose(&[true; 3], now).is_none());
            fail(&upstream, 1, now);
            assert_eq!(chosen(&upstream, 3, now), "222", "{balancing:?}");
            fail(&upstream, 2, now);
            assert_eq!(avoided(&upstream), [false; 3]);
        }
        let (upstream, now) = (upstream(Balancing::RoundRobin), origin());
        (0..3).for_each(|backend| fail(&upstream, backend, now));
        assert_eq!(chosen(&upstream, 6, now), "012012");
    }

    #[test]
    fn a_pause_ends_with_one_request_at_a_time() {
        let (upstream, now) = (upstream(Balancing::RoundRobin), origin());
        let health = health(&upstream);
        fail(&upstream, 1, now);
        assert!(!health.needs_balancer(now + Duration::from_secs(9)));
        let later = now + Duration::from_secs(10);
        assert!(health.needs_balancer(later));
        let probe = upstream
            .choose(&[], later)
            .expect("a backend that is down is tried after the pause");
        assert_eq!((probe.backend, probe.probe.is_some()), (1, true));
        assert!(!health.needs_balancer(later));
        assert!(!chosen(&upstream, 4, later).contains('1'));
        // The probe ends without a result, so another request may be the next probe.
        drop(probe);
        assert!(health.needs_balancer(later));
        let probe = upstream
            .choose(&[], later)
            .expect("a backend that is down is tried after the pause");
        assert_eq!(probe.backend, 1);
        health.on_response(1, later);
        drop(probe);
        assert!(!upstream.is_down(1));
    }

    #[test]
    fn who_comes_back_gets_its_share_slowly() {
        let (upstream, now) = (upstream(Balancing::RoundRobin), origin());
        let health = health(&upstream);
        for is_ok in [false, false, false, true, true] {
            let result = if is_ok { Ok(()) } else { Err("test") };
            health.on_check(2, result, now);
        }
        for (seconds, want) in [(2, 25..=26), (4, 45..=46)] {
            let at = now + Duration::from_secs(seconds);
            assert!(health.needs_balancer(at), "{seconds}");
            let count = chosen(&upstream, 225, at).matches('2').count();
            assert!(want.contains(&count), "{count} after {seconds}");
        }
        let settled = now + Duration::from_secs(8);
        chosen(&upstream, 1, settled);
        assert!(!health.needs_balancer(settled));
        assert_eq!(chosen(&upstream, 3, settled).matches('2').count(), 1);
    }

    #[test]
    fn answers_begin_the_count_of_failures_anew() {
        let (upstream, now) = (upstream(Balancing::RoundRobin), origin());
        for _ in 0..5 {
            health(&upstream).on_failure(0, "test", now);
            health(&upstream).on_response(0, now);
        }
        assert!(!upstream.is_down(0));
    }
}
