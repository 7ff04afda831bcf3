//! The directive `redirect`, which sends clients to another URL, or runs the request again at another URL.

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{BodyUse, Exchange, Handler, Outcome, Reroute, Response, Scope};
use h2o_http::{Method, StatusCode, authority, escape};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "redirect",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
    value: "URL, or a mapping",
    default: "",
    help: "Redirects to `url` followed by the rest of the path and the query; with a plain URL the status is 302. Each `*` in \
           the URL stands for what the `*` of the host entry matched. A request cannot choose another host: after a URL that \
           ends with `/`, several slashes at the beginning of the rest become one.",
    apply: |scope, command| {
        let redirect = read(command)?;
        scope.handlers.push(Box::new(redirect));
        Ok(())
    },
}];

struct Redirect {
    url: Box<str>,
    /// Whether the URL has a `*` to be replaced.
    has_star: bool,
    status: StatusCode,
    kind: RedirectKind,
}

enum RedirectKind {
    /// The client gets a response with a redirect.
    External,
    /// The server runs the request again at the URL.
    Internal,
}

const ATTRIBUTES: [Attribute; 3] = [
    Attribute::required(
        "url",
        Kinds::SCALAR,
        "URL",
        "The URL to redirect to; the rest of the path and the query are appended.",
    ),
    Attribute::required(
        "status",
        Kinds::SCALAR,
        "300 to 399",
        "Status of the redirect. With `internal: YES`, 307 and 308 keep the method and the content of the request, \
         others make it a `GET`.",
    ),
    Attribute::optional(
        "internal",
        Kinds::SCALAR,
        "YES|NO",
        "NO",
        "`YES`: the client gets no redirect but the resource at the URL, from this server or another one.",
    ),
];

fn read(command: &Command<'_>) -> Result<Redirect, Error> {
    if command.node.as_sequence().is_some() {
        return Err(command.error("value must be a string or a mapping"));
    }
    if command.node.as_str().is_some() {
        let url = read_url(command.node)?;
        return Ok(Redirect {
            has_star: url.contains('*'),
            url,
            status: StatusCode::FOUND,
            kind: RedirectKind::External,
        });
    }
    let attributes = command.node.attributes(&ATTRIBUTES)?;
    let is_internal = match attributes.get("internal") {
        Some(word) => word.yes_no()?,
        None => false,
    };
    let url = read_url(attributes.require("url")?)?;
    Ok(Redirect {
        has_star: url.contains('*'),
        url,
        status: read_status(attributes.require("status")?)?,
        kind: if is_internal {
            RedirectKind::Internal
        } else {
            RedirectKind::External
        },
    })
}

fn read_url(node: &Node) -> Result<Box<str>, Error> {
    let url = node.scalar()?;
    // The URL is written into a header field unchanged, so it must be valid there.
    if url.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(node.error("URL must not contain control characters"));
    }
    if lacks_host(url) {
        return Err(node.error(
            "URL has a scheme or `//` and no host; write `http://HOST/` or a path such as `/`",
        ));
    }
    Ok(url.into())
}

/// Whether the URL has no host of its own, so that the path of the request, which the client chooses, would name it.
fn lacks_host(url: &str) -> bool {
    let scheme_end = match url.split_once(':') {
        Some((scheme, _))
            if ["http", "https"]
                .iter()
                .any(|it| it.eq_ignore_ascii_case(scheme)) =>
        {
            scheme.len() + 1
        }
        _ => 0,
    };
    match url[scheme_end..].strip_prefix("//") {
        Some(rest) => rest.is_empty() || rest.starts_with(['/', '?', '#', '\\']),
        None => scheme_end > 0,
    }
}

fn read_status(node: &Node) -> Result<StatusCode, Error> {
    Some(node.integer("%d", 0..=u64::MAX)?)
        .filter(|code| (300..=399).contains(code))
        .and_then(StatusCode::new)
        .ok_or_else(|| node.error("value of property `status` should be within 300 to 399"))
}

