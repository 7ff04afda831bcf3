//! The helper programs in `share/h2o`: links to this program, which acts by the name under which it was started.

mod annotate;
mod application;
mod closing;
mod fastcgi_cgi;
mod kill_on_close;
mod ocsp;
mod setuidgid;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use h2o_log::reason;

use crate::{Failure, supervisor};

/// Runs the helper with the name `name`, if there is one.
pub(crate) fn run(
    name: &str,
    arguments: impl Iterator<Item = String>,
) -> Option<Result<(), Failure>> {
    match name {
        supervisor::NAME => Some(supervisor::run(arguments)),
        "setuidgid" => Some(setuidgid::run(arguments)),
        h2o_opener::APPLICATION_HELPER => Some(application::run(arguments)),
        "kill-on-close" => Some(kill_on_close::run(arguments)),
        "fastcgi-cgi" => Some(fastcgi_cgi::run(arguments)),
        "annotate-backtrace-symbols" => Some(annotate::run()),
        "fetch-ocsp-response" => Some(ocsp::run(arguments)),
        _ => None,
    }
}

/// The name under which this program was started, without its directory.
pub(crate) fn own_name() -> String {
    let first = std::env::args().next().unwrap_or_default();
    let name = Path::new(&first).file_name();
    name.and_then(|name| name.to_str())
        .unwrap_or_default()
        .to_owned()
}

/// Replaces this process by the command `words` (`exec`). Returns only if that fails.
fn become_command(mut words: impl Iterator<Item = String>, usage: &str) -> Failure {
    let Some(program) = words.next() else {
        return Failure::config(usage);
    };
    let error = Command::new(&program).args(words).exec();
    Failure::system(format!("failed to exec {program}: {}", reason(&error)))
}
