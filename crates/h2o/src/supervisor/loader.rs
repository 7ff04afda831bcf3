//! The program that obtains certificates (`loader` of `acme`), which runs beside the workers.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::systemd;

/// A running loader.
pub(super) struct Loader {
    /// Its standard input stays open as long as this process lives: the loader ends when it is closed.
    child: Child,
}

impl Loader {
    /// Starts the command, whose first word is the program.
    ///
    /// # Errors
    /// If it cannot be run.
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

    /// Its status as of `wait(2)`, once it has ended.
    pub(super) fn ended(&mut self) -> Option<i32> {
        let status = self.child.try_wait().ok().flatten();
        status.map(ExitStatusExt::into_raw)
    }
}
