//! Requests over HTTP/1.
//!
//! A request normally costs one write, one read, and no system call to see whether the connection is still there: the runtime
//! has been told if it is not. Buffers are the worker's ([`crate::pool::Scratch`]); a connection holds octets only while a head
//! is incomplete or the socket does not take more.

mod body;
mod exchange;
mod upload;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{Body, BodyPipe, RequestBody};
use h2o_http::{BodyLength, Known, Method};
use h2o_http1::{Awaited, ClientConnection, ClientRequest, ClientResponse};

use body::ContentSource;
use exchange::{Arrived, Exchange, Rest};
use upload::{Content, Hold, Upload};

use crate::balancer::InUse;
use crate::connect::{Connected, connect};
use crate::deadline::Deadline;
use crate::pool::{Local, Pools};
use crate::stream::UpstreamStream;
use crate::{Call, Failure, Protocol, Reply, Upstream, proxy_protocol};

/// A connection to a backend that speaks HTTP/1.
pub(crate) struct Connection {
    pub(crate) stream: UpstreamStream,
    engine: ClientConnection,
    /// Index of the backend.
    backend: usize,
    in_use: Option<InUse>,
    deadline: Deadline,
}

/// Sends a request over an idle connection, or a new one.
pub(crate) async fn send(upstream: &Arc<Upstream>, mut call: Call<'_>) -> Result<Reply, Failure> {
    let local = call.worker.local::<Pools>().of(upstream);
    let body = AtHand::of(&mut call).await?;
    // What cannot be sent again is not risked on a connection that the backend may just have closed.
    let again = body.again();
    let idle = local.take(call.worker.clock.now(), again.is_none());
    let is_reused = idle.is_some();
    let connection = match idle {
        Some(connection) => connection,
        None => open(&local, &call).await?,
    };
    match (exchange(&local, &mut call, connection, body).await, again) {
        // The backend closed the connection while the request was on its way, and may be asked again (RFC 9112 §9.3.1). H2O does
        // not; here it is done once, on a new connection.
        (Err(failed), Some(body)) if is_reused && failed.may_repeat => {
            let connection = open(&local, &call).await?;
            let tried = exchange(&local, &mut call, connection, body).await;
            tried.map_err(|unanswered| unanswered.failure)
        }
        (tried, _) => tried.map_err(|unanswered| unanswered.failure),
    }
}

/// A request that got no response.
struct Unanswered {
    failure: Failure,
    /// The backend has said nothing, and the method is idempotent.
    may_repeat: bool,
}

/// The content of a request when it is sent.
struct AtHand {
    content: Content,
    /// Its length, if all of it was there.
    complete: Option<u64>,
}

impl AtHand {
    /// Waits for the first piece of a streamed body. If that is all of it, the body is not streamed any more (H2O compatibility).
    async fn of(call: &mut Call<'_>) -> Result<Self, Failure> {
        let body = match std::mem::take(&mut call.body) {
            RequestBody::Stream(pipe) if call.waits_for_content => {
                return poll_fn(|context| Self::poll_first(&pipe, context)).await;
            }
            body => body,
        };
        Ok(Self {
            content: Content::new(body),
            complete: None,
        })
    }

    fn poll_first(pipe: &Rc<BodyPipe>, context: &mut Context<'_>) -> Poll<Result<Self, Failure>> {
        // At most what a pipe holds: nobody fills it meanwhile.
        let mut first = Bytes::new();
        let is_complete = loop {
            match pipe.poll_next(context) {
                Poll::Ready(Some(Ok(piece))) if first.is_empty() => first = piece,
                Poll::Ready(Some(Ok(piece))) => first = [first, piece].concat().into(),
                Poll::Ready(Some(Err(_))) => {
                    return Poll::Ready(Err(Failure::unsent(Failure::IO)));
                }
                Poll::Ready(None) => break true,
                Poll::Pending if first.is_empty() => return Poll::Pending,
                Poll::Pending => break false,
            }
        };
        Poll::Ready(Ok(if is_complete {
            Self {
                complete: Some(first.len() as u64),
                content: Content::Bytes(first),
            }
        } else {
            Self {
                content: Content::Stream {
                    first,
                    pipe: Rc::clone(pipe),
                },
                complete: None,
            }
        }))
    }

    /// The same once more; `None` if not all of it is kept.
    fn again(&self) -> Option<Self> {
        self.content.again().map(|content| Self {
            content,
            complete: self.complete,
        })
    }
}

async fn open(local: &Local, call: &Call<'_>) -> Result<Box<Connection>, Failure> {
    let Connected {
        stream,
        backend,
        in_use,
    } = connect(call.worker, &local.upstream, &[]).await?;
    Ok(Box::new(Connection {
        stream,
        engine: ClientConnection::new(Arc::clone(&local.scratch.engine)),
        backend,
        in_use,
        deadline: Deadline::new(call.worker),
    }))
}

async fn exchange(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    mut connection: Box<Connection>,
    body: AtHand,
) -> Result<Reply, Unanswered> {
    if connection.in_use.is_none() {
        connection.in_use = InUse::begin(&local.upstream, connection.backend);
    }
    let (upload, is_idempotent) = begin(local, call, &mut connection, body);
    let worker = Rc::clone(call.worker);
    let mut exchange = Exchange::new(connection, upload, Rc::clone(local), worker);
    let mut response = ClientResponse::new();
    response.headers = std::mem::take(&mut call.headers);
    let tell = &mut call.on_informational;
    let arrived = poll_fn(|context| exchange.poll_head(context, &mut response, tell)).await;
    match arrived {
        Ok(arrived) => Ok(reply(exchange, response, arrived)),
        Err(failed) => Err(Unanswered {
            failure: failed.failure,
            may_repeat: failed.is_silent && is_idempotent,
        }),
    }
}

/// Encodes the request. True if its method is idempotent (RFC 9110 §9.2.2).
fn begin(
    local: &Local,
    call: &mut Call<'_>,
    connection: &mut Connection,
    body: AtHand,
) -> (Upload, bool) {
    let (scratch, settings) = (&local.scratch, &local.upstream.settings);
    let mut head = scratch.take_head();
    let url = &local.upstream.backends[connection.backend].url;
    (call.build)(url, Protocol::Http1, &mut head);
    if let (BodyLength::Unknown, Some(length)) = (head.body, body.complete) {
        head.body = BodyLength::Known(length);
    }
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
    let is_idempotent = is_idempotent(&head.method);
    scratch.put_head(head);
    let upload = Upload::new(body.content, hold, &mut connection.engine, out);
    (upload, is_idempotent)
}

fn is_idempotent(method: &Method) -> bool {
    match method {
        Method::Get
        | Method::Head
        | Method::Put
        | Method::Delete
        | Method::Options
        | Method::Trace => true,
        Method::Post
        | Method::Connect
        | Method::Patch
        | Method::ConnectUdp
        | Method::Other(_) => false,
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
        rest => Body::Stream(Box::new(ContentSource::new(
            exchange,
            arrived.content,
            rest,
        ))),
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
