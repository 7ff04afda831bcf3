//! The methods `H2O.next` and `H2O.reprocess`: requests that scripts make to this server itself.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{
    Address, Body, BodyError, BodySource, ConnectionInfo, ErrorSink, Exchange, ExchangeRef,
    LocalSite, Reroutes, Response, Route, SpliceSource, SubRequest, SubRequestService,
    SubRequestStart, Timings, Trailers, Transport, Worker,
};
use h2o_http::Known;
use h2o_mruby::{Kind, Leave, Rooted, Value, Vm};
use tokio::task::AbortHandle;

use super::arrival::Arrival;
use super::content;
use super::machine::{Host, Machine};
use super::objects::RequestState;
use super::sub_env::{self, Description};

/// The place of a script's handler in the configuration.
#[derive(Clone)]
pub(super) struct Place {
    site: Weak<LocalSite>,
    route: Route,
    /// Index of the handler among the handlers of its path.
    handler: usize,
}

impl Place {
    /// The place of the handler that runs for this exchange.
    pub(super) fn of(exchange: &Exchange) -> Self {
        Self {
            site: Rc::downgrade(&exchange.site),
            route: exchange.route,
            handler: exchange.handler,
        }
    }

    /// Whether the handler that runs for this exchange is at this place.
    pub(super) fn is_of(&self, exchange: &Exchange) -> bool {
        self.route == exchange.route
            && self.handler == exchange.handler
            && std::ptr::eq(self.site.as_ptr(), &raw const *exchange.site)
    }
}

/// The Ruby object `H2O::App`, which starts sub-requests.
struct App {
    is_next: bool,
}

/// The Ruby object `H2O::AppRequest`, which stands for a sub-request.
struct AppRequest(Rc<InnerCall>);

/// A sub-request that was started. Dropping it ends the request, unless its response has begun.
pub(super) struct InnerCall {
    response: Arrival<Response>,
    task: AbortHandle,
}

impl InnerCall {
    /// The sub-request that the Ruby value stands for; `None` for other values.
    pub(super) fn of(vm: &Vm, value: Value) -> Option<Rc<Self>> {
        vm.try_object(value, |request: &AppRequest| Rc::clone(&request.0))
    }

    /// Whether the script has the response of the sub-request already, by the method `join`.
    pub(super) fn is_joined(&self) -> bool {
        self.response.is_taken()
    }

    /// Whether a strand (fiber) waits in the method `join`.
    pub(super) fn is_awaited(&self) -> bool {
        self.response.is_awaited()
    }

    /// Calls `take` with the response of the sub-request, now or later.
    pub(super) fn pass_to(&self, take: impl FnOnce(Response) + 'static) {
        self.response.pass_to(take);
    }

    /// Ends the sub-request, because its response is not needed any more.
    pub(super) fn cancel(&self) {
        self.task.abort();
    }
}

impl Drop for InnerCall {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Defines the Ruby classes of sub-requests.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    let app = vm.object_class(Some(module), "App")?;
    vm.define_singleton(app, "__new", |vm, call| {
        let [is_next] = call.arguments.exactly()?;
        let app = App {
            is_next: is_next.is_true(),
        };
        vm.object(call.receiver, app).map_err(Leave::Raise)
    })?;
    vm.define(app, "request", |vm, call| {
        let [env] = call.arguments.exactly()?;
        if env.kind() != Kind::Hash {
            let class = vm.name_in_messages(env);
            let text = format!("{class} cannot be converted to Hash");
            return Err(Leave::type_error(text));
        }
        let is_next = vm.with_object(call.receiver, |app: &App| app.is_next)?;
        begin(vm, is_next, env)
    })?;
    let request = vm.object_class(Some(module), "AppRequest")?;
    vm.define(request, "__join", |vm, call| {
        let call = vm.with_object(call.receiver, |request: &AppRequest| Rc::clone(&request.0))?;
        call.response.join(vm, triple)
    })
}

