//! Parses X.509 certificates (RFC 5280) and OCSP responses.

mod certificate;
mod der;
mod name;
mod ocsp;

pub use certificate::{AlternativeName, Certificate, PublicKey, same_public_key};
pub use der::{Element, Reader};
pub use name::same_name;
pub use ocsp::{OcspValidity, ocsp_validity};
