//! Connections to backends, and requests over them.
//!
//! An [`Upstream`] is a group of [`Backend`]s with one balancer and one set of [`UpstreamSettings`]. It is created from the
//! configuration and shared by all workers, which at run time share only the balancer's counters and the state of health checks
//! (`health`). Each worker has its own idle connections (`idle_pool`).
//!
//! [`Upstream::send`] sends one request to a backend and returns the head of the response and a body. The body is pulled: data
//! that the client does not take is not read from the backend, beyond the buffers. A failure before the head of the response is a
//! [`Failure`], a later failure is a [`h2o_exchange::BodyError`].

mod attempt;
mod backend;
mod backend_choice;
mod balancer;
mod call;
mod connect;
mod dispatch;
mod failure;
mod fastcgi;
mod health;
mod http1;
mod http2;
mod http3;
mod idle_pool;
mod local_upstream;
mod multiplexed;
mod plain_stream;
mod pool;
mod post;
mod protocol_choice;
mod protocol_memory;
mod proxy_protocol;
mod reach;
mod read_ahead;
mod ready_body;
mod resolver;
mod scratch;
mod sequential_connect;
mod settings;
mod stream;
mod tls_stream;
mod unanswered;
mod upstream;

pub use backend::{BackendHost, BackendUrl, MAX_UNIX_PATH};
pub use call::{Call, OnInformational, Protocol, Reply};
pub use failure::{Failure, FailureCause};
pub use fastcgi::record as fastcgi_record;
pub use fastcgi::{FastcgiRequest, FastcgiTarget, OnStderr};
pub use h2o_http1::decode_chunked;
pub use health::check::HealthChecks;
pub use health::{BackendHealthPolicy, HealthCheck, PassiveCheck, Retry};
pub use plain_stream::PlainStream;
pub use pool::sweep;
pub use post::Post;
pub use resolver::{Family, NameOrigin, ResolveError, Resolver, limit_threads};
pub use sequential_connect::{ConnectError, ConnectLimits, connect, connect_error_text};
pub use settings::UpstreamSettings;
pub use upstream::{Backend, Balancing, HealthPolicy, Upstream};

/// Entry points for fuzzing requests to backends.
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::fastcgi::head::fuzzing::*;
    pub use crate::fastcgi::record::fuzzing::*;
}
