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

/// The path of a command that the configuration names. H2O compatibility: an absolute path is taken as it is, another one
/// with a slash is below the installation's directory, and a name without a slash is looked for in `PATH`.
#[must_use]
pub fn command_path(command: &str) -> PathBuf {
    match command.contains('/') {
        true => installation_root().join(command),
        false => command.into(),
    }
}
