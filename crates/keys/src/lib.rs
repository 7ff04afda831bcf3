//! Private keys: reading them, and isolating them (`neverbleed: ON`).
//!
//! An isolated key is in the memory of the *key process* only, a second process of the same program that signs what the server
//! asks it to. Not even the file passes through the server: the server opens it, and the key process reads the descriptor. Who can
//! read the server's memory, as by a fault in a parser, gets no key.
//!
//! The server and the key process talk over sockets that preserve message boundaries: one for orders of the main thread
//! ([`process`]), and one for each thread that signs ([`remote`]), which has a thread of its own at the other end. So a signature
//! waits for no other one, and a worker is held up for no longer than the signature takes, or [`remote::PATIENCE`] if the process
//! hangs: then it is replaced.

mod file;
mod holder;
mod message;
mod process;
mod remote;

pub use file::parse;
pub use holder::{Revival, allow, isolate, revive, switch_user};
pub use process::{KEY_PROCESS_ARGUMENT, serve};
