//! The handlers of `proxy.connect` and `proxy.connect-udp`.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::{
    BodyPipe, BodyUse, DatagramPipe, Exchange, ExchangeRef, Handler, Outcome, RequestBody,
    Response, TimedOut, Worker,
};
use h2o_http::{Headers, Known, Method, Name, RequestHead, StatusCode, Version};
use h2o_upstream::{
    ConnectError, ConnectLimits, Family, NameOrigin, PlainStream, Resolver, connect,
    connect_error_text,
};

use super::acl::Acl;
use super::capsule::Format;
use super::proxy_status::Report;
use super::target::Target;
use super::udp::TargetSocket;
use super::{tcp, udp};

/// The configuration of a handler of `proxy.connect` or `proxy.connect-udp`.
pub(super) struct Service {
    pub(super) acl: Acl,
    pub(super) limits: ConnectLimits,
    pub(super) io_timeout: Duration,
    /// The name of this proxy in the `proxy-status` field, encoded; `None` to send no such field.
    pub(super) identity: Option<Box<str>>,
}

/// The handler of `proxy.connect`.
pub(super) struct TcpHandler {
    pub(super) service: Arc<Service>,
    /// The setting `proxy.connect.masque-draft-03`: whether the handler also opens UDP tunnels in the form of draft 03.
    pub(super) takes_connect_udp: bool,
}

/// The handler of `proxy.connect-udp`.
pub(super) struct UdpHandler {
    pub(super) service: Arc<Service>,
}

/// The field with the identifier of a tunnel in HTTP/3 datagrams (draft 03 of RFC 9298).
const FLOW_ID: Known = Known::DatagramFlowId;

/// Label of lines in the error log. H2O compatibility: H2O's lines have it.
const LABEL: &str = Exchange::CONNECT_LABEL;

impl Handler for TcpHandler {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let request = &exchange.request;
        let is_udp = match request.method {
            Method::Connect if request.upgrade().is_empty() => false,
            Method::ConnectUdp => true,
            _ => return Outcome::Declined,
        };
        if is_udp && !self.takes_connect_udp {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            exchange.worker.counters.count_status(status);
            let text = "Method Not Allowed";
            return Outcome::Done(Response::error(status, text, text));
        }
        let target = Target::from_authority(request.authority());
        let target = target.ok_or(Failure::BadRequest("invalid host:port"));
        let protocol = if is_udp {
            TunnelProtocol::Udp {
                format: Format::Bare,
                is_upgrade: false,
            }
        } else {
            TunnelProtocol::Tcp
        };
        self.service.answer(exchange, target, protocol)
    }

    fn body_use(&self, exchange: &Exchange) -> BodyUse {
        match exchange.request.method {
            Method::Connect | Method::ConnectUdp => BodyUse::Stream,
            _ => BodyUse::None,
        }
    }
}

impl Handler for UdpHandler {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let request = &exchange.request;
        if !is_udp_request(request) {
            return Outcome::Declined;
        }
        let path = exchange.site.path(exchange.route).rest(request.path());
        let target = Target::from_path(path).ok_or(Failure::BadRequest("invalid URI"));
        let protocol = TunnelProtocol::Udp {
            format: Format::ContextId,
            is_upgrade: is_upgrade(request),
        };
        self.service.answer(exchange, target, protocol)
    }

    fn body_use(&self, exchange: &Exchange) -> BodyUse {
        if is_udp_request(&exchange.request) {
            BodyUse::Stream
        } else {
            BodyUse::None
        }
    }
}

/// Whether the client asks for a tunnel of UDP payloads (RFC 9298 §3).
fn is_udp_request(request: &RequestHead) -> bool {
    let is_method_fit = match request.method {
        Method::Get => is_upgrade(request),
        Method::Connect => true,
        _ => false,
    };
    is_method_fit && request.upgrade().eq_ignore_ascii_case(b"connect-udp")
}

/// Whether the tunnel is opened by an upgrade with the status 101, as over HTTP/1.
fn is_upgrade(request: &RequestHead) -> bool {
    request.version < Version::Http2
}

/// The transport protocol of the tunnel to the target.
#[derive(Clone, Copy)]
enum TunnelProtocol {
    Tcp,
    Udp {
        format: Format,
        /// Whether the response that opens the tunnel has the status 101.
        is_upgrade: bool,
    },
}

