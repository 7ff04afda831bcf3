//! Change notifications of the kernel (`inotify`), which save a `stat` per file and turn.
//!
//! Each worker has one descriptor and reads it once per turn of the event loop. Any event makes all entries be checked by
//! `stat` again, whichever file it is about. Directories are watched, which also reports changes of their files; a file
//! with other names is watched itself, too. A directory is watched once a file in it is requested often, if no symbolic
//! link leads to it and everything on its path can be watched. Otherwise, or when the limits of the system are reached,
//! entries are checked by `stat`.

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
/// Most watches of a worker. The system's limit is shared by all processes of a user.
const MAX_WATCHES: usize = 1024;
/// Least time between two entries that get watches of their own, which takes some twenty system calls.
const PACE: Duration = Duration::from_millis(1);
/// How long to wait after a limit was reached, and how long watches stay before others may replace them.
const PAUSE: Duration = Duration::from_secs(60);
/// A watched entry is checked by `stat` this often, too: the kernel does not report writes through `mmap`, through a name
/// that is newer or gone, and file systems mounted over a directory. Longer in tests, which test the reports.
const RECHECK: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 10 });

/// Events for every watch. Symbolic links are not followed.
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

/// Events after which a watched directory may no longer be on its path.
const GONE: ReadFlags = ReadFlags::MOVE_SELF
    .union(ReadFlags::DELETE_SELF)
    .union(ReadFlags::IGNORED);

/// Events that make all earlier knowledge invalid.
const LOST: ReadFlags = ReadFlags::UNMOUNT.union(ReadFlags::QUEUE_OVERFLOW);

/// File systems (`statfs`) that change only through this kernel: ext2 to ext4, XFS, Btrfs, tmpfs, F2FS, overlayfs, ZFS.
const LOCAL: [u64; 7] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0xf2f5_2010,
    0x794c_7630,
    0x2fc1_2fc1,
];

/// State of an entry's watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchState {
    /// Not watched; checked in this many turns.
    Earning(u8),
    /// Cannot be watched.
    Refused,
    /// Watched since [`Watches::layout`], last checked at [`Watches::events`].
    Kept { layout: u64, events: u64 },
}

/// The watches of a worker.
#[derive(Default)]
pub(super) struct Watches {
    inotify: Option<OwnedFd>,
    /// The kernel's watch descriptors, and whether each is for a directory.
    held: FxHashMap<i32, bool>,
    /// The directories that are watched together with all above them, in this layout.
    directories: FxHashSet<PathBuf>,
    /// The turn in which events were last read.
    turn: u64,
    /// Number of events so far.
    events: u64,
    /// Number of events by which a directory may have gone, so that names may lead elsewhere.
    layout: u64,
    /// When the descriptor was made.
    begun: Option<Instant>,
    /// The time before which no further entry gets watches.
    next: Option<Instant>,
}

impl Watches {
    /// Whether no event has occurred since the entry was checked at `checked`.
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

    /// The state after a check in a turn, which follows [`Watches::has_no_event_since`], for an entry in the state `watch`.
    pub(super) fn after_check(
        &mut self,
        watch: WatchState,
        stamps: &[FileStamp],
        now: Instant,
    ) -> WatchState {
        match watch {
            WatchState::Kept { layout, .. } if layout == self.layout => self.kept(),
            WatchState::Kept { .. } => WatchState::Earning(0),
            // On the first check its directory may be watched already.
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

    /// Reads events. The rest, if the buffer is full, is read in the next turn.
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

    /// Watches an entry. `is_worth_it`: whether watches may be added for it.
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
        // Checked after the watches were added, so that no change is missed between. Both spellings of the path are
        // checked: the watched one and the used one.
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

    /// Watches all files at `paths`, which belong to the stamps.
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
            // Many watches may be for entries that were removed long ago.
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

    /// From the root downwards: a watched directory is then certainly on the path, or an event reports that it has gone.
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
