//! Where lines go: a file, a command, a socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use h2o_exchange::{Resource, Resources, Scope};
use rustix::fs::OFlags;

use super::stream::Stream;

/// A complaint about writing that fails is repeated no sooner than this.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// The target of one or more access logs, opened when the whole configuration is known to be good.
pub(super) struct Target {
    /// As configured.
    path: Box<str>,
    sink: OnceLock<Sink>,
    complained: AtomicU64,
}

enum Sink {
    /// A regular file: one `write` in append mode per line, which the kernel keeps apart from those of other workers.
    File(OwnedFd),
    /// Anything that can be slow, stuck or gone.
    Stream(Stream),
}

/// The targets of a configuration by path, so that logs with the same path share one.
#[derive(Clone, Default)]
struct Targets(HashMap<Box<str>, Arc<Target>>);

impl Target {
    /// The target at `path`, which will be opened with the other resources of the configuration.
    pub(super) fn of(scope: &mut Scope, path: &str) -> Arc<Self> {
        let targets = scope.shared.edit::<Targets>();
        if let Some(target) = targets.0.get(path) {
            return Arc::clone(target);
        }
        let target = Arc::new(Self::new(path));
        targets.0.insert(path.into(), Arc::clone(&target));
        let resources = scope.shared.edit::<Resources>();
        resources.0.push(Arc::<Self>::clone(&target));
        target
    }

    pub(super) fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            sink: OnceLock::new(),
            complained: AtomicU64::new(0),
        }
    }

    /// Writes a line, which ends in a line feed. Whatever happens to it, the caller goes on. `unix_time` is now.
    pub(super) fn write(&self, line: &[u8], unix_time: Duration) {
        match self.sink.get() {
            Some(Sink::File(file)) => {
                if let Err(error) = write_once(file, line) {
                    self.complain(error, unix_time);
                }
            }
            Some(Sink::Stream(stream)) => stream.write(line, unix_time),
            None => {}
        }
    }

    #[cold]
    fn complain(&self, error: rustix::io::Errno, unix_time: Duration) {
        let last = self.complained.load(Relaxed);
        let now = unix_time.as_secs();
        if now.saturating_sub(last) >= COMPLAINT_INTERVAL.as_secs()
            && self
                .complained
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_ok()
        {
            let reason = reason(&error.into());
            h2o_exchange::report!(
                "[access-log] failed to write to log file:{}:{reason}",
                self.path
            );
        }
    }
}

impl Resource for Target {
    fn open(&self) -> Result<(), String> {
        let sink = if let Some(command) = self.path.strip_prefix('|') {
            let command = command.trim_start();
            spawn(command)
                .map_err(|error| format!("failed to open logger: {command}:{}", reason(&error)))?
        } else {
            open_path(&self.path).map_err(|error| {
                format!("failed to open log file:{}:{}", self.path, reason(&error))
            })?
        };
        // Opening twice leaves the first in place; the second is closed again.
        let _ = self.sink.set(sink);
        Ok(())
    }
}

fn spawn(command: &str) -> io::Result<Sink> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .spawn()?;
    let stdin = child
        .stdin
        .take()
        .expect("the command was given a pipe just above");
    let stream = Stream::new(command, stdin.into(), Some(child))?;
    Ok(Sink::Stream(stream))
}

fn open_path(path: &str) -> io::Result<Sink> {
    let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true).mode(0o644);
    let fd = match kind {
        Ok(kind) if kind.is_socket() => OwnedFd::from(UnixStream::connect(path)?),
        Ok(kind) if kind.is_fifo() => {
            // Open for reading too: neither opening nor writing then depends on a reader being there.
            let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
            options
                .read(true)
                .create(false)
                .custom_flags(nonblocking)
                .open(path)?
                .into()
        }
        Ok(kind) if kind.is_char_device() => options.open(path)?.into(),
        _ => return Ok(Sink::File(options.open(path)?.into())),
    };
    Ok(Sink::Stream(Stream::new(path, fd, None)?))
}

fn write_once(file: &OwnedFd, line: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::write(file, line))
}

/// The system's words for an error, without the number that Rust adds.
pub(super) fn reason(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(at) = text.rfind(" (os error ") {
        text.truncate(at);
    }
    text
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
        let Some(Sink::Stream(stream)) = target.sink.into_inner() else {
            panic!("a command is a stream")
        };
        stream.close_and_wait();
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
        Target::new("/nowhere").write(b"line\n", Duration::ZERO);
    }
}
