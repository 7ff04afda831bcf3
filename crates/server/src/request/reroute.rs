//! Internal redirects, which move a request to other handlers: to another path of the site, to the upstream server that gave the
//! response, or to a server outside the configuration.

use h2o_exchange::{
    BodyUse, Exchange, NamedBy, OriginalRequest, RequestBody, Reroute, RerouteFields, Response,
    Successor,
};
use h2o_handlers::OtherServer;
use h2o_http::{BodyLength, Headers, Known, Name, Reference, Scheme, authority};

use super::routing::{body_use, set_route};

/// Where an internal redirect leads.
pub(crate) enum RerouteTarget {
    /// The redirect leads to the handlers of a path of the site.
    Handlers,
    /// The redirect leads to an upstream server; the function sends the request there.
    Successor(Successor),
}

/// Carries out an internal redirect.
pub(crate) fn reroute(
    exchange: &mut Exchange,
    mut order: Reroute,
) -> Result<RerouteTarget, Box<Response>> {
    let awaits_continue = !exchange.request.expect().is_empty() && has_not_begun(&exchange.body);
    // The new request needs no body if it is for an error document, or if its method was changed.
    let needs_body = order.fields != RerouteFields::None && exchange.request.method == order.method;
    let target = change_target(exchange, &mut order)?;
    let streams = match target {
        RerouteTarget::Handlers => body_use(exchange) == BodyUse::Stream,
        RerouteTarget::Successor(_) => true,
    };
    if order.keep_body && needs_body && awaits_continue {
        drop_body(exchange);
        let text = "cannot redirect internally: the client still waits for 100 Continue";
        return refuse(exchange, &order, text);
    }
    if !order.keep_body || !rewind_body(exchange, streams) {
        drop_body(exchange);
        if order.keep_body && needs_body {
            let text = "cannot redirect internally: the request body was not kept and cannot be sent again";
            return refuse(exchange, &order, text);
        }
    }
    Ok(target)
}

/// Carries out an internal redirect to a path of the site before the body is received. The request keeps its body.
pub(super) fn reroute_early(
    exchange: &mut Exchange,
    mut order: Reroute,
) -> Result<(), Box<Response>> {
    match change_target(exchange, &mut order)? {
        RerouteTarget::Handlers => Ok(()),
        RerouteTarget::Successor(_) => {
            debug_assert!(
                false,
                "a redirect before the handlers run leads to a path of the site"
            );
            refuse(exchange, &order, "failed to redirect internally").map(|_| ())
        }
    }
}

/// Gives the request the target of the internal redirect.
fn change_target(
    exchange: &mut Exchange,
    order: &mut Reroute,
) -> Result<RerouteTarget, Box<Response>> {
    // Set first, so that an error document whose URL leads nowhere also leaves the response the status that it had.
    let is_error_document = order.restore.is_some();
    if is_error_document {
        exchange.restore = order.restore.take();
    }
    exchange.count_reroute(order.kind)?;
    let Some(target) = resolve(exchange, order) else {
        let url = order.url.escape_ascii();
        return refuse(
            exchange,
            order,
            &format!("failed to resolve internal redirect:{url}"),
        );
    };
    if exchange.original.is_none() {
        exchange.original = Some(Box::new(OriginalRequest {
            method: exchange.request.method.clone(),
            scheme: exchange.request.scheme,
            authority: exchange.request.authority().to_vec(),
            target: exchange.request.target().to_vec(),
        }));
    }
    let request = &exchange.request;
    let some_fields = match order.fields {
        RerouteFields::All => None,
        RerouteFields::WithoutCredentials => Some(without_credentials(&request.headers)),
        RerouteFields::None => Some(Headers::new()),
    };
    let fields = some_fields.as_ref().unwrap_or(&request.headers);
    let rebuilt = request.rebuilt(fields, &target.authority, &target.path);
    let full = std::mem::replace(&mut exchange.request, rebuilt);
    if some_fields.is_some() {
        exchange.saved_headers.get_or_insert(full.headers);
    }
    exchange.request.method = order.method.clone();
    exchange.request.scheme = target.scheme;
    if !is_error_document {
        // The response that is dropped may have ordered pushes, which must not be promised any more.
        exchange.pushes.clear();
    }
    exchange.sent.first_status = None;
    exchange.forwarded.forget_place();
    exchange.mime = None;
    Ok(match target.place {
        Place::Host(host) => {
            exchange.has_unconfigured_target = false;
            let route = exchange.site.select_path(host, exchange.request.path());
            set_route(exchange, route);
            RerouteTarget::Handlers
        }
        Place::Elsewhere(server) => {
            exchange.has_unconfigured_target = true;
            RerouteTarget::Successor(Box::new(|exchange: &mut Exchange| server.fetch(exchange)))
        }
        Place::Upstream(successor) => RerouteTarget::Successor(successor),
    })
}

