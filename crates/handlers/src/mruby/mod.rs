//! The directives `mruby.handler` and `mruby.handler-file`, whose handlers are scripts.
//!
//! Each worker has one VM ([`machine`]), in which every script is evaluated once. A request calls the script's value in
//! a strand (fiber); if the strand waits, the response comes later. [`answer`] makes a response of the value that the
//! script returns.

mod answer;
mod arrival;
mod body;
mod content;
mod directives;
mod env;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handler;
mod http;
mod input;
mod machine;
mod objects;
mod password;
mod redis;
mod sub_env;
mod sub_request;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use directives::DIRECTIVES;
pub use machine::are_scripts_evaluated;
pub(crate) use machine::sweep;
