//! TLS on rustls: settings, one [`TlsAcceptor`] per listener, and connections without sockets.
//!
//! [`parse`] reads the `ssl` mapping of a listener into [`TlsSettings`]. A [`TlsAcceptor`] looks at a client's first
//! message and picks the settings that answer it; from then on a [`TlsConnection`] turns octets from the socket into
//! plaintext and plaintext into octets for the socket. rustls does the handshake, records of the established
//! connection are protected here. [`Resumption`] is what all listeners and workers share.

mod acceptor;
mod alpn;
mod cipher_list;
mod client_hello;
mod config;
mod connection;
mod error;
pub(crate) mod fuzzing;
mod groups;
mod handshake;
mod identity;
mod kernel;
mod output;
mod protection;
mod record;
mod record_size;
mod resumption;
mod server_name;
mod session_cache;
mod suites;
#[cfg(test)]
mod tests;
mod ticket_file;
mod tickets;
mod traffic;
mod versions;

pub(crate) use acceptor::TlsAcceptor;
pub(crate) use config::{ATTRIBUTES, TlsSettings, parse};
pub(crate) use connection::TlsConnection;
pub(crate) use error::TlsError;
pub(crate) use kernel::{
    Control, DIRECTIVES as OFFLOAD_DIRECTIVES, OFFLOADED_FILE_LEN, OffloadSettings,
};
pub(crate) use output::OutputBuffer;
pub(crate) use resumption::{DIRECTIVES, Resumption, ResumptionSettings};

/// The key-exchange groups that a configuration may name.
pub(crate) fn tls_group_names() -> impl Iterator<Item = &'static str> {
    groups::names()
}
