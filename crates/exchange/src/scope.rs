//! The state that directives edit while a configuration is read.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Command, Error, Level, Node, Registry};

use crate::{
    EnvCommands, Filter, Handler, Host, HostName, LocalSite, Logger, PathRoute, Setting,
    SettingsMap, Site, Worker,
};

/// Creates a filter from the final settings of a path; `None` if the path does not use the filter.
pub type FilterFactory = fn(&Scope) -> Option<Box<dyn Filter>>;

/// Creates a guard from the final settings of a path: a handler that runs before the path's own handlers. `None` if the
/// path does not use the guard.
pub type GuardFactory = fn(&Scope) -> Option<Box<dyn Handler>>;

/// A function that drops what a worker caches for configurations that no request uses any more.
pub type Sweep = fn(&Worker);

/// The built-in features: all directives, and the filters in their fixed order.
pub struct Features {
    /// The table of all directives.
    pub registry: Registry<Scope>,
    /// Makers of the guards: handlers such as access control, which run before the handlers of every path, in this
    /// order.
    pub guards: Vec<GuardFactory>,
    /// Makers of the filters, in the order in which the filters run.
    pub filters: Vec<FilterFactory>,
    /// Functions that each worker calls after a reload of the configuration, and again after the last request that
    /// began before the reload.
    pub sweeps: Vec<Sweep>,
}

/// A file or pipe that a configuration uses (such as a log file). The server opens it once the whole configuration is
/// known to be valid.
pub trait Resource: Send + Sync {
    /// Opens the file or pipe, with the rights of the user who started the server.
    ///
    /// # Errors
    /// The message about the failure, for the user who starts the server.
    fn open(&self) -> Result<(), String>;

    /// Looks, with the rights of the user who starts the server, for what [`Self::open`] would report, without changing anything. Called
    /// when a configuration is only tested. Returns the message and a hint.
    fn check(&self) -> Option<(String, &'static str)> {
        None
    }

    /// Tells the process that keeps the rights of the starting user that this file or pipe will be opened.
    fn announce(&self) {}

