//! Runs requests without a connection, one after the other, on a worker in the calling thread. The handlers and filters of a configuration
//! run as they do in the server, so that scripts can be tested before they are used.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2o_exchange::{
    Address, Body, ConnectionInfo, Counter, Endpoint, Exchange, ExchangeRef, FileReader, LocalSite,
    RequestBody, Response, Transport, Worker,
};
use h2o_http::{BodyLength, Headers, Method, Name, Scheme, StatusCode, Version};
use tokio::task::LocalSet;

use crate::LoadedConfig;
use crate::generation::start_features;
use crate::request::routing::set_route;
use crate::request::serve;
use crate::sockets::bind::ListeningSockets;
use crate::worker;

/// Largest response body that is kept, in bytes.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// How many bytes of a body are asked for at a time.
const PIECE: usize = 64 * 1024;

/// A request to the first host of the configuration.
#[derive(Clone, Debug)]
pub struct TrialRequest {
    /// The method of the request.
    pub method: Method,
    /// The scheme of the request.
    pub scheme: Scheme,
    /// The version of HTTP that the request claims.
    pub version: Version,
    /// The authority, as `host[:port]`.
    pub authority: String,
    /// The path and the query.
    pub target: String,
    /// The header fields: names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body of the request; `None` if it has none.
    pub body: Option<Vec<u8>>,
    /// The address of the client that the request claims.
    pub peer: SocketAddr,
    /// Request variables that the request begins with, like those that `setenv` sets.
    pub variables: Vec<(String, String)>,
}

/// The response as a client would get it, before HTTP frames it, and the other effects of the request.
pub struct TrialResponse {
    /// The status of the response.
    pub status: StatusCode,
    /// The header fields of the response, without those that the connection adds: `content-length`, `date`, `server`.
    pub headers: Headers,
    /// Interim (1xx) responses that came before the response.
    pub informational: Vec<(StatusCode, Headers)>,
    /// The response body.
    pub body: Vec<u8>,
    /// Why the response body is not complete; `None` if it is.
    pub failure: Option<String>,
    /// Request variables that handlers have set.
    pub variables: Vec<(Arc<str>, Arc<[u8]>)>,
    /// The error messages that handlers logged for the request.
    pub errors: String,
    /// Number of exceptions that scripts raised during the request.
    pub exceptions: u64,
    /// Time from the start of the first handler to the end of the response body.
    pub time: Duration,
}

/// Why test requests were not answered.
#[derive(Debug)]
pub enum TrialError {
    /// A script in the configuration could not be evaluated; the error log says why.
    Evaluation,
    /// A response, or the end of a script's evaluation, did not come within the time limit.
    TimedOut,
    /// The system refused to start an event loop.
    System(String),
}

/// Runs the requests in their order and passes on each response. The time limit `limit` applies to each request, and to the evaluation of
/// the scripts before the first one.
///
/// # Errors
/// [`TrialError`]; the remaining requests are not run.
pub fn try_requests(
    loaded: &LoadedConfig,
    requests: Vec<TrialRequest>,
    limit: Duration,
    on_response: impl FnMut(TrialResponse) + 'static,
) -> Result<(), TrialError> {
    let nothing = ListeningSockets {
        sockets: Vec::new(),
        warnings: Vec::new(),
        covered: Vec::new(),
        handover: None,
    };
    let (config, orders) = worker::only_config(loaded, nothing).map_err(TrialError::System)?;
    let disk = worker::disk_threads(1).map_err(TrialError::System)?;
    let _disk = disk.enter();
    let mut tasks = LocalSet::new();
    let _tasks = tasks.enter();
    let mut event_loop = worker::event_loop(config)
        .map_err(|error| TrialError::System(h2o_log::reason(&error).to_string()))?;
    let trial = Trial {
        worker: Rc::clone(event_loop.worker()),
        site: Rc::clone(event_loop.site()),
        limit,
    };
    let worker = Rc::clone(event_loop.worker());
    let mut all = pin!(worker.spawn(trial.run(requests, on_response)));
    let ended = event_loop.run(&mut tasks, |event_loop, task| {
        // The event loop must run its turns: it fires the timers of the handlers.
        let _ = event_loop.poll_turn(task);
        all.as_mut().poll(task)
    });
    drop(orders);
    ended.unwrap_or_else(|error| Err(TrialError::System(error.to_string())))
}

/// A worker that runs test requests without a connection.
struct Trial {
    worker: Rc<Worker>,
    site: Rc<LocalSite>,
    limit: Duration,
}

