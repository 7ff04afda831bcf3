//! `proxy.reverse.url`: backends answer requests. Also [`OtherServer`]: if a request is internally redirected to a name
//! that no host of the configuration has, the server of that name answers it.
//!
//! [`handler`] carries a request through: [`target`] maps its path, [`request`] builds the request for the backend,
//! [`response`] builds the response for the client. `h2o_upstream` has connections, balancing and time limits.

mod backends;
mod built_in;
mod connection_options;
mod directives;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod goodbye;
mod handler;
pub(crate) mod health_policy;
mod request;
mod response;
pub(crate) mod settings;
mod target;
#[cfg(test)]
mod tests;
mod tunnel_kind;
mod upstreams;
mod websocket;

pub use built_in::OtherServer;
#[cfg(feature = "mruby")]
pub(crate) use built_in::upstream_for;
pub(crate) use directives::DIRECTIVES;
pub(crate) use handler::sweep;
pub(crate) use upstreams::Upstreams;
