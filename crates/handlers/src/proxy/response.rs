//! Builds the response to the client from the response of a backend, or an error response in its place.

use std::borrow::Cow;

use h2o_exchange::{
    Body, CompressHint, Exchange, ForwardedRequest, LinkHeaderUse, NamedBy, Outcome, Reroute,
    RerouteFields, Response,
};
use h2o_http::{Field, Headers, Known, Method, Name, Scheme, StatusCode};
use h2o_upstream::{BackendUrl, Failure, FailureCause, Reply};

use super::connection_options::{ConnectionOptions, TooManyOptions, names_fields};
use super::goodbye::GracefulWebSocket;
use super::target::{self, MountedRequest, PathMapping};
use super::tunnel_kind::TunnelKind;
use super::websocket;
use crate::{header, push};

/// A response to a request that is not sent to a backend. HTTP/1 connections are closed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) text: &'static str,
}

impl Refusal {
    pub(super) fn response(self, exchange: &mut Exchange) -> Response {
        if self.status == StatusCode::BAD_GATEWAY {
            exchange.note_error(ForwardedRequest::LABEL, self.text);
        }
        exchange.worker.counters.count_status(self.status);
        let mut response = Response::error(self.status, self.reason, self.text);
        response.closes = true;
        response
    }
}

/// The configured changes to responses of backends.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseRules {
    /// The setting of `proxy.emit-missing-date-header`.
    pub(super) emit_missing_date: bool,
    /// The setting of `proxy.forward.close-connection`.
    pub(super) forward_close: bool,
    /// Whether `location` fields that name the backend are rewritten to name this server.
    pub(super) relocates: bool,
}

/// Which fields that need special treatment a response has.
#[derive(Default)]
struct NotedFields {
    link: bool,
    location: bool,
    compress_hint: CompressHint,
}

impl ResponseRules {
    /// Builds the response for the client. `scheme` is the scheme of the request to the backend.
    pub(super) fn answer(
        self,
        exchange: &mut Exchange,
        wanted: TunnelKind,
        scheme: Scheme,
        backend: &BackendUrl,
        keeps_server: bool,
        mut reply: Reply,
    ) -> Outcome {
        if wanted == TunnelKind::Protocol
            && !reply.is_tunnel
            && opens_tunnel(exchange, reply.status)
        {
            // A backend that did not switch protocols must not send a status that tells the client that it did.
            let text = "the upstream server did not switch protocols";
            exchange.note_error(ForwardedRequest::LABEL, text);
            return Outcome::Done(bad_gateway(exchange, text));
        }
        // For a WebSocket by extended CONNECT, `sec-websocket-accept` is not forwarded: it answers the key that this
        // server sent to the backend, since the client sent none.
        let is_extended =
            wanted == TunnelKind::Protocol && exchange.request.method == Method::Connect;
        let mut noted = NotedFields::default();
        let mut options = Vec::new();
        reply.headers.retain(|field| match field.name {
            name if is_of_hop(name) => {
                note_options(&field, &mut options);
                false
            }
            Name::Known(Known::XCompressHint) => {
                noted.compress_hint = CompressHint::parse(field.value);
                false
            }
            Name::Known(Known::Server) => keeps_server,
            Name::Known(known) => {
                noted.link |= known == Known::Link;
                noted.location |= known == Known::Location;
                true
            }
            Name::Other(name) => !(is_extended && name == websocket::ANSWER),
        });
        match ConnectionOptions::read(std::iter::once(&*options)) {
            Ok(options) => options.remove_named(&mut reply.headers),
            Err(TooManyOptions) => {
                let text = "invalid response from upstream";
                return Outcome::Done(bad_gateway(exchange, text));
            }
        }
        if noted.location
            && exchange.is_delegated
            && let Some(order) = follow(exchange, scheme, &reply)
        {
            return Outcome::Reroute(order);
        }
        if noted.location && self.relocates {
            let place = MountedRequest {
                scheme: exchange.request.scheme,
                authority: exchange.request.authority(),
                mount: &exchange.site.path(exchange.route).path,
            };
            reply.headers.edit(|field| match field.name {
                Name::Known(Known::Location) => {
                    target::relocated(field.value, backend, place).map(Some)
                }
                _ => None,
            });
        }
        let is_websocket = reply.is_tunnel
            && exchange
                .request
                .upgrade()
                .eq_ignore_ascii_case(b"websocket");
        if is_websocket && let Body::Stream(frames) = reply.body {
            reply.body = Body::Stream(Box::new(GracefulWebSocket::new(&exchange.worker, frames)));
        }
        Outcome::Done(Response {
            status: match wanted {
                TunnelKind::Protocol if reply.is_tunnel => StatusCode::SWITCHING_PROTOCOLS,
                TunnelKind::Nothing | TunnelKind::Protocol | TunnelKind::Connect => reply.status,
            },
            reason: reply.reason.map(|reason| Cow::Owned(reason.into())),
            headers: reply.headers,
            length: reply.length,
            body: reply.body,
            links: if noted.link {
                LinkHeaderUse::PushAndFilter
            } else {
                LinkHeaderUse::Plain
            },
            compress_hint: noted.compress_hint,
            closes: self.forward_close && reply.closes,
            is_refusal: false,
            is_plain_error: false,
            is_undated: !self.emit_missing_date,
        })
    }
}

