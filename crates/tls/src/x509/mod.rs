//! Parses X.509 certificates (RFC 5280) and OCSP responses, and verifies the signatures made with their keys.

mod certificate;
mod der;
mod name;
mod signature;

pub use certificate::{AlternativeName, Certificate, PublicKey, same_public_key};
pub(crate) use certificate::{
    BIT_STRING, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, bits, time,
};
pub use der::{Element, Reader};
pub(crate) use der::{NULL, element};
pub use name::same_name;
pub(crate) use signature::{SignedPart, is_signed_by, verify_handshake12, verify_handshake13};
