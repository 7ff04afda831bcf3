//! The configuration of one `file.dir` or `file.file`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use h2o_exchange::Scope;
use h2o_http::mime::{MimeEntry, MimeMap};
use h2o_log::LineLimit;

use super::custom::CustomHandler;
use super::settings::FileSettings;

/// One `file.dir` or `file.file` with the final settings of its path.
pub(super) struct Service {
    /// Distinguishes services in the cache of a worker.
    pub(super) id: u64,
    pub(super) target: ServiceTarget,
    pub(super) settings: Arc<FileSettings>,
    /// Limits log lines on files that cannot be opened and on a missing directory.
    pub(super) failures: LineLimit,
    mime: Arc<MimeMap>,
    /// Length of the path's key.
    key_len: usize,
}

/// The source of the files.
pub(super) enum ServiceTarget {
    /// `file.dir`: the directory, with a trailing slash.
    Directory(Box<[u8]>),
    /// `file.file`: always this file.
    File {
        path: Box<[u8]>,
        /// The entry for the configured name.
        kind: MimeEntry,
    },
}

impl Service {
    /// A service for a directory.
    pub(super) fn directory(scope: &Scope, directory: &[u8]) -> Self {
        let mut root = directory.to_vec();
        if !root.ends_with(b"/") {
            root.push(b'/');
        }
        Self::new(scope, |_| ServiceTarget::Directory(root.into()))
    }

    /// A service for a single file.
    pub(super) fn file(scope: &Scope, path: &[u8]) -> Self {
        Self::new(scope, |mime| ServiceTarget::File {
            path: path.into(),
            kind: mime.of_file(path).clone(),
        })
    }

    fn new(scope: &Scope, target: impl FnOnce(&MimeMap) -> ServiceTarget) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mime = scope.settings.get::<MimeMap>();
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            target: target(&mime),
            settings: scope.settings.get(),
            failures: LineLimit::per_minute(5),
            mime,
            key_len: scope.path.as_deref().map_or(0, str::len),
        }
    }

    /// The part of a normalised path that decides about the response: the key in the cache.
    pub(super) fn cache_path<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        match &self.target {
            ServiceTarget::Directory(_) => path,
            ServiceTarget::File { .. } => b"",
        }
    }

    /// The part of a normalised path after the path's key.
    pub(super) fn rest<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        path.get(self.key_len..).unwrap_or_default()
    }

    /// The entry of the MIME map for a name.
    pub(super) fn kind_of(&self, name: &[u8]) -> &MimeEntry {
        match &self.target {
            ServiceTarget::Directory(_) => self.mime.of_file(name),
            ServiceTarget::File { kind, .. } => kind,
        }
    }

    /// Whether a component of a path may be a file with a custom handler.
    pub(super) fn has_dynamic_types(&self) -> bool {
        self.mime.has_dynamic()
    }

    /// The handler behind a dynamic entry of the MIME map.
    pub(super) fn custom(&self, number: u32) -> Option<Arc<CustomHandler>> {
        let custom = self.settings.custom.get(number as usize)?;
        Some(Arc::clone(custom))
    }
}
