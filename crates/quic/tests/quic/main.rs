//! The crate through its public calls, with virtual time: against the library's own client and against ours, side by side and over a
//! simulated path.

#![allow(
    clippy::disallowed_methods,
    reason = "the beginning of a virtual clock"
)]

mod conversation;
mod early_data;
mod kit;
mod link;
