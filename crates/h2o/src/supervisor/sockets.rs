//! Opens the sockets that a supervisor passes to its workers.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use h2o_log::reason;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::options::Listen;
use crate::Failure;

/// The listening sockets of a supervisor. The files of Unix sockets are removed on drop.
#[derive(Default)]
pub(crate) struct Sockets {
    /// The open sockets, each with its name in `SERVER_STARTER_PORT`.
    open: Vec<(String, OwnedFd)>,
    paths: Vec<PathBuf>,
}

impl Sockets {
    /// Opens the sockets `wanted`, each with its address as its name for the workers.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub(crate) fn open(wanted: &[Listen], backlog: i32) -> Result<Self, Failure> {
        let mut sockets = Self::default();
        for listen in wanted {
            let (name, opened) = match listen {
                Listen::Tcp(name) => (name.clone(), open_tcp(name, backlog)),
                Listen::Udp(name) => (name.clone(), open_udp(name)),
                Listen::Unix(path) => {
                    let opened = open_unix(path, backlog);
                    if opened.is_ok() {
                        sockets.paths.push(path.clone());
                    }
                    (path.display().to_string(), opened)
                }
            };
            let opened = opened.map_err(|error| {
                Failure::config(format!("failed to listen to {name}: {}", reason(&error)))
            })?;
            sockets.open.push((name, opened));
        }
        Ok(sockets)
    }

    /// The value of `SERVER_STARTER_PORT` for the workers: the names and descriptors of the sockets.
    pub(crate) fn variable(&self) -> String {
        let entries = self.open.iter();
        let entries: Vec<String> = entries
            .map(|(name, socket)| format!("{name}={}", socket.as_raw_fd()))
            .collect();
        entries.join(";")
    }

    /// Calls `start`; the programs that it starts inherit the sockets, and programs that are started at other times do not.
    pub(crate) fn inherited<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.set_flag(FdFlags::empty())?;
        let started = start();
        self.set_flag(FdFlags::CLOEXEC)?;
        started
    }

    fn set_flag(&self, flags: FdFlags) -> io::Result<()> {
        for (_, socket) in &self.open {
            fcntl_setfd(socket, flags)?;
        }
        Ok(())
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.paths {
            // The result is ignored: another program may have removed the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Resolves `HOST:PORT` to an address; a `PORT` alone means all IPv4 addresses.
fn resolve(name: &str) -> io::Result<SocketAddr> {
    if let Ok(port) = name.parse::<u16>() {
        return Ok(SocketAddr::from(([0, 0, 0, 0], port)));
    }
    let mut found = name.to_socket_addrs()?;
    found.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn new_socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn new_ip_socket(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    if address.is_ipv4() {
        return new_socket(AddressFamily::INET, kind);
    }
    let socket = new_socket(AddressFamily::INET6, kind)?;
    sockopt::set_ipv6_v6only(&socket, true)?;
    Ok(socket)
}

fn open_tcp(name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let address = resolve(name)?;
    let socket = new_ip_socket(address, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Opens and binds a UDP socket. `SO_REUSEADDR` is not set: with it, several UDP sockets could share the port, each of which would
/// get only some of the packets.
fn open_udp(name: &str) -> io::Result<OwnedFd> {
    let address = resolve(name)?;
    let socket = new_ip_socket(address, SocketType::DGRAM)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn open_unix(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other(
                "it already exists and is not an unix socket",
            ));
        }
        h2o_opener::refuse_live_socket(path)?;
        std::fs::remove_file(path)?;
    }
    let socket = new_socket(AddressFamily::UNIX, SocketType::STREAM)?;
    let address = SocketAddrUnix::new(path)?;
    // H2O compatibility: as in H2O, every user may connect to the Unix socket, since the supervisor does not know the user that the
    // server runs as.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(mask);
    bound?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}