impl Handler for Redirect {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        match self.kind {
            RedirectKind::Internal if self.status.keeps_method() => BodyUse::Whole,
            RedirectKind::Internal | RedirectKind::External => BodyUse::None,
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        match self.kind {
            RedirectKind::Internal => {
                let url = self.destination(exchange);
                Outcome::Reroute(self.reroute_internally(exchange, url))
            }
            // The request is an internal redirect already, so its client gets the content of the URL, not a redirect.
            RedirectKind::External if exchange.is_delegated => {
                let url = self.destination(exchange);
                Outcome::Reroute(self.follow(exchange, url))
            }
            RedirectKind::External => {
                let headers = exchange.headers();
                // The exact size of the URL in the response, unless some of it is escaped or filled in.
                let key = key_of(exchange);
                let len =
                    self.url.len() + exchange.request.target().len().saturating_sub(key.len());
                Outcome::Done(Response::redirect_to(
                    headers,
                    self.status,
                    "Redirected",
                    len,
                    |page| self.write_destination(exchange, page),
                ))
            }
        }
    }
}

/// The configured path without a slash at its end: the rest of the request's path begins with a slash.
pub(crate) fn key_of(exchange: &Exchange) -> &str {
    let key = &*exchange.site.path(exchange.route).path;
    key.strip_suffix('/').unwrap_or(key)
}

impl Redirect {
    fn destination(&self, exchange: &Exchange) -> Vec<u8> {
        let mut url = Vec::with_capacity(self.url.len() + exchange.request.target().len());
        self.write_destination(exchange, &mut url);
        url
    }

    /// Appends the configured URL, the rest of the request's path, and the query, joined as text. Only the URL may name
    /// a host: if it is just `/`, leading slashes of the rest become one, since `//` would begin an authority (RFC 3986
    /// §4.2).
    fn write_destination(&self, exchange: &Exchange, url: &mut Vec<u8>) {
        let path = exchange.request.path();
        let rest = path.get(key_of(exchange).len()..).unwrap_or_default();

        self.fill_in_host(exchange, url);
        let rest = match &*self.url {
            "/" => trim_slashes(rest),
            "" if rest.starts_with(b"/") => {
                url.push(b'/');
                trim_slashes(rest)
            }
            _ if url.ends_with(b"/") => rest.strip_prefix(b"/").unwrap_or(rest),
            _ => rest,
        };
        escape::uri(rest, b"/@:", url);
        url.extend_from_slice(exchange.request.query());
    }

    /// Appends the configured URL with each `*` replaced by the text that the `*` of the host entry matched. The `*`
    /// stays if the host entry has no wildcard.
    fn fill_in_host(&self, exchange: &Exchange, filled: &mut Vec<u8>) {
        let url = self.url.as_bytes();
        if !self.has_star {
            filled.extend_from_slice(url);
            return;
        }
        let entry = &exchange.site.host(exchange.route).name;
        let matched = authority::split(exchange.request.authority())
            .filter(|(host, _)| entry.matches_name(host))
            .zip(entry.name.strip_prefix('*'))
            .map(|((host, _), suffix)| &host[..host.len() - suffix.len()]);
        let Some(matched) = matched else {
            filled.extend_from_slice(url);
            return;
        };
        for &byte in url {
            match byte {
                b'*' => filled.extend_from_slice(matched),
                byte => filled.push(byte),
            }
        }
    }

    fn reroute_internally(&self, exchange: &Exchange, url: Vec<u8>) -> Reroute {
        let keeps_method = self.status.keeps_method();
        let method = if keeps_method {
            exchange.request.method.clone()
        } else {
            Method::Get
        };
        Reroute {
            unresolved: || {
                Response::error(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "Internal Server Error",
                    "internal server error",
                )
            },
            keep_body: keeps_method,
            ..Reroute::to(url, method)
        }
    }

    fn follow(&self, exchange: &Exchange, url: Vec<u8>) -> Reroute {
        let method = match &exchange.request.method {
            Method::Post if !self.status.keeps_method() => Method::Get,
            method => method.clone(),
        };
        Reroute::to(url, method)
    }
}

