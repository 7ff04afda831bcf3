//! The keeper: a process that keeps the rights of the starting user.
//!
//! Server and keeper talk over a socket that preserves message boundaries. The server first sends the list of permitted
//! tasks, one message each, and an empty message. Then it sends requests, which must be on that list. The keeper answers
//! each with a descriptor or the text of an error.
//!
//! For a reload the server asks the keeper to read the configuration, whose name is on the list. From then on the
//! keeper permits the tasks in it as well. So the permissions are decided by the users who can write the configuration,
//! not by the server.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::direct::{self, SocketSpec};
use crate::message::{receive, send, text_of};
use crate::rotation::{self, Rotation};
use crate::unix_socket::UnixSocketSpec;

/// The only argument of a program that is to run as a keeper.
pub const KEEPER_ARGUMENT: &str = "--keeper";

/// Length in bytes of the longest message. A task with a longer name is not put on the list of permitted tasks.
const LONGEST: usize = 64 * 1024;

/// A kind of task that the keeper does for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Task {
    LogFile = b'f',
    LogStream = b's',
    LogCommand = b'c',
    Rotate = b'o',
    Application = b'a',
    Read = b'r',
    Expand = b'e',
    Remove = b'd',
    Rename = b'm',
    Bind = b'b',
    UnixSocket = b'u',
    Learn = b'l',
}

impl Task {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::LogFile,
            Self::LogStream,
            Self::LogCommand,
            Self::Rotate,
            Self::Application,
            Self::Read,
            Self::Expand,
            Self::Remove,
            Self::Rename,
            Self::Bind,
            Self::UnixSocket,
            Self::Learn,
        ];
        all.into_iter().find(|task| *task as u8 == byte)
    }
}

type Tasks = HashSet<(Task, OsString)>;

/// Tasks that were done with the rights of the starting user, or announced: the list of tasks that the keeper (the process
/// that keeps these rights) may do.
static DONE: Mutex<Option<Tasks>> = Mutex::new(None);

/// The server's end of the socket to the keeper.
static KEEPER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a task on the list of those that the keeper may do.
pub(crate) fn remember(task: Task, name: &OsStr) {
    if KEEPER.get().is_none() && name.len() < LONGEST {
        let mut done = lock(&DONE);
        let done = done.get_or_insert_default();
        done.insert((task, name.to_owned()));
    }
}

/// Starts the keeper, the process that keeps the starting user's rights: `program` with [`KEEPER_ARGUMENT`], which calls
/// [`keep`]. It may do the tasks that were done or announced so far. Log commands that it starts write to `output`, if
/// given, else to the outputs of this process.
///
/// # Errors
/// The system's error, if the process cannot be started.
pub fn start_keeper(program: &str, output: Option<OwnedFd>) -> io::Result<()> {
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(program);
    command.arg0("h2o").arg(KEEPER_ARGUMENT).stdin(theirs);
    if let Some(output) = output {
        command.stdout(output.try_clone()?).stderr(output);
    }
    // The keeper ends when this process ends, since that closes the socket.
    drop(command.spawn()?);
    for (task, name) in lock(&DONE).take().unwrap_or_default() {
        send(&ours, task as u8, name.as_bytes(), None)?;
    }
    send(&ours, 0, b"", None)?;
    let _ = KEEPER.set(Mutex::new(ours));
    Ok(())
}

/// First byte of an answer of the keeper: the task was done, or it was refused
/// and the reason follows.
const DONE_SO: u8 = 1;
const REFUSED: u8 = 0;

/// Asks the keeper for a descriptor; `None` if there is no keeper, or the
/// keeper has ended.
pub(crate) fn request_descriptor(
    task: Task,
    name: &OsStr,
    descriptor: Option<BorrowedFd<'_>>,
) -> Option<io::Result<OwnedFd>> {
    let answer = request_task(task, name, descriptor)?;
    let descriptor = |found: Option<_>| {
        found.ok_or_else(|| io::Error::other("the keeper process sent no file descriptor"))
    };
    Some(answer.and_then(descriptor))
}

