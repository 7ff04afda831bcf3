//! The protocol of each request, and the connection it takes.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use h2o_http::{BodyLength, Method};

use crate::balancer::InUse;
use crate::connect::{Connected, connect};
use crate::http2::Connection;
use crate::pool::{Local, Pools};
use crate::protocol_choice::{ProtocolClass, Way};
use crate::read_ahead::Buffering;
use crate::ready_body::ReadyBody;
use crate::repeat::{self, Aim, Link, Unanswered};
use crate::stream::UpstreamStream;
use crate::{Call, Failure, Protocol, Reply, Upstream, http1};

/// What is offered to servers that may choose.
pub(crate) const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Requests of a worker that the budget hears of at once: workers do not share what they write for each.
const PAID_AT_ONCE: u32 = 32;

/// Sends a request by the protocol whose turn it is.
pub(crate) async fn send(upstream: &Arc<Upstream>, mut call: Call<'_>) -> Result<Reply, Failure> {
    let local = call.worker.local::<Pools>().of(upstream);
    let body = ReadyBody::of(&mut call).await;
    let again = body.again(upstream.retry.is_some());
    if let Some((_, budget)) = &upstream.retry {
        local.unpaid.update(|unpaid| unpaid + 1);
        if local.unpaid.get() >= PAID_AT_ONCE {
            budget.pay_in(local.unpaid.take());
        }
    }
    let mut aim = Aim {
        chosen: local.choose(call.worker.clock.now()),
        ..Aim::default()
    };
    // Not a function of its own: everything would be there twice.
    aim.by_http1 = call.needs_http1 || !upstream.may_use_http2();
    let way = if aim.by_http1 {
        Way::Http1
    } else {
        way(&local, &aim)
    };
    let tried = match way {
        Way::Http1 => {
            aim.by_http1 = true;
            http1::send(&local, &mut call, body, &mut aim).await
        }
        Way::Http2 => match local.http2.pick(|backend| aim.suits(upstream, backend)) {
            Some(connection) => send_http2(&local, &connection, &mut call, body).await,
            None => Box::pin(send_over_new(&local, &mut call, body, &mut aim)).await,
        },
        // Connecting takes a large future, which most requests can do without.
        Way::New => Box::pin(send_over_new(&local, &mut call, body, &mut aim)).await,
    };
    judge(&local, &call, &tried);
    match tried {
        Ok(reply) => Ok(reply),
        Err(unanswered) => Box::pin(repeat::after(&local, &mut call, again, aim, unanswered)).await,
    }
}

/// What came of an attempt tells something of its backend.
pub(crate) fn judge(local: &Local, call: &Call<'_>, tried: &Result<Reply, Unanswered>) {
    if let Err(unanswered) = tried
        && let Some(backend) = unanswered.reported()
    {
        let failure = &unanswered.failure;
        let reason = failure.log.as_ref().unwrap_or(&failure.text);
        local.upstream.report_failure(backend, None, reason);
    }
    if let Some(health) = &local.upstream.health {
        let now = call.worker.clock.now();
        match tried {
            Ok(reply) => health.on_answer(reply.backend, now),
            Err(unanswered) => {
                if let Some(backend) = unanswered.blamed() {
                    health.on_failure(backend, &unanswered.failure.text, now);
                }
            }
        }
    }
}

/// Sends a request once more, by the same protocol if that was a choice: over no kept HTTP/1 connection, which may be closed as
/// well, and to a backend that was not tried, if there is one.
pub(crate) async fn send_again(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    body: ReadyBody,
    aim: &mut Aim,
) -> Result<Reply, Unanswered> {
    aim.chosen = (local.upstream).choose(&aim.tried, call.worker.clock.now());
    let tried = if aim.by_http1 {
        http1::send_fresh(local, call, body, aim).await
    } else {
        let suits = |backend| aim.suits(&local.upstream, backend);
        match local.http2.pick(suits) {
            Some(connection) => send_http2(local, &connection, call, body).await,
            None => send_over_new(local, call, body, aim).await,
        }
    };
    judge(local, call, &tried);
    tried
}

