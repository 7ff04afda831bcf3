//! One attempt to send a request: its backend, its connection and its content.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use h2o_exchange::Worker;

use crate::backend_choice::BackendChoice;
use crate::connect::{BOTH, Connected, connect, is_http2};
use crate::pool::Local;
use crate::protocol_choice::{ProtocolClass, Way};
use crate::ready_body::ReadyBody;
use crate::unanswered::{Reuse, Unanswered};
use crate::{Call, Failure, Reply, http1, http2};

/// An attempt to send a request. The next one, if there is one, is made of what this one has left.
pub(crate) struct Attempt {
    pub(crate) backends: BackendChoice,
    /// Whether it must be by HTTP/1, whatever the backend offers.
    pub(crate) by_http1: bool,
    pub(crate) body: ReadyBody,
}

/// A connection for an attempt.
pub(crate) enum Connection {
    Http1(Box<http1::Connection>, Reuse),
    Http2(Rc<http2::Connection>),
}

impl Attempt {
    /// A connection that is open already, by the protocol whose turn it is; `None` if a new one is to be opened.
    #[inline]
    pub(crate) fn take_open(&mut self, local: &Local, now: Instant) -> Option<Connection> {
        let way = if self.by_http1 {
            Way::Http1
        } else {
            self.way(local)
        };
        match way {
            Way::Http1 => {
                self.by_http1 = true;
                // A content that cannot be sent again is not risked on a connection that the backend may just have closed.
                let thoroughly = !self.body.can_resend();
                let backend = self.backends.reusable()?;
                let connection = local.http1.take(backend, now, thoroughly)?;
                Some(Connection::Http1(connection, Reuse::Idle))
            }
            Way::Http2 => self.pick_http2(local),
            Way::New => None,
        }
    }

    /// An HTTP/2 connection that is open already. Retries do not use idle HTTP/1 connections, which may be closed as well.
    pub(crate) fn pick_http2(&self, local: &Local) -> Option<Connection> {
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        let connection = (!self.by_http1).then(|| local.http2.pick(suits))?;
        connection.map(Connection::Http2)
    }

    /// The protocol of a request that may go by either.
    fn way(&self, local: &Local) -> Way {
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        let http1 = local.http1.load(suits);
        let http2 = local.http2.load(suits);
        let declines_http2 = local.declines_http2(self.backends.first()).get();
        match local.choice.next(local.upstream.settings.http2_ratio) {
            ProtocolClass::Http1 => Way::Http1,
            ProtocolClass::Http2 if http2.used < http2.most => Way::Http2,
            // HTTP/1 is what the backends speak, whatever the ratio says.
            ProtocolClass::Http2 if declines_http2 && http1.idle > 0 => Way::Http1,
            ProtocolClass::Http2 => Way::New,
            ProtocolClass::ServerDriven => Way::choose(http1, http2),
        }
    }

    /// Opens a connection to the backend, or to the next one if that fails.
    async fn open(&mut self, local: &Local, worker: &Rc<Worker>) -> Result<Connection, Failure> {
        let http1 = |connected: Connected| {
            let Connected {
                stream,
                backend,
                in_use,
            } = connected;
            let connection = local.http1.open(worker, backend, stream, in_use);
            Connection::Http1(connection, Reuse::New)
        };
        if self.by_http1 {
            return connect(worker, local, &[], &mut self.backends)
                .await
                .map(http1);
        }
        let settings = &local.upstream.settings;
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        let (first, most) = (self.backends.first(), settings.http2_max_streams);
        if !local.declines_http2(first).get()
            && let Some(connection) = local.http2.join(first, most, suits).await
        {
            return Ok(Connection::Http2(connection));
        }
        // Requests that wait for the connection are woken when this is dropped, and run after ours has been made.
        let _opening = local.http2.begin_opening(first);
        let connected = connect(worker, local, BOTH, &mut self.backends).await?;
        let is_http2 = is_http2(&local.upstream, &connected.stream).inspect_err(|failure| {
            (local.upstream).report_failure(connected.backend, None, &failure.text);
        })?;
        local.declines_http2(connected.backend).set(!is_http2);
        if !is_http2 {
            return Ok(http1(connected));
        }
        // The connection is not counted as a request: `in_use` is dropped, and the request counts itself.
        let Connected {
            stream, backend, ..
        } = connected;
        let tls = stream.tls_info();
        let connection = local.http2.open(worker, settings, backend, stream);
        connection.set_upstream(Arc::downgrade(&local.upstream));
        if let Some(tls) = tls {
            connection.set_tls(tls);
        }
        Ok(Connection::Http2(connection))
    }

    /// Sends the request over `connection`, or a new one, and records what the result tells about the backend.
    pub(crate) async fn send(
        &mut self,
        local: &Local,
        call: &mut Call<'_>,
        connection: Option<Connection>,
    ) -> Result<Reply, Unanswered> {
        let connection = match connection {
            Some(connection) => connection,
            // Boxed: connecting takes a large future, which most requests can do without.
            None => match Box::pin(self.open(local, call.worker)).await {
                Ok(connection) => connection,
                // A failure to connect is logged and counted already.
                Err(failure) => return Err(failure.into()),
            },
        };
        let body = &self.body;
        let result = match connection {
            Connection::Http1(connection, reuse) => {
                http1::send(&local.http1, call, connection, body, reuse).await
            }
            Connection::Http2(connection) => {
                http2::send(&local.upstream, &local.scratch, &connection, call, body).await
            }
        };
        record_result(local, call, &result);
        result
    }
}

/// Feeds the result of an attempt to the error log and the passive health checks.
fn record_result(local: &Local, call: &Call<'_>, result: &Result<Reply, Unanswered>) {
    if let Err(unanswered) = result
        && let Some(backend) = unanswered.reported()
    {
        let failure = &unanswered.failure;
        let reason = failure.log.as_ref().unwrap_or(&failure.text);
        local.upstream.report_failure(backend, None, reason);
    }
    if let Some(health) = &local.upstream.health {
        let now = call.worker.clock.now();
        match result {
            Ok(reply) => health.on_answer(reply.backend, now),
            Err(unanswered) => {
                if let Some(backend) = unanswered.blamed() {
                    health.on_failure(backend, &unanswered.failure.text, now);
                }
            }
        }
    }
}
