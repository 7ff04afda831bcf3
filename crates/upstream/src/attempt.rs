//! One attempt to send a request: its backend, its connection and its body.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2o_exchange::Worker;

use crate::backend_choice::BackendChoice;
use crate::balancer::InUse;
use crate::connect::{BOTH, NewConnection, connect, is_http2};
use crate::http2::Http2;
use crate::http3::Http3;
use crate::pool::LocalState;
use crate::protocol_choice::{ConnectionChoice, ProtocolClass};
use crate::ready_body::ReadyBody;
use crate::unanswered::{Reuse, Unanswered};
use crate::{Call, Failure, Reply, fastcgi, http1, http2, http3, multiplexed};

/// Limit of the time that a request waits for an HTTP/3 connection to open before it uses another protocol. If half of
/// `proxy.timeout.connect` is shorter, that is the limit.
const HTTP3_LIMIT: Duration = Duration::from_secs(2);

/// One attempt to send a request. A retry takes over the body and, with `proxy.retry`, the record of which backends were tried.
pub(crate) struct Attempt {
    pub(crate) backends: BackendChoice,
    /// Whether this attempt must use HTTP/1, whatever the backend supports.
    pub(crate) by_http1: bool,
    /// Whether this attempt is to use HTTP/3, if an HTTP/3 connection is open or can be opened.
    pub(crate) by_http3: bool,
    pub(crate) body: ReadyBody,
}

/// The connection that a request is sent over.
pub(crate) enum Connection {
    Http1(Box<http1::Connection>, Reuse),
    Http2(Rc<multiplexed::Connection<Http2>>),
    Http3(Rc<multiplexed::Connection<Http3>>),
    Fastcgi(Box<fastcgi::Connection>, Reuse),
}

impl Attempt {
    /// Takes an open connection of the protocol that this request is to use; `None` if a new connection must be opened.
    #[inline]
    pub(crate) fn take_open(&mut self, local: &LocalState, now: Instant) -> Option<Connection> {
        if local.upstream.settings.fastcgi.is_some() {
            let backend = self.backends.reusable()?;
            let connection = local.fastcgi.take(backend, now, |connection| {
                connection.check(!self.body.is_whole())
            })?;
            return Some(Connection::Fastcgi(connection, Reuse::Idle));
        }
        let connection_choice = if self.by_http1 {
            ConnectionChoice::Http1
        } else {
            self.connection_choice(local, now)
        };
        match connection_choice {
            ConnectionChoice::Http1 => {
                self.by_http1 = true;
                // A streamed body, which can hardly be sent again, must not be lost on a connection that the backend has just
                // closed, so ask the kernel.
                let thoroughly = !self.body.is_whole();
                let backend = self.backends.reusable()?;
                let connection = local.http1.take(backend, now, thoroughly)?;
                Some(Connection::Http1(connection, Reuse::Idle))
            }
            ConnectionChoice::Http2 | ConnectionChoice::Http3 => self.pick_shared(local),
            ConnectionChoice::New => None,
        }
    }

    /// Picks an open HTTP/2 or HTTP/3 connection for the request. Retries do not use idle HTTP/1 connections: the backend may have
    /// closed those as well.
    pub(crate) fn pick_shared(&self, local: &LocalState) -> Option<Connection> {
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        if self.by_http3 {
            return local.http3.pick(suits).map(Connection::Http3);
        }
        let connection = (!self.by_http1).then(|| local.http2.pick(suits))?;
        connection.map(Connection::Http2)
    }

    /// Decides whether a request that may use several protocols uses an open connection, and of which protocol, or a new one.
    fn connection_choice(&mut self, local: &LocalState, now: Instant) -> ConnectionChoice {
        let settings = &local.upstream.settings;
        let class = local
            .choice
            .next(settings.http2_ratio, settings.http3_ratio);
        if class == ProtocolClass::Http3 && local.may_use_http3(self.backends.first(), now) {
            self.by_http3 = true;
            return ConnectionChoice::Http3;
        }
        if !local.upstream.may_use_http2() {
            return ConnectionChoice::Http1;
        }
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        let http1 = local.http1.load(suits);
        let http2 = local.http2.load(suits);
        let declines_http2 = local.declines_http2(self.backends.first()).get();
        match class {
            ProtocolClass::Http1 => ConnectionChoice::Http1,
            ProtocolClass::Http2 if http2.used < http2.most => ConnectionChoice::Http2,
            // The backend is known to speak HTTP/1 only: use HTTP/1 although the configured ratio chose HTTP/2.
            ProtocolClass::Http2 if declines_http2 && http1.idle > 0 => ConnectionChoice::Http1,
            ProtocolClass::Http2 => ConnectionChoice::New,
            // No HTTP/3 connection can be used: choose between HTTP/1 and HTTP/2 as if no share of requests were
            // configured for HTTP/3.
            ProtocolClass::Http3 | ProtocolClass::ServerDriven => {
                ConnectionChoice::choose(http1, http2)
            }
        }
    }

