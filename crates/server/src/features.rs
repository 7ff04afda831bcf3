//! The built-in features: the one list of directives of the server and of the crates below it.

use std::sync::Arc;

use h2o_config::{Directive, Error, Registry, Source};
use h2o_exchange::{Features, Scope};

use crate::pace;
use crate::site::load::{LoadedConfig, load_next, load_with};
use crate::site::{
    accepted, capabilities, hosts, http2_directives, http3_directives, listen, quic_nodes, settings,
};

/// The built-in features: all directives of the server and of the crates below it.
#[must_use]
pub fn features() -> Arc<Features> {
    features_with(&[])
}

/// The built-in features together with the directives `others` of a program that embeds the server.
#[must_use]
pub fn features_with(others: &[&'static [Directive<Scope>]]) -> Arc<Features> {
    let mut groups = vec![
        hosts::DIRECTIVES,
        accepted::DIRECTIVES,
        capabilities::DIRECTIVES,
        listen::DIRECTIVES,
        settings::DIRECTIVES,
        pace::DIRECTIVES,
        http2_directives::DIRECTIVES,
        http3_directives::DIRECTIVES,
        &[quic_nodes::DIRECTIVE, h2o_acme::DIRECTIVE],
        h2o_tls::DIRECTIVES,
        h2o_tls::OFFLOAD_DIRECTIVES,
    ];
    groups.extend(h2o_handlers::directives());
    groups.extend(others);
    Arc::new(Features {
        registry: Registry::new(&groups),
        guards: h2o_handlers::guards(),
        filters: h2o_handlers::filters(),
        sweeps: h2o_handlers::sweeps(),
    })
}

/// Reads and checks a configuration.
///
/// # Errors
/// The first error in the configuration.
pub fn load(path: &str, source: &dyn Source) -> Result<LoadedConfig, Error> {
    load_with(features(), path, source)
}

/// Reads and checks a configuration that is to replace the one in use. The parts that have not changed keep their state: the health
/// of backends and connections to them, open logs, cached files.
///
/// # Errors
/// The first error in the configuration.
pub fn reload(
    path: &str,
    source: &dyn Source,
    running: &LoadedConfig,
) -> Result<LoadedConfig, Error> {
    load_next(features(), path, source, Some(Arc::clone(&running.site)))
}
