//! The configuration of a `file.dir` or `file.file` directive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use h2o_exchange::Scope;
use h2o_http::mime::{MimeEntry, MimeMap};
use h2o_log::LineLimit;
use rustc_hash::FxHashMap;

use super::custom::CustomHandler;
use super::settings::FileSettings;
use super::variants::Variants;

/// Most services of the running configuration, all for the same files, with which a new service is compared to find an
/// equal one.
const MAX_COMPARED: usize = 64;

/// The configuration of one `file.dir` or `file.file`, with the final settings of its path.
pub(super) struct Service {
    /// Number that distinguishes services in the content cache of a worker.
    pub(super) id: u64,
    pub(super) target: ServiceTarget,
    pub(super) settings: Arc<FileSettings>,
    /// Limits the log lines about files that cannot be opened and about a missing directory.
    pub(super) failures: LineLimit,
    mime: Arc<MimeMap>,
    /// How `compress.cache` keeps the files of this service compressed; `None` if it does not.
    pub(super) variants: Option<Variants>,
    /// Length in bytes of the configured path, which is cut off the path of a request.
    key_len: usize,
}

/// The services of a site configuration, by the path of their files. A reload takes services over that have not
/// changed, so that cached entries stay valid.
#[derive(Clone, Default)]
struct Services(FxHashMap<Box<[u8]>, Vec<Arc<Service>>>);

/// The files that a `file.dir` or `file.file` serves.
#[derive(PartialEq, Eq)]
pub(super) enum ServiceTarget {
    /// The directory of `file.dir`, with a trailing slash.
    Directory(Box<[u8]>),
    /// The single file of `file.file`.
    File {
        path: Box<[u8]>,
        /// The MIME type, or the custom handler, for the configured file name.
        kind: MimeEntry,
    },
}

impl Service {
    /// Creates the service for a directory.
    pub(super) fn directory(scope: &mut Scope, directory: &[u8]) -> Arc<Self> {
        let mut root = directory.to_vec();
        if !root.ends_with(b"/") {
            root.push(b'/');
        }
        Self::new(scope, |_| ServiceTarget::Directory(root.into()))
    }

    /// Creates the service for a single file.
    pub(super) fn file(scope: &mut Scope, path: &[u8]) -> Arc<Self> {
        Self::new(scope, |mime| ServiceTarget::File {
            path: path.into(),
            kind: mime.of_file(path).clone(),
        })
    }

    fn new(scope: &mut Scope, target: impl FnOnce(&MimeMap) -> ServiceTarget) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mime = scope.settings.get::<MimeMap>();
        let service = Self {
            id: NEXT.fetch_add(1, Relaxed),
            target: target(&mime),
            settings: scope.settings.get(),
            failures: LineLimit::per_minute(5),
            mime,
            variants: Variants::of(scope),
            key_len: scope.path.as_deref().map_or(0, str::len),
        };
        service.or_unchanged(scope)
    }

    /// The equal service of the running configuration, if there is one; otherwise this service.
    fn or_unchanged(self, scope: &mut Scope) -> Arc<Self> {
        let files = match &self.target {
            ServiceTarget::Directory(path) | ServiceTarget::File { path, .. } => path.clone(),
        };
        let running = scope
            .running
            .as_ref()
            .map(|site| site.shared.get::<Services>());
        let same = running.as_ref().and_then(|running| {
            let mut services = running.0.get(&files)?.iter().take(MAX_COMPARED);
            services.find(|running| running.is_same_as(&self))
        });
        let service = same.cloned().unwrap_or_else(|| Arc::new(self));
        let services = scope.shared.edit::<Services>();
        let known = services.0.entry(files).or_default();
        known.push(Arc::clone(&service));
        service
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.target == other.target
            && self.key_len == other.key_len
            && self.settings.is_same_as(&other.settings)
            && self.mime == other.mime
            && self.variants == other.variants
    }

    /// The part of a request's normalised path on which the response depends. It is part of the key in the content
    /// cache.
    pub(super) fn cache_path<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        match &self.target {
            ServiceTarget::Directory(_) => path,
            ServiceTarget::File { .. } => b"",
        }
    }

    /// The part of the normalised path of a request after the configured path.
    pub(super) fn rest<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        path.get(self.key_len..).unwrap_or_default()
    }

    /// The MIME type, or the custom handler, for a file name.
    pub(super) fn kind_of(&self, name: &[u8]) -> &MimeEntry {
        match &self.target {
            ServiceTarget::Directory(_) => self.mime.of_file(name),
            ServiceTarget::File { kind, .. } => kind,
        }
    }

    /// Whether a component of a path may be the name of a file with a custom handler.
    pub(super) fn has_dynamic_types(&self) -> bool {
        self.mime.has_dynamic()
    }

    /// The custom handler with this number, which the MIME map refers to.
    pub(super) fn custom(&self, number: u32) -> Option<Arc<CustomHandler>> {
        let custom = self.settings.custom.get(number as usize)?;
        Some(Arc::clone(custom))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Setup;

    #[test]
    fn a_reload_keeps_the_cached_files_of_unchanged_services() {
        let setup = Setup {
            host: "a.test",
            path: "/a",
            ..Setup::new(super::super::DIRECTIVES, None)
        };
        let running = ["file.etag: ON", "", "file.dir: /srv"];
        let first = Arc::new(setup.read(running).unwrap());
        let ids = |site: &h2o_exchange::Site| -> Vec<u64> {
            let services = site.shared.get::<Services>();
            let mut ids: Vec<_> = services
                .0
                .values()
                .flatten()
                .map(|service| service.id)
                .collect();
            ids.sort_unstable();
            ids
        };
        let is_kept = |levels: [&str; 3]| {
            let next = setup.read_next(levels, Some(Arc::clone(&first))).unwrap();
            ids(&next) == ids(&first)
        };
        assert!(is_kept(running));
        assert!(
            is_kept(["", "", "file.dir: /srv/"]),
            "settings with the same values are kept"
        );
        let others = [
            ["file.etag: OFF", "", "file.dir: /srv"],
            ["file.index: [a.html]", "", "file.dir: /srv"],
            ["file.dirlisting: ON", "", "file.dir: /srv"],
            ["file.hide: a", "", "file.dir: /srv"],
            ["file.send-compressed: ON", "", "file.dir: /srv"],
            ["file.mime.addtypes: { text/x-a: .a }", "", "file.dir: /srv"],
            ["", "", "file.dir: /other"],
            ["", "", "file.file: /srv/"],
        ];
        for levels in others {
            assert!(!is_kept(levels), "{levels:?}");
        }
    }
}
