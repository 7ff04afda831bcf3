//! A configuration in memory and one request on a worker without sockets, for unit tests of handlers and filters.

use std::rc::Rc;
use std::sync::Arc;

use h2o_config::{Directive, Error, Level, Memory, Registry, load};
use h2o_exchange::{
    Address, ConnectionInfo, Exchange, Features, FilterFactory, Host, HostName, LocalSite,
    NoTransport, Scope, Site, Worker,
};
use h2o_http::{Method, Name};

/// A site configuration for tests, with one host and one path.
pub(crate) struct Setup {
    /// The directives under test.
    pub(crate) directives: &'static [Directive<Scope>],
    /// The filter of these directives, if they have one.
    pub(crate) filter: Option<FilterFactory>,
    /// The key of the host in `hosts`.
    pub(crate) host: &'static str,
    /// The key of the path in `paths`.
    pub(crate) path: &'static str,
}

impl Setup {
    /// Creates the configuration with the path `/` of the host `default`.
    pub(crate) const fn new(
        directives: &'static [Directive<Scope>],
        filter: Option<FilterFactory>,
    ) -> Self {
        Self {
            directives,
            filter,
            host: "default",
            path: "/",
        }
    }

    /// Reads the directives of the three levels, outermost first; each text is the file `f`. An empty text means no
    /// directives.
    pub(crate) fn read(&self, levels: [&str; 3]) -> Result<Site, Error> {
        self.read_next(levels, None)
    }

    /// Like [`Setup::read`], but for a configuration that is to replace `running`.
    pub(crate) fn read_next(
        &self,
        [global, host, path]: [&str; 3],
        running: Option<Arc<Site>>,
    ) -> Result<Site, Error> {
        let features = Features {
            guards: Vec::new(),
            sweeps: Vec::new(),
            registry: Registry::new(&[self.directives]),
            filters: self.filter.into_iter().collect(),
        };
        let mut scope = Scope::new(Arc::new(features));
        scope.running = running;
        run(&mut scope, global)?;
        let settings = scope.settings.clone();
        let name = HostName {
            name: self.host.into(),
            port: None,
        };
        let paths = scope.enter(Level::Host, |scope| {
            scope.host = Some(name.clone());
            run(scope, host)?;
            let route = scope.enter(Level::Path, |scope| {
                scope.path = Some(self.path.into());
                run(scope, path)?;
                Ok(scope.build_path(self.path))
            })?;
            Ok(vec![route, scope.build_path("")])
        })?;
        let host = Host {
            authority: name.to_authority().into(),
            name,
            paths,
            ..Host::default()
        };
        Ok(Site {
            hosts: vec![host],
            reroute_limits: *settings.get(),
            settings,
            shared: std::mem::take(&mut scope.shared),
            ..Site::default()
        })
    }

    /// Returns the error message for a path with these directives.
    pub(crate) fn refusal(&self, path: &str) -> String {
        match self.read(["", "", path]) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

fn run(scope: &mut Scope, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Ok(());
    }
    let files = Memory::new().file("f", text);
    scope.run(&load("f", &files)?)
}

/// Creates an exchange with a request for `target` at `authority`, which has been routed.
pub(crate) fn request(site: Site, method: &str, authority: &str, target: &str) -> Exchange {
    let worker = Worker::new(0, Arc::default(), Arc::default());
    let connection = ConnectionInfo {
        id: 1,
        peer: Address::Unix,
        accepted: worker.clock.now(),
        tls: None,
        transport: Rc::new(NoTransport),
        listener: Rc::default(),
    };
    let mut exchange = Exchange::new(
        worker,
        Rc::new(LocalSite(Arc::new(site))),
        Rc::new(connection),
    );
    exchange.request.method =
        Method::from_token(method.as_bytes()).expect("the method in the test is a token");
    let span = exchange.request.headers.store(authority.as_bytes());
    exchange.request.set_authority(span);
    let span = exchange.request.headers.store(target.as_bytes());
    exchange.request.set_target(span);
    exchange.route = exchange.site.select_path(0, exchange.request.path());
    exchange
}

/// The header fields that `text` has as `name: value`, one per line.
pub(crate) fn headers(text: &str) -> h2o_http::Headers {
    let mut headers = h2o_http::Headers::new();
    for line in text.lines() {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        headers.push(Name::from_lower(name), value.as_bytes());
    }
    headers
}

/// The header fields as text, one `name: value` per line: the inverse of [`headers`].
pub(crate) fn shown(headers: &h2o_http::Headers) -> String {
    let lines: Vec<_> = headers
        .iter()
        .map(|field| format!("{}: {}", field.name.as_str(), field.value.escape_ascii()))
        .collect();
    lines.join("\n")
}
