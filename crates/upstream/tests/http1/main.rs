//! HTTP/1 exchanges with backends that are scripted octet for octet.

#![expect(clippy::disallowed_methods, reason = "what takes how long is part of some claims")]

mod broken;
mod connections;
mod kit;
mod requests;
mod responses;
mod time;
mod tunnels;
