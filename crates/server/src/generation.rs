//! A configuration as one worker uses it, and the worker's change from one configuration to the next.
//!
//! The main thread makes a [`Generation`] for each worker and sends it to that worker as an order. The worker turns it into a
//! [`LocalGeneration`] between two turns of its event loop, and each of its tables of connections adopts that: listeners appear and vanish,
//! and every connection gets the listener that succeeds its own. Requests in progress keep the site that they began with.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use h2o_exchange::{LocalSite, Site, Sweep, Worker, WorkerStarts};
use h2o_tls::Resumption;
use rustc_hash::FxHashMap;

use crate::ServerSettings;
use crate::listener::{ListenerConfig, LocalListener};
use crate::setup::Setup;
use crate::site::quic_settings::QuicSettings;

/// How often a worker checks whether the last request of an earlier configuration has ended.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The parts of a configuration that the main thread sends to one worker.
pub(crate) struct Generation {
    pub(crate) site: Arc<Site>,
    pub(crate) settings: Arc<ServerSettings>,
    pub(crate) listeners: Vec<ListenerConfig>,
    /// State for the session resumption of TLS and QUIC clients.
    pub(crate) resumption: Arc<Resumption>,
    /// The worker drops this sender once it uses the configuration; the main thread, which holds the receiver, waits for that.
    pub(crate) adopted: mpsc::Sender<()>,
}

/// A [`Generation`] after a worker's thread has taken it over.
pub(crate) struct LocalGeneration {
    pub(crate) setup: Rc<Setup>,
    pub(crate) settings: Arc<ServerSettings>,
    pub(crate) resumption: Arc<Resumption>,
    pub(crate) listeners: Vec<NextListener>,
    /// Dropped once the worker uses the configuration (see [`Generation::adopted`]).
    _adopted: mpsc::Sender<()>,
    /// For each listener of the old configuration that was looked up so far: the listener that continues it. The key is the address in
    /// memory of the old listener, which the value keeps alive so that no other listener gets the same address.
    successors: FxHashMap<*const LocalListener, (Rc<LocalListener>, Rc<LocalListener>)>,
}

/// A listener of the next configuration.
pub(crate) struct NextListener {
    pub(crate) listener: Rc<LocalListener>,
    /// The listener's socket, until the table of connections that watches it takes it; `None` if a table has the socket already.
    pub(crate) socket: Option<OwnedFd>,
    /// The settings of QUIC, if the listener's socket is a UDP socket.
    pub(crate) quic: Option<Rc<QuicSettings>>,
}

impl LocalGeneration {
    pub(crate) fn new(generation: Generation) -> Self {
        let Generation {
            site,
            settings,
            listeners,
            resumption,
            adopted,
        } = generation;
        let setup = Rc::new(Setup::new(site, &settings));
        let listeners = listeners.into_iter().map(|config| {
            let quic = config.quic.as_deref().cloned().map(Rc::new);
            let (listener, socket) = LocalListener::new(&setup, config);
            NextListener {
                listener: Rc::new(listener),
                socket,
                quic,
            }
        });
        Self {
            listeners: listeners.collect(),
            setup,
            settings,
            resumption,
            _adopted: adopted,
            successors: FxHashMap::default(),
        }
    }

    /// The listener that the connections of `old` belong to from now on. If the next configuration has no listener for them, the result is
    /// a [closing](LocalListener::is_closing) listener: accepted connections are served until their requests end.
    pub(crate) fn successor(&mut self, old: &Rc<LocalListener>) -> Rc<LocalListener> {
        if let Some((_, next)) = self.successors.get(&Rc::as_ptr(old)) {
            return Rc::clone(next);
        }
        let mut listeners = self.listeners.iter().map(|next| &next.listener);
        let next = match listeners.find(|next| next.may_succeed(old)) {
            Some(next) => Rc::clone(next),
            None => Rc::new(LocalListener::closing(old, &self.setup)),
        };
        (self.successors).insert(Rc::as_ptr(old), (Rc::clone(old), Rc::clone(&next)));
        next
    }
}

/// Runs the parts of a configuration that a worker evaluates when it starts to use it, such as scripts.
pub(crate) fn start_features(worker: &Rc<Worker>, site: &Rc<LocalSite>) {
    for feature in &site.shared.get::<WorkerStarts>().0 {
        feature.start(worker, site);
    }
}

/// The sites of earlier configurations that still serve requests on this worker.
#[derive(Default)]
pub(crate) struct RetiredSites {
    sites: RefCell<Vec<Weak<LocalSite>>>,
}

impl RetiredSites {
    /// Registers the replaced `site`: after the last request that began under it has ended, the worker drops the state that it keeps for
    /// that site.
    pub(crate) fn add(worker: &Rc<Worker>, site: &Rc<LocalSite>, sweeps: &Rc<[Sweep]>) {
        let retired = worker.local::<Self>();
        let mut sites = retired.sites.borrow_mut();
        let is_swept = !sites.is_empty();
        sites.push(Rc::downgrade(site));
        if !is_swept {
            worker.spawn(sweep(Rc::clone(worker), Rc::clone(sweeps)));
        }
    }
}

async fn sweep(worker: Rc<Worker>, sweeps: Rc<[Sweep]>) {
    let retired = worker.local::<RetiredSites>();
    loop {
        // State that the worker keeps for a replaced site does not keep the site alive. Each round drops such state before it checks which
        // sites are still in use, so the state is dropped once more after the last of these sites has gone.
        for sweep in &*sweeps {
            sweep(&worker);
        }
        if retired.sites.borrow().is_empty() {
            return;
        }
        worker.sleep(SWEEP_INTERVAL).await;
        (retired.sites.borrow_mut()).retain(|site| site.strong_count() > 0);
    }
}
