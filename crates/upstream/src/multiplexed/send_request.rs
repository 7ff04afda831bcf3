//! Sends a request over an HTTP/2 or HTTP/3 connection.

use std::future::poll_fn;
use std::rc::Rc;

use h2o_http::{BodyLength, Method};

use super::Connection;
use super::engine::Engine;
use crate::balancer::InUse;
use crate::local_upstream::LocalUpstream;
use crate::read_ahead::Buffering;
use crate::ready_body::ReadyBody;
use crate::scratch::Scratch;
use crate::unanswered::{Reuse, Unanswered, is_idempotent};
use crate::{Call, Reply};

/// Sends a request over a connection and waits for the head of the response.
pub(crate) async fn send<E: Engine>(
    upstream: &LocalUpstream,
    scratch: &Scratch,
    connection: &Rc<Connection<E>>,
    call: &mut Call<'_>,
    body: &ReadyBody,
) -> Result<Reply, Unanswered> {
    let mut head = scratch.take_head();
    let url = &upstream.backends[connection.backend()].url;
    (call.build)(url, E::PROTOCOL, &mut head);
    body.set_length(&mut head);
    if head.method == Method::Connect && !head.upgrade().is_empty() {
        // The backend's SETTINGS say whether it accepts extended CONNECT (RFC 8441 §3, RFC 9220 §3).
        poll_fn(|task| connection.poll_settings(task)).await;
    }
    let has_content = matches!(head.body, BodyLength::Unknown | BodyLength::Known(1..));
    let expects_continue = call.expects_continue && has_content;
    if expects_continue {
        let value = head.headers.store(b"100-continue");
        head.set_expect(value);
    }
    let is_idempotent = is_idempotent(&head.method);
    let headers = std::mem::take(&mut call.headers);
    let request = connection.request(&head, body.to_send(), expects_continue, headers);
    scratch.put_head(head);
    let response = match request {
        Ok(mut request) => {
            request.count(InUse::begin(upstream, connection.backend()));
            if let Some(trace) = &call.trace {
                request.observe(trace);
            }
            if call.ends_with_upload {
                request.end_with_upload();
            }
            let buffering = Buffering::of(call.worker, &upstream.settings);
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
            backend: Some(connection.backend()),
            reuse: match (connection.has_answered.get(), connection.is_lost.get()) {
                (true, false) => Reuse::Shared,
                (true, true) => Reuse::Lost,
                (false, _) => Reuse::New,
            },
            is_idempotent,
        }),
    }
}
