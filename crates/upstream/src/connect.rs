//! Opens connections to backends.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use h2o_exchange::{Descriptor, TimedOut, Worker};
use h2o_http::Scheme;
use h2o_tls::{OutputBuffer, handshake_text};

use crate::backend_choice::BackendChoice;
use crate::balancer::InUse;
use crate::failure::FailureCause;
use crate::plain_stream::PlainStream;
use crate::pool::LocalState;
use crate::stream::UpstreamStream;
use crate::tls_stream::{TlsScratch, TlsStream};
use crate::{BackendHost, BackendUrl, Failure, NameOrigin, Resolver, Upstream, connect_error_text};

/// A newly established connection to a backend.
pub(crate) struct NewConnection {
    pub(crate) stream: UpstreamStream,
    /// The index of the backend.
    pub(crate) backend: usize,
    pub(crate) in_use: Option<InUse>,
}

/// Connects to the chosen backend; if that fails, to the others in turn. H2O compatibility: as in H2O, no other backend is tried
/// after a failed TLS handshake. `alpn` is offered to `https` backends; `limit` is the rest of `proxy.timeout.connect`.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    local: &LocalState,
    alpn: &[&[u8]],
    limit: Duration,
    backends: &mut BackendChoice,
) -> Result<NewConnection, Failure> {
    let mut trying = ConnectAttempt::default();
    let connecting = connect_any(worker, local, alpn, backends, &mut trying);
    match worker.timeout(limit, connecting).await {
        Ok(connected) => connected,
        Err(TimedOut) => {
            let failure = Failure::unsent(Failure::CONNECT_TIMEOUT);
            trying.fail(worker, local, &failure);
            Err(failure)
        }
    }
}

/// The backend that is being connected to.
#[derive(Default)]
struct ConnectAttempt {
    /// The index of the backend; `None` before the first attempt.
    backend: Option<usize>,
    findings: ConnectDetails,
}

/// Details of one attempt to connect, for the error log.
#[derive(Default)]
pub(crate) struct ConnectDetails {
    /// The address that the backend's name resolved to.
    address: Option<SocketAddr>,
    /// The error of the operating system, if the message for the client does not name it.
    error: Option<io::Error>,
}

impl ConnectAttempt {
    /// Logs a failure to connect, and counts it for health checks.
    fn fail(&mut self, worker: &Worker, local: &LocalState, failure: &Failure) {
        let Some(backend) = self.backend.take() else {
            return;
        };
        let ConnectDetails { address, error } = std::mem::take(&mut self.findings);
        let reason = match error {
            Some(error) => format!("{} ({})", failure.text, h2o_log::reason(&error)),
            None => failure.text.to_string(),
        };
        local.upstream.report_failure(backend, address, &reason);
        local.on_unreachable(backend, failure, worker.clock.now());
    }
}

/// Connects to one backend after another; `trying` is set to the current one.
async fn connect_any(
    worker: &Rc<Worker>,
    local: &LocalState,
    alpn: &[&[u8]],
    backends: &mut BackendChoice,
    trying: &mut ConnectAttempt,
) -> Result<NewConnection, Failure> {
    let upstream = &local.upstream;
    let Some(descriptor) = descriptor(worker, local) else {
        return Err(Failure::unsent(
            "no file descriptor is left for a connection to a backend (RLIMIT_NOFILE)",
        )
        .with_cause(FailureCause::NoDescriptor));
    };
    let mut last = Failure::unsent("connection failure");
    while let Some(backend) = backends.next(upstream, worker.clock.now()) {
        *trying = ConnectAttempt {
            backend: Some(backend),
            findings: ConnectDetails::default(),
        };
        let opening = local.begin_opening(backend, worker.clock.now());
        let in_use = InUse::begin(upstream, backend);
        let url = &upstream.backends[backend].url;
        let connected = connect_to(worker, upstream, url, &mut trying.findings).await;
        let failure = match connected {
            Err(text) => Failure::unsent(text),
            Ok(socket) => match secure(
                upstream,
                url,
                alpn,
                socket.counted(descriptor),
                &local.tls_scratch,
            )
            .await
            {
                Err(failure) => {
                    trying.fail(worker, local, &failure);
                    return Err(failure);
                }
                Ok(stream) => {
                    opening.on_established(worker.clock.now());
                    return Ok(NewConnection {
                        stream,
                        backend,
                        in_use,
                    });
                }
            },
        };
        trying.fail(worker, local, &failure);
        last = failure;
    }
    Err(last)
}

/// Reserves a file descriptor for a new connection. If none is free, closes idle connections.
fn descriptor(worker: &Worker, local: &LocalState) -> Option<Descriptor> {
    let descriptors = &worker.shared.descriptors;
    descriptors.open().or_else(|| {
        local.close_idle();
        descriptors.open()
    })
}