/// Lets the keeper do a task; `None` if there is no keeper, or the keeper has
/// ended.
pub(crate) fn request_task(
    task: Task,
    name: &OsStr,
    descriptor: Option<BorrowedFd<'_>>,
) -> Option<io::Result<Option<OwnedFd>>> {
    let keeper = lock(KEEPER.get()?);
    send(&*keeper, task as u8, name.as_bytes(), descriptor).ok()?;
    let mut buffer = vec![0; LONGEST];
    let answer = receive(&*keeper, &mut buffer).ok().flatten()?;
    Some(if answer.byte == DONE_SO {
        Ok(answer.descriptor)
    } else {
        let text = String::from_utf8_lossy(answer.text);
        Err(io::Error::other(text.into_owned()))
    })
}

/// The main loop of the keeper: does the tasks that the server at the other end of `socket` asks for, until the server has ended. `learn`
/// reads a configuration: the tasks that it does or [announces](crate::will_bind) are permitted afterwards. `expand` returns the files that match a pattern.
///
/// # Errors
/// The system's error, if the socket fails.
pub fn keep(
    socket: impl AsFd,
    mut learn: impl FnMut(&str) -> Result<(), String>,
    expand: impl Fn(&str) -> io::Result<Vec<String>>,
) -> io::Result<()> {
    let socket = socket.as_fd();
    let mut buffer = vec![0; LONGEST];
    let mut allowed = Tasks::new();
    while let Some(message) = receive(socket, &mut buffer)? {
        let Some(task) = Task::of(message.byte) else {
            break;
        };
        allowed.insert((task, OsString::from_vec(message.text.to_vec())));
    }
    while let Some(message) = receive(socket, &mut buffer)? {
        let task = Task::of(message.byte);
        let request = task.map(|task| (task, OsString::from_vec(message.text.to_vec())));
        let done = match request {
            Some((Task::Learn, name)) if allowed.contains(&(Task::Learn, name.clone())) => {
                let learnt = learn(&name.to_string_lossy());
                allowed.extend(lock(&DONE).take().unwrap_or_default());
                learnt.map(|()| None).map_err(io::Error::other)
            }
            Some((Task::Expand, name)) if allowed.contains(&(Task::Expand, name.clone())) => {
                expand(&name.to_string_lossy()).and_then(|paths| list(&paths).map(Some))
            }
            Some(request) if allowed.contains(&request) => {
                do_task(request.0, &request.1, message.descriptor)
            }
            Some(_) | None => Err(io::Error::other(
                "the loaded configuration does not name this file, socket or command",
            )),
        };
        match done {
            Ok(descriptor) => {
                let descriptor = descriptor.as_ref().map(AsFd::as_fd);
                send(socket, DONE_SO, b"", descriptor)?;
            }
            Err(error) => send(socket, REFUSED, text_of(&error).as_bytes(), None)?,
        }
    }
    Ok(())
}

