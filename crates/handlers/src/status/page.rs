//! The page for people, part of the program so that it works without installed files.

use bytes::Bytes;
use h2o_exchange::{Body, Exchange, Response};
use h2o_http::{Known, Method, StatusCode};

const PAGE: &[u8] = include_bytes!("../../../../share/status/index.html");

/// Changes whenever the page does (FNV-1a).
const HASH: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < PAGE.len() {
        hash = (hash ^ PAGE[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
};

/// Answers as for a static file.
pub(super) fn respond(exchange: &mut Exchange) -> Response {
    if !matches!(exchange.request.method, Method::Get | Method::Head) {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let mut response = Response::error(status, "Method Not Allowed", "method not allowed");
        response.headers.push(Known::Allow, b"GET, HEAD");
        return response;
    }
    let etag = format!("\"{HASH:016x}-{:x}\"", PAGE.len());
    let mut headers = exchange.headers();
    let condition = exchange.request.headers.get(Known::IfNoneMatch);
    let unchanged = condition.is_some_and(|tags| matches(tags, etag.as_bytes()));
    headers.push(Known::CacheControl, b"no-cache");
    headers.push(Known::Etag, etag.as_bytes());
    if unchanged {
        let mut response = Response::new(StatusCode::NOT_MODIFIED, headers, Body::Empty);
        response.length = None;
        return response;
    }
    headers.push(Known::ContentType, b"text/html; charset=utf-8");
    Response::new(
        StatusCode::OK,
        headers,
        Body::Bytes(Bytes::from_static(PAGE)),
    )
}

/// The weak comparison of RFC 9110 §13.1.2. Our tag has no comma in it.
fn matches(tags: &[u8], etag: &[u8]) -> bool {
    tags == b"*"
        || tags
            .split(|&octet| octet == b',')
            .map(<[u8]>::trim_ascii)
            .any(|tag| tag.strip_prefix(b"W/").unwrap_or(tag) == etag)
}
