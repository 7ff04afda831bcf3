//! Connections over stream sockets, TCP or Unix: accepting them, what comes before HTTP, and how they end.

pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod proxy_protocol;
