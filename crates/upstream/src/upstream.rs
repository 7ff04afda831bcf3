//! A group of backends, as one directive of the configuration describes it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use h2o_http::Scheme;
use h2o_log::{LineLimit, report};

use crate::balancer::Balancer;
use crate::health::{BackendHealthPolicy, ChosenBackend, Health, HealthCheck, Retry, RetryBudget};
use crate::{BackendUrl, UpstreamSettings};

/// How requests are distributed over the backends. Unlike H2O, which balances new connections and reuses any open one, this server
/// chooses the backend of every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balancing {
    /// The backends take turns; each gets as many requests in a row as its weight.
    #[default]
    RoundRobin,
    /// A request goes to the backend with the fewest requests in progress in proportion to its weight; the first one if several
    /// are equal.
    LeastConn,
}

/// One backend of an upstream.
pub struct Backend {
    /// The URL of the backend: host, port, and the prefix of the path.
    pub url: BackendUrl,
    /// The weight of the backend, 1 to 256.
    pub weight: u32,
    /// Limits the lines about this backend in the error log.
    failures: LineLimit,
}

/// Number of error-log lines per backend and minute: every request to a backend that is down could cause one.
const FAILURES_PER_MINUTE: u32 = 6;

/// Health checks and retries of an upstream; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Health checks per backend, in the order of the backends; backends beyond the end have none.
    pub backends: Vec<BackendHealthPolicy>,
    /// The settings of `proxy.retry`; `None` if requests are not retried.
    pub retry: Option<Retry>,
}

/// A group of backends with one balancer and one set of settings. Shared by all workers.
pub struct Upstream {
    /// The number of the upstream in this process, by which workers find their state of it.
    pub(crate) id: usize,
    pub(crate) backends: Vec<Backend>,
    pub(crate) balancer: Balancer,
    pub(crate) settings: UpstreamSettings,
    /// The health of the backends; `None` if there are no health checks.
    pub(crate) health: Option<Health>,
    /// The settings of retries, and the retry budget.
    pub(crate) retry: Option<(Retry, RetryBudget)>,
    /// Number of workers that have state of this upstream; each of them holds a reference to it.
    pub(crate) locals: AtomicUsize,
    /// The balancing that was configured.
    balancing: Balancing,
    policy: HealthPolicy,
}

/// Gives out the ids of upstreams. Ids are reused when an upstream is dropped: they are indices of tables in workers, which must
/// not grow with every reload.
struct Ids {
    next: usize,
    free: Vec<usize>,
}

static IDS: Mutex<Ids> = Mutex::new(Ids {
    next: 0,
    free: Vec::new(),
});

fn ids() -> MutexGuard<'static, Ids> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ids {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        ids().free.push(self.id);
    }
}

impl Upstream {
    /// Makes an upstream of these backends, each with its weight.
    ///
    /// # Panics
    /// If there is no backend.
    #[must_use]
    pub fn new(
        backends: Vec<(BackendUrl, u32)>,
        balancing: Balancing,
        settings: UpstreamSettings,
    ) -> Arc<Self> {
        Self::with_health_policy(backends, balancing, settings, HealthPolicy::default())
    }

    /// Makes an upstream like [`Upstream::new`], with health checks and retries.
    ///
    /// # Panics
    /// If there is no backend.
    #[must_use]
    pub fn with_health_policy(
        backends: Vec<(BackendUrl, u32)>,
        balancing: Balancing,
        settings: UpstreamSettings,
        policy: HealthPolicy,
    ) -> Arc<Self> {
        assert!(!backends.is_empty(), "an upstream has at least one backend");
        let backends: Vec<_> = backends
            .into_iter()
            .map(|(url, weight)| Backend {
                url,
                weight,
                failures: LineLimit::per_minute(FAILURES_PER_MINUTE),
            })
            .collect();
        let weights = backends.iter().map(|backend| backend.weight);
        let mut policy = policy;
        (policy.backends).resize(backends.len(), BackendHealthPolicy::default());
        let names = backends.iter().map(|backend| &*backend.url.authority);
        let origin = tokio::time::Instant::now().into_std();
        let with_budget = |retry: Retry| (retry, RetryBudget::new(retry.budget, origin));
        Arc::new(Self {
            id: ids().take(),
            balancer: Balancer::new(balancing, weights),
            health: Health::new(names.zip(&policy.backends), origin),
            retry: policy.retry.map(with_budget),
            locals: AtomicUsize::new(0),
            balancing,
            policy,
            backends,
            settings,
        })
    }

