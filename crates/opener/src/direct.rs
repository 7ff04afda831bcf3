//! Opens files and runs commands with the rights of the calling process.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// The error of `open` for a symbolic link under `O_NOFOLLOW`.
const LOOP: i32 = rustix::io::Errno::LOOP.raw_os_error();

/// A running log command.
pub enum RunningCommand {
    /// A child of this process.
    Child(Child),
    /// A child of the keeper, which writes its exit status into this pipe.
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
                    _ => "exit status unknown".to_owned(),
                }
            }
        }
    }
}

/// A socket to be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// Where to.
    pub address: SocketAddr,
    /// TCP, or else UDP.
    pub is_tcp: bool,
    /// Whether other sockets may be bound to the same port (`SO_REUSEPORT`).
    pub shares_port: bool,
}

impl SocketSpec {
    /// `TRANSPORT ADDRESS:PORT`, by which the keeper knows it.
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

pub(crate) fn spawn(command: &str, input: &OwnedFd) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::from(input.try_clone()?))
        .spawn()
}

pub(crate) fn log_file(path: &str) -> io::Result<OwnedFd> {
    let file = open(path.as_ref(), OpenOptions::new().append(true).create(true))?;
    if !file.metadata()?.file_type().is_file() {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    Ok(file.into())
}

/// Opens a file with mode 0644. Root follows its own links only.
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
        // Open for reading too: neither opening nor writing then requires a reader.
        options.read(true);
    } else if !kind.is_char_device() {
        return Err(io::Error::other(
            "it is no longer a socket, a pipe or a device",
        ));
    }
    options.open(path).map(OwnedFd::from)
}

/// Connects without waiting; fails if the listener's backlog is full.
fn connect(path: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Root follows only links that root owns: in a directory that another user may write to, a link could lead to any file.
/// The kernel enforces the same in directories like `/tmp` (`fs.protected_symlinks`), but not in others.
fn refuse_strange_link(link: &Metadata) -> io::Result<()> {
    if rustix::process::geteuid().is_root() && link.uid() != 0 {
        return Err(io::Error::other(format!(
            "it is a symbolic link that belongs to user {}, which the server does not follow as root",
            link.uid()
        )));
    }
    Ok(())
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}
