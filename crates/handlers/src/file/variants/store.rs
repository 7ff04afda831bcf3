//! The directory with the compressed forms of files, and the queue of the forms that are to be made.

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use h2o_exchange::Resource;
use h2o_log::reason;
use nix::unistd::{Uid, User, geteuid};

use super::{WantedVariant, shown};
use crate::coding::Coding;
use crate::compress::Method;
use crate::file::identity::FileIdentity;

/// The user that a server started by root switches to if the configuration has no `user`.
const DEFAULT_USER: &str = "nobody";
/// Largest number of files that wait to be compressed; while so many wait, no other file is added.
const MAX_QUEUED: usize = 1024;
/// Largest number of uses of compressed forms that are noted until the thread takes the notes.
const MAX_USED: usize = 1024;
/// The suffix of the names of compressed forms that are being made.
const UNFINISHED: &str = ".part";
/// If the unfinished file of a compressed form has not been written to for this long, it is taken for one that a
/// process has left behind.
const ABANDONED: Duration = Duration::from_secs(600);
/// Number of bytes that a file occupies on the disk at least.
const BLOCK: u64 = 4096;

/// The path of a compressed form, which identifies the form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::file) struct Variant(CString);

impl Variant {
    pub(in crate::file) fn path(&self) -> &CStr {
        &self.0
    }

    pub(super) fn file(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.to_bytes()))
    }

    /// The path of the file of a compressed form while the form is being made.
    pub(super) fn unfinished(&self) -> PathBuf {
        let mut path = self.file().as_os_str().to_owned();
        path.push(UNFINISHED);
        path.into()
    }
}

/// The directory in which `compress.cache` keeps the compressed forms of files, and what the compressing thread has to do there.
pub(in crate::file) struct VariantStore {
    directory: PathBuf,
    /// Largest number of bytes that all compressed forms together may occupy.
    size: u64,
    /// The value of the directive `user`: the user that the server runs as.
    running_user: Option<Arc<str>>,
    queue: Mutex<Queue>,
    /// Wakes the compressing thread when `queue` has changed.
    changed: Condvar,
}

/// What the compressing thread has to do.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) wanted: VecDeque<WantedVariant>,
    /// The compressed forms in `wanted`, and the one that is being made.
    pub(super) known: HashSet<Variant>,
    /// Compressed forms that were sent to clients, and whose time of use the thread has not updated yet.
    pub(super) used: Vec<Variant>,
    /// Whether no compressed forms are added to `wanted` for a while, because the disk is full or another error occurred.
    pub(super) is_paused: bool,
    pub(super) is_stopped: bool,
}