/// How the next request goes.
fn way(local: &Local, aim: &Aim) -> Way {
    let suits = |backend| aim.suits(&local.upstream, backend);
    let http1 = local.http1_load(suits);
    let http2 = local.http2.load(suits);
    let declines_http2 = local.declines_http2(aim.first()).get();
    match local.choice.next(local.upstream.settings.http2_ratio) {
        ProtocolClass::Http1 => Way::Http1,
        ProtocolClass::Http2 if http2.used < http2.most => Way::Http2,
        // HTTP/1 is what the backends speak, whatever the ratio says.
        ProtocolClass::Http2 if declines_http2 && http1.idle > 0 => Way::Http1,
        ProtocolClass::Http2 => Way::New,
        ProtocolClass::ServerDriven => Way::choose(http1, http2),
    }
}

/// Sends a request over a new connection, by the protocol that the server chooses.
async fn send_over_new(
    local: &Rc<Local>,
    call: &mut Call<'_>,
    body: ReadyBody,
    aim: &mut Aim,
) -> Result<Reply, Unanswered> {
    let settings = &local.upstream.settings;
    let suits = |backend| aim.suits(&local.upstream, backend);
    let (first, most) = (aim.first(), settings.http2_max_streams);
    if !local.declines_http2(first).get()
        && let Some(connection) = local.http2.join(first, most, suits).await
    {
        return send_http2(local, &connection, call, body).await;
    }
    let opening = local.http2.begin_opening(first);
    let connected = connect(call.worker, local, BOTH, aim).await?;
    let is_http2 = is_http2(&local.upstream, &connected.stream).inspect_err(|failure| {
        (local.upstream).report_failure(connected.backend, None, &failure.text);
    })?;
    local.declines_http2(connected.backend).set(!is_http2);
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
    let connection = local.http2.open(call.worker, settings, backend, stream);
    connection.set_upstream(Arc::downgrade(&local.upstream));
    if let Some(tls) = tls {
        connection.set_tls(tls);
    }
    // Whoever has waited runs when our request has been made.
    drop(opening);
    // The request counts instead.
    drop(in_use);
    send_http2(local, &connection, call, body).await
}

/// True if HTTP/2 is what the server chose of what it was offered.
///
/// # Errors
/// It was not offered that.
pub(crate) fn is_http2(upstream: &Upstream, stream: &UpstreamStream) -> Result<bool, Failure> {
    match (stream, stream.alpn()) {
        (UpstreamStream::Plain(_), _) => Ok(upstream.settings.http2_force_cleartext),
        (UpstreamStream::Tls(_), Some(b"h2")) => Ok(true),
        (UpstreamStream::Tls(_), Some(b"http/1.1") | None) => Ok(false),
        (UpstreamStream::Tls(_), Some(_)) => Err(Failure::unsent("unknown alpn protocol")),
    }
}

async fn send_http2(
    local: &Local,
    connection: &Rc<Connection>,
    call: &mut Call<'_>,
    body: ReadyBody,
) -> Result<Reply, Unanswered> {
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
    let is_idempotent = http1::is_idempotent(&head.method);
    let headers = std::mem::take(&mut call.headers);
    let request = connection.request(&head, body.into_inner(), expects_continue, headers);
    local.scratch.put_head(head);
    let response = match request {
        Ok(mut request) => {
            request.count(InUse::begin(&local.upstream, connection.backend()));
            if let Some(trace) = &call.trace {
                request.observe(trace);
            }
            let buffering = Buffering::of(call.worker, &local.upstream.settings);
            request
                .response(&mut call.on_informational, buffering)
                .await
        }
        Err(failure) => Err(failure),
    };
    match response {
        Ok(reply) => {
            connection.has_answered.set(true);
            Ok(reply)
        }
        Err(failure) => Err(Unanswered {
            failure,
            asked: Some(connection.backend()),
            link: if connection.has_answered.get() {
                Link::Shared
            } else {
                Link::New
            },
            is_idempotent,
        }),
    }
}
