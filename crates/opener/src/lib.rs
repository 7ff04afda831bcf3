//! Opens logs and reads certificates with the rights of the starting user, also after the server has given these rights up.
//!
//! Started by root, the server becomes another user before it serves. That user may neither create a log in `/var/log` nor
//! read a private key, so it could neither rotate logs nor renew certificates. Hence the [`keeper`](start_keeper): a second
//! process of the same program that keeps running as root. It has no network connection, reads only requests of the server,
//! and does only what the configuration says: open and rotate those logs, run those log commands and applications, read
//! those files, bind those ports and Unix sockets, remove the pid file and the socket beside it. Before a reload it reads the configuration
//! itself.
//!
//! Without a keeper the calling process does everything itself.

mod direct;
mod installation;
mod keeper;
mod message;
mod rotation;
mod unix_socket;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

pub use direct::{APPLICATION_DIRECTORY, APPLICATION_HELPER, RunningCommand, SocketSpec};
pub use installation::{command_path, installation_root};
pub use keeper::{KEEPER_ARGUMENT, keep, start_keeper};
pub use message::{Message, receive as receive_message, send as send_message};
pub use rotation::{Rotation, has_birth_time};
pub use unix_socket::{UnixSocketSpec, refuse_live_socket};

use keeper::{Task, remember, request_descriptor, request_task};

/// Opens a regular file for appending, and creates it if it does not exist.
///
/// # Errors
/// The system's error of opening the file; also if the file is not a regular one, or is a symbolic link that root does
/// not follow.
pub fn log_file(path: &str) -> io::Result<OwnedFd> {
    remember(Task::LogFile, path.as_ref());
    request_descriptor(Task::LogFile, path.as_ref(), None).unwrap_or_else(|| direct::log_file(path))
}

/// Allows the keeper (the process with the starting user's rights) to open a log file that another process has opened for
/// this one.
pub fn allow_log_file(path: &str) {
    remember(Task::LogFile, path.as_ref());
}

/// Rotates the log file at `path` if that is due and no other process is doing it: renames it, creates an empty one with the
/// same owner and mode, and begins to compress and remove older ones. If this work fails, the message about it can be read
/// from the returned pipe, which ends when the work ends. The caller then has to open the log file anew, even if another
/// process has rotated it.
///
/// # Errors
/// The system's error of renaming or creating a file; also if the log is a symbolic link, or not a regular file.
pub fn rotate_log(path: &str, rotation: Rotation) -> io::Result<OwnedFd> {
    let name = rotation.task_name(path);
    request_descriptor(Task::Rotate, name.as_ref(), None)
        .unwrap_or_else(|| rotation::rotate(path.as_ref(), rotation))
}

/// Announces to the keeper (the process with the starting user's rights) that [`rotate_log`] will be called with these
/// arguments.
pub fn will_rotate(path: &str, rotation: Rotation) {
    remember(Task::Rotate, rotation.task_name(path).as_ref());
}

/// Connects to a Unix socket, or opens a named pipe or a character device for appending. Reads and writes of the descriptor
/// do not wait, but opening a device may.
///
/// # Errors
/// The system's error of opening; also if the path leads to another kind of file, or to a symbolic link that root does
/// not follow.
pub fn log_stream(path: &str) -> io::Result<OwnedFd> {
    remember(Task::LogStream, path.as_ref());
    request_descriptor(Task::LogStream, path.as_ref(), None)
        .unwrap_or_else(|| direct::log_stream(path))
}

/// Gives the programs that this process starts from now on `output` as their standard output and standard error; `None`: those of
/// this process. While the server starts, its own standard error is the terminal, but its programs write to the error log.
pub fn set_program_output(output: Option<OwnedFd>) {
    direct::set_program_output(output);
}

/// Runs a log command by `/bin/sh -c`, with `input` as its standard input.
///
/// # Errors
/// The system's error, if the command cannot be started.
pub fn log_command(text: &str, input: &OwnedFd) -> io::Result<RunningCommand> {
    remember(Task::LogCommand, text.as_ref());
    match request_descriptor(Task::LogCommand, text.as_ref(), Some(input.as_fd())) {
        Some(status) => Ok(RunningCommand::Kept(status?)),
        None => direct::spawn(text, input).map(RunningCommand::Child),
    }
}

