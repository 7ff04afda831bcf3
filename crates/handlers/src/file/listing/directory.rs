//! The names in a directory, in the order of a listing. They are sorted in bounded memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::vec;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Stat};

use super::super::hide::Hidden;
use super::order;

/// Bytes of memory that a name takes in addition to its text.
const OVERHEAD: usize = 48;

/// The names in a directory except `.`, `..` and hidden ones. Directories come first, then files, each sorted by
/// [`order::compare`].
///
/// A batch of as many names as fit in the budget of memory is held at a time. A directory with more names is read again
/// for each batch, which begins after the last name of the batch before.
pub(super) struct Names {
    directory: OwnedFd,
    hidden: Hidden,
    budget: usize,
    lot: vec::IntoIter<SortedName>,
    last: Option<SortedName>,
    /// Whether the directory has names after this batch.
    more: bool,
}

/// A name in a directory, ordered by its place in the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SortedName {
    is_directory: bool,
    name: CString,
}

impl Ord for SortedName {
    fn cmp(&self, other: &Self) -> Ordering {
        let directories_first = other.is_directory.cmp(&self.is_directory);
        directories_first.then_with(|| order::compare(self.name.to_bytes(), other.name.to_bytes()))
    }
}

impl PartialOrd for SortedName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The properties of a file that a listing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileFacts {
    pub(super) kind: FileKind,
    pub(super) size: u64,
    /// The modification time in seconds since the Unix epoch.
    pub(super) modified: i64,
}

/// The type of a file, as a listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Directory,
    File,
    /// A symbolic link whose target does not exist.
    BrokenLink,
}

impl Names {
    pub(super) fn new(directory: OwnedFd, hidden: Hidden, budget: usize) -> Self {
        Self {
            directory,
            hidden,
            budget,
            lot: Vec::new().into_iter(),
            last: None,
            more: true,
        }
    }

    /// The next name of the listing; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<CString>> {
        if self.lot.len() == 0 && self.more {
            self.read_lot()?;
        }
        let entry = self.lot.next();
        if self.lot.len() == 0 && self.more {
            self.last.clone_from(&entry);
        }
        Ok(entry.map(|entry| entry.name))
    }

    fn read_lot(&mut self) -> io::Result<()> {
        let mut heap = BinaryHeap::new();
        let mut held = 0;
        self.more = false;
        for found in Dir::read_from(&self.directory)? {
            let found = found?;
            let name = found.file_name();
            if name == c"." || name == c".." || self.hidden.hides(name.to_bytes()) {
                continue;
            }
            let entry = SortedName {
                is_directory: self.is_directory(&found),
                name: name.to_owned(),
            };
            let is_behind = self.last.as_ref().is_none_or(|last| entry > *last);
            let is_beyond = self.more && heap.peek().is_some_and(|max| entry > *max);
            if !is_behind || is_beyond {
                continue;
            }
            held += cost(&entry);
            heap.push(entry);
            while held > self.budget && heap.len() > 1 {
                held -= heap.pop().map_or(0, |entry| cost(&entry));
                self.more = true;
            }
        }
        self.lot = heap.into_sorted_vec().into_iter();
        Ok(())
    }

    /// The properties of the file `name`. For a symbolic link they are those of its target, if it has one. `None` if
    /// the file is gone.
    pub(super) fn facts_of(&self, name: &CStr) -> Option<FileFacts> {
        let stat = |flags| rustix::fs::statat(&self.directory, name, flags);
        match stat(AtFlags::empty()) {
            Ok(stat) => Some(FileFacts::new(&stat)),
            Err(_) => {
                let facts = FileFacts::new(&stat(AtFlags::SYMLINK_NOFOLLOW).ok()?);
                let kind = FileKind::BrokenLink;
                Some(FileFacts { kind, ..facts })
            }
        }
    }

    fn is_directory(&self, entry: &DirEntry) -> bool {
        match entry.file_type() {
            FileType::Directory => true,
            // Looks the type of a symbolic link's target up, or the type of a file on a file system that does not
            // report types.
            FileType::Symlink | FileType::Unknown => self
                .facts_of(entry.file_name())
                .is_some_and(|facts| facts.kind == FileKind::Directory),
            _ => false,
        }
    }
}

fn cost(entry: &SortedName) -> usize {
    entry.name.count_bytes() + OVERHEAD
}

impl FileFacts {
    #[allow(
        clippy::useless_conversion,
        reason = "field types of `stat` differ between architectures"
    )]
    fn new(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => FileKind::Directory,
            _ => FileKind::File,
        };
        Self {
            kind,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: i64::from(stat.st_mtime),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_once_and_in_order_whatever_the_budget() {
        let directory = tempfile::tempdir().unwrap();
        let mut want: Vec<_> = (0..200)
            .map(|n| format!("file {}", n * 7919 % 200))
            .collect();
        want.push(".shown".into());
        for name in want.iter().map(String::as_str).chain(["hidden 1"]) {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        want.sort_unstable_by(|one, other| order::compare(one.as_bytes(), other.as_bytes()));
        for name in ["z directory", "A directory"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            want.insert(0, name.into());
        }
        for budget in [0, 1, 200, 1000, 10_000, 1_000_000] {
            let opened = std::fs::File::open(directory.path()).unwrap();
            let mut names = Names::new(opened.into(), Hidden::of(&["hidden*"]), budget);
            let mut found = Vec::new();
            while let Some(name) = names.next().unwrap() {
                let facts = names.facts_of(&name).unwrap();
                if facts.kind == FileKind::File {
                    assert_eq!(facts.size, name.count_bytes() as u64);
                }
                assert!(names.lot.len() <= budget / OVERHEAD);
                found.push(name.into_string().unwrap());
            }
            assert_eq!(found, want, "{budget}");
        }
    }
}