/// Passes an interim response of the backend to the client. The resources that its `link` fields name are pushed, even
/// if the response does not reach the client.
pub(super) fn add_informational(exchange: &mut Exchange, status: StatusCode, headers: &Headers) {
    push::order_links(exchange, headers);
    let mut headers = headers.clone();
    let mut options = Vec::new();
    headers.retain(|field| {
        note_options(&field, &mut options);
        !is_of_hop(field.name)
    });
    let Ok(options) = ConnectionOptions::read(std::iter::once(&*options)) else {
        return;
    };
    options.remove_named(&mut headers);
    if status == StatusCode::EARLY_HINTS {
        let path = exchange.site.path(exchange.route);
        header::edit_early(&path.settings, &mut headers);
        if headers.is_empty() {
            return;
        }
    }
    exchange.informational.push((status, headers));
}

/// Appends a `connection` value to `options` if it may name fields.
fn note_options(field: &Field<'_>, options: &mut Vec<u8>) {
    if field.name == Name::Known(Known::Connection) && names_fields(field.value) {
        options.extend_from_slice(field.value);
        options.push(b',');
    }
}

/// Whether the field belongs to the connection with the backend or is written by the engines, so that it is not
/// forwarded.
const fn is_of_hop(name: Name<'_>) -> bool {
    matches!(
        name,
        Name::Known(
            Known::Connection
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::Te
                | Known::TransferEncoding
                | Known::Upgrade
                | Known::DatagramFlowId
                | Known::ContentLength
        )
    )
}

/// Whether a response with this status would open a tunnel for the client (RFC 8441 §5).
fn opens_tunnel(exchange: &Exchange, status: StatusCode) -> bool {
    exchange.request.method == Method::Connect && (200..300).contains(&status.as_u16())
}

/// Follows a redirect in a response to an internal redirect, so that the client gets content. H2O compatibility: H2O
/// follows it, too. The client's credentials are sent only to its own origin or that of the backend. Redirects of
/// unconfigured servers are not followed but passed to the client: their target may be a place that neither they nor
/// clients can reach.
fn follow(exchange: &Exchange, scheme: Scheme, reply: &Reply) -> Option<Reroute> {
    let status = reply.status;
    let is_redirect = (300..400).contains(&status.as_u16()) && status != StatusCode::NOT_MODIFIED;
    if !is_redirect || *exchange.original_method() == Method::Connect {
        return None;
    }
    let url = reply.headers.get(Known::Location)?;
    let leads_back = leads_back(exchange, scheme, url);
    if exchange.has_unconfigured_target && !leads_back {
        return None;
    }
    let client = (exchange.original_scheme(), exchange.original_authority());
    let fields = if leads_back || target::stays(url, client.0, client.1) {
        RerouteFields::All
    } else {
        RerouteFields::WithoutCredentials
    };
    let method = match &exchange.request.method {
        Method::Post if !status.keeps_method() => Method::Get,
        method => method.clone(),
    };
    let keep_body = method == exchange.request.method;
    Some(Reroute {
        fields,
        named_by: NamedBy::Response,
        keep_body,
        ..Reroute::to(url.to_vec(), method)
    })
}

/// Whether the URL in a backend's `location` field leads back to the server that answered, under this `scheme`.
pub(super) fn leads_back(exchange: &Exchange, scheme: Scheme, location: &[u8]) -> bool {
    let place = exchange.forwarded.place();
    place.is_some_and(|(authority, _)| target::stays(location, scheme, authority))
}

/// The response to a request that got no response from a backend.
pub(super) fn failed(exchange: &mut Exchange, mapping: PathMapping, failure: &Failure) -> Response {
    if exchange.forwarded.place().is_none() {
        // No backend was contacted: the log shows the client's authority and the path after the configured path.
        let mount = &exchange.site.path(exchange.route).path;
        let request = &exchange.request;
        let is_connect = request.method == Method::Connect && request.upgrade().is_empty();
        let rest = mapping.rest(mount, request);
        let pieces = if is_connect {
            // CONNECT has no path: its target is an authority.
            [&[][..]; 3]
        } else {
            mapping.target(mount, b"/", &rest)
        };
        exchange.forwarded.set(request.authority(), pieces);
    }
    let text = failure.log.as_ref().unwrap_or(&failure.text);
    exchange.note_error(ForwardedRequest::LABEL, text);
    if failure.refused {
        let mut response = error(&failure.text);
        response.is_refusal = true;
        return response;
    }
    if failure.cause == FailureCause::NoDescriptor {
        return crate::unavailable(exchange);
    }
    bad_gateway(exchange, &failure.text)
}

pub(super) fn bad_gateway(exchange: &Exchange, text: &str) -> Response {
    let counters = &exchange.worker.counters;
    counters.count_status(StatusCode::BAD_GATEWAY);
    error(text)
}

fn error(text: &str) -> Response {
    Response::error(StatusCode::BAD_GATEWAY, "Gateway Error", text)
}
