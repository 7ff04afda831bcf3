//! Takes listening sockets that a supervisor has opened, by the protocol of Server::Starter or by systemd's socket
//! activation.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use h2o_exchange::Endpoint;
use h2o_log::reason;
use rustix::net::{SocketAddrAny, SocketAddrUnix, SocketType, sockopt};

use crate::sys;

/// Number of the first file descriptor that systemd passes by socket activation (sd_listen_fds(3)).
const FIRST_ACTIVATED: RawFd = 3;

/// The listening sockets that the parent process has passed to this one.
pub struct InheritedSockets {
    sockets: Vec<Inherited>,
    covered: Vec<Covered>,
    from: Supervisor,
}

/// The kind of supervisor that has opened the sockets.
enum Supervisor {
    /// A supervisor with the protocol of Server::Starter, which has opened all listeners. The string is the value of
    /// `SERVER_STARTER_PORT`.
    ServerStarter(String),
    /// systemd, which may leave some listeners for the server to open.
    Systemd,
}

struct Inherited {
    number: RawFd,
    socket: OwnedFd,
    endpoint: Endpoint,
}

/// An IPv4 address whose connections arrive at an inherited socket of an IPv6 address.
#[derive(Clone)]
pub(crate) struct Covered {
    pub(crate) ipv4: Endpoint,
    /// The address of the inherited socket.
    pub(crate) by: Endpoint,
}

/// Where a listener's socket comes from when a supervisor has passed sockets.
pub(crate) enum Claim {
    /// The supervisor has opened this socket for the listener.
    Socket(OwnedFd),
    /// The listener needs no socket: connections to its address arrive at an inherited socket of another address.
    Covered(Covered),
    /// The server must open the listener's socket itself.
    Open,
    /// The supervisor should have opened a socket for the listener and has not, which is an error.
    Missing,
}

impl InheritedSockets {
    /// Takes the sockets that `SERVER_STARTER_PORT` lists.
    ///
    /// # Errors
    /// The error message for the administrator.
    pub fn from_server_starter(variable: &str) -> Result<Self, String> {
        if variable.is_empty() {
            return Err("$SERVER_STARTER_PORT is empty".to_owned());
        }
        let mut sockets = Vec::new();
        for element in variable.split(';') {
            let (_, number) = element.split_once('=').ok_or_else(|| {
                format!("invalid $SERVER_STARTER_PORT, an element without `=` in: {variable}")
            })?;
            let number = number.parse().map_err(|_| {
                format!("invalid $SERVER_STARTER_PORT, `{number}` is no descriptor in: {variable}")
            })?;
            sockets.push(take(number)?);
        }
        Ok(Self {
            sockets,
            covered: Vec::new(),
            from: Supervisor::ServerStarter(variable.to_owned()),
        })
    }

    /// Takes the `count` sockets of systemd's socket activation.
    ///
    /// # Errors
    /// The error message for the administrator.
    pub fn from_systemd(count: u16) -> Result<Self, String> {
        let numbers = FIRST_ACTIVATED..FIRST_ACTIVATED + RawFd::from(count);
        let sockets: Vec<Inherited> = numbers.map(take).collect::<Result<_, _>>()?;
        Ok(Self {
            covered: sockets.iter().filter_map(covered_by).collect(),
            sockets,
            from: Supervisor::Systemd,
        })
    }

    /// Returns where the socket of the listener at `endpoint` comes from; an inherited socket is handed out once.
    pub(crate) fn claim(&mut self, endpoint: &Endpoint) -> Claim {
        let mut sockets = self.sockets.iter();
        if let Some(at) = sockets.position(|inherited| inherited.endpoint == *endpoint) {
            return Claim::Socket(self.sockets.remove(at).socket);
        }
        let covered = self.covered.iter().find(|known| known.ipv4 == *endpoint);
        match (&self.from, covered) {
            (Supervisor::ServerStarter(_), _) => Claim::Missing,
            (Supervisor::Systemd, Some(covered)) => Claim::Covered(covered.clone()),
            (Supervisor::Systemd, None) => Claim::Open,
        }
    }

