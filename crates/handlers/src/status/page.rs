//! The status page for people. It is part of the program, so that it works without installed files.

use bytes::Bytes;
use h2o_exchange::{Body, Exchange, Response};
use h2o_http::{Known, StatusCode, escape};

use crate::asset::{Asset, hash, is_read, method_not_allowed};

/// The HTML of the page, in which `@PATH@` stands for the relative URL of the configured path of `status`, and `@NAME@`
/// for the hash of an asset.
const PAGE: &str = include_str!("../../../../share/status/index.html");

static ASSETS: [Asset; 3] = [
    Asset::new(
        "page.css",
        "text/css",
        include_bytes!("../../../../share/status/page.css"),
    ),
    Asset::new(
        "page.js",
        "text/javascript",
        include_bytes!("../../../../share/status/page.js"),
    ),
    Asset::new(
        "icon.svg",
        "image/svg+xml",
        include_bytes!("../../../../share/status/icon.svg"),
    ),
];

/// The style sheet, script or icon of the page with this name.
pub(super) fn asset(name: &[u8]) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name.as_bytes() == name)
}

/// Whether the query of a URL is the hash that the asset has now.
pub(super) fn is_current(asset: &Asset, query: &[u8]) -> bool {
    query.strip_prefix(b"?") == Some(hash_of(asset).as_bytes())
}

fn hash_of(asset: &Asset) -> String {
    format!("{:016x}", asset.hash)
}

/// The HTML of the page at `path`, which may end with a slash or not.
fn page(path: &[u8]) -> String {
    let last = path.rsplit(|&byte| byte == b'/').next();
    let mut base = Vec::new();
    if let Some(last) = last.filter(|last| !last.is_empty()) {
        base.extend_from_slice(b"./");
        escape::uri(last, b"", &mut base);
        base.push(b'/');
    }
    let mut page = PAGE.replace("@PATH@", &String::from_utf8_lossy(&base));
    for asset in &ASSETS {
        page = page.replace(&format!("@{}@", asset.name), &hash_of(asset));
    }
    page
}

/// Responds with the page, or with 304 if the client has it already, as for a static file.
pub(super) fn respond(exchange: &mut Exchange) -> Response {
    if !is_read(exchange) {
        return method_not_allowed();
    }
    let page = page(exchange.request.path());
    let etag = format!("\"{:016x}-{:x}\"", hash(page.as_bytes()), page.len());
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
    Response::new(StatusCode::OK, headers, Body::Bytes(Bytes::from(page)))
}

/// Whether the entity tag of the page matches a list of tags by weak comparison (RFC 9110 §13.1.2). The page's tag has
/// no comma in it.
fn matches(tags: &[u8], etag: &[u8]) -> bool {
    tags == b"*"
        || tags
            .split(|&byte| byte == b',')
            .map(<[u8]>::trim_ascii)
            .any(|tag| tag.strip_prefix(b"W/").unwrap_or(tag) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asset::{colours, contrast};

    #[test]
    fn the_page_finds_its_assets_from_either_of_its_paths() {
        for (path, want) in [
            ("/status", "\"./status/page.css?"),
            ("/a/b c", "\"./b%20c/page.css?"),
            ("/status/", "\"page.css?"),
            ("/", "\"page.css?"),
        ] {
            let page = page(path.as_bytes());
            assert!(page.contains(want), "{path}: {page}");
            assert!(!page.contains('@'), "{page}");
        }
    }

    #[test]
    fn nothing_is_written_into_the_page_that_a_policy_forbids() {
        for forbidden in ["<style", "style=", "data:", "<script>", "onclick"] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn no_text_is_too_pale() {
        let style = include_str!("../../../../share/status/page.css");
        for (inks, grounds) in [
            (&["text", "faint"][..], &["page", "card", "hover"][..]),
            (&["good", "bad", "warn"], &["card", "hover"]),
        ] {
            for (ink, ground) in inks
                .iter()
                .flat_map(|ink| grounds.iter().map(move |g| (ink, g)))
            {
                let (inks, grounds) = (colours(style, ink), colours(style, ground));
                for (scheme, (one, other)) in inks.iter().zip(grounds).enumerate() {
                    let contrast = contrast(one, other);
                    assert!(contrast >= 4.5, "{ink} on {ground}, {scheme}: {contrast}");
                }
            }
        }
    }
}