    /// Reopens a log file after it was rotated, with the rights of the user that the server runs as. If that fails, the
    /// file that is open stays in use.
    ///
    /// # Errors
    /// The message about the failure, for the error log.
    fn reopen(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The value of `user`: the user that the server runs as after it has started, if configured.
#[derive(Clone, Default)]
pub struct ConfiguredUser(pub Option<Arc<str>>);

/// The files and pipes that a configuration uses, in the order in which they are opened.
#[derive(Clone, Default)]
pub struct Resources(pub Vec<PlacedResource>);

/// A file or pipe, and where the configuration names it. A reload may take the file or pipe over from the running configuration, which
/// names it elsewhere.
#[derive(Clone)]
pub struct PlacedResource {
    /// The file or pipe.
    pub resource: Arc<dyn Resource>,
    /// An error that has the position in the configuration, and no text.
    place: Error,
}

impl Resources {
    /// Adds a file or pipe. `place` is an error that has its position in the configuration, and no text.
    pub fn add(&mut self, place: Error, resource: Arc<dyn Resource>) {
        self.0.push(PlacedResource { resource, place });
    }
}

impl PlacedResource {
    /// Calls [`Resource::open`].
    ///
    /// # Errors
    /// The failure, with the position in the configuration.
    pub fn open(&self) -> Result<(), Error> {
        let opened = self.resource.open();
        opened.map_err(|text| self.place.clone().with_message(text))
    }

    /// Calls [`Resource::check`]. The error has the position in the configuration.
    #[must_use]
    pub fn check(&self) -> Option<Error> {
        let (text, hint) = self.resource.check()?;
        Some(self.place.clone().with_message(text).with_hint(hint))
    }
}

/// A service that runs on its own threads while the workers run, such as health checks.
pub trait BackgroundService: Send + Sync {
    /// Starts the service once the workers are ready. Dropping the returned value ends it.
    ///
    /// # Errors
    /// The message about the failure, for the user who starts the server.
    fn begin(&self) -> Result<Box<dyn Any + Send>, String>;

    /// Whether the service `running`, of the configuration that this one replaces, does the same work as this one. The
    /// running service is then kept and this one not started.
    fn is_same_as(&self, _running: &dyn BackgroundService) -> bool {
        false
    }

    /// Whether requests that began before a reload still use the service. It then ends after the last of these
    /// requests, not at the reload.
    fn serves_requests(&self) -> bool {
        false
    }

    /// The service itself, so that [`BackgroundService::is_same_as`] can compare its concrete type.
    fn as_any(&self) -> &dyn Any;
}

/// The background services of a configuration.
#[derive(Clone, Default)]
pub struct BackgroundServices(pub Vec<Arc<dyn BackgroundService>>);

/// Work that each worker does when it starts, before its first request, such as evaluating scripts.
pub trait WorkerStart: Send + Sync {
    /// Does the work, within the worker's async runtime. Must not block for long.
    fn start(&self, worker: &Rc<Worker>, site: &Rc<LocalSite>);
}

/// The work that each worker does when it starts, in this order.
#[derive(Clone, Default)]
pub struct WorkerStarts(pub Vec<Arc<dyn WorkerStart>>);

/// The state of one configuration level (global, host, path) while it is read. Inner levels start with a copy of the
/// outer level's settings; values for the whole site are handed from level to level.
pub struct Scope {
    /// All features of the server, for directives that contain other directives.
    pub features: Arc<Features>,
    /// The level of the configuration that is being read.
    pub level: Level,
    /// The hosts that have been read, in file order. Only set at the global level.
    pub hosts: Vec<Host>,
    /// The paths that have been read of the current host. Only set at the host level.
    pub paths: Vec<PathRoute>,
    /// The key of the host that is being read.
    pub host: Option<HostName>,
    /// The index of the host that is being read, among the site's hosts.
    pub host_index: u32,
    /// The path that is being read.
    pub path: Option<Box<str>>,
    /// The settings of this configuration level, one value per feature; they start as those of the outer level.
    pub settings: SettingsMap,
    /// Settings of features that apply to the whole server, collected from all levels.
    pub shared: SettingsMap,
    /// The commands of `setenv` and `unsetenv` at this level and at the outer levels.
    pub env: EnvCommands,
    /// The access loggers of this level: those of the outer level, and those added here.
    pub loggers: Vec<Arc<dyn Logger>>,
    /// The handlers that the directives of this path or file extension have created, in order.
    pub handlers: Vec<Box<dyn Handler>>,
    /// The value of `error-log.emit-request-errors`, inherited from the outer level.
    pub emit_request_errors: bool,
    /// Warnings about the configuration, which do not prevent the start.
    pub warnings: Vec<String>,
    /// The configuration that is in use, if this one is read to replace it. Parts that have not changed, such as open
    /// log files, are taken over from it.
    pub running: Option<Arc<Site>>,
}

impl Scope {
    /// Creates the scope of the global level.
    #[must_use]
    pub fn new(features: Arc<Features>) -> Self {
        Self {
            features,
            level: Level::Global,
            hosts: Vec::new(),
            paths: Vec::new(),
            host: None,
            host_index: 0,
            path: None,
            settings: SettingsMap::default(),
            shared: SettingsMap::default(),
            env: EnvCommands::default(),
            loggers: Vec::new(),
            handlers: Vec::new(),
            emit_request_errors: true,
            warnings: Vec::new(),
            running: None,
        }
    }

    /// The settings of a feature, to be changed for this level and the levels in it.
    pub fn edit<T: Setting>(&mut self) -> &mut T {
        self.settings.edit()
    }

    /// Runs `read` with the scope of an inner level, and returns the result of `read`.
    ///
    /// # Errors
    /// The error that `read` returned.
    pub fn enter<R>(
        &mut self,
        level: Level,
        read: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut inner = Self {
            features: Arc::clone(&self.features),
            level,
            hosts: Vec::new(),
            paths: Vec::new(),
            host: self.host.clone(),
            host_index: self.host_index,
            path: self.path.clone(),
            settings: self.settings.clone(),
            shared: std::mem::take(&mut self.shared),
            env: self.env.clone(),
            loggers: self.loggers.clone(),
            handlers: Vec::new(),
            emit_request_errors: self.emit_request_errors,
            warnings: std::mem::take(&mut self.warnings),
            running: self.running.clone(),
        };
        inner.env.push_level();
        let result = read(&mut inner);
        self.shared = inner.shared;
        self.warnings = inner.warnings;
        result
    }

    /// Adds a warning at the position of `error` in the configuration.
    pub fn warn(&mut self, error: &Error) {
        self.warnings.push(error.to_warning());
    }

    /// Adds a warning if a time limit is 0, which ends everything at once; many people write it for "no limit". `text` says what ends.
    pub fn warn_of_no_time(&mut self, command: &Command<'_>, limit: Duration, text: &str) {
        if limit.is_zero() {
            self.warn(&command.error(text).with_hint("write a longer time"));
        }
    }

    /// Executes the directives that `mapping` contains at this level.
    ///
    /// # Errors
    /// The error of the first directive that failed.
    pub fn run(&mut self, mapping: &Node) -> Result<(), Error> {
        self.warn_of_semicolons(mapping);
        let features = Arc::clone(&self.features);
        match self.level {
            Level::Path => features.registry.run_path(mapping, self),
            Level::Global | Level::Host | Level::Extension => {
                features.registry.run(self.level, mapping, self)
            }
        }
    }

    /// Warns of values that end with `;`: in the configuration of other servers it ends a directive, but here it is
    /// part of the value. Header fields may end with `;` and are exempt.
    fn warn_of_semicolons(&mut self, mapping: &Node) {
        let parts = mapping.one_or_more().iter().filter_map(Node::as_mapping);
        for (key, value) in parts.flatten() {
            let name = key.as_str().unwrap_or_default();
            if name.contains("header.") || name.starts_with("mruby.") {
                continue;
            }
            for node in value.one_or_more() {
                if node.as_str().is_some_and(|text| text.ends_with(';')) {
                    let error = node.error("the `;` at the end is taken as part of the value");
                    let error = error
                        .in_command(name, &node.pos)
                        .with_hint("remove the `;`");
                    self.warn(&error);
                }
            }
        }
    }

    /// Creates the route of this path from its final settings.
    #[must_use]
    pub fn build_path(&mut self, path: &str) -> PathRoute {
        let filters: Vec<_> = self
            .features
            .filters
            .iter()
            .filter_map(|factory| factory(self))
            .collect();
        let guards = self.features.guards.iter();
        let mut handlers: Vec<_> = guards.filter_map(|factory| factory(self)).collect();
        // The conversion does not fail: a path has at most one guard of each kind.
        let guards = u32::try_from(handlers.len()).unwrap_or(u32::MAX);
        handlers.append(&mut self.handlers);
        let keep_trace = self.loggers.iter().any(|logger| logger.wants_trace())
            || filters.iter().any(|filter| filter.wants_trace());
        let early_hints = filters.iter().find_map(|filter| filter.early_hints());
        PathRoute {
            early_hints: early_hints.cloned(),
            path: path.into(),
            handlers,
            guards,
            pattern: None,
            filters,
            keep_unfiltered: self
                .loggers
                .iter()
                .any(|logger| logger.wants_unfiltered_headers()),
            keep_trace,
            loggers: self.loggers.clone(),
            env: (!self.env.is_empty()).then(|| self.env.clone()),
            emit_request_errors: self.emit_request_errors,
            settings: self.settings.clone(),
        }
    }
}
