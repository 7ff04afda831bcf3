//! The resources to push with a response: those of its `link` fields, and those of `http2-push`. The connection's driver
//! decides whether they are pushed (RFC 9113 §8.4).

pub mod cache_digest;
pub mod casper;
mod golomb;
mod link;
mod settings;

use h2o_config::{Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{Exchange, Filter, FilterResult, LinkHeaderUse, PushOrder, Response, Scope};
use h2o_http::{Headers, Known, Method, Name, StatusCode, Version};

use link::{Base, elements, resolve, without_push_only};

pub(crate) use settings::DIRECTIVES as SETTINGS_DIRECTIVES;
pub use settings::{CasperSettings, PushSettings};

/// Most resources that are pushed with one response; further ones are left out. Clients allow about as many streams at
/// a time.
const MAX_ORDERS: usize = 100;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "http2-push",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
    value: "an element such as `</style.css>; rel=preload; critical`, or a sequence of them",
    default: "",
    help: "Not in H2O: resources that are pushed over HTTP/2 with each response to a GET that has status 200 and type \
           `text/html`, as if a backend had sent the element in a `link` header. Nothing is added to the response. \
           Replaces the value of an outer level; an empty sequence pushes nothing.",
    apply: |scope, command| {
        let links = command
            .node
            .one_or_more()
            .iter()
            .map(read)
            .collect::<Result<_, _>>()?;
        scope.edit::<PushLinks>().0 = links;
        Ok(())
    },
}];

/// The elements of the setting `http2-push`.
#[derive(Clone, Debug, Default)]
struct PushLinks(Vec<PushLink>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PushLink {
    url: Box<[u8]>,
    critical: bool,
}

fn read(node: &Node) -> Result<PushLink, Error> {
    let malformed = || {
        node.error("argument must be in the form of: `<URL>; rel=preload` (see --help)")
            .with_hint("one resource, such as `</style.css>; rel=preload; critical`; for several, write a list")
    };
    let text = node
        .as_str()
        .ok_or_else(|| node.error("element of a sequence passed to http2-push must be a scalar"))?;
    let mut all = elements(text.as_bytes());
    let (Some(element), None) = (all.next(), all.next()) else {
        return Err(malformed());
    };
    let url = element.url.filter(|_| element.is_to_be_pushed());
    // The reference is resolved for each request, but whether it is valid can be checked now.
    let url = url
        .filter(|url| url.iter().all(u8::is_ascii_graphic))
        .ok_or_else(malformed)?;
    Ok(PushLink {
        url: url.into(),
        critical: element.critical,
    })
}

/// Orders the pushes of a response's `link` fields, as far as its origin permits, and removes elements with
/// `x-http2-push-only`, which are not for the client, whatever its HTTP version. Must be called before the filters of
/// the path. H2O compatibility: H2O ignores `link` fields that filters add.
pub fn collect(exchange: &mut Exchange, response: &mut Response) {
    match response.links {
        LinkHeaderUse::Plain => {}
        LinkHeaderUse::Push => order_links(exchange, &response.headers),
        LinkHeaderUse::PushAndFilter => {
            order_links(exchange, &response.headers);
            if response
                .headers
                .get_all(Known::Link)
                .any(|value| without_push_only(value).is_some())
            {
                response.headers.edit(|field| {
                    (field.name == Name::Known(Known::Link))
                        .then(|| without_push_only(field.value))
                        .flatten()
                });
            }
        }
    }
}

/// Orders the pushes for the `link` fields of a response, which may be final or interim.
pub(crate) fn order_links(exchange: &mut Exchange, headers: &Headers) {
    if headers.get(Known::Link).is_none() || !may_push(exchange) {
        return;
    }
    for value in headers.get_all(Known::Link) {
        for element in elements(value).filter(link::Element::is_to_be_pushed) {
            if let Some(url) = element.url {
                order(exchange, url, element.critical);
            }
        }
    }
}

/// Whether the request allows pushes with its response. Pushed responses (on streams with even numbers) push nothing. Nor
/// do requests that a proxy has forwarded: the pushes might reach the cache of another client.
fn may_push(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    request.version == Version::Http2
        && exchange
            .protocol
            .http2()
            .is_some_and(|stream| stream.id % 2 == 1)
        && matches!(exchange.original_method(), Method::Get | Method::Head)
        && request.headers.get(Known::XForwardedFor).is_none()
        && site_settings(exchange, |settings| settings.preload)
}

fn site_settings(exchange: &Exchange, ask: impl FnOnce(&PushSettings) -> bool) -> bool {
    let path = exchange.site.path(exchange.route);
    match path.settings.peek() {
        Some(settings) => ask(&settings),
        None => ask(&PushSettings::default()),
    }
}

/// Orders a push, unless the resource was ordered already.
fn order(exchange: &mut Exchange, url: &[u8], critical: bool) {
    let base = Base {
        scheme: exchange.request.scheme,
        // The authority of the pushed resource is that of the client's request, even after an internal redirect to
        // another name.
        authority: exchange.original_authority(),
        target: exchange.request.target(),
    };
    let any_authority = site_settings(exchange, |settings| settings.allow_cross_origin);
    let Some(target) = resolve(url, &base, any_authority) else {
        return;
    };
    // The client has requested the resource itself, so it is not pushed.
    if target == exchange.original_target() || exchange.pushes.len() >= MAX_ORDERS {
        return;
    }
    match exchange
        .pushes
        .iter_mut()
        .find(|known| known.target == target)
    {
        Some(known) => known.critical |= critical,
        None => exchange.pushes.push(PushOrder { target, critical }),
    }
}

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    let links = scope.settings.peek::<PushLinks>()?.0.clone();
    (!links.is_empty()).then(|| Box::new(PushFilter { links }) as Box<dyn Filter>)
}