/// Starts a sub-request: its handlers run in a later turn of the event loop.
fn begin(vm: &Vm, is_next: bool, env: Value) -> Result<Value, Leave> {
    let described = sub_env::read(vm, env)?;
    let worker = Host::worker(vm)?;
    let place = Machine::current_place(vm)?;
    let site = place.as_ref().and_then(|place| place.site.upgrade());
    let site = match site {
        Some(site) => site,
        None => Host::site(vm)?,
    };
    let (start, route) = if is_next {
        let place = place.ok_or_else(|| {
            Leave::runtime("H2O.next can only be called while a request is handled")
        })?;
        let key = &site.path(place.route).path;
        if key.strip_suffix('/').unwrap_or(key).as_bytes() != described.script_name {
            return Err(Leave::runtime(
                "can't modify `SCRIPT_NAME` with `H2O.next`. Is `H2O.reprocess` what you want?",
            ));
        }
        let next = SubRequestStart::Handler(place.handler + 1);
        (next, place.route)
    } else {
        (SubRequestStart::Routing, Route::default())
    };
    let (on_error, lines) = error_sink(vm, described.errors)?;
    let exchange = make_exchange(&worker, &site, described);
    {
        let exchange = &mut *exchange.borrow_mut();
        exchange.route = route;
        exchange.sub_request = Some(Box::new(SubRequest { start, on_error }));
    }
    let module = vm.constant(None, "H2O")?;
    let class = vm.constant(Some(module), "AppRequest")?;
    let response = Arrival::default();
    let task = worker.spawn(answer(vm.reference(), exchange, lines, response.clone()));
    let call = InnerCall {
        response,
        task: task.abort_handle(),
    };
    Ok(vm.object(class, AppRequest(Rc::new(call)))?)
}

async fn answer(
    vm: Weak<Vm>,
    exchange: ExchangeRef,
    lines: Option<Rc<ErrorLines>>,
    arrival: Arrival<Response>,
) {
    let worker = Rc::clone(&exchange.borrow().worker);
    let kept = Kept(Rc::clone(&exchange));
    let service = worker.local::<SubRequestService>();
    let Some(service) = service.0.get() else {
        return;
    };
    let mut response = service.answer(exchange).await;
    kept.note(&response);
    response.body = match response.body {
        Body::Stream(source) => Body::Stream(Box::new(KeptBody {
            source,
            _kept: kept,
        })),
        body @ (Body::Empty | Body::Bytes(_) | Body::File(_)) => body,
    };
    // The script finds the lines in its object when `join` returns.
    if let Some(lines) = lines {
        lines.write();
    }
    arrival.settle(&vm, response);
}

/// Creates the exchange of a sub-request.
fn make_exchange(worker: &Rc<Worker>, site: &Rc<LocalSite>, described: Description) -> ExchangeRef {
    let now = worker.clock.now();
    let connection = ConnectionInfo {
        id: 0,
        peer: described.remote.map_or(Address::Unix, Address::Ip),
        accepted: now,
        tls: None,
        transport: Rc::new(Inside(described.local.map(Address::Ip))),
        listener: Rc::default(),
    };
    let exchange = worker.exchange(site, &Rc::new(connection));
    {
        let exchange = &mut *exchange.borrow_mut();
        exchange.request = described.head;
        exchange.body = described.body;
        exchange.env = described.variables;
        let limits = site.reroute_limits;
        let used = |limit: u32, left: Option<u32>| limit - left.unwrap_or(limit).min(limit);
        exchange.reroutes = Reroutes {
            delegations: used(limits.delegations, described.delegations),
            reprocesses: used(limits.reprocesses, described.reprocesses),
        };
        exchange.timings = Timings::starting(now);
        exchange.timings.head = Some(now);
        exchange.timings.processed = Some(now);
        exchange.timings.processed_at = worker.clock.unix();
    }
    exchange
}

/// The function that gets the error lines of a sub-request: it writes them to `rack.errors` of the Hash. `None` if the
/// Hash has none. If `rack.errors` is an object of the script, the second value has the lines that are to be written.
fn error_sink(
    vm: &Vm,
    errors: Value,
) -> Result<(Option<ErrorSink>, Option<Rc<ErrorLines>>), Leave> {
    if errors.is_nil() {
        return Ok((None, None));
    }
    if let Ok(request) = vm.with_object(errors, Rc::<RequestState>::clone) {
        let sink: ErrorSink = Box::new(move |line| request.write_line(line.to_owned()));
        return Ok((Some(sink), None));
    }
    let worker = Host::worker(vm)?;
    let lines = Rc::new(ErrorLines {
        queue: RefCell::default(),
        errors: vm.root(errors)?,
        vm: vm.reference(),
    });
    let queued = Rc::clone(&lines);
    let sink: ErrorSink = Box::new(move |line| {
        queued.queue.borrow_mut().push(line.to_owned());
        // A task writes the line, because Ruby may be running now. If the response comes first, the lines are written before it.
        let queued = Rc::clone(&queued);
        worker.spawn(async move { queued.write() });
    });
    Ok((Some(sink), Some(lines)))
}