/// The reason why no tunnel is opened.
enum Failure {
    /// The client's target is not a valid `host:port`; the text is for the error log.
    BadRequest(&'static str),
    Connect(ConnectError),
}

impl Service {
    fn answer(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        target: Result<Target, Failure>,
        protocol: TunnelProtocol,
    ) -> Outcome {
        let RequestBody::Stream(pipe) = &exchange.body else {
            // An internal redirect has detached the request's body, so no pipe is left that would carry the client's
            // bytes.
            return Outcome::Declined;
        };
        if exchange.is_early {
            // The request came as early data of TLS: it may be a replay and must not open a second connection (RFC 8470
            // §5.2).
            return Outcome::Done(Response::too_early());
        }
        let target = match target {
            Ok(target) => target,
            Err(failure) => return Outcome::Done(self.refuse(exchange, &failure)),
        };
        if !self.acl.may_permit(target.port) {
            // The port is checked before the target's name is looked up, so that clients cannot keep the resolver busy
            // with targets that no entry permits.
            let failure = Failure::Connect(ConnectError::Prohibited);
            return Outcome::Done(self.refuse(exchange, &failure));
        }
        let Some(reference) = exchange.reference() else {
            // Only exchanges that tests make without a worker have no reference to themselves.
            return Outcome::Declined;
        };
        let pipe = Rc::clone(pipe);
        if let (TunnelProtocol::Udp { .. }, Some(datagrams)) = (protocol, pipe.datagrams()) {
            datagrams.open();
        }
        exchange.body = RequestBody::None;
        let service = Arc::clone(self);
        Outcome::Later(Box::pin(async move {
            Outcome::Done(service.open(reference, target, protocol, pipe).await)
        }))
    }

    async fn open(
        &self,
        reference: ExchangeRef,
        target: Target,
        protocol: TunnelProtocol,
        pipe: Rc<BodyPipe>,
    ) -> Response {
        let worker = Rc::clone(&reference.borrow().worker);
        let Some(descriptor) = worker.shared.descriptors.open() else {
            let exchange = &mut *reference.borrow_mut();
            exchange.note_error(
                LABEL,
                "no file descriptor is left for a tunnel (RLIMIT_NOFILE)",
            );
            return crate::unavailable(exchange);
        };
        let mut has_datagrams = false;
        let opened = match protocol {
            TunnelProtocol::Tcp => {
                let opened = self.open_tcp(&worker, &target).await;
                opened.map(|(stream, address)| {
                    let body = tcp::open(&worker, stream, descriptor, pipe, self.io_timeout);
                    (body, address)
                })
            }
            TunnelProtocol::Udp { format, .. } => {
                let opened = self.open_udp(&worker, &target).await;
                let datagrams = match &opened {
                    Ok(_) => self.accepted_datagrams(&worker, &pipe).await,
                    Err(_) => None,
                };
                has_datagrams = datagrams.is_some();
                opened.map(|(socket, address)| {
                    let io_timeout = self.io_timeout;
                    let body = udp::open(
                        &worker, socket, descriptor, format, pipe, datagrams, io_timeout,
                    );
                    (body, address)
                })
            }
        };
        let (body, address) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let failure = Failure::Connect(error);
                return self.refuse(&mut reference.borrow_mut(), &failure);
            }
        };
        let mut headers = Headers::new();
        let mut status = StatusCode::OK;
        if let TunnelProtocol::Udp { format, is_upgrade } = protocol {
            if is_upgrade {
                status = StatusCode::SWITCHING_PROTOCOLS;
                headers.push(Known::Upgrade, b"connect-udp");
            }
            match format {
                Format::ContextId => headers.push(Name::Other("capsule-protocol"), b"?1"),
                Format::Bare if has_datagrams => {
                    let request = &reference.borrow().request;
                    if let Some(id) = request.headers.get(FLOW_ID) {
                        headers.push(FLOW_ID, id);
                    }
                }
                Format::Bare => {}
            }
        }
        let report = Report {
            next_hop: Some(address.ip()),
            ..Report::default()
        };
        self.add_status(&mut headers, &report);
        Response::new(status, headers, body)
    }

    async fn open_tcp(
        &self,
        worker: &Rc<Worker>,
        target: &Target,
    ) -> Result<(PlainStream, SocketAddr), ConnectError> {
        let is_permitted = |address| self.acl.permits(address);
        let Target { host, port } = target;
        connect(worker, host, *port, self.limits, is_permitted).await
    }

    async fn open_udp(
        &self,
        worker: &Rc<Worker>,
        target: &Target,
    ) -> Result<(TargetSocket, SocketAddr), ConnectError> {
        let connecting = self.connect_udp(worker, target);
        let connected = worker.timeout(self.limits.connect_timeout, connecting);
        let timed_out = |TimedOut| Err(ConnectError::TimedOut { next_hop: None });
        connected.await.unwrap_or_else(timed_out)
    }

    /// The pipe of the tunnel's HTTP datagrams. `None` if the connection cannot carry any, or if the client's settings
    /// tell that it accepts none.
    async fn accepted_datagrams(
        &self,
        worker: &Rc<Worker>,
        pipe: &BodyPipe,
    ) -> Option<Rc<DatagramPipe>> {
        let datagrams = pipe.datagrams()?;
        let accepted = poll_fn(|context| datagrams.poll_accepted(context));
        let accepted = worker.timeout(self.limits.connect_timeout, accepted).await;
        let is_accepted = accepted.unwrap_or(false);
        is_accepted.then(|| Rc::clone(datagrams))
    }

    /// Returns a UDP socket connected to the first permitted address that the system has a route to. H2O compatibility:
    /// H2O tries IPv6 addresses first.
    async fn connect_udp(
        &self,
        worker: &Rc<Worker>,
        target: &Target,
    ) -> Result<(TargetSocket, SocketAddr), ConnectError> {
        let Target { host, port } = target;
        let resolver = worker.local::<Resolver>();
        let origin = NameOrigin::Requested;
        let found = resolver.resolve_family(worker, host, *port, Family::Any, origin);
        let found = found.await.map_err(ConnectError::Unresolved)?;
        let (v6, v4): (Vec<SocketAddr>, Vec<_>) =
            found.iter().partition(|address| address.is_ipv6());
        let mut failure = ConnectError::Prohibited;
        for address in v6.into_iter().chain(v4) {
            if !self.acl.permits(address) {
                continue;
            }
            match TargetSocket::connect(worker, address) {
                Ok(socket) => return Ok((socket, address)),
                Err(error) => {
                    let next_hop = address.ip();
                    failure = ConnectError::Failed { next_hop, error };
                }
            }
        }
        Err(failure)
    }

    /// The response to a request for which no tunnel is opened. Also logs the reason.
    fn refuse(&self, exchange: &mut Exchange, failure: &Failure) -> Response {
        let report = failure.report();
        exchange.note_error(LABEL, &report.log_text());
        let (status, reason, text) = failure.answer();
        exchange.worker.counters.count_status(status);
        let mut response = Response::error(status, reason, text);
        self.add_status(&mut response.headers, &report);
        response
    }

    fn add_status(&self, headers: &mut Headers, report: &Report) {
        if let Some(identity) = &self.identity {
            headers.push(Known::ProxyStatus, report.field(identity).as_bytes());
        }
    }
}

