//! Reads a configuration into a site, with its hosts, listeners and certificates, and the server's own settings.

pub(crate) mod accepted;
pub(crate) mod acme;
pub(crate) mod capabilities;
pub(crate) mod certificates;
pub(crate) mod hosts;
pub(crate) mod http2_directives;
pub(crate) mod http2_settings;
pub(crate) mod http3_directives;
pub(crate) mod listen;
pub(crate) mod load;
pub(crate) mod needs_restart;
mod outline;
pub(crate) mod port_holder;
pub(crate) mod quic;
pub(crate) mod quic_nodes;
pub(crate) mod quic_settings;
pub(crate) mod reachability;
pub(crate) mod settings;
pub(crate) mod users;
pub(crate) mod warnings;
