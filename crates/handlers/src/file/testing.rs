//! A worker with one path for tests, which takes requests as in the server.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Directive, Kinds, Level, Levels, Memory, Pass, Registry, load};
use h2o_exchange::{
    Address, Body, ConnectionInfo, Exchange, ExchangeRef, Features, Handler, Host, LocalSite,
    MimeHint, NoTransport, Outcome, Reroute, Response, Scope, ScriptPath, Site, Worker,
};
use h2o_http::{Headers, Known, Method, Name, StatusCode, Version};

thread_local! {
    static COLD: Cell<bool> = const { Cell::new(false) };
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Makes every later file access of this thread behave as if the data were on the disk and not in memory.
pub(super) fn cool_the_disk() {
    COLD.set(true);
}

pub(super) fn is_disk_cold() -> bool {
    COLD.get()
}

/// From now on lookups of this thread happen a minute later, so that all mtimes are old enough to be reliable.
pub(super) fn let_files_settle() {
    AHEAD.set(Duration::from_secs(60));
}

pub(super) fn clock_ahead() -> Duration {
    AHEAD.get()
}

/// A worker with a configuration of one host and one path.
pub(super) struct Kit {
    pub(super) worker: Rc<Worker>,
    site: Rc<LocalSite>,
    connection: Rc<ConnectionInfo>,
    runtime: tokio::runtime::Runtime,
    pub(super) warnings: Vec<String>,
}

/// The response to a request.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The status; 0 if every handler declined the request.
    pub(super) status: u16,
    pub(super) reason: String,
    /// The header fields as `name: value`, without `date`.
    pub(super) fields: Vec<String>,
    pub(super) dates: usize,
    pub(super) length: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Whether the body ended with an error.
    pub(super) cut: bool,
    pub(super) hint: Option<MimeHint>,
    /// The method and the URL of an internal redirect.
    pub(super) reroute: Option<(Method, String)>,
    /// Whether the thread pool was used.
    pub(super) waited: bool,
}

impl Answer {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.fields.iter().find_map(|f| f.strip_prefix(&prefix))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The status and the body or location, for tables of tests.
    pub(super) fn brief(&self) -> String {
        match self.field("location") {
            Some(location) => format!("{} {location}", self.status),
            None => format!("{} {}", self.status, self.text()),
        }
    }
}

/// A request that is being built.
pub(super) struct Ask<'a> {
    kit: &'a Kit,
    target: &'a str,
    method: Method,
    version: Version,
    fields: Vec<(Known, String)>,
    delegated: bool,
    /// Most bytes of the body that are pulled at once.
    pull: usize,
}

/// Returns the error message for a configuration of one path.
pub(super) fn config_error(config: &str) -> String {
    match Kit::build("{}", "/", config) {
        Ok(_) => "accepted".into(),
        Err(error) => error,
    }
}

/// Creates a worker for a configuration of one path. The path `root` takes the place of `ROOT` in the configuration.
pub(super) fn kit(root: &Path, config: &str) -> Kit {
    kit_at(root, "/", "{}", config)
}

/// Like [`kit`], but with the text of the global level, and with another path than `/` in the configuration.
pub(super) fn kit_at(root: &Path, path: &str, global: &str, config: &str) -> Kit {
    let root = root.to_str().unwrap();
    let fill = |text: &str| text.replace("ROOT", root);
    match Kit::build(&fill(global), path, &fill(config)) {
        Ok(kit) => kit,
        Err(error) => panic!("{error}"),
    }
}

impl Kit {
    fn build(global: &str, path: &str, config: &str) -> Result<Self, String> {
        let features = Features {
            guards: Vec::new(),
            sweeps: Vec::new(),
            registry: Registry::new(&[super::DIRECTIVES, TEST_DIRECTIVES, crate::env::DIRECTIVES]),
            filters: Vec::new(),
        };
        let files = Memory::new()
            .file("g", format!("{global}\n"))
            .file("f", format!("{config}\n"));
        let read = |name| load(name, &files).map_err(|error| error.to_string());
        let (global, config) = (read("g")?, read("f")?);
        let mut scope = Scope::new(Arc::new(features));
        let route = scope.run(&global).and_then(|()| {
            scope.enter(Level::Path, |scope| {
                scope.path = Some(path.into());
                scope.run(&config)?;
                Ok(scope.build_path(path))
            })
        });
        let host = Host {
            paths: vec![
                route.map_err(|error| error.to_string())?,
                Default::default(),
            ],
            ..Host::default()
        };
        let site = Site {
            hosts: vec![host],
            ..Site::default()
        };
        let worker = Worker::new(0, Arc::default(), Arc::default());
        let connection = ConnectionInfo {
            id: 1,
            peer: Address::Unix,
            accepted: worker.clock.now(),
            tls: None,
            transport: Rc::new(NoTransport),
            listener: Rc::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Ok(Self {
            worker,
            site: Rc::new(LocalSite(Arc::new(site))),
            connection: Rc::new(connection),
            runtime: runtime.unwrap(),
            warnings: scope.warnings,
        })
    }

    /// Sends a GET request and returns the response.
    pub(super) fn get(&self, target: &str) -> Answer {
        self.ask(target).send()
    }

    /// Sends a HEAD request and returns the response.
    pub(super) fn head(&self, target: &str) -> Answer {
        self.ask(target).method(Method::Head).send()
    }

    pub(super) fn ask<'a>(&'a self, target: &'a str) -> Ask<'a> {
        Ask {
            kit: self,
            target,
            method: Method::Get,
            version: Version::Http11,
            fields: Vec::new(),
            delegated: false,
            pull: 10_000,
        }
    }

    /// Creates an exchange with a request for `target`, in the state in which the protocol engines pass exchanges to
    /// handlers.
    pub(super) fn exchange(&self, target: &str) -> ExchangeRef {
        let exchange = self.worker.exchange(&self.site, &self.connection);
        {
            let mut exchange = exchange.borrow_mut();
            let span = exchange.request.headers.store(target.as_bytes());
            exchange.request.set_target(span);
            exchange.route = self.site.select_path(0, exchange.request.path());
        }
        exchange
    }

    /// The first handler of the configured path.
    pub(super) fn handler(&self) -> &dyn Handler {
        &*self.site.hosts[0].paths[0].handlers[0]
    }
}

impl Ask<'_> {
    pub(super) fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    pub(super) fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    pub(super) fn field(mut self, name: Known, value: &str) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    pub(super) fn delegated(mut self) -> Self {
        self.delegated = true;
        self
    }

