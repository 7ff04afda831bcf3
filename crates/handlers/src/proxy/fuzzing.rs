//! Entry points for fuzzing: requests for backends, and their responses.

use h2o_exchange::{Exchange, Outcome};
use h2o_http::{Headers, RequestHead, StatusCode};
use h2o_upstream::{BackendUrl, Protocol, Reply};

use super::response;
use super::settings::ProxySettings;
use super::target::PathMapping;

/// Builds the request to `backend` from the request of `exchange`.
///
/// # Errors
/// The status of the response to the client, if the request must not be forwarded.
pub fn proxied_request(
    exchange: &mut Exchange,
    backend: &BackendUrl,
    protocol: Protocol,
) -> Result<RequestHead, StatusCode> {
    let path = exchange.site.path(exchange.route);
    let settings = path.settings.get::<ProxySettings>().clone();
    let rules = &settings.request;
    let wanted = rules
        .admit(&exchange.request, settings.tunnels)
        .map_err(|refusal| refusal.status)?;
    let mut head = RequestHead::default();
    rules.build(
        exchange,
        wanted,
        PathMapping::Below,
        backend,
        protocol,
        &mut head,
    );
    Ok(head)
}

/// Builds the response for the client from the reply of `backend`.
pub fn proxied_response(exchange: &mut Exchange, backend: &BackendUrl, reply: Reply) -> Outcome {
    let site = std::rc::Rc::clone(&exchange.site);
    let settings = site.path(exchange.route).settings.get::<ProxySettings>();
    let rules = &settings.request;
    match rules.admit(&exchange.request, settings.tunnels) {
        Ok(wanted) => {
            (settings.response).answer(exchange, wanted, backend.scheme, backend, false, reply)
        }
        Err(refusal) => Outcome::Done(refusal.response(exchange)),
    }
}

/// Stores an interim response of the backend for the client.
pub fn proxied_informational(exchange: &mut Exchange, status: StatusCode, headers: &Headers) {
    response::add_informational(exchange, status, headers);
}
