//! Tests of the QUIC crate through its public calls, with virtual time: against `quinn-proto`'s client and against ours, directly
//! and over a simulated path.

#![allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
)]

mod conversation;
mod early_data;
mod few_streams;
mod kit;
mod link;
