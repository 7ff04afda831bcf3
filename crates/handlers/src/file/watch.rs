//! Change notifications of the kernel (`inotify`), which save a `stat` per cached file in each turn of the event loop.
//!
//! Each worker has one descriptor and reads it once per turn of the event loop. After any event, all cache entries are
//! checked by `stat` again, whichever file the event is about. Directories are watched, which also reports changes of
//! their files; a file with a second hard link is watched itself, too. A directory is watched once a file in it is
//! requested often, if no symbolic link leads to it and everything on its path can be watched. Otherwise, or when the
//! limits of the system are reached, entries are checked by `stat`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use h2o_exchange::Clock;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::identity::FileStamp;

/// A cached file gets inotify watches of its own after it was checked by `stat` in this many turns of the event loop.
const HITS: u8 = 8;
/// Most inotify watches of a worker. The system's limit on watches is shared by all processes of a user.
const MAX_WATCHES: usize = 1024;
/// Least time between two cache entries that get inotify watches of their own, since this takes some twenty system
/// calls.
const PACE: Duration = Duration::from_millis(1);
/// After a limit on watches was reached, no watches are added for this long. Watches stay at least this long before
/// they may be dropped to make room for others.
const PAUSE: Duration = Duration::from_secs(60);
/// A cache entry whose files are watched is also checked by `stat` this often: the kernel reports neither writes
/// through `mmap`, nor writes through a hard link that was created after the watch or removed since, nor file systems
/// mounted over a directory. Longer in tests, so that they test the kernel's reports.
const RECHECK: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 10 });

/// The inotify events that every watch asks for. Symbolic links are not followed.
const ANY: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::MASK_ADD);
/// The inotify events for a file that has further hard links: it may be written through another name, which its
/// directory's events do not show.
const FILE: WatchFlags = ANY.union(WatchFlags::MODIFY);
/// The inotify events for the directories above the file's own one. Watching fails if one of them is a symbolic link.
const ABOVE: WatchFlags = ANY.union(WatchFlags::ONLYDIR);
/// The inotify events for the directory that contains the file, or would contain it; they include changes of its files.
const PARENT: WatchFlags = ABOVE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE);

/// Events after which a watched directory may no longer be at its path.
const GONE: ReadFlags = ReadFlags::MOVE_SELF
    .union(ReadFlags::DELETE_SELF)
    .union(ReadFlags::IGNORED);

/// Events after which nothing that was known from earlier events is certain.
const LOST: ReadFlags = ReadFlags::UNMOUNT.union(ReadFlags::QUEUE_OVERFLOW);

/// Types of file systems (as `statfs` reports them) that change only through this kernel: ext2 to ext4, XFS, Btrfs,
/// tmpfs, F2FS, overlayfs, ZFS.
const LOCAL: [u64; 7] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0xf2f5_2010,
    0x794c_7630,
    0x2fc1_2fc1,
];

/// The state of the watches for a cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchState {
    /// The files of the entry are not watched; they were checked in this many turns of the event loop.
    Earning(u8),
    /// The files of the entry cannot be watched.
    Refused,
    /// The files of the entry are watched. `layout` is the value of [`Watches::layout`] when they were first watched,
    /// `events` that of [`Watches::events`] when they were last checked.
    Kept { layout: u64, events: u64 },
}

/// The inotify watches of a worker.
#[derive(Default)]
pub(super) struct Watches {
    inotify: Option<OwnedFd>,
    /// The watch descriptors of the kernel, and whether each is for a directory.
    held: FxHashMap<i32, bool>,
    /// The directories that have been watched, together with all directories above them, since `layout` changed last.
    directories: FxHashSet<PathBuf>,
    /// The turn of the event loop in which events were last read.
    turn: u64,
    /// Number of inotify events read so far.
    events: u64,
    /// Number of events after which a directory may be at another path, so that names may lead to other files.
    layout: u64,
    /// When the inotify descriptor was created.
    begun: Option<Instant>,
    /// The time before which no further cache entry gets watches.
    next: Option<Instant>,
}

impl Watches {
    /// Whether a cache entry needs no check by `stat`: its files are watched, no event has occurred since its last
    /// check, and `checked`, the time of that check, is less than [`RECHECK`] ago.
    #[inline]
    pub(super) fn has_no_event_since(
        &mut self,
        watch: WatchState,
        checked: Instant,
        clock: &Clock,
    ) -> bool {
        let WatchState::Kept { layout, events } = watch else {
            return false;
        };
        if self.turn != clock.turn() {
            self.turn = clock.turn();
            self.read();
        }
        let is_recent = clock.now().saturating_duration_since(checked) < RECHECK;
        is_recent && layout == self.layout && events == self.events
    }

    /// The new state of a cache entry whose state was `watch`, after [`Watches::has_no_event_since`] returned false and
    /// the entry was checked by `stat` in this turn of the event loop.
    pub(super) fn after_check(
        &mut self,
        watch: WatchState,
        stamps: &[FileStamp],
        now: Instant,
    ) -> WatchState {
        match watch {
            WatchState::Kept { layout, .. } if layout == self.layout => self.kept(),
            WatchState::Kept { .. } => WatchState::Earning(0),
            // When an entry is checked for the first time, its directory may already be watched for another entry. Then
            // the entry counts as watched without a new watch.
            WatchState::Earning(0) => self.watch(stamps, now, false),
            WatchState::Earning(hits) if hits < HITS => WatchState::Earning(hits + 1),
            WatchState::Earning(_) => self.watch(stamps, now, true),
            WatchState::Refused => watch,
        }
    }

