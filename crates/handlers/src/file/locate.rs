//! Looks the path of a request up in the file system: the result is a file, or another response.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::{OpenFile, ScriptPath};
use h2o_http::mime::{MimeEntry, MimeType};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::document::{ContentCoding, FileContent};
use super::encoding::{AcceptedEncodings, GZIP_SUFFIX, VARIANTS};
use super::identity::{FileIdentity, FileStamp, inspect};
use super::open::{self, Access, LOOK, READ, READ_DIRECTORY};
use super::service::{Service, ServiceTarget};
use super::settings::SendCompressed;
use super::variants::{Variant, WantedVariant};

/// The look-up of a path, as a value that can be sent to the thread pool.
#[derive(Clone)]
pub(super) struct Lookup {
    pub(super) service: Arc<Service>,
    /// The normalised path of the request.
    pub(super) path: Vec<u8>,
    pub(super) encodings: AcceptedEncodings,
    /// The wall-clock time at the look-up or shortly before it, since the Unix epoch.
    pub(super) now: Duration,
    /// The turn of the event loop in which the look-up began.
    pub(super) turn: u64,
}

/// The result of a look-up.
pub(super) enum LookupResult {
    File(FoundFile),
    /// The request's path leads to a directory but lacks the trailing slash: the client is redirected to this path,
    /// which has it.
    Redirect(Vec<u8>),
    /// The path leads to a directory without an index file, which is listed.
    Listing(OwnedFd),
    /// The path leads to a file for which a custom handler responds.
    Script {
        number: u32,
        script: ScriptPath,
    },
    /// The path leads to no file.
    Missing,
    /// The path leads to no file, because the directory of `file.dir` itself cannot be opened for this reason.
    NoRoot(Errno),
    /// The file must not be served, for this reason.
    Forbidden(Errno),
    /// The file cannot be opened, because no file descriptor is left.
    Busy,
}

/// A file that the look-up has found, which is to be sent.
pub(super) struct FoundFile {
    pub(super) kind: Arc<MimeType>,
    pub(super) identity: FileIdentity,
    pub(super) content: FileContent,
    pub(super) shape: ContentCoding,
    /// Whether `compress.cache` has a compressed form of the file, or is to make one.
    pub(super) variant: KeptVariant,
    /// The states of the files on which the result of this look-up depends; `None` if the result must not be used for another request.
    pub(super) stamps: Option<Vec<FileStamp>>,
    /// Whether the file's mtime is old enough that another write would change it: two writes within one tick of the
    /// clock give the same mtime.
    pub(super) mtime_is_reliable: bool,
}

/// Whether `compress.cache` has a compressed form of a file, or is to make one.
#[derive(Debug, Default)]
pub(super) enum KeptVariant {
    /// `compress.cache` has no compressed form to send in place of the file, and is not to make one.
    #[default]
    Nothing,
    /// The file itself is sent, and this compressed form is to be made for later requests.
    Wanted(Box<WantedVariant>),
    /// This compressed form is sent in place of the file, whose identity is `original`.
    Sent {
        original: FileIdentity,
        variant: Variant,
    },
}

impl KeptVariant {
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// The lookup was not done on the event loop, since it would have to wait for the disk.
#[derive(Debug)]
pub(super) struct NotInMemory;

impl Lookup {
    /// Looks the path of the request up in the file system.
    pub(super) fn run(&self, access: Access) -> Result<LookupResult, NotInMemory> {
        let found = match &self.service.target {
            ServiceTarget::Directory(root) => self.in_directory(root, access),
            ServiceTarget::File { path, .. } => self.single_file(path, access),
        };
        match found {
            Ok(located) => Ok(located),
            Err(Errno::AGAIN) if access == Access::InMemory => Err(NotInMemory),
            Err(error) => Ok(self.service.target.on_failure(error)),
        }
    }

    fn single_file(&self, path: &[u8], access: Access) -> Result<LookupResult, Errno> {
        let mut search = Search::new(self, None, b"", access);
        match search.open_encoding(path)? {
            Some(choice) => {
                let rest = self.service.rest(&self.path);
                let script = ScriptPath {
                    name: self.path[..self.path.len() - rest.len()].to_vec(),
                    file: path.to_vec(),
                    path_info: (!rest.is_empty()).then(|| rest.to_vec()),
                };
                search.finish(choice, path, script)
            }
            None => Err(Errno::ISDIR),
        }
    }

