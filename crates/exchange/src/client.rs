//! Who the client of a request is: the peer of the connection, or the client that a trusted proxy in front of this
//! server names.

use std::net::SocketAddr;

/// Whether the client of a request is the peer of its connection, or is named by a trusted proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrigin {
    /// The peer of the connection is the client, because it is not a trusted proxy.
    #[default]
    Peer,
    /// The peer is a trusted proxy, which forwards requests of clients.
    Proxy {
        /// The address of the client, as the proxy names it; the port is 0 if the proxy has not sent one. `None` if the
        /// request is the proxy's own.
        client: Option<SocketAddr>,
    },
}
