//! Conversations with an HTTP/2 server over a link in memory, on a virtual clock.

mod content;
mod endings;
pub(crate) mod kit;
mod limits;
mod requests;
mod time;
