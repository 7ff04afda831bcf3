//! TLS sessions in memory, by the identifier that the client sends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest;
use hashbrown::HashTable;

use crate::resumption::binding::Binding;

/// Limits of the sessions that are kept: their number, and the bytes of all of them together, since a session with a client's
/// certificate chain is large.
const MAX_SESSIONS: usize = 20_480;
const MAX_BYTES: usize = 16 << 20;

/// The sessions that are kept in memory, for all workers; locked once per handshake.
#[derive(Debug)]
pub(crate) struct SessionCache {
    lifetime_secs: u64,
    sessions: Mutex<Sessions>,
    /// Whether another session fits without evicting one that has not expired.
    has_room: AtomicBool,
}

#[derive(Debug, Default)]
struct Sessions {
    by_age: ByAge,
    /// The serials of all sessions, found by their names.
    by_name: HashTable<Serial>,
    bytes: usize,
}

/// Sessions in the order in which they were added, which is also the order in which they expire.
#[derive(Debug, Default)]
struct ByAge {
    /// The sessions. A session that was removed leaves `None` until all older ones are removed.
    sessions: VecDeque<Option<Session>>,
    /// The serial of the first element of `sessions`.
    first: Serial,
}

/// The number of a session, counted from the first one that was added. The count wraps around: far fewer than 2^32 are kept at a
/// time.
type Serial = u32;

/// What a session is found by: a digest of its binding and its identifier. The digest takes less memory than both, and no client
/// can find another identifier with the same digest.
type Name = [u8; NAME_LEN];
const NAME_LEN: usize = 16;
const EXPIRES_LEN: usize = 8;

/// A session in one allocation: its name, the Unix time when it expires, and its value.
#[derive(Debug)]
struct Session(Box<[u8]>);

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

    /// Adds a session created at `now` (Unix time), and evicts the oldest ones if necessary.
    pub(crate) fn put(&self, id: &[u8], binding: &Binding, value: &[u8], now: u64) {
        let name = name(id, binding);
        let mut sessions = self.lock();
        sessions.drop_expired(now);
        sessions.remove(&name);
        let session = Session::new(&name, now + self.lifetime_secs, value);
        let len = session.0.len();
        while !sessions.by_age.sessions.is_empty()
            && (sessions.by_age.sessions.len() >= MAX_SESSIONS || sessions.bytes + len > MAX_BYTES)
        {
            sessions.drop_oldest();
        }
        if len <= MAX_BYTES {
            sessions.insert(session);
        }
        self.has_room.store(sessions.has_room(), Ordering::Relaxed);
    }

    /// Returns a session, if it was created under the same `binding` and has not expired.
    pub(crate) fn get(&self, id: &[u8], binding: &Binding, now: u64) -> Option<Vec<u8>> {
        let name = name(id, binding);
        let sessions = self.lock();
        let session = sessions.usable(&name, now)?;
        Some(session.value().to_vec())
    }

    /// Like [`Self::get`], but removes the session.
    pub(crate) fn take(&self, id: &[u8], binding: &Binding, now: u64) -> Option<Vec<u8>> {
        let name = name(id, binding);
        let mut sessions = self.lock();
        sessions.usable(&name, now)?;
        let session = sessions.remove(&name)?;
        Some(session.value().to_vec())
    }

    /// Whether [`Self::get`] would return a session.
    pub(crate) fn contains(&self, id: &[u8], binding: &Binding, now: u64) -> bool {
        let name = name(id, binding);
        self.lock().usable(&name, now).is_some()
    }

    /// Drops sessions that have expired. `put` and `has_room` do so as well; the periodic call is for times without handshakes.
    pub(crate) fn drop_expired(&self, now: u64) {
        let mut sessions = self.lock();
        sessions.drop_expired(now);
        self.has_room.store(sessions.has_room(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        // The methods that hold this lock call nothing but the allocator, so that a panic leaves no inconsistent state.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(id: &[u8], binding: &Binding) -> Name {
    let mut context = digest::Context::new(&digest::SHA256);
    // The binding has a fixed length, so no other pair of binding and identifier gives the same bytes.
    context.update(binding);
    context.update(id);
    let digest = context.finish();
    std::array::from_fn(|at| digest.as_ref()[at])
}

/// The hash of a name in the hash table: a part of the name, which is a digest and so as good as random.
fn hash(name: &Name) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| name[at]))
}

impl Sessions {
    /// Whether the next session fits without evicting one that has not expired. Its size is unknown, so half of the space is kept
    /// for large sessions.
    fn has_room(&self) -> bool {
        self.by_age.sessions.len() < MAX_SESSIONS && self.bytes < MAX_BYTES / 2
    }

    fn usable(&self, name: &Name, now: u64) -> Option<&Session> {
        let serial = self.by_name.find(hash(name), self.by_age.is(name))?;
        let session = self.by_age.at(*serial)?;
        (session.expires() > now).then_some(session)
    }

    fn insert(&mut self, session: Session) {
        let hash_of_name = hash(&session.name());
        self.bytes += session.0.len();
        let serial = self.by_age.push(session);
        self.by_name.insert_unique(hash_of_name, serial, |serial| {
            let session = self.by_age.at(*serial);
            session.map_or(0, |session| hash(&session.name()))
        });
    }

