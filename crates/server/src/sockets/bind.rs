//! Opens the listeners of a site.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::parent_id;
use std::path::Path;

use h2o_config::Error;
use h2o_exchange::{Endpoint, Resources};
use h2o_log::reason;
use h2o_opener::{SocketSpec, UnixSocketSpec};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, sockopt};

use crate::LoadedConfig;
use crate::quic::handover::Handover;
use crate::site::listen::{Listener, Listeners};
use crate::site::port_holder::{PortHolder, port_holder};
use crate::site::settings::ServerSettings;
use crate::sockets::inherited::{Claim, Covered, InheritedSockets, supervisor_generation};
use crate::sys;

/// Length of the accept queue of a listening socket; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// The listening sockets of a site.
pub struct ListeningSockets {
    /// For each listener that could be bound: its index in the configuration, and its sockets (one for all workers, or
    /// one per worker).
    pub(crate) sockets: Vec<(usize, Vec<OwnedFd>)>,
    /// Warnings for the administrator that do not prevent the start.
    pub warnings: Vec<String>,
    /// The listeners without a socket whose connections arrive at an inherited socket of another address.
    pub(crate) covered: Vec<Covered>,
    /// The sockets to other generations of this server (processes before and after an upgrade of the binary), which share its UDP
    /// sockets.
    pub(crate) handover: Option<Handover>,
}

impl ListeningSockets {
    /// Number of listening sockets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sockets.iter().map(|(_, sockets)| sockets.len()).sum()
    }

    /// The addresses of the listeners: `ADDRESS:PORT` or `unix:PATH`, followed by ` (TLS)` for TLS listeners.
    #[must_use]
    pub fn addresses(&self, loaded: &LoadedConfig) -> Vec<String> {
        let listeners = loaded.site.shared.get::<Listeners>();
        let bound = self.sockets.iter().map(|(index, _)| &listeners.0[*index]);
        bound
            .map(|listener| {
                let tls = if listener.is_tls() { " (TLS)" } else { "" };
                match &listener.endpoint {
                    Endpoint::Tcp(address) => format!("{address}{tls}"),
                    Endpoint::Udp(address) => format!("{address} (QUIC)"),
                    Endpoint::Unix(path) => format!("unix:{}{tls}", path.display()),
                }
            })
            .collect()
    }

    /// Whether there are no listening sockets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl LoadedConfig {
    /// The addresses that a supervisor has to open, without those of an address family that the machine lacks.
    #[must_use]
    pub fn supervised_endpoints(&self) -> Vec<Endpoint> {
        let listeners = self.site.shared.get::<Listeners>();
        let listeners = listeners.0.iter();
        let present = listeners.filter(|listener| !is_family_absent(listener));
        present.map(|listener| listener.endpoint.clone()).collect()
    }

    /// Tells the process that keeps the rights of the starting user which files and ports it may have to open for the
    /// configuration.
    pub fn announce(&self) {
        for resource in &self.site.shared.get::<Resources>().0 {
            resource.resource.announce();
        }
        announce(&self.site.shared.get::<Listeners>(), &self.settings());
    }
}

/// Opens every listener of a configuration, with the rights of the starting user.
///
/// # Errors
/// The error message for the administrator.
pub fn bind(loaded: &LoadedConfig, workers: usize) -> Result<ListeningSockets, String> {
    bind_or_take(loaded, workers, None)
}

/// Like [`bind`], but takes the sockets of the listeners that a supervisor has opened from `inherited`.
///
/// # Errors
/// The error message for the administrator.
pub fn bind_or_take(
    loaded: &LoadedConfig,
    workers: usize,
    inherited: Option<InheritedSockets>,
) -> Result<ListeningSockets, String> {
    bind_new(loaded, workers, inherited, |_| false)
}

