//! `http_request`: requests of scripts to other servers.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{Address, Body, ConnectionInfo, FileReader, NoTransport, RequestBody, Worker};
use h2o_http::{BodyLength, Headers, Method, Name, RequestHead, Version};
use h2o_mruby::{Kind, Leave, Ticket, Value, Vm};
use h2o_upstream::{BackendUrl, Call, Failure, Reply, Upstream};
use tokio::task::AbortHandle;

use super::answer;
use super::machine::Host;
use crate::proxy::upstream_for;

/// Most bytes of a body that one step reads.
const PIECE: usize = 64 * 1024;

/// A request to another server. Dropping it ends the request, unless its response has begun.
struct HttpRequest {
    cell: Rc<RefCell<Cell>>,
    task: AbortHandle,
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where the response arrives.
#[derive(Default)]
struct Cell {
    result: Option<Result<Reply, Failure>>,
    /// The strand that waits for it.
    waiting: Option<Ticket>,
}

/// The body of a response.
struct Content {
    /// `None` while it is read, and when it has been handed on.
    body: RefCell<Option<Body>>,
    is_consumed: std::cell::Cell<bool>,
}

/// Defines `http_request` and its classes.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let kernel = vm.constant(None, "Kernel")?;
    vm.define(kernel, "http_request", request)?;
    let module = vm.module(None, "H2O")?;
    let class = vm.object_class(Some(module), "HttpRequest")?;
    vm.define(class, "__join", join)?;
    let stream = vm.object_class(Some(module), "HttpInputStream")?;
    vm.define(stream, "__begin", |vm, call| {
        vm.with_object(call.receiver, |content: &Content| {
            if content.is_consumed.replace(true) {
                return Err(Leave::runtime("http response body is already consumed"));
            }
            Ok(Value::nil())
        })?
    })?;
    vm.define(stream, "__read", read)
}

/// Whether the object is a body that nobody has read.
///
/// # Errors
/// `RuntimeError` if it is one that somebody has read.
pub(super) fn is_untouched(vm: &Vm, value: Value) -> Result<bool, Leave> {
    match vm.with_object(value, |content: &Content| content.is_consumed.get()) {
        Ok(false) => Ok(true),
        Ok(true) => Err(Leave::runtime("http response body is already consumed")),
        Err(_) => Ok(false),
    }
}

/// Takes a body to hand it on without Ruby.
pub(super) fn take_body(vm: &Vm, value: Value) -> Result<Body, Leave> {
    vm.with_object(value, |content: &Content| {
        content.is_consumed.set(true);
        content.body.take().unwrap_or_default()
    })
}

