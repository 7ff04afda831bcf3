//! Connections over stream sockets, TCP or Unix: accepting, PROXY header and TLS handshake, lingering close.

pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod proxy_protocol;
