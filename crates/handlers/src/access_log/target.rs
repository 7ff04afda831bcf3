//! Targets of access logs: files, commands and sockets.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::Error;
use h2o_exchange::{BackgroundService, BackgroundServices, Resource, Resources, Scope};
use h2o_log::reason;

/// The target of one or more access logs, opened once the whole configuration was checked.
pub(super) struct LogTarget(Arc<h2o_log::Target>);

/// The log targets of a configuration by path, so that access logs with the same path share one target.
#[derive(Clone, Default)]
struct Targets(HashMap<Box<str>, Arc<LogTarget>>);

/// The log targets of all access logs of a configuration.
pub(super) fn all(scope: &Scope) -> Vec<Arc<h2o_log::Target>> {
    let targets = scope.shared.get::<Targets>();
    targets.0.values().map(|log| Arc::clone(&log.0)).collect()
}

impl LogTarget {
    /// The log target for `path`, which is opened together with the other resources of the configuration. `place` is an error that
    /// has the position of the path in the configuration, and no text.
    pub(super) fn of(scope: &mut Scope, path: &str, place: Error) -> Arc<Self> {
        let targets = scope.shared.edit::<Targets>();
        if let Some(target) = targets.0.get(path) {
            return Arc::clone(target);
        }
        let running = scope.running.as_ref();
        let running = running.and_then(|site| site.shared.get::<Targets>().0.get(path).cloned());
        // A target that the running configuration has open is taken over, so that a command that receives log lines
        // keeps running.
        let target =
            running.unwrap_or_else(|| Arc::new(Self(Arc::new(h2o_log::Target::new(path)))));
        let targets = scope.shared.edit::<Targets>();
        targets.0.insert(path.into(), Arc::clone(&target));
        let resources = scope.shared.edit::<Resources>();
        resources.add(place, Arc::<Self>::clone(&target) as _);
        let services = scope.shared.edit::<BackgroundServices>();
        services.0.push(Arc::<Self>::clone(&target));
        target
    }

    /// Writes a log line, which ends with a line feed, without waiting. `unix_time` is the current time since the Unix
    /// epoch.
    pub(super) fn write(&self, line: &[u8], unix_time: Duration) {
        self.0.write(line, unix_time);
    }
}

impl Resource for LogTarget {
    fn open(&self) -> Result<(), String> {
        self.0.open()
    }

    fn announce(&self) {
        self.0.announce();
    }

    fn reopen(&self) -> Result<(), String> {
        self.0.reopen()
    }
}

/// The background service restarts a log command when it ends.
impl BackgroundService for LogTarget {
    fn begin(&self) -> Result<Box<dyn Any + Send>, String> {
        match self.0.run() {
            Ok(running) => Ok(Box::new(running)),
            Err(error) => Err(format!(
                "failed to start a thread for an access log: {}",
                reason(&error)
            )),
        }
    }

    /// Requests that began before a reload write their log line when they end, so the target must stay open for them.
    fn serves_requests(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
