//! The handler of `proxy.reverse.url`.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use h2o_exchange::{
    BodyUse, ClientOrigin, ConnectionInfo, Exchange, ExchangeRef, Handler, KeepsServerField,
    Outcome, RequestBody, RerouteKind, Trace, Worker,
};
use h2o_http::{BodyLength, Headers, StatusCode};
use h2o_upstream::{Call, Reply, Upstream};
use rustc_hash::FxHashMap;

use super::request::RequestRules;
use super::response::{self, ResponseRules};
use super::settings::ProxySettings;
use super::target::PathMapping;
use super::tunnel_kind::TunnelKind;
use crate::reproxy;

/// An upstream with the rules for its requests and responses. They come from a `proxy.reverse.url` with the final
/// settings of its path, or from the built-in proxy.
pub(super) struct Proxy {
    upstream: Arc<Upstream>,
    request: RequestRules,
    response: ResponseRules,
    /// The setting of `proxy.tunnel`: whether tunnels are forwarded.
    tunnels: bool,
    /// Whether the setting is `proxy.expect: ON`: requests with a body are sent with `expect: 100-continue`.
    expects_continue: bool,
    /// Whether the setting is `send-server-name: preserve`; unset until the first request.
    keeps_server: OnceLock<bool>,
}

impl Proxy {
    /// Creates a proxy that sends requests to `upstream`, with these settings.
    pub(super) fn new(upstream: Arc<Upstream>, settings: &ProxySettings) -> Self {
        Self {
            upstream,
            request: settings.request.clone(),
            response: settings.response,
            tunnels: settings.tunnels,
            expects_continue: settings.expects_continue,
            keeps_server: OnceLock::new(),
        }
    }

    /// The upstream to which the proxy sends requests.
    #[cfg(feature = "mruby")]
    pub(super) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }
}

/// The handler that answers requests with the responses of backends.
pub(super) struct ProxyHandler {
    /// Number that identifies the handler in the tables of workers.
    id: u64,
    proxy: Arc<Proxy>,
    /// Workers hold weak references to this value: when the handler is dropped, they notice and drop their state for
    /// it.
    alive: Arc<()>,
}

impl ProxyHandler {
    /// Creates a handler that sends requests to `upstream`, with these settings.
    pub(super) fn new(upstream: Arc<Upstream>, settings: &ProxySettings) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            proxy: Arc::new(Proxy::new(upstream, settings)),
            alive: Arc::new(()),
        }
    }
}

/// A worker's reference to a [`Proxy`]. Its count is not atomic: each request takes one.
pub(super) struct LocalProxy(pub(super) Arc<Proxy>);

impl std::ops::Deref for LocalProxy {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.0
    }
}

/// The proxies that a worker has used, by the number of their handler.
#[derive(Default)]
struct Proxies(RefCell<FxHashMap<u64, KnownProxy>>);

struct KnownProxy {
    proxy: Rc<LocalProxy>,
    /// A weak reference to the handler's `alive`: it fails to upgrade once the handler is dropped.
    alive: Weak<()>,
}

/// Drops the proxies of handlers that no longer exist.
pub(crate) fn sweep(worker: &Worker) {
    worker.local::<Proxies>().sweep();
}

impl Proxies {
    fn sweep(&self) {
        (self.0.borrow_mut()).retain(|_, known| known.alive.strong_count() > 0);
    }

    fn of(&self, handler: &ProxyHandler) -> Rc<LocalProxy> {
        let mut known = self.0.borrow_mut();
        if let Some(known) = known.get(&handler.id) {
            return Rc::clone(&known.proxy);
        }
        let proxy = Rc::new(LocalProxy(Arc::clone(&handler.proxy)));
        known.insert(
            handler.id,
            KnownProxy {
                proxy: Rc::clone(&proxy),
                alive: Arc::downgrade(&handler.alive),
            },
        );
        proxy
    }
}

