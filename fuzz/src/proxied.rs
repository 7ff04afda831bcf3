//! A path that is forwarded to a backend, and requests for it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Level, Memory, Registry, load};
use h2o_exchange::{
    Address, ConnectionInfo, Counters, Exchange, Features, Host, HostName, LocalSite, NoTransport,
    Scope, Shared, Site, Worker,
};
use h2o_http::RequestHead;
use h2o_upstream::BackendUrl;

/// A path of a site that is forwarded to a backend.
pub(crate) struct Proxied {
    worker: Rc<Worker>,
    site: Rc<LocalSite>,
    connection: Rc<ConnectionInfo>,
    pub(crate) backend: BackendUrl,
    /// The key of the path in the configuration.
    pub(crate) mount: &'static str,
}

/// The authority that is used for requests without one.
pub(crate) const HOST: &str = "default";

impl Proxied {
    /// The path `mount`, forwarded to `backend`, in a site with these directives at its global level.
    pub(crate) fn new(directives: &str, mount: &'static str, backend: &str) -> Self {
        let shared = Shared {
            started: Duration::ZERO,
            generation: None,
            listeners: 1.into(),
            ..Shared::default()
        };
        let worker = Worker::new(0, Arc::new(Counters::default()), Arc::new(shared));
        let connection = ConnectionInfo {
            id: 1,
            peer: Address::Unix,
            accepted: worker.clock.now(),
            tls: None,
            transport: Rc::new(NoTransport),
            listener: Rc::default(),
        };
        Self {
            worker,
            site: Rc::new(LocalSite(Arc::new(site(directives, mount)))),
            connection: Rc::new(connection),
            backend: BackendUrl::parse(backend).expect("the URL of the backend is valid"),
            mount,
        }
    }

    /// The exchange for a request; `None` if the request is for another path.
    pub(crate) fn exchange(&self, request: &RequestHead) -> Option<Exchange> {
        let (worker, site) = (Rc::clone(&self.worker), Rc::clone(&self.site));
        let mut exchange = Exchange::new(worker, site, Rc::clone(&self.connection));
        exchange.request = request.clone();
        if exchange.request.authority().is_empty() {
            let authority = exchange.request.headers.store(HOST.as_bytes());
            exchange.request.set_authority(authority);
        }
        exchange.route = exchange.site.select_path(0, exchange.request.path());
        let path = &exchange.site.path(exchange.route).path;
        (**path == *self.mount).then_some(exchange)
    }
}

fn site(directives: &str, mount: &str) -> Site {
    let features = Features {
        guards: Vec::new(),
        sweeps: Vec::new(),
        registry: Registry::new(&h2o_handlers::directives()),
        filters: Vec::new(),
    };
    let mut scope = Scope::new(Arc::new(features));
    if !directives.is_empty() {
        let files = Memory::new().file("h2o.conf", directives);
        let node = load("h2o.conf", &files).expect("YAML");
        scope.run(&node).unwrap_or_else(|error| panic!("{error}"));
    }
    let settings = scope.settings.clone();
    let paths = scope.enter(Level::Host, |scope| {
        let path = scope.enter(Level::Path, |scope| {
            scope.path = Some(mount.into());
            Ok(scope.build_path(mount))
        })?;
        Ok(vec![path, scope.build_path("")])
    });
    let host = Host {
        name: HostName {
            name: HOST.into(),
            port: None,
        },
        authority: HOST.into(),
        paths: paths.unwrap_or_else(|error: h2o_config::Error| panic!("{error}")),
        ..Host::default()
    };
    Site {
        hosts: vec![host],
        settings,
        shared: std::mem::take(&mut scope.shared),
        ..Site::default()
    }
}
