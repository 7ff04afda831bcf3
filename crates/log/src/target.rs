//! Targets of log lines: files, commands, sockets and devices.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use h2o_opener::{Rotation, log_file};
use rustix::io::DupFlags;

use crate::standard::StandardStream;
use crate::stream::Stream;
use crate::{reason, report};

/// Least time between two reports of failed writes to one file.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// How long the process delays its own end until log lines are written and log commands have ended.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// The target of one or more logs.
pub struct Target {
    /// The target as configured: a path, or `|` and a command.
    path: Box<str>,
    /// Whether the process was started with the target open, so that it cannot be opened again.
    is_inherited: bool,
    sink: OnceLock<Sink>,
    complained: AtomicU64,
    /// Whether the last line in the file is incomplete, because the disk was full.
    is_torn: AtomicBool,
    /// Whether standard output and standard error of the process go to this target, also after it was reopened.
    has_output: AtomicBool,
}

enum Sink {
    /// A regular file: one `write` in append mode per line, so that the kernel keeps lines of different workers apart.
    File(OwnedFd),
    /// A target whose reader can be slow, stuck or gone, so that its lines may have to wait.
    Stream(Stream),
}

/// A running log target: a command is restarted whenever it ends. Dropping this value closes the target.
pub struct RunningTarget(Arc<Target>);