fn request(vm: &Vm, call: &h2o_mruby::Call<'_>) -> Result<Value, Leave> {
    let arguments = call.arguments.between(1, 2)?;
    let invalid = || Leave::argument("invaild URL");
    let url = vm.bytes(arguments.get(0)).ok_or_else(invalid)?;
    let url = std::str::from_utf8(&url).map_err(|_| invalid())?;
    let url = BackendUrl::parse(url).ok_or_else(invalid)?;
    let options = arguments.get(1);
    let option = |name: &str| {
        if options.is_nil() {
            return Ok(Value::nil());
        }
        vm.option(options, name).map_err(Leave::Raise)
    };

    let method = match option("method")? {
        none if none.is_nil() => Method::Get,
        name => {
            let name = vm.text_of(name).map_err(Leave::Raise)?;
            Method::from_token(&name).ok_or_else(|| Leave::argument("invalid method"))?
        }
    };
    let mut headers = Headers::new();
    let fields = option("headers")?;
    if !fields.is_nil() {
        let mut refused = None;
        answer::read_fields(vm, fields, |name, value| match name {
            "host" | "content-length" | "connection" | "keep-alive" | "proxy-connection"
            | "upgrade" | "expect" | "te" => {}
            "transfer-encoding" => refused = Some("transfer-encoding is not supported"),
            _ => headers.push(Name::from_lower(name), value),
        })?;
        if let Some(text) = refused {
            return Err(Leave::argument(text));
        }
    }
    let body = match option("body")? {
        none if none.is_nil() => None,
        text if text.kind() == Kind::String => vm.bytes(text),
        source => {
            let text = vm.call(source, "read", &[]).map_err(Leave::Raise)?;
            let text = (text.kind() == Kind::String)
                .then(|| vm.bytes(text))
                .flatten();
            Some(text.ok_or_else(|| Leave::argument("body.read did not return string"))?)
        }
    };

    let worker = Host::worker(vm)?;
    let target = url.path.clone();
    let origin = format!("{}://{}/", url.scheme.as_str(), url.authority);
    let origin = BackendUrl::parse(&origin).ok_or_else(invalid)?;
    let upstream = upstream_for(&worker, &Host::site(vm).0, origin)
        .map_err(|error| Leave::runtime(error.to_string()))?;
    let cell = Rc::new(RefCell::new(Cell::default()));
    let outgoing = Outgoing {
        upstream,
        method,
        target,
        headers,
        body: body.map(Bytes::from),
    };
    let arrived = Rc::clone(&cell);
    let reference = vm.reference();
    let task = worker.spawn({
        let worker = Rc::clone(&worker);
        async move {
            let result = outgoing.send(&worker).await;
            let waiting = {
                let cell = &mut *arrived.borrow_mut();
                cell.result = Some(result);
                cell.waiting.take()
            };
            if let (Some(ticket), Some(vm)) = (waiting, reference.upgrade()) {
                vm.resume(ticket, |vm| {
                    take_triple(vm, &arrived).unwrap_or_else(|exception| exception)
                });
            }
        }
    });
    let module = vm.constant(None, "H2O").map_err(Leave::Raise)?;
    let class = vm
        .constant(Some(module), "HttpRequest")
        .map_err(Leave::Raise)?;
    let request = HttpRequest {
        cell,
        task: task.abort_handle(),
    };
    vm.object(class, request).map_err(Leave::Raise)
}

/// A request to send.
struct Outgoing {
    upstream: Arc<Upstream>,
    method: Method,
    /// Path and query.
    target: Box<[u8]>,
    headers: Headers,
    body: Option<Bytes>,
}

impl Outgoing {
    async fn send(self, worker: &Rc<Worker>) -> Result<Reply, Failure> {
        let client = ConnectionInfo {
            id: 0,
            peer: Address::Unix,
            accepted: worker.clock.now(),
            tls: None,
            transport: Rc::new(NoTransport),
            listener: Rc::default(),
        };
        let Self {
            upstream,
            method,
            target,
            headers,
            body,
        } = self;
        let length = body.as_ref().map(|body| body.len() as u64);
        upstream
            .send(Call {
                worker,
                client: Rc::new(client),
                build: &mut |backend: &BackendUrl, _, head: &mut RequestHead| {
                    head.headers.extend_from(&headers);
                    head.method = method.clone();
                    head.scheme = backend.scheme;
                    head.version = Version::Http11;
                    head.body = length.map_or(BodyLength::None, BodyLength::Known);
                    let authority = head.headers.store(backend.authority.as_bytes());
                    head.set_authority(authority);
                    let target = head.headers.store(&target);
                    head.set_target(target);
                },
                body: body.map_or(RequestBody::None, RequestBody::Bytes),
                waits_for_content: true,
                ends_with_upload: false,
                needs_http1: false,
                expects_continue: false,
                on_informational: None,
                trace: None,
                headers: Headers::new(),
            })
            .await
    }
}

/// Waits for the head of the response.
fn join(vm: &Vm, call: &h2o_mruby::Call<'_>) -> Result<Value, Leave> {
    let cell = vm.with_object(call.receiver, |request: &HttpRequest| {
        Rc::clone(&request.cell)
    })?;
    if cell.borrow().result.is_some() {
        return take_triple(vm, &cell).map_err(Leave::Raise);
    }
    if cell.borrow().waiting.is_some() {
        return Err(Leave::runtime("another fiber waits for this response"));
    }
    let ticket = vm.suspend()?;
    cell.borrow_mut().waiting = Some(ticket);
    Err(Leave::Wait)
}