/// The error lines of a sub-request that are written to an object of the script.
struct ErrorLines {
    queue: RefCell<Vec<String>>,
    /// The object, whose method `write` is called with each line.
    errors: Rooted,
    vm: Weak<Vm>,
}

impl ErrorLines {
    /// Writes the queued lines. Ruby must not be running.
    fn write(&self) {
        let lines = self.queue.take();
        let Some(vm) = self.vm.upgrade().filter(|_| !lines.is_empty()) else {
            return;
        };
        vm.scope(|| {
            for line in lines {
                if let Ok(line) = vm.string(line) {
                    let _ = vm.call(self.errors.value(), "write", &[line]);
                }
            }
        });
    }
}

/// The transport of a sub-request, which has no connection but only the server's address.
struct Inside(Option<Address>);

impl Transport for Inside {
    fn local_address(&self) -> Option<Address> {
        self.0
    }
    fn congestion_controller(&self) -> Option<String> {
        None
    }
    fn delivery_rate(&self) -> Option<u64> {
        None
    }
}

/// The exchange of a sub-request, kept until the response body has ended. Dropping this value writes the log line.
struct Kept(ExchangeRef);

impl Kept {
    /// Records the response in the exchange, for the log line.
    fn note(&self, response: &Response) {
        let exchange = &mut *self.0.borrow_mut();
        exchange.sent.status = Some(response.status);
        exchange.sent.headers.copy_from(&response.headers);
        exchange.timings.response_start = Some(exchange.worker.clock.now());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let worker = {
            let Ok(mut exchange) = self.0.try_borrow_mut() else {
                return;
            };
            exchange.timings.response_end = Some(exchange.worker.clock.now());
            let start = exchange.sub_request.as_ref().map(|request| request.start);
            // H2O compatibility: as in H2O, a sub-request of `H2O.next` has no log line of its own.
            if start == Some(SubRequestStart::Routing) {
                for logger in &exchange.site.path(exchange.route).loggers {
                    logger.log(&exchange);
                }
            }
            exchange.sub_request = None;
            Rc::clone(&exchange.worker)
        };
        worker.release(Rc::clone(&self.0));
    }
}

/// A response body that keeps the exchange of its sub-request.
struct KeptBody {
    source: Box<dyn BodySource>,
    _kept: Kept,
}

impl BodySource for KeptBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.source.poll_next(context, max)
    }

    fn trailers(&mut self) -> Trailers {
        self.source.trailers()
    }

    fn is_complete(&self) -> bool {
        self.source.is_complete()
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.source.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.source.retained()
    }

    fn splice(&mut self) -> Option<&mut dyn SpliceSource> {
        self.source.splice()
    }
}

/// The status, fields and body of the response as the Array that Ruby gets.
fn triple(vm: &Vm, response: Response) -> Result<Value, Value> {
    let mut fields: Vec<_> = response.headers.iter().collect();
    fields.sort_by_key(|field| (field.name.as_str().len(), field.name.as_str()));
    let mut sorted = h2o_http::Headers::new();
    for field in fields {
        sorted.push(field.name, field.value);
    }
    let hash = content::joined_fields(vm, &sorted, |name| match name {
        "cookie" => b"; ",
        _ => b", ",
    })?;
    let cookies: Vec<_> = sorted.get_all(Known::SetCookie).collect();
    if cookies.len() > 1 {
        let list = vm.array(&[])?;
        for cookie in cookies {
            vm.push(list, vm.string(cookie)?)?;
        }
        vm.hash_set(hash, vm.string("set-cookie")?, list)?;
    }
    content::add_length(vm, hash, response.length)?;
    let status = response.status.as_u16();
    let module = vm.constant(None, "H2O")?;
    let class = vm.constant(Some(module), "AppInputStream")?;
    content::triple(vm, status, hash, class, response.body, false)
}
