//! Conversations with a server over a link in memory, on a virtual clock.

mod content;
mod endings;
mod kit;
mod limits;
mod requests;
mod time;
