//! Tests that talk with the HTTP/3 engine: the server role with clients, and the client role with servers, which behave
//! well and badly.

#[path = "../kit/mod.rs"]
mod kit;

mod client;
mod client_states;
mod control;
mod errors;
mod limits;
mod model;
mod places;
mod priorities;
mod qpack;
mod requests;
mod responses;
mod shutdown;
mod states;
mod tunnels;
