//! Replaces the configuration while the server runs.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use h2o_exchange::Order;

use crate::LoadedConfig;
use crate::current::Retired;
use crate::site::certificates::CertificateReload;
use crate::site::needs_restart::settings_that_need_restart;
use crate::site::settings::ServerSettings;
use crate::sockets::bind::bind_new;
use crate::worker::{Server, set_limits};

/// How long a reload waits for the workers to take the new configuration. A worker that is busy for longer, for example with a script,
/// takes it later.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(5);

impl Server {
    /// Has the server use another configuration, read with [`crate::reload`], from the next request on. Requests in progress keep the
    /// configuration that they began with. Opens the listeners and logs that are new, with the rights of this process.
    ///
    /// Returns warnings for the administrator. On an error, the old configuration stays in use unchanged.
    ///
    /// # Errors
    /// The error message for the administrator.
    pub fn reload(&mut self, loaded: &LoadedConfig) -> Result<Vec<String>, String> {
        let workers = self.workers();
        let bound = bind_new(loaded, workers, None, |endpoint| {
            self.current.is_open(endpoint)
        })?;
        let mut warnings = bound.warnings.clone();
        loaded.open_resources()?;
        let mut next = self.current.next(loaded);
        let (adopted, is_adopted) = mpsc::channel();
        let generations = next.share_out(loaded, bound, workers, &adopted, Some(&self.current))?;
        drop(adopted);
        next.begin_services(Some(&mut self.current))?;
        // No step after this one can fail, so the old configuration never has to be restored.
        let settings = loaded.settings();
        set_limits(&self.shared, &settings, workers);
        (self.shared.listeners).store(next.listening_sockets(), Relaxed);
        warnings.extend(settings_that_need_restart(
            self.current.site(),
            &loaded.site,
        ));
        for (worker, generation) in self.orders.iter().zip(generations) {
            // The result is ignored: a worker that has ended takes no orders.
            let _ = worker.send(Order::Configure(Box::new(generation)));
        }
        // No value is ever sent over this channel: the call waits until all workers have dropped their senders.
        let _ = is_adopted.recv_timeout(ADOPTION_PATIENCE);
        let before = std::mem::replace(&mut self.current, next);
        self.retired.push(before.retire());
        self.release_retired();
        for staple in self.current.tls().staples().values() {
            staple.retry();
        }
        Ok(warnings)
    }

    /// Does what [`Server::reload_certificates`] does, if certificate files have changed between the last two calls and have not changed
    /// since. The main thread calls this at intervals.
    pub fn reload_changed_certificates(&mut self) -> Option<CertificateReload> {
        let is_changed = self.watch.poll(self.current.tls().files());
        is_changed.then(|| self.reload_certificates())
    }

    /// Starts to fetch the OCSP responses that are due. The main thread calls this at intervals.
    pub fn update_staples(&self) {
        let settings = self.current.site().settings.get::<ServerSettings>();
        self.staple_fetches
            .begin_due(self.current.tls().staples(), settings.ocsp_updaters);
    }

    /// Drops the earlier configurations whose last request has ended. The main thread calls this at intervals.
    pub fn release_retired(&mut self) {
        // This drops the last reference to a replaced configuration on the main thread, so that no worker is held up if the drop takes
        // long.
        self.retired.retain(Retired::is_in_use);
        let retiring = &self.shared.reloads.retiring;
        retiring.store(self.retired.len(), Relaxed);
    }
}