    /// Whether some backend has active health checks.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.checks().next().is_some()
    }

    /// The indices of the backends with active health checks, and their settings.
    pub(crate) fn checks(&self) -> impl Iterator<Item = (usize, &HealthCheck)> {
        let backends = self.policy.backends.iter().enumerate();
        backends.filter_map(|(backend, policy)| Some((backend, policy.active.as_ref()?)))
    }

    /// Used for a reload: returns the upstream of `running` that equals this new one, or else this one. By this, health, balancer,
    /// retry budget and connections of an unchanged upstream survive a reload. If no upstream is equal, backends of this one that an upstream
    /// of `running` has as well stay down or up.
    #[must_use]
    pub fn or_unchanged<'u>(
        self: Arc<Self>,
        running: impl IntoIterator<Item = &'u Arc<Self>>,
    ) -> Arc<Self> {
        let running: Vec<_> = running.into_iter().collect();
        if let Some(same) = running.iter().find(|running| running.is_same_as(&self)) {
            return Arc::clone(same);
        }
        // What the first of them knows of a backend counts.
        for running in running.into_iter().rev() {
            self.adopt_health(running);
        }
        self
    }

    /// Takes over the health of the backends that the upstream `running` has as well.
    fn adopt_health(&self, running: &Self) {
        let (Some(ours), Some(theirs)) = (&self.health, &running.health) else {
            return;
        };
        let known = self
            .backends
            .iter()
            .enumerate()
            .filter_map(|(number, backend)| {
                let same = |other: &Backend| other.url == backend.url;
                Some((number, running.backends.iter().position(same)?))
            });
        ours.adopt(theirs, known);
    }

    /// Whether both upstreams have the same backends in the same order, and the same settings, balancing and health policy.
    fn is_same_as(&self, other: &Self) -> bool {
        let backends = |upstream: &Self| -> Vec<(BackendUrl, u32)> {
            let backends = upstream.backends.iter();
            backends
                .map(|backend| (backend.url.clone(), backend.weight))
                .collect()
        };
        self.balancing == other.balancing
            && self.policy == other.policy
            && self.settings == other.settings
            && backends(self) == backends(other)
    }

    /// Whether only workers refer to the upstream.
    pub(crate) fn is_forgotten(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) <= self.locals.load(Relaxed)
    }

    /// Whether a backend is up; `None` if it has no health checks.
    #[must_use]
    pub fn is_up(&self, backend: usize) -> Option<bool> {
        self.health.as_ref()?.is_up(backend)
    }

    /// Whether requests must avoid a backend: it is down, and another one is up.
    pub(crate) fn is_down(&self, backend: usize) -> bool {
        (self.health.as_ref()).is_some_and(|health| health.is_down(backend))
    }

    /// Lets the balancer choose among the backends that were not tried. `tried` may be empty.
    pub(crate) fn choose(self: &Arc<Self>, tried: &[bool], now: Instant) -> Option<ChosenBackend> {
        let was_tried = |backend| tried.get(backend) == Some(&true);
        match &self.health {
            Some(health) => health.choose(self, tried, now),
            None => self.balancer.choose(was_tried).map(ChosenBackend::certain),
        }
    }

    /// Logs a failure of a backend. `address`: the address that was connected to, if the backend has a name.
    pub(crate) fn report_failure(&self, backend: usize, address: Option<SocketAddr>, reason: &str) {
        let backend = &self.backends[backend];
        let Some(held_back) = backend.failures.admit() else {
            return;
        };
        let authority = &backend.url.authority;
        match address {
            Some(address) => {
                report!(
                    warning,
                    "backend {authority} ({address}): {reason}{held_back}"
                );
            }
            None => report!(warning, "backend {authority}: {reason}{held_back}"),
        }
    }

    /// The backends, in the order of the configuration.
    #[must_use]
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// The settings of connections and requests.
    #[must_use]
    pub const fn settings(&self) -> &UpstreamSettings {
        &self.settings
    }

    /// The URL of a backend, for reports; its scheme is `fastcgi` for FastCGI applications.
    #[must_use]
    pub fn url_text(&self, backend: usize) -> String {
        let text = self.backends[backend].url.to_text();
        match (&self.settings.fastcgi, text.split_once(':')) {
            (Some(_), Some((_, rest))) => format!("fastcgi:{rest}"),
            _ => text,
        }
    }

    /// Whether requests may use HTTP/2.
    ///
    /// A PROXY header is sent before HTTP/1 only. If one is configured, HTTP/2 is used only if it is configured as
    /// well, not because a backend offers it.
    pub(crate) fn may_use_http2(&self) -> bool {
        let settings = &self.settings;
        let is_wanted = match settings.http2_ratio {
            Some(ratio) => ratio > 0,
            None => !settings.proxy_protocol,
        };
        is_wanted
            && (settings.http2_force_cleartext
                || (self.backends.iter()).any(|backend| backend.url.scheme == Scheme::Https))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{NameOrigin, PassiveCheck};
    use h2o_tls::{TlsClient, TlsClientSettings};

    pub(crate) fn settings() -> UpstreamSettings {
        let tls = TlsClientSettings {
            verify_peer: false,
            ca_file: None,
            session_cache: None,
        };
        UpstreamSettings {
            connect_timeout: Duration::ZERO,
            first_byte_timeout: Duration::ZERO,
            io_timeout: Duration::ZERO,
            keepalive: Duration::ZERO,
            max_buffer_size: None,
            max_temp_file_size: 1 << 30,
            zerocopy: true,
            proxy_protocol: false,
            http2_ratio: None,
            http2_force_cleartext: false,
            http3_ratio: 0,
            http3_ecn: true,
            http2_max_streams: 100,
            fastcgi: None,
            name_origin: NameOrigin::Configured,
            tls: TlsClient::new(tls).expect("these TLS settings name no file, so nothing can fail"),
        }
    }

    /// An upstream with passive health checks and retries.
    fn checked(
        urls: &[(&str, u32)],
        balancing: Balancing,
        settings: UpstreamSettings,
        fall: u32,
    ) -> Arc<Upstream> {
        let backends = urls
            .iter()
            .map(|(url, weight)| (BackendUrl::parse(url).expect("the URL is valid"), *weight));
        let passive = PassiveCheck {
            fall,
            ..PassiveCheck::default()
        };
        let backend = BackendHealthPolicy {
            active: None,
            passive: Some(passive),
        };
        let policy = HealthPolicy {
            backends: vec![backend; urls.len()],
            retry: Some(Retry::default()),
        };
        Upstream::with_health_policy(backends.collect(), balancing, settings, policy)
    }

    #[test]
    fn an_unchanged_upstream_keeps_what_is_known_of_its_backends() {
        use Balancing::{LeastConn, RoundRobin};
        let now = tokio::time::Instant::now().into_std();
        let two = [("http://a/", 1), ("http://b/", 2)];
        let other = checked(&[("http://c/", 1)], RoundRobin, settings(), 1);
        let running = checked(&two, RoundRobin, settings(), 1);
        let health = running
            .health
            .as_ref()
            .expect("the upstream has health checks");
        health.on_failure(1, "test", now);
        let all = [other, Arc::clone(&running)];
        let take_over = |upstream: Arc<Upstream>| {
            let taken = upstream.or_unchanged(&all);
            (Arc::ptr_eq(&taken, &running), taken.is_up(1))
        };
        // Settings are compared by value: each of these upstreams has a copy of its own.
        let again = checked(&two, RoundRobin, settings(), 1);
        assert_eq!(take_over(again), (true, Some(false)));
        let slower = UpstreamSettings {
            io_timeout: Duration::from_secs(1),
            ..settings()
        };
        let verifying = UpstreamSettings {
            tls: TlsClient::new(TlsClientSettings {
                verify_peer: true,
                ca_file: None,
                session_cache: None,
            })
            .expect("these TLS settings name no file, so nothing can fail"),
            ..settings()
        };
        let (turned, heavier) = ([two[1], two[0]], [two[0], ("http://b/", 3)]);
        let changed = [
            checked(&turned, RoundRobin, settings(), 1),
            checked(&heavier, RoundRobin, settings(), 1),
            checked(&two, LeastConn, settings(), 1),
            checked(&two, RoundRobin, settings(), 2),
            checked(&two, RoundRobin, slower, 1),
            checked(&two, RoundRobin, verifying, 1),
        ];
        for (index, upstream) in changed.into_iter().enumerate() {
            let taken = upstream.or_unchanged(&all);
            assert!(!Arc::ptr_eq(&taken, &running), "{index}");
            // What is known of its backends is kept nevertheless.
            let up = |name: &str| {
                let mut backends = taken.backends().iter();
                let number = backends.position(|backend| &*backend.url.authority == name);
                taken.is_up(number.expect("all upstreams of the test have both backends"))
            };
            assert_eq!((up("a"), up("b")), (Some(true), Some(false)), "{index}");
        }
    }

    #[test]
    fn numbers_are_given_again() {
        let mut ids = Ids {
            next: 0,
            free: Vec::new(),
        };
        assert_eq!([ids.take(), ids.take()], [0, 1]);
        ids.free.push(0);
        assert_eq!([ids.take(), ids.take()], [0, 2]);
    }

    #[test]
    fn http2_is_used_where_it_is_wanted_and_can_be() {
        let settings = settings();
        // Each case: scheme, `http2_ratio`, `http2_force_cleartext`, and whether a PROXY header is sent.
        let cases = [
            ("https", None, false, false, true),
            ("https", Some(0), false, false, false),
            ("https", Some(1), false, false, true),
            ("http", None, false, false, false),
            ("http", Some(100), false, false, false),
            ("http", Some(100), true, false, true),
            ("https", None, false, true, false),
            ("https", Some(100), false, true, true),
        ];
        for (scheme, http2_ratio, http2_force_cleartext, proxy_protocol, want) in cases {
            let url = BackendUrl::parse(&format!("{scheme}://b/")).expect("the URL is valid");
            let settings = UpstreamSettings {
                http2_ratio,
                http2_force_cleartext,
                proxy_protocol,
                ..settings.clone()
            };
            let upstream = Upstream::new(vec![(url, 1)], Balancing::RoundRobin, settings);
            assert_eq!(
                upstream.may_use_http2(),
                want,
                "{scheme} {http2_ratio:?} {http2_force_cleartext} {proxy_protocol}"
            );
        }
    }
}
