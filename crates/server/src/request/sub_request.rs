//! Sub-requests: requests that a handler makes to this server. They run through the handlers of a path like requests of clients.

use std::rc::Rc;

use h2o_exchange::{
    Body, Exchange, ExchangeRef, LocalBoxFuture, RerouteKind, Response, SubRequestStart,
    SubRequests, Worker,
};
use h2o_http::{Method, StatusCode, authority};

use super::routing::set_route;
use super::serve::{self, Progress};

/// Runs the handlers of sub-requests.
pub(crate) struct SubRequestHandlers;

impl SubRequests for SubRequestHandlers {
    fn answer(&self, exchange: ExchangeRef) -> LocalBoxFuture<Response> {
        Box::pin(async move {
            let worker = Rc::clone(&exchange.borrow().worker);
            let progress = begin(&worker, &exchange);
            let response = serve::finished(&worker, &exchange, progress).await;
            finish(&exchange.borrow(), response)
        })
    }
}

fn begin(worker: &Worker, exchange: &ExchangeRef) -> Progress {
    let start = {
        let exchange = exchange.borrow();
        exchange.sub_request.as_ref().map(|request| request.start)
    };
    match start {
        Some(SubRequestStart::Handler(number)) => serve::start_at(worker, exchange, number),
        Some(SubRequestStart::Routing) | None => {
            let refusal = route(&mut exchange.borrow_mut()).err();
            match refusal {
                Some(response) => Progress::Response(*response),
                None => serve::start(worker, exchange),
            }
        }
    }
}

/// Routes a sub-request by its authority and target; this counts as a delegation (an internal redirect). H2O compatibility: the
/// authority is replaced by the host's name in the configuration.
fn route(exchange: &mut Exchange) -> Result<(), Box<Response>> {
    exchange.count_reroute(RerouteKind::Delegation)?;
    let request = &exchange.request;
    let scheme = request.scheme;
    let named = authority::split(request.authority());
    let mut hosts = exchange.site.hosts.iter();
    let found =
        named.and_then(|(name, port)| hosts.position(|host| host.name.matches(name, port, scheme)));
    let fallback = || exchange.site.hosts.iter().position(|host| !host.strict);
    let Some(host) = found.or_else(fallback) else {
        return Err(Box::new(Response::not_found()));
    };
    let name = exchange.site.hosts[host].authority.clone();
    let stored = exchange.request.headers.store(name.as_bytes());
    exchange.request.set_authority(stored);
    let host = u32::try_from(host).unwrap_or(u32::MAX);
    set_route(
        exchange,
        exchange.site.select_path(host, exchange.request.path()),
    );
    Ok(())
}

/// Completes the response to a sub-request, so that it is what a client would get.
fn finish(exchange: &Exchange, mut response: Response) -> Response {
    if response.is_refusal {
        response = Response::error(StatusCode::BAD_GATEWAY, "Gateway Error", "refused stream");
    }
    if exchange.request.method == Method::Head || response.status.is_bodyless() {
        response.body = Body::Empty;
    }
    response
}
