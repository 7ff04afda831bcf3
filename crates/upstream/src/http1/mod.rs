//! Requests to backends over HTTP/1.
//!
//! A request normally costs one write and one read. No system call checks whether the connection is alive: the socket's events
//! tell. Buffers belong to the worker ([`Scratch`]); a connection holds memory of its own only while a
//! head is incomplete or the socket is full.

mod body;
mod exchange;
mod tunnel;
mod upload;

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use h2o_exchange::{Body, Timer, Worker};
use h2o_http::{BodyLength, ClientResponse, Known};
use h2o_http1::{AwaitedPart, ClientConnection, ClientRequest};

use body::ContentSource;
use exchange::{BodyRemainder, ReceivedBody, UpstreamExchange};
use tunnel::TunnelSource;
use upload::{Content, HoldReason, Upload};

use crate::balancer::InUse;
use crate::idle_pool::IdlePool;
use crate::local_upstream::LocalUpstream;
use crate::protocol_choice::Http1Load;
use crate::read_ahead::{self, Buffering};
use crate::ready_body::ReadyBody;
use crate::scratch::Scratch;
use crate::stream::UpstreamStream;
use crate::unanswered::{Reuse, Unanswered, is_idempotent};
use crate::{Call, Protocol, Reply, proxy_protocol};

/// An HTTP/1 connection to a backend.
pub(crate) struct Connection {
    stream: UpstreamStream,
    engine: ClientConnection,
    /// The index of the backend.
    backend: usize,
    in_use: Option<InUse>,
    timer: Timer,
    /// Whether a request on the connection was truncated.
    is_truncated: bool,
    _counted: ConnectionCount,
}

/// Sends close_notify, unless a request was truncated: the backend must notice the truncation.
impl Drop for Connection {
    fn drop(&mut self) {
        if self.engine.is_request_done() && !self.is_truncated {
            self.stream.send_close_notify();
        }
    }
}

