//! A QUIC client made of frames (RFC 9000), by code that shares nothing with the server but its TLS library: it sends exactly the
//! frames and packets a test says, from the sockets a test says.

mod client;
pub mod frame;
mod packet;
mod stream;

pub use client::{Answer, Close, Options, Quic, control_streams, get, request};
pub use packet::{Header, VERSION_1, long_header};
