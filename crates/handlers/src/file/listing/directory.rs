//! The names in a directory, in order, in bounded memory.

use std::collections::BinaryHeap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::vec;

use rustix::fs::{AtFlags, Dir, FileType, Stat};

/// What a name costs beside its octets.
const OVERHEAD: usize = 48;

/// The names in a directory except `.` and `..`, sorted by octets.
///
/// As many names as the budget allows are held at a time. A directory with more is read again for each further
/// lot, which then begins behind the last name of the lot before.
pub(super) struct Names {
    directory: OwnedFd,
    budget: usize,
    lot: vec::IntoIter<CString>,
    last: Option<CString>,
    /// True unless the lot reaches to the end.
    more: bool,
}

/// What a listing shows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) is_directory: bool,
    pub(super) size: u64,
    /// Seconds since the Unix epoch.
    pub(super) modified: i64,
}

impl Names {
    pub(super) fn new(directory: OwnedFd, budget: usize) -> Self {
        Self {
            directory,
            budget,
            lot: Vec::new().into_iter(),
            last: None,
            more: true,
        }
    }

    /// The next name.
    pub(super) fn next(&mut self) -> io::Result<Option<CString>> {
        if self.lot.len() == 0 && self.more {
            self.read_lot()?;
        }
        let name = self.lot.next();
        if self.lot.len() == 0 && self.more {
            self.last.clone_from(&name);
        }
        Ok(name)
    }

    fn read_lot(&mut self) -> io::Result<()> {
        let mut heap = BinaryHeap::new();
        let mut held = 0;
        self.more = false;
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_behind = self.last.as_deref().is_none_or(|last| name > last);
            let is_beyond = self.more && heap.peek().is_some_and(|max: &CString| name > &**max);
            if name == c"." || name == c".." || !is_behind || is_beyond {
                continue;
            }
            held += cost(name);
            heap.push(name.to_owned());
            while held > self.budget && heap.len() > 1 {
                held -= heap.pop().map_or(0, |name| cost(&name));
                self.more = true;
            }
        }
        self.lot = heap.into_sorted_vec().into_iter();
        Ok(())
    }

    /// What the name refers to, symbolic links followed where they lead somewhere. `None` if it is gone.
    pub(super) fn look_at(&self, name: &CStr) -> Option<Facts> {
        let stat = |flags| rustix::fs::statat(&self.directory, name, flags);
        let stat = stat(AtFlags::empty()).or_else(|_| stat(AtFlags::SYMLINK_NOFOLLOW));
        stat.ok().as_ref().map(Facts::new)
    }
}

fn cost(name: &CStr) -> usize {
    name.count_bytes() + OVERHEAD
}

impl Facts {
    #[allow(
        clippy::useless_conversion,
        reason = "field types of `stat` differ between architectures"
    )]
    fn new(stat: &Stat) -> Self {
        Self {
            is_directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
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
        want.push(".hidden".into());
        for name in &want {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        want.sort_unstable();
        for budget in [0, 1, 200, 1000, 10_000, 1_000_000] {
            let opened = std::fs::File::open(directory.path()).unwrap();
            let mut names = Names::new(opened.into(), budget);
            let mut found = Vec::new();
            while let Some(name) = names.next().unwrap() {
                assert_eq!(
                    names.look_at(&name).unwrap().size,
                    name.count_bytes() as u64
                );
                assert!(names.lot.len() <= budget / OVERHEAD);
                found.push(name.into_string().unwrap());
            }
            assert_eq!(found, want, "{budget}");
        }
    }
}
