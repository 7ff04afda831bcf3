//! Reads a configuration file into a [`Site`]. No listener or log is opened and no service is started.

use std::sync::Arc;

use h2o_config::{Error, Source, UnmatchedPatterns};
use h2o_exchange::{CertificateInfo, Certificates, Features, Resources, Scope, Site, Sweep};

use h2o_tls::ResumptionSettings;

use crate::site::acme;
use crate::site::certificates::{list_certificates, staples_of};
use crate::site::hosts::HostKeys;
use crate::site::listen::{Listeners, set_alternative_services, set_client_authorities};
use crate::site::needs_restart::{
    StartSettings, listeners_of_one_only, settings_that_need_restart,
};
use crate::site::outline::Outline;
use crate::site::reachability::unreachable_hosts;
use crate::site::settings::ServerSettings;

/// A configuration that was read and has no errors.
pub struct LoadedConfig {
    /// The hosts, paths and settings of the configuration.
    pub site: Arc<Site>,
    /// Warnings for the administrator, which do not prevent the start.
    pub warnings: Vec<String>,
    /// The functions [`Features::sweeps`], which drop state of replaced configurations.
    pub(crate) sweeps: Vec<Sweep>,
    outline: Outline,
}

impl LoadedConfig {
    /// The settings of the process.
    #[must_use]
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.site.settings.get()
    }

    /// Lists what is known about the certificates of the listeners.
    #[must_use]
    pub fn certificates(&self) -> Arc<[CertificateInfo]> {
        self.site.shared.get::<Certificates>().list()
    }

    /// The value of the directive `acme`, if it is configured.
    #[must_use]
    pub fn acme(&self) -> Option<Arc<h2o_acme::Acme>> {
        self.site.settings.get::<h2o_acme::AcmeSettings>().0.clone()
    }

    /// The program that is to obtain certificates in the server's place, if one is configured and a host needs it.
    #[must_use]
    pub fn acme_loader(&self) -> Option<h2o_acme::Loader> {
        acme::loader(&self.site)
    }

    /// Describes what a reload of `next` would change: a line for each value that it removes (`-`) or adds (`+`), and warnings
    /// about settings that cannot change while the server runs.
    #[must_use]
    pub fn differences(&self, next: &Self) -> Vec<String> {
        // The certificates in use may have changed since the configuration was loaded.
        let outline = |loaded: &Self| loaded.outline.with_certificates(&loaded.certificates());
        let mut lines = outline(self).differences(&outline(next));
        lines.extend(settings_that_need_restart(&self.site, &next.site));
        lines
    }

    /// The addresses that only one of this configuration and `next` listens on, as the configurations write them.
    #[must_use]
    pub fn listeners_of_one_only(&self, next: &Self) -> Vec<String> {
        listeners_of_one_only(&self.site, &next.site)
    }

    /// Opens log files and log pipes, with the rights of the starting user.
    ///
    /// # Errors
    /// The error message for the administrator.
    pub fn open_resources(&self) -> Result<(), String> {
        let resources = self.site.shared.get::<Resources>();
        let opened = resources.0.iter().try_for_each(|resource| resource.open());
        opened.map_err(|error| error.to_string())
    }

    /// Fetches the OCSP response of each certificate once, and reports the outcome by `say`.
    pub fn test_stapling(&self, say: impl FnMut(&str)) {
        let listeners = self.site.shared.get::<Listeners>();
        crate::stapling::test(&staples_of(listeners.0.iter()), say);
    }

    /// Reopens log files, with the rights of the user that the server runs as. Returns a message for each file that could not be
    /// opened; the others are open again.
    #[must_use]
    pub fn reopen_resources(&self) -> Vec<String> {
        let resources = self.site.shared.get::<Resources>();
        let reopened = (resources.0.iter()).map(|resource| resource.resource.reopen());
        reopened.filter_map(Result::err).collect()
    }
}

