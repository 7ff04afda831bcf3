//! The method `http_request`, by which scripts send requests to other servers.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use h2o_exchange::{Address, Body, ConnectionInfo, NoTransport, RequestBody, Worker};
use h2o_http::{BodyLength, Headers, Known, Method, Name, RequestHead, Version};
use h2o_mruby::{Kind, Leave, Value, Vm};
use h2o_upstream::{BackendUrl, Call, Failure, Reply, Upstream};
use tokio::task::AbortHandle;

use super::arrival::Arrival;
use super::machine::Host;
use super::{answer, content, input};
use crate::proxy::upstream_for;

/// A request of a script to another server. Dropping it ends the request, unless its response has begun.
struct HttpRequest {
    arrival: Arrival<Result<Reply, Failure>>,
    task: AbortHandle,
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Defines the method `http_request` and the Ruby classes for its results.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let kernel = vm.constant(None, "Kernel")?;
    vm.define(kernel, "http_request", request)?;
    let module = vm.module(None, "H2O")?;
    let class = vm.object_class(Some(module), "HttpRequest")?;
    vm.define(class, "__join", |vm, call| {
        let arrival = vm.with_object(call.receiver, |request: &HttpRequest| {
            request.arrival.clone()
        })?;
        arrival.join(vm, triple)
    })
}

fn request(vm: &Vm, call: &h2o_mruby::Call<'_>) -> Result<Value, Leave> {
    let arguments = call.arguments.between(1, 2)?;
    // H2O compatibility: the text is H2O's.
    let invalid = || Leave::argument("invaild URL");
    let url = vm.bytes(arguments.get(0)).ok_or_else(invalid)?;
    let url = BackendUrl::parse_bytes(&url).ok_or_else(invalid)?;
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
    let (mut closes_connection, mut coding) = (false, None);
    let fields = option("headers")?;
    if !fields.is_nil() {
        answer::read_spelled_fields(vm, fields, |name, spelling, value| match name {
            "host" | "content-length" | "keep-alive" | "proxy-connection" | "upgrade"
            | "expect" | "te" => {}
            "connection" => closes_connection |= value.trim_ascii().eq_ignore_ascii_case(b"close"),
            "transfer-encoding" => {
                let is_chunked = value.trim_ascii().eq_ignore_ascii_case(b"chunked");
                coding = Some(coding.is_none() && is_chunked);
            }
            // Field names are sent as the script has written them, because some servers compare names with regard to
            // case.
            _ => {
                let (spelling, value) = (headers.store(spelling), headers.store(value));
                headers.push_stored(spelling, value);
            }
        })?;
    }
    let body = match option("body")? {
        none if none.is_nil() => RequestBody::None,
        text if text.kind() == Kind::String => bytes(vm.bytes(text).unwrap_or_default()),
        // A body in chunked coding is decoded below.
        source => match if coding.is_none() {
            input::take(vm, source)?
        } else {
            None
        } {
            Some(body) => body,
            None => {
                let text = vm.call(source, "read", &[]).map_err(Leave::Raise)?;
                let text = (text.kind() == Kind::String)
                    .then(|| vm.bytes(text))
                    .flatten();
                bytes(text.ok_or_else(|| Leave::argument("body.read did not return string"))?)
            }
        },
    };
    // The script has encoded the body already. The server encodes it again as the connection to the other server demands.
    let body = match (body, coding) {
        (_, Some(false)) => {
            let text = "the only transfer-encoding that is supported is chunked";
            return Err(Leave::argument(text));
        }
        (RequestBody::Bytes(encoded), Some(true)) => {
            let invalid = |_| Leave::argument("the body is not in chunked coding");
            bytes(h2o_upstream::decode_chunked(&encoded).map_err(invalid)?)
        }
        (body, _) => body,
    };
    let length = match &body {
        RequestBody::None => BodyLength::None,
        _ if coding.is_some() => BodyLength::Unknown,
        body => body
            .complete_len()
            .map_or(BodyLength::Unknown, BodyLength::Known),
    };

    let worker = Host::worker(vm)?;
    let target = url.path.clone();
    let origin = format!("{}://{}/", url.scheme.as_str(), url.authority);
    let origin = BackendUrl::parse(&origin).ok_or_else(invalid)?;
    let upstream = upstream_for(&worker, &Host::site(vm)?.0, origin)
        .map_err(|error| Leave::runtime(error.to_string()))?;
    let arrival = Arrival::default();
    let outgoing = Outgoing {
        upstream,
        method,
        target,
        headers,
        body,
        length,
        closes_connection,
    };
    let arrived = arrival.clone();
    let reference = vm.reference();
    let task = worker.spawn({
        let worker = Rc::clone(&worker);
        async move {
            let result = outgoing.send(&worker).await;
            arrived.settle(&reference, result);
        }
    });
    let module = vm.constant(None, "H2O").map_err(Leave::Raise)?;
    let class = vm
        .constant(Some(module), "HttpRequest")
        .map_err(Leave::Raise)?;
    let request = HttpRequest {
        arrival,
        task: task.abort_handle(),
    };
    vm.object(class, request).map_err(Leave::Raise)
}

