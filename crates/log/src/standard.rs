//! Standard output and standard error, on which the process was started.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

/// A standard stream of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandardStream {
    Output,
    Error,
}

/// Duplicates of the standard streams on which the process was started.
struct Kept {
    output: OwnedFd,
    error: OwnedFd,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Keeps duplicates of standard output and standard error: for logs that are to go there, and for reports that the error log itself
/// cannot be written. To be called before the two are redirected to the error log.
///
/// # Errors
/// The system's error, if a descriptor cannot be duplicated.
pub fn keep_standard_streams() -> io::Result<()> {
    let kept = Kept {
        output: rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?,
        error: rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3)?,
    };
    let _ = KEPT.set(kept);
    Ok(())
}

/// The duplicate of standard error that [`keep_standard_streams`] has made.
pub(crate) fn kept_error() -> Option<&'static OwnedFd> {
    KEPT.get().map(|kept| &kept.error)
}

impl StandardStream {
    /// The stream that a path of a log stands for.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        match path {
            "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Some(Self::Output),
            "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Some(Self::Error),
            _ => None,
        }
    }

    /// The name of the stream in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Output => "standard output",
            Self::Error => "standard error",
        }
    }

    /// Opens the stream for writing without waiting. If that cannot be, as for a socket or a file of another user, the result is a
    /// duplicate, which shares its settings with other processes and so may wait; `true` comes with it.
    pub(crate) fn open(self) -> io::Result<(OwnedFd, bool)> {
        let (output, error) = (io::stdout(), io::stderr());
        let started_on: BorrowedFd<'_> = match (self, KEPT.get()) {
            (Self::Output, Some(kept)) => kept.output.as_fd(),
            (Self::Error, Some(kept)) => kept.error.as_fd(),
            (Self::Output, None) => output.as_fd(),
            (Self::Error, None) => error.as_fd(),
        };
        let path = format!("/proc/self/fd/{}", started_on.as_raw_fd());
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(opened) => Ok((opened, false)),
            Err(_) => Ok((rustix::io::fcntl_dupfd_cloexec(started_on, 3)?, true)),
        }
    }

    /// Whether the stream can be another one by now: the error log of a supervisor is the standard output of its workers, and the
    /// worker that opens this log anew directs standard output to the new file.
    pub(crate) fn may_have_moved() -> bool {
        KEPT.get().is_none()
    }
}
