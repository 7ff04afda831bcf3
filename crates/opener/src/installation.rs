//! The directory in which the program is installed.

use std::path::{Path, PathBuf};

/// The directory of the installation, if neither `H2O_ROOT` nor the path of this program tells it.
const DEFAULT_ROOT: &str = "/usr/local";

/// The directory that contains `share/h2o` and `var/h2o`; commands get it as `H2O_ROOT`.
#[must_use]
pub fn installation_root() -> PathBuf {
    if let Some(root) = std::env::var_os("H2O_ROOT") {
        return root.into();
    }
    let program = std::env::current_exe().ok();
    let directory = program.as_deref().and_then(Path::parent);
    let prefix = directory
        .filter(|directory| directory.ends_with("bin"))
        .and_then(Path::parent);
    prefix.map_or_else(|| DEFAULT_ROOT.into(), Path::to_owned)
}

/// Returns the path of a command that the configuration names. H2O compatibility: an absolute path is returned as it is;
/// a relative path with a slash is resolved below the directory of the installation; a name without a slash stays a name,
/// which is looked for in `PATH` when the command is run.
#[must_use]
pub fn command_path(command: &str) -> PathBuf {
    match command.contains('/') {
        true => installation_root().join(command),
        false => command.into(),
    }
}