impl Failure {
    /// Status, reason phrase and text of the response. H2O compatibility: they are the same as H2O's.
    fn answer(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "Bad Request", "Bad Request"),
            Self::Connect(error @ ConnectError::Prohibited) => {
                (StatusCode::FORBIDDEN, error.text(), error.text())
            }
            Self::Connect(error) => (StatusCode::BAD_GATEWAY, "Gateway Error", error.text()),
        }
    }

    fn report(&self) -> Report {
        let error = match self {
            Self::BadRequest(details) => {
                return Report {
                    error: Some("http_request_error"),
                    details: Some(details),
                    ..Report::default()
                };
            }
            Self::Connect(error) => error,
        };
        let (kind, rcode, details) = match error {
            ConnectError::Prohibited => ("destination_ip_prohibited", None, None),
            ConnectError::Unresolved(error) => ("dns_error", error.rcode(), Some(error.text())),
            ConnectError::TimedOut { next_hop: None } => ("dns_timeout", None, None),
            ConnectError::TimedOut { next_hop: Some(_) } => ("connection_timeout", None, None),
            ConnectError::Failed { error, .. } => match error.kind() {
                io::ErrorKind::ConnectionRefused => ("connection_refused", None, None),
                io::ErrorKind::TimedOut => ("connection_timeout", None, None),
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                    ("destination_ip_unroutable", None, None)
                }
                _ => (
                    "proxy_internal_error",
                    None,
                    Some(connect_error_text(error)),
                ),
            },
        };
        Report {
            error: Some(kind),
            rcode,
            details,
            next_hop: error.next_hop(),
        }
    }
}
