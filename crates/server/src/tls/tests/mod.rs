//! Whole conversations with a client in memory.

mod config;
mod handshake;
mod kit;
mod resumption;
mod traffic;
