//! What helpers do that end with the process that has started them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use h2o_log::{reason, report_plainly};

/// Calls `then`, on a thread, when the last writer of a pipe has closed it.
pub(super) fn on_close(mut pipe: File, then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        // Nobody writes; a read returns at the end.
        let mut byte = [0];
        while pipe.read(&mut byte).is_ok_and(|count| count > 0) {}
        then();
    });
}

/// Removes a directory with what is in it, and reports why that failed.
pub(super) fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != ErrorKind::NotFound
    {
        let text = reason(&error);
        report_plainly(&format!("failed to remove {}: {text}", directory.display()));
    }
}
