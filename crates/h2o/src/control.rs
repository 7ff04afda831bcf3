//! The control socket: a Unix socket beside the pid file, through which `h2o reload` and `h2o top` talk to the running
//! server.
//!
//! The file belongs to the user who starts the server, and only that user and root can connect.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use h2o_config::OsSource;
use h2o_log::{reason, report};
use nix::sys::stat::{Mode, umask};

use crate::events::Event;
use crate::getopt::{Known, letter, long};
use crate::question::{Answer, Question};
use crate::{Failure, default_config};

/// How long the server waits for the line in which a client of the control socket sends its question.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest length in bytes of the line that a client of the control socket sends.
const LONGEST: u64 = 64;

/// The control socket of this server. Its file is removed on drop.
///
/// The socket is opened under a temporary name, and gets its own by [`publish`](Self::publish) once the server serves. Until then, and if
/// this server fails to start, its own name leads to the socket of the server that still runs.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    /// The temporary name of the socket's file, until [`publish`](Self::publish) renames it.
    unpublished: PathBuf,
    path: PathBuf,
    /// Device and inode of the socket's file. They show whether a file of this name is still this server's: a server that takes over
    /// replaces it.
    file: (u64, u64),
}

/// The path of the control socket of the server that has this pid file.
fn path_of(pid_file: &Path) -> PathBuf {
    let mut path = pid_file.as_os_str().to_owned();
    path.push(".sock");
    path.into()
}

/// Whether a running server answers on the control socket beside this pid file.
pub(crate) fn is_answered(pid_file: &Path) -> bool {
    UnixStream::connect(path_of(pid_file)).is_ok()
}

impl ControlSocket {
    /// Opens the control socket with the rights of the starting user. Must be called before threads are started, because it changes
    /// the umask of the whole process for a moment.
    pub(crate) fn open(pid_file: &Path) -> Option<Self> {
        let path = path_of(pid_file);
        Self::try_open(&path)
            .map_err(|error| warn("open", &path, &error))
            .ok()
    }

    fn try_open(path: &Path) -> std::io::Result<Self> {
        let unpublished = path.with_extension(format!("new.{}", std::process::id()));
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(&unpublished);
        umask(before);
        let listener = listener?;
        let found = fs::symlink_metadata(&unpublished)?;
        h2o_opener::will_rename(&unpublished, path);
        h2o_opener::will_remove(&unpublished);
        h2o_opener::will_remove(path);
        Ok(Self {
            listener,
            unpublished,
            path: path.to_owned(),
            file: (found.dev(), found.ino()),
        })
    }

    /// Gives the socket its own name: from now on clients reach this server, and no longer the server that it replaces.
    pub(crate) fn publish(&self) {
        if let Err(error) = h2o_opener::rename(&self.unpublished, &self.path) {
            warn("rename", &self.path, &error);
        }
    }

    /// Starts the thread that turns the questions of clients into events for the main thread.
    pub(crate) fn begin(&self, events: &Sender<Event>) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::system(format!(
                "failed to start the thread of the control socket: {}",
                reason(&error)
            ))
        };
        let listener = self.listener.try_clone().map_err(failed)?;
        let events = events.clone();
        let serve = move || {
            for client in listener.incoming().flatten() {
                let events = events.clone();
                // Each client of the control socket is answered by a thread of its own: the client may be slow, and the answer may have
                // to wait for workers that are busy. Errors are ignored: a client that sends no question, or has disconnected, must not
                // affect other clients.
                let thread = std::thread::Builder::new().name("h2o-client".to_owned());
                let _ = thread.spawn(move || answer(client, &events));
            }
        };
        let thread = std::thread::Builder::new().name("h2o-control".to_owned());
        thread.spawn(serve).map(drop).map_err(failed)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        for path in [&self.unpublished, &self.path] {
            let found = fs::symlink_metadata(path);
            if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
                let _ = h2o_opener::remove(path);
            }
        }
    }
}

/// Warns that the control socket cannot be opened or renamed.
fn warn(step: &str, path: &Path, error: &std::io::Error) {
    report!(
        warning,
        "failed to {step} the control socket {}: {}; `h2o reload` and `h2o top` will not find this server",
        path.display(),
        reason(error)
    );
}

fn answer(mut client: UnixStream, events: &Sender<Event>) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&client).take(LONGEST)).read_line(&mut line)?;
    let Some(question) = Question::parse(line.trim_end()) else {
        return Ok(());
    };
    let (sender, reply) = channel();
    // The client gets no answer if the server is ending.
    if events.send(Event::Question(question, sender)).is_ok()
        && let Ok(reply) = reply.recv()
    {
        client.write_all(reply.wait().encode().as_bytes())?;
    }
    Ok(())
}

/// The options by which commands such as `h2o reload` find the running server.
#[derive(Default)]
pub(crate) struct ServerChoice {
    /// The configuration file given by `--conf`; `None` for [`default_config`].
    pub(crate) config: Option<String>,
    /// The pid file given by `--pid-file`.
    pub(crate) pid_file: Option<String>,
}

impl ServerChoice {
    /// Describes the option `--conf` of commands such as `h2o reload`, which find the running server by its configuration.
    pub(crate) const fn conf<F: Copy>(flag: F) -> Known<F> {
        letter('c', "conf", true, flag).help(
            "FILE",
            "the configuration whose pid-file leads to the server (default:\n/usr/local/etc/h2o.conf, or else /etc/h2o/h2o.conf)",
        )
    }

    /// Describes the option `--pid-file` of commands such as `h2o reload`, which find the running server by its pid file.
    pub(crate) const fn pid_file<F: Copy>(flag: F) -> Known<F> {
        long("pid-file", true, flag).help(
            "FILE",
            "the pid file of the running server, in place of --conf",
        )
    }

    /// The path of the server's pid file: from `--pid-file`, or otherwise from the configuration. The rest of the configuration is
    /// not checked here: the server reports what is wrong with it.
    ///
    /// # Errors
    /// If the configuration cannot be read, or does not set `pid-file`.
    pub(crate) fn find(self) -> Result<String, Failure> {
        if let Some(path) = self.pid_file {
            return Ok(path);
        }
        let config = match &self.config {
            Some(path) => path.as_str(),
            None => default_config()?,
        };
        let top = h2o_config::load(config, &OsSource)
            .map_err(|error| Failure::config(error.to_string()))?;
        let entries = top.as_mapping().unwrap_or_default().iter();
        let named = entries.filter(|(key, _)| key.as_str() == Some("pid-file"));
        let path = named.filter_map(|(_, value)| value.as_str()).next_back();
        path.map(str::to_owned).ok_or_else(|| {
            Failure::config(format!(
                "{config} has no `pid-file`, so the running server cannot be found"
            ))
        })
    }
}

/// Sends a question to the server that has this pid file, and returns its answer.
///
/// # Errors
/// If no server answers.
pub(crate) fn ask(pid_file: &Path, question: Question) -> Result<Answer, Failure> {
    let path = path_of(pid_file);
    let failed =
        |text: &str| Failure::system(format!("no server answers at {}: {text}", path.display()));
    let mut text = String::new();
    UnixStream::connect(&path)
        .and_then(|mut server| {
            writeln!(server, "{}", question.line())?;
            server.read_to_string(&mut text)
        })
        .map_err(|error| failed(&reason(&error)))?;
    Answer::decode(&text)
        .ok_or_else(|| failed("the server closed the connection without an answer"))
}
