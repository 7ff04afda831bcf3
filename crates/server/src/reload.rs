//! The configuration that serves, and its replacement while the server runs.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use h2o_exchange::{BackgroundService, BackgroundServices, Endpoint, Order, Site};
use h2o_log::reason;
use h2o_tls::{Resumption, ResumptionSettings};

use crate::generation::{Generation, ListenerConfig, ListenerId};
use crate::site::bind::{ListeningSockets, bind_new};
use crate::site::certificates::{CertificateReload, TlsListeners};
use crate::site::listen::Listeners;
use crate::worker::{Server, set_limits};
use crate::{LoadedConfig, ServerSettings, worker_plan};

/// How long a reload waits for the workers. One that is busy for longer, as with a script, serves by the next configuration later.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(5);

/// The configuration that serves, with what runs for it outside of the workers.
pub(crate) struct Current {
    site: Arc<Site>,
    tls: TlsListeners,
    services: Vec<RunningService>,
    /// The listeners that are open.
    open: Vec<(Endpoint, ListenerId)>,
    /// Number of the next listener.
    next_id: u32,
}

/// A background service, which runs until this is dropped.
struct RunningService {
    service: Arc<dyn BackgroundService>,
    running: Box<dyn Any + Send>,
}

/// A configuration that was replaced.
pub(crate) struct Retired {
    /// Requests that began with it keep it as well.
    site: Arc<Site>,
    /// Services that such requests still use.
    _services: Vec<RunningService>,
}

impl Current {
    /// The first configuration of the process. Nothing of it runs yet.
    pub(crate) fn new(loaded: &LoadedConfig, resumption: Arc<Resumption>) -> Self {
        Self {
            site: Arc::clone(&loaded.site),
            tls: TlsListeners::new(Arc::clone(&loaded.site), resumption),
            services: Vec::new(),
            open: Vec::new(),
            next_id: 0,
        }
    }

    /// The next configuration, of which nothing runs yet. Listeners keep their numbers.
    fn next(&self, loaded: &LoadedConfig) -> Self {
        let resumption = Arc::clone(self.tls.resumption());
        Self {
            open: self.open.clone(),
            next_id: self.next_id,
            ..Self::new(loaded, resumption)
        }
    }

    fn is_open(&self, endpoint: &Endpoint) -> bool {
        self.open.iter().any(|(open, _)| open == endpoint)
    }

    /// What each worker gets: the listeners of the configuration, with the sockets that were opened for it.
    pub(crate) fn share_out(
        &mut self,
        loaded: &LoadedConfig,
        bound: ListeningSockets,
        workers: usize,
        adopted: &mpsc::Sender<()>,
        running: Option<&Self>,
    ) -> Result<Vec<Generation>, String> {
        let configured = loaded.site.shared.get::<Listeners>();
        let generation = || Generation {
            site: Arc::clone(&loaded.site),
            settings: loaded.settings(),
            listeners: Vec::new(),
            resumption: Arc::clone(self.tls.resumption()),
            adopted: adopted.clone(),
        };
        let mut out: Vec<Generation> = (0..workers).map(|_| generation()).collect();
        let mut bound = bound.sockets.into_iter().peekable();
        let mut open = Vec::new();
        for (index, listener) in configured.0.iter().enumerate() {
            let sockets = bound.next_if(|(of, _)| *of == index);
            let mut known = self.open.iter();
            let known = known.find(|(endpoint, _)| *endpoint == listener.endpoint);
            let id = match (known, &sockets) {
                (Some((_, id)), _) => *id,
                (None, Some(_)) => {
                    self.next_id += 1;
                    ListenerId(self.next_id)
                }
                // It could not be bound.
                (None, None) => continue,
            };
            open.push((listener.endpoint.clone(), id));
            let tls = self
                .tls
                .add(listener, running.map(|running| &running.tls))?;
            let mut sockets = sockets
                .map_or_else(Vec::new, |(_, sockets)| sockets)
                .into_iter();
            let mut last = None;
            for worker in &mut out {
                let socket = match (sockets.next(), &last) {
                    (Some(socket), _) => Some(socket),
                    // Each worker that serves QUIC has its own socket.
                    (None, Some(_)) if listener.quic.is_some() => None,
                    (None, Some(last)) => Some(duplicate(last)?),
                    (None, None) => None,
                };
                if let Some(socket) = &socket {
                    last = Some(duplicate(socket)?);
                }
                worker.listeners.push(ListenerConfig {
                    id,
                    socket,
                    endpoint: listener.endpoint.clone(),
                    hosts: listener.hosts.clone().unwrap_or_default(),
                    tls: tls.clone(),
                    // H2O compatibility: H2O sends the origins of the first entry of an address only.
                    origins: (listener.tls.first())
                        .and_then(|entry| entry.settings.origins.clone()),
                    proxy_protocol: listener.proxy_protocol,
                    is_unix: listener.unix_path().is_some(),
                    unix_buffers: (listener.sndbuf, listener.rcvbuf),
                    quic: listener.quic.clone(),
                });
            }
        }
        self.open = open;
        Ok(out)
    }