/// Like [`bind_or_take`], but leaves out the listeners that this server has open already.
pub(crate) fn bind_new(
    loaded: &LoadedConfig,
    workers: usize,
    mut inherited: Option<InheritedSockets>,
    is_open: impl Fn(&Endpoint) -> bool,
) -> Result<ListeningSockets, String> {
    let settings = loaded.settings();
    let listeners = loaded.site.shared.get::<Listeners>();
    let mut bound = ListeningSockets {
        sockets: Vec::new(),
        warnings: Vec::new(),
        covered: Vec::new(),
        handover: None,
    };
    if let Some(count) = settings.quic_workers.filter(|count| *count > workers) {
        bound.warnings.push(format!(
            "`num-quic-threads` is {count}, but there are {workers} threads: all of them serve QUIC"
        ));
    }
    for (index, listener) in listeners.0.iter().enumerate() {
        if is_open(&listener.endpoint) {
            continue;
        }
        let claim = inherited
            .as_mut()
            .map_or(Claim::Open, |sockets| sockets.claim(&listener.endpoint));
        let sockets = match claim {
            Claim::Socket(socket) => {
                if let Endpoint::Unix(path) = &listener.endpoint {
                    // A supervisor like start_server knows neither: everybody can connect to the sockets that it opens.
                    let spec = unix_spec(path, listener);
                    let spec = spec.map_err(|error| listener.error(error).to_string())?;
                    let failed = spec.set_access().err();
                    bound.warnings.extend(failed.map(|error| error.to_string()));
                }
                tune(&socket, listener, &mut bound.warnings)
                    .map_err(|error| listener.error(reason(&error)).to_string())?;
                vec![socket]
            }
            Claim::Covered(covered) => {
                bound.covered.push(covered);
                continue;
            }
            Claim::Missing if is_family_absent(listener) => continue,
            Claim::Missing => return Err(listener.error(not_bound(listener)).to_string()),
            Claim::Open => match open(
                listener,
                &listeners,
                &settings,
                workers,
                &mut bound.warnings,
            )? {
                Some(sockets) => sockets,
                None => continue,
            },
        };
        bound.sockets.push((index, sockets));
    }
    if let Some(inherited) = inherited {
        inherited.finish()?;
        if let Some(generation) = supervisor_generation() {
            bound.handover = open_handover(&bound, &listeners, generation)?;
        }
    }
    Ok(bound)
}

fn open_handover(
    bound: &ListeningSockets,
    listeners: &Listeners,
    generation: u64,
) -> Result<Option<Handover>, String> {
    let of_quic = bound.sockets.iter();
    let of_quic = of_quic.filter(|(index, _)| listeners.0[*index].quic.is_some());
    let sockets: Vec<&OwnedFd> = of_quic.flat_map(|(_, sockets)| sockets).collect();
    Handover::open(&sockets, generation).map_err(|error| {
        let text = reason(&error);
        format!("failed to open a socket for QUIC packets of older and newer processes of this server: {text}")
    })
}

/// Opens the sockets of a listener: one, or one per worker. Returns `None` if `listen` has no `host` and the machine lacks the
/// address family.
fn open(
    listener: &Listener,
    listeners: &Listeners,
    settings: &ServerSettings,
    workers: usize,
    warnings: &mut Vec<String>,
) -> Result<Option<Vec<OwnedFd>>, String> {
    let (address, opened) = match &listener.endpoint {
        Endpoint::Unix(path) => {
            let socket = bind_unix(path, listener, warnings);
            let socket = socket.map_err(|error| listener.error(error).to_string())?;
            return Ok(Some(vec![socket]));
        }
        Endpoint::Udp(address) => {
            let count = settings
                .quic_workers
                .map_or(workers, |count| count.min(workers));
            let opened: io::Result<Vec<OwnedFd>> = check_udp(*address, listener).and_then(|()| {
                (0..count.max(1))
                    .map(|_| bind_udp(*address, listener, warnings))
                    .collect()
            });
            (*address, opened)
        }
        Endpoint::Tcp(address) => {
            let count = if settings.tcp_reuseport {
                workers.max(1)
            } else {
                1
            };
            let opened: io::Result<Vec<OwnedFd>> = (0..count)
                .map(|_| bind_tcp(*address, listener, settings, warnings))
                .collect();
            (*address, opened)
        }
    };
    match opened {
        Ok(sockets) => Ok(Some(sockets)),
        Err(error) => match bind_failure(address, listener, listeners, &error) {
            None => Ok(None),
            Some(failure) => Err(failure.to_string()),
        },
    }
}