impl Target {
    /// Creates the target for `path`: a path, or a command after `|`. It is not opened yet.
    #[must_use]
    pub fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            is_inherited: false,
            sink: OnceLock::new(),
            complained: AtomicU64::new(0),
            is_torn: AtomicBool::new(false),
            has_output: AtomicBool::new(false),
        }
    }

    /// Creates a target for the current standard error. If that is a regular file, and `path` is the path of this file,
    /// the target can be reopened.
    ///
    /// # Errors
    /// The system's error of `fstat`.
    pub fn standard_error(path: Option<&str>) -> io::Result<Self> {
        let stderr = io::stderr();
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&stderr)?.st_mode);
        let path = path.filter(|path| kind.is_file() && !path.starts_with('|'));
        let mut target = Self::new(path.unwrap_or("standard error"));
        target.is_inherited = path.is_none();
        if let Some(path) = path {
            h2o_opener::allow_log_file(path);
        }
        let fd = rustix::io::fcntl_dupfd_cloexec(&stderr, 3)?;
        let sink = if kind.is_file() {
            Sink::File(fd)
        } else {
            Sink::Stream(Stream::to_standard(StandardStream::Error, fd, true)?)
        };
        let _ = target.sink.set(sink);
        Ok(target)
    }

    /// Whether [`Target::reopen`] has an effect.
    #[must_use]
    pub const fn is_reopenable(&self) -> bool {
        !self.is_inherited
    }

    /// Opens the target: creates a file and appends to it, starts a command, or connects to a socket. A second call has no
    /// effect.
    ///
    /// # Errors
    /// The message about the failure, for the user.
    pub fn open(&self) -> Result<(), String> {
        if self.sink.get().is_some() {
            return Ok(());
        }
        let sink =
            if let Some(command) = self.path.strip_prefix('|') {
                let command = command.trim_start();
                let stream = Stream::to_command(command);
                Sink::Stream(stream.map_err(|error| {
                    format!("failed to open logger: {command}:{}", reason(&error))
                })?)
            } else if let Some(stream) = self.standard_stream() {
                open_standard(stream).map_err(|error| self.not_opened(&error))?
            } else {
                open_path(&self.path).map_err(|error| self.not_opened(&error))?
            };
        let _ = self.sink.set(sink);
        Ok(())
    }

    /// Announces to the keeper (the process with the rights of the starting user) that the target will be opened.
    pub fn announce(&self) {
        match self.path.strip_prefix('|') {
            Some(command) => h2o_opener::will_log_by(command.trim_start()),
            // The keeper has standard streams of its own: this process has to open its streams itself.
            None if self.standard_stream().is_some() => {}
            None => h2o_opener::will_log(&self.path),
        }
    }

    /// The standard stream of the process that the target is, if it is one.
    fn standard_stream(&self) -> Option<StandardStream> {
        StandardStream::of_path(&self.path).filter(|_| !self.is_inherited)
    }

    /// Opens the file, socket or device at the target's path again, after the old one was moved away. Commands continue
    /// to run, and standard streams stay those on which the process was started. If the target cannot be opened, lines still go to
    /// the old one.
    ///
    /// # Errors
    /// The message about the failure, for the user.
    pub fn reopen(&self) -> Result<(), String> {
        let reopened = match self.sink.get() {
            _ if self.is_inherited => Ok(()),
            None => Ok(()),
            Some(sink) if let Some(stream) = self.standard_stream() => match sink {
                Sink::File(file) if StandardStream::may_have_moved() => {
                    stream.open().and_then(|(opened, _)| replace(file, &opened))
                }
                Sink::File(_) | Sink::Stream(_) => Ok(()),
            },
            Some(Sink::File(file)) => {
                log_file(&self.path).and_then(|opened| replace(file, &opened))
            }
            Some(Sink::Stream(stream)) => stream.reopen(),
        };
        reopened.map_err(|error| self.not_opened(&error))?;
        if self.has_output.load(Relaxed) {
            return self.redirect_output();
        }
        Ok(())
    }

    /// From now on directs standard output and standard error of the process to the target.
    ///
    /// # Errors
    /// The message about the failure, for the user.
    pub fn take_output(&self) -> Result<(), String> {
        self.has_output.store(true, Relaxed);
        self.redirect_output()
    }

    fn redirect_output(&self) -> Result<(), String> {
        let redirected = self.descriptor().and_then(|log| {
            if let Some(log) = log {
                rustix::stdio::dup2_stdout(&log)?;
                rustix::stdio::dup2_stderr(&log)?;
            }
            Ok(())
        });
        redirected.map_err(|error| {
            let reason = reason(&error);
            format!("failed to redirect the standard streams: {reason}")
        })
    }

    /// Opens the file at the target's path again if another process has rotated it.
    ///
    /// # Errors
    /// The message about the failure, for the error log.
    pub(crate) fn follow(&self) -> Result<(), String> {
        let identity = |found: rustix::fs::Stat| (found.st_dev, found.st_ino);
        let Some(Ok(open)) = self.file().map(rustix::fs::fstat) else {
            return Ok(());
        };
        match rustix::fs::stat(&*self.path) {
            Ok(found) if identity(found) != identity(open) => self.reopen(),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The target as configured: a path, or `|` and a command.
    #[must_use]
    pub const fn path(&self) -> &str {
        &self.path
    }

    /// The open file; `None` if the target is not a regular file or not open.
    pub(crate) fn file(&self) -> Option<&OwnedFd> {
        match self.sink.get()? {
            Sink::File(file) if !self.is_inherited && self.standard_stream().is_none() => {
                Some(file)
            }
            Sink::File(_) | Sink::Stream(_) => None,
        }
    }

    /// Rotates the log file and opens the new one, if the rotation is due; `None` if it is not. If compressing or
    /// removing older files fails, the message about it can be read from the returned pipe.
    ///
    /// # Errors
    /// The message about the failure, for the error log.
    pub(crate) fn rotate(&self, rotation: Rotation) -> Result<Option<OwnedFd>, String> {
        if !self.file().is_some_and(|file| rotation.is_due(file)) {
            return Ok(None);
        }
        let tidying = h2o_opener::rotate_log(&self.path, rotation).map_err(|error| {
            let reason = reason(&error);
            format!("failed to rotate the log file:{}:{reason}", self.path)
        })?;
        self.reopen()?;
        Ok(Some(tidying))
    }

    fn not_opened(&self, error: &io::Error) -> String {
        format!("failed to open log file:{}:{}", self.path, reason(error))
    }

    /// If the target is a command, starts a thread that restarts it whenever it ends.
    ///
    /// # Errors
    /// The system's error, if the thread cannot be started.
    pub fn run(self: &Arc<Self>) -> io::Result<RunningTarget> {
        self.watch()?;
        Ok(RunningTarget(Arc::clone(self)))
    }

    pub(crate) fn watch(&self) -> io::Result<()> {
        match self.sink.get() {
            Some(Sink::Stream(stream)) => stream.watch(),
            Some(Sink::File(_)) | None => Ok(()),
        }
    }

    /// Writes a log line, which ends with a line feed. Failures are reported, not returned. `unix_time` is the current
    /// time since the Unix epoch.
    pub fn write(&self, line: &[u8], unix_time: Duration) {
        match self.sink.get() {
            Some(Sink::File(file)) if self.is_torn.load(Relaxed) => {
                let rest_of_line: &[u8] = b"\n";
                self.write_to_file(file, &[rest_of_line, line].concat(), unix_time);
            }
            Some(Sink::File(file)) => self.write_to_file(file, line, unix_time),
            Some(Sink::Stream(stream)) => stream.write(line, unix_time),
            None => {}
        }
    }

    fn write_to_file(&self, file: &OwnedFd, text: &[u8], unix_time: Duration) {
        match write_once(file, text) {
            Ok(len) => {
                let is_torn = len < text.len();
                // The flag is written only if its value changes, since other workers read it for each line: a write would
                // take the cache line from them.
                if self.is_torn.load(Relaxed) != is_torn {
                    self.is_torn.store(is_torn, Relaxed);
                }
            }
            Err(error) => self.report_write_failure(error, unix_time),
        }
    }

    #[cold]
    fn report_write_failure(&self, error: rustix::io::Errno, unix_time: Duration) {
        let last = self.complained.load(Relaxed);
        let now = unix_time.as_secs();
        if now.saturating_sub(last) >= REPORT_INTERVAL.as_secs()
            && self
                .complained
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_ok()
        {
            let reason = reason(&error.into());
            report!(error, "failed to write to log file:{}:{reason}", self.path);
        }
    }

    /// The descriptor that lines are written to, for writers that bypass [`Target::write`].
    ///
    /// # Errors
    /// The system's error, if the descriptor cannot be duplicated.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        match self.sink.get() {
            Some(Sink::File(file)) => file.try_clone().map(Some),
            Some(Sink::Stream(stream)) => {
                let fd = stream.descriptor();
                fd.map(|fd| fd.try_clone()).transpose()
            }
            None => Ok(None),
        }
    }

    /// Stops accepting lines. Waits up to a second until all lines are written and the log command has ended.
    pub(crate) fn close(&self) {
        if let Some(Sink::Stream(stream)) = self.sink.get() {
            stream.close(CLOSE_PATIENCE);
        }
    }

    pub(crate) fn mark_as_error_log(&self) {
        if let Some(Sink::Stream(stream)) = self.sink.get() {
            stream.mark_as_error_log();
        }
    }
}

