//! The program that obtains certificates (`loader` of `acme`), which the supervisor runs beside the workers.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::systemd;

/// The process of the program that obtains certificates.
pub(super) struct Loader {
    /// The standard input of the process is a pipe that stays open as long as the supervisor lives: when it is closed,
    /// the loader has to end.
    child: Child,
}

impl Loader {
    /// Starts the program. `words`: its path, followed by its arguments without `--pid PID`.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub(super) fn start(words: &[String]) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program)
            .args(["--pid", &std::process::id().to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .env_remove(systemd::SOCKET)
            .env_remove(systemd::WATCHDOG)
            .spawn()?;
        Ok(Self { child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The status of the ended process as `wait(2)` encodes it; `None` while the process runs.
    pub(super) fn ended(&mut self) -> Option<i32> {
        let status = self.child.try_wait().ok().flatten();
        status.map(ExitStatusExt::into_raw)
    }
}
