//! `--restart` and `--stop`: another process of this program tells a running supervisor to replace its workers, or to end.

use std::path::Path;
use std::time::Duration;

use h2o_log::{reason, report_plainly};
use nix::sys::signal::{Signal, kill};

use super::files::{generations, read_pid};
use crate::Failure;

/// How often the pid file and status file of the supervisor are read while this process waits for the supervisor.
const INTERVAL: Duration = Duration::from_millis(100);

/// Makes the running supervisor replace its workers, and returns when all of the old workers have ended.
///
/// # Errors
/// If no supervisor has this pid file, or the supervisor ends.
pub(crate) fn restart(pid_file: &Path, status_file: &Path) -> Result<(), Failure> {
    let read = || {
        generations(status_file).map_err(|error| {
            let path = status_file.display();
            Failure::system(format!(
                "failed to read status file:{path}:{}",
                reason(&error)
            ))
        })
    };
    let newest = read()?.into_iter().max().unwrap_or(0);
    let pid = send(pid_file, Signal::SIGHUP)?;
    report_plainly(&format!(
        "sent HUP to {pid}; waiting until workers of generation {newest} and before have ended"
    ));
    loop {
        let now = read()?;
        if !now.is_empty() && now.iter().all(|generation| *generation > newest) {
            return Ok(());
        }
        if kill(pid, None).is_err() {
            return Err(Failure::system(format!("the supervisor {pid} has ended")));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Ends the running supervisor, and returns when it has ended.
///
/// # Errors
/// If no supervisor has this pid file.
pub(crate) fn stop(pid_file: &Path) -> Result<(), Failure> {
    let pid = send(pid_file, Signal::SIGTERM)?;
    report_plainly(&format!("sent TERM to {pid}; waiting for its end"));
    while kill(pid, None).is_ok() && read_pid(pid_file).is_ok_and(|now| now == pid) {
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

fn send(pid_file: &Path, signal: Signal) -> Result<nix::unistd::Pid, Failure> {
    let pid = read_pid(pid_file)?;
    kill(pid, signal).map_err(|error| {
        Failure::system(format!(
            "failed to send {signal} to {pid}: {}",
            error.desc()
        ))
    })?;
    Ok(pid)
}
