//! `proxy.reverse.url`: requests are answered by backends. [`OtherServer`]: so are requests that are redirected inside the
//! server to a name that is none of ours.
//!
//! [`handler`] is the way of a request: [`request`] says what the backend is sent, [`target`] which resource it is asked for,
//! [`response`] what becomes of its answer. Connections, balancing and time limits are the affair of `h2o_upstream`.

mod backends;
mod built_in;
mod connection_options;
mod directives;
pub(crate) mod fuzzing;
mod goodbye;
mod handler;
mod health_policy;
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
pub(crate) use directives::DIRECTIVES;
pub(crate) use upstreams::Upstreams;