fn do_task(task: Task, name: &OsStr, descriptor: Option<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    let text = || {
        let text = name.to_str();
        text.ok_or_else(|| io::Error::other("the path or command of the task is not UTF-8"))
    };
    match task {
        Task::LogFile => direct::log_file(text()?).map(Some),
        Task::LogStream => direct::log_stream(text()?).map(Some),
        Task::Rotate => {
            let parts = Rotation::parse(text()?);
            let (rotation, path) = parts
                .ok_or_else(|| io::Error::other("the task that rotates a log is not complete"))?;
            rotation::rotate(path.as_ref(), rotation).map(Some)
        }
        Task::Read => std::fs::File::open(name).map(|file| Some(file.into())),
        Task::Remove => std::fs::remove_file(name).map(|()| None),
        Task::Rename => {
            let mut paths = name.as_bytes().splitn(2, |byte| *byte == 0);
            let mut next = || Some(OsStr::from_bytes(paths.next()?));
            let (Some(from), Some(to)) = (next(), next()) else {
                return Err(io::Error::other(
                    "the task that renames a file names no new path",
                ));
            };
            std::fs::rename(from, to).map(|()| None)
        }
        Task::Bind => {
            let spec = SocketSpec::parse(text()?);
            let spec = spec.ok_or_else(|| {
                io::Error::other("the task that binds a socket names no valid address")
            })?;
            direct::bound_socket(spec).map(Some)
        }
        Task::UnixSocket => {
            let spec = UnixSocketSpec::parse(name);
            let spec = spec.ok_or_else(|| {
                io::Error::other("the task that binds a Unix socket is not complete")
            })?;
            spec.bind().map(Some)
        }
        Task::Learn | Task::Expand => Err(io::Error::other(
            "only the main loop of the keeper process reads a configuration and its directories",
        )),
        Task::LogCommand => {
            let input = descriptor.ok_or_else(|| {
                io::Error::other(
                    "the server has passed no pipe for the standard input of the log command",
                )
            })?;
            run(text()?, &input).map(Some)
        }
        Task::Application => {
            let socket = descriptor.ok_or_else(|| {
                io::Error::other("the server has sent no socket for the application")
            })?;
            let parts = text()?.split_once('\0');
            let (user, command) = parts.ok_or_else(|| {
                io::Error::other("the task that starts an application names no user")
            })?;
            direct::run_application(user, command, &socket).map(Some)
        }
    }
}

