//! The content cache of a worker: responses for files that are requested again come from memory.
//!
//! Before an entry is used in another turn of the event loop, the files that it relies on are checked with one `stat` each,
//! unless the kernel reports changes ([`super::watch`]) and has reported none. Either way, the very next request sees an
//! edited file.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::{Clock, Counter, LocalSite, Premise, Worker, WorkerStart};
use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::Notify;

use super::document::Document;
use super::encoding::AcceptedEncodings;
use super::identity::FileStamp;
use super::watch::{WatchState, Watches};

/// Most entries in the content cache of a worker.
const MAX_ENTRIES: usize = 16 * 1024;
/// Most bytes of memory that the entries of a worker's content cache may hold.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Most file descriptors that the entries of a worker's content cache may hold, if the limit of the process allows as many.
const MAX_FILES: usize = 256;
/// A cache entry that was not used for this long is removed: the kernel may have dropped the file from memory, and
/// checking it would wait for the disk.
const IDLE: Duration = Duration::from_secs(60);
/// A cache entry that holds a file descriptor is removed if it was not used for this long, and at the latest after twice that time, because
/// the descriptor would keep the disk space of a deleted file occupied.
const IDLE_FILE: Duration = Duration::from_secs(10);

/// The key of a cache entry: the inputs on which a response depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheKey<'a> {
    /// The identifier of the service ([`super::service::Service::id`]).
    pub(super) service: u64,
    /// The encodings in which the file may be sent to the client.
    pub(super) encodings: AcceptedEncodings,
    /// The normalised path of the request.
    pub(super) path: &'a [u8],
}

/// A cached document, with the files whose state it depends on.
pub(super) struct CacheEntry {
    service: u64,
    encodings: AcceptedEncodings,
    path: Box<[u8]>,
    pub(super) document: Document,
    stamps: Box<[FileStamp]>,
    /// Whether the file's mtime is so old that another write would change it. If not, the entry is only valid in the
    /// turn of the event loop in which it was made.
    mtime_is_reliable: bool,
    /// The turn of the event loop in which the entry was last known to be valid, and the time at which its files were
    /// last checked.
    checked: Cell<(u64, Instant)>,
    watch: Cell<WatchState>,
    /// Whether the entry has left the cache: another one may have taken its place.
    is_removed: Cell<bool>,
    /// Whether the entry was used since eviction last examined it (second-chance algorithm).
    used: Cell<bool>,
    hash: u64,
    bytes: usize,
}

impl CacheEntry {
    fn key(&self) -> CacheKey<'_> {
        CacheKey {
            service: self.service,
            encodings: self.encodings,
            path: &self.path,
        }
    }

    #[inline]
    fn is_current(&self, clock: &Clock, watches: &mut Watches) -> bool {
        self.checked.get().0 == clock.turn() || self.is_still_current(clock, watches)
    }

    /// Whether the entry is still valid in this turn of the event loop. Checks its files if necessary.
    fn is_still_current(&self, clock: &Clock, watches: &mut Watches) -> bool {
        let (_, at) = self.checked.get();
        let now = clock.now();
        if watches.has_no_event_since(self.watch.get(), at, clock) {
            self.checked.set((clock.turn(), at));
            return true;
        }
        if !self.mtime_is_reliable
            || self.is_idle(now)
            || !self.stamps.iter().all(FileStamp::is_unchanged)
        {
            return false;
        }
        let watch = watches.after_check(self.watch.get(), &self.stamps, now);
        self.watch.set(watch);
        self.checked.set((clock.turn(), now));
        true
    }

    fn is_idle(&self, now: Instant) -> bool {
        let limit = if self.document.holds_file() {
            IDLE_FILE
        } else {
            IDLE
        };
        now.saturating_duration_since(self.checked.get().1) > limit
    }
}

impl Premise for CacheEntry {
    #[inline]
    fn holds(&self, worker: &Worker) -> bool {
        if self.is_removed.get() {
            return false;
        }
        let cache = worker.local::<ContentCache>();
        let watches = &mut cache.inner.borrow_mut().watches;
        let is_current = self.is_current(&worker.clock, watches);
        if is_current {
            self.used.set(true);
            worker.counters.count(Counter::CacheHits);
        }
        is_current
    }
}