/// Status, fields and body as Ruby gets them.
fn take_triple(vm: &Vm, cell: &RefCell<Cell>) -> Result<Value, Value> {
    let result = cell.borrow_mut().result.take();
    let (status, headers, length, body) = match result {
        Some(Ok(reply)) => (
            reply.status.as_u16(),
            reply.headers,
            reply.length,
            reply.body,
        ),
        Some(Err(failure)) => {
            let mut headers = Headers::new();
            let text = failure.text.as_bytes();
            headers.push(Name::from_lower("client-warning"), text);
            headers.push(
                Name::from_lower("content-type"),
                b"text/plain; charset=utf-8",
            );
            let body = Body::Bytes(Bytes::copy_from_slice(text));
            (500, headers, None, body)
        }
        None => return Err(vm.exception("RuntimeError", "the response was taken")),
    };
    let hash = vm.hash(headers.len() + 1)?;
    for field in headers.iter() {
        let name = vm.string(field.name.as_str())?;
        let known = vm.hash_get(hash, name)?;
        let value = match vm.bytes(known) {
            Some(mut joined) => {
                joined.push(b'\n');
                joined.extend_from_slice(field.value);
                vm.string(joined)?
            }
            None => vm.string(field.value)?,
        };
        vm.hash_set(hash, name, value)?;
    }
    if let Some(length) = length {
        let (name, value) = (vm.string("content-length")?, vm.string(length.to_string())?);
        vm.hash_set(hash, name, value)?;
    }
    let module = vm.constant(None, "H2O")?;
    let class = vm.constant(Some(module), "HttpInputStream")?;
    let content = Content {
        body: RefCell::new(Some(body)),
        is_consumed: std::cell::Cell::new(false),
    };
    let stream = vm.object(class, content)?;
    vm.array(&[vm.integer(status.into())?, hash, stream])
}

/// The next piece of a body; `nil` at the end, also where the connection broke off (H2O compatibility).
fn read(vm: &Vm, call: &h2o_mruby::Call<'_>) -> Result<Value, Leave> {
    let body = vm.with_object(call.receiver, |content: &Content| content.body.take())?;
    let Some(mut body) = body else {
        return Ok(Value::nil());
    };
    let mut context = Context::from_waker(Waker::noop());
    match poll_piece(&mut body, &mut context) {
        Poll::Ready(Some(piece)) => {
            put_back(vm, call.receiver, body)?;
            vm.string(piece).map_err(Leave::Raise)
        }
        Poll::Ready(None) => Ok(Value::nil()),
        Poll::Pending => {
            let worker = Host::worker(vm)?;
            let ticket = vm.suspend()?;
            let stream = vm.root(call.receiver).map_err(Leave::Raise)?;
            let reference = vm.reference();
            worker.spawn(async move {
                let piece = poll_fn(|task| poll_piece(&mut body, task)).await;
                let Some(vm) = reference.upgrade() else {
                    return;
                };
                vm.resume(ticket, |vm| {
                    let Some(piece) = piece else {
                        return Value::nil();
                    };
                    let _ = put_back(vm, stream.value(), body);
                    vm.string(piece).unwrap_or_else(|exception| exception)
                });
            });
            Err(Leave::Wait)
        }
    }
}

fn put_back(vm: &Vm, stream: Value, body: Body) -> Result<(), Leave> {
    vm.with_object(stream, |content: &Content| content.body.replace(Some(body)))
        .map(drop)
}

/// The next piece; `None` at the end.
fn poll_piece(body: &mut Body, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
    match body {
        Body::Empty => Poll::Ready(None),
        Body::Bytes(bytes) => {
            let bytes = std::mem::take(bytes);
            *body = Body::Empty;
            Poll::Ready(Some(bytes).filter(|bytes| !bytes.is_empty()))
        }
        Body::File(range) => {
            let mut reader = FileReader::new(range.clone());
            let mut piece = Vec::new();
            let read = std::task::ready!(reader.poll_append(context, PIECE, &mut piece));
            let read = read.unwrap_or(0) as u64;
            range.offset += read;
            range.len -= read.min(range.len);
            Poll::Ready(Some(Bytes::from(piece)).filter(|piece| !piece.is_empty()))
        }
        Body::Stream(source) => source
            .poll_next(context, PIECE)
            .map(|piece| piece.and_then(Result::ok)),
    }
}
