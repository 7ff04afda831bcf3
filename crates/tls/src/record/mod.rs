//! Records of an established TLS connection: framing, protection, and offloading to the kernel.

pub(crate) mod framing;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod kernel;
pub(crate) mod output;
pub(crate) mod protection;
pub(crate) mod size;
pub(crate) mod traffic;