/// Runs the application of a `fastcgi.spawn` directive: `command` of the shell, by `user` or else by the user of this
/// process, with the listening `socket` as its standard input. It is started again whenever it ends. It ends, and the
/// directory of the socket is removed, when the returned descriptor is closed.
///
/// # Errors
/// The system's error, if the process cannot be started; also if this user may not run programs as another one, or the
/// socket is not in a directory of [`APPLICATION_DIRECTORY`].
pub fn application(user: Option<&str>, command: &str, socket: &OwnedFd) -> io::Result<OwnedFd> {
    let Some(user) = user else {
        return direct::run_application("", command, socket);
    };
    let name = application_name(user, command);
    remember(Task::Application, name.as_ref());
    request_descriptor(Task::Application, name.as_ref(), Some(socket.as_fd())).unwrap_or_else(
        || {
            if !rustix::process::geteuid().is_root() {
                let text = format!("only root may run the application as user {user}");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            direct::run_application(user, command, socket)
        },
    )
}

/// Announces to the keeper (the process with the starting user's rights) that [`application`] will be called with these
/// arguments.
pub fn will_run(user: &str, command: &str) {
    let name = application_name(user, command);
    remember(Task::Application, name.as_ref());
}

/// The name of the task to run an application, which the keeper (the process with the starting user's rights) gets.
fn application_name(user: &str, command: &str) -> String {
    format!("{user}\0{command}")
}

/// Opens a network socket and binds it.
///
/// # Errors
/// The system's error, if the socket cannot be bound.
pub fn bound_socket(spec: SocketSpec) -> io::Result<OwnedFd> {
    // A port that is shared (`SO_REUSEPORT`) is in use for another user than the one whose sockets share it, who may be the starting user.
    let may_help = |kind| {
        kind == io::ErrorKind::PermissionDenied
            || kind == io::ErrorKind::AddrInUse && spec.shares_port
    };
    match direct::bound_socket(spec) {
        Err(error) if may_help(error.kind()) => {
            let kept = request_descriptor(Task::Bind, spec.name().as_ref(), None);
            kept.and_then(Result::ok).ok_or(error)
        }
        bound => bound,
    }
}

/// Binds a Unix socket to its path, and sets the access to its file. An old socket to which nobody listens is removed first.
///
/// # Errors
/// The message for the administrator, with the error of the system.
pub fn unix_socket(spec: &UnixSocketSpec) -> io::Result<OwnedFd> {
    request_descriptor(Task::UnixSocket, &spec.name(), None).unwrap_or_else(|| spec.bind())
}

/// Announces to the keeper (the process with the starting user's rights) that [`unix_socket`] will be called with this argument.
pub fn will_bind_unix(spec: &UnixSocketSpec) {
    remember(Task::UnixSocket, &spec.name());
}

/// Lets the keeper (the process with the starting user's rights) read the configuration `config` again, whose name was
/// [announced](will_learn). From then on the keeper permits the tasks in it.
///
/// # Errors
/// The reason why the configuration cannot be used. Without a keeper there is no error, and nothing is done.
pub fn learn(config: &str) -> io::Result<()> {
    let learnt = request_task(Task::Learn, config.as_ref(), None);
    learnt.map_or(Ok(()), |learnt| learnt.map(drop))
}

/// Announces that the keeper (the process with the starting user's rights) may be asked to [`learn`] from a configuration.
pub fn will_learn(config: &str) {
    remember(Task::Learn, config.as_ref());
}

/// Announces to the keeper (the process with the starting user's rights) that [`bound_socket`] will be called with this
/// argument.
pub fn will_bind(spec: SocketSpec) {
    remember(Task::Bind, spec.name().as_ref());
}

/// Announces to the keeper (the process with the starting user's rights) that [`read`] or [`open`] will be called for this
/// path.
pub fn will_read(path: &str) {
    remember(Task::Read, path.as_ref());
}

/// Announces to the keeper (the process with the starting user's rights) that [`expand`] will be called with this pattern.
pub fn will_expand(pattern: &str) {
    remember(Task::Expand, pattern.as_ref());
}

/// Has the keeper (the process with the starting user's rights) list the files that match a pattern in the configuration; `None` without
/// a keeper. The running user may see fewer of them.
pub fn expand(pattern: &str) -> Option<io::Result<Vec<String>>> {
    let listed = request_descriptor(Task::Expand, pattern.as_ref(), None)?;
    Some(listed.and_then(|file| {
        let text = io::read_to_string(File::from(file))?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }))
}

/// Announces to the keeper (the process with the starting user's rights) that [`log_file`] or [`log_stream`] will be called
/// for this path.
pub fn will_log(path: &str) {
    remember(Task::LogFile, path.as_ref());
    remember(Task::LogStream, path.as_ref());
}

/// Announces to the keeper (the process with the starting user's rights) that [`log_command`] will be called with this
/// command.
pub fn will_log_by(command: &str) {
    remember(Task::LogCommand, command.as_ref());
}

/// Opens the pid file or a similar file, which is written once and removed when the server ends; creates it if it does
/// not exist. Opening the file keeps its old content.
///
/// # Errors
/// The system's error, if the file cannot be opened; also if it is a symbolic link that root does not follow.
pub fn pid_file(path: &Path) -> io::Result<File> {
    remember(Task::Remove, path.as_os_str());
    direct::open(path, File::options().write(true).create(true))
}

/// Announces to the keeper (the process with the starting user's rights) that [`remove`] will be called for a file: a socket
/// beside the pid file.
pub fn will_remove(path: &Path) {
    remember(Task::Remove, path.as_os_str());
}

/// Removes a file that was opened by [`pid_file`], or announced by [`will_remove`].
///
/// # Errors
/// The system's error, if the file cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = request_task(Task::Remove, path.as_os_str(), None);
    removed.map_or_else(|| std::fs::remove_file(path), |removed| removed.map(drop))
}

