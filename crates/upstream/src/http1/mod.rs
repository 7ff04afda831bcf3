//! Requests over HTTP/1.
//!
//! A request normally costs one write, one read, and no system call to see whether the connection is still there: the runtime
//! has been told if it is not. Buffers are the worker's ([`crate::pool::Scratch`]); a connection holds octets only while a head
//! is incomplete or the socket does not take more.

mod body;
mod exchange;
mod tunnel;
mod upload;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::{Body, Timer};
use h2o_http::{BodyLength, ClientResponse, Known, Method};
use h2o_http1::{Awaited, ClientConnection, ClientRequest};

use body::ContentSource;
use exchange::{Arrived, Exchange, Rest};
use tunnel::TunnelSource;
use upload::{Content, Hold, Upload};

use crate::balancer::InUse;
use crate::connect::{Connected, connect};
use crate::pool::{Counted, Local};
use crate::read_ahead::{self, Buffering};
use crate::ready_body::ReadyBody;
use crate::repeat::{Aim, Link, Unanswered};
use crate::stream::UpstreamStream;
use crate::{Call, Protocol, Reply, proxy_protocol};

/// A connection to a backend that speaks HTTP/1.
pub(crate) struct Connection {
    pub(crate) stream: UpstreamStream,
    engine: ClientConnection,
    /// Index of the backend.
    pub(crate) backend: usize,
    in_use: Option<InUse>,
    timer: Timer,
    /// The request was given up midway.
    is_cut_off: bool,
    _counted: Counted,
}

/// A backend that got all of its requests is told that there will be no more.
impl Drop for Connection {
    fn drop(&mut self) {
        if self.engine.is_request_done() && !self.is_cut_off {
            self.stream.say_goodbye();
        }
    }
}

/// Sends a request over the connection that was idle for longest of those that will do, or a new one.
pub(crate) async fn send(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    body: ReadyBody,
    aim: &mut Aim,
) -> Result<Reply, Unanswered> {
    // What cannot be sent again is not risked on a connection that the backend may just have closed.
    let can_repeat = body.can_repeat();
    let now = call.worker.clock.now();
    let kept = aim.kept();
    let Some(connection) = kept.and_then(|backend| local.take(backend, now, !can_repeat)) else {
        return Box::pin(send_fresh(local, call, body, aim)).await;
    };
    exchange(local, call, connection, body, Link::Kept).await
}

/// Sends a request over a new connection. Connecting takes a large future, which most requests can do without: callers box it.
pub(crate) async fn send_fresh(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    body: ReadyBody,
    aim: &mut Aim,
) -> Result<Reply, Unanswered> {
    let connected = connect(call.worker, local, &[], aim).await?;
    send_new(local, call, connected, body).await
}

/// Sends a request over a connection that was just established.
pub(crate) async fn send_new(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    connected: Connected,
    body: ReadyBody,
) -> Result<Reply, Unanswered> {
    let connection = Box::new(Connection {
        stream: connected.stream,
        engine: ClientConnection::new(Arc::clone(&local.scratch.engine)),
        backend: connected.backend,
        in_use: connected.in_use,
        timer: Timer::new(&call.worker.timers),
        is_cut_off: false,
        _counted: local.count_http1(connected.backend),
    });
    exchange(local, call, connection, body, Link::New).await
}

async fn exchange(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    mut connection: Box<Connection>,
    body: ReadyBody,
    link: Link,
) -> Result<Reply, Unanswered> {
    let backend = connection.backend;
    if connection.in_use.is_none() {
        connection.in_use = InUse::begin(&local.upstream, connection.backend);
    }
    let (upload, is_idempotent) = begin(local, call, &mut connection, body);
    let worker = Rc::clone(call.worker);
    let trace = call.trace.clone();
    let mut exchange = Exchange::new(connection, upload, Rc::clone(local), worker, trace);
    let mut response = ClientResponse::new();
    response.headers = std::mem::take(&mut call.headers);
    let tell = &mut call.on_informational;
    let arrived = poll_fn(|context| exchange.poll_head(context, &mut response, tell)).await;
    match arrived {
        Ok(arrived) => Ok(reply(exchange, response, arrived)),
        Err(failure) => Err(Unanswered {
            failure,
            asked: Some(backend),
            link,
            is_idempotent,
        }),
    }
}

