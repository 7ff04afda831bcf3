//! `error-log`: where standard output and standard error go while the server runs.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::Failure;
use h2o_server::reason;

/// Opens the log: a file to append to, a Unix socket, or the standard input of a command.
pub(crate) fn open(target: &str) -> Result<OwnedFd, Failure> {
    if let Some(command) = target.strip_prefix('|') {
        let spawned = Command::new("/bin/sh")
            .arg("-c")
            .arg(command.trim_start())
            .stdin(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| {
            Failure::config(format!(
                "failed to open logger: {command}:{}",
                reason(&error)
            ))
        })?;
        // The child is left to itself: it ends when we do, as its input ends.
        return child
            .stdin
            .take()
            .map(OwnedFd::from)
            .map(never_waiting)
            .ok_or_else(|| Failure::config("the logger has no input"));
    }
    let is_socket = std::fs::metadata(target).is_ok_and(|found| found.file_type().is_socket());
    let opened = if is_socket {
        UnixStream::connect(target)
            .map(OwnedFd::from)
            .map(never_waiting)
    } else {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o644)
            .open(target)
            .map(OwnedFd::from)
    };
    opened.map_err(|error| {
        Failure::config(format!(
            "failed to open log file:{target}:{}",
            reason(&error)
        ))
    })
}

/// A reader that does not keep up loses lines; it must not hold up the server.
fn never_waiting(log: OwnedFd) -> OwnedFd {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    // A descriptor that cannot be switched still works.
    let _ = fcntl(&log, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
    log
}

/// Points standard output and standard error at the log. Standard input becomes empty.
pub(crate) fn redirect(log: Option<&OwnedFd>) -> Result<(), Failure> {
    let failed = |error: nix::Error| {
        Failure::system(format!(
            "failed to redirect the standard streams: {}",
            error.desc()
        ))
    };
    let null = OpenOptions::new()
        .read(true)
        .open("/dev/null")
        .map_err(|error| Failure::system(format!("failed to open /dev/null: {error}")))?;
    nix::unistd::dup2_stdin(&null).map_err(failed)?;
    if let Some(log) = log {
        nix::unistd::dup2_stdout(log).map_err(failed)?;
        nix::unistd::dup2_stderr(log).map_err(failed)?;
    }
    Ok(())
}
