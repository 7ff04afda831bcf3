//! Parses certificates (RFC 5280).

mod certificate;
mod der;
mod name;

pub use certificate::{AlternativeName, Certificate, PublicKey, same_public_key};
pub use der::{Element, Reader};
pub use name::same_name;
