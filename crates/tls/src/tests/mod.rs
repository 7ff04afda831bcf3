//! Whole TLS conversations with a client in memory, and the configurations they need.

mod config;
mod files;
mod handshake;
mod kit;
mod offload;
mod raw_public_keys;
mod resumption;
mod traffic;
