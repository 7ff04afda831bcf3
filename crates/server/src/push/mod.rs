//! What a client is believed to have in its cache already, and what is therefore not pushed.

pub(crate) mod cache_digest;
pub(crate) mod casper;
mod golomb;
