//! TLS as server and as client, without sockets, and parsing of certificates. rustls performs handshakes; this crate protects the
//! records of established connections (`record/`).
//!
//! [`parse`] reads the `ssl` mapping of a listener into [`TlsSettings`]. A [`TlsAcceptor`] reads a client's ClientHello and
//! chooses the settings for it; from then on a [`TlsConnection`] decrypts received bytes and encrypts bytes to send.
//! [`Resumption`] is shared by all listeners and workers.
//!
//! A [`TlsClient`] verifies backends, with OpenSSL's error texts, and caches sessions. It creates [`ClientConnection`]s, the
//! counterpart of [`TlsConnection`] for backends.
//!
//! `x509/` makes no decisions about trust. rustls refuses version 1 certificates, which small private authorities issue, and gives
//! access neither to common names nor to other fields of a certificate; [`Certificate`] does.

mod alpn;
mod client;
mod clock;
mod error;
mod groups;
mod handshake;
mod ocsp;
mod quic_keys;
mod record;
mod resumption;
mod server;
mod settings;
mod stapling;
mod suites;
#[cfg(test)]
mod tests;
mod versions;
mod x509;

pub use alpn::CHALLENGE as ALPN_CHALLENGE;
pub use client::connection::ClientConnection;
pub use client::{
    TlsClient, TlsClientError, TlsClientSettings, authority_client, authority_failure,
    handshake_text,
};
pub use error::TlsError;
pub use groups::names as tls_group_names;
pub use handshake::Progress;
pub use ocsp::{OcspError, OcspStatus, OcspSubject};
pub use quic_keys::initial_suite as initial_quic_suite;
pub use record::kernel::{
    DIRECTIVES as OFFLOAD_DIRECTIVES, KernelAction, KernelKeys, OFFLOADED_FILE_LEN,
    OffloadSettings, is_supported as has_kernel_tls,
};
pub use record::output::OutputBuffer;
pub use record::traffic::PlainSink;
pub use resumption::{DIRECTIVES, QuicSecret, Resumption, ResumptionSettings};
pub use server::acceptor::{QuicChoice, TlsAcceptor, quic_client_info};
pub use server::challenge::ChallengeCertificate;
pub use server::connection::TlsConnection;
pub use settings::identity::{ObtainedFiles, acme_names, has_identity, is_pair};
pub use settings::{ATTRIBUTES, TlsSettings, parse};
pub use stapling::{FetchFailure, OcspResponse, Staple, StapleChange, StapleFetch};
pub use x509::{
    AlternativeName, Certificate, Element, PublicKey, Reader, same_name, same_public_key,
};

/// The SHA-256 digest of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}

/// Entry points for fuzzing TLS.
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::record::fuzzing::*;
    pub use crate::resumption::fuzzing::*;
    pub use crate::server::fuzzing::*;
}
