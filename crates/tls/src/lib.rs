//! TLS without sockets, in both roles, and reading certificates. rustls does the handshakes; records of established connections are
//! protected here (`record/`).
//!
//! [`parse`] reads the `ssl` mapping of a listener into [`TlsSettings`]. A [`TlsAcceptor`] looks at a client's first
//! message and picks the settings that answer it; from then on a [`TlsConnection`] turns bytes from the socket into
//! plaintext and plaintext into bytes for the socket. [`Resumption`] is what all listeners and workers share.
//!
//! A [`TlsClient`] knows which backends to trust, with the texts of OpenSSL, and keeps sessions with them. It begins
//! [`ClientConnection`]s, which do the same as a [`TlsConnection`] in the other direction.
//!
//! `x509/` decides nothing about trust. rustls refuses version 1 certificates, which small private authorities make, and
//! knows neither common names nor what a certificate says about itself; [`Certificate`] reads that.

mod alpn;
mod client;
mod clock;
mod error;
mod groups;
mod handshake;
mod record;
mod resumption;
mod server;
mod settings;
mod suites;
#[cfg(test)]
mod tests;
mod versions;
mod x509;

pub use client::connection::ClientConnection;
pub use client::{TlsClient, TlsClientError, TlsClientSettings, handshake_text};
pub use error::TlsError;
pub use groups::names as tls_group_names;
pub use handshake::Progress;
pub use record::kernel::{
    Control, DIRECTIVES as OFFLOAD_DIRECTIVES, KernelKeys, OFFLOADED_FILE_LEN, OffloadSettings,
};
pub use record::output::OutputBuffer;
pub use record::traffic::PlainSink;
pub use resumption::{DIRECTIVES, QuicSecret, Resumption, ResumptionSettings};
pub use server::acceptor::{QuicChoice, TlsAcceptor, quic_client_info};
pub use server::connection::TlsConnection;
pub use settings::{ATTRIBUTES, TlsSettings, parse};
pub use x509::{
    AlternativeName, Certificate, Element, PublicKey, Reader, same_name, same_public_key,
};

/// Entry points for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::server::fuzzing::*;
}
