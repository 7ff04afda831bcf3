//! QUIC connections: UDP sockets, the handshake, and how each datagram gets to its connection. HTTP begins in [`crate::http3`].

mod connection;
pub(crate) mod connections;
pub(crate) mod endpoint;
pub(crate) mod handover;
pub(crate) mod mail;
mod qlog;
mod transport;
