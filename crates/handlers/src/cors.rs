//! The directive `cors`: lets pages of other origins read responses (the CORS protocol of the Fetch standard).

use std::sync::Arc;

use h2o_config::{Attribute, Attributes, Command, Directive, Error, Kinds, Levels, Node};
use h2o_exchange::{
    Body, BodyUse, Exchange, Filter, FilterResult, Handler, Outcome, Response, Scope,
};
use h2o_http::{Headers, Known, Method, Name, StatusCode, escape};

const LIST: Kinds = Kinds::SCALAR.or(Kinds::SEQUENCE);

const ATTRIBUTES: [Attribute; 6] = [
    Attribute::required(
        "origins",
        LIST,
        "`\"*\"`, or a list of `SCHEME://HOST[:PORT]`",
        "The origins whose pages may read responses; `*` stands for all origins.",
    ),
    Attribute::optional(
        "methods",
        LIST,
        "METHOD, or a list of these",
        "`[GET, HEAD, POST]`",
        "Methods that pages may use.",
    ),
    Attribute::optional(
        "headers",
        LIST,
        "NAME, or a list of these",
        "those of simple requests",
        "Request headers that pages may set, such as `content-type` and `authorization`.",
    ),
    Attribute::optional(
        "expose",
        LIST,
        "NAME, or a list of these",
        "those of simple responses",
        "Response headers that pages may read.",
    ),
    Attribute::optional(
        "credentials",
        Kinds::SCALAR,
        "YES|NO",
        "NO",
        "Whether requests may carry cookies and passwords; not possible with the origin `*`.",
    ),
    Attribute::optional(
        "max-age",
        Kinds::SCALAR,
        "SECONDS",
        "5 seconds in browsers",
        "How long browsers may use the answer to a preflight request for further requests.",
    ),
];

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    levels: Levels::ALL_BUT_EXTENSION,
    kinds: Kinds::SCALAR
        .or(Kinds::MAPPING)
        .with_attributes(&ATTRIBUTES),
    ..Directive::setting(
        "cors",
        "`OFF`, or a mapping",
        "OFF",
        "Lets pages of other origins read responses. A preflight request (`OPTIONS` with `access-control-request-method`) is \
         answered with 204 before a password is required; other responses get the headers of CORS in place of those that the \
         backend has set.",
        |scope, command| {
            scope.edit::<Cors>().0 = read(command)?.map(Arc::new);
            Ok(())
        },
    )
}];

/// The setting of `cors` at a configuration level.
#[derive(Clone, Default)]
struct Cors(Option<Arc<CorsRules>>);

struct CorsRules {
    /// The origins whose pages may read responses; `None`: those of every origin.
    origins: Option<Box<[Box<str>]>>,
    has_credentials: bool,
    expose: Box<str>,
    /// Response fields that are sent only in the answer to a preflight request.
    preflight: Headers,
}

fn read(command: &Command<'_>) -> Result<Option<CorsRules>, Error> {
    match command.node.as_str() {
        Some("OFF") => return Ok(None),
        Some(_) => return Err(command.error("value must be `OFF` or a mapping")),
        None => {}
    }
    let attributes = command.node.attributes(&ATTRIBUTES)?;
    let node = attributes.require("origins")?;
    let origins = match node.as_str() {
        Some("*") => None,
        _ => Some(
            node.one_or_more()
                .iter()
                .map(origin)
                .collect::<Result<_, _>>()?,
        ),
    };
    let has_credentials = match attributes.get("credentials") {
        Some(node) => node.yes_no()?,
        None => false,
    };
    if has_credentials && origins.is_none() {
        return Err(node.error("with `credentials: YES` the origins have to be named"));
    }
    let mut preflight = Headers::new();
    let methods = tokens(&attributes, "methods")?;
    let methods = if methods.is_empty() {
        "GET, HEAD, POST".to_owned()
    } else {
        methods
    };
    let mut push = |name, value: &str| {
        if !value.is_empty() {
            preflight.push(Name::from_lower(name), value.as_bytes());
        }
    };
    push("access-control-allow-methods", &methods);
    push(
        "access-control-allow-headers",
        &tokens(&attributes, "headers")?,
    );
    if let Some(node) = attributes.get("max-age") {
        let seconds: u32 = node.integer("%u", 0..=u64::from(u32::MAX))?;
        push("access-control-max-age", &seconds.to_string());
    }
    Ok(Some(CorsRules {
        origins,
        has_credentials,
        expose: tokens(&attributes, "expose")?.into(),
        preflight,
    }))
}

/// Reads an origin in the form in which browsers send it.
fn origin(node: &Node) -> Result<Box<str>, Error> {
    let text = node.scalar()?;
    let host = text.split_once("://").map_or("", |(_, host)| host);
    let is_good = text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'*')
        && !host.is_empty()
        && !host.contains(['/', '?', '#', '@']);
    if !is_good {
        return Err(node
            .error(format!("`{text}` is not an origin"))
            .with_hint("expected an origin such as `https://www.example.com`, without a path"));
    }
    Ok(text.to_ascii_lowercase().into())
}