    /// Waits for an HTTP/3 connection that another request is opening, or opens one. `None` if both fail: the request
    /// then uses another protocol.
    async fn open_http3(
        &mut self,
        local: &Rc<LocalState>,
        worker: &Rc<Worker>,
        limit: Duration,
    ) -> Option<Connection> {
        let backend = self.backends.first();
        // The load balancer counts the request while it waits; once it has a connection, it is counted there.
        let _in_use = InUse::begin(&local.upstream, backend);
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        let most = local.upstream.settings.http2_max_streams as usize;
        let mut connection = local.http3.join(backend, most, suits).await;
        if connection.is_none() && local.may_open_http3(backend, worker.clock.now()) {
            connection = open_http3(local, worker, backend, limit).await;
        }
        let connection = connection?;
        // Marks the backend as tried for this request, and starts the health probe if one is due.
        self.backends.next(&local.upstream, worker.clock.now());
        Some(Connection::Http3(connection))
    }

    /// Opens a connection to the backend, or to the next one if connecting fails.
    async fn open(
        &mut self,
        local: &Rc<LocalState>,
        worker: &Rc<Worker>,
    ) -> Result<Connection, Failure> {
        let settings = &local.upstream.settings;
        let mut limit = settings.connect_timeout;
        if settings.fastcgi.is_some() {
            let connected = connect(worker, local, &[], limit, &mut self.backends).await?;
            let connection = Box::new(fastcgi::Connection::new(connected, worker));
            return Ok(Connection::Fastcgi(connection, Reuse::New));
        }
        if self.by_http3 {
            let began = worker.clock.now();
            if let Some(connection) = self.open_http3(local, worker, limit).await {
                return Ok(connection);
            }
            self.by_http3 = false;
            self.by_http1 = !local.upstream.may_use_http2();
            let spent = worker.clock.now().saturating_duration_since(began);
            limit = limit.saturating_sub(spent);
        }
        let http1 = |connected: NewConnection| {
            let NewConnection {
                stream,
                backend,
                in_use,
            } = connected;
            let connection = local.http1.open(worker, backend, stream, in_use);
            Connection::Http1(connection, Reuse::New)
        };
        if self.by_http1 {
            return connect(worker, local, &[], limit, &mut self.backends)
                .await
                .map(http1);
        }
        let suits = |backend| self.backends.suits(&local.upstream, backend);
        let (first, most) = (self.backends.first(), settings.http2_max_streams as usize);
        let in_use = InUse::begin(&local.upstream, first);
        if !local.declines_http2(first).get()
            && let Some(connection) = local.http2.join(first, most, suits).await
        {
            return Ok(Connection::Http2(connection));
        }
        drop(in_use);
        // Marks an HTTP/2 connection as being opened. The mark is removed once other requests can use the connection, or when this
        // function ends without one; requests that wait for the connection are woken then. Their tasks run after this one, which
        // begins its own request first.
        let mut opening = local.http2.begin_opening(first);
        let connected = connect(worker, local, BOTH, limit, &mut self.backends).await?;
        let is_http2 = is_http2(&local.upstream, &connected.stream).inspect_err(|failure| {
            (local.upstream).report_failure(connected.backend, None, &failure.text);
        })?;
        local.declines_http2(connected.backend).set(!is_http2);
        if !is_http2 {
            return Ok(http1(connected));
        }
        if connected.backend != first {
            opening = local.http2.begin_opening(connected.backend);
        }
        // Drops the guard `in_use`, which counted a connection while it was being opened: the request itself is counted
        // from here on.
        let NewConnection {
            stream, backend, ..
        } = connected;
        let tls = stream.tls_info();
        let scratch = &local.http2_scratch;
        let connection = http2::open(worker, settings, backend, stream, scratch);
        (local.http2).add(worker, &connection, opening, settings.connect_timeout);
        connection.set_upstream(Arc::downgrade(&local.upstream));
        if let Some(tls) = tls {
            connection.set_tls(tls);
        }
        Ok(Connection::Http2(connection))
    }