/// The request's fields without credentials: a server outside the configuration may see them.
fn without_credentials(fields: &Headers) -> Headers {
    let mut fields = fields.clone();
    fields.retain(|field| match field.name {
        Name::Known(Known::Authorization | Known::Cookie | Known::ProxyAuthorization) => false,
        Name::Known(_) | Name::Other(_) => true,
    });
    fields
}

fn refuse(
    exchange: &mut Exchange,
    order: &Reroute,
    note: &str,
) -> Result<RerouteTarget, Box<Response>> {
    exchange.note_error("core", note);
    let response = (order.unresolved)();
    exchange.worker.counters.count_status(response.status);
    Err(Box::new(response))
}

/// Whether the request has a body of which no byte has come yet.
fn has_not_begun(body: &RequestBody) -> bool {
    match body {
        RequestBody::Stream(pipe) => pipe.queued() == 0 && pipe.kept() == 0 && !pipe.is_complete(),
        RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => false,
    }
}

/// Makes the request body readable from its start for the next handler, which pulls the body if it `streams`. Returns `false` if a
/// part of the body is gone.
fn rewind_body(exchange: &mut Exchange, streams: bool) -> bool {
    let has_content = match exchange.request.body {
        BodyLength::Known(_) | BodyLength::Unknown => true,
        BodyLength::None | BodyLength::Tunnel => false,
    };
    if !has_content {
        return true;
    }
    let pipe = match &exchange.body {
        RequestBody::Stream(pipe) => pipe,
        RequestBody::Bytes(_) | RequestBody::File(_) => return true,
        // The body was dropped as it came, since no handler so far wanted it.
        RequestBody::None => return false,
    };
    if !pipe.rewind() {
        return false;
    }
    if streams {
        return true;
    }
    let whole = pipe.take_whole();
    let is_whole = whole.is_some();
    if let Some(whole) = whole {
        exchange.body = RequestBody::Bytes(whole);
    }
    is_whole
}

fn drop_body(exchange: &mut Exchange) {
    exchange.request.body = BodyLength::None;
    if let RequestBody::Stream(pipe) = std::mem::take(&mut exchange.body) {
        pipe.abandon();
    }
}

struct Target {
    place: Place,
    scheme: Scheme,
    authority: Vec<u8>,
    path: Vec<u8>,
}

/// Where the URI reference of an internal redirect points.
enum Place {
    /// The reference names this host of the configuration (by its index).
    Host(u32),
    /// The reference names a server outside the configuration.
    Elsewhere(OtherServer),
    /// The reference is relative to the upstream server that gave the response.
    Upstream(Successor),
}

/// Resolves the URI reference of an internal redirect against the current request (RFC 3986 §5.2), and looks up the host in the
/// configuration. Returns `None` if the reference is invalid.
fn resolve(exchange: &Exchange, order: &mut Reroute) -> Option<Target> {
    let request = &exchange.request;
    let reference = Reference::parse(&order.url)?;
    // H2O compatibility: H2O resolves the reference against the target that it sent to the upstream server.
    let current = (exchange.forwarded.place()).map_or(request.target(), |(_, target)| target);
    let path = reference.target(current).into_owned();
    if let Some(successor) = order.successor.take() {
        return Some(Target {
            place: Place::Upstream(successor),
            scheme: request.scheme,
            authority: request.authority().to_vec(),
            path,
        });
    }
    let scheme = reference.scheme.unwrap_or(request.scheme);
    let hosts = &exchange.site.hosts;
    let (host, authority) = match reference.authority {
        // H2O compatibility: the authority becomes the name that the configuration has for the host, as in H2O, so that a reference
        // without an authority never leaves the server.
        None => {
            let current = exchange.site.host(exchange.route);
            let host = hosts.iter().position(|host| std::ptr::eq(host, current))?;
            (Some(host), current.authority.as_bytes())
        }
        Some(authority) => {
            let host = authority::split(authority).and_then(|(name, port)| {
                let mut hosts = hosts.iter();
                hosts.position(|host| host.name.matches(name, port, scheme))
            });
            (host, authority)
        }
    };
    let place = match host {
        Some(host) => Place::Host(u32::try_from(host).ok()?),
        None => {
            let server = OtherServer::new(scheme, authority)?;
            let is_ours_alone = server.is_unix_socket() && order.named_by == NamedBy::Response;
            Place::Elsewhere((!is_ours_alone).then_some(server)?)
        }
    };
    Some(Target {
        place,
        scheme,
        authority: authority.to_vec(),
        path,
    })
}
