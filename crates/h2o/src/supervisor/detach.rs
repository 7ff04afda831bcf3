//! `--daemonize`: the supervisor leaves the terminal and goes to the background.

#![expect(unsafe_code, reason = "no safe wrapper of fork exists")]

use std::os::fd::AsFd;

use nix::unistd::{ForkResult, fork, setsid};

use crate::Failure;

/// Which process returns from [`detach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that the user has started; it must end.
    Parent,
    /// The process that stays in the background. It does not lead its session, so that no terminal can become its
    /// controlling terminal.
    Daemon,
}

/// Forks the process so that it goes on in the background. Must be called while the process has a single thread.
///
/// # Errors
/// If the system refuses.
pub(crate) fn detach() -> Result<Side, Failure> {
    let failed = |error: nix::errno::Errno| {
        Failure::system(format!("failed to daemonize: {}", error.desc()))
    };
    // SAFETY: the process has one thread, so that no lock is held by a thread that the child does not have.
    if let ForkResult::Parent { .. } = unsafe { fork() }.map_err(failed)? {
        return Ok(Side::Parent);
    }
    setsid().map_err(failed)?;
    // SAFETY: this process, the child of the first fork, has one thread, so that no lock is held by a thread that its child does not have.
    if let ForkResult::Parent { .. } = unsafe { fork() }.map_err(failed)? {
        // The child of the first fork, which leads the session, owns no resources, so it ends without cleaning up.
        std::process::exit(0);
    }
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null");
    let null =
        null.map_err(|error| Failure::system(format!("failed to open /dev/null: {error}")))?;
    nix::unistd::dup2_stdin(null.as_fd()).map_err(failed)?;
    nix::unistd::dup2_stdout(null.as_fd()).map_err(failed)?;
    nix::unistd::dup2_stderr(null.as_fd()).map_err(failed)?;
    Ok(Side::Daemon)
}
