//! Opens files and runs commands with the rights of the calling process.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// The error of `open` for a symbolic link under `O_NOFOLLOW`.
const LOOP: i32 = rustix::io::Errno::LOOP.raw_os_error();

/// The beginning of the paths of directories that have the sockets of FastCGI applications.
pub const APPLICATION_DIRECTORY: &str = "/tmp/h2o.fcgisock.";

/// The command line by which this program starts itself to run a FastCGI application: `NAME PIPE DIRECTORY USER
/// COMMAND`, where `PIPE` is the number of the descriptor that tells when to end the application, and an empty `USER`
/// is the user of the process.
pub const APPLICATION_HELPER: &str = "run-application";

/// A running log command.
pub enum RunningCommand {
    /// A command that is a child of this process.
    Child(Child),
    /// A command that is a child of the keeper (the process with the starting user's rights), which writes the exit status
    /// of the command into this pipe.
    Kept(OwnedFd),
}

impl RunningCommand {
    /// Waits for the end of the command and returns its exit status as text.
    #[must_use]
    pub fn wait(self) -> String {
        match self {
            Self::Child(mut child) => status(&mut child),
            Self::Kept(pipe) => {
                let mut text = String::new();
                match File::from(pipe).read_to_string(&mut text) {
                    Ok(_) if !text.is_empty() => text,
                    _ => "the exit status is unknown".to_owned(),
                }
            }
        }
    }
}

/// A network socket that is to be bound to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// The address to which the socket is bound.
    pub address: SocketAddr,
    /// Whether it is a TCP socket; otherwise it is a UDP socket.
    pub is_tcp: bool,
    /// Whether other sockets may be bound to the same port (`SO_REUSEPORT`).
    pub shares_port: bool,
}

impl SocketSpec {
    /// The name of the task to bind this socket, which the keeper (the process with the starting user's rights) gets:
    /// `TRANSPORT ADDRESS:PORT`, and ` shared` if [`shares_port`](Self::shares_port) is set.
    pub(crate) fn name(&self) -> String {
        let transport = if self.is_tcp { "tcp" } else { "udp" };
        let shared = if self.shares_port { " shared" } else { "" };
        format!("{transport} {}{shared}", self.address)
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (name, shares_port) = match name.strip_suffix(" shared") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let (transport, address) = name.split_once(' ')?;
        let spec = Self {
            address: address.parse().ok()?,
            is_tcp: transport == "tcp",
            shares_port,
        };
        (spec.is_tcp || transport == "udp").then_some(spec)
    }
}

pub(crate) fn bound_socket(spec: SocketSpec) -> io::Result<OwnedFd> {
    let kind = if spec.is_tcp {
        SocketType::STREAM
    } else {
        SocketType::DGRAM
    };
    let family = match spec.address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    if spec.is_tcp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if spec.address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if spec.shares_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &spec.address)?;
    Ok(socket)
}

pub(crate) fn status(child: &mut Child) -> String {
    match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Standard output and standard error of programs; `None` for those of this process.
static OUTPUT: Mutex<Option<OwnedFd>> = Mutex::new(None);

pub(crate) fn set_program_output(output: Option<OwnedFd>) {
    *OUTPUT.lock().unwrap_or_else(PoisonError::into_inner) = output;
}

/// Gives the program that `command` is to start its standard output and standard error.
fn direct_output(command: &mut Command) -> io::Result<()> {
    let output = OUTPUT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(output) = &*output {
        command.stdout(output.try_clone()?);
        command.stderr(output.try_clone()?);
    }
    Ok(())
}

pub(crate) fn spawn(command: &str, input: &OwnedFd) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", command])
        .env("H2O_ROOT", crate::installation_root())
        .stdin(Stdio::from(input.try_clone()?));
    direct_output(&mut shell)?;
    shell.spawn()
}

