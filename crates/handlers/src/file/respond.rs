//! The responses of the file handler.

use h2o_exchange::{Body, Exchange, Outcome, Reroute, Response};
use h2o_http::{Headers, Known, Method, StatusCode, escape};

use super::conditional;
use super::document::Document;
use super::multipart::{Multipart, content_range};
use super::range::{ByteRange, Selection, select};

/// Responds with the file, with the requested ranges of it, or with 304.
pub(super) fn document(exchange: &mut Exchange, document: &Document) -> Outcome {
    if !is_read(&exchange.request.method) {
        return method_not_allowed(exchange);
    }
    let request = &exchange.request.headers;
    if conditional::is_not_modified(request, document.validators()) {
        return not_modified(exchange, document);
    }
    if let Some(range) = request.get(Known::Range)
        && document.has_ranges()
        && conditional::range_holds(request, document.validators())
    {
        match select(range, document.size) {
            Selection::Whole => {}
            Selection::Nothing => return range_not_satisfiable(exchange, document),
            Selection::One(range) => return one_range(exchange, document, range),
            Selection::Several(ranges) => return several_ranges(exchange, document, &ranges),
        }
    }
    exchange.mime = Some(document.hint());
    let mut headers = exchange.headers();
    let has_others = !headers.is_empty();
    document.whole_fields(&exchange.worker.clock.date(), &mut headers);
    if has_others {
        join_vary(&mut headers);
    }
    Outcome::Done(Response::new(StatusCode::OK, headers, document.body()))
}

/// Whether a file can be requested by this method: GET or HEAD.
pub(super) fn is_read(method: &Method) -> bool {
    matches!(method, Method::Get | Method::Head)
}

/// Begins the header fields of a response with a document.
fn begin(exchange: &mut Exchange, document: &Document) -> Headers {
    exchange.mime = Some(document.hint());
    let mut headers = exchange.headers();
    headers.push(Known::Date, &exchange.worker.clock.date());
    headers
}

/// Makes one field of the `vary` fields of a script, which has declined the request, and of the document. No element is repeated.
fn join_vary(headers: &mut Headers) {
    if headers.get_all(Known::Vary).nth(1).is_none() {
        return;
    }
    let mut joined = headers.get(Known::Vary).unwrap_or_default().to_vec();
    for field in headers.get_all(Known::Vary).skip(1) {
        for element in field.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if !escape::list_contains(&joined, element) {
                joined.extend_from_slice(b", ");
                joined.extend_from_slice(element);
            }
        }
    }
    headers.set(Known::Vary, &joined);
}

fn not_modified(exchange: &mut Exchange, document: &Document) -> Outcome {
    let mut headers = begin(exchange, document);
    if document.sends_etag {
        headers.push(Known::Etag, document.validators().etag);
    }
    if document.varies {
        headers.push(Known::Vary, b"accept-encoding");
    }
    join_vary(&mut headers);
    let mut response = Response::new(StatusCode::NOT_MODIFIED, headers, Body::Empty);
    response.length = None;
    Outcome::Done(response)
}

fn one_range(exchange: &mut Exchange, document: &Document, range: ByteRange) -> Outcome {
    let mut headers = begin(exchange, document);
    headers.extend_from(&document.fields);
    join_vary(&mut headers);
    let value = content_range(range, document.size);
    headers.push(Known::ContentRange, value.as_bytes());
    let body = document.content.part(range);
    Outcome::Done(Response::new(StatusCode::PARTIAL_CONTENT, headers, body))
}

fn several_ranges(exchange: &mut Exchange, document: &Document, ranges: &[ByteRange]) -> Outcome {
    let multipart = Multipart::new(document, ranges);
    let mut headers = begin(exchange, document);
    headers.extend_from(&document.fields);
    join_vary(&mut headers);
    headers.replace(Known::ContentType, multipart.content_type().as_bytes());
    let length = multipart.len();
    let body = Body::Stream(Box::new(multipart));
    let mut response = Response::new(StatusCode::PARTIAL_CONTENT, headers, body);
    response.length = Some(length);
    Outcome::Done(response)
}

fn range_not_satisfiable(exchange: &Exchange, document: &Document) -> Outcome {
    let mut response = error(
        exchange,
        StatusCode::RANGE_NOT_SATISFIABLE,
        "Request Range Not Satisfiable",
        "requested range not satisfiable",
    );
    let value = format!("bytes */{}", document.size);
    response.headers.push(Known::ContentRange, value.as_bytes());
    Outcome::Done(response)
}

/// The response 405, for methods other than GET and HEAD.
pub(super) fn method_not_allowed(exchange: &Exchange) -> Outcome {
    let mut response = error(
        exchange,
        StatusCode::METHOD_NOT_ALLOWED,
        "Method Not Allowed",
        "method not allowed",
    );
    response.headers.push(Known::Allow, b"GET, HEAD");
    Outcome::Done(response)
}

/// The response 403, for a file that must not be served.
pub(super) fn forbidden(exchange: &Exchange) -> Outcome {
    Outcome::Done(error(
        exchange,
        StatusCode::FORBIDDEN,
        "Access Forbidden",
        "access forbidden",
    ))
}

/// The response 503, if no file descriptor is left.
pub(super) fn busy(exchange: &Exchange) -> Outcome {
    Outcome::Done(error(
        exchange,
        StatusCode::SERVICE_UNAVAILABLE,
        "Service Unavailable",
        "please try again later",
    ))
}

/// The response 500, for a bug in the file handler.
pub(super) fn internal_error(exchange: &Exchange) -> Outcome {
    Outcome::Done(error(
        exchange,
        StatusCode::INTERNAL_SERVER_ERROR,
        "Internal Server Error",
        "internal server error",
    ))
}

fn error(
    exchange: &Exchange,
    status: StatusCode,
    reason: &'static str,
    text: &'static str,
) -> Response {
    exchange.worker.counters.count_status(status);
    let mut response = Response::error(status, reason, text);
    response
        .headers
        .push(Known::Date, &exchange.worker.clock.date());
    response
}

/// Redirects to the directory `path`, a normalised path. If the request is a delegated one (an internal redirect has
/// put it in the place of the client's request), the server runs it again at `path`, and the client is not redirected.
pub(super) fn redirect(exchange: &Exchange, path: &[u8]) -> Outcome {
    // A client would read `//name/` as a URL of the host `name` (RFC 3986 §4.2).
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let mut url = Vec::with_capacity(path.len() + exchange.request.query().len());
    escape::uri(&path[slashes.saturating_sub(1)..], b"/", &mut url);
    url.extend_from_slice(exchange.request.query());
    if exchange.is_delegated {
        let method = match &exchange.request.method {
            Method::Post => Method::Get,
            other => other.clone(),
        };
        return Outcome::Reroute(Reroute::to(url, method));
    }
    let status = StatusCode::MOVED_PERMANENTLY;
    let mut response = Response::redirect(Headers::new(), status, "Moved Permanently", &url);
    response
        .headers
        .push(Known::Date, &exchange.worker.clock.date());
    Outcome::Done(response)
}
