//! Detects whether a file has changed.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

/// A file that changed more recently than this may change again without a change of its mtime, because file systems
/// count time in ticks, FAT in steps of two seconds.
const MTIME_GRANULARITY: Duration = Duration::from_secs(2);

/// The properties of a file that change when its content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
    /// Whether the file has further hard links.
    has_more_links: bool,
    /// Length of the file in bytes.
    pub(super) size: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl FileIdentity {
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_fallible_conversions,
        reason = "field types of `stat` differ between architectures"
    )]
    fn new(stat: &Stat) -> Self {
        let nanoseconds = |n| u64::try_from(n).unwrap_or_default();
        Self {
            device: u64::from(stat.st_dev),
            inode: u64::from(stat.st_ino),
            has_more_links: u64::from(stat.st_nlink) > 1,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: (i64::from(stat.st_mtime), nanoseconds(stat.st_mtime_nsec)),
            changed: (i64::from(stat.st_ctime), nanoseconds(stat.st_ctime_nsec)),
        }
    }

    /// All fields of the identity as numbers, from which a hash is computed.
    pub(super) fn numbers(&self) -> [u64; 7] {
        [
            self.device,
            self.inode,
            self.size,
            self.modified.0.cast_unsigned(),
            self.modified.1,
            self.changed.0.cast_unsigned(),
            self.changed.1,
        ]
    }

    /// The modification time of the file, in seconds since the Unix epoch.
    pub(super) fn modified(&self) -> i64 {
        self.modified.0
    }

    /// Whether the file's mtime is so old that another write would change it. `now`: the wall-clock time since the Unix
    /// epoch.
    pub(super) fn mtime_is_reliable(&self, now: Duration) -> bool {
        let latest = now.saturating_sub(MTIME_GRANULARITY).as_secs();
        i64::try_from(latest).is_ok_and(|latest| self.changed.0 < latest)
    }
}

/// The type and the identity of an open file.
pub(super) fn inspect(file: impl AsFd) -> Result<(FileType, FileIdentity), Errno> {
    let stat = rustix::fs::fstat(file)?;
    Ok((
        FileType::from_raw_mode(stat.st_mode),
        FileIdentity::new(&stat),
    ))
}

/// The result of a `stat` of a path, to be compared with a later one.
#[derive(Debug)]
pub(super) struct FileStamp {
    path: CString,
    /// The identity of the file at the path; `None` if no file was there.
    found: Option<FileIdentity>,
}

impl FileStamp {
    pub(super) fn present(path: CString, identity: FileIdentity) -> Self {
        Self {
            path,
            found: Some(identity),
        }
    }

    pub(super) fn absent(path: CString) -> Self {
        Self { path, found: None }
    }

    /// Whether the path still leads to the same, unchanged file, or still to none. Costs one system call.
    pub(super) fn is_unchanged(&self) -> bool {
        self.agrees(rustix::fs::stat(self.path()))
    }

    /// Like [`FileStamp::is_unchanged`], but for `path`, another spelling of the path; false if `path` is a symbolic
    /// link.
    pub(super) fn is_unchanged_without_link(&self, path: &Path) -> bool {
        self.agrees(rustix::fs::lstat(path))
    }

    fn agrees(&self, looked: Result<Stat, Errno>) -> bool {
        match (looked, self.found) {
            (Ok(stat), Some(found)) => FileIdentity::new(&stat) == found,
            (Err(error), None) => error == Errno::NOENT,
            (Ok(_), None) | (Err(_), Some(_)) => false,
        }
    }

    /// Whether a file was at the path.
    pub(super) fn is_present(&self) -> bool {
        self.found.is_some()
    }

    /// Whether a file was at the path that has further hard links, through which it may be changed.
    pub(super) fn has_more_links(&self) -> bool {
        self.found.is_some_and(|found| found.has_more_links)
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &CStr {
        &self.path
    }
}
