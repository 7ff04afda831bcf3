//! Who the client of a request is: the peer of the connection, or the client that a trusted proxy in front of this
//! server names.

use std::net::SocketAddr;

/// How the client's address is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrigin {
    /// The peer of the connection is the client, because it is not a trusted proxy.
    #[default]
    Peer,
    /// The peer is a trusted proxy.
    Proxy {
        /// The address of the client, as the proxy names it; the port is 0 if the proxy has not sent one. `None` if the
        /// request is the proxy's own.
        client: Option<SocketAddr>,
    },
}