/// Counts an open connection as long as this value lives.
struct ConnectionCount(Rc<Cell<usize>>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

/// A worker's HTTP/1 connections to the backends of an upstream.
pub(crate) struct Connections {
    upstream: Rc<LocalUpstream>,
    scratch: Rc<Scratch>,
    idle: Rc<IdlePool<Box<Connection>>>,
    /// For each backend, the number of open connections, including idle ones.
    counts: Box<[Rc<Cell<usize>>]>,
}

impl Connections {
    pub(crate) fn new(upstream: Rc<LocalUpstream>, scratch: Rc<Scratch>) -> Self {
        Self {
            idle: Rc::new(IdlePool::new(Rc::clone(&upstream))),
            counts: upstream.backends.iter().map(|_| Rc::default()).collect(),
            upstream,
            scratch,
        }
    }

    /// Whether there is an idle connection to `backend`.
    pub(crate) fn has_idle(&self, backend: usize) -> bool {
        self.idle.len(backend) > 0
    }

    /// The numbers of busy and idle connections to the backends for whose index `suits` returns true.
    pub(crate) fn load(&self, suits: impl Fn(usize) -> bool) -> Http1Load {
        let mut load = Http1Load { busy: 0, idle: 0 };
        for (backend, count) in self.counts.iter().enumerate() {
            if suits(backend) {
                let idle = self.idle.len(backend);
                load.idle += idle;
                load.busy += count.get() - idle;
            }
        }
        load
    }

    /// Takes, among the usable connections to `backend`, the one that was idle longest. With `thoroughly`, the kernel is asked
    /// whether the backend has closed it; otherwise only the events of the socket are looked at.
    pub(crate) fn take(
        &self,
        backend: usize,
        now: Instant,
        thoroughly: bool,
    ) -> Option<Box<Connection>> {
        (self.idle).take(backend, now, |connection| {
            connection.stream.check(thoroughly)
        })
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&self) {
        self.idle.clear();
    }

    /// Returns a connection without outstanding requests to the pool.
    fn put(&self, connection: Box<Connection>, worker: &Worker) {
        self.idle.put(connection.backend, connection, worker);
    }

    /// Makes a connection of a newly established stream to `backend`.
    pub(crate) fn open(
        &self,
        worker: &Worker,
        backend: usize,
        stream: UpstreamStream,
        in_use: Option<InUse>,
    ) -> Box<Connection> {
        let count = &self.counts[backend];
        count.update(|count| count + 1);
        Box::new(Connection {
            stream,
            engine: ClientConnection::new(Arc::clone(&self.scratch.engine)),
            backend,
            in_use,
            timer: Timer::new(&worker.timers),
            is_truncated: false,
            _counted: ConnectionCount(Rc::clone(count)),
        })
    }
}

/// Sends a request over a connection, and waits for the head of the response.
pub(crate) async fn send(
    pool: &Rc<Connections>,
    call: &mut Call<'_>,
    mut connection: Box<Connection>,
    body: &ReadyBody,
    reuse: Reuse,
) -> Result<Reply, Unanswered> {
    let backend = connection.backend;
    if connection.in_use.is_none() {
        connection.in_use = InUse::begin(&pool.upstream, backend);
    }
    let (upload, is_idempotent) = begin(pool, call, &mut connection, body);
    let worker = Rc::clone(call.worker);
    let trace = call.trace.clone();
    let mut exchange = UpstreamExchange::new(connection, upload, Rc::clone(pool), worker, trace);
    let mut response = ClientResponse::new();
    response.headers = std::mem::take(&mut call.headers);
    let tell = &mut call.on_informational;
    let arrived = poll_fn(|context| exchange.poll_head(context, &mut response, tell)).await;
    match arrived {
        Ok(arrived) => Ok(reply(exchange, response, arrived)),
        Err(failure) => Err(Unanswered {
            failure,
            backend: Some(backend),
            reuse,
            is_idempotent,
        }),
    }
}

/// Encodes the request and begins to send it.
fn begin(
    pool: &Connections,
    call: &mut Call<'_>,
    connection: &mut Connection,
    body: &ReadyBody,
) -> (Upload, bool) {
    let (scratch, settings) = (&pool.scratch, &pool.upstream.settings);
    let mut head = scratch.take_head();
    let url = &pool.upstream.backends[connection.backend].url;
    (call.build)(url, Protocol::Http1, &mut head);
    body.set_length(&mut head);
    let hold = match head.body {
        BodyLength::Tunnel => HoldReason::Tunnel,
        BodyLength::Unknown | BodyLength::Known(1..) if call.expects_continue => {
            HoldReason::Continue
        }
        BodyLength::None | BodyLength::Known(_) | BodyLength::Unknown => HoldReason::Nothing,
    };
    let mut out = scratch.take_output();
    if settings.proxy_protocol && connection.engine.request_index() == 0 {
        out.extend_from_slice(&proxy_protocol::line(
            call.client_address.as_deref(),
            &call.client,
        ));
    }
    let request = ClientRequest {
        method: &head.method,
        target: head.target(),
        host: head.authority(),
        headers: &head.headers,
        body: head.body,
        keep_alive: !settings.keepalive.is_zero()
            && !settings.proxy_protocol
            && !call.closes_connection,
        upgrade: Some(head.upgrade()).filter(|token| !token.is_empty()),
        expects_continue: hold == HoldReason::Continue,
    };
    connection.engine.send_request(&request, &mut out);
    if let Some(trace) = &call.trace {
        let now = call.worker.clock.now();
        trace.begin_request(now, out.len() as u64, connection.stream.tls_info());
    }
    let is_idempotent = is_idempotent(&head.method);
    scratch.put_head(head);
    let content = Content::new(body.to_send());
    let upload = Upload::new(content, hold, &mut connection.engine, out);
    (upload, is_idempotent)
}

fn reply(exchange: UpstreamExchange, mut response: ClientResponse, arrived: ReceivedBody) -> Reply {
    let status = response.status;
    let reason = response.reason();
    let reason = (reason != status.reason().as_bytes())
        .then(|| String::from_utf8_lossy(reason).into_owned().into());
    let closes = (response.headers.get(Known::Connection))
        .is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
    let is_tunnel = exchange.connection.engine.awaited() == AwaitedPart::Tunnel;
    let is_chunked = response.body == BodyLength::Unknown
        && !is_tunnel
        && !exchange.connection.engine.ends_with_connection();
    let backend = exchange.connection.backend;
    if matches!(arrived.rest, BodyRemainder::Nothing { .. }) {
        exchange.note_end();
    }
    let body = match arrived.rest {
        BodyRemainder::Nothing { is_clean } if exchange.ends_with_response() => {
            exchange.finish(is_clean);
            if arrived.content.is_empty() {
                Body::Empty
            } else {
                Body::Bytes(arrived.content)
            }
        }
        BodyRemainder::More if is_tunnel => {
            Body::Stream(Box::new(TunnelSource::open(exchange, arrived.content)))
        }
        rest => {
            let buffering = Buffering::of(&exchange.worker, &exchange.pool.upstream.settings);
            read_ahead::body(
                ContentSource::new(exchange, arrived.content, rest),
                buffering,
            )
        }
    };
    Reply {
        status,
        reason,
        headers: std::mem::take(&mut response.headers),
        length: response.length,
        body,
        backend,
        closes,
        is_chunked,
        is_tunnel,
        protocol: Protocol::Http1,
    }
}