struct PushFilter {
    links: Vec<PushLink>,
}

impl Filter for PushFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        if response.status == StatusCode::OK
            && exchange.request.method == Method::Get
            && is_html(response)
            && may_push(exchange)
        {
            for link in &self.links {
                order(exchange, &link.url, link.critical);
            }
        }
        FilterResult::Continue
    }
}

fn is_html(response: &Response) -> bool {
    let content_type = response.headers.get(Known::ContentType).unwrap_or_default();
    let essence = content_type.split(|&byte| byte == b';').next();
    essence.is_some_and(|essence| essence.trim_ascii().eq_ignore_ascii_case(b"text/html"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request, shown};
    use h2o_exchange::{Body, Http2Stream, Protocol};
    use h2o_http::Scheme;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    /// An exchange with a request over HTTP/2, as a browser sends it.
    fn browser(config: &str) -> Exchange {
        let site = SETUP
            .read(["", "", config])
            .unwrap_or_else(|error| panic!("{error}"));
        let mut exchange = request(site, "GET", "a.test", "/d/e");
        exchange.request.version = Version::Http2;
        exchange.request.scheme = Scheme::Https;
        exchange.protocol = Protocol::Http2(Http2Stream {
            id: 1,
            ..Http2Stream::default()
        });
        exchange
    }

    fn response(links: LinkHeaderUse, fields: &str) -> Response {
        let mut response = Response::new(StatusCode::OK, headers(fields), Body::Empty);
        response.links = links;
        response
    }

    /// The targets of the ordered pushes, in order; critical ones have a `!`.
    fn pushes(exchange: &Exchange) -> String {
        let all: Vec<_> = exchange
            .pushes
            .iter()
            .map(|order| {
                let mark = if order.critical { "!" } else { "" };
                format!("{}{mark}", order.target.escape_ascii())
            })
            .collect();
        all.join(" ")
    }

    #[test]
    fn links_are_obeyed_as_their_maker_says() {
        let fields = "link: </a>; rel=preload; critical, <b>; rel=preload; x-http2-push-only\nx: y\nlink: </a>; rel=preload; x-http2-push-only\nlink: </n>; rel=preload; nopush, </s>; rel=next";
        let filtered = "link: </a>; rel=preload; critical\nx: y\nlink: </n>; rel=preload; nopush, </s>; rel=next";
        let cases = [
            (LinkHeaderUse::Plain, "", fields),
            (LinkHeaderUse::Push, "/a! /d/b", fields),
            (LinkHeaderUse::PushAndFilter, "/a! /d/b", filtered),
        ];
        for (links, want, left) in cases {
            let mut exchange = browser("");
            let mut response = response(links, fields);
            collect(&mut exchange, &mut response);
            assert_eq!(pushes(&exchange), want, "{links:?}");
            assert_eq!(shown(&response.headers), left, "{links:?}");
        }
    }

    #[test]
    fn a_response_without_such_elements_keeps_its_head_as_it_is() {
        let mut response = response(LinkHeaderUse::PushAndFilter, "link: </a>; rel=preload");
        collect(&mut browser(""), &mut response);
        assert!(response.headers.wire().is_some());
    }

    #[test]
    fn pushes_are_for_plain_requests_over_http_2() {
        type Edit = fn(&mut Exchange);
        let cases: [(&str, Edit, &str); 8] = [
            (
                "head",
                |exchange| exchange.request.method = Method::Head,
                "/a",
            ),
            (
                "post",
                |exchange| exchange.request.method = Method::Post,
                "",
            ),
            (
                "http/1",
                |exchange| exchange.request.version = Version::Http11,
                "",
            ),
            (
                "no stream",
                |exchange| exchange.protocol = Protocol::default(),
                "",
            ),
            (
                "pushed itself",
                |exchange| exchange.protocol.http2_mut().unwrap().id = 2,
                "",
            ),
            (
                "forwarded",
                |exchange| exchange.request.headers.push(Known::XForwardedFor, b"::1"),
                "",
            ),
            (
                "itself",
                |exchange| {
                    let target = exchange.request.headers.store(b"/a");
                    exchange.request.set_target(target);
                },
                "",
            ),
            (
                "clear text",
                |exchange| exchange.request.scheme = Scheme::Http,
                "/a",
            ),
        ];
        for (name, edit, want) in cases {
            let mut exchange = browser("");
            edit(&mut exchange);
            let mut response = response(
                LinkHeaderUse::PushAndFilter,
                "link: </a>;rel=preload;x-http2-push-only",
            );
            collect(&mut exchange, &mut response);
            assert_eq!(pushes(&exchange), want, "{name}");
            assert_eq!(
                shown(&response.headers),
                "",
                "link elements are removed from every response: {name}"
            );
        }
    }

    #[test]
    fn a_response_orders_a_bounded_number_of_pushes() {
        let fields = format!(
            "link: {}",
            (0..=MAX_ORDERS)
                .map(|n| format!("</{n}>;rel=preload,"))
                .collect::<String>()
        );
        let mut exchange = browser("");
        collect(&mut exchange, &mut response(LinkHeaderUse::Push, &fields));
        assert_eq!(exchange.pushes.len(), MAX_ORDERS);
    }

    #[test]
    fn pages_push_what_is_configured() {
        let links = "http2-push: [</a>; rel=preload; critical, <b>; rel=preload]";
        let html = "content-type: Text/HTML; charset=utf-8";
        let cases = [
            (links, 200, html, "/a! /d/b"),
            ("http2-push: </a>; rel=preload", 200, html, "/a"),
            (
                "http2-push: </a>; rel=preload\nhttp2-push: </b>; rel=preload",
                200,
                html,
                "/b",
            ),
            ("http2-push: []", 200, html, ""),
            (links, 404, html, ""),
            (links, 304, html, ""),
            (links, 200, "content-type: text/htmlx", ""),
            (links, 200, "", ""),
        ];
        for (config, status, fields, want) in cases {
            let mut exchange = browser(config);
            let mut response = response(LinkHeaderUse::Plain, fields);
            response.status = StatusCode::new(status).unwrap();
            let site = std::rc::Rc::clone(&exchange.site);
            for filter in &site.path(exchange.route).filters {
                filter.on_response(&mut exchange, &mut response);
            }
            assert_eq!(pushes(&exchange), want, "{config} {status} {fields}");
            assert_eq!(shown(&response.headers), fields);
        }
    }

    #[test]
    fn other_elements_are_refused() {
        let form = "argument must be in the form of: `<URL>; rel=preload` (see --help)";
        let cases = [
            "/a",
            "''",
            "</a>",
            "</a>; rel=next",
            "</a>; rel=preload; nopush",
            "'</a>; rel=preload, </b>; rel=preload'",
            "</a b>; rel=preload",
        ];
        for value in cases {
            let refusal = SETUP.refusal(&format!("http2-push: {value}"));
            assert!(
                refusal.starts_with(&format!("[f:1] in command http2-push, {form}")),
                "{value}: {refusal}"
            );
        }
        let refusal = SETUP.refusal("http2-push: [[]]");
        assert!(
            refusal.contains("element of a sequence passed to http2-push must be a scalar"),
            "{refusal}"
        );
    }
}