impl Handler for ProxyHandler {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        if let Err(answer) = exchange.count_reroute(RerouteKind::Reprocess) {
            return Outcome::Done(*answer);
        }
        let proxies = exchange.worker.local::<Proxies>();
        forward_request(proxies.of(self), exchange, PathMapping::Below)
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Stream
    }

    fn handles_expect(&self) -> bool {
        self.proxy.request.forwards_expectations
    }

    fn waits_for_backend(&self) -> bool {
        true
    }
}

/// Answers the request with the response of a backend.
pub(super) fn forward_request(
    proxy: Rc<LocalProxy>,
    exchange: &mut Exchange,
    mapping: PathMapping,
) -> Outcome {
    let wanted = match proxy.request.admit(&exchange.request, proxy.tunnels) {
        Ok(wanted) => wanted,
        Err(refusal) => return Outcome::Done(refusal.response(exchange)),
    };
    let Some(reference) = exchange.reference() else {
        // Only exchanges that tests make without a worker have no reference to themselves.
        return Outcome::Declined;
    };
    Outcome::Later(Box::pin(forward(proxy, reference, wanted, mapping)))
}

async fn forward(
    proxy: Rc<LocalProxy>,
    reference: ExchangeRef,
    wanted: TunnelKind,
    mapping: PathMapping,
) -> Outcome {
    let Outgoing {
        worker,
        client,
        client_address,
        body,
        headers,
        trace,
        expects_continue,
        forwards_expectation,
        needs_http1,
        is_multiplexed,
    } = Outgoing::of(&proxy, &mut reference.borrow_mut(), wanted);
    let pipe = match &body {
        RequestBody::Stream(pipe) => Some(Rc::clone(pipe)),
        RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => None,
    };
    if let Some(pipe) = &pipe
        && wanted == TunnelKind::Nothing
    {
        reproxy::keep_content(&reference.borrow(), pipe);
    }
    let result = proxy
        .upstream
        .send(Call {
            worker: &worker,
            client,
            client_address,
            build: &mut |backend, protocol, head| {
                let exchange = &mut *reference.borrow_mut();
                let rules = &proxy.request;
                rules.build(exchange, wanted, mapping, backend, protocol, head);
            },
            fastcgi: None,
            body,
            waits_for_content: wanted == TunnelKind::Nothing && !forwards_expectation,
            ends_with_upload: !is_multiplexed,
            closes_connection: false,
            needs_http1,
            expects_continue,
            on_informational: Some(&mut |status, headers| {
                let exchange = &mut *reference.borrow_mut();
                if status != StatusCode::CONTINUE || forwards_expectation {
                    response::add_informational(exchange, status, headers);
                }
            }),
            trace,
            headers,
        })
        .await;
    let exchange = &mut *reference.borrow_mut();
    match result {
        Ok(reply) => answer(&proxy, exchange, wanted, reply),
        Err(failure) => {
            let mut answer = response::failed(exchange, mapping, &failure);
            if let Some(pipe) = pipe
                && !pipe.is_complete()
            {
                // The rest of the request body is not read, so the server could read no further request from the
                // client's connection and closes it after the response. H2O compatibility: H2O closes it, too.
                answer.closes = true;
                pipe.abandon();
            }
            Outcome::Done(answer)
        }
    }
}

/// The response to the client, from the backend's reply.
fn answer(
    proxy: &Rc<LocalProxy>,
    exchange: &mut Exchange,
    wanted: TunnelKind,
    reply: Reply,
) -> Outcome {
    let keeps_server = *proxy
        .keeps_server
        .get_or_init(|| exchange.site.settings.get::<KeepsServerField>().0);
    let backend = &proxy.upstream.backends()[reply.backend].url;
    let scheme = if proxy.request.preserve_host {
        exchange.request.scheme
    } else {
        backend.scheme
    };
    let rules = proxy.response;
    let mut outcome = rules.answer(exchange, wanted, scheme, backend, keeps_server, reply);
    if let Outcome::Reroute(order) = &mut outcome
        && response::leads_back(exchange, scheme, &order.url)
    {
        // The server follows a backend's redirect back to that backend with the settings of this path. H2O
        // compatibility: H2O does the same.
        let proxy = Rc::clone(proxy);
        order.successor = Some(Box::new(|exchange| {
            forward_request(proxy, exchange, PathMapping::Whole)
        }));
    }
    outcome
}

