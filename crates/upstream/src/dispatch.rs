//! The protocol of each request, and the connection it takes.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use h2o_http::{BodyLength, Method};

use crate::connect::{Connected, connect};
use crate::http2::Connection;
use crate::pool::{Local, Pools};
use crate::protocol_choice::{ProtocolClass, Way};
use crate::ready_body::ReadyBody;
use crate::stream::UpstreamStream;
use crate::{Call, Failure, Protocol, Reply, Upstream, http1};

/// What is offered to servers that may choose.
const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Sends a request by the protocol whose turn it is.
pub(crate) async fn send(upstream: &Arc<Upstream>, mut call: Call<'_>) -> Result<Reply, Failure> {
    let local = call.worker.local::<Pools>().of(upstream);
    let body = ReadyBody::of(&mut call).await;
    if call.needs_http1 || !upstream.may_use_http2() {
        return http1::send(&local, &mut call, body).await;
    }
    match way(&local) {
        Way::Http1 => http1::send(&local, &mut call, body).await,
        Way::Http2 => match local.http2.pick() {
            Some(connection) => send_http2(&local, &connection, &mut call, body).await,
            None => Box::pin(send_over_new(&local, &mut call, body)).await,
        },
        // Connecting takes a large future, which most requests can do without.
        Way::New => Box::pin(send_over_new(&local, &mut call, body)).await,
    }
}

/// How the next request goes.
fn way(local: &Local) -> Way {
    let http1 = local.http1_load();
    let http2 = local.http2.load();
    match local.choice.next(local.upstream.settings.http2_ratio) {
        ProtocolClass::Http1 => Way::Http1,
        ProtocolClass::Http2 if http2.used < http2.most => Way::Http2,
        // HTTP/1 is what the backends speak, whatever the ratio says.
        ProtocolClass::Http2 if local.declines_http2.get() && http1.idle > 0 => Way::Http1,
        ProtocolClass::Http2 => Way::New,
        ProtocolClass::ServerDriven => Way::choose(http1, http2),
    }
}

/// Sends a request over a new connection, by the protocol that the server chooses.
async fn send_over_new(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    body: ReadyBody,
) -> Result<Reply, Failure> {
    let settings = &local.upstream.settings;
    if !local.declines_http2.get()
        && let Some(connection) = local.http2.join(settings.http2_max_streams).await
    {
        return send_http2(local, &connection, call, body).await;
    }
    let opening = local.http2.begin_opening();
    let connected = connect(call.worker, &local.upstream, BOTH).await?;
    let is_http2 = match (&connected.stream, connected.stream.alpn()) {
        (UpstreamStream::Plain(_), _) => settings.http2_force_cleartext,
        (UpstreamStream::Tls(_), Some(b"h2")) => true,
        (UpstreamStream::Tls(_), Some(b"http/1.1") | None) => false,
        (UpstreamStream::Tls(_), Some(_)) => {
            return Err(Failure::unsent("unknown alpn protocol"));
        }
    };
    local.declines_http2.set(!is_http2);
    if !is_http2 {
        drop(opening);
        return http1::send_new(local, call, connected, body).await;
    }
    let Connected {
        stream,
        backend,
        in_use,
    } = connected;
    let tls = stream.tls_info();
    let connection = local.http2.open(settings, backend, in_use, stream);
    if let Some(tls) = tls {
        connection.set_tls(tls);
    }
    // Whoever has waited runs when our request has been made.
    drop(opening);
    send_http2(local, &connection, call, body).await
}

async fn send_http2(
    local: &Local,
    connection: &Rc<Connection>,
    call: &mut Call<'_>,
    body: ReadyBody,
) -> Result<Reply, Failure> {
    let mut head = local.scratch.take_head();
    let url = &local.upstream.backends[connection.backend()].url;
    (call.build)(url, Protocol::Http2, &mut head);
    body.fit(&mut head);
    if head.method == Method::Connect && !head.upgrade().is_empty() {
        // Only SETTINGS tell whether the server takes it (RFC 8441 §3).
        poll_fn(|task| connection.poll_settings(task)).await;
    }
    let has_content = matches!(head.body, BodyLength::Unknown | BodyLength::Known(1..));
    let expects_continue = call.expects_continue && has_content;
    if expects_continue {
        let value = head.headers.store(b"100-continue");
        head.set_expect(value);
    }
    let headers = std::mem::take(&mut call.headers);
    let request = connection.request(&head, body.into_inner(), expects_continue, headers);
    local.scratch.put_head(head);
    let request = request?;
    if let Some(trace) = &call.trace {
        request.observe(trace);
    }
    request.response(&mut call.on_informational).await
}
