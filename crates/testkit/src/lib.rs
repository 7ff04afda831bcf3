//! For tests only: code that the tests of several crates share.
//!
//! It uses no code of the server, so that requests and the parsing of responses are independent of the server.

pub mod http2;
pub mod http3;
mod patience;
#[cfg(feature = "tls")]
pub mod quic;
mod random;
#[cfg(feature = "runtime")]
mod standing_clock;
pub mod table;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "runtime")]
mod virtual_clock;

pub use patience::{Deadline, any_moment, eventually, patient, wait_until_read};
pub use random::{Random, run_seeds};
#[cfg(feature = "runtime")]
pub use standing_clock::{on_standing_clock, pass, settle, until};
#[cfg(feature = "runtime")]
pub use virtual_clock::on_virtual_clock;
