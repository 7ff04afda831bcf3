//! Tests of the QUIC crate through its public calls, with virtual time: against `quinn-proto`'s client and against ours, directly
//! and over a simulated path.

#![allow(
    clippy::disallowed_methods,
    reason = "the beginning of a virtual clock"
)]

mod conversation;
mod early_data;
mod kit;
mod link;
