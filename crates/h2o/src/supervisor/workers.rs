//! Starts worker processes and watches them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};

use h2o_log::{reason, report_plainly};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::options::{EXEC, Options};
use super::sockets::Sockets;
use crate::parent::SERVER_STARTER_PORT;
use crate::{Failure, systemd};

/// Exit status of a worker process whose command cannot be run.
const NOT_EXECUTED: u8 = 255;

/// A worker process.
pub(crate) struct Worker {
    pub(crate) generation: u64,
    child: Child,
}

impl Worker {
    /// Starts the worker's command. A new process of this program replaces itself by the command; if the command cannot be run,
    /// that process ends like a worker that has failed.
    ///
    /// # Errors
    /// If no process can be started.
    pub(crate) fn start(
        generation: u64,
        command: &[String],
        options: &Options,
        sockets: &Sockets,
    ) -> io::Result<Self> {
        let mut launcher = Command::new("/proc/self/exe");
        launcher
            .arg0(super::NAME)
            .arg(format!("--{EXEC}"))
            .arg("--")
            .args(command);
        for (name, value) in variables(options.environment.as_deref()) {
            match value {
                Some(value) => launcher.env(name, value),
                None => launcher.env_remove(name),
            };
        }
        launcher
            .env(SERVER_STARTER_PORT, sockets.variable())
            .env("SERVER_STARTER_GENERATION", generation.to_string())
            // systemd's variables for notifications are removed, since the supervisor itself notifies systemd.
            .env_remove(systemd::SOCKET)
            .env_remove(systemd::WATCHDOG);
        if let Some(directory) = &options.directory {
            launcher.current_dir(directory);
        }
        let child = sockets.inherited(|| launcher.spawn())?;
        Ok(Self { generation, child })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // An error is ignored: the worker may have ended. Its id is not reused before the supervisor reaps it.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// The worker's exit status in the form of `wait(2)`, once the worker has ended.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let status = self.child.try_wait().ok().flatten();
        status.map(ExitStatusExt::into_raw)
    }
}

/// Replaces this process by the worker's command. Returns only if that fails.
pub(crate) fn become_worker(command: &[String]) -> Failure {
    let Some((program, arguments)) = command.split_first() else {
        return Failure::config("server program not specified");
    };
    let error = Command::new(program).args(arguments).exec();
    Failure {
        text: format!("failed to exec {program}: {}", reason(&error)),
        code: NOT_EXECUTED,
    }
}

/// Reads the environment variables of `--envdir`: a file of that directory sets the variable of its name to its first line, and an
/// empty file removes the variable.
fn variables(directory: Option<&Path>) -> Vec<(OsString, Option<OsString>)> {
    let Some(directory) = directory else {
        return Vec::new();
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            let text = reason(&error);
            report_plainly(&format!("failed to read {}: {text}", directory.display()));
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Ok(content) = std::fs::read(entry.path()) else {
            continue;
        };
        let line = content.split(|byte| *byte == b'\n').next();
        let value = line.filter(|_| !content.is_empty()).map(<[u8]>::to_vec);
        found.push((entry.file_name(), value.map(OsString::from_vec)));
    }
    found
}
