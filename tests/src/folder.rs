//! A folder for one test: the server's configuration, the files it serves, and its output.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use tempfile::TempDir;

/// Modification time of every file written by [`Folder::write`], in seconds since the epoch.
pub const MODIFIED: u64 = 1_704_164_645;

/// [`MODIFIED`] in the format of HTTP dates. In an entity-tag that time reads `65937d25`.
pub const MODIFIED_TEXT: &str = "Tue, 02 Jan 2024 03:04:05 GMT";

/// A temporary directory, which is removed when dropped. Everyone may write to it, since a server that root starts runs as another user.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// Creates an empty directory.
    ///
    /// # Panics
    /// If the directory cannot be created.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "the function makes a directory, which no default should"
    )]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("h2o-test-")
            .tempdir()
            .expect("the temporary directory is writable");
        open_to_all(folder.path());
        Self(folder)
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of the file `name` in the directory.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Like [`Self::at`], as a string.
    #[must_use]
    pub fn name_of(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Writes a Ruby file, under a name used once, that sets `$block` to a lambda with these parameters and the body `text`. Returns the
    /// path, which a script can pass to `load`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn ruby_block(&self, parameters: &str, text: &str) -> String {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("block{}.rb", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.write(
            &name,
            format!("$block = lambda {{ |{parameters}| {text} }}"),
        );
        self.name_of(&name)
    }

    /// Writes a file with the mtime [`MODIFIED`]; creates the directories in its path.
    ///
    /// # Panics
    /// If the file cannot be written.
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
    /// If the directory cannot be created.
    pub fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).expect("the folder is writable");
        open_to_all(&path);
        path
    }

    /// The text of the file `name`; empty if the file does not exist.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        let content = fs::read(self.at(name)).unwrap_or_default();
        String::from_utf8_lossy(&content).into_owned()
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("the test owns the directory");
}
