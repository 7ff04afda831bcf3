//! Finds the host and path of a request, and determines how its handlers use its body.

use std::rc::Rc;

use h2o_exchange::{BodyUse, Exchange, Handler, HostTable, Route};
use h2o_http::{Method, Scheme};

use crate::listener::LocalListener;

/// Finds out which client a request comes from, chooses its host and path, and applies the environment variables of the path.
pub(crate) fn route(exchange: &mut Exchange, listener: &LocalListener) {
    if let Some(trusted) = &listener.setup.trusted_proxies {
        trusted.settle(exchange);
    }
    let scheme = listener.scheme();
    if exchange.request.scheme != scheme {
        settle_scheme(exchange, listener);
    }
    let site = Rc::clone(&exchange.site);
    let request = &exchange.request;
    let Some(host) = (listener.hosts).select(request.authority(), request.scheme) else {
        exchange.route = Route::default();
        return;
    };
    if exchange.request.authority().is_empty() {
        let authority = exchange
            .request
            .headers
            .store(site.hosts[host as usize].authority.as_bytes());
        exchange.request.set_authority(authority);
    }
    set_route(exchange, site.select_path(host, exchange.request.path()));
}

/// Sets the request's scheme to that of the connection, whatever the request's target says: routing and `x-forwarded-proto` rely on
/// the scheme. Only a proxy in front of this server may name another one.
#[cold]
fn settle_scheme(exchange: &mut Exchange, listener: &LocalListener) {
    let request = &mut exchange.request;
    let has_own_scheme = request.method == Method::Connect && request.upgrade().is_empty();
    if listener.is_behind_proxy() || request.scheme == Scheme::Masque {
        return;
    }
    // A plain CONNECT request has no scheme, so it cannot contradict the connection's scheme.
    exchange.is_misdirected = !has_own_scheme;
    request.scheme = listener.scheme();
}

/// Routes a request that could not be parsed to the default host and to no path, so that it can be logged.
pub(crate) fn route_unparsed(exchange: &mut Exchange, served: &HostTable) {
    let site = Rc::clone(&exchange.site);
    if let Some(host) = served.select(b"", Scheme::Http) {
        exchange.route = site.select_path(host, b"");
    }
}

/// Gives the request the host and path of `route`, and applies their settings.
#[inline]
pub(crate) fn set_route(exchange: &mut Exchange, route: Route) {
    exchange.route = route;
    exchange.has_passed_guards = false;
    exchange.emit_request_errors = None;
    let path = exchange.site.path(route);
    if path.env.is_some() || path.pattern.is_some() {
        apply_env(exchange);
    }
}

#[cold]
fn apply_env(exchange: &mut Exchange) {
    let site = Rc::clone(&exchange.site);
    let path = site.path(exchange.route);
    if let Some(pattern) = &path.pattern {
        let variables: Vec<_> = pattern.variables(exchange.request.path()).collect();
        for (name, value) in variables {
            match value {
                Some(value) => exchange.set_env(name, &value),
                None => exchange.unset_env(name),
            }
        }
    }
    if let Some(env) = &path.env {
        env.apply(exchange);
    }
}

/// How the handlers use the body of the request: the first handler of the path that reads bodies decides.
pub(crate) fn body_use(exchange: &Exchange) -> BodyUse {
    first_content_user(exchange).map_or(BodyUse::None, |(_, body_use)| body_use)
}

/// Whether one of the path's handlers pulls the body of the request, and so can open the tunnel that the request asks for.
pub(crate) fn may_open_tunnel(exchange: &Exchange) -> bool {
    let handlers = &exchange.site.path(exchange.route).handlers;
    (handlers.iter()).any(|handler| handler.body_use(exchange) == BodyUse::Stream)
}

/// Whether the handler that pulls the request body also decides whether the client may send it (100 Continue).
pub(crate) fn handles_expect(exchange: &Exchange) -> bool {
    first_content_user(exchange).is_some_and(|(handler, _)| handler.handles_expect())
}

fn first_content_user(exchange: &Exchange) -> Option<(&dyn Handler, BodyUse)> {
    let handlers = &exchange.site.path(exchange.route).handlers;
    handlers.iter().find_map(|handler| {
        let body_use = handler.body_use(exchange);
        (body_use != BodyUse::None).then_some((handler.as_ref(), body_use))
    })
}
