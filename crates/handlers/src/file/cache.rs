//! The content cache of a worker: files that are asked for again are answered from memory.
//!
//! Before an entry is used in another turn of the event loop, everything it relies on is looked at again, one
//! `stat` per file, so a file that was edited is seen by the very next request.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::Clock;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::document::Document;
use super::encoding::Forms;
use super::identity::Witness;

/// Most entries a worker keeps.
const MAX_ENTRIES: usize = 4096;
/// Most memory a worker's entries may hold.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Most descriptors a worker's entries may hold.
const MAX_FILES: usize = 256;
/// An entry not used for so long is forgotten: the kernel may have forgotten the file, too, and looking at it
/// would wait for the disk; and a descriptor would keep a deleted file's blocks.
const IDLE: Duration = Duration::from_secs(10);

/// What an answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key<'a> {
    /// [`super::service::Service::id`].
    pub(super) service: u64,
    /// In which forms the file may be sent.
    pub(super) forms: Forms,
    /// The normalised path.
    pub(super) path: &'a [u8],
}

/// A document with what it relies on.
pub(super) struct Entry {
    service: u64,
    forms: Forms,
    path: Box<[u8]>,
    pub(super) document: Document,
    witnesses: Box<[Witness]>,
    /// False: valid in the turn it was made in only, since the file is too young for a change to be sure to show.
    settled: bool,
    /// The turn in which the witnesses were last asked, and when that was.
    checked: Cell<(u64, Instant)>,
    /// Used since the clock hand last came by.
    used: Cell<bool>,
    hash: u64,
    bytes: usize,
}

impl Entry {
    fn key(&self) -> Key<'_> {
        Key {
            service: self.service,
            forms: self.forms,
            path: &self.path,
        }
    }

    fn is_current(&self, clock: &Clock) -> bool {
        let (turn, at) = self.checked.get();
        if turn == clock.turn() {
            return true;
        }
        let now = clock.now();
        if !self.settled || is_idle(at, now) || !self.witnesses.iter().all(Witness::holds) {
            return false;
        }
        self.checked.set((clock.turn(), now));
        true
    }
}

fn is_idle(checked: Instant, now: Instant) -> bool {
    now.saturating_duration_since(checked) > IDLE
}

/// The content cache of a worker.
#[derive(Default)]
pub(super) struct ContentCache {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    hasher: DefaultHashBuilder,
    /// Indices into `entries`.
    table: HashTable<usize>,
    entries: Vec<Rc<Entry>>,
    /// Where eviction looks next (second chance).
    hand: usize,
    bytes: usize,
    files: usize,
    swept: Option<Instant>,
}

impl ContentCache {
    /// The entry for `key`, if it still holds true.
    pub(super) fn get(&self, key: Key<'_>, clock: &Clock) -> Option<Rc<Entry>> {
        let mut inner = self.inner.borrow_mut();
        inner.sweep(clock.now());
        let at = inner.find(key)?;
        let entry = &inner.entries[at];
        if entry.is_current(clock) {
            entry.used.set(true);
            return Some(Rc::clone(entry));
        }
        inner.remove(at);
        None
    }

    /// Keeps a document that was looked up in the turn `turn`. An entry of the same key is replaced.
    pub(super) fn insert(
        &self,
        key: Key<'_>,
        document: Document,
        witnesses: Vec<Witness>,
        settled: bool,
        turn: u64,
        clock: &Clock,
    ) -> Rc<Entry> {
        let mut inner = self.inner.borrow_mut();
        if let Some(at) = inner.find(key) {
            inner.remove(at);
        }
        let paths: usize = witnesses.iter().map(|w| w.path().count_bytes()).sum();
        let bytes = size_of::<Entry>()
            + key.path.len()
            + document.retained()
            + paths
            + witnesses.len() * size_of::<Witness>();
        let entry = Rc::new(Entry {
            service: key.service,
            forms: key.forms,
            path: key.path.into(),
            document,
            witnesses: witnesses.into(),
            settled,
            checked: Cell::new((turn, clock.now())),
            used: Cell::new(false),
            hash: inner.hash(key),
            bytes,
        });
        inner.insert(&entry);
        entry
    }
}

impl Inner {
    fn hash(&self, key: Key<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(key.service);
        hasher.write_u8(key.forms.bits());
        hasher.write(key.path);
        hasher.finish()
    }

    fn find(&self, key: Key<'_>) -> Option<usize> {
        let hash = self.hash(key);
        let found = self.table.find(hash, |&at| self.entries[at].key() == key);
        found.copied()
    }

    fn insert(&mut self, entry: &Rc<Entry>) {
        let files = usize::from(entry.document.holds_file());
        while self.entries.len() >= MAX_ENTRIES
            || self.bytes + entry.bytes > MAX_BYTES
            || self.files + files > MAX_FILES
        {
            if !self.evict() {
                break;
            }
        }
        self.bytes += entry.bytes;
        self.files += files;
        let at = self.entries.len();
        self.entries.push(Rc::clone(entry));
        let entries = &self.entries;
        self.table
            .insert_unique(entry.hash, at, |&at| entries[at].hash);
    }

    /// Removes the next entry that was not used since the hand last came by. False if there is none at all.
    fn evict(&mut self) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        loop {
            self.hand %= self.entries.len();
            if !self.entries[self.hand].used.take() {
                self.remove(self.hand);
                return true;
            }
            self.hand += 1;
        }
    }

    fn remove(&mut self, at: usize) {
        let last = self.entries.len() - 1;
        let hash = self.entries[at].hash;
        if let Ok(found) = self.table.find_entry(hash, |&other| other == at) {
            found.remove();
        }
        // The last entry moves to the place that becomes free.
        if at != last {
            let moved = self.entries[last].hash;
            if let Some(index) = self.table.find_mut(moved, |&other| other == last) {
                *index = at;
            }
        }
        let entry = self.entries.swap_remove(at);
        self.bytes -= entry.bytes;
        self.files -= usize::from(entry.document.holds_file());
    }

    /// Forgets idle entries, at most once in [`IDLE`].
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| !is_idle(swept, now)) {
            return;
        }
        self.swept = Some(now);
        for at in (0..self.entries.len()).rev() {
            if is_idle(self.entries[at].checked.get().1, now) {
                self.remove(at);
            }
        }
    }
}
