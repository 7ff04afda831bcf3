//! Whose request it is: the client that connected, or the one that a trusted proxy in front of this server names.

use std::net::SocketAddr;

/// How the client's address is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrigin {
    /// The peer of the connection is the client. It is not a trusted proxy, or none is configured.
    #[default]
    Peer,
    /// The peer is a trusted proxy.
    Proxy {
        /// The client that it names; the port is 0 if it has not told it. `None` in requests of its own.
        client: Option<SocketAddr>,
    },
}
