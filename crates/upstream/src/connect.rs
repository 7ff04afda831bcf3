//! New connections to backends.

use std::net::SocketAddr;
use std::rc::Rc;

use h2o_exchange::Worker;
use h2o_http::Scheme;
use tokio::net::{TcpStream, UnixStream};

use crate::balancer::InUse;
use crate::pool::Local;
use crate::repeat::Aim;
use crate::stream::{PlainStream, UpstreamStream};
use crate::{BackendHost, BackendUrl, Failure, NameOrigin, Resolver, Upstream, connect_error_text};

/// A connection that was just established.
pub(crate) struct Connected {
    pub(crate) stream: UpstreamStream,
    /// Index of the backend.
    pub(crate) backend: usize,
    pub(crate) in_use: Option<InUse>,
}

/// Connects to a backend: the one that was chosen or that the balancer chooses, and if that cannot be connected to, the others in
/// turn. A TLS handshake that fails is final (H2O compatibility). `alpn`: protocols offered to `https` backends.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    local: &Local,
    alpn: &[&[u8]],
    aim: &mut Aim,
) -> Result<Connected, Failure> {
    let limit = local.upstream.settings.connect_timeout;
    let mut backend = None;
    let connecting = connect_any(worker, local, alpn, aim, &mut backend);
    match tokio::time::timeout(limit, connecting).await {
        Ok(connected) => connected,
        Err(_) => {
            let failure = Failure::unsent(Failure::CONNECT_TIMEOUT);
            if let Some(backend) = backend {
                local.on_unreachable(backend, &failure, worker.clock.now());
            }
            Err(failure)
        }
    }
}

/// Notes in `trying` which backend has its turn.
async fn connect_any(
    worker: &Rc<Worker>,
    local: &Local,
    alpn: &[&[u8]],
    aim: &mut Aim,
    trying: &mut Option<usize>,
) -> Result<Connected, Failure> {
    let upstream = &local.upstream;
    let mut last = Failure::unsent("connection failure");
    while let Some(backend) = aim.next(upstream, worker.clock.now()) {
        *trying = Some(backend);
        let attempt = local.begin_attempt(backend, worker.clock.now());
        let in_use = InUse::begin(upstream, backend);
        let url = &upstream.backends[backend].url;
        let resolver = worker.local::<Resolver>();
        let failure = match connect_to(&resolver, url, upstream.settings.name_origin).await {
            Err(text) => Failure::unsent(text),
            Ok(socket) => match secure(upstream, url, alpn, socket).await {
                Err(failure) => {
                    local.on_unreachable(backend, &failure, worker.clock.now());
                    return Err(failure);
                }
                Ok(stream) => {
                    attempt.on_established(worker.clock.now());
                    return Ok(Connected {
                        stream,
                        backend,
                        in_use,
                    });
                }
            },
        };
        local.on_unreachable(backend, &failure, worker.clock.now());
        last = failure;
    }
    Err(last)
}

/// Opens the socket.
///
/// # Errors
/// The text to show.
pub(crate) async fn connect_to(
    resolver: &Resolver,
    url: &BackendUrl,
    origin: NameOrigin,
) -> Result<PlainStream, &'static str> {
    let address = match &url.host {
        BackendHost::Unix(path) => {
            let socket = UnixStream::connect(path).await;
            return socket.map(PlainStream::Unix).map_err(|_| FAILURE);
        }
        BackendHost::Ip(address) => SocketAddr::new(*address, url.port),
        BackendHost::Name(name) => {
            let addresses = resolver.resolve(name, url.port, origin).await;
            let addresses = addresses.map_err(|error| error.text())?;
            // One at random comes first; the others are not tried (H2O compatibility).
            *addresses.first().ok_or("hostname does not exist")?
        }
    };
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| connect_error_text(&error))?;
    // Requests and chunks are written whole.
    socket
        .set_nodelay(true)
        .map_err(|error| connect_error_text(&error))?;
    Ok(PlainStream::Tcp(socket))
}

/// Does the TLS handshake with `https` backends.
pub(crate) async fn secure(
    upstream: &Upstream,
    url: &BackendUrl,
    alpn: &[&[u8]],
    socket: PlainStream,
) -> Result<UpstreamStream, Failure> {
    if url.scheme != Scheme::Https {
        return Ok(UpstreamStream::Plain(socket));
    }
    let name = url.tls_name();
    // Sessions are not kept for Unix-domain sockets (H2O compatibility).
    let key = match &url.host {
        BackendHost::Unix(_) => String::new(),
        BackendHost::Name(_) | BackendHost::Ip(_) => format!("{name}:{}", url.port),
    };
    let stream = upstream.settings.tls.handshake(name, &key, alpn, socket);
    Ok(UpstreamStream::Tls(Box::new(stream.await?)))
}

const FAILURE: &str = "connection failure";
