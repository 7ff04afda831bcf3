//! Functions for helper processes that end together with the process that has started them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use h2o_log::{reason, report_plainly};

/// Calls `then` on a new thread when every process has closed its writing end of the pipe `pipe`.
pub(super) fn on_close(mut pipe: File, then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        // No process writes to the pipe, so the read blocks until the pipe is closed.
        let mut byte = [0];
        while pipe.read(&mut byte).is_ok_and(|count| count > 0) {}
        then();
    });
}

/// Removes a directory with its contents, and reports an error if that fails.
pub(super) fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != ErrorKind::NotFound
    {
        let text = reason(&error);
        report_plainly(&format!("failed to remove {}: {text}", directory.display()));
    }
}