    fn in_directory(&self, root: &[u8], access: Access) -> Result<LookupResult, Errno> {
        let rest = self.service.rest(&self.path);
        if rest.is_empty() && !self.path.ends_with(b"/") {
            return Ok(LookupResult::Redirect([&self.path, &b"/"[..]].concat()));
        }
        // The path may begin with several slashes; without them it is relative to the directory, and not absolute.
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let relative = &rest[slashes..];
        if self.service.settings.hidden.hides_any_of(relative) {
            return Err(Errno::NOENT);
        }
        let tree = match open::configured(&c_string(root)?, LOOK | OFlags::DIRECTORY, access) {
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => return Ok(LookupResult::NoRoot(error)),
            tree => tree?,
        };
        let mut search = Search::new(self, Some(tree), root, access);
        let found = if relative.is_empty() || relative.ends_with(b"/") {
            search.index(relative)
        } else {
            search.named(relative)
        };
        match found {
            Err(error @ (Errno::MFILE | Errno::NFILE)) => Err(error),
            // Whatever the error is, the path may lead through a script file (a file with a custom handler). This is
            // checked even if the look-up would have to wait for the disk: without waiting, the kernel gives that
            // answer for every path that leads through a file.
            Err(error) if self.service.has_dynamic_types() => {
                search.script_above(relative)?.ok_or(error)
            }
            other => other,
        }
    }
}

impl ServiceTarget {
    /// The result of a look-up whose file could not be opened.
    fn on_failure(&self, error: Errno) -> LookupResult {
        match (error, self) {
            (Errno::MFILE | Errno::NFILE, _) => LookupResult::Busy,
            (Errno::NOENT, _) | (Errno::NOTDIR, Self::Directory(_)) => LookupResult::Missing,
            // H2O compatibility: for a single file, H2O answers 403 if its path leads through a file.
            _ => LookupResult::Forbidden(error),
        }
    }
}

/// A look-up in progress.
struct Search<'a> {
    lookup: &'a Lookup,
    access: Access,
    /// The directory of `file.dir`, below which all files are found: `tree` is its open descriptor, `root` its path.
    /// `file.file` has neither.
    tree: Option<OwnedFd>,
    root: &'a [u8],
    absent: Vec<CString>,
    /// Whether the result depends only on which files exist, so that it can be cached.
    cacheable: bool,
}

/// A regular file that was opened, in the encoding in which it is sent.
struct ChosenFile {
    path: CString,
    file: OwnedFd,
    identity: FileIdentity,
    shape: ContentCoding,
}

enum OpenedPath {
    File(OwnedFd, FileIdentity),
    Directory,
}

impl<'a> Search<'a> {
    fn new(lookup: &'a Lookup, tree: Option<OwnedFd>, root: &'a [u8], access: Access) -> Self {
        // A path with several slashes in a row is not cached, because each of its spellings would take a place in the
        // cache.
        let cacheable = !lookup.path.windows(2).any(|pair| pair == b"//");
        Self {
            lookup,
            access,
            tree,
            root,
            absent: Vec::new(),
            cacheable,
        }
    }

    /// Looks up a path without a trailing slash, relative to the directory of `file.dir`.
    fn named(&mut self, relative: &[u8]) -> Result<LookupResult, Errno> {
        match self.open_encoding(relative)? {
            None => Ok(LookupResult::Redirect(
                [&self.lookup.path, &b"/"[..]].concat(),
            )),
            Some(choice) => {
                let script = self.script(&self.lookup.path, relative, relative.len());
                self.finish(choice, relative, script)
            }
        }
    }