    /// Starts the background services, but for those that run for the configuration `before` and are taken over.
    ///
    /// # Errors
    /// The message to show.
    pub(crate) fn begin_services(&mut self, before: Option<&mut Self>) -> Result<(), String> {
        let wanted = &self.site.shared.get::<BackgroundServices>().0;
        let runs = |running: &RunningService, service: &Arc<dyn BackgroundService>| {
            Arc::ptr_eq(&running.service, service) || service.is_same_as(&*running.service)
        };
        let mut before = before.map(|before| &mut before.services);
        let is_running = |service: &Arc<dyn BackgroundService>| {
            let before = before.as_deref();
            before.is_some_and(|before| before.iter().any(|running| runs(running, service)))
        };
        let (kept, new): (Vec<_>, Vec<_>) = wanted.iter().partition(|service| is_running(service));
        for service in new {
            self.services.push(RunningService {
                service: Arc::clone(service),
                running: service.begin()?,
            });
        }
        for service in kept {
            let Some(before) = before.as_deref_mut() else {
                break;
            };
            if let Some(at) = before.iter().position(|running| runs(running, service)) {
                let RunningService { running, .. } = before.swap_remove(at);
                let service = Arc::clone(service);
                self.services.push(RunningService { service, running });
            }
        }
        Ok(())
    }

    /// See [`Server::reload_certificates`].
    pub(crate) fn reload_certificates(&self) -> CertificateReload {
        self.tls.reload()
    }

    /// The configuration is not used for new requests any more.
    fn retire(self) -> Retired {
        let mut services = self.services;
        services.retain(|running| running.service.serves_requests());
        Retired {
            site: self.site,
            _services: services,
        }
    }
}

fn duplicate(socket: &OwnedFd) -> Result<OwnedFd, String> {
    socket
        .try_clone()
        .map_err(|error| format!("failed to duplicate a listening socket: {}", reason(&error)))
}

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
        warnings.extend(what_stays(&self.current.site, &loaded.site));
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
        let is_changed = self.watch.poll(self.current.tls.files());
        is_changed.then(|| self.reload_certificates())
    }

    /// Drops earlier configurations whose last request has ended. Called every now and then.
    pub fn release_retired(&mut self) {
        // Workers drop theirs, so that this is the last reference: what takes long does not hold up requests.
        (self.retired).retain(|retired| Arc::strong_count(&retired.site) > 1);
        let retiring = &self.shared.reloads.retiring;
        retiring.store(self.retired.len(), Relaxed);
    }
}

/// Warnings of settings that need a restart, as far as they differ.
pub(crate) fn what_stays(running: &Site, next: &Site) -> Vec<String> {
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
