//! A server's directory: configuration, served files and output.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use tempfile::TempDir;

/// Modification time of every file written by [`Folder::write`], in seconds since the epoch.
pub const MODIFIED: u64 = 1_704_164_645;

/// [`MODIFIED`] as HTTP writes it. In an entity-tag it reads `65937d25`.
pub const MODIFIED_TEXT: &str = "Tue, 02 Jan 2024 03:04:05 GMT";

/// A directory that is removed when dropped. Writable by everyone, since a server started by root runs as another user.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// An empty directory.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "it makes a directory, which no default should"
    )]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("h2o-test-")
            .tempdir()
            .expect("the temporary directory is writable");
        open_to_all(folder.path());
        Self(folder)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file inside.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Like [`Self::at`], as text.
    #[must_use]
    pub fn name_of(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Writes a Ruby file with a name of its own, which sets `$block` to a block with these parameters. Returns the path for
    /// `load`.
    ///
    /// # Panics
    /// If that fails.
    pub fn ruby_block(&self, parameters: &str, text: &str) -> String {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("block{}.rb", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.write(
            &name,
            format!("$block = lambda {{ |{parameters}| {text} }}"),
        );
        self.name_of(&name)
    }

    /// Writes a file with mtime [`MODIFIED`], creating its directories.
    ///
    /// # Panics
    /// If that fails.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("the folder is writable");
        }
        fs::write(&path, content).expect("the folder is writable");
        File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(UNIX_EPOCH + Duration::from_secs(MODIFIED)))
            .expect("the file was just written");
        path
    }

    /// Creates a directory that everyone may write to.
    ///
    /// # Panics
    /// If that fails.
    pub fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).expect("the folder is writable");
        open_to_all(&path);
        path
    }

    /// The text of a file; empty if there is none.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        let content = fs::read(self.at(name)).unwrap_or_default();
        String::from_utf8_lossy(&content).into_owned()
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("the directory is ours");
}