    /// Looks up a path with a trailing slash, or the directory of `file.dir` itself.
    fn index(&mut self, directory: &[u8]) -> Result<LookupResult, Errno> {
        let settings = &self.lookup.service.settings;
        let is_hidden = |name: &[u8]| settings.hidden.hides_any_of(name);
        for name in settings.index.iter().filter(|name| !is_hidden(name)) {
            let relative = [directory, name].concat();
            let path = [&self.lookup.path, &name[..]].concat();
            match self.open_encoding(&relative) {
                Ok(None) => return Ok(LookupResult::Redirect([&path, &b"/"[..]].concat())),
                Ok(Some(choice)) => {
                    let script = self.script(&path, &relative, relative.len());
                    return self.finish(choice, &relative, script);
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        if !settings.listing {
            return Err(Errno::NOENT);
        }
        let path = self.c_path(directory, b"")?;
        Ok(LookupResult::Listing(self.open(&path, READ_DIRECTORY)?))
    }

    /// Opens the first encoding of the file that exists and may be sent; `None` if the name is that of a directory.
    fn open_encoding(&mut self, name: &[u8]) -> Result<Option<ChosenFile>, Errno> {
        let encodings = self.lookup.encodings;
        let is_precompressed = self.lookup.service.settings.compressed != SendCompressed::Off;
        for (suffix, coding) in VARIANTS {
            if is_precompressed
                && encodings.has(coding)
                && let Some(choice) =
                    self.open_variant(name, suffix, ContentCoding::Encoded(coding))?
            {
                return Ok(Some(choice));
            }
        }
        let path = self.c_path(name, b"")?;
        match self.inspect(&path) {
            Ok(OpenedPath::Directory) => Ok(None),
            Ok(OpenedPath::File(file, identity)) => Ok(Some(ChosenFile {
                path,
                file,
                identity,
                shape: ContentCoding::Plain,
            })),
            Err(Errno::NOENT) if encodings.may_unpack() => {
                self.absent.push(path);
                let choice = self.open_variant(name, GZIP_SUFFIX, ContentCoding::Unpacked)?;
                choice.map(Some).ok_or(Errno::NOENT)
            }
            Err(error) => {
                if error == Errno::NOENT {
                    self.absent.push(path);
                }
                Err(error)
            }
        }
    }

    /// Opens the precompressed file of a content coding, if it is a regular file.
    fn open_variant(
        &mut self,
        name: &[u8],
        suffix: &[u8],
        shape: ContentCoding,
    ) -> Result<Option<ChosenFile>, Errno> {
        let path = self.c_path(name, suffix)?;
        match self.inspect(&path) {
            Ok(OpenedPath::File(file, identity)) => Ok(Some(ChosenFile {
                path,
                file,
                identity,
                shape,
            })),
            Err(error @ (Errno::AGAIN | Errno::MFILE | Errno::NFILE)) => Err(error),
            Err(Errno::NOENT) => {
                self.absent.push(path);
                Ok(None)
            }
            Ok(OpenedPath::Directory) | Err(_) => {
                self.cacheable = false;
                Ok(None)
            }
        }
    }

    fn inspect(&self, path: &CStr) -> Result<OpenedPath, Errno> {
        let file = self.open(path, READ)?;
        let (kind, identity) = inspect(&file)?;
        match kind {
            FileType::RegularFile => Ok(OpenedPath::File(file, identity)),
            FileType::Directory => Ok(OpenedPath::Directory),
            // FIFOs, sockets and devices are never served.
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn open(&self, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        let Some(tree) = &self.tree else {
            return open::configured(path, flags, self.access);
        };
        let relative = &path.to_bytes_with_nul()[self.root.len()..];
        let relative = CStr::from_bytes_with_nul(relative).map_err(|_| Errno::INVAL)?;
        let relative = if relative.is_empty() { c"." } else { relative };
        open::beneath(tree.as_fd(), relative, flags, self.access)
    }

    /// The path of a file, from its path relative to the directory of `file.dir`.
    fn c_path(&self, relative: &[u8], suffix: &[u8]) -> Result<CString, Errno> {
        c_string(&[self.root, relative, suffix].concat())
    }

    /// The script variables for a custom handler. The script file is at the first `len` bytes of `relative`, with which
    /// `path` ends.
    fn script(&self, path: &[u8], relative: &[u8], len: usize) -> ScriptPath {
        let name = path.len() - relative.len() + len;
        ScriptPath {
            name: path[..name].to_vec(),
            file: [self.root, &relative[..len]].concat(),
            path_info: (len < relative.len()).then(|| path[name..].to_vec()),
        }
    }

    /// The first component of `relative` that is not a directory, if it has a custom handler.
    fn script_above(&self, relative: &[u8]) -> Result<Option<LookupResult>, Errno> {
        let ends = memchr::memchr_iter(b'/', relative).chain([relative.len()]);
        for end in ends {
            let part = &relative[..end];
            if part.is_empty() || part.ends_with(b"/") {
                continue;
            }
            let opened = self.open(&self.c_path(part, b"")?, LOOK);
            let kind = match opened.and_then(inspect) {
                Ok((kind, _)) => kind,
                Err(error @ (Errno::AGAIN | Errno::MFILE | Errno::NFILE)) => return Err(error),
                Err(_) => return Ok(None),
            };
            if kind == FileType::Directory {
                continue;
            }
            return Ok(match self.lookup.service.kind_of(part) {
                MimeEntry::Dynamic(number) if kind == FileType::RegularFile => {
                    Some(LookupResult::Script {
                        number: *number,
                        script: self.script(&self.lookup.path, relative, end),
                    })
                }
                MimeEntry::Dynamic(_) | MimeEntry::Type(_) => None,
            });
        }
        Ok(None)
    }

    fn finish(
        &mut self,
        choice: ChosenFile,
        name: &[u8],
        script: ScriptPath,
    ) -> Result<LookupResult, Errno> {
        let kind = match self.lookup.service.kind_of(name) {
            MimeEntry::Type(kind) => Arc::clone(kind),
            MimeEntry::Dynamic(number) => {
                let number = *number;
                return Ok(LookupResult::Script { number, script });
            }
        };
        let mut choice = choice;
        let original = choice.identity;
        let variant = self.find_variant(&mut choice, &kind)?;
        let file = OpenFile::new(choice.file);
        let (content, identity) = FileContent::load(file, choice.identity, self.access)?;
        // The result of the look-up depends on the file itself; the compressed form that may be sent in place of the file never changes.
        let relied_on = match variant {
            KeptVariant::Sent { .. } => original,
            KeptVariant::Nothing | KeptVariant::Wanted(_) => identity,
        };
        let mtime_is_reliable = relied_on.mtime_is_reliable(self.lookup.now);
        let stamps = self.cacheable.then(|| {
            let absent = self.absent.drain(..).map(FileStamp::absent);
            let present = FileStamp::present(choice.path, relied_on);
            absent.chain([present]).collect()
        });
        Ok(LookupResult::File(FoundFile {
            kind,
            identity,
            content,
            shape: choice.shape,
            variant,
            stamps,
            mtime_is_reliable,
        }))
    }
}

impl Search<'_> {
    /// Looks for the compressed form of a file in the directory of `compress.cache`. If the form exists, it replaces the file in
    /// `choice`.
    fn find_variant(
        &mut self,
        choice: &mut ChosenFile,
        kind: &MimeType,
    ) -> Result<KeptVariant, Errno> {
        let lookup = self.lookup;
        let Some(variants) = &lookup.service.variants else {
            return Ok(KeptVariant::Nothing);
        };
        if choice.shape != ContentCoding::Plain || !kind.attributes.compressible {
            return Ok(KeptVariant::Nothing);
        }
        let accepted = lookup.encodings.codings();
        let Some(wanted) = variants.wanted(accepted, &choice.path, choice.identity) else {
            return Ok(KeptVariant::Nothing);
        };
        let path = wanted.variant.path();
        match open::configured(path, READ, self.access) {
            Ok(file) => {
                let (kind, identity) = inspect(&file)?;
                if kind != FileType::RegularFile || identity.size == 0 {
                    // An empty file in place of the compressed form says that compression makes the original hardly shorter.
                    return Ok(KeptVariant::Nothing);
                }
                choice.file = file;
                choice.shape = ContentCoding::Encoded(wanted.method.coding);
                let original = std::mem::replace(&mut choice.identity, identity);
                Ok(KeptVariant::Sent {
                    original,
                    variant: wanted.variant,
                })
            }
            Err(error @ (Errno::AGAIN | Errno::MFILE | Errno::NFILE)) => Err(error),
            Err(Errno::NOENT) => {
                // When the compressed form has been made, a cached result of this look-up is no longer valid, so the next look-up finds
                // the form.
                self.absent.push(path.to_owned());
                Ok(KeptVariant::Wanted(Box::new(wanted)))
            }
            Err(_) => Ok(KeptVariant::Nothing),
        }
    }
}

fn c_string(path: &[u8]) -> Result<CString, Errno> {
    CString::new(path).map_err(|_| Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_to_open_have_three_outcomes() {
        let directory = ServiceTarget::Directory(b"/".as_slice().into());
        let file = ServiceTarget::File {
            path: b"/a".as_slice().into(),
            kind: MimeEntry::Dynamic(0),
        };
        let show = |located: LookupResult| match located {
            LookupResult::Busy => "busy",
            LookupResult::Missing => "missing",
            LookupResult::Forbidden(_) => "forbidden",
            _ => "something else",
        };
        for (error, of_directory, of_file) in [
            (Errno::MFILE, "busy", "busy"),
            (Errno::NFILE, "busy", "busy"),
            (Errno::NOENT, "missing", "missing"),
            (Errno::NOTDIR, "missing", "forbidden"),
            (Errno::ISDIR, "forbidden", "forbidden"),
            (Errno::ACCESS, "forbidden", "forbidden"),
            (Errno::LOOP, "forbidden", "forbidden"),
            (Errno::NAMETOOLONG, "forbidden", "forbidden"),
            (Errno::IO, "forbidden", "forbidden"),
        ] {
            assert_eq!(show(directory.on_failure(error)), of_directory, "{error}");
            assert_eq!(show(file.on_failure(error)), of_file, "{error}");
        }
    }
}
