//! Whole conversations with a client in memory, and the configurations they need.

mod config;
mod files;
mod handshake;
mod kit;
mod offload;
mod resumption;
mod traffic;