/// Applies the socket options of the configuration to a listening socket that another process has opened.
fn tune(socket: &OwnedFd, listener: &Listener, warnings: &mut Vec<String>) -> io::Result<()> {
    match listener.endpoint {
        Endpoint::Unix(_) | Endpoint::Udp(_) => set_buffer_sizes(socket, listener, warnings),
        Endpoint::Tcp(_) => tune_tcp(socket, listener, warnings),
    }
}

fn not_bound(listener: &Listener) -> String {
    let socket = match &listener.endpoint {
        Endpoint::Tcp(_) => format!("tcp socket:{}", listener.label),
        Endpoint::Udp(_) => format!("udp socket:{}", listener.label),
        Endpoint::Unix(path) => format!("unix socket:{}", path.display()),
    };
    format!("{socket} is not being bound to the server")
}

/// Whether the address of a listener can be left out: `listen` has no `host`, and the machine lacks the address family.
fn is_family_absent(listener: &Listener) -> bool {
    let (Endpoint::Tcp(address) | Endpoint::Udp(address)) = listener.endpoint else {
        return false;
    };
    let any = SocketAddr::new(address.ip(), 0);
    let missing = |error: io::Error| is_family_missing(&error);
    listener.any_address && address.is_ipv6() && open_udp(any, false).is_err_and(missing)
}

/// Checks whether the ports of a configuration can be bound, without listening.
pub(crate) fn probe(listeners: &Listeners, settings: &ServerSettings) -> Vec<Error> {
    let failures = listeners
        .0
        .iter()
        .enumerate()
        .filter_map(|(index, listener)| {
            let earlier = listeners.0.iter().take(index);
            if !settings.tcp_reuseport
                && let Some(other) = covering(listener, earlier)
            {
                let error = io::Error::from(Errno::ADDRINUSE);
                return Some(not_listening(listener, &error).with_hint(covered_hint(other)));
            }
            let (address, error) = match listener.endpoint {
                Endpoint::Tcp(address) => (address, open_tcp(address, settings).err()?),
                Endpoint::Udp(address) => (address, open_udp(address, false).err()?),
                Endpoint::Unix(ref path) => {
                    return check_unix(path).err().map(|text| listener.error(text));
                }
            };
            // Two errors are no failure: the port may need the rights of root, who starts the server later, or the running server
            // itself has the port, or systemd, which passes it to the server. Only root sees which process has a port of another
            // user: for others it may be the running server.
            let may_be_ours = || {
                let holder = port_holder(address, listener.transport());
                holder.map_or(!rustix::process::geteuid().is_root(), |holder| {
                    holder.is_same_program || holder.is_first()
                })
            };
            if error.kind() == io::ErrorKind::PermissionDenied || may_be_ours() {
                return None;
            }
            bind_failure(address, listener, listeners, &error)
        });
    let mut failures: Vec<Error> = failures.collect();
    // A `listen` without `host` has one address per address family, and both fail with the same error, which is reported once.
    failures.dedup_by_key(|failure| failure.pos.clone());
    failures
}

/// Whether a process is this one, or its supervisor, which has the sockets of its workers open, too.
fn is_of_this_server(pid: u32) -> bool {
    pid == std::process::id() || (supervisor_generation().is_some() && pid == parent_id())
}