/// Announces to the keeper (the process with the starting user's rights) that [`rename`] will be called with these paths.
pub fn will_rename(from: &Path, to: &Path) {
    remember(Task::Rename, &both(from, to));
}

/// Renames a file beside the pid file, as announced by [`will_rename`].
///
/// # Errors
/// The system's error, if the file cannot be renamed.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = request_task(Task::Rename, &both(from, to), None);
    renamed.map_or_else(|| std::fs::rename(from, to), |renamed| renamed.map(drop))
}

/// The paths of a rename in the form in which they are sent to the keeper (the process with the starting user's rights).
fn both(from: &Path, to: &Path) -> OsString {
    let mut paths = from.as_os_str().to_owned();
    paths.push("\0");
    paths.push(to);
    paths
}

/// Facts about a file (mtime, length, inode) that change when the file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: (i64, i64),
    len: u64,
    inode: u64,
}

/// The mtime, length and inode of a file that the configuration names; `None` if the file cannot be opened.
pub fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt;
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let file = request_descriptor(Task::Read, path.as_os_str(), None)?;
            File::from(file.ok()?).metadata()
        }
        found => found,
    };
    let metadata = metadata.ok()?;
    Some(Stamp {
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        len: metadata.len(),
        inode: metadata.ino(),
    })
}

/// Opens a file that the configuration names, for reading.
///
/// # Errors
/// The system's error, if the file cannot be opened.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let kept = request_descriptor(Task::Read, path.as_os_str(), None);
            kept.unwrap_or(Err(error))
        }
        Err(error) => Err(error),
        Ok(file) => {
            remember(Task::Read, path.as_os_str());
            Ok(file.into())
        }
    }
}

/// Reads a file that the configuration names.
///
/// # Errors
/// The system's error, if the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let read = std::fs::read(path);
    match &read {
        Ok(_) => remember(Task::Read, path.as_os_str()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if let Some(file) = request_descriptor(Task::Read, path.as_os_str(), None) {
                let mut text = Vec::new();
                io::Read::read_to_end(&mut File::from(file?), &mut text)?;
                return Ok(text);
            }
        }
        Err(_) => {}
    }
    read
}