    /// Sends the request over `connection` or a new one, and records the result for health checks and error log.
    pub(crate) async fn send(
        &mut self,
        local: &Rc<LocalState>,
        call: &mut Call<'_>,
        connection: Option<Connection>,
    ) -> Result<Reply, Unanswered> {
        let connection = match connection {
            Some(connection) => connection,
            // Boxed: connecting needs a large future, and most requests do not connect.
            None => match Box::pin(self.open(local, call.worker)).await {
                Ok(connection) => connection,
                // The failure to connect was already logged and counted.
                Err(failure) => return Err(failure.into()),
            },
        };
        let body = &self.body;
        let result = match connection {
            Connection::Http1(connection, reuse) => {
                http1::send(&local.http1, call, connection, body, reuse).await
            }
            Connection::Http2(connection) => {
                multiplexed::send(&local.upstream, &local.scratch, &connection, call, body).await
            }
            Connection::Http3(connection) => {
                multiplexed::send(&local.upstream, &local.scratch, &connection, call, body).await
            }
            Connection::Fastcgi(connection, reuse) => {
                fastcgi::send(local, call, connection, body, reuse).await
            }
        };
        record_result(local, call, &result);
        result
    }
}

/// Opens an HTTP/3 connection to a backend. If the last attempt failed, the connection is opened in the background, and the
/// request uses another protocol.
async fn open_http3(
    local: &Rc<LocalState>,
    worker: &Rc<Worker>,
    backend: usize,
    limit: Duration,
) -> Option<Rc<multiplexed::Connection<Http3>>> {
    if !local.http3_memory(backend).get().has_failed() {
        return connect_http3(local, worker, backend, limit).await;
    }
    let now = worker.clock.now();
    (local.http3_memory(backend)).update(|memory| memory.begin_attempt(now));
    let (local, own) = (Rc::clone(local), Rc::clone(worker));
    worker.spawn(async move { connect_http3(&local, &own, backend, limit).await });
    None
}

/// Opens an HTTP/3 connection to a backend, and records whether that succeeded.
async fn connect_http3(
    local: &LocalState,
    worker: &Rc<Worker>,
    backend: usize,
    limit: Duration,
) -> Option<Rc<multiplexed::Connection<Http3>>> {
    let upstream = &local.upstream;
    let memory = local.http3_memory(backend);
    let url = &upstream.backends[backend].url;
    let _in_use = InUse::begin(upstream, backend);
    // Marks an HTTP/3 connection as being opened. The mark is removed when this function ends; requests that wait for the
    // connection are woken then.
    let opening = local.http3.begin_opening(backend);
    let limit = (limit / 2).min(HTTP3_LIMIT);
    let connected = http3::connect(worker, &upstream.settings, url, backend, limit).await;
    match connected {
        Ok(connection) => {
            memory.take();
            connection.set_upstream(Arc::downgrade(upstream));
            local.http3.add(worker, &connection, opening, limit);
            Some(connection)
        }
        Err(failure) => {
            let now = worker.clock.now();
            memory.update(|memory| memory.fail(now));
            let text = format!(
                "no HTTP/3 connection could be opened; HTTP/3 is not tried again for {} seconds: {}",
                memory.get().pause(now).as_secs(),
                failure.text
            );
            upstream.report_failure(backend, failure.address, &text);
            None
        }
    }
}

/// Reports the result of an attempt to the error log and the passive health checks.
fn record_result(local: &LocalState, call: &Call<'_>, result: &Result<Reply, Unanswered>) {
    if let Err(unanswered) = result
        && let Some(backend) = unanswered.backend_to_report()
    {
        let failure = &unanswered.failure;
        let reason = failure.log.as_ref().unwrap_or(&failure.text);
        local.upstream.report_failure(backend, None, reason);
    }
    if let Some(health) = &local.upstream.health {
        let now = call.worker.clock.now();
        match result {
            Ok(reply) => health.on_response(reply.backend, now),
            Err(unanswered) => {
                if let Some(backend) = unanswered.backend_at_fault() {
                    health.on_failure(backend, &unanswered.failure.text, now);
                }
            }
        }
    }
}
