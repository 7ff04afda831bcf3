//! Whole conversations through the public calls: RFC 9113 section by section.

#[path = "../kit/mod.rs"]
mod kit;

mod calls;
mod client;
mod costs;
mod errors;
mod flow_control;
mod machine;
mod memo;
mod priorities;
mod properties;
mod requests;
mod shutdown;
mod states;