impl Drop for RunningTarget {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn open_path(path: &str) -> io::Result<Sink> {
    let kind = std::fs::metadata(path).map(|found| found.file_type());
    match kind {
        Ok(kind) if kind.is_socket() => Stream::to_socket(path).map(Sink::Stream),
        Ok(kind) if kind.is_fifo() || kind.is_char_device() => {
            Stream::to_device(path).map(Sink::Stream)
        }
        _ => log_file(path).map(Sink::File),
    }
}

fn open_standard(stream: StandardStream) -> io::Result<Sink> {
    let (opened, may_wait) = stream.open()?;
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    if kind.is_file() {
        return Ok(Sink::File(opened));
    }
    Stream::to_standard(stream, opened, may_wait).map(Sink::Stream)
}

/// Makes the descriptor `file` refer to the file that `opened` refers to, at once for all threads, so that writing a
/// line needs no lock.
fn replace(file: &OwnedFd, opened: &OwnedFd) -> io::Result<()> {
    #[expect(
        unsafe_code,
        reason = "`dup3` takes the replaced descriptor as an owner, of which another one exists"
    )]
    // SAFETY: `file` is open and stays so: the second owner is never dropped, and `dup3` keeps the number in use. A
    // concurrent write goes to the old file or to the new one.
    let mut same = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) });
    rustix::io::dup3(opened, &mut same, DupFlags::CLOEXEC)?;
    Ok(())
}

