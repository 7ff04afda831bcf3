//! `error-log`: the file or command to which the running server writes its messages.

use std::fs::OpenOptions;
use std::sync::Arc;

use h2o_log::{Target, reason};
use h2o_server::ServerSettings;

use crate::Failure;

/// Opens the error log with the rights of the starting user. Messages go to standard error if there is no `error-log`,
/// or if a supervisor has already opened the log as standard error (`is_open`).
pub(crate) fn open(settings: &ServerSettings, is_open: bool) -> Result<Arc<Target>, Failure> {
    let target = match &settings.error_log {
        Some(path) if !is_open => {
            let target = Target::new(path);
            target.open().map_err(Failure::config)?;
            target
        }
        path => Target::standard_error(path.as_deref()).map_err(|error| {
            Failure::system(format!(
                "failed to write to standard error: {}",
                reason(&error)
            ))
        })?,
    };
    Ok(Arc::new(target))
}

/// Sends all later messages to the error log. Standard input becomes empty; with `error-log`, standard output and
/// standard error are redirected to the log as well, since commands that the server starts for logs inherit them.
pub(crate) fn begin(log: Arc<Target>, is_configured: bool) -> Result<(), Failure> {
    let null = OpenOptions::new()
        .read(true)
        .open("/dev/null")
        .map_err(|error| Failure::system(format!("failed to open /dev/null: {error}")))?;
    nix::unistd::dup2_stdin(&null).map_err(|error| not_redirected(&error.into()))?;
    if is_configured {
        h2o_log::keep_standard_streams().map_err(|error| not_redirected(&error))?;
    }
    // A supervisor's worker inherits its standard output and standard error from the supervisor. If its error log can be reopened, both
    // must be redirected to it, so that they go to the new file after the log is reopened.
    if is_configured || log.is_reopenable() {
        log.take_output().map_err(Failure::system)?;
    }
    h2o_log::become_error_log(log).map_err(|error| {
        Failure::system(format!(
            "failed to start a thread for the error log: {}",
            reason(&error)
        ))
    })
}

fn not_redirected(error: &std::io::Error) -> Failure {
    Failure::system(format!(
        "failed to redirect the standard streams: {}",
        reason(error)
    ))
}