    pub(super) fn pull(mut self, max: usize) -> Self {
        self.pull = max;
        self
    }

    /// Runs the request in a turn of the event loop of its own.
    pub(super) fn send(self) -> Answer {
        self.kit.worker.clock.begin_turn();
        self.send_in_this_turn()
    }

    pub(super) fn send_in_this_turn(self) -> Answer {
        let kit = self.kit;
        let is_head = self.method == Method::Head;
        let reference = kit.exchange(self.target);
        {
            let mut exchange = reference.borrow_mut();
            exchange.request.method = self.method;
            exchange.request.version = self.version;
            exchange.is_delegated = self.delegated;
            for (name, value) in &self.fields {
                exchange.request.headers.push(*name, value.as_bytes());
            }
        }
        let mut answer = Answer::default();
        let route = reference.borrow().route;
        for handler in &kit.site.path(route).handlers {
            let mut outcome = handler.on_request(&mut reference.borrow_mut());
            while let Outcome::Later(future) = outcome {
                answer.waited = true;
                outcome = kit.runtime.block_on(future);
            }
            match outcome {
                Outcome::Declined => continue,
                Outcome::Done(response) => answer.take(response, kit, self.pull, is_head),
                Outcome::Reroute(Reroute { method, url, .. }) => {
                    answer.reroute = Some((method, String::from_utf8(url).unwrap()));
                }
                Outcome::Later(_) => unreachable!("an outcome that comes later was awaited above"),
                Outcome::Next(_) => panic!("the test has no handler after the file handler"),
            }
            break;
        }
        answer.hint = reference.borrow().mime;
        kit.worker.release(reference);
        answer
    }
}

impl Answer {
    fn take(&mut self, response: Response, kit: &Kit, pull: usize, is_head: bool) {
        self.status = response.status.as_u16();
        self.reason = response.reason().into();
        self.length = response.length;
        self.dates = response.headers.get_all(Known::Date).count();
        self.fields = texts(&response.headers);
        if is_head {
            return;
        }
        let mut source = response.body.into_source();
        loop {
            let next = std::future::poll_fn(|context| source.poll_next(context, pull));
            match kit.runtime.block_on(next) {
                None => break,
                Some(Ok(piece)) => {
                    assert!((1..=pull).contains(&piece.len()));
                    self.body.extend_from_slice(&piece);
                }
                Some(Err(_)) => {
                    self.cut = true;
                    break;
                }
            }
        }
    }
}

fn texts(headers: &Headers) -> Vec<String> {
    let fields = headers.iter();
    fields
        .filter(|field| field.name != Name::Known(Known::Date))
        .map(|field| {
            format!(
                "{}: {}",
                field.name.as_str(),
                String::from_utf8_lossy(field.value)
            )
        })
        .collect()
}

/// A custom handler that answers with the variables of the script, at once or one turn of the event loop later.
struct ShowScript {
    later: bool,
}

impl Handler for ShowScript {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let text = match &exchange.script {
            None => "no script".into(),
            Some(ScriptPath {
                name,
                file,
                path_info,
            }) => format!(
                "{} {} {} {} {}",
                exchange.request.method.as_str(),
                name.escape_ascii(),
                file.escape_ascii(),
                path_info.as_deref().unwrap_or(b"-").escape_ascii(),
                exchange.env("KIND").unwrap_or(b"-").escape_ascii(),
            ),
        };
        let body = Body::Bytes(text.into_bytes().into());
        let response = Response::new(StatusCode::OK, Headers::new(), body);
        if self.later {
            return Outcome::Later(Box::pin(async { Outcome::Done(response) }));
        }
        Outcome::Done(response)
    }
}

const TEST_DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "test.show-script",
    levels: Levels::PATH_EXTENSION,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "ON|OFF",
    default: "none",
    help: "",
    apply: |scope, command| {
        let later = command.node.on_off()?;
        scope.handlers.push(Box::new(ShowScript { later }));
        Ok(())
    },
}];
