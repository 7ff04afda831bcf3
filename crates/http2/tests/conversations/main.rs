//! Tests that talk with the HTTP/2 engine through its public calls, section by section of RFC 9113.

#[path = "../kit/mod.rs"]
mod kit;

mod calls;
mod client;
mod costs;
mod errors;
mod flow_control;
mod machine;
mod memo;
mod priorities;
mod properties;
mod requests;
mod shutdown;
mod states;
