//! What TLS towards clients and TLS towards backends share: reading certificates.
//!
//! Nothing here decides whom to trust. rustls refuses version 1 certificates, which small private authorities make, and
//! knows neither common names nor what a certificate says about itself; [`Certificate`] reads that.

mod certificate;
mod der;
mod name;

pub use certificate::{AlternativeName, Certificate, PublicKey, same_public_key};
pub use der::{Element, Reader};
pub use name::same_name;
