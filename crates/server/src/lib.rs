//! The server: workers, listeners, connection drivers, routing.
//!
//! [`load`] turns a configuration file into an immutable [`h2o_exchange::Site`]; [`bind`] opens its listeners;
//! [`Server::start`] runs one worker per configured core. A worker is one thread with one event loop. While it serves
//! requests, it writes to no memory that other workers use.

mod budget;
mod connection_state;
mod context;
mod current;
mod event;
mod features;
mod flow;
mod generation;
mod http1;
mod http2;
mod http3;
mod inspect;
mod io;
mod latency;
mod listener;
mod pace;
mod quic;
mod reload;
mod request;
mod setup;
#[cfg(test)]
mod simulation;
mod site;
mod sockets;
mod stapling;
mod sys;
mod tcp;
#[cfg(feature = "mruby")]
mod trial;
mod worker;

pub use budget::BudgetSettings;
pub use features::{features, features_with, load, reload};
pub use site::certificates::CertificateReload;
pub use site::http2_settings::{Http2Settings, LatencySettings};
pub use site::load::{LoadedConfig, load_with};
pub use site::quic_settings::{Controller, Http3Settings, NodeAddress, QuicNodes, QuicSettings};
pub use site::settings::{SendInformational, ServerSettings, worker_plan};
pub use sockets::bind::{ListeningSockets, bind, bind_or_take};
pub use sockets::inherited::InheritedSockets;
#[cfg(feature = "mruby")]
pub use trial::{TrialError, TrialRequest, TrialResponse, try_requests};
pub use worker::{Server, StatusReport, WorkerEnd};

/// The TLS key-exchange groups that a configuration may name; `h2o -v` lists them.
#[must_use]
pub fn tls_group_names() -> Vec<&'static str> {
    h2o_tls::tls_group_names().collect()
}

/// Whether the kernel can encrypt TLS records (`ssl-offload: kernel`).
#[must_use]
pub fn has_kernel_tls() -> bool {
    h2o_tls::has_kernel_tls()
}
