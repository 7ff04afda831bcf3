//! Recognises responses without which a browser cannot render a page: style sheets, scripts.

use h2o_exchange::Exchange;
use h2o_http::mime::MimeAttributes;
use h2o_http::{Headers, Known};

use crate::site::http2_settings::ReprioritizesBlockingAssets;

/// Whether the response with the fields `headers` blocks the rendering of a page, by its media type.
pub(crate) fn blocks_rendering(exchange: &Exchange, headers: &Headers) -> bool {
    exchange.mime.map_or_else(
        || {
            headers
                .get(Known::ContentType)
                .and_then(|value| std::str::from_utf8(value).ok())
                .is_some_and(|value| MimeAttributes::of(value).highest_priority)
        },
        |mime| mime.highest_priority,
    )
}

/// Whether a response is sent before others because it [blocks rendering](blocks_rendering): only if
/// `http2-reprioritize-blocking-assets` is ON.
pub(crate) fn goes_first(exchange: &Exchange, headers: &Headers) -> bool {
    blocks_rendering(exchange, headers) && {
        let path = exchange.site.path(exchange.route);
        path.settings
            .peek::<ReprioritizesBlockingAssets>()
            .is_none_or(|setting| setting.0)
    }
}