fn write_once(file: &OwnedFd, line: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::write(file, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn open(path: &str) -> Target {
        let target = Target::new(path);
        target.open().unwrap();
        target
    }

    #[test]
    fn files_are_created_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for line in [&b"one\n"[..], b"two\n"] {
            open(path.to_str().unwrap()).write(line, Duration::ZERO);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o644, 0);
    }

    #[test]
    fn a_file_that_another_process_has_rotated_is_opened_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let target = open(path("log").to_str().unwrap());
        let write = |line: &[u8]| {
            target.follow().unwrap();
            target.write(line, Duration::ZERO);
        };
        write(b"one\n");
        std::fs::rename(path("log"), path("old")).unwrap();
        // The log file was moved away, and no new file exists yet.
        write(b"two\n");
        std::fs::write(path("log"), "").unwrap();
        write(b"three\n");
        assert_eq!(std::fs::read(path("old")).unwrap(), b"one\ntwo\n");
        assert_eq!(std::fs::read(path("log")).unwrap(), b"three\n");
    }

    #[test]
    fn what_cannot_be_opened_is_named_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        drop(UnixListener::bind(path("socket")).unwrap());
        for (path, why) in [
            (path("no/log"), "No such file or directory"),
            (path(""), "Is a directory"),
            (path("socket"), "Connection refused"),
        ] {
            assert_eq!(
                Target::new(&path).open().unwrap_err(),
                format!("failed to open log file:{path}:{why}")
            );
        }
        let nul = Target::new("| a\0b").open().unwrap_err();
        assert!(nul.starts_with("failed to open logger: a\0b:"), "{nul}");
    }

    #[test]
    fn commands_get_the_log_on_stdin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let target = open(&format!("| cat > {}", path.display()));
        target.write(b"one\n", Duration::ZERO);
        target.write(b"two\n", Duration::ZERO);
        drop(Arc::new(target).run().unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn sockets_are_connected_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let target = open(path.to_str().unwrap());
        target.write(b"line\n", Duration::ZERO);
        drop(target);
        let mut text = String::new();
        let (mut peer, _) = listener.accept().unwrap();
        peer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "line\n");
    }

    #[test]
    fn named_pipes_open_without_a_reader_and_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let target = open(path.to_str().unwrap());
        target.write(b"line\n", Duration::ZERO);
        let mut text = String::new();
        let reader = std::fs::File::open(&path).unwrap();
        BufReader::new(reader).read_line(&mut text).unwrap();
        assert_eq!(text, "line\n");
    }

    #[test]
    fn a_target_that_was_never_opened_swallows_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        Target::new(path.to_str().unwrap()).write(b"line\n", Duration::ZERO);
        assert!(!path.exists());
    }

    #[test]
    fn no_line_goes_to_a_file_that_was_moved_away_before_the_log_was_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let target = open(path("log").to_str().unwrap());
        target.write(b"one\n", Duration::ZERO);
        std::fs::rename(path("log"), path("log.1")).unwrap();
        target.write(b"two\n", Duration::ZERO);
        target.reopen().unwrap();
        target.write(b"three\n", Duration::ZERO);
        assert_eq!(std::fs::read(path("log.1")).unwrap(), b"one\ntwo\n");
        assert_eq!(std::fs::read(path("log")).unwrap(), b"three\n");
    }

    #[test]
    fn no_line_is_lost_when_a_log_cannot_be_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logs/log");
        let moved = directory.path().join("moved");
        std::fs::create_dir(directory.path().join("logs")).unwrap();
        let target = open(path.to_str().unwrap());
        std::fs::rename(directory.path().join("logs"), &moved).unwrap();
        let message = target.reopen().unwrap_err();
        assert_eq!(
            message,
            format!(
                "failed to open log file:{}:No such file or directory",
                path.display()
            )
        );
        target.write(b"one\n", Duration::ZERO);
        assert_eq!(std::fs::read(moved.join("log")).unwrap(), b"one\n");
    }

    #[test]
    fn root_does_not_follow_the_links_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, to) in [("link", "victim"), ("dangling", "created")] {
            std::fs::write(path("victim"), "").unwrap();
            std::os::unix::fs::symlink(path(to), path(name)).unwrap();
            // The log is opened, since the link belongs to the user of this process.
            let log = path(name);
            let log = log.to_str().unwrap();
            open(log).write(b"line\n", Duration::ZERO);
            assert_eq!(std::fs::read(path(to)).unwrap(), b"line\n");
            if !rustix::process::geteuid().is_root() {
                continue;
            }
            std::fs::remove_file(path(to)).unwrap();
            std::os::unix::fs::lchown(log, Some(65_534), None).unwrap();
            let message = Target::new(log).open().unwrap_err();
            assert!(message.contains("symbolic link of user 65534"), "{message}");
            assert!(!path(to).exists());
        }
    }
}
