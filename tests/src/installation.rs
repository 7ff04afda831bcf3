//! Installs the program for a test, as `make install` does.

use std::process::Command;

use crate::{Folder, binary, manual};

/// Runs `make install` with a prefix in the folder. Returns the prefix, which is `H2O_ROOT` for configurations.
///
/// # Panics
/// If `make install` fails.
#[must_use]
pub fn install(folder: &Folder) -> String {
    let output = Command::new("make")
        .current_dir(manual::root())
        .args(["--no-print-directory", "install", "PREFIX=/opt/h2o"])
        .arg(format!("DESTDIR={}", folder.path().display()))
        .arg(format!("BINARY={}", binary().display()))
        .output()
        .expect("make is installed");
    assert!(output.status.success(), "{output:?}");
    folder.name_of("opt/h2o")
}