/// A file in memory with these paths, each before a NUL. They may be longer than a message.
fn list(paths: &[String]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("paths", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    for path in paths {
        file.write_all(path.as_bytes())?;
        file.write_all(b"\0")?;
    }
    file.rewind()?;
    Ok(file.into())
}

/// Starts a log command. When it has ended, its exit status can be read from the returned descriptor.
fn run(command: &str, input: &OwnedFd) -> io::Result<OwnedFd> {
    let (status, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut child = direct::spawn(command, input)?;
    let wait = move || {
        let text = direct::status(&mut child);
        // If the server has ended, writing fails; no process waits for the exit status then.
        let _ = std::fs::File::from(report).write_all(text.as_bytes());
    };
    std::thread::Builder::new().spawn(wait)?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// Starts a keeper's main loop that may do the tasks `allowed`, and returns its answers to `requests`.
    fn answers(
        allowed: &[(Task, &str)],
        requests: &[(u8, &str)],
    ) -> Vec<Result<Option<OwnedFd>, String>> {
        answers_learning(allowed, requests, |_| {
            Err("this keeper has no configuration to read".to_owned())
        })
    }

    fn answers_learning(
        allowed: &[(Task, &str)],
        requests: &[(u8, &str)],
        learn: impl FnMut(&str) -> Result<(), String> + Send,
    ) -> Vec<Result<Option<OwnedFd>, String>> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        std::thread::scope(|scope| {
            let expand = |pattern: &str| Ok(vec![format!("{pattern}1"), format!("{pattern}2")]);
            scope.spawn(move || keep(theirs, learn, expand).unwrap());
            for (task, name) in allowed {
                send(&ours, *task as u8, name.as_bytes(), None).unwrap();
            }
            send(&ours, 0, b"", None).unwrap();
            let input = std::fs::File::open("/dev/null").unwrap();
            let mut buffer = vec![0; LONGEST];
            let answers = requests.iter().map(|(byte, name)| {
                send(&ours, *byte, name.as_bytes(), Some(input.as_fd())).unwrap();
                let answer = receive(&ours, &mut buffer).unwrap().unwrap();
                let text = String::from_utf8(answer.text.to_vec()).unwrap();
                match answer.byte {
                    DONE_SO => Ok(answer.descriptor),
                    _ => Err(text),
                }
            });
            let answers = answers.collect();
            drop(ours);
            answers
        })
    }

    #[test]
    fn a_keeper_lists_the_files_of_patterns_that_were_announced() {
        let answers = answers(&[(Task::Expand, "/a/*")], &[(b'e', "/a/*"), (b'e', "/b/*")]);
        let mut listed = String::new();
        let file = answers[0].as_ref().unwrap().as_ref().unwrap();
        let mut file = std::fs::File::from(file.try_clone().unwrap());
        file.read_to_string(&mut listed).unwrap();
        assert_eq!(listed, "/a/*1\0/a/*2\0");
        assert!(answers[1].is_err());
    }

    #[test]
    fn a_keeper_does_nothing_that_was_not_done_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let name = path.to_str().unwrap();
        std::fs::write(&path, "text").unwrap();
        let unix = format!("- - {name}.socket");
        let requests = [
            (b'f', name),
            (b's', name),
            (b'c', name),
            (b'o', name),
            (b'a', name),
            (b'r', "/etc/passwd"),
            (b'e', "/etc/*"),
            (b'd', name),
            (b'b', "tcp 127.0.0.1:0"),
            (b'u', &unix),
            (b'l', name),
            (b'x', name),
            (0, ""),
        ];
        for answer in answers(&[(Task::Read, name)], &requests) {
            assert_eq!(
                answer.unwrap_err(),
                "the loaded configuration does not name this file, socket or command"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
    }

    #[test]
    fn a_keeper_does_what_the_configuration_says_once_it_has_read_that() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key");
        std::fs::write(&key, "secret").unwrap();
        let key = key.to_str().unwrap();
        let requests = [
            (b'b', "tcp 127.0.0.1:0"),
            (b'r', key),
            (b'l', "other.conf"),
            (b'l', "h2o.conf"),
            (b'b', "tcp 127.0.0.1:0"),
            (b'b', "udp 127.0.0.1:0"),
            (b'r', key),
        ];
        let learn = |name: &str| {
            assert_eq!(name, "h2o.conf");
            let address = "127.0.0.1:0".parse().unwrap();
            crate::will_bind(SocketSpec {
                address,
                is_tcp: true,
                shares_port: false,
            });
            crate::read(key.as_ref())
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let allowed = [(Task::Learn, "h2o.conf")];
        let answers = answers_learning(&allowed, &requests, learn);
        let are_done: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(are_done, [false, false, false, true, true, false, true]);
        let socket = answers.into_iter().nth(4).unwrap().unwrap().unwrap();
        let address = rustix::net::getsockname(&socket).unwrap();
        assert!(std::net::SocketAddr::try_from(address).unwrap().port() > 0);
    }

    #[test]
    fn a_keeper_opens_and_runs_what_it_may_and_says_why_it_cannot() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (log, key, missing) = (path("log"), path("key"), path("no/log"));
        std::fs::write(&key, "secret").unwrap();
        let command = "exit 7";
        let allowed = [
            (Task::LogFile, &*log),
            (Task::LogFile, &*missing),
            (Task::Read, &*key),
            (Task::LogCommand, command),
            (Task::Remove, &*key),
        ];
        let requests = [
            (b'f', &*log),
            (b'f', &*missing),
            (b'r', &*key),
            (b'c', command),
            (b'd', &*key),
        ];
        let mut answers = answers(&allowed, &requests).into_iter();
        let mut next = || {
            answers
                .next()
                .unwrap()
                .map(|found| found.map(std::fs::File::from))
        };
        next().unwrap().unwrap().write_all(b"line\n").unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"line\n");
        assert_eq!(next().unwrap_err(), "No such file or directory");
        for want in ["secret", "exit status: 7"] {
            let mut text = String::new();
            next().unwrap().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, want);
        }
        assert!(next().unwrap().is_none());
        assert!(!std::path::Path::new(&key).exists());
    }
}
