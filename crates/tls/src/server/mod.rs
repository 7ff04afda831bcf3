//! TLS with clients: choice of the configuration, handshake, established connection.

pub(crate) mod acceptor;
pub(crate) mod challenge;
pub(crate) mod client_hello;
pub(crate) mod configs;
pub(crate) mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod handshake;
pub(crate) mod server_name;
