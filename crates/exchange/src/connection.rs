//! Facts about the connection of a request, for handlers, scripts and logs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The address of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// The IP address and the port of this end.
    Ip(SocketAddr),
    /// A Unix-domain socket, whose path is not recorded.
    Unix,
}

/// Writes the address as messages show it.
impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(out),
            Self::Unix => out.write_str("a unix socket"),
        }
    }
}

/// The address of a listener. It identifies the listener in every configuration that contains it, also after a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP socket with this IP address and port.
    Tcp(SocketAddr),
    /// A UDP socket with this IP address and port, for QUIC.
    Udp(SocketAddr),
    /// A Unix socket with this path.
    Unix(PathBuf),
}

/// The default endpoint, for tests, is a Unix socket without a path.
impl Default for Endpoint {
    fn default() -> Self {
        Self::Unix(PathBuf::new())
    }
}

/// What the transport of a client's connection can tell about it. Each call may cost a system call.
pub trait Transport {
    /// Address of the server's end of the connection.
    fn local_address(&self) -> Option<Address>;
    /// Name of the congestion control algorithm of the connection.
    fn congestion_controller(&self) -> Option<String>;
    /// The kernel's estimate of the delivery rate, in bytes per second.
    fn delivery_rate(&self) -> Option<u64>;
    /// Time from sending the SETTINGS frame of an HTTP/2 connection to receiving its acknowledgement; `None` before
    /// that.
    fn settings_rtt(&self) -> Option<Duration> {
        None
    }
    /// The version of QUIC; `None` on other transports.
    fn quic_version(&self) -> Option<u32> {
        None
    }
    /// The statistics of a QUIC connection, as `NAME=VALUE` pairs with commas between them; `None` on other transports.
    fn quic_stats(&self) -> Option<String> {
        None
    }
}

/// The TLS parameters that were negotiated on a connection.
#[derive(Clone, Debug, Default)]
pub struct TlsInfo {
    /// The TLS version: `TLSv1.3` or `TLSv1.2`.
    pub protocol: &'static str,
    /// The TLS cipher suite: for TLS 1.3 its IANA name, for TLS 1.2 OpenSSL's name.
    pub cipher: &'static str,
    /// Key length of the cipher in bits.
    pub cipher_bits: u16,
    /// The server name that the client sent (SNI).
    pub server_name: Option<Box<str>>,
    /// The application protocol that was chosen by ALPN.
    pub alpn: Option<&'static str>,
    /// Whether the handshake resumed an earlier TLS session.
    pub resumed: bool,
    /// The `client-ca-file` that verified the client's certificate; `None` if no certificate was requested.
    pub client_authority: Option<Arc<str>>,
    /// The identifier of the TLS session in base64url, if it was looked up in a store that servers share; whether it was found
    /// there, `resumed` tells.
    pub session_id: Option<Box<str>>,
}

/// Facts about the connection of a client.
pub struct ConnectionInfo {
    /// Number of the connection: the process numbers its connections from 1.
    pub id: u64,
    /// The client's address: the one in the PROXY header if the connection has such a header, or else the socket's.
    pub peer: Address,
    /// Time at which the server accepted the connection.
    pub accepted: Instant,
    /// TLS parameters of the connection; `None` if it does not use TLS.
    pub tls: Option<Box<TlsInfo>>,
    /// The connection's transport, which answers questions about its socket.
    pub transport: Rc<dyn Transport>,
    /// The listener that accepted the connection.
    pub listener: Rc<Endpoint>,
}