    fn kept(&self) -> WatchState {
        WatchState::Kept {
            layout: self.layout,
            events: self.events,
        }
    }

    /// Reads events. If the buffer is full, the rest is read in the next turn of the event loop.
    fn read(&mut self) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify.as_fd(), &mut buffer);
        loop {
            let (number, what) = match reader.next() {
                Ok(event) => (event.wd(), event.events()),
                Err(Errno::AGAIN) => return,
                Err(_) => (-1, LOST),
            };
            self.events += 1;
            let is_directory = self.held.get(&number).copied().unwrap_or(false);
            if what.intersects(LOST) || is_directory && what.intersects(GONE) {
                self.layout += 1;
                self.directories.clear();
            }
            if what.contains(ReadFlags::IGNORED) {
                self.held.remove(&number);
            }
            if reader.is_buffer_empty() {
                return;
            }
        }
    }

    /// Watches the files of a cache entry. `is_worth_it`: whether watches may be added for it.
    #[cold]
    fn watch(&mut self, stamps: &[FileStamp], now: Instant, is_worth_it: bool) -> WatchState {
        let Ok(paths) = absolute_paths(stamps) else {
            return WatchState::Refused;
        };
        let known = |(stamp, path): (&FileStamp, &PathBuf)| {
            let parent = path.parent();
            !stamp.has_more_links() && parent.is_some_and(|it| self.directories.contains(it))
        };
        if !stamps.iter().zip(&paths).all(known) {
            if !is_worth_it {
                return WatchState::Earning(1);
            }
            if self.next.is_some_and(|next| now < next) {
                return WatchState::Earning(HITS);
            }
            self.next = Some(now + PACE);
            match self.add_all(stamps, &paths, now) {
                Ok(()) => {}
                Err(Errno::NOSPC | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
                    self.next = Some(now + PAUSE);
                    return WatchState::Earning(HITS);
                }
                Err(_) => return WatchState::Refused,
            }
        }
        // The files are checked after the watches were added, so that no change is missed. Both spellings of the path
        // are checked: the one that is watched and the one that requests use.
        let is_unchanged = |(stamp, path): (&FileStamp, &PathBuf)| {
            stamp.is_unchanged()
                && stamp.is_unchanged_without_link(path)
                && (!stamp.is_present() || is_local(path) == Ok(true))
        };
        if stamps.iter().zip(&paths).all(is_unchanged) {
            self.kept()
        } else {
            WatchState::Refused
        }
    }

    /// Adds watches for all files at `paths`, which are the absolute paths of the stamps.
    fn add_all(
        &mut self,
        stamps: &[FileStamp],
        paths: &[PathBuf],
        now: Instant,
    ) -> Result<(), Errno> {
        if self.held.len() >= MAX_WATCHES {
            if self.begun.is_some_and(|begun| now < begun + PAUSE) {
                return Err(Errno::NOSPC);
            }
            // At the limit all watches are dropped, because many of them may be for cache entries that were removed
            // long ago.
            self.inotify = None;
            self.held.clear();
            self.layout += 1;
            self.directories.clear();
        }
        for (stamp, path) in stamps.iter().zip(paths) {
            let parent = path.parent().ok_or(Errno::ISDIR)?;
            if !self.directories.contains(parent) {
                self.add_directory(parent, now)?;
                self.directories.insert(parent.to_owned());
            }
            if stamp.has_more_links() {
                self.add(path, FILE, now)?;
            }
        }
        Ok(())
    }

    /// Adds watches for a directory and all directories above it, from the root downwards: a watched directory is then
    /// certainly at its path, or an event reports that it was moved.
    fn add_directory(&mut self, parent: &Path, now: Instant) -> Result<(), Errno> {
        if parent.components().any(|part| part == Component::ParentDir) {
            return Err(Errno::LOOP);
        }
        let above: Vec<_> = parent.ancestors().skip(1).collect();
        for directory in above.into_iter().rev() {
            self.add(directory, ABOVE, now)?;
        }
        self.add(parent, PARENT, now)
    }

    fn add(&mut self, path: &Path, flags: WatchFlags, now: Instant) -> Result<(), Errno> {
        if !is_local(path)? {
            return Err(Errno::OPNOTSUPP);
        }
        let inotify = match &mut self.inotify {
            Some(inotify) => inotify,
            none => {
                self.begun = Some(now);
                none.insert(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?)
            }
        };
        let is_directory = flags.contains(WatchFlags::ONLYDIR);
        let number = inotify::add_watch(inotify, path, flags)?;
        self.held.insert(number, is_directory);
        Ok(())
    }
}

fn absolute_paths(stamps: &[FileStamp]) -> std::io::Result<Vec<PathBuf>> {
    let absolute = |stamp: &FileStamp| {
        let path = std::ffi::OsStr::from_bytes(stamp.path().to_bytes());
        std::path::absolute(path)
    };
    stamps.iter().map(absolute).collect()
}

#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "the type of the field differs between architectures"
)]
fn is_local(path: &Path) -> Result<bool, Errno> {
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| LOCAL.contains(&kind)))
}