/// Resolves the host of a backend, and opens a socket to it. If requests are retried (`proxy.retry`), the other addresses of its name are
/// tried after one to which no connection can be opened.
///
/// # Errors
/// The message for the client and the log.
pub(crate) async fn connect_to(
    worker: &Worker,
    upstream: &Upstream,
    url: &BackendUrl,
    findings: &mut ConnectDetails,
) -> Result<PlainStream, &'static str> {
    let addresses = match &url.host {
        BackendHost::Unix(path) => {
            return PlainStream::connect_unix(worker, path)
                .await
                .map_err(|error| {
                    findings.error = Some(error);
                    FAILURE
                });
        }
        BackendHost::Ip(address) => {
            return connect_tcp(worker, SocketAddr::new(*address, url.port), findings).await;
        }
        BackendHost::Name(name) => {
            let origin = upstream.settings.name_origin;
            resolve(worker, name, url.port, origin).await?
        }
    };
    // The addresses are in random rotation. H2O compatibility: H2O tries one address at random and no other.
    let tried = match upstream.retry {
        Some(_) => &addresses[..],
        None => addresses.get(..1).unwrap_or_default(),
    };
    let mut last = "hostname does not exist";
    for address in tried {
        findings.address = Some(*address);
        match connect_tcp(worker, *address, findings).await {
            Ok(stream) => return Ok(stream),
            Err(text) => last = text,
        }
    }
    Err(last)
}

/// Resolves a name, and returns its addresses in random rotation.
///
/// # Errors
/// The message for the client and the log.
pub(crate) async fn resolve(
    worker: &Worker,
    name: &str,
    port: u16,
    origin: NameOrigin,
) -> Result<Rc<[SocketAddr]>, &'static str> {
    let resolver = worker.local::<Resolver>();
    let addresses = resolver.resolve(worker, name, port, origin).await;
    addresses.map_err(|error| error.text())
}

async fn connect_tcp(
    worker: &Worker,
    address: SocketAddr,
    findings: &mut ConnectDetails,
) -> Result<PlainStream, &'static str> {
    let connected = PlainStream::connect(worker, address).await;
    connected.map_err(|error| {
        let text = connect_error_text(&error);
        findings.error = Some(error).filter(|_| text == FAILURE);
        text
    })
}

/// The ALPN protocols offered in the TLS handshake if the backend may choose between HTTP/2 and HTTP/1.
pub(crate) const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Whether the backend chose HTTP/2 by ALPN.
///
/// # Errors
/// The backend chose a protocol that was not offered.
pub(crate) fn is_http2(upstream: &Upstream, stream: &UpstreamStream) -> Result<bool, Failure> {
    match (stream, stream.alpn()) {
        (UpstreamStream::Plain(_), _) => Ok(upstream.settings.http2_force_cleartext),
        (UpstreamStream::Tls(_), Some(b"h2")) => Ok(true),
        (UpstreamStream::Tls(_), Some(b"http/1.1") | None) => Ok(false),
        (UpstreamStream::Tls(_), Some(_)) => Err(Failure::unsent("unknown alpn protocol")),
    }
}

/// Performs the TLS handshake with `https` backends.
pub(crate) async fn secure(
    upstream: &Upstream,
    url: &BackendUrl,
    alpn: &[&[u8]],
    socket: PlainStream,
    scratch: &Rc<TlsScratch>,
) -> Result<UpstreamStream, Failure> {
    if url.scheme != Scheme::Https {
        return Ok(UpstreamStream::Plain(socket));
    }
    let name = url.tls_name();
    // H2O compatibility: H2O does not resume sessions over Unix-domain sockets.
    let key = match &url.host {
        BackendHost::Unix(_) => String::new(),
        BackendHost::Name(_) | BackendHost::Ip(_) => format!("{name}:{}", url.port),
    };
    let mut hello = OutputBuffer::default();
    let tls = upstream.settings.tls.connect(name, &key, alpn, &mut hello);
    let tls = tls.map_err(Failure::unsent)?;
    let stream = TlsStream::handshake(socket, tls, &hello, Rc::clone(scratch)).await;
    let stream = stream.map_err(|error| Failure::unsent(tls_text(&error)))?;
    Ok(UpstreamStream::Tls(Box::new(stream)))
}

/// The message for a failed TLS handshake. H2O compatibility: the texts are H2O's.
fn tls_text(error: &io::Error) -> &'static str {
    let tls_error = error.get_ref().and_then(|inner| inner.downcast_ref());
    match (tls_error, error.kind()) {
        (Some(error), _) => handshake_text(error),
        (None, io::ErrorKind::UnexpectedEof) => "socket closed by peer",
        (None, _) => Failure::IO,
    }
}

const FAILURE: &str = "connection failure";