/// The content cache of a worker.
#[derive(Default)]
pub(super) struct ContentCache {
    inner: RefCell<Inner>,
    /// Notified when an entry holds a file and none did before.
    holds_files: Notify,
    /// Whether the task of [`CloseIdleFiles`] runs. Each `file.dir` of each configuration starts it, and one is enough.
    closes_idle_files: Cell<bool>,
}

#[derive(Default)]
struct Inner {
    hasher: DefaultHashBuilder,
    /// Maps keys to the indices of their entries in `places`.
    table: HashTable<usize>,
    /// Entries stay in their places, so that the hand of the eviction algorithm passes each of them in turn.
    places: Vec<Option<Rc<CacheEntry>>>,
    free: Vec<usize>,
    /// Index of the place that eviction examines next (second-chance algorithm).
    hand: usize,
    bytes: usize,
    files: usize,
    /// When idle entries are removed the next time.
    sweep_due: Option<Instant>,
    watches: Watches,
}

impl ContentCache {
    /// The cache entry for `key`, if it is still valid.
    #[inline]
    pub(super) fn get(&self, key: CacheKey<'_>, clock: &Clock) -> Option<Rc<CacheEntry>> {
        let inner = &mut *self.inner.borrow_mut();
        inner.sweep(clock.now());
        let at = inner.find(key)?;
        let entry = inner.places[at].as_ref()?;
        if entry.is_current(clock, &mut inner.watches) {
            entry.used.set(true);
            return Some(Rc::clone(entry));
        }
        inner.remove(at);
        None
    }

    /// Removes the entries that hold files. Returns whether there were any.
    pub(super) fn close_files(&self) -> bool {
        let inner = &mut *self.inner.borrow_mut();
        let had_files = inner.files > 0;
        inner.remove_all(|entry| entry.document.holds_file());
        had_files
    }

    /// Whether the files of an entry for `path` are watched by inotify.
    #[cfg(test)]
    pub(super) fn is_watched(&self, path: &[u8]) -> bool {
        let inner = self.inner.borrow();
        let mut entries = inner.places.iter().flatten();
        entries.any(|entry| {
            *entry.path == *path && matches!(entry.watch.get(), WatchState::Kept { .. })
        })
    }

    /// Stores a document that was looked up in the turn `turn` of the event loop. Replaces an entry with the same key.
    pub(super) fn insert(
        &self,
        key: CacheKey<'_>,
        document: Document,
        stamps: Vec<FileStamp>,
        mtime_is_reliable: bool,
        turn: u64,
        worker: &Worker,
    ) -> Rc<CacheEntry> {
        let clock = &worker.clock;
        let mut inner = self.inner.borrow_mut();
        if let Some(at) = inner.find(key) {
            inner.remove(at);
        }
        let paths: usize = stamps.iter().map(|w| w.path().count_bytes()).sum();
        let bytes = size_of::<CacheEntry>()
            + key.path.len()
            + document.retained()
            + paths
            + stamps.len() * size_of::<FileStamp>();
        let entry = Rc::new(CacheEntry {
            service: key.service,
            encodings: key.encodings,
            path: key.path.into(),
            document,
            stamps: stamps.into(),
            mtime_is_reliable,
            checked: Cell::new((turn, clock.now())),
            watch: Cell::new(WatchState::Earning(0)),
            is_removed: Cell::new(false),
            used: Cell::new(false),
            hash: inner.hash(key),
            bytes,
        });
        let workers = worker.shared.workers.get().map_or(1, Vec::len);
        let most = worker.shared.descriptors.for_kept_files(workers);
        inner.insert(&entry, most.min(MAX_FILES));
        if inner.files == 1 && entry.document.holds_file() {
            self.holds_files.notify_one();
        }
        entry
    }
}

