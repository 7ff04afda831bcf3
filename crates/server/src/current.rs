//! The configuration that the server uses now, with the background services that run for it outside of the workers.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use h2o_exchange::{BackgroundService, BackgroundServices, Endpoint, Site};
use h2o_log::reason;
use h2o_tls::Resumption;

use crate::LoadedConfig;
use crate::generation::Generation;
use crate::listener::{ListenerConfig, ListenerId};
use crate::site::certificates::TlsListeners;
use crate::site::listen::Listeners;
use crate::sockets::bind::ListeningSockets;
use crate::sockets::inherited::Covered;

/// The configuration that the server uses now, with the background services that run for it outside of the workers.
pub(crate) struct Current {
    site: Arc<Site>,
    tls: TlsListeners,
    services: Vec<RunningService>,
    open: Vec<OpenListener>,
    /// The addresses whose connections arrive at the inherited socket of another listener, as long as that is open.
    covered: Vec<Covered>,
    /// The number that the last new listener got; the next one gets the number after it.
    next_id: u32,
}

/// A listener that is open.
#[derive(Clone)]
struct OpenListener {
    endpoint: Endpoint,
    id: ListenerId,
    /// Number of its listening sockets: one for all workers, or one per worker.
    sockets: usize,
}

/// A running background service of a configuration; it stops when `running` is dropped.
struct RunningService {
    service: Arc<dyn BackgroundService>,
    running: Box<dyn Any + Send>,
}

/// A configuration that a reload has replaced, kept until the last of its requests has ended.
pub(crate) struct Retired {
    /// The site of the replaced configuration; each request that began under it holds another reference.
    site: Arc<Site>,
    /// Background services that requests of the replaced configuration still use.
    _services: Vec<RunningService>,
}

impl Current {
    /// The first configuration of the process. The caller still has to start its background services.
    pub(crate) fn new(loaded: &LoadedConfig, resumption: Arc<Resumption>) -> Self {
        Self {
            site: Arc::clone(&loaded.site),
            tls: TlsListeners::new(Arc::clone(&loaded.site), resumption),
            services: Vec::new(),
            open: Vec::new(),
            covered: Vec::new(),
            next_id: 0,
        }
    }

    /// The configuration that replaces this one. The caller still has to start its background services. Listeners that both configurations
    /// have keep their numbers.
    pub(crate) fn next(&self, loaded: &LoadedConfig) -> Self {
        let resumption = Arc::clone(self.tls.resumption());
        Self {
            open: self.open.clone(),
            covered: self.covered.clone(),
            next_id: self.next_id,
            ..Self::new(loaded, resumption)
        }
    }

    /// Whether connections to this address arrive already.
    pub(crate) fn is_open(&self, endpoint: &Endpoint) -> bool {
        self.open.iter().any(|open| open.endpoint == *endpoint)
            || self.covered.iter().any(|covered| covered.ipv4 == *endpoint)
    }

    /// Number of listening sockets.
    pub(crate) fn listening_sockets(&self) -> usize {
        self.open.iter().map(|open| open.sockets).sum()
    }

    /// Returns one [`Generation`] for each worker: the listeners of the configuration, with the sockets that were opened for them.
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
        self.covered.extend(bound.covered);
        let mut bound = bound.sockets.into_iter().peekable();
        let mut open = Vec::new();
        for (index, listener) in configured.0.iter().enumerate() {
            let sockets = bound.next_if(|(of, _)| *of == index);
            let mut known = self.open.iter();
            let known = known.find(|open| open.endpoint == listener.endpoint);
            let listening = match (known, &sockets) {
                (Some(known), _) => known.clone(),
                (None, Some((_, sockets))) => {
                    self.next_id += 1;
                    OpenListener {
                        endpoint: listener.endpoint.clone(),
                        id: ListenerId(self.next_id),
                        sockets: sockets.len(),
                    }
                }
                // The listener has no socket: the machine lacks its address family, or its connections arrive at an inherited socket of
                // another listener.
                (None, None) => continue,
            };
            let id = listening.id;
            open.push(listening);
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
                    // A socket of QUIC is not shared between workers: each worker that serves QUIC has one of its own.
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
                    // H2O compatibility: in ORIGIN frames, H2O sends the origins of the first `listen` entry of an address only.
                    origins: (listener.tls.first())
                        .and_then(|entry| entry.settings.origins.clone()),
                    proxy_protocol: listener.proxy_protocol,
                    is_unix: listener.unix_path().is_some(),
                    unix_buffers: (listener.socket.sndbuf, listener.socket.rcvbuf),
                    quic: listener.quic.clone(),
                });
            }
        }
        self.open = open;
        let open = &self.open;
        (self.covered).retain(|covered| open.iter().any(|open| open.endpoint == covered.by));
        Ok(out)
    }

    /// Starts the background services of this configuration. A service that already runs for the configuration `before` is taken over from
    /// it.
    ///
    /// # Errors
    /// The error message for the administrator.
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

    /// The hosts, paths and settings of the configuration.
    pub(crate) const fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// The certificates of the configuration's listeners.
    pub(crate) const fn tls(&self) -> &TlsListeners {
        &self.tls
    }

    /// Ends the use of the configuration for new requests.
    pub(crate) fn retire(self) -> Retired {
        let mut services = self.services;
        services.retain(|running| running.service.serves_requests());
        Retired {
            site: self.site,
            _services: services,
        }
    }
}

impl Retired {
    /// Whether a request that began under the replaced configuration is still in progress.
    pub(crate) fn is_in_use(&self) -> bool {
        // Each worker drops its reference to the replaced site, and each request drops its own when it ends, so the last reference left is
        // this one.
        Arc::strong_count(&self.site) > 1
    }
}

fn duplicate(socket: &OwnedFd) -> Result<OwnedFd, String> {
    socket
        .try_clone()
        .map_err(|error| format!("failed to duplicate a listening socket: {}", reason(&error)))
}
