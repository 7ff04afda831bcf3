//! The directory with the compressed forms, and what is to be made.

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use h2o_exchange::Resource;
use h2o_log::reason;
use nix::unistd::{User, geteuid};

use super::{WantedVariant, shown};
use crate::coding::Coding;
use crate::compress::Method;
use crate::file::identity::FileIdentity;

/// The user that a server started by root switches to if the configuration has no `user`.
const DEFAULT_USER: &str = "nobody";
/// Most files that wait to be compressed.
const MAX_QUEUED: usize = 1024;
/// Most uses of forms that are noted between two passes of the thread.
const MAX_USED: usize = 1024;
/// The suffix of forms that are being made.
const UNFINISHED: &str = ".part";
/// Forms that were begun earlier than this are those of a process that has ended.
const ABANDONED: Duration = Duration::from_secs(600);
/// What a file occupies at least.
const BLOCK: u64 = 4096;

/// The name of a form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::file) struct Variant(CString);

impl Variant {
    /// Its path.
    pub(in crate::file) fn path(&self) -> &CStr {
        &self.0
    }

    pub(super) fn file(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.to_bytes()))
    }

    /// The path of the form while it is made.
    pub(super) fn unfinished(&self) -> PathBuf {
        let mut path = self.file().as_os_str().to_owned();
        path.push(UNFINISHED);
        path.into()
    }
}

/// The compressed forms of files.
pub(in crate::file) struct VariantStore {
    directory: PathBuf,
    /// Most bytes of all forms together.
    size: u64,
    /// `user` of the server.
    running_user: Option<Arc<str>>,
    queue: Mutex<Queue>,
    /// Wakes the thread.
    changed: Condvar,
}

/// What the thread has to do.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) wanted: VecDeque<WantedVariant>,
    /// Those in `wanted`, and the one that is being made.
    pub(super) known: HashSet<Variant>,
    /// Forms that were sent.
    pub(super) used: Vec<Variant>,
    /// Whether nothing is taken in, because the disk is full.
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

    /// The form of a file with this path and identity.
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
        // No file name of the configuration contains NUL.
        Variant(CString::new(path).unwrap_or_default())
    }

    /// Has the thread make a form, unless it is about to.
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

    /// Notes that a form is sent, so that it is not removed soon.
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

    /// Waits until there is something to do, at most for `limit`.
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

    /// Removes what was left unfinished, and, if the forms take more room than they may, those that were used least recently.
    /// Returns the bytes of those that stay.
    pub(super) fn clean(&self) -> io::Result<u64> {
        let mut forms = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let Ok(found) = entry.metadata() else {
                // Another process has removed it.
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

    /// Most bytes of all forms together.
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
        let user = self.running_user.as_deref().unwrap_or(DEFAULT_USER);
        let user = geteuid()
            .is_root()
            .then(|| User::from_name(user).ok().flatten())
            .flatten();
        let owner = user.map_or_else(geteuid, |user| user.uid);
        if is_new && owner != geteuid() {
            nix::unistd::chown(directory, Some(owner), None)
                .map_err(|error| failed("change the owner of", &error.into()))?;
        }
        let found = fs::metadata(directory).map_err(|error| failed("look at", &error))?;
        if !found.is_dir() {
            return Err(format!(
                "compress.cache: {} is not a directory",
                shown(directory)
            ));
        }
        let is_ours = found.uid() == owner.as_raw() || found.uid() == 0;
        if !is_ours || found.mode() & 0o022 != 0 {
            return Err(format!(
                "compress.cache: others than the server's user can write to {}, and so replace what the server sends; use a \
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
}

/// The room that a form of this length takes.
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