/// The names in the list of the attribute `name`, with commas between them.
fn tokens(attributes: &Attributes<'_>, name: &str) -> Result<String, Error> {
    let nodes = attributes.get(name).map_or(&[][..], Node::one_or_more);
    let mut list = Vec::with_capacity(nodes.len());
    for node in nodes {
        let token = node.scalar()?;
        if !h2o_http::is_token(token.as_bytes()) {
            let error = node.error(format!("`{token}` is not the name of a method or header"));
            return Err(error.with_hint("write several names as a list, such as `[GET, PUT]`"));
        }
        list.push(token);
    }
    Ok(list.join(", "))
}

fn rules(scope: &Scope) -> Option<Arc<CorsRules>> {
    scope.settings.peek::<Cors>()?.0.clone()
}

/// The guard of a path, a handler that runs before the path's own handlers: it answers preflight requests.
pub(crate) fn guard(scope: &Scope) -> Option<Box<dyn Handler>> {
    Some(Box::new(Preflight(rules(scope)?)))
}

/// The filter that adds the fields of CORS to other responses.
pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    Some(Box::new(CorsFilter(rules(scope)?)))
}

struct Preflight(Arc<CorsRules>);
struct CorsFilter(Arc<CorsRules>);

impl Handler for Preflight {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let asked = Name::from_lower("access-control-request-method");
        let headers = &exchange.request.headers;
        let is_preflight = exchange.request.method == Method::Options
            && headers.get(Known::Origin).is_some()
            && headers.get(asked).is_some();
        if !is_preflight {
            return Outcome::Declined;
        }
        // If the origin is allowed, `CorsFilter` adds the fields that all responses get to this response, too.
        let mut fields = exchange.headers();
        if self.0.allowed(exchange).is_some() {
            fields.extend_from(&self.0.preflight);
        }
        Outcome::Done(Response::new(StatusCode::NO_CONTENT, fields, Body::Empty))
    }
}

impl Filter for CorsFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        if exchange.awaits_error_document {
            // The fields of the error's response stay: the request for the document has no `origin`.
            return FilterResult::Continue;
        }
        let rules = &self.0;
        let headers = &mut response.headers;
        let credentials = Name::from_lower("access-control-allow-credentials");
        let expose = Name::from_lower("access-control-expose-headers");
        headers.remove(Known::AccessControlAllowOrigin);
        headers.remove(credentials);
        headers.remove(expose);
        if rules.origins.is_some() {
            let varies = headers
                .get_all(Known::Vary)
                .any(|value| escape::list_contains(value, b"origin"));
            if !varies {
                headers.push(Known::Vary, b"origin");
            }
        }
        if let Some(origin) = rules.allowed(exchange) {
            headers.push(Known::AccessControlAllowOrigin, origin);
            if rules.has_credentials {
                headers.push(credentials, b"true");
            }
            if !rules.expose.is_empty() {
                headers.push(expose, rules.expose.as_bytes());
            }
        }
        FilterResult::Continue
    }
}

impl CorsRules {
    /// The value of `access-control-allow-origin`; `None` if the page may not read the response.
    fn allowed<'a>(&'a self, exchange: &'a Exchange) -> Option<&'a [u8]> {
        let origin = exchange.request.headers.get(Known::Origin)?;
        let Some(origins) = &self.origins else {
            return Some(b"*");
        };
        let mut known = origins.iter();
        known
            .any(|it| it.as_bytes().eq_ignore_ascii_case(origin))
            .then_some(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request, shown};
    use std::rc::Rc;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    fn filtered(config: &str, origin: &str, fields: &str) -> String {
        let site = SETUP.read(["", "", config]).unwrap();
        let mut exchange = request(site, "GET", "default", "/");
        exchange
            .request
            .headers
            .push(Known::Origin, origin.as_bytes());
        let mut response = Response::new(StatusCode::OK, headers(fields), Body::Empty);
        let site = Rc::clone(&exchange.site);
        let _ = site.path(exchange.route).filters[0].on_response(&mut exchange, &mut response);
        shown(&response.headers)
    }

    #[test]
    fn origins_that_are_named_may_read() {
        let named = "cors: { origins: [https://a.example], credentials: YES, expose: [etag, x-b] }";
        let allowed = "access-control-allow-origin: https://a.example\naccess-control-allow-credentials: true\naccess-control-expose-headers: etag, x-b";
        for (config, origin, fields, want) in [
            (
                named,
                "https://a.example",
                "",
                format!("vary: origin\n{allowed}"),
            ),
            (
                named,
                "https://b.example",
                "access-control-allow-origin: *",
                "vary: origin".to_owned(),
            ),
            (
                named,
                "https://a.example.evil",
                "vary: Origin",
                "vary: Origin".to_owned(),
            ),
            (named, "null", "", "vary: origin".to_owned()),
            (
                "cors: { origins: '*' }",
                "https://b.example",
                "",
                "access-control-allow-origin: *".to_owned(),
            ),
        ] {
            assert_eq!(filtered(config, origin, fields), want, "{config} {origin}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (config, want) in [
            (
                "cors: { origins: '*', credentials: YES }",
                "have to be named",
            ),
            ("cors: { origins: a.example }", "not an origin"),
            ("cors: { origins: 'https://*.a.example' }", "not an origin"),
            ("cors: { origins: 'https://a.example/' }", "not an origin"),
            (
                "cors: { origins: '*', methods: 'GET, PUT' }",
                "`GET, PUT` is not the name of a method or header",
            ),
            ("cors: ON", "value must be"),
        ] {
            let got = SETUP.refusal(config);
            assert!(got.contains(want), "{config}: {got}");
        }
    }
}