/// Makes the error for a port that cannot be bound. Returns `None` if the machine lacks the address family and `listen` has no
/// `host`.
fn bind_failure(
    address: SocketAddr,
    listener: &Listener,
    listeners: &Listeners,
    error: &io::Error,
) -> Option<Error> {
    if listener.any_address && address.is_ipv6() && is_family_missing(error) {
        return None;
    }
    let failure = not_listening(listener, error);
    Some(match error.kind() {
        io::ErrorKind::AddrInUse => failure.with_hint(match port_holder(address, listener.transport()) {
            Some(holder) if is_of_this_server(holder.pid) => {
                match covering(listener, &listeners.0) {
                    Some(other) => covered_hint(other),
                    None => "a `listen` that this server has open, and that the new configuration lacks, covers the address; this \
                             change needs a restart"
                        .to_owned(),
                }
            }
            Some(PortHolder { name, pid, .. }) => {
                format!("`{name}` (process {pid}) listens there; stop it, or take another port")
            }
            None => "another process listens there; stop it, or take another port".to_owned(),
        }),
        io::ErrorKind::PermissionDenied => failure.with_hint(
            "ports below 1024 are for root: start as root, or let the program have them by `setcap \
             cap_net_bind_service=+ep FILE`, or by `AmbientCapabilities=CAP_NET_BIND_SERVICE` in a systemd unit",
        ),
        io::ErrorKind::AddrNotAvailable => {
            failure.with_hint("no network interface of this machine has the address")
        }
        _ => failure,
    })
}

fn not_listening(listener: &Listener, error: &io::Error) -> Error {
    listener.error(format!(
        "failed to listen to {} port {}: {}",
        listener.transport().name(),
        listener.label,
        reason(error)
    ))
}

/// Finds a listener among `others` that has the port of `listener` on the same address: one of the two is for all addresses.
fn covering<'a>(
    listener: &Listener,
    others: impl IntoIterator<Item = &'a Listener>,
) -> Option<&'a Listener> {
    let Endpoint::Tcp(address) = listener.endpoint else {
        return None;
    };
    others.into_iter().find(|other| {
        let Endpoint::Tcp(other) = other.endpoint else {
            return false;
        };
        other != address
            && other.port() == address.port()
            && other.is_ipv4() == address.is_ipv4()
            && (other.ip().is_unspecified() || address.ip().is_unspecified())
    })
}

fn covered_hint(other: &Listener) -> String {
    let (file, line) = (other.pos.file(), other.pos.line());
    format!("the `listen` at {file}:{line} covers the address; leave out one of the two")
}

fn is_family_missing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}

/// Opens and binds a TCP socket that does not listen yet.
fn open_tcp(address: SocketAddr, settings: &ServerSettings) -> io::Result<OwnedFd> {
    h2o_opener::bound_socket(tcp_spec(address, settings))
}

const fn tcp_spec(address: SocketAddr, settings: &ServerSettings) -> SocketSpec {
    SocketSpec {
        address,
        is_tcp: true,
        shares_port: settings.tcp_reuseport,
    }
}

/// Opens and binds a UDP socket. If the socket `shares` its port with other sockets, the kernel chooses the socket for a packet by
/// the packet's addresses and ports.
fn open_udp(address: SocketAddr, shares: bool) -> io::Result<OwnedFd> {
    h2o_opener::bound_socket(udp_spec(address, shares))
}

const fn udp_spec(address: SocketAddr, shares: bool) -> SocketSpec {
    SocketSpec {
        address,
        is_tcp: false,
        shares_port: shares,
    }
}

/// Tells the process that keeps the rights of the starting user which sockets these listeners need, since only root may bind some
/// ports, and write to some directories.
fn announce(listeners: &Listeners, settings: &ServerSettings) {
    for listener in &listeners.0 {
        match &listener.endpoint {
            Endpoint::Tcp(address) => h2o_opener::will_bind(tcp_spec(*address, settings)),
            Endpoint::Udp(address) => {
                for shares in [false, true] {
                    h2o_opener::will_bind(udp_spec(*address, shares));
                }
            }
            Endpoint::Unix(path) => {
                // An unknown owner is reported when the socket is opened.
                if let Ok(spec) = unix_spec(path, listener) {
                    h2o_opener::will_bind_unix(&spec);
                }
            }
        }
    }
}