impl Trial {
    async fn run(
        self,
        requests: Vec<TrialRequest>,
        mut on_response: impl FnMut(TrialResponse),
    ) -> Result<(), TrialError> {
        let worker = Rc::clone(&self.worker);
        start_features(&worker, &self.site);
        let evaluated = h2o_handlers::are_scripts_evaluated(&worker);
        match worker.timeout(self.limit, evaluated).await {
            Ok(true) => {}
            Ok(false) => return Err(TrialError::Evaluation),
            Err(_) => return Err(TrialError::TimedOut),
        }
        for request in requests {
            let answered = worker.timeout(self.limit, self.answer(request)).await;
            on_response(answered.map_err(|_| TrialError::TimedOut)?);
        }
        Ok(())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "`h2o mruby` measures the time of a response and has no worker's clock"
    )]
    async fn answer(&self, request: TrialRequest) -> TrialResponse {
        let worker = &self.worker;
        let raised = || worker.counters.get(Counter::ScriptExceptions);
        let (exchange, before) = (self.begin(&request), raised());
        let given = exchange.borrow().env.clone();
        let begun = Instant::now();
        let response = self.respond(&exchange).await;
        let Response {
            status,
            headers,
            body,
            ..
        } = response;
        let is_sent = request.method != Method::Head && !status.is_bodyless();
        let mut content = Vec::new();
        let read = if is_sent {
            read_body(body, &mut content).await
        } else {
            Ok(())
        };
        let time = begun.elapsed();
        let response = {
            let exchange = &mut *exchange.borrow_mut();
            exchange.sent.status = Some(status);
            let mut variables = std::mem::take(&mut exchange.env);
            variables.retain(|variable| !given.contains(variable));
            TrialResponse {
                status,
                headers,
                informational: std::mem::take(&mut exchange.informational),
                body: content,
                failure: read.err(),
                variables,
                errors: std::mem::take(&mut exchange.errors),
                exceptions: raised() - before,
                time,
            }
        };
        worker.release(exchange);
        response
    }

    /// Builds the exchange of `request` and routes it.
    fn begin(&self, request: &TrialRequest) -> ExchangeRef {
        let worker = &self.worker;
        let is_tls = request.scheme == Scheme::Https;
        let server = SocketAddr::new(
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            if is_tls { 443 } else { 80 },
        );
        let connection = ConnectionInfo {
            id: 1,
            peer: Address::Ip(request.peer),
            accepted: worker.clock.now(),
            tls: None,
            transport: Rc::new(ServerAddress(server)),
            listener: Rc::new(Endpoint::Tcp(server)),
        };
        let reference = worker.exchange(&self.site, &Rc::new(connection));
        fill(&mut reference.borrow_mut(), request);
        reference
    }

    async fn respond(&self, exchange: &ExchangeRef) -> Response {
        let progress = serve::start(&self.worker, exchange);
        serve::finished(&self.worker, exchange, progress).await
    }
}

/// Sets the parts of `exchange` that follow from the head and the route of `request`.
fn fill(exchange: &mut Exchange, request: &TrialRequest) {
    let head = &mut exchange.request;
    head.method = request.method.clone();
    head.scheme = request.scheme;
    head.version = request.version;
    for (name, value) in &request.headers {
        head.headers.push(Name::from_lower(name), value.as_bytes());
    }
    let authority = head.headers.store(request.authority.as_bytes());
    head.set_authority(authority);
    let target = head.headers.store(request.target.as_bytes());
    head.set_target(target);
    if let Some(body) = &request.body {
        head.body = BodyLength::Known(body.len() as u64);
        exchange.body = RequestBody::Bytes(Bytes::copy_from_slice(body));
    }
    let route = exchange.site.select_path(0, exchange.request.path());
    set_route(exchange, route);
    for (name, value) in &request.variables {
        exchange.set_env(&name.as_str().into(), &value.as_bytes().into());
    }
}

/// Reads `body` to its end and appends it to `content`. The error says why the body is not complete.
async fn read_body(body: Body, content: &mut Vec<u8>) -> Result<(), String> {
    match body {
        Body::Empty => Ok(()),
        Body::Bytes(bytes) => {
            content.extend_from_slice(&bytes);
            Ok(())
        }
        Body::File(range) => {
            let mut reader = FileReader::new(range);
            loop {
                let read = poll_fn(|task| reader.poll_append(task, PIECE, content)).await;
                if read.map_err(|error| error.to_string())? == 0 {
                    return Ok(());
                }
                check_length(content)?;
            }
        }
        Body::Stream(mut source) => {
            while let Some(piece) = poll_fn(|task| source.poll_next(task, PIECE)).await {
                content.extend_from_slice(&piece.map_err(|error| error.to_string())?);
                check_length(content)?;
            }
            Ok(())
        }
    }
}

fn check_length(content: &[u8]) -> Result<(), String> {
    if content.len() <= MAX_BODY {
        return Ok(());
    }
    Err(format!(
        "the body has more than {MAX_BODY} bytes, and no more are read"
    ))
}

/// The address of the server, for requests without a connection.
struct ServerAddress(SocketAddr);

impl Transport for ServerAddress {
    fn local_address(&self) -> Option<Address> {
        Some(Address::Ip(self.0))
    }
    fn congestion_controller(&self) -> Option<String> {
        None
    }
    fn delivery_rate(&self) -> Option<u64> {
        None
    }
}