/// Closes the files that a worker's content cache has not used for a while, also if the worker gets no more requests for files.
pub(super) struct CloseIdleFiles;

impl WorkerStart for CloseIdleFiles {
    fn start(&self, worker: &Rc<Worker>, _: &Rc<LocalSite>) {
        let cache = worker.local::<ContentCache>();
        if cache.closes_idle_files.replace(true) {
            return;
        }
        let own = Rc::clone(worker);
        worker.spawn(async move {
            loop {
                cache.holds_files.notified().await;
                while cache.inner.borrow().files > 0 {
                    own.sleep(IDLE_FILE).await;
                    cache.inner.borrow_mut().remove_idle(own.clock.now());
                }
            }
        });
    }
}

impl Inner {
    fn hash(&self, key: CacheKey<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(key.service);
        hasher.write_u8(key.encodings.bits());
        hasher.write(key.path);
        hasher.finish()
    }

    fn find(&self, key: CacheKey<'_>) -> Option<usize> {
        let is_key = |&at: &usize| {
            let entry = self.places[at].as_ref();
            entry.is_some_and(|entry| entry.key() == key)
        };
        self.table.find(self.hash(key), is_key).copied()
    }

    /// Adds an entry, after it has removed as many others as the limits demand: `most_files` is that of the entries that hold files.
    fn insert(&mut self, entry: &Rc<CacheEntry>, most_files: usize) {
        let files = usize::from(entry.document.holds_file());
        while self.table.len() >= MAX_ENTRIES || self.bytes + entry.bytes > MAX_BYTES {
            if !self.evict(|_| true) {
                break;
            }
        }
        while self.files + files > most_files {
            if !self.evict(|entry| entry.document.holds_file()) {
                break;
            }
        }
        self.bytes += entry.bytes;
        self.files += files;
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[at] = Some(Rc::clone(entry));
        let places = &self.places;
        let hash_of = |&at: &usize| places[at].as_ref().map_or(0, |entry| entry.hash);
        self.table.insert_unique(entry.hash, at, hash_of);
    }