/// Checks that no other server has a UDP port: a shared port would share the packets with that server, too. This server itself may still
/// have it, if a reload has removed the listener and clients are connected to it: the workers that have such a socket go on with it.
fn check_udp(address: SocketAddr, listener: &Listener) -> io::Result<()> {
    match open_udp(address, false) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let holder = port_holder(address, listener.transport());
            let is_ours = holder.is_some_and(|holder| holder.pid == std::process::id());
            if is_ours { Ok(()) } else { Err(error) }
        }
        Err(error) => Err(error),
    }
}

/// Binds the UDP socket of a QUIC listener. The worker later sets the socket's options for packet information and against
/// fragmentation.
fn bind_udp(
    address: SocketAddr,
    listener: &Listener,
    warnings: &mut Vec<String>,
) -> io::Result<OwnedFd> {
    let socket = open_udp(address, true)?;
    set_buffer_sizes(&socket, listener, warnings)?;
    Ok(socket)
}

/// Applies the buffer sizes `sndbuf` and `rcvbuf` of the listener to its socket; accepted TCP sockets inherit them.
/// Warns, once for all sockets of a listener, of a size that the kernel has reduced.
fn set_buffer_sizes(
    socket: &OwnedFd,
    listener: &Listener,
    warnings: &mut Vec<String>,
) -> io::Result<()> {
    let (send, receive) = (listener.socket.sndbuf, listener.socket.rcvbuf);
    let mut compare = |name, limit, wanted, got: rustix::io::Result<usize>| {
        // The kernel doubles the size that it is told, and returns the doubled size.
        let Ok(got) = got.map(|got| got / 2) else {
            return;
        };
        let text = format!(
            "`{name}` of {} is {got} bytes instead of {wanted}: the kernel allows no more ({limit})",
            listener.label
        );
        if got < wanted && !warnings.contains(&text) {
            warnings.push(text);
        }
    };
    if let Some(size) = send {
        sockopt::set_socket_send_buffer_size(socket, size)?;
        let got = sockopt::socket_send_buffer_size(socket);
        compare("sndbuf", "net.core.wmem_max", size, got);
    }
    if let Some(size) = receive {
        sockopt::set_socket_recv_buffer_size(socket, size)?;
        let got = sockopt::socket_recv_buffer_size(socket);
        compare("rcvbuf", "net.core.rmem_max", size, got);
    }
    Ok(())
}

fn bind_tcp(
    address: SocketAddr,
    listener: &Listener,
    settings: &ServerSettings,
    warnings: &mut Vec<String>,
) -> io::Result<OwnedFd> {
    let socket = open_tcp(address, settings)?;
    tune_tcp(&socket, listener, warnings)?;
    // Deferred accept is only an optimisation: if the kernel refuses it, connections are accepted before their first bytes arrive.
    let _ = sys::set_defer_accept(&socket);
    rustix::net::listen(&socket, BACKLOG)?;
    if settings.tcp_fastopen > 0
        && let Err(error) = sys::set_fastopen_queue(&socket, settings.tcp_fastopen)
    {
        warnings.push(format!("failed to set TCP_FASTOPEN: {}", reason(&error)));
    }
    Ok(socket)
}

/// Sets the options of a TCP listening socket that accepted sockets inherit.
fn tune_tcp(socket: &OwnedFd, listener: &Listener, warnings: &mut Vec<String>) -> io::Result<()> {
    // Accepted sockets inherit TCP_NODELAY.
    sockopt::set_tcp_nodelay(socket, true)?;
    set_buffer_sizes(socket, listener, warnings)?;
    match &listener.socket.congestion {
        None => prefer_bbr(socket),
        Some(name) => {
            if let Err(error) = sockopt::set_tcp_congestion(socket, name) {
                warnings.push(format!(
                    "failed to set congestion controller {name} on {}: {}",
                    listener.label,
                    reason(&error.into())
                ));
            }
        }
    }
    Ok(())
}