/// Encodes the request. True if its method is idempotent (RFC 9110 §9.2.2).
fn begin(
    local: &Local,
    call: &mut Call<'_>,
    connection: &mut Connection,
    body: ReadyBody,
) -> (Upload, bool) {
    let (scratch, settings) = (&local.scratch, &local.upstream.settings);
    let mut head = scratch.take_head();
    let url = &local.upstream.backends[connection.backend].url;
    (call.build)(url, Protocol::Http1, &mut head);
    body.fit(&mut head);
    let hold = match head.body {
        BodyLength::Tunnel => Hold::Tunnel,
        BodyLength::Unknown | BodyLength::Known(1..) if call.expects_continue => Hold::Continue,
        BodyLength::None | BodyLength::Known(_) | BodyLength::Unknown => Hold::Nothing,
    };
    let mut out = scratch.take_output();
    if settings.proxy_protocol && connection.engine.request_index() == 0 {
        out.extend_from_slice(&proxy_protocol::line(&call.client));
    }
    let request = ClientRequest {
        method: &head.method,
        target: head.target(),
        host: head.authority(),
        headers: &head.headers,
        body: head.body,
        keep_alive: !settings.keepalive.is_zero() && !settings.proxy_protocol,
        upgrade: Some(head.upgrade()).filter(|token| !token.is_empty()),
        expects_continue: hold == Hold::Continue,
    };
    connection.engine.send_request(&request, &mut out);
    if let Some(trace) = &call.trace {
        let now = call.worker.clock.now();
        trace.begin_request(now, out.len() as u64, connection.stream.tls_info());
    }
    let is_idempotent = is_idempotent(&head.method);
    scratch.put_head(head);
    let content = Content::new(body.into_inner());
    let upload = Upload::new(content, hold, &mut connection.engine, out);
    (upload, is_idempotent)
}

/// True for methods that may be repeated without further effect (RFC 9110 §9.2.2).
pub(crate) fn is_idempotent(method: &Method) -> bool {
    match method {
        Method::Get
        | Method::Head
        | Method::Put
        | Method::Delete
        | Method::Options
        | Method::Trace => true,
        Method::Post | Method::Connect | Method::Patch | Method::ConnectUdp | Method::Other(_) => {
            false
        }
    }
}

fn reply(exchange: Exchange, mut response: ClientResponse, arrived: Arrived) -> Reply {
    let status = response.status;
    let reason = response.reason();
    let reason = (reason != status.reason().as_bytes())
        .then(|| String::from_utf8_lossy(reason).into_owned().into());
    let closes = (response.headers.get(Known::Connection))
        .is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
    let is_tunnel = exchange.connection.engine.awaited() == Awaited::Tunnel;
    let backend = exchange.connection.backend;
    // Who refuses a request, or will close, does not want the rest of it (RFC 9112 §9.3).
    if matches!(arrived.rest, Rest::Nothing { .. }) {
        exchange.note_end();
    }
    let is_over = exchange.upload.is_done() || closes || status.as_u16() >= 400;
    let body = match arrived.rest {
        Rest::Nothing { is_clean } if is_over => {
            exchange.finish(is_clean);
            if arrived.content.is_empty() {
                Body::Empty
            } else {
                Body::Bytes(arrived.content)
            }
        }
        Rest::More if is_tunnel => {
            Body::Stream(Box::new(TunnelSource::open(exchange, arrived.content)))
        }
        rest => {
            let buffering = Buffering::of(&exchange.worker, &exchange.local.upstream.settings);
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
        is_tunnel,
        protocol: Protocol::Http1,
    }
}
