//! The client of a request: the one that connected, or the one that a trusted proxy in front of this server names.

use std::net::SocketAddr;

/// How the client's address is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrigin {
    /// The peer of the connection is the client: it is not a trusted proxy, or no trusted proxies are configured.
    #[default]
    Peer,
    /// The peer is a trusted proxy.
    Proxy {
        /// The client that the proxy names; the port is 0 if the proxy has not told it. `None` in requests that the proxy makes
        /// for itself.
        client: Option<SocketAddr>,
    },
}
