//! HTTP/2 (RFC 9113) without input or output: octets and time go in, events and octets come out.

pub mod hpack;
pub mod scheduler;