fn bytes(bytes: Vec<u8>) -> RequestBody {
    RequestBody::Bytes(Bytes::from(bytes))
}

/// A request that a script sends to another server.
struct Outgoing {
    upstream: Arc<Upstream>,
    method: Method,
    /// The path and query of the request.
    target: Box<[u8]>,
    headers: Headers,
    body: RequestBody,
    /// How the length of the body is announced.
    length: BodyLength,
    /// Whether the script has asked for a connection that is not used again.
    closes_connection: bool,
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
            length,
            closes_connection,
        } = self;
        upstream
            .send(Call {
                worker,
                client_address: None,
                client: Rc::new(client),
                build: &mut |backend: &BackendUrl, _, head: &mut RequestHead| {
                    head.headers.extend_from(&headers);
                    head.method = method.clone();
                    head.scheme = backend.scheme;
                    head.version = Version::Http11;
                    head.body = length;
                    let authority = head.headers.store(backend.authority.as_bytes());
                    head.set_authority(authority);
                    let target = head.headers.store(&target);
                    head.set_target(target);
                },
                fastcgi: None,
                body,
                waits_for_content: true,
                ends_with_upload: false,
                closes_connection,
                needs_http1: false,
                expects_continue: false,
                on_informational: None,
                trace: None,
                headers: Headers::new(),
            })
            .await
    }
}

/// The status, fields and body of the response as the Array that Ruby gets.
fn triple(vm: &Vm, result: Result<Reply, Failure>) -> Result<Value, Value> {
    let mut is_chunked = false;
    let (status, headers, length, body) = match result {
        Ok(reply) => {
            let status = reply.status.as_u16();
            is_chunked = reply.is_chunked;
            (status, reply.headers, reply.length, reply.body)
        }
        Err(failure) => {
            let mut headers = Headers::new();
            let text = failure.text.as_bytes();
            headers.push(Name::from_lower("client-warning"), text);
            headers.push(Known::ContentType, b"text/plain; charset=utf-8");
            let body = Body::Bytes(Bytes::copy_from_slice(text));
            (500, headers, None, body)
        }
    };
    let fields = content::joined_fields(vm, &headers, |_| b"\n")?;
    content::add_length(vm, fields, length)?;
    if is_chunked {
        let name = vm.string("transfer-encoding")?;
        vm.hash_set(fields, name, vm.string("chunked")?)?;
    }
    let module = vm.constant(None, "H2O")?;
    let mut class = vm.constant(Some(module), "HttpInputStream")?;
    if let Body::Empty = body {
        class = vm.constant(Some(class), "Empty")?;
    }
    content::triple(vm, status, fields, class, body, true)
}
