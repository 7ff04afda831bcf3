//! Certificates by ACME (RFC 8555): the directive `acme`, and the client that obtains and renews the certificates of hosts whose
//! `ssl` names none.
//!
//! The client is a background service with a thread of its own ([`AcmeClient`]). It writes certificates and keys into the state
//! directory ([`StateDirectory`]); the server takes them up like any other certificate that changes on disk. The authority's
//! questions are answered from a directory that the server serves (HTTP-01) or by the TLS acceptors (TLS-ALPN-01). In the place of
//! the client, the configuration can name a program that obtains the certificates ([`Loader`]), which the supervisor runs.

mod challenge;
mod client;
mod clock;
mod failure;
mod http;
mod loader;
mod renewal;
mod service;
mod settings;
mod state;

pub use loader::Loader;
pub use service::AcmeClient;
pub use settings::{ATTRIBUTES, Acme, AcmeSettings, Challenge, DIRECTIVE, Order};
pub use state::{Owner, StateDirectory};
