//! HTTP/3 to backends: many concurrent requests over one QUIC connection ([`crate::multiplexed`]). All connections of a worker
//! share one UDP socket per address family; each socket has a task ([`socket`]).

mod engine;
mod liveness;
mod receiving;
mod socket;

use std::borrow::Cow;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use h2o_exchange::{TimedOut, Worker};
use h2o_quic::ClientTls;

use engine::Handshake;
pub(crate) use engine::Http3;
pub(crate) use socket::Sockets;

use crate::connect::resolve;
use crate::multiplexed::{Connection, StreamSettings};
use crate::{BackendHost, BackendUrl, Failure, UpstreamSettings};

/// Why no HTTP/3 connection to a backend could be opened.
#[derive(Debug)]
pub(crate) struct ConnectFailure {
    /// The reason, for the log.
    pub(crate) text: Cow<'static, str>,
    /// The address that the backend's name resolved to.
    pub(crate) address: Option<SocketAddr>,
}

impl ConnectFailure {
    fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            text: text.into(),
            address: None,
        }
    }
}

/// Whether a backend with this URL can be reached by HTTP/3: it needs TLS and an IP address.
pub(crate) fn is_possible(url: &BackendUrl) -> bool {
    url.scheme == h2o_http::Scheme::Https && !matches!(url.host, BackendHost::Unix(_))
}

/// Opens an HTTP/3 connection to a backend, within `limit`.
///
/// # Errors
/// [`ConnectFailure`]. Dropping the future also closes the connection.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    settings: &UpstreamSettings,
    url: &BackendUrl,
    backend: usize,
    limit: Duration,
) -> Result<Rc<Connection<Http3>>, ConnectFailure> {
    let mut address = None;
    let connecting = connect_to(worker, settings, url, backend, &mut address);
    let connected = worker.timeout(limit, connecting).await;
    connected
        .unwrap_or_else(|TimedOut| Err(ConnectFailure::new(Failure::CONNECT_TIMEOUT)))
        .map_err(|failure| ConnectFailure { address, ..failure })
}

async fn connect_to(
    worker: &Rc<Worker>,
    settings: &UpstreamSettings,
    url: &BackendUrl,
    backend: usize,
    found: &mut Option<SocketAddr>,
) -> Result<Rc<Connection<Http3>>, ConnectFailure> {
    let address = match &url.host {
        BackendHost::Unix(_) => {
            return Err(ConnectFailure::new(
                "a backend behind a Unix socket cannot speak HTTP/3",
            ));
        }
        BackendHost::Ip(address) => SocketAddr::new(*address, url.port),
        BackendHost::Name(name) => {
            let addresses = resolve(worker, name, url.port, settings.name_origin).await;
            let addresses = addresses.map_err(ConnectFailure::new)?;
            let address = addresses.first().copied();
            *found = address;
            address.ok_or_else(|| ConnectFailure::new("hostname does not exist"))?
        }
    };
    let (config, server_name) = (settings.tls.quic(url.tls_name())).map_err(ConnectFailure::new)?;
    let tls = ClientTls {
        config,
        server_name,
    };
    let sockets = worker.local::<Sockets>();
    let socket = (sockets.of(worker, address))
        .map_err(|error| ConnectFailure::new(h2o_log::reason(&error).to_string()))?;
    let streams = StreamSettings::new(settings);
    let connection = socket
        .connect(worker, backend, address, tls, streams, settings.http3_ecn)
        .map_err(|error| ConnectFailure::new(error.to_string()))?;
    // If this function's future is dropped, the connection is closed, because no request needs it.
    let attempt = ConnectAttempt(connection);
    poll_fn(|task| attempt.0.poll_connected(task))
        .await
        .map_err(ConnectFailure::new)?;
    Ok(Rc::clone(&attempt.0))
}

/// A connection that is being opened. Dropping this before a request can be begun closes it.
struct ConnectAttempt(Rc<Connection<Http3>>);

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        if state.engine.handshake == Handshake::Running || !state.engine.has_stream() {
            state.engine.engine.leave();
            state.wake_task();
        }
    }
}

impl Connection<Http3> {
    /// Ready when the handshake has ended, and the backend allows a request (RFC 9000 §4.6: it may allow none at first).
    fn poll_connected(&self, task: &Context<'_>) -> Poll<Result<(), String>> {
        let mut state = self.state.borrow_mut();
        match &state.engine.handshake {
            Handshake::Done if state.engine.has_stream() => Poll::Ready(Ok(())),
            Handshake::Done if state.is_over => Poll::Ready(Err(Failure::IO.to_owned())),
            Handshake::Running | Handshake::Done => {
                state.watch(task);
                Poll::Pending
            }
            Handshake::Failed(reason) => Poll::Ready(Err(reason.clone())),
        }
    }
}