    fn remove(&mut self, name: &Name) -> Option<Session> {
        let found = self.by_name.find_entry(hash(name), self.by_age.is(name));
        let (serial, _) = found.ok()?.remove();
        let session = self.by_age.remove(serial)?;
        self.bytes -= session.0.len();
        Some(session)
    }

    fn drop_oldest(&mut self) {
        if let Some(Some(session)) = self.by_age.sessions.front() {
            self.remove(&session.name());
        }
        self.by_age.drop_removed();
        if self.by_age.sessions.is_empty() {
            // No session is left: this frees the memory to which the hash table and the queue have grown.
            *self = Self::default();
        }
    }

    fn drop_expired(&mut self, now: u64) {
        while let Some(oldest) = self.by_age.sessions.front()
            && oldest.as_ref().is_none_or(|oldest| oldest.expires() <= now)
        {
            self.drop_oldest();
        }
    }
}

impl ByAge {
    fn push(&mut self, session: Session) -> Serial {
        let len = u32::try_from(self.sessions.len()).unwrap_or_default();
        self.sessions.push_back(Some(session));
        self.first.wrapping_add(len)
    }

    fn at(&self, serial: Serial) -> Option<&Session> {
        self.sessions.get(self.index(serial))?.as_ref()
    }

    fn is<'a>(&'a self, name: &'a Name) -> impl Fn(&Serial) -> bool + 'a {
        |serial| {
            self.at(*serial)
                .is_some_and(|session| session.name() == *name)
        }
    }

    fn remove(&mut self, serial: Serial) -> Option<Session> {
        let index = self.index(serial);
        self.sessions.get_mut(index)?.take()
    }

    /// Drops the empty places of removed sessions that are older than all others.
    fn drop_removed(&mut self) {
        while let Some(None) = self.sessions.front() {
            self.sessions.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    fn index(&self, serial: Serial) -> usize {
        usize::try_from(serial.wrapping_sub(self.first)).unwrap_or(usize::MAX)
    }
}

impl Session {
    fn new(name: &Name, expires: u64, value: &[u8]) -> Self {
        Self([name, &expires.to_le_bytes()[..], value].concat().into())
    }

    fn name(&self) -> Name {
        std::array::from_fn(|at| self.0[at])
    }

    fn expires(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|at| self.0[NAME_LEN + at]))
    }

    fn value(&self) -> &[u8] {
        &self.0[NAME_LEN + EXPIRES_LEN..]
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
        assert_eq!(cache.lock().by_age.sessions.capacity(), 0);
        assert_eq!(cache.lock().bytes, 0);
    }

    #[test]
    fn a_session_with_the_identifier_of_another_takes_its_place() {
        let cache = SessionCache::new(100);
        cache.put(b"id", &ONE, b"first", 1000);
        cache.put(b"other", &ONE, b"other", 1010);
        cache.put(b"id", &ONE, b"second", 1020);
        assert_eq!(
            cache.get(b"id", &ONE, 1020).as_deref(),
            Some(&b"second"[..])
        );
        // At this time, the session that was put first under this identifier would expire.
        cache.drop_expired(1100);
        assert_eq!(cache.lock().by_age.sessions.len(), 2);
        assert!(cache.contains(b"id", &ONE, 1100));
        assert!(cache.take(b"other", &ONE, 1100).is_some());
        cache.drop_expired(1110);
        assert_eq!(cache.lock().by_age.sessions.len(), 1);
        assert!(cache.contains(b"id", &ONE, 1119));
    }

    #[test]
    fn sessions_removed_in_any_order_leave_the_others() {
        let cache = SessionCache::new(100);
        // The serials of these sessions wrap around.
        cache.lock().by_age.first = Serial::MAX - 500;
        for number in 0..1000u16 {
            cache.put(
                &number.to_be_bytes(),
                &ONE,
                b"value",
                1000 + u64::from(number / 100),
            );
        }
        for number in (0..1000u16).filter(|number| number % 3 != 0) {
            assert!(cache.take(&number.to_be_bytes(), &ONE, 1000).is_some());
        }
        // At this time, the sessions put in the first five seconds expire.
        cache.drop_expired(1104);
        for number in 0..1000u16 {
            assert_eq!(
                cache.contains(&number.to_be_bytes(), &ONE, 1000),
                number % 3 == 0 && number >= 500,
                "{number}"
            );
        }
        let sessions = cache.lock();
        assert_eq!(sessions.by_name.len(), 167);
        assert_eq!(sessions.bytes, 167 * (NAME_LEN + EXPIRES_LEN + 5));
    }

    /// A session of TLS 1.3 has a value of about 100 bytes.
    #[test]
    fn a_session_costs_at_most_60_bytes_beside_its_value() {
        let cache = SessionCache::new(100);
        let value = [0; 100];
        for number in 0..MAX_SESSIONS {
            let id: [u8; 32] = std::array::from_fn(|at| number.to_le_bytes()[at % 8]);
            cache.put(&id, &ONE, &value, 1000);
        }
        let sessions = cache.lock();
        let order = sessions.by_age.sessions.capacity() * size_of::<Option<Session>>();
        let cost = sessions.bytes + order + sessions.by_name.allocation_size();
        assert!(cost / MAX_SESSIONS <= value.len() + 60, "{cost}");
    }

    #[test]
    fn large_sessions_are_bounded_by_their_bytes() {
        let cache = SessionCache::new(100);
        let value = vec![0; MAX_BYTES / 4 - NAME_LEN - EXPIRES_LEN];
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
