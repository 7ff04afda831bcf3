//! Connections over UDP: sockets, the handshake of QUIC, and which connection a datagram is for. HTTP begins in
//! [`crate::http3`].

mod connection;
pub(crate) mod connections;
mod endpoint;
pub(crate) mod mail;
mod transport;