impl VariantStore {
    pub(super) fn new(directory: Box<[u8]>, size: u64, running_user: Option<Arc<str>>) -> Self {
        Self {
            directory: Path::new(OsStr::from_bytes(&directory)).into(),
            size,
            running_user,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.directory == other.directory
            && self.size == other.size
            && self.running_user == other.running_user
    }

    /// Returns the compressed form of a file with this path and identity, made with the coding and level of `method`.
    pub(super) fn variant(
        &self,
        source: &CStr,
        identity: &FileIdentity,
        method: Method,
    ) -> Variant {
        let mut context = digest::Context::new(&digest::SHA256);
        for number in identity.numbers() {
            context.update(&number.to_le_bytes());
        }
        context.update(&[method.level]);
        context.update(source.to_bytes());
        let hash = context.finish();
        let mut path = self.directory.as_os_str().as_bytes().to_vec();
        path.push(b'/');
        for byte in &hash.as_ref()[..16] {
            for digit in [byte >> 4, byte & 15] {
                path.push(b"0123456789abcdef"[usize::from(digit)]);
            }
        }
        path.extend_from_slice(suffix(method.coding).as_bytes());
        // The path contains no NUL, because no file name of the configuration does.
        Variant(CString::new(path).unwrap_or_default())
    }

    /// Asks the thread to make a compressed form, unless the form is queued already or the queue takes none.
    pub(in crate::file) fn want(&self, wanted: WantedVariant) {
        let mut queue = self.queue();
        if queue.is_paused
            || queue.is_stopped
            || queue.wanted.len() >= MAX_QUEUED
            || !queue.known.insert(wanted.variant.clone())
        {
            return;
        }
        queue.wanted.push_back(wanted);
        self.changed.notify_one();
    }

    /// Notes that a compressed form is sent to a client, so that the form is not removed soon.
    pub(in crate::file) fn note_used(&self, variant: Variant) {
        let mut queue = self.queue();
        if queue.used.len() < MAX_USED {
            queue.used.push(variant);
            self.changed.notify_one();
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has something to do, for at most `limit`. Returns the locked queue.
    pub(super) fn wait(&self, limit: Duration) -> MutexGuard<'_, Queue> {
        let is_idle = |queue: &mut Queue| {
            queue.wanted.is_empty() && queue.used.is_empty() && !queue.is_stopped
        };
        let waited = self
            .changed
            .wait_timeout_while(self.queue(), limit, is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn stop(&self) {
        self.queue().is_stopped = true;
        self.changed.notify_one();
    }

    /// Removes unfinished compressed forms that processes have left and, if the forms occupy more room than they may, those that were
    /// used least recently. Returns the number of bytes that the remaining forms occupy.
    pub(super) fn clean(&self) -> io::Result<u64> {
        let mut forms = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let Ok(found) = entry.metadata() else {
                // Another process has removed the file meanwhile.
                continue;
            };
            let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if name.ends_with(UNFINISHED) {
                if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
            } else if found.is_file() && [".br", ".zst", ".gz"].iter().any(|it| name.ends_with(it))
            {
                forms.push((used, room(found.len()), entry.path()));
            }
        }
        let mut total: u64 = forms.iter().map(|(_, room, _)| room).sum();
        if total > self.size {
            forms.sort_unstable();
            for (_, room, path) in forms {
                if total <= self.size / 10 * 9 {
                    break;
                }
                match fs::remove_file(path) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                total -= room;
            }
        }
        Ok(total)
    }

    /// Largest number of bytes that all compressed forms together may occupy.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn prepare(&self) -> Result<(), String> {
        let directory = &self.directory;
        let failed = |what: &str, error: &io::Error| {
            format!("failed to {what} {}: {}", shown(directory), reason(error))
        };
        let is_new = match DirBuilder::new().mode(0o700).create(directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("make the directory of compress.cache", &error)),
        };
        let owner = self.owner();
        if is_new && owner != geteuid() {
            nix::unistd::chown(directory, Some(owner), None)
                .map_err(|error| failed("change the owner of", &error.into()))?;
        }
        let found =
            fs::metadata(directory).map_err(|error| failed("read the attributes of", &error))?;
        self.check_existing(&found)
            .map_err(|problem| format!("compress.cache: {problem}"))
    }

    /// The user that owns the directory if the server has made it.
    fn owner(&self) -> Uid {
        let user = self.running_user.as_deref().unwrap_or(DEFAULT_USER);
        let user = geteuid()
            .is_root()
            .then(|| User::from_name(user).ok().flatten())
            .flatten();
        user.map_or_else(geteuid, |user| user.uid)
    }

    /// Checks that what is at the path is a directory to which nobody but the server's user can write.
    fn check_existing(&self, found: &Metadata) -> Result<(), String> {
        let directory = &self.directory;
        if !found.is_dir() {
            return Err(format!("{} is not a directory", shown(directory)));
        }
        let is_ours = found.uid() == self.owner().as_raw() || found.uid() == 0;
        if !is_ours || found.mode() & 0o022 != 0 {
            return Err(format!(
                "others than the server's user can write to {}, and so replace what the server sends; use a \
                 directory of its own with mode 0700",
                shown(directory)
            ));
        }
        Ok(())
    }
}

impl Resource for VariantStore {
    fn open(&self) -> Result<(), String> {
        self.prepare()
    }

    fn check(&self) -> Option<(String, &'static str)> {
        let directory = &self.directory;
        let parent = directory.parent().filter(|it| !it.as_os_str().is_empty());
        let message = match fs::metadata(directory) {
            Ok(found) => self.check_existing(&found).err()?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                format!("{}: {}", shown(directory), reason(&error))
            }
            Err(_) => {
                let parent = parent.filter(|parent| !parent.is_dir())?;
                format!("there is no directory {}", shown(parent))
            }
        };
        Some((message, "the server does not start with it"))
    }
}

/// Number of bytes that a compressed form of this length occupies on the disk.
pub(super) fn room(len: u64) -> u64 {
    len.max(1).next_multiple_of(BLOCK)
}

const fn suffix(coding: Coding) -> &'static str {
    match coding {
        Coding::Brotli => ".br",
        Coding::Zstd => ".zst",
        Coding::Gzip => ".gz",
    }
}
