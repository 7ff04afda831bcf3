//! Settings that stay as they are when a configuration replaces another while the server runs.

use h2o_exchange::Site;
use h2o_tls::ResumptionSettings;

use crate::site::settings::{ServerSettings, worker_plan};

/// Warnings of settings that need a restart, as far as they differ.
pub(crate) fn settings_that_need_restart(running: &Site, next: &Site) -> Vec<String> {
    let before = running.settings.get::<ServerSettings>();
    let after = next.settings.get::<ServerSettings>();
    let differs = [
        ("user", before.user != after.user),
        ("pid-file", before.pid_file != after.pid_file),
        ("error-log", before.error_log != after.error_log),
        ("num-threads", worker_plan(&before) != worker_plan(&after)),
        (
            "num-quic-threads",
            before.quic_workers != after.quic_workers,
        ),
        ("quic-nodes", before.quic_nodes != after.quic_nodes),
        ("tcp-reuseport", before.tcp_reuseport != after.tcp_reuseport),
        (
            "ssl-session-resumption",
            running.settings.get::<ResumptionSettings>()
                != next.settings.get::<ResumptionSettings>(),
        ),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs
        .map(|(name, _)| {
            format!("[warning] `{name}` cannot change while the server runs: it stays as it was until a restart")
        })
        .collect()
}
