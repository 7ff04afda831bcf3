//! The directive `error-doc`: pages of the site take the place of the default texts of error responses.
//!
//! The request is run again at the document's URL. The document gets the status and most fields of the error response. No
//! further document is fetched for a request that fetches one.

use h2o_config::{Attribute, Attributes, Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{
    Exchange, Filter, FilterResult, Reroute, RerouteFields, Response, Restore, Scope,
};
use h2o_http::{Known, Method, Name, StatusCode};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "error-doc",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
    value: "a mapping, or a sequence of mappings",
    default: "",
    help: "Replaces the content of responses that have one of these statuses by the document at `url`. The URL may be relative to \
           the requested path, or lead to another server. If several entries name a status, the one of the outermost level counts.",
    apply: |scope, command| {
        let documents = read(command)?;
        scope.edit::<Documents>().0.extend(documents);
        Ok(())
    },
}];

/// The error documents of a configuration level, inherited ones first.
#[derive(Clone, Debug, Default)]
struct Documents(Vec<Document>);

#[derive(Clone, Debug)]
struct Document {
    statuses: Box<[StatusCode]>,
    url: Box<str>,
}

const ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "url",
        Kinds::SCALAR,
        "URL",
        "The URL of the document: relative to the requested path (behind a proxy: to the path at the backend), or on another server.",
    ),
    Attribute::required(
        "status",
        Kinds::SCALAR.or(Kinds::SEQUENCE),
        "400 to 599, or a sequence of those",
        "The statuses of the responses whose content the document replaces. The response keeps its status.",
    ),
];

fn read(command: &Command<'_>) -> Result<Vec<Document>, Error> {
    if command.node.as_str().is_some() {
        return Err(command
            .error("argument must be either of: sequence, mapping")
            .with_hint("such as `{ status: 404, url: /404.html }`"));
    }
    let entries = command.node.one_or_more();
    entries.iter().map(read_entry).collect()
}

fn read_entry(node: &Node) -> Result<Document, Error> {
    if node.as_mapping().is_none() {
        return Err(node
            .error("element must be a mapping")
            .with_hint("such as `{ status: 404, url: /404.html }`"));
    }
    let attributes = node.attributes(&ATTRIBUTES)?;
    Ok(Document {
        statuses: read_statuses(&attributes)?,
        url: attributes.require("url")?.scalar()?.into(),
    })
}

fn read_statuses(attributes: &Attributes<'_>) -> Result<Box<[StatusCode]>, Error> {
    let list = attributes.require("status")?;
    if list.as_sequence().is_some_and(<[_]>::is_empty) {
        return Err(list.error("status cannot be an empty sequence"));
    }
    let mut statuses = Vec::new();
    for node in list.one_or_more() {
        let status = read_status(node)?;
        if statuses.contains(&status) {
            return Err(node.error(format!("status {} appears multiple times", status.as_u16())));
        }
        statuses.push(status);
    }
    Ok(statuses.into())
}

fn read_status(node: &Node) -> Result<StatusCode, Error> {
    let code: u16 = node
        .as_str()
        .filter(|text| text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| {
            node.error("status must be a 3-digit scalar or a sequence of 3-digit scalars")
        })?;
    Some(code)
        .filter(|code| (400..=599).contains(code))
        .and_then(StatusCode::new)
        .ok_or_else(|| node.error("status must be within range of 400 to 599"))
}

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    let documents = scope.settings.peek::<Documents>()?.0.clone();
    if documents.is_empty() {
        return None;
    }
    Some(Box::new(ErrorDocFilter { documents }))
}

struct ErrorDocFilter {
    documents: Vec<Document>,
}

