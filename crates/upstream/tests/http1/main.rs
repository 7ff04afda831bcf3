//! HTTP/1 exchanges with backends that are scripted octet for octet.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests may panic, and what takes how long is part of some claims"
)]

mod broken;
mod connections;
mod farewell;
mod kit;
mod requests;
mod responses;
mod time;
mod tunnels;