    /// Removes the next of the entries that `may_go` names which was not used since eviction last examined it. Returns false if there is none.
    fn evict(&mut self, may_go: impl Fn(&CacheEntry) -> bool) -> bool {
        // In the first round over the entries, all of them may turn out to be used, so that only their marks of use are
        // cleared: the second round then finds an entry to remove.
        for _ in 0..2 * self.places.len() {
            let at = self.hand % self.places.len();
            self.hand = at + 1;
            if let Some(entry) = &self.places[at]
                && may_go(entry)
                && !entry.used.take()
            {
                self.remove(at);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, at: usize) {
        let Some(entry) = self.places[at].take() else {
            return;
        };
        entry.is_removed.set(true);
        if let Ok(found) = self.table.find_entry(entry.hash, |&other| other == at) {
            found.remove();
        }
        self.free.push(at);
        self.bytes -= entry.bytes;
        self.files -= usize::from(entry.document.holds_file());
    }

    /// Removes idle entries, at most once in the time [`IDLE_FILE`].
    #[inline]
    fn sweep(&mut self, now: Instant) {
        if self.sweep_due.is_none_or(|due| now > due) {
            self.remove_idle(now);
        }
    }

    #[cold]
    fn remove_idle(&mut self, now: Instant) {
        self.sweep_due = Some(now + IDLE_FILE);
        self.remove_all(|entry| entry.is_idle(now));
    }

    fn remove_all(&mut self, is_meant: impl Fn(&CacheEntry) -> bool) {
        for at in 0..self.places.len() {
            if self.places[at].as_deref().is_some_and(&is_meant) {
                self.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::testing::{Kit, kit, let_files_settle};
    use super::*;

    /// Serves `count` files of `size` bytes once each, and checks the limits of the cache after every 64 files.
    fn serve(count: usize, size: u64) -> (tempfile::TempDir, Kit) {
        let_files_settle();
        let root = tempfile::tempdir().unwrap();
        let kit = kit(root.path(), "file.dir: ROOT");
        for n in 0..count {
            let file = File::create(root.path().join(format!("{n}"))).unwrap();
            file.set_len(size).unwrap();
            assert_eq!(kit.head(&format!("/{n}")).length, Some(size));
            if n % 64 == 0 {
                check(&kit);
            }
        }
        (root, kit)
    }

    /// Asserts that the cache's counters agree with its entries, and that no counter exceeds its limit. Returns the
    /// counters.
    fn check(kit: &Kit) -> [usize; 3] {
        let cache = kit.worker.local::<ContentCache>();
        let inner = cache.inner.borrow();
        let entries: Vec<_> = inner.places.iter().flatten().collect();
        let bytes = entries.iter().map(|entry| entry.bytes).sum();
        let files = entries.iter().filter(|entry| entry.document.holds_file());
        let found = [entries.len(), bytes, files.count()];
        assert_eq!(found, [inner.table.len(), inner.bytes, inner.files]);
        assert_eq!(entries.len() + inner.free.len(), inner.places.len());
        for (found, limit) in found.into_iter().zip([MAX_ENTRIES, MAX_BYTES, MAX_FILES]) {
            assert!(found <= limit);
        }
        found
    }

    #[test]
    fn entries_are_limited() {
        let (_root, kit) = serve(MAX_ENTRIES + 100, 0);
        let [entries, ..] = check(&kit);
        assert_eq!(entries, MAX_ENTRIES);
        let last = format!("/{}", MAX_ENTRIES + 99);
        assert_eq!(kit.head(&last).status, 200);
    }

    #[test]
    fn memory_is_limited() {
        let (_root, kit) = serve(MAX_BYTES / 65536 + 20, 65536);
        let [entries, bytes, files] = check(&kit);
        assert!(bytes > MAX_BYTES - 70_000 && entries >= MAX_BYTES / 70_000);
        assert_eq!(files, 0);
    }

    #[test]
    fn descriptors_are_limited() {
        let (_root, kit) = serve(MAX_FILES + 20, 65537);
        assert_eq!(check(&kit)[2], MAX_FILES);
    }

    #[test]
    fn files_are_closed_when_their_descriptors_are_needed() {
        let (_root, kit) = serve(20, 65537);
        assert_eq!(check(&kit)[2], 20);
        let cache = kit.worker.local::<ContentCache>();
        assert!(cache.close_files());
        assert_eq!(check(&kit), [0, 0, 0]);
        assert!(!cache.close_files());
        assert_eq!(kit.head("/7").length, Some(65537));
    }

    #[test]
    fn what_is_used_stays_and_what_is_idle_goes() {
        let (root, kit) = serve(MAX_FILES, 65537);
        for n in 0..MAX_FILES / 2 {
            kit.head(&format!("/{n}"));
        }
        for n in 0..MAX_FILES / 2 {
            std::fs::copy(root.path().join("0"), root.path().join(format!("new{n}"))).unwrap();
            kit.head(&format!("/new{n}"));
        }
        let cache = kit.worker.local::<ContentCache>();
        let is_cached = |name: String| {
            let inner = cache.inner.borrow();
            let mut entries = inner.places.iter().flatten();
            entries.any(|entry| *entry.path == *name.as_bytes())
        };
        assert!((0..MAX_FILES / 2).all(|n| is_cached(format!("/{n}"))));
        assert!((0..MAX_FILES / 2).all(|n| is_cached(format!("/new{n}"))));
        let now = kit.worker.clock.now();
        std::fs::write(root.path().join("small"), "small").unwrap();
        kit.head("/small");
        cache.inner.borrow_mut().sweep(now + IDLE_FILE / 2);
        assert_eq!(check(&kit)[2], MAX_FILES);
        cache.inner.borrow_mut().sweep(now + 3 * IDLE_FILE);
        let [entries, _, files] = check(&kit);
        assert_eq!((entries, files), (1, 0));
        cache.inner.borrow_mut().sweep(now + 3 * IDLE);
        assert_eq!(check(&kit), [0, 0, 0]);
    }
}
