//! The directive `reproxy`: a response may name another resource that is sent in its place.

use h2o_config::{Directive, Levels};
use h2o_exchange::{
    BodyPipe, Exchange, Filter, FilterResult, NamedBy, Reroute, Response, Scope, SettingsMap,
};
use h2o_http::{Known, Method};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    levels: Levels::ALL_BUT_EXTENSION,
    ..Directive::setting(
        "reproxy",
        "ON|OFF",
        "OFF",
        "Whether the client gets the resource at the URL of the header `x-reproxy-url` in place of the response that has the \
         header. If a host of this server has the name in the URL, it serves the resource; otherwise the server fetches it over \
         the network. If the response has status 307 or 308, the URL is requested with the method and body of the request, \
         otherwise by `GET`. The header counts in responses of this server and its backends, not of servers that such a URL has \
         led to; URLs of Unix sockets are refused. `OFF`: the header is sent to the client. See [the page on the \
         proxy](proxy.md#let-the-application-decide-who-gets-a-file).",
        |scope, command| {
            scope.edit::<Reproxy>().0 = command.node.on_off()?;
            Ok(())
        },
    )
}];

/// The setting of `reproxy` at a configuration level.
#[derive(Clone, Debug, Default)]
struct Reproxy(bool);

/// Whether responses of a path with these settings may name another resource.
pub(crate) fn is_on(settings: &SettingsMap) -> bool {
    settings.peek::<Reproxy>().is_some_and(|reproxy| reproxy.0)
}

/// Makes the pipe of a request body keep the content that it passes on, if the response may be dropped and the request
/// sent again to another URL.
pub(crate) fn keep_content(exchange: &Exchange, pipe: &BodyPipe) {
    if exchange.is_delegated || is_on(&exchange.site.path(exchange.route).settings) {
        pipe.keep();
    }
}

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    is_on(&scope.settings).then(|| Box::new(ReproxyFilter) as _)
}

struct ReproxyFilter;

impl Filter for ReproxyFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        let Some(url) = response.headers.get(Known::XReproxyUrl) else {
            return FilterResult::Continue;
        };
        if exchange.has_unconfigured_target || *exchange.original_method() == Method::Connect {
            // Only backends of the configuration may name resources. A response to CONNECT is never replaced: the
            // client would read the other resource as bytes of the tunnel.
            return FilterResult::Continue;
        }
        let keeps_method = response.status.keeps_method();
        let method = if keeps_method {
            exchange.request.method.clone()
        } else {
            Method::Get
        };
        FilterResult::Reroute(Reroute {
            named_by: NamedBy::Response,
            keep_body: keeps_method,
            ..Reroute::to(url.to_vec(), method)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request};
    use h2o_exchange::{Body, RerouteKind};
    use h2o_http::StatusCode;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    #[test]
    fn responses_with_the_field_are_dropped() {
        let url = "x-reproxy-url: /a\nX-Reproxy-URL: /b";
        let cases = [
            // Each row: method, status and fields of the response; then the method of the next request, and whether it
            // keeps the request body.
            ("POST", 200, url, Some(("GET", false))),
            ("HEAD", 404, url, Some(("GET", false))),
            ("POST", 307, url, Some(("POST", true))),
            ("PUT", 308, url, Some(("PUT", true))),
            ("POST", 307, "location: /a", None),
        ];
        for (method, status, fields, want) in cases {
            let site = SETUP.read(["", "reproxy: ON", ""]).unwrap();
            let mut exchange = request(site, method, "default", "/");
            let status = StatusCode::new(status).unwrap();
            let mut response = Response::new(status, headers(fields), Body::Empty);
            let site = std::rc::Rc::clone(&exchange.site);
            let filter = &site.path(exchange.route).filters[0];
            let order = match filter.on_response(&mut exchange, &mut response) {
                FilterResult::Continue => None,
                FilterResult::Reroute(order) => Some(order),
            };
            let got = order.as_ref().map(|order| {
                assert_eq!(
                    (&*order.url, order.kind),
                    (&b"/a"[..], RerouteKind::Delegation)
                );
                (order.method.as_str(), order.keep_body)
            });
            assert_eq!(got, want, "{method} {status:?} {fields}");
        }
    }

    #[test]
    fn paths_without_it_have_no_filter() {
        for levels in [["", "", ""], ["reproxy: ON", "", "reproxy: OFF"]] {
            let site = SETUP.read(levels).unwrap();
            assert!(site.hosts[0].paths[0].filters.is_empty(), "{levels:?}");
        }
        let refusal = SETUP.refusal("reproxy: YES");
        assert!(
            refusal.contains("in command reproxy, argument must be one of: OFF,ON"),
            "{refusal}"
        );
    }
}