/// What the exchange contributes to the [`Call`] of a request, besides its head.
struct Outgoing {
    worker: Rc<Worker>,
    client: Rc<ConnectionInfo>,
    client_address: Option<Box<SocketAddr>>,
    body: RequestBody,
    headers: Headers,
    trace: Option<Rc<Trace>>,
    expects_continue: bool,
    /// Whether the client's `expect: 100-continue` is forwarded.
    forwards_expectation: bool,
    needs_http1: bool,
    /// Whether the client's connection carries several requests at a time.
    is_multiplexed: bool,
}

impl Outgoing {
    fn of(proxy: &LocalProxy, exchange: &mut Exchange, wanted: TunnelKind) -> Self {
        // If the request opens no tunnel and has no body, its body pipe carries nothing, so the upstream does not get
        // the pipe.
        let has_body = wanted != TunnelKind::Nothing || exchange.request.body != BodyLength::None;
        let body = if has_body {
            exchange.body.clone()
        } else {
            RequestBody::None
        };
        let has_content = wanted == TunnelKind::Nothing
            && match &body {
                RequestBody::None => false,
                RequestBody::Bytes(content) => !content.is_empty(),
                RequestBody::File(_) | RequestBody::Stream(_) => true,
            };
        Self {
            worker: Rc::clone(&exchange.worker),
            client: Rc::clone(&exchange.connection),
            client_address: match exchange.client {
                ClientOrigin::Proxy { client } => client.map(Box::new),
                ClientOrigin::Peer => None,
            },
            body,
            headers: exchange.headers(),
            trace: trace(exchange),
            expects_continue: proxy.expects_continue && has_content,
            forwards_expectation: proxy.request.forwards_expectation(exchange),
            needs_http1: wanted == TunnelKind::Protocol
                && !is_of_every_version(exchange.request.upgrade()),
            is_multiplexed: exchange.protocol.is_multiplexed(),
        }
    }
}

/// Starts a timing trace of the request, if an access log or a filter needs one.
fn trace(exchange: &mut Exchange) -> Option<Rc<Trace>> {
    if !exchange.site.path(exchange.route).keep_trace {
        return None;
    }
    let trace = Trace::default();
    trace.started.set(Some(exchange.worker.clock.now()));
    exchange.forwarded.trace = Some(Rc::new(trace));
    exchange.forwarded.trace.clone()
}

/// Whether backends of any HTTP version accept an upgrade to this protocol (RFC 9298 §3).
fn is_of_every_version(token: &[u8]) -> bool {
    token.eq_ignore_ascii_case(b"connect-udp")
}

#[cfg(test)]
mod tests {
    use h2o_upstream::{BackendUrl, Balancing};

    use super::*;

    #[test]
    fn workers_forget_handlers_that_are_gone() {
        let settings = ProxySettings::default();
        let handler = || {
            let url = BackendUrl::parse("http://127.0.0.1:1/").expect("the URL is valid");
            let upstream = settings
                .upstream()
                .expect("the settings name no CA file, so nothing can fail");
            let upstream = Upstream::new(vec![(url, 1)], Balancing::RoundRobin, upstream);
            ProxyHandler::new(upstream, &settings)
        };
        let workers = [Proxies::default(), Proxies::default()];
        let (first, second) = (handler(), handler());
        let upstream = Arc::downgrade(&first.proxy.upstream);
        for worker in &workers {
            let known = worker.of(&first);
            assert!(Rc::ptr_eq(&known, &worker.of(&first)));
            worker.of(&second);
            assert_eq!(worker.0.borrow().len(), 2);
        }
        drop(first);
        for worker in &workers {
            assert!(upstream.strong_count() > 0);
            worker.sweep();
            assert_eq!(worker.0.borrow().len(), 1);
        }
        assert_eq!(upstream.strong_count(), 0);
    }
}
