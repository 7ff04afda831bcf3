//! HTTP/1 exchanges with backends that are scripted byte for byte.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod broken;
mod connections;
mod farewell;
mod kit;
mod requests;
mod responses;
mod time;
mod tunnels;