/// Removes the slashes at the beginning of `text`.
fn trim_slashes(mut text: &[u8]) -> &[u8] {
    while let [b'/', rest @ ..] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, request};
    use h2o_exchange::{Body, NamedBy, RerouteFields, RerouteKind};
    use h2o_http::Known;

    const SETUP: Setup = Setup {
        host: "*.old.example",
        ..Setup::new(DIRECTIVES, None)
    };

    fn ask(
        path: &'static str,
        config: &str,
        edit: impl FnOnce(&mut Exchange),
        target: &str,
    ) -> Outcome {
        let setup = Setup { path, ..SETUP };
        let site = setup
            .read(["", "", config])
            .unwrap_or_else(|error| panic!("{error}"));
        let mut exchange = request(site, "POST", "Shop.old.example:8080", target);
        edit(&mut exchange);
        let site = std::rc::Rc::clone(&exchange.site);
        site.path(exchange.route).handlers[0].on_request(&mut exchange)
    }

    fn location(path: &'static str, url: &str, target: &str) -> String {
        let outcome = ask(path, &format!("redirect: {url}"), |_| (), target);
        let Outcome::Done(response) = outcome else {
            panic!("the redirect to {url} is external")
        };
        response
            .headers
            .get(Known::Location)
            .unwrap()
            .escape_ascii()
            .to_string()
    }

    #[test]
    fn destination_is_url_then_rest_of_path_then_query() {
        let cases = [
            ("/r", "http://h/x", "/r", "http://h/x"),
            ("/r", "http://h/x", "/r/a", "http://h/x/a"),
            ("/r", "http://h/x", "/r/", "http://h/x/"),
            ("/r", "http://h/x/", "/r", "http://h/x/"),
            ("/r", "http://h/x/", "/r/a", "http://h/x/a"),
            ("/r/", "http://h/x", "/r/a", "http://h/x/a"),
            ("/r/", "http://h/x", "/r/", "http://h/x/"),
            ("/r/", "http://h/x/", "/r/a?q", "http://h/x/a?q"),
            ("/", "http://h/?u=", "/a?q", "http://h/?u=/a?q"),
            ("/", "http://h", "/", "http://h/"),
            ("/", "/b", "/a", "/b/a"),
            ("/", "b", "/a", "b/a"),
            ("/", "", "/a", "/a"),
            ("/", "", "/", "/"),
            ("/r", "", "/r", ""),
            (
                "/",
                "http://h",
                "/%41/..//b%20%3F%2a%40:%c3%a4\"?%41\"",
                "http://h//b%20%3F*@:%C3%A4%22?%41\\\"",
            ),
        ];
        for (path, url, target, want) in cases {
            assert_eq!(location(path, url, target), want, "{path} {url} {target}");
        }
    }

    #[test]
    fn the_path_of_a_request_never_names_the_host() {
        for url in ["/", "''"] {
            for (path, target) in [
                ("/r/", "/r//evil.example/login"),
                ("/r/", "/r/%2f/evil.example/login"),
                ("/r", "/r///evil.example/login"),
                ("/r", "/r/x/..//%2Fevil.example/login"),
                ("/", "//evil.example/login"),
            ] {
                let got = location(path, url, target);
                assert_eq!(got, "/evil.example/login", "{path} {url} {target}");
            }
        }
        assert_eq!(location("/r", "/", "/r/\\evil.example"), "/%5Cevil.example");
        assert_eq!(location("/r", "/b", "/r//c"), "/b//c");
    }

    #[test]
    fn stars_stand_for_what_the_wildcard_matched() {
        let cases = [
            (
                "*.old.example",
                "Shop.old.example:81",
                "https://Shop.new.example/Shop/",
            ),
            (
                "*.old.example",
                "a.b.old.example",
                "https://a.b.new.example/a.b/",
            ),
            (
                "*",
                "Any.example",
                "https://Any.example.new.example/Any.example/",
            ),
            ("*.old.example", "other.example", "https://*.new.example/*/"),
            ("*.old.example", "", "https://*.new.example/*/"),
            ("old.example", "old.example", "https://*.new.example/*/"),
        ];
        for (host, authority, want) in cases {
            let setup = Setup { host, ..SETUP };
            let config = "redirect: 'https://*.new.example/*/'";
            let mut exchange =
                request(setup.read(["", "", config]).unwrap(), "GET", authority, "/");
            let site = std::rc::Rc::clone(&exchange.site);
            let outcome = site.path(exchange.route).handlers[0].on_request(&mut exchange);
            let Outcome::Done(response) = outcome else {
                panic!("the redirect is external")
            };
            assert_eq!(
                response.headers.get(Known::Location).unwrap(),
                want.as_bytes(),
                "{host} {authority}"
            );
        }
    }

    #[test]
    fn external_redirects_send_a_small_page() {
        let config = "redirect: { url: 'http://h/?a&', status: 308 }";
        let Outcome::Done(response) = ask("/", config, |_| (), "/") else {
            panic!("the redirect is external")
        };
        assert_eq!(
            (response.status.as_u16(), response.reason()),
            (308, "Redirected")
        );
        let Body::Bytes(page) = &response.body else {
            panic!("the page is in memory")
        };
        assert_eq!(
            page,
            "<!DOCTYPE html><TITLE>Moved</TITLE><P>The document has moved <A HREF=\"http://h/?a&amp;/\">here</A>"
        );
    }

    /// The internal redirect that a request causes: its method, its URL, and whether the body is kept.
    fn rerouted(config: &str, edit: impl FnOnce(&mut Exchange)) -> (String, String, bool) {
        let Outcome::Reroute(reroute) = ask("/", config, edit, "/a") else {
            panic!("{config}: the redirect is internal")
        };
        assert_eq!(reroute.kind, RerouteKind::Delegation);
        assert!(reroute.fields == RerouteFields::All && reroute.restore.is_none());
        assert_eq!(reroute.named_by, NamedBy::Configuration);
        let url = String::from_utf8(reroute.url).unwrap();
        (reroute.method.as_str().to_owned(), url, reroute.keep_body)
    }

    #[test]
    fn internal_redirects_keep_method_and_body_for_307_and_308() {
        for (status, method, keeps) in [
            (300, "GET", false),
            (302, "GET", false),
            (307, "POST", true),
            (308, "POST", true),
        ] {
            let config = format!("redirect: {{ url: /b/, status: {status}, internal: yes }}");
            let want = (method.to_owned(), "/b/a".to_owned(), keeps);
            assert_eq!(rerouted(&config, |_| ()), want, "{status}");
        }
        let config = "redirect: { url: /b, status: 302, internal: YES }";
        let Outcome::Reroute(reroute) = ask("/", config, |_| (), "/") else {
            panic!("the redirect is internal")
        };
        let answer = (reroute.unresolved)();
        assert_eq!(
            (answer.status.as_u16(), answer.reason()),
            (503, "Internal Server Error")
        );
    }

    #[test]
    fn external_redirects_of_delegated_requests_are_followed() {
        let cases = [
            (302, Method::Post, "GET"),
            (302, Method::Put, "PUT"),
            (307, Method::Post, "POST"),
        ];
        for (status, method, want) in cases {
            let config = format!("redirect: {{ url: http://h/, status: {status}, internal: NO }}");
            let got = rerouted(&config, |exchange| {
                exchange.is_delegated = true;
                exchange.request.method = method;
            });
            assert_eq!(
                got,
                (want.to_owned(), "http://h/a".to_owned(), true),
                "{status}"
            );
        }
    }

    #[test]
    fn other_values_are_refused() {
        const NO_HOST: &str = "URL has a scheme or `//` and no host; write `http://HOST/` or a path such as `/` (column 11)";
        let cases = [
            ("[]", "value must be a string or a mapping (column 11)"),
            (
                "{ url: /a }",
                "cannot find mandatory attribute: status (column 11)",
            ),
            (
                "{ status: 301 }",
                "cannot find mandatory attribute: url (column 11)",
            ),
            (
                "{ url: /a, internal: YES }",
                "cannot find mandatory attribute: status (column 11)",
            ),
            (
                "{ url: /a, status: 299 }",
                "value of property `status` should be within 300 to 399 (column 30)",
            ),
            (
                "{ url: /a, status: 400 }",
                "value of property `status` should be within 300 to 399 (column 30)",
            ),
            (
                "{ url: /a, status: 30x }",
                "argument must match the format: %d (column 30; `30x` is not a whole number; write digits only)",
            ),
            (
                "{ url: /a, status: 301, internal: ON }",
                "argument must be one of: YES,NO (column 45; did you mean `YES`?)",
            ),
            (
                "{ url: /a, statsu: 301 }",
                "unexpected key:statsu (column 22; did you mean `status`?)",
            ),
            (
                "{ url: [ /a ], status: 301 }",
                "attribute `url` must be a scalar (column 18)",
            ),
            (
                "\"/a\\r\\nb\"",
                "URL must not contain control characters (column 11)",
            ),
            ("//", NO_HOST),
            ("///a", NO_HOST),
            ("'https:'", NO_HOST),
            ("HTTP:/a", NO_HOST),
            ("http://", NO_HOST),
            ("https:///", NO_HOST),
            ("https://?a", NO_HOST),
        ];
        for (value, want) in cases {
            assert_eq!(
                SETUP.refusal(&format!("redirect: {value}")),
                format!("[f:1] in command redirect, {want}"),
                "{value}"
            );
        }
    }
}