/// Reads and checks a configuration with the directives of `features`.
///
/// # Errors
/// The first error in the configuration.
pub fn load_with(
    features: Arc<Features>,
    path: &str,
    source: &dyn Source,
) -> Result<LoadedConfig, Error> {
    load_next(features, path, source, None)
}

/// Reads and checks a configuration like [`load_with`], but one that is to replace the configuration `running`.
pub(crate) fn load_next(
    features: Arc<Features>,
    path: &str,
    source: &dyn Source,
    running: Option<Arc<Site>>,
) -> Result<LoadedConfig, Error> {
    let mut unmatched = UnmatchedPatterns::default();
    let top = h2o_config::load_noting(path, source, &mut unmatched)?;
    let sweeps = features.sweeps.clone();
    let mut scope = Scope::new(features);
    scope.running = running;
    scope.env.push_level();
    scope.run(&top).map_err(|error| unmatched.explain(error))?;
    if scope.hosts.is_empty() {
        return Err(top.error("mandatory configuration directive `hosts` is missing"));
    }
    let mut listeners = scope.shared.get::<Listeners>().as_ref().clone();
    let all: Vec<u32> = (0..scope.hosts.len())
        .filter_map(|index| u32::try_from(index).ok())
        .collect();
    for listener in &mut listeners.0 {
        listener.hosts.get_or_insert_with(|| all.clone());
    }
    let has_tickets = scope.settings.get::<ResumptionSettings>().has_tickets();
    if let Some(listener) = listeners.0.iter().find(|listener| listener.quic.is_some())
        && !has_tickets
    {
        // QUIC needs session tickets: the keys of its connection ids and tokens are derived from the keys of the TLS session tickets.
        return Err(listener
            .error("ticket-based encryption MUST be enabled when running QUIC")
            .with_hint("write `mode: all` in `ssl-session-resumption`, or leave that out"));
    }
    let shares_keys = scope
        .settings
        .get::<ResumptionSettings>()
        .shares_ticket_keys();
    let nodes = &scope.settings.get::<ServerSettings>().quic_nodes;
    if let Some(listener) = listeners.0.iter().find(|listener| listener.quic.is_some())
        && nodes.as_ref().is_some_and(|nodes| !nodes.others.is_empty())
        && !shares_keys
    {
        let text = "the servers of `quic-nodes` cannot read each other's connection ids, because each server makes ticket keys of its own";
        let hint = "give all servers of `quic-nodes` the same `ticket-file` or store in `ssl-session-resumption`";
        scope.warn(&listener.error(text).with_hint(hint));
    }
    let keys = scope.shared.get::<HostKeys>();
    for error in unreachable_hosts(&scope.hosts, &keys.0, &listeners.0) {
        scope.warn(&error);
    }
    scope
        .shared
        .edit::<Certificates>()
        .set(list_certificates(listeners.0.iter(), &scope.hosts));
    acme::add_client(&mut scope, |host| listeners.have_clear_port(host));
    let error_log = scope.settings.get::<ServerSettings>().error_log.clone();
    h2o_handlers::rotate_logs(&mut scope, error_log.as_deref());
    set_client_authorities(&mut scope.hosts, &listeners);
    set_alternative_services(&mut scope.hosts, &listeners);
    *scope.shared.edit() = listeners;
    let outline = Outline::new(&top);
    let running = scope.running.take();
    let mut site = Site {
        reroute_limits: *scope.settings.get(),
        server_field: scope.settings.get::<ServerSettings>().server_field(),
        hosts: scope.hosts,
        settings: scope.settings,
        shared: scope.shared,
        ..Site::default()
    };
    let at_start = match &running {
        Some(running) => (*running.shared.get::<StartSettings>()).clone(),
        None => StartSettings::of(&site),
    };
    *site.shared.edit() = at_start;
    Ok(LoadedConfig {
        site: Arc::new(site),
        warnings: scope.warnings,
        sweeps,
        outline,
    })
}
