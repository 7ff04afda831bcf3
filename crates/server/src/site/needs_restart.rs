//! Finds settings that a reload of the configuration cannot change while the server runs.

use std::sync::Arc;

use h2o_acme::Loader;
use h2o_exchange::Site;
use h2o_tls::ResumptionSettings;

use crate::site::acme::loader;
use crate::site::listen::{Listener, Listeners};
use crate::site::settings::{ServerSettings, worker_plan};

/// The settings that the server was started with. Reloads hand them on, so that a change that waits for a restart is told at each
/// of them.
#[derive(Clone, Default)]
pub(crate) struct StartSettings {
    server: Arc<ServerSettings>,
    resumption: Arc<ResumptionSettings>,
    loader: Option<Loader>,
}

impl StartSettings {
    /// The settings of the configuration that the server starts with.
    pub(crate) fn of(site: &Site) -> Self {
        Self {
            server: site.settings.get(),
            resumption: site.settings.get(),
            loader: loader(site),
        }
    }
}

/// Returns a warning for each setting that differs from what the server was started with, and needs a restart of the server.
pub(crate) fn settings_that_need_restart(running: &Site, next: &Site) -> Vec<String> {
    let start = running.shared.get::<StartSettings>();
    let before = &start.server;
    let after = next.settings.get::<ServerSettings>();
    let differs = [
        ("user", before.user != after.user),
        ("capabilities", before.capabilities != after.capabilities),
        ("pid-file", before.pid_file != after.pid_file),
        ("error-log", before.error_log != after.error_log),
        ("num-threads", worker_plan(before) != worker_plan(&after)),
        (
            "num-quic-threads",
            before.quic_workers != after.quic_workers,
        ),
        ("quic-nodes", before.quic_nodes != after.quic_nodes),
        ("tcp-reuseport", before.tcp_reuseport != after.tcp_reuseport),
        ("tcp-fastopen", before.tcp_fastopen != after.tcp_fastopen),
        ("loader` of `acme", start.loader != loader(next)),
        (
            "ssl-session-resumption",
            start.resumption != next.settings.get::<ResumptionSettings>(),
        ),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    let settings = differs.map(|(name, _)| format!("`{name}`"));
    settings
        .chain(changed_socket_options(running, next))
        .map(|what| {
            format!("[warning] {what} cannot change while the server runs: the old value counts until a restart")
        })
        .collect()
}

/// The labels of the listeners whose addresses only one of two configurations has.
pub(crate) fn listeners_of_one_only(running: &Site, next: &Site) -> Vec<String> {
    let before = running.shared.get::<Listeners>();
    let after = next.shared.get::<Listeners>();
    let missing = |these: &Listeners, others: &Listeners| -> Vec<String> {
        let is_there = |listener: &Listener| {
            let mut others = others.0.iter();
            others.any(|other| other.endpoint == listener.endpoint)
        };
        let these = these.0.iter().filter(|listener| !is_there(listener));
        these.map(|listener| listener.label.to_string()).collect()
    };
    [missing(&before, &after), missing(&after, &before)].concat()
}

/// Names the options that differ between two configurations, of listening sockets that stay open because both configurations have
/// them.
fn changed_socket_options(running: &Site, next: &Site) -> Vec<String> {
    let before = running.shared.get::<Listeners>();
    let after = next.shared.get::<Listeners>();
    let mut changed = Vec::new();
    for listener in &after.0 {
        let mut kept = before.0.iter();
        let Some(kept) = kept.find(|kept| kept.endpoint == listener.endpoint) else {
            continue;
        };
        let differs = kept.socket.differences(&listener.socket);
        changed.extend(differs.map(|name| format!("`{name}` of `listen` {}", listener.label)));
    }
    changed
}
