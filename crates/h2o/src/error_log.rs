//! `error-log`: the target of messages while the server runs.

use std::fs::OpenOptions;
use std::sync::Arc;

use h2o_log::{Target, reason};
use h2o_server::ServerSettings;

use crate::Failure;

/// Opens the log with the rights of the starting user. Without `error-log` it is standard error.
pub(crate) fn open(settings: &ServerSettings) -> Result<Arc<Target>, Failure> {
    let target = match &settings.error_log {
        Some(path) => {
            let target = Target::new(path);
            target.open().map_err(Failure::config)?;
            target
        }
        None => Target::standard_error().map_err(|error| {
            Failure::system(format!(
                "failed to write to standard error: {}",
                reason(&error)
            ))
        })?,
    };
    Ok(Arc::new(target))
}

/// Sends all later messages to the log. Standard input becomes empty; with `error-log`, standard output and standard error
/// are redirected to the log as well, since log commands inherit them.
pub(crate) fn begin(log: Arc<Target>, is_configured: bool) -> Result<(), Failure> {
    let null = OpenOptions::new()
        .read(true)
        .open("/dev/null")
        .map_err(|error| Failure::system(format!("failed to open /dev/null: {error}")))?;
    nix::unistd::dup2_stdin(&null).map_err(|error| not_redirected(&error.into()))?;
    if is_configured {
        h2o_log::keep_standard_error().map_err(|error| not_redirected(&error))?;
        redirect_output(&log)?;
    }
    h2o_log::become_error_log(log).map_err(|error| {
        Failure::system(format!(
            "failed to start a thread for the error log: {}",
            reason(&error)
        ))
    })
}

/// Points standard output and standard error at the log.
pub(crate) fn redirect_output(log: &Target) -> Result<(), Failure> {
    if let Some(log) = log.descriptor().map_err(|error| not_redirected(&error))? {
        nix::unistd::dup2_stdout(&log).map_err(|error| not_redirected(&error.into()))?;
        nix::unistd::dup2_stderr(&log).map_err(|error| not_redirected(&error.into()))?;
    }
    Ok(())
}

fn not_redirected(error: &std::io::Error) -> Failure {
    Failure::system(format!(
        "failed to redirect the standard streams: {}",
        reason(error)
    ))
}
