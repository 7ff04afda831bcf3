//! Conversations of a client in every mood with the server role.

#[path = "../kit/mod.rs"]
mod kit;

mod requests;
