//! Sessions with backends, kept to be resumed (`proxy.ssl.session-cache`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use tokio::time::Instant;

/// Tickets of TLS 1.3 kept per backend. Each is used once, so that connections made at the same time need several.
const MAX_TICKETS: usize = 8;

/// Shared by all workers, which come here a few times per handshake.
pub(super) struct SessionCache {
    lifetime: Duration,
    /// Backends.
    capacity: usize,
    backends: Mutex<HashMap<Box<str>, Sessions>>,
}

/// Of one backend, by `HOST:PORT`.
#[derive(Default)]
struct Sessions {
    latest: Option<Instant>,
    /// The key exchange that it prefers: spares a round trip.
    group: Option<NamedGroup>,
    tls12: Option<(Instant, Tls12ClientSessionValue)>,
    tls13: VecDeque<(Instant, Tls13ClientSessionValue)>,
}

impl fmt::Debug for SessionCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SessionCache")
            .finish_non_exhaustive()
    }
}

impl SessionCache {
    pub(super) fn new(lifetime: Duration, capacity: usize) -> Self {
        Self {
            lifetime,
            capacity,
            backends: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Sessions>> {
        // Nothing is half done when one of these methods panics: they only call the allocator.
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fresh(&self, at: Instant) -> bool {
        at.elapsed() < self.lifetime
    }

    /// Changes what is kept of a backend; the one that was heard of least lately makes room for a new one.
    fn change(&self, key: &str, change: impl FnOnce(&mut Sessions, Instant)) {
        let now = Instant::now();
        let mut backends = self.lock();
        if !backends.contains_key(key) {
            if backends.len() >= self.capacity {
                backends.retain(|_, kept| kept.latest.is_some_and(|at| self.is_fresh(at)));
            }
            if backends.len() >= self.capacity {
                let oldest = backends.iter().min_by_key(|(_, kept)| kept.latest);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.map(|oldest| backends.remove(&oldest));
            }
            backends.insert(key.into(), Sessions::default());
        }
        if let Some(sessions) = backends.get_mut(key) {
            sessions.latest = Some(now);
            change(sessions, now);
        }
    }
}

/// The sessions of one backend, as rustls wants them: it asks by the name of the certificate, we by host and port.
pub(super) struct Keyed {
    pub(super) cache: Arc<SessionCache>,
    pub(super) key: Box<str>,
}

impl fmt::Debug for Keyed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Keyed").field(&self.key).finish()
    }
}

impl ClientSessionStore for Keyed {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        let change = |sessions: &mut Sessions, _| sessions.group = Some(group);
        self.cache.change(&self.key, change);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.cache.lock().get(&self.key)?.group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        let change = |sessions: &mut Sessions, now| sessions.tls12 = Some((now, value));
        self.cache.change(&self.key, change);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let backends = self.cache.lock();
        let (at, value) = backends.get(&self.key)?.tls12.as_ref()?;
        self.cache.is_fresh(*at).then(|| value.clone())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        if let Some(sessions) = self.cache.lock().get_mut(&self.key) {
            sessions.tls12 = None;
        }
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.cache.change(&self.key, |sessions, now| {
            if sessions.tls13.len() >= MAX_TICKETS {
                sessions.tls13.pop_front();
            }
            sessions.tls13.push_back((now, value));
        });
    }

    /// The latest, as the one that the backend most likely still knows.
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut backends = self.cache.lock();
        let sessions = backends.get_mut(&self.key)?;
        let (at, value) = sessions.tls13.pop_back()?;
        if self.cache.is_fresh(at) {
            return Some(value);
        }
        sessions.tls13.clear();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(cache: &Arc<SessionCache>, key: &str) -> Keyed {
        Keyed {
            cache: Arc::clone(cache),
            key: key.into(),
        }
    }

    #[test]
    fn backends_are_bounded_and_the_stalest_goes_first() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let name = || ServerName::try_from("name").unwrap();
            let cache = Arc::new(SessionCache::new(Duration::from_secs(60), 2));
            let [one, two, three] = ["name:1", "name:2", "name:3"].map(|key| keyed(&cache, key));
            let hints = || [&one, &two, &three].map(|backend| backend.kx_hint(&name()).is_some());
            for backend in [&one, &two, &one, &three] {
                tokio::time::advance(Duration::from_secs(1)).await;
                backend.set_kx_hint(name(), NamedGroup::X25519);
            }
            assert_eq!(hints(), [true, false, true]);
            // All that have expired go at once.
            tokio::time::advance(Duration::from_secs(60)).await;
            two.set_kx_hint(name(), NamedGroup::X25519);
            assert_eq!(hints(), [false, true, false]);
        });
    }
}
