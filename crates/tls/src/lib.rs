//! TLS in both roles: towards clients, towards backends, and reading certificates.
//!
//! [`parse`] reads the `ssl` mapping of a listener into [`TlsSettings`]. A [`TlsAcceptor`] looks at a client's first
//! message and picks the settings that answer it; from then on a [`TlsConnection`] turns octets from the socket into
//! plaintext and plaintext into octets for the socket. rustls does the handshake, records of the established
//! connection are protected here (`record/`). [`Resumption`] is what all listeners and workers share.
//!
//! [`TlsClient`] does the handshakes with `https` backends: whom it trusts, with the texts of OpenSSL, and the sessions it
//! keeps.
//!
//! `x509/` decides nothing about trust. rustls refuses version 1 certificates, which small private authorities make, and
//! knows neither common names nor what a certificate says about itself; [`Certificate`] reads that.

mod alpn;
mod client;
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

pub use client::{TlsClient, TlsClientError, TlsClientSettings};
pub use error::TlsError;
pub use groups::names as tls_group_names;
pub use handshake::Progress;
pub use record::kernel::{
    Control, DIRECTIVES as OFFLOAD_DIRECTIVES, KernelKeys, OFFLOADED_FILE_LEN, OffloadSettings,
};
pub use record::output::OutputBuffer;
pub use record::traffic::PlainSink;
pub use resumption::{DIRECTIVES, Resumption, ResumptionSettings};
pub use server::acceptor::TlsAcceptor;
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
