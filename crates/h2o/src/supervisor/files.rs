//! The pid file and the status file of a supervisor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use h2o_log::{reason, report_plainly};
use nix::unistd::Pid;
use rustix::fs::{FlockOperation, flock};

use crate::Failure;
use crate::pid_file::write_id;

/// The pid file of a supervisor. It is locked while the supervisor runs, and removed on drop.
pub(crate) struct LockedPidFile {
    path: PathBuf,
    file: File,
}

impl LockedPidFile {
    /// Opens and locks the pid file.
    ///
    /// # Errors
    /// If it cannot be opened, or another supervisor has it.
    pub(crate) fn lock(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let path = path.display();
            Failure::system(format!("failed to open pid file:{path}:{}", reason(&error)))
        };
        let mut file = h2o_opener::pid_file(path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let holder =
                    read_pid(path).map_or_else(|_| String::new(), |pid| format!(" (pid:{pid})"));
                return Err(Failure::system(format!(
                    "pid file:{} is locked by another supervisor{holder}",
                    path.display()
                )));
            }
            Err(error) => return Err(failed(error.into())),
        }
        file.rewind().map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes the id of this process into the pid file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&mut self) -> Result<(), Failure> {
        write_id(&mut self.file).map_err(|error| {
            let path = self.path.display();
            Failure::system(format!(
                "failed to write pid file:{path}:{}",
                reason(&error)
            ))
        })
    }
}

impl Drop for LockedPidFile {
    fn drop(&mut self) {
        // Errors are ignored: another program may have removed the file already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads the process id from a pid file.
///
/// # Errors
/// If the file does not exist, or contains no number.
pub(crate) fn read_pid(path: &Path) -> Result<Pid, Failure> {
    let failed =
        |why: &str| Failure::system(format!("failed to read pid file:{}:{why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&reason(&error)))?;
    let number = text.trim().parse().ok().filter(|pid| *pid > 0);
    let number = number.ok_or_else(|| failed("the file contains no process id"))?;
    Ok(Pid::from_raw(number))
}

/// The status file of a supervisor: it has a line `GENERATION:PID` for each worker. It is removed on drop.
pub(crate) struct StatusFile {
    path: PathBuf,
    /// Whether the last write of the status file failed, so that a failure is reported only once.
    is_failing: bool,
}

impl StatusFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            is_failing: false,
        }
    }

    /// Replaces the status file in one step: readers see either the old or the new content.
    pub(crate) fn write(&mut self, workers: &mut [(u64, u32)]) {
        workers.sort_unstable();
        let lines = workers.iter();
        let text: String = lines
            .map(|(generation, pid)| format!("{generation}:{pid}\n"))
            .collect();
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let written = replace(Path::new(&name), &self.path, &text);
        if let Err(error) = &written
            && !self.is_failing
        {
            let path = self.path.display();
            report_plainly(&format!(
                "failed to write status file:{path}:{}",
                reason(error)
            ));
        }
        self.is_failing = written.is_err();
    }
}

fn replace(temporary: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .open(temporary);
    let written = opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(temporary);
    }
    written
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads the generations of the workers from a status file.
///
/// # Errors
/// If the status file cannot be read.
pub(crate) fn generations(path: &Path) -> io::Result<Vec<u64>> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    let lines = text.lines();
    Ok(lines
        .filter_map(|line| line.split_once(':')?.0.parse().ok())
        .collect())
}
