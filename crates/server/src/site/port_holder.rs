//! Finds the process that occupies a port, for the error message.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// A process that listens on a port.
pub(crate) struct PortHolder {
    pub(crate) pid: u32,
    /// Name of the program that the process runs.
    pub(crate) name: String,
    /// Whether the process runs the same program as this one.
    pub(crate) is_same_program: bool,
}

/// The transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortOf {
    Tcp,
    Udp,
}

impl PortOf {
    /// The name of the transport protocol in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// The kernel's tables of the sockets of this protocol, for IPv4 and IPv6.
    const fn tables(self) -> [&'static str; 2] {
        match self {
            Self::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
            Self::Udp => ["/proc/net/udp", "/proc/net/udp6"],
        }
    }

    /// How the kernel's tables show the state of a socket that has a port for itself: TCP_LISTEN, or TCP_CLOSE (net/tcp_states.h)
    /// for a UDP socket that is not connected.
    const fn state(self) -> &'static str {
        match self {
            Self::Tcp => "0A",
            Self::Udp => "07",
        }
    }
}

/// Finds the process that listens on `address`. If several have the socket, because one has passed it to the others, the result is this
/// process, or else one that runs the same program. Returns `None` if this process lacks the rights to find it.
pub(crate) fn port_holder(address: SocketAddr, port_of: PortOf) -> Option<PortHolder> {
    let inode = port_of
        .tables()
        .iter()
        .find_map(|table| find_listener(&fs::read_to_string(table).ok()?, address, port_of))?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let holders = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| has_open(*pid, &socket))
        .filter_map(PortHolder::of);
    holders.max_by_key(|holder| (holder.pid == std::process::id(), holder.is_same_program))
}

impl PortHolder {
    fn of(pid: u32) -> Option<Self> {
        let name_of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        let name = name_of(&pid.to_string())?;
        let is_same_file = || Some(program_file(&pid.to_string())? == program_file("self")?);
        Some(Self {
            pid,
            is_same_program: name_of("self").as_ref() == Some(&name)
                || is_same_file() == Some(true),
            name: name.trim_end().to_owned(),
        })
    }

    /// Whether the process is the first of the system, such as systemd, which has opened the port to pass it to a service.
    pub(crate) const fn is_first(&self) -> bool {
        self.pid == 1
    }
}

/// The path of the file that a process executes, also if the file has been replaced since the process started.
fn program_file(pid: &str) -> Option<PathBuf> {
    let link = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let path = link.to_str()?;
    // The kernel marks a file that is not at its path any more.
    Some(path.strip_suffix(" (deleted)").unwrap_or(path).into())
}

fn has_open(pid: u32, socket: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors
        .flatten()
        .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|to| to == Path::new(socket)))
}

/// Searches a table of the kernel (such as `/proc/net/tcp`) for a socket that listens on the port of `address`, either on that
/// address or on all addresses. Returns the inode of the socket.
fn find_listener(table: &str, address: SocketAddr, port_of: PortOf) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let is_listener = fields.get(3) == Some(&port_of.state())
            && u16::from_str_radix(port, 16) == Ok(address.port());
        let ip = parse_ip(ip)?;
        let overlaps = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
        if !is_listener || !overlaps {
            return None;
        }
        fields.get(9)?.parse().ok()
    })
}

/// Parses an address as the kernel prints it: words of 32 bits in hexadecimal, in native byte order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let words = hex.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|bytes| Ipv4Addr::from(bytes).into()),
        _ => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|bytes| Ipv6Addr::from(bytes).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn whoever_listens_is_found() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            assert_is_found(listener.local_addr().unwrap(), PortOf::Tcp);
            let socket = UdpSocket::bind(address).unwrap();
            assert_is_found(socket.local_addr().unwrap(), PortOf::Udp);
        }
    }

    fn assert_is_found(bound: SocketAddr, port_of: PortOf) {
        let any = match bound {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        for wanted in [bound, SocketAddr::new(any, bound.port())] {
            let holder = port_holder(wanted, port_of).unwrap();
            assert_eq!(holder.pid, std::process::id());
            assert!(holder.is_same_program);
        }
    }
}
