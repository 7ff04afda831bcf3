//! Helpers that the tests of the crate `http1` share.
#![allow(dead_code, reason = "each test file uses a part of this module")]

pub(crate) mod client;
pub(crate) mod server;
