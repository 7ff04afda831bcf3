//! The replacement of the configuration while the server runs.

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

/// How long a reload waits for the workers. One that is busy for longer, as with a script, serves by the next configuration later.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(5);

impl Server {
    /// Serves by another configuration, read with [`crate::reload`], from the next request on. Requests in progress end with the
    /// configuration that they began with. Opens the listeners and logs that are new, with the rights of this process.
    ///
    /// Returns what the administrator should know. On an error nothing has changed.
    ///
    /// # Errors
    /// The text to show.
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
        // From here on nothing fails.
        let settings = loaded.settings();
        set_limits(&self.shared, &settings, workers);
        warnings.extend(settings_that_need_restart(
            self.current.site(),
            &loaded.site,
        ));
        for (worker, generation) in self.orders.iter().zip(generations) {
            // A worker that has ended ignores orders.
            let _ = worker.send(Order::Configure(Box::new(generation)));
        }
        // Nothing is ever sent: this waits until the workers have dropped the senders.
        let _ = is_adopted.recv_timeout(ADOPTION_PATIENCE);
        let before = std::mem::replace(&mut self.current, next);
        self.retired.push(before.retire());
        self.release_retired();
        Ok(warnings)
    }

    /// As [`Server::reload_certificates`], if files have changed since the last call but one, and not since the last. Called every
    /// now and then.
    pub fn reload_changed_certificates(&mut self) -> Option<CertificateReload> {
        let is_changed = self.watch.poll(self.current.tls().files());
        is_changed.then(|| self.reload_certificates())
    }

    /// Begins to fetch the OCSP responses that are due. Called every now and then.
    pub fn update_staples(&self) {
        let settings = self.current.site().settings.get::<ServerSettings>();
        self.staple_fetches
            .begin_due(self.current.tls().staples(), settings.ocsp_updaters);
    }

    /// Drops earlier configurations whose last request has ended. Called every now and then.
    pub fn release_retired(&mut self) {
        // Here the last reference is dropped, in this thread, so that a configuration that takes long to drop does not hold up
        // a worker.
        self.retired.retain(Retired::is_in_use);
        let retiring = &self.shared.reloads.retiring;
        retiring.store(self.retired.len(), Relaxed);
    }
}
