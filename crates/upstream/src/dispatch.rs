//! Sends a request to a backend, and retries it.
//!
//! If connecting fails, the next backend is connected to, as in H2O; [`connect`](mod@crate::connect) does that. In addition, an
//! idempotent request is retried if it was sent over an idle HTTP/1 connection that the backend closed before sending anything
//! (RFC 9112 §9.3.1). `proxy.retry` allows more retries, as far as they are safe and within the retry budget.

use std::rc::Rc;
use std::sync::Arc;

use h2o_exchange::Counter;

use crate::attempt::Attempt;
use crate::backend_choice::BackendChoice;
use crate::pool::{LocalState, LocalStates};
use crate::ready_body::ReadyBody;
use crate::unanswered::{Reuse, Unanswered};
use crate::{Call, Failure, Reply, Upstream};

/// A worker reports requests to the shared retry budget in batches of this size, to avoid an atomic write per request.
const BUDGET_BATCH: u32 = 32;
/// Limit of the streams that backends may refuse for one request because they close HTTP/2 or HTTP/3 connections, in addition to
/// the request's retries.
const MAX_REFUSALS: u32 = 8;

impl Upstream {
    /// Sends a request and waits for the head of the response. Must be called where tasks of the call's worker can be
    /// [spawned](h2o_exchange::Worker::spawn).
    ///
    /// Dropping the future, or later the body of the reply, closes the connection.
    ///
    /// # Errors
    /// [`Failure`] if no response arrives.
    pub fn send(self: &Arc<Self>, call: Call<'_>) -> impl Future<Output = Result<Reply, Failure>> {
        // A plain function instead of an `async fn`, which would move the `Call` once more.
        send(self, call)
    }
}

async fn send(upstream: &Arc<Upstream>, mut call: Call<'_>) -> Result<Reply, Failure> {
    let local = call.worker.local::<LocalStates>().of(upstream);
    let body = ReadyBody::of(&mut call).await;
    if let Some((_, budget)) = &upstream.retry {
        local.unreported.update(|unreported| unreported + 1);
        if local.unreported.get() >= BUDGET_BATCH {
            budget.earn(local.unreported.take());
        }
    }
    let now = call.worker.clock.now();
    let mut attempt = Attempt {
        backends: BackendChoice::new(local.choose(now)),
        by_http1: call.needs_http1,
        by_http3: false,
        body,
    };
    let open = attempt.take_open(&local, now);
    match attempt.send(&local, &mut call, open).await {
        Ok(reply) => Ok(reply),
        Err(unanswered) => Box::pin(retry(&local, &mut call, attempt, unanswered)).await,
    }
}

/// Retries a request that got no response, if that is safe and within the budget.
async fn retry(
    local: &Rc<LocalState>,
    call: &mut Call<'_>,
    mut attempt: Attempt,
    mut unanswered: Unanswered,
) -> Result<Reply, Failure> {
    let upstream = &local.upstream;
    let is_free = unanswered.hit_closed_connection() && attempt.body.rewind();
    let Some((retry, budget)) = &upstream.retry else {
        if !is_free {
            return Err(unanswered.failure);
        }
        // The request is sent over a new connection of the same protocol.
        let reuse = unanswered.reuse;
        let mut attempt = Attempt {
            backends: BackendChoice::default(),
            by_http1: reuse == Reuse::Idle,
            by_http3: reuse == Reuse::Lost || reuse == Reuse::Shared && attempt.by_http3,
            body: attempt.body,
        };
        if reuse != Reuse::Idle {
            (attempt.backends).choose_again(upstream, call.worker.clock.now());
        }
        call.worker.counters.count(Counter::Retries);
        let result = attempt.send(local, call, None).await;
        return result.map_err(|unanswered| unanswered.failure);
    };
    let mut retries = retry.attempts + u32::from(is_free);
    for number in 0..retry.attempts + MAX_REFUSALS {
        let counts = !unanswered.hit_closing_connection();
        let may_retry =
            (retries > 0 || !counts) && unanswered.is_safe(&attempt.backends, &attempt.body);
        let is_paid = || {
            budget.earn(local.unreported.take());
            budget.take(call.worker.clock.now())
        };
        let is_free = is_free && number == 0;
        if !may_retry || !(is_free || is_paid()) {
            break;
        }
        // The next attempt prefers another backend, if there is one, and keeps the protocol.
        attempt
            .backends
            .prefer_another(unanswered.backend, upstream);
        (attempt.backends).choose_again(upstream, call.worker.clock.now());
        let open = attempt.pick_shared(local);
        call.worker.counters.count(Counter::Retries);
        match attempt.send(local, call, open).await {
            Ok(reply) => return Ok(reply),
            Err(failed) => unanswered = failed,
        }
        retries -= u32::from(counts);
    }
    Err(unanswered.failure)
}