/// `cc: auto` uses the congestion control `bbr` instead of `cubic`, which treats every lost packet as congestion, if the kernel has
/// it and allows it. If the system's default is neither `bbr` nor `cubic`, the administrator has chosen it, and it stays.
fn prefer_bbr(socket: &OwnedFd) {
    if sockopt::tcp_congestion(socket).is_ok_and(|name| name == "cubic") {
        let _ = sockopt::set_tcp_congestion(socket, "bbr");
    }
}

fn bind_unix(
    path: &Path,
    listener: &Listener,
    warnings: &mut Vec<String>,
) -> Result<OwnedFd, String> {
    check_unix(path)?;
    let socket = h2o_opener::unix_socket(&unix_spec(path, listener)?);
    let socket = socket.map_err(|error| error.to_string())?;
    set_buffer_sizes(&socket, listener, warnings)
        .and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?))
        .map_err(|error| {
            let path = path.display();
            format!("failed to listen to socket:{path}: {}", reason(&error))
        })?;
    Ok(socket)
}

/// The Unix socket of a listener.
///
/// # Errors
/// The machine does not know the owner or the group.
fn unix_spec(path: &Path, listener: &Listener) -> Result<UnixSocketSpec, String> {
    Ok(UnixSocketSpec {
        path: path.into(),
        owner: owner_ids(listener)?,
        permission: listener.socket.permission,
    })
}

/// Checks whether a Unix socket can have this path.
///
/// # Errors
/// The path is too long, its directory does not exist, or it is the path of a file that is no socket.
fn check_unix(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let is_socket = std::fs::symlink_metadata(path).map(|found| found.file_type().is_socket());
    if matches!(is_socket, Ok(false)) {
        return Err(format!(
            "path:{shown} already exists and is not an unix socket."
        ));
    }
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let fault = if SocketAddrUnix::new(path).is_err() {
        "the path is too long for a socket".to_owned()
    } else if let Err(error) = std::fs::metadata(parent.unwrap_or(Path::new(".")))
        && error.kind() == io::ErrorKind::NotFound
    {
        reason(&error).to_string()
    } else {
        return Ok(());
    };
    Err(format!("failed to listen to socket:{shown}: {fault}"))
}

/// The ids of the user and group that own the file of a Unix socket, if its listener names an owner.
fn owner_ids(listener: &Listener) -> Result<Option<(u32, u32)>, String> {
    let Some(owner) = &listener.socket.owner else {
        return Ok(None);
    };
    let user = crate::site::users::find_user(owner)
        .ok_or_else(|| format!("failed to obtain uid of user:{owner}: Not found"))?;
    let group = match &listener.socket.group {
        None => user.gid,
        Some(group) => crate::site::users::find_group(group)
            .ok_or_else(|| format!("failed to obtain gid of group:{group}: Not found"))?,
    };
    Ok(Some((user.uid, group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubic_is_not_left_in_place_where_the_kernel_has_bbr_and_other_choices_are() {
        let system = |name: &str| {
            std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default()
        };
        let has = |name: &str| {
            let allowed = system("tcp_allowed_congestion_control");
            allowed.split_whitespace().any(|allowed| allowed == name)
        };
        let best = if has("bbr") { "bbr" } else { "cubic" };
        for (before, after) in [("cubic", best), ("reno", "reno"), ("bbr", "bbr")] {
            if !has(before) {
                continue;
            }
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
            sockopt::set_tcp_congestion(&socket, before).unwrap();
            prefer_bbr(&socket);
            let name = sockopt::tcp_congestion(&socket).unwrap();
            assert_eq!(name, after, "{before}");
        }
    }
}
