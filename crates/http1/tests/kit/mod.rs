//! Helpers that the tests of the crate `http1` share.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod client;
pub(crate) mod server;
