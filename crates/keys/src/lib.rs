//! Private keys: reading them, and isolating them (`neverbleed: ON`).
//!
//! An isolated key is in the memory of the *key process* only, a second process of the same program that signs what the
//! server asks it to. Not even the file passes through the server: the server opens it, and the key process reads the
//! descriptor. An attacker who can read the server's memory, by a fault in a parser for example, gets no key.
//!
//! The server and the key process talk over sockets that preserve message boundaries: one for orders of the main thread
//! ([`process`]), and one for each thread that signs ([`remote`]), which has a thread of its own at the other end. So
//! no signature waits for another one, and a worker waits only as long as its signature takes. If the key process does
//! not answer within [`remote::PATIENCE`], it is replaced.

mod file;
mod holder;
mod message;
mod process;
mod remote;

pub use file::parse;
pub use holder::{Revival, allow, isolate, revive, switch_user};
pub use process::{KEY_PROCESS_ARGUMENT, serve};
