//! TLS sessions in memory, by the identifier that the client sends.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::resumption::binding::Binding;

/// Number of sessions that are kept at most, and number of bytes that all of them may have together: a session with a client's
/// certificate chain is large.
const MAX_SESSIONS: usize = 20_480;
const MAX_BYTES: usize = 16 << 20;

/// The sessions that are kept, for all workers; locked once per handshake.
#[derive(Debug)]
pub(crate) struct SessionCache {
    lifetime_secs: u64,
    sessions: Mutex<Sessions>,
    /// Whether another session fits without evicting one that has not expired.
    has_room: AtomicBool,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<Box<[u8]>, Session>,
    /// When each session expires, with its identifier, oldest first. Identifiers of removed sessions stay until then.
    by_age: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

#[derive(Debug)]
struct Session {
    binding: Binding,
    expires: u64,
    value: Box<[u8]>,
}

impl SessionCache {
    pub(crate) fn new(lifetime_secs: u64) -> Self {
        Self {
            lifetime_secs,
            sessions: Mutex::default(),
            has_room: AtomicBool::new(true),
        }
    }

    /// Whether another session fits without evicting one that has not expired.
    pub(crate) fn has_room(&self, now: u64) -> bool {
        if !self.has_room.load(Ordering::Relaxed) {
            self.drop_expired(now);
        }
        self.has_room.load(Ordering::Relaxed)
    }

    /// Adds a session created at `now` (Unix time), evicting the oldest ones if necessary.
    pub(crate) fn put(&self, id: &[u8], binding: &Binding, value: &[u8], now: u64) {
        let mut sessions = self.lock();
        sessions.drop_expired(now);
        sessions.remove(id);
        while sessions.by_age.len() >= MAX_SESSIONS
            || (sessions.bytes + value.len() > MAX_BYTES && !sessions.by_age.is_empty())
        {
            sessions.drop_oldest();
        }
        if value.len() <= MAX_BYTES {
            sessions.insert(id, *binding, value, now + self.lifetime_secs);
        }
        self.has_room.store(sessions.has_room(), Ordering::Relaxed);
    }

    /// A session, if it was created under the same `binding` and has not expired.
    pub(crate) fn get(&self, id: &[u8], binding: &Binding, now: u64) -> Option<Vec<u8>> {
        let sessions = self.lock();
        let session = sessions.usable(id, binding, now)?;
        Some(session.value.to_vec())
    }

    /// Like [`Self::get`], but removes the session.
    pub(crate) fn take(&self, id: &[u8], binding: &Binding, now: u64) -> Option<Vec<u8>> {
        let mut sessions = self.lock();
        sessions.usable(id, binding, now)?;
        sessions.remove(id).map(|session| session.value.to_vec())
    }

    /// Whether [`Self::get`] would return a session.
    pub(crate) fn contains(&self, id: &[u8], binding: &Binding, now: u64) -> bool {
        self.lock().usable(id, binding, now).is_some()
    }

    /// `put` and `has_room` also drop expired sessions; the periodic call is for times without handshakes.
    pub(crate) fn drop_expired(&self, now: u64) {
        let mut sessions = self.lock();
        sessions.drop_expired(now);
        self.has_room.store(sessions.has_room(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        // These methods call nothing but the allocator, so that a panic leaves no inconsistent state.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// The size of the next session is unknown: half of the space is reserved for large ones.
    fn has_room(&self) -> bool {
        self.by_age.len() < MAX_SESSIONS && self.bytes < MAX_BYTES / 2
    }

    fn usable(&self, id: &[u8], binding: &Binding, now: u64) -> Option<&Session> {
        self.by_id
            .get(id)
            .filter(|session| session.binding == *binding && session.expires > now)
    }

    fn insert(&mut self, id: &[u8], binding: Binding, value: &[u8], expires: u64) {
        self.bytes += value.len();
        self.by_age.push_back((expires, id.into()));
        self.by_id.insert(
            id.into(),
            Session {
                binding,
                expires,
                value: value.into(),
            },
        );
    }

    fn remove(&mut self, id: &[u8]) -> Option<Session> {
        let session = self.by_id.remove(id)?;
        self.bytes -= session.value.len();
        Some(session)
    }

    fn drop_oldest(&mut self) {
        if let Some((expires, id)) = self.by_age.pop_front()
            // Another session may have the same identifier since.
            && self.by_id.get(&id).is_some_and(|session| session.expires == expires)
        {
            self.remove(&id);
        }
    }

    fn drop_expired(&mut self, now: u64) {
        while self
            .by_age
            .front()
            .is_some_and(|(expires, _)| *expires <= now)
        {
            self.drop_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Binding = [1; 32];
    const OTHER: Binding = [2; 32];

    #[test]
    fn sessions_are_found_by_id_and_binding_until_they_expire() {
        let cache = SessionCache::new(100);
        cache.put(b"id", &ONE, b"value", 1000);
        assert_eq!(cache.get(b"id", &ONE, 1099).as_deref(), Some(&b"value"[..]));
        assert_eq!(cache.get(b"id", &OTHER, 1000), None);
        assert_eq!(cache.get(b"id", &ONE, 1100), None);
        assert_eq!(cache.get(b"no", &ONE, 1000), None);
        assert_eq!(cache.take(b"id", &OTHER, 1000), None);
        assert!(cache.contains(b"id", &ONE, 1000));
        assert!(cache.take(b"id", &ONE, 1000).is_some());
        assert_eq!(cache.take(b"id", &ONE, 1000), None);
    }

    #[test]
    fn the_oldest_sessions_make_room() {
        let cache = SessionCache::new(100);
        let id = |number: usize| number.to_be_bytes();
        for number in 0..=MAX_SESSIONS {
            cache.put(&id(number), &ONE, b"v", 1000);
        }
        assert!(!cache.contains(&id(0), &ONE, 1000));
        assert!(cache.contains(&id(1), &ONE, 1000));
        assert!(!cache.has_room(1099));
        assert!(cache.has_room(1100));
        assert_eq!(cache.lock().by_age.len(), 0);
        assert_eq!(cache.lock().bytes, 0);
    }

    #[test]
    fn large_sessions_are_bounded_by_their_bytes() {
        let cache = SessionCache::new(100);
        let value = vec![0; MAX_BYTES / 4];
        for id in 0..9u8 {
            cache.put(&[id], &ONE, &value, 1000);
        }
        let kept = (0..9u8).filter(|id| cache.contains(&[*id], &ONE, 1000));
        assert_eq!(kept.collect::<Vec<_>>(), [5, 6, 7, 8]);
        cache.put(&[9], &ONE, &vec![0; MAX_BYTES + 1], 1000);
        assert!(!cache.contains(&[9], &ONE, 1000));
        assert!(cache.lock().bytes <= MAX_BYTES);
    }
}
