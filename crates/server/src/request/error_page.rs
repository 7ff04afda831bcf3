//! Turns the short text of the server's own errors into an HTML page, for clients that prefer HTML.

use bytes::Bytes;
use h2o_exchange::{Body, Exchange, Response};
use h2o_http::{Known, accept, escape};

/// The style of the error page names no colours: its `meta` element has the browser choose a light or a dark scheme.
const STYLE: &str = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:30rem;margin:20vh auto 0;padding:0 1.5rem}h1{font-size:1.8rem;margin:0}";

/// Puts the HTML page in place of the text if the response is a short error text of the server and the client prefers HTML. Called
/// after the filters, since they may have replaced the text by an error document of the site.
///
/// Only the HTML page gets a `vary` field: a cache may send the text to any client, but not the page.
pub(crate) fn apply(exchange: &Exchange, response: &mut Response) {
    if !response.is_plain_error {
        return;
    }
    let accepted = exchange.request.headers.get_all(Known::Accept);
    let content_type = response.headers.get(Known::ContentType);
    if let Body::Bytes(text) = &response.body
        && content_type == Some(b"text/plain; charset=utf-8")
        && response.headers.get(Known::ContentEncoding).is_none()
        && accept::prefers_html(accepted)
    {
        let page = page(response, text);
        response
            .headers
            .replace(Known::ContentType, b"text/html; charset=utf-8");
        response.headers.push(Known::Vary, b"accept");
        response.length = Some(page.len() as u64);
        response.body = Body::Bytes(page.into());
    }
}

fn page(response: &Response, text: &Bytes) -> Vec<u8> {
    let (code, reason) = (response.status.as_u16(), response.status.reason());
    // If the site has a content security policy, the page has no inline style: the policy would forbid it.
    let policy = response.headers.get(Known::ContentSecurityPolicy);
    let style = match policy {
        Some(_) => String::new(),
        None => format!("<style>{STYLE}</style>\n"),
    };
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{code} {reason}</title>\n{style}</head>\n<body>\n<h1>{code} {reason}</h1>\n"
    )
    .into_bytes();
    if !text.eq_ignore_ascii_case(reason.as_bytes()) {
        page.extend_from_slice(b"<p>");
        escape::html(text, &mut page);
        page.extend_from_slice(b"</p>\n");
    }
    page.extend_from_slice(b"</body>\n</html>\n");
    page
}
