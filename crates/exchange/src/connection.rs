//! What handlers, scripts and logs may know of the connection a request came over.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// An end point of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// An internet address.
    Ip(SocketAddr),
    /// A Unix-domain socket.
    Unix,
}

/// As messages show it.
impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(out),
            Self::Unix => out.write_str("a unix socket"),
        }
    }
}

/// Where a listener is bound. A listener has the same endpoint in every configuration that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and port.
    Tcp(SocketAddr),
    /// The file of a Unix socket.
    Unix(PathBuf),
}

/// That of a socket without a name, as tests have it.
impl Default for Endpoint {
    fn default() -> Self {
        Self::Unix(PathBuf::new())
    }
}

/// What the transport can tell when asked; each answer may cost a system call.
pub trait Transport {
    /// Our end of the connection.
    fn local_address(&self) -> Option<Address>;
    /// Name of the congestion controller.
    fn congestion_controller(&self) -> Option<String>;
    /// The kernel's estimate of the delivery rate, bytes per second.
    fn delivery_rate(&self) -> Option<u64>;
}

/// The negotiated TLS parameters.
#[derive(Clone, Debug, Default)]
pub struct TlsInfo {
    /// `TLSv1.3` or `TLSv1.2`.
    pub protocol: &'static str,
    /// TLS 1.3: the IANA name; TLS 1.2: OpenSSL's name.
    pub cipher: &'static str,
    /// Key length of the cipher.
    pub cipher_bits: u16,
    /// The server name the client asked for.
    pub server_name: Option<Box<str>>,
    /// The protocol chosen by ALPN.
    pub alpn: Option<&'static str>,
    /// True if an earlier session was resumed.
    pub resumed: bool,
    /// The `client-ca-file` that the client has shown a certificate of; `None` if none was asked for.
    pub client_authority: Option<Arc<str>>,
}

/// One connection.
pub struct ConnectionInfo {
    /// Number of the connection, process-wide, from 1.
    pub id: u64,
    /// The client: the address given by the PROXY protocol, or the peer of the socket.
    pub peer: Address,
    /// When it was accepted.
    pub accepted: Instant,
    /// TLS parameters; `None` on clear text.
    pub tls: Option<Box<TlsInfo>>,
    /// The socket, for what has to be asked.
    pub transport: Rc<dyn Transport>,
    /// The listener it came through.
    pub listener: Rc<Endpoint>,
}
