//! Tests of the file handler: whole requests against real directories.

mod caching;
mod config;
mod custom;
mod listing;
mod paths;
mod responses;
mod variants;
mod watching;

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// Creates a directory with these files; a name that ends with a slash makes a directory.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in files {
        write(root.path(), name, content);
    }
    root
}

fn write(root: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = root.join(name);
    if name.ends_with('/') {
        fs::create_dir_all(path).unwrap();
        return;
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Sets the modification time, which goes into `etag` and `last-modified`.
fn set_modified(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}