impl Filter for ErrorDocFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        let is_error = (400..=599).contains(&response.status.as_u16());
        if !is_error || exchange.awaits_error_document {
            return FilterResult::Continue;
        }
        let document = self
            .documents
            .iter()
            .find(|document| document.statuses.contains(&response.status));
        let Some(document) = document else {
            return FilterResult::Continue;
        };
        exchange.awaits_error_document = true;
        let method = match &exchange.request.method {
            Method::Post => Method::Get,
            method => method.clone(),
        };
        FilterResult::Reroute(Reroute {
            fields: RerouteFields::None,
            restore: Some(stand_in_for(response)),
            ..Reroute::to(document.url.as_bytes().to_vec(), method)
        })
    }
}

/// Fields that describe the content. They are taken from the document, not from the error response. H2O keeps the
/// `content-encoding` of the error, so that clients cannot decode the document.
const OF_CONTENT: [Known; 3] = [
    Known::ContentType,
    Known::ContentLanguage,
    Known::ContentEncoding,
];

/// Turns the document into the error response, which has the status and the fields of `failed` but the content and the
/// cookies of the document.
fn stand_in_for(failed: &mut Response) -> Restore {
    let status = failed.status;
    let reason = failed.reason.take();
    let mut headers = std::mem::take(&mut failed.headers);
    for name in OF_CONTENT {
        headers.remove(name);
    }
    Box::new(move |_, document| {
        document.status = status;
        document.reason = reason;
        for field in document.headers.iter() {
            let Name::Known(name) = field.name else {
                continue;
            };
            if OF_CONTENT.contains(&name) || name == Known::SetCookie {
                headers.push(name, field.value);
            }
        }
        document.headers = headers;
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request, shown};
    use h2o_exchange::{Body, RerouteKind};

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    fn exchange(levels: [&str; 3], method: &str) -> Exchange {
        let site = SETUP.read(levels).unwrap_or_else(|error| panic!("{error}"));
        request(site, method, "default", "/")
    }

    fn filtered(exchange: &mut Exchange, status: u16, fields: &str) -> Option<Reroute> {
        let status = StatusCode::new(status).unwrap();
        let mut response = Response::new(status, headers(fields), Body::Empty);
        response.reason = Some("As It Was".into());
        let site = std::rc::Rc::clone(&exchange.site);
        match site.path(exchange.route).filters[0].on_response(exchange, &mut response) {
            FilterResult::Continue => None,
            FilterResult::Reroute(reroute) => Some(reroute),
        }
    }

    #[test]
    fn the_first_entry_with_the_status_counts_outer_levels_first() {
        let levels = [
            "error-doc: { status: 404, url: /global }",
            "error-doc: [ { status: [ 404, 500 ], url: /host }, { status: 500, url: /late } ]",
            "error-doc: { status: 404, url: /path }\nerror-doc: { status: 503, url: busy.html }",
        ];
        let cases = [
            (404, Some("/global")),
            (500, Some("/host")),
            (503, Some("busy.html")),
            (502, None),
            (200, None),
            (304, None),
        ];
        for (status, want) in cases {
            let reroute = filtered(&mut exchange(levels, "GET"), status, "");
            let url = reroute.map(|reroute| String::from_utf8(reroute.url).unwrap());
            assert_eq!(url.as_deref(), want, "{status}");
        }
    }

    #[test]
    fn documents_are_fetched_without_fields_and_never_by_post() {
        let config = ["", "", "error-doc: { status: 404, url: /e }"];
        for (method, want) in [
            ("GET", "GET"),
            ("HEAD", "HEAD"),
            ("POST", "GET"),
            ("PUT", "PUT"),
        ] {
            let reroute = filtered(&mut exchange(config, method), 404, "").unwrap();
            assert_eq!(reroute.method.as_str(), want);
            assert!(reroute.fields == RerouteFields::None && reroute.keep_body);
            assert_eq!(reroute.kind, RerouteKind::Delegation);
        }
    }

    #[test]
    fn the_document_gets_status_and_fields_of_the_error() {
        let config = ["", "", "error-doc: { status: 405, url: /e }"];
        let mut exchange = exchange(config, "GET");
        let failed = "content-type: text/plain\nallow: GET\ncontent-encoding: gzip\nset-cookie: a=1\ndate: then";
        let reroute = filtered(&mut exchange, 405, failed).unwrap();
        let mut document = Response::new(
            StatusCode::OK,
            headers(
                "date: now\ncontent-type: text/html\netag: e\nset-cookie: b=2\ncontent-language: de",
            ),
            Body::Bytes("page".into()),
        );
        let restore = reroute.restore.unwrap();
        restore(&mut exchange, &mut document);
        assert_eq!(
            (document.status.as_u16(), document.reason()),
            (405, "As It Was")
        );
        assert_eq!(document.length, Some(4));
        assert_eq!(
            shown(&document.headers),
            "allow: GET\nset-cookie: a=1\ndate: then\ncontent-type: text/html\nset-cookie: b=2\ncontent-language: de"
        );
    }

    #[test]
    fn documents_are_not_nested() {
        let mut exchange = exchange(
            ["", "", "error-doc: { status: [ 404, 500 ], url: /e }"],
            "GET",
        );
        assert!(filtered(&mut exchange, 404, "").is_some());
        assert!(filtered(&mut exchange, 404, "").is_none());
        assert!(filtered(&mut exchange, 500, "").is_none());
        let (site, connection) = (exchange.site.clone(), exchange.connection.clone());
        exchange.reset(&site, &connection);
        exchange.route = site.select_path(0, b"/");
        assert!(
            filtered(&mut exchange, 404, "").is_some(),
            "an exchange that is used again gets error documents again"
        );
    }

    #[test]
    fn paths_without_documents_have_no_filter() {
        for config in ["", "error-doc: []"] {
            let site = SETUP.read(["", "", config]).unwrap();
            assert!(site.hosts[0].paths[0].filters.is_empty(), "{config}");
        }
    }

    #[test]
    fn other_values_are_refused() {
        let digits = "status must be a 3-digit scalar or a sequence of 3-digit scalars";
        let range = "status must be within range of 400 to 599";
        let cases = [
            (
                "x",
                "argument must be either of: sequence, mapping (column 12; such as `{ status: 404, url: /404.html }`)".to_owned(),
            ),
            (
"[ x ]", "element must be a mapping (column 14; such as `{ status: 404, url: /404.html }`)".to_owned()),
            ("[ [] ]", "element must be a mapping (column 14; such as `{ status: 404, url: /404.html }`)".to_owned()),
            (
                "{ status: 404 }",
                "cannot find mandatory attribute: url (column 12)".to_owned(),
            ),
            (
                "{ url: /e }",
                "cannot find mandatory attribute: status (column 12)".to_owned(),
            ),
            (
                "{ url: /e, status: [] }",
                "status cannot be an empty sequence (column 31)".to_owned(),
            ),
            (
                "{ url: /e, status: {} }",
                "attribute `status` must be a scalar or a sequence (column 31)".to_owned(),
            ),
            ("{ url: /e, status: 4xx }", format!("{digits} (column 31)")),
            ("{ url: /e, status: 4040 }", format!("{digits} (column 31)")),
            (
                "{ url: /e, status: [ 404, [ 500 ] ] }",
                format!("{digits} (column 38)"),
            ),
            ("{ url: /e, status: 399 }", format!("{range} (column 31)")),
            (
                "{ url: /e, status: [ 404, 600 ] }",
                format!("{range} (column 38)"),
            ),
            (
                "{ url: /e, status: [ 404, 500, 404 ] }",
                "status 404 appears multiple times (column 43)".to_owned(),
            ),
        ];
        for (value, want) in cases {
            assert_eq!(
                SETUP.refusal(&format!("error-doc: {value}")),
                format!("[f:1] in command error-doc, {want}"),
                "{value}"
            );
        }
    }
}
