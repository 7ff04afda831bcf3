//! Connections to backends, and the exchanges that run over them.
//!
//! An [`Upstream`] is a group of [`Backend`]s with one balancer and one set of [`UpstreamSettings`]. It is made from the
//! configuration and shared by all workers; of what changes while it is used, only the balancer's counters are shared, and what
//! is known of the backends' health (`health`). A worker's idle connections stay on that worker (`idle_pool`).
//!
//! [`Upstream::send`] carries one request to a backend and comes back with the head of the response and a body that is pulled:
//! what the client does not take is not read from the backend. What goes wrong before the head is a [`Failure`], later a
//! [`h2o_exchange::BodyError`].

mod attempt;
mod backend;
mod backend_choice;
mod balancer;
mod call;
mod connect;
mod dispatch;
mod failure;
mod happy_eyeballs;
mod health;
mod http1;
mod http2;
mod idle_pool;
mod local_upstream;
mod pool;
mod protocol_choice;
mod proxy_protocol;
mod reach;
mod read_ahead;
mod ready_body;
mod resolver;
mod scratch;
mod settings;
mod stream;
mod tls_stream;
mod unanswered;
mod upstream;

pub use backend::{BackendHost, BackendUrl};
pub use call::{Call, OnInformational, Protocol, Reply};
pub use failure::{Cause, Failure};
pub use happy_eyeballs::{ConnectError, HappyEyeballs, connect, connect_error_text};
pub use health::check::HealthChecks;
pub use health::{BackendHealthPolicy, HealthCheck, PassiveCheck, Retry};
pub use resolver::{Family, NameOrigin, ResolveError, Resolver, limit_threads};
pub use settings::UpstreamSettings;
pub use upstream::{Backend, Balancing, HealthPolicy, Upstream};
