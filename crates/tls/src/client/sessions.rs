//! TLS sessions with backends, for resumption (`proxy.ssl.session-cache`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

use crate::clock::unix_now;

/// Limit of the TLS 1.3 tickets that are kept per backend. Each ticket is used once, so simultaneous connections need several.
const MAX_TICKETS: usize = 8;

/// The TLS sessions with all backends. Shared by all workers; locked a few times per handshake.
pub(super) struct SessionCache {
    lifetime: Duration,
    /// Limit of the number of backends that sessions are kept for.
    capacity: usize,
    backends: Mutex<HashMap<Box<str>, Sessions>>,
}

/// The sessions with one backend, which is identified by `HOST:PORT`.
#[derive(Default)]
struct Sessions {
    /// When another field was last changed, in seconds since 1970: the backend with the oldest change is evicted first.
    latest: Option<u64>,
    /// The key-exchange group that the backend prefers: a ClientHello with a key share for it saves a round trip.
    group: Option<NamedGroup>,
    tls12: Option<(u64, Tls12ClientSessionValue)>,
    tls13: VecDeque<(u64, Tls13ClientSessionValue)>,
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
        // The methods that hold this lock only call the allocator, so a panic leaves no inconsistent state.
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fresh(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) < self.lifetime.as_secs()
    }

    /// Calls `change` with the sessions of a backend. A new backend replaces the one whose sessions changed longest ago, if the
    /// cache is full.
    fn change(&self, key: &str, now: u64, change: impl FnOnce(&mut Sessions)) {
        let mut backends = self.lock();
        if !backends.contains_key(key) {
            if backends.len() >= self.capacity {
                backends.retain(|_, kept| kept.latest.is_some_and(|at| self.is_fresh(at, now)));
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
            change(sessions);
        }
    }
}

/// The sessions with one backend, as rustls looks them up. rustls identifies backends by their name in certificates; this store
/// identifies them by host and port.
pub(super) struct BackendSessions {
    pub(super) cache: Arc<SessionCache>,
    pub(super) key: Box<str>,
}

impl fmt::Debug for BackendSessions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("BackendSessions")
            .field(&self.key)
            .finish()
    }
}

impl ClientSessionStore for BackendSessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        let change = |sessions: &mut Sessions| sessions.group = Some(group);
        self.cache.change(&self.key, unix_now(), change);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.cache.lock().get(&self.key)?.group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        let now = unix_now();
        let change = |sessions: &mut Sessions| sessions.tls12 = Some((now, value));
        self.cache.change(&self.key, now, change);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let backends = self.cache.lock();
        let (at, value) = backends.get(&self.key)?.tls12.as_ref()?;
        self.cache.is_fresh(*at, unix_now()).then(|| value.clone())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        if let Some(sessions) = self.cache.lock().get_mut(&self.key) {
            sessions.tls12 = None;
        }
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let now = unix_now();
        self.cache.change(&self.key, now, |sessions| {
            if sessions.tls13.len() >= MAX_TICKETS {
                sessions.tls13.pop_front();
            }
            sessions.tls13.push_back((now, value));
        });
    }

    /// Takes the newest ticket, which the backend is most likely to accept.
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut backends = self.cache.lock();
        let sessions = backends.get_mut(&self.key)?;
        let (at, value) = sessions.tls13.pop_back()?;
        if self.cache.is_fresh(at, unix_now()) {
            return Some(value);
        }
        sessions.tls13.clear();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_bounded_and_the_stalest_goes_first() {
        let cache = SessionCache::new(Duration::from_secs(60), 2);
        let learn = |key, now| {
            cache.change(key, now, |sessions| {
                sessions.group = Some(NamedGroup::X25519)
            })
        };
        let known = || ["name:1", "name:2", "name:3"].map(|key| cache.lock().contains_key(key));
        learn("name:1", 1001);
        learn("name:2", 1002);
        learn("name:1", 1003);
        learn("name:3", 1004);
        assert_eq!(known(), [true, false, true]);
        // All expired sessions are dropped at once, so a new backend replaces both others.
        learn("name:2", 1064);
        assert_eq!(known(), [false, true, false]);
    }

    #[test]
    fn sessions_are_kept_for_their_lifetime() {
        let cache = SessionCache::new(Duration::from_secs(60), 1);
        for (now, want) in [(999, true), (1000, true), (1059, true), (1060, false)] {
            assert_eq!(cache.is_fresh(1000, now), want, "{now}");
        }
    }
}