pub(crate) fn run_application(user: &str, command: &str, socket: &OwnedFd) -> io::Result<OwnedFd> {
    let directory = application_directory(socket)?;
    let (end, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut helper = Command::new("/proc/self/exe");
    helper
        .arg0(APPLICATION_HELPER)
        .arg(end.as_raw_fd().to_string())
        .arg(directory)
        .args([user, command])
        .stdin(Stdio::from(socket.try_clone()?))
        // The process that runs the application gets a process group of its own, so that signals of the server's terminal do
        // not reach the application.
        .process_group(0);
    // The read end of the pipe is made inheritable. Another process that is started at the same time inherits it as
    // well, which does no harm, since it can only be read.
    rustix::io::fcntl_setfd(&end, rustix::io::FdFlags::empty())?;
    direct_output(&mut helper)?;
    let mut child = helper.spawn()?;
    // The thread waits for the application's helper process, so that it does not become a zombie.
    std::thread::Builder::new().spawn(move || status(&mut child))?;
    Ok(pipe)
}

/// Returns the directory of an application's socket, which is removed later with the rights of this process. So only a
/// directory with a name that cannot lead elsewhere is allowed.
fn application_directory(socket: &OwnedFd) -> io::Result<PathBuf> {
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket)?)?;
    let path = address.path_bytes().map(OsStr::from_bytes).map(Path::new);
    let directory = path.and_then(Path::parent);
    let rest = directory.and_then(|directory| {
        let bytes = directory.as_os_str().as_bytes();
        bytes.strip_prefix(APPLICATION_DIRECTORY.as_bytes())
    });
    match (directory, rest) {
        (Some(directory), Some(rest)) if rest.iter().all(u8::is_ascii_alphanumeric) => {
            Ok(directory.to_owned())
        }
        _ => Err(io::Error::other(
            "the socket of an application is not in a directory whose name begins with /tmp/h2o.fcgisock.",
        )),
    }
}

pub(crate) fn log_file(path: &str) -> io::Result<OwnedFd> {
    let file = open(path.as_ref(), OpenOptions::new().append(true).create(true))?;
    if !file.metadata()?.file_type().is_file() {
        return Err(io::Error::other("the file is no longer a regular file"));
    }
    Ok(file.into())
}

/// Opens a file with the mode 0644. If the process runs as root, it only follows symbolic links that root owns.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.mode(0o644);
    let without_links = flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    match options.custom_flags(without_links).open(path) {
        Err(error) if error.raw_os_error() == Some(LOOP) => {
            refuse_strange_link(&std::fs::symlink_metadata(path)?)?;
            options.custom_flags(flags(OFlags::NONBLOCK)).open(path)
        }
        opened => opened,
    }
}

pub(crate) fn log_stream(path: &str) -> io::Result<OwnedFd> {
    let link = std::fs::symlink_metadata(path)?;
    if link.file_type().is_symlink() {
        refuse_strange_link(&link)?;
    }
    let kind = std::fs::metadata(path)?.file_type();
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(flags(OFlags::NONBLOCK));
    if kind.is_socket() {
        return connect(path);
    } else if kind.is_fifo() {
        // The pipe is opened for reading, too: otherwise opening it, and later writing to it, would fail while it has no
        // reader.
        options.read(true);
    } else if !kind.is_char_device() {
        return Err(io::Error::other(
            "the file is no longer a socket, a pipe or a device",
        ));
    }
    options.open(path).map(OwnedFd::from)
}

/// Connects to a Unix socket without waiting. Fails if the backlog of the listener is full.
fn connect(path: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Refuses a symbolic link that root does not own, if the process runs as root: in a directory that another user may
/// write to, a link could lead to any file. The kernel enforces the same in directories like `/tmp`
/// (`fs.protected_symlinks`), but not in others.
fn refuse_strange_link(link: &Metadata) -> io::Result<()> {
    if rustix::process::geteuid().is_root() && link.uid() != 0 {
        return Err(io::Error::other(format!(
            "the file is a symbolic link of user {}, which the server does not follow as root",
            link.uid()
        )));
    }
    Ok(())
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}
