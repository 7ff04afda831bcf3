//! `pid-file`: the file with the id of the server's process, so that users can send signals to it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use h2o_log::reason;

use crate::Failure;

/// The pid file. It is opened before the process gives up root's rights, so that it may be in a directory of root; it
/// is removed on drop.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Opens the pid file with the rights of the starting user. Its old content stays until [`PidFile::write`], so that no reader
    /// finds it empty.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        // It is read before it is removed.
        if let Some(path) = path.to_str() {
            h2o_opener::will_read(path);
        }
        match h2o_opener::pid_file(path) {
            Ok(file) => Ok(Self {
                path: path.to_owned(),
                file,
            }),
            Err(error) => Err(failure(path, &error)),
        }
    }

    /// Writes the id of this process into the pid file.
    pub(crate) fn write(&mut self) -> Result<(), Failure> {
        write_id(&mut self.file).map_err(|error| failure(&self.path, &error))
    }

    /// Whether the file still has the id of this process: a server that takes over may have written its own id.
    fn is_ours(&self) -> bool {
        h2o_opener::read(&self.path).is_ok_and(|text| text == content().as_bytes())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // If the file cannot be removed, because the user that the server runs as may lack the rights, it is emptied. Further errors are
        // ignored.
        if self.is_ours() && h2o_opener::remove(&self.path).is_err() {
            let _ = self.file.set_len(0);
        }
    }
}

/// Writes the id of this process in place of the present content of the file.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write_id(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.write_all(content().as_bytes())
}

fn content() -> String {
    format!("{}\n", std::process::id())
}

fn failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::system(format!(
        "failed to open pid file:{}:{}",
        path.display(),
        reason(error)
    ))
}
