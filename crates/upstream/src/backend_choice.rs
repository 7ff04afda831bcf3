//! The choice of a backend for each attempt of a request.

use std::sync::Arc;
use std::time::Instant;

use crate::Upstream;
use crate::health::{ChosenBackend, Probe};

/// The backend chosen for an attempt, and the backends that were tried for the request before.
#[derive(Debug, Default)]
pub(crate) struct BackendChoice {
    /// The backend that the balancer chose; `None` if there is only one backend, or all were tried.
    pub(crate) chosen: Option<ChosenBackend>,
    /// Set if the attempt is a health probe of its backend. The probe must live until its result is recorded.
    probe: Option<Box<Probe>>,
    /// For each backend, whether it was tried for this request; an empty list if none was.
    tried: Vec<bool>,
}

impl BackendChoice {
    /// Begins the first attempt of a request, with the backend that the balancer chose.
    pub(crate) fn new(chosen: Option<ChosenBackend>) -> Self {
        Self {
            chosen,
            ..Self::default()
        }
    }

    /// Lets the balancer choose among the backends that were not tried for this request.
    pub(crate) fn choose_again(&mut self, upstream: &Arc<Upstream>, now: Instant) {
        self.chosen = upstream.choose(&self.tried, now);
    }

    /// The backend that this attempt tries first.
    pub(crate) fn first(&self) -> usize {
        self.chosen.as_ref().map_or(0, |chosen| chosen.backend)
    }

    /// The backend whose open connections may be used; `None` for a health probe, which needs a new connection.
    pub(crate) fn reusable(&self) -> Option<usize> {
        match &self.chosen {
            Some(ChosenBackend { probe: Some(_), .. }) => None,
            Some(ChosenBackend { probe: None, .. }) | None => Some(self.first()),
        }
    }

    /// Whether this attempt may use an open connection to `backend`.
    pub(crate) fn suits(&self, upstream: &Upstream, backend: usize) -> bool {
        self.reusable() == Some(backend) && !upstream.is_down(backend)
    }

    /// Returns the next backend to connect to, and marks it as tried.
    pub(crate) fn next(&mut self, upstream: &Arc<Upstream>, now: Instant) -> Option<usize> {
        self.tried.resize(upstream.backends.len(), false);
        let chosen = match self.chosen.take() {
            Some(chosen) => chosen,
            None => upstream.choose(&self.tried, now)?,
        };
        self.tried[chosen.backend] = true;
        self.probe = chosen.probe;
        Some(chosen.backend)
    }

    /// Whether there is a backend that was not tried for this request.
    pub(crate) fn has_untried(&self) -> bool {
        self.tried.contains(&false)
    }

    /// Makes the next attempt prefer another backend than `failed`. If all available backends have been tried, they may be tried
    /// again.
    pub(crate) fn prefer_another(&mut self, failed: Option<usize>, upstream: &Upstream) {
        let backends = upstream.backends.len();
        self.chosen = None;
        self.probe = None;
        self.tried.resize(backends, false);
        let usable = || (0..backends).filter(|&backend| !upstream.is_down(backend));
        if let Some(failed) = failed {
            self.tried[failed] = true;
        }
        if usable().all(|backend| self.tried[backend]) {
            let has_others = usable().any(|backend| Some(backend) != failed);
            self.tried.fill(false);
            if let Some(failed) = failed {
                self.tried[failed] = has_others;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::upstream::tests::settings;
    use crate::{BackendHealthPolicy, BackendUrl, Balancing, HealthPolicy, PassiveCheck};

    /// An upstream with `count` backends. One failed request takes a backend down.
    pub(crate) fn upstream(count: usize) -> Arc<Upstream> {
        let url = BackendUrl::parse("http://a/").expect("the URL is valid");
        let policy = BackendHealthPolicy {
            active: None,
            passive: Some(PassiveCheck {
                fall: 1,
                ..PassiveCheck::default()
            }),
        };
        let policy = HealthPolicy {
            backends: vec![policy; count],
            retry: None,
        };
        let backends = vec![(url, 1); count];
        Upstream::with_health_policy(backends, Balancing::RoundRobin, settings(), policy)
    }

    #[test]
    fn another_backend_is_preferred() {
        let three = upstream(3);
        let mut backends = BackendChoice::default();
        let mut seen = Vec::new();
        for backend in [Some(0), Some(2), Some(1), None] {
            backends.prefer_another(backend, &three);
            seen.push(backends.tried.clone());
        }
        let want = [
            [true, false, false],
            [true, false, true],
            // All backends were tried: all but the one that failed last may be tried again.
            [false, true, false],
            [false, true, false],
        ];
        assert_eq!(seen, want);
        let mut only = BackendChoice::default();
        only.prefer_another(Some(0), &upstream(1));
        assert_eq!(only.tried, [false]);
        // A backend that is down is not preferred to the one that failed.
        let health = three
            .health
            .as_ref()
            .expect("the backends of this upstream have health checks");
        let now = tokio::time::Instant::now().into_std();
        health.on_failure(1, "test", now);
        for (failed, want) in [(0, [true, false, false]), (2, [false, false, true])] {
            let mut backends = BackendChoice::default();
            backends.prefer_another(Some(failed), &three);
            assert_eq!(backends.tried, want);
        }
        health.on_failure(2, "test", now);
        let mut backends = BackendChoice::default();
        backends.prefer_another(Some(0), &three);
        assert_eq!(backends.tried, [false; 3]);
    }
}
