//! Files named in the configuration that may change while the server runs: the disk threads read them, and check them
//! for changes after a second.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the server relies on the content that it has read of a file without checking the file.
const RECHECK: Duration = Duration::from_secs(1);
/// Longest file that is read, in bytes.
const MAX_LEN: u64 = 4 << 20;

/// A file that may change, with the value that was made of its content. The workers share it.
pub(crate) struct WatchedFile<T> {
    path: PathBuf,
    parse: fn(Vec<u8>) -> T,
    known: Mutex<Known<T>>,
}

/// The value made of the file's content, or the reason why the file could not be read.
pub(crate) type Loaded<T> = Result<Arc<T>, Arc<io::Error>>;

struct Known<T> {
    content: Option<(Stamp, Loaded<T>)>,
    checked: Option<Instant>,
}

/// Properties of a file that change with its content, such as its size and times; `None` for a file that cannot be
/// examined.
type Stamp = Option<[i64; 6]>;

impl<T: Send + Sync> WatchedFile<T> {
    pub(crate) fn new(path: &Path, parse: fn(Vec<u8>) -> T) -> Self {
        Self {
            path: path.into(),
            parse,
            known: Mutex::new(Known {
                content: None,
                checked: None,
            }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The value made of the content, if the file was checked within the last second.
    pub(crate) fn fresh(&self, now: Instant) -> Option<Loaded<T>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = known
            .checked
            .is_some_and(|at| now.saturating_duration_since(at) < RECHECK);
        let (_, content) = known.content.as_ref().filter(|_| is_fresh)?;
        Some(content.clone())
    }

    /// The value made of the content that was read last.
    pub(crate) fn latest(&self) -> Option<Loaded<T>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, content) = known.content.as_ref()?;
        Some(content.clone())
    }

    /// Checks the file, reads it if it has changed, and returns the value made of its content. Only for threads that
    /// may wait for the disk.
    pub(crate) fn look(&self, now: Instant) -> Loaded<T> {
        let found = std::fs::metadata(&self.path);
        let stamp = found.as_ref().ok().map(stamp);
        {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((known_stamp, content)) = &known.content
                && stamp.is_some()
                && *known_stamp == stamp
            {
                let content = content.clone();
                known.checked = Some(now);
                return content;
            }
        }
        let read = found.and_then(|_| self.read());
        let content = read
            .map(|bytes| Arc::new((self.parse)(bytes)))
            .map_err(Arc::new);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.content = Some((stamp, content.clone()));
        known.checked = Some(now);
        content
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let file = File::open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("the file is not a regular file"));
        }
        let mut content = Vec::new();
        file.take(MAX_LEN + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_LEN {
            return Err(io::Error::other("the file is longer than 4 MiB"));
        }
        Ok(content)
    }
}

fn stamp(found: &Metadata) -> [i64; 6] {
    [
        found.ino().cast_signed(),
        found.size().cast_signed(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_seen_and_an_unchanged_file_is_not_read_again() {
        let now = h2o_exchange::Clock::default().now();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let file = WatchedFile::new(&path, |bytes| bytes);
        assert!(file.fresh(now).is_none());
        assert_eq!(file.look(now).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(file.fresh(now).unwrap().is_err());
        std::fs::write(&path, "one").unwrap();
        let first = file.look(now).unwrap();
        assert_eq!(*first, b"one");
        assert!(Arc::ptr_eq(&first, &file.look(now).unwrap()));
        assert!(Arc::ptr_eq(&first, &file.fresh(now).unwrap().unwrap()));
        std::fs::write(&path, "other").unwrap();
        assert_eq!(*file.look(now).unwrap(), b"other");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(file.look(now).is_err());
    }
}