    /// Checks that every inherited socket belongs to a listener.
    ///
    /// # Errors
    /// The error message for the administrator.
    pub(crate) fn finish(self) -> Result<(), String> {
        let Some(Inherited { number, .. }) = self.sockets.first() else {
            return Ok(());
        };
        Err(match self.from {
            Supervisor::ServerStarter(variable) => format!(
                "no configuration found for fd:{number} passed in by $SERVER_STARTER_PORT\nnote: $SERVER_STARTER_PORT was \"{variable}\""
            ),
            Supervisor::Systemd => format!(
                "no configuration found for fd:{number} passed in by $LISTEN_FDS: the address of every `ListenStream` and \
                 `ListenDatagram` of the socket unit needs a `listen`"
            ),
        })
    }
}

/// How often the supervisor has started a worker: the generation of this server.
pub(crate) fn supervisor_generation() -> Option<u64> {
    std::env::var("SERVER_STARTER_GENERATION")
        .ok()?
        .parse()
        .ok()
}

/// The IPv4 address whose connections also arrive at an inherited socket that is bound to all IPv6 addresses, such as one of
/// systemd's `ListenStream=PORT`.
fn covered_by(inherited: &Inherited) -> Option<Covered> {
    let (Endpoint::Tcp(address) | Endpoint::Udp(address)) = &inherited.endpoint else {
        return None;
    };
    let is_dual = address.ip() == Ipv6Addr::UNSPECIFIED
        && sockopt::ipv6_v6only(&inherited.socket) == Ok(false);
    let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    is_dual.then_some(Covered {
        ipv4: match inherited.endpoint {
            Endpoint::Udp(_) => Endpoint::Udp(ipv4),
            Endpoint::Tcp(_) | Endpoint::Unix(_) => Endpoint::Tcp(ipv4),
        },
        by: inherited.endpoint.clone(),
    })
}

/// Takes ownership of the listening socket with this file descriptor, which this process has inherited.
fn take(number: RawFd) -> Result<Inherited, String> {
    let failed = |error: std::io::Error| {
        format!(
            "the supervisor passed fd:{number}, which cannot be used: {}",
            reason(&error)
        )
    };
    if number <= 2 {
        // Taking it would close a standard stream, and with it the way of this message.
        return Err(format!(
            "the supervisor passed fd:{number}, which is a standard stream and no socket"
        ));
    }
    let socket = sys::take_descriptor(number).map_err(failed)?;
    let endpoint = endpoint_of(&socket).map_err(|error| failed(error.into()))?;
    let endpoint = endpoint.ok_or_else(|| {
        format!("the supervisor passed fd:{number}, which is no socket that a `listen` can use")
    })?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
    Ok(Inherited {
        number,
        socket,
        endpoint,
    })
}

/// The address to which a socket is bound; `None` if the server cannot serve a socket of this kind.
fn endpoint_of(socket: &OwnedFd) -> rustix::io::Result<Option<Endpoint>> {
    let is_stream = match sockopt::socket_type(socket)? {
        SocketType::STREAM => true,
        SocketType::DGRAM => false,
        _ => return Ok(None),
    };
    let name: SocketAddrAny = rustix::net::getsockname(socket)?;
    if let Ok(unix) = SocketAddrUnix::try_from(name.clone()) {
        let path = unix.path_bytes().map(std::ffi::OsStr::from_bytes);
        return Ok(path
            .filter(|_| is_stream)
            .map(|path| Endpoint::Unix(PathBuf::from(path))));
    }
    let address = SocketAddr::try_from(name).ok();
    Ok(address.map(|address| {
        if is_stream {
            Endpoint::Tcp(address)
        } else {
            Endpoint::Udp(address)
        }
    }))
}
