//! Limits the disk space of all temporary files together.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use h2o_log::{reason, report};

use crate::descriptors::{Descriptor, Descriptors};
use crate::failure_counter::FailureCounter;

/// The directory, the limit and the number of the process's temporary files.
#[derive(Debug)]
pub struct TempFiles {
    /// The directory of `temp-buffer-path`. A disk thread reads it whenever it creates a file.
    directory: RwLock<Arc<Path>>,
    /// `temp-buffer-max-total`: most bytes that all temporary files may have together.
    limit: AtomicU64,
    used: AtomicU64,
    made: AtomicU64,
    written: AtomicU64,
    descriptors: Arc<Descriptors>,
    pub(crate) failures: FailureCounter,
    refusals: FailureCounter,
}

/// The space that one temporary file has reserved in [`TempFiles`].
#[derive(Debug)]
pub(crate) struct TempSpace {
    files: Arc<TempFiles>,
    bytes: AtomicU64,
    /// The file's descriptor in the process's count, taken when the first byte is written.
    descriptor: OnceLock<Descriptor>,
}

impl Default for TempFiles {
    fn default() -> Self {
        Self {
            directory: RwLock::new(Arc::from(Path::new("/tmp"))),
            limit: AtomicU64::new(Self::DEFAULT_LIMIT),
            used: AtomicU64::new(0),
            made: AtomicU64::new(0),
            written: AtomicU64::new(0),
            descriptors: Arc::default(),
            failures: FailureCounter::default(),
            refusals: FailureCounter::default(),
        }
    }
}

impl TempFiles {
    /// Default of `temp-buffer-max-total`, in bytes.
    pub const DEFAULT_LIMIT: u64 = 8 << 30;

    /// Allows temporary files in `directory`, with at most `limit` bytes together; 0 allows no files.
    #[must_use]
    pub fn new(directory: PathBuf, limit: u64) -> Self {
        let files = Self::default();
        files.set(&directory, limit);
        files
    }

    /// Sets `temp-buffer-path` and `temp-buffer-max-total`. Existing files stay in their directory; if all together
    /// exceed the new limit, they do not grow.
    pub fn set(&self, directory: &Path, limit: u64) {
        *(self.directory.write()).unwrap_or_else(PoisonError::into_inner) = directory.into();
        self.limit.store(limit, Relaxed);
    }

    /// The directory in which temporary files are created.
    fn directory(&self) -> Arc<Path> {
        let directory = self.directory.read();
        Arc::clone(&directory.unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on counts the temporary files among `descriptors`, whose limit then applies to them as well.
    #[must_use]
    pub fn counted(self, descriptors: &Arc<Descriptors>) -> Self {
        Self {
            descriptors: Arc::clone(descriptors),
            ..self
        }
    }

    /// Most bytes that all temporary files may have together.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Number of bytes reserved for the open temporary files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Number of temporary files created so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }

    /// Number of bytes written to temporary files so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Number of failed writes to temporary files.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.counted()
    }

    /// Number of writes to temporary files that were refused because of [`TempFiles::limit`].
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.counted()
    }

    /// Reserves `bytes` more for a temporary file. Returns false if the limit of all temporary files does not allow it.
    fn reserve(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let grown = self.used.fetch_update(Relaxed, Relaxed, |used| {
            used.checked_add(bytes).filter(|used| *used <= limit)
        });
        if grown.is_err() && limit > 0 && self.refusals.count() {
            report!(
                warning,
                "temp-buffer-max-total is reached: temporary files hold {} of {} bytes, {bytes} more do not fit; backends wait for slow clients, and request bodies that need a file get 503",
                self.used(),
                limit
            );
        }
        grown.is_ok()
    }

    fn note_failure(&self, error: &io::Error) {
        if self.failures.count() {
            report!(
                warning,
                "failed to write a temporary file in {} (temp-buffer-path): {}",
                self.directory().display(),
                reason(error)
            );
        }
    }
}

impl TempSpace {
    /// The space of a temporary file that has no bytes yet.
    pub(crate) fn new(files: &Arc<TempFiles>) -> Self {
        Self {
            files: Arc::clone(files),
            bytes: AtomicU64::new(0),
            descriptor: OnceLock::new(),
        }
    }

    /// The directory in which the temporary file is created.
    pub(crate) fn directory(&self) -> Arc<Path> {
        self.files.directory()
    }

    /// Counts a temporary file that was created.
    pub(crate) fn note_created(&self) {
        self.files.made.fetch_add(1, Relaxed);
    }

    /// Counts bytes that were written to the temporary file.
    pub(crate) fn note_written(&self, bytes: usize) {
        self.files.written.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a failure to write a temporary file; the error log gets a line about some of them.
    pub(crate) fn note_failure(&self, error: &io::Error) {
        self.files.note_failure(error);
    }

    /// Reserves space so that a temporary file can have `bytes` bytes. Returns false if the limit of all files does not
    /// allow it.
    pub(crate) fn grow_to(&self, bytes: u64) -> bool {
        let had = self.bytes.load(Relaxed);
        if bytes <= had {
            return true;
        }
        let has_descriptor = self.descriptor.get().is_some()
            || (self.files.limit() > 0)
                .then(|| self.files.descriptors.open())
                .flatten()
                .is_some_and(|descriptor| self.descriptor.set(descriptor).is_ok());
        let has_room = has_descriptor && self.files.reserve(bytes - had);
        if has_room {
            self.bytes.store(bytes, Relaxed);
        }
        has_room
    }
}

impl Drop for TempSpace {
    fn drop(&mut self) {
        self.files.used.fetch_sub(*self.bytes.get_mut(), Relaxed);
    }
}
