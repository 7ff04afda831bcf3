//! A QUIC client (RFC 9000) for tests: it sends exactly the frames and packets that a test specifies, from the sockets that the
//! test specifies. It shares only the TLS library with the server.

mod client;
pub mod frame;
mod packet;
mod stream;

pub use client::{Answer, Close, Options, Quic, control_streams, get, request};
pub use packet::{Header, VERSION_1, long_header};
