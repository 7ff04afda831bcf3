//! The directive `compress`: responses are compressed while they are sent.
//!
//! [`settings`] reads the directives, [`CompressFilter`] chooses the coding and edits the head, [`body`] pulls the content through
//! an [`encoder`].

mod body;
mod brotli;
mod encoder;
mod operation;
mod settings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use h2o_exchange::{Body, CompressHint, Exchange, Filter, FilterResult, Response, Scope};
use h2o_http::mime::MimeMap;
use h2o_http::{Headers, Known, StatusCode, Version, escape};

use crate::coding::{Coding, CodingSet};
use body::CompressedBody;
use encoder::SpareEncoders;

pub(crate) use encoder::{Encoder, Method};
pub(crate) use operation::Operation;
pub(crate) use settings::{CompressSettings, DIRECTIVES};

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    let settings = scope.settings.peek::<CompressSettings>()?;
    settings
        .is_on()
        .then(|| Box::new(CompressFilter(settings)) as _)
}

struct CompressFilter(Arc<CompressSettings>);

impl Filter for CompressFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        let acceptable = self.acceptable(exchange, response);
        if acceptable.is_empty() {
            return FilterResult::Continue;
        }
        let mut codings = Coding::ALL
            .into_iter()
            .filter(|&coding| acceptable.has(coding));
        let method = codings.find_map(|coding| self.0.methods.of(coding));
        let started = method.and_then(|method| {
            // If there is no memory for a compressor, the response is sent uncompressed.
            let encoder = SpareEncoders::take(&exchange.worker, method, response.length).ok()?;
            Some((method, encoder))
        });
        add_vary(&mut response.headers);
        let Some((method, encoder)) = started else {
            return FilterResult::Continue;
        };
        let source = std::mem::take(&mut response.body).into_source();
        let body = CompressedBody::new(
            source,
            &exchange.worker,
            method,
            encoder,
            response.length.take(),
        );
        response.body = Body::Stream(Box::new(body));
        let headers = &mut response.headers;
        headers.push(Known::ContentEncoding, method.coding.token().as_bytes());
        headers.replace(Known::AcceptRanges, b"none");
        if let Some(etag) = headers.get(Known::Etag)
            && !etag.starts_with(b"W/")
        {
            let weak = [b"W/", etag].concat();
            headers.replace(Known::Etag, &weak);
        }
        FilterResult::Continue
    }
}

impl CompressFilter {
    /// The codings in which this response may be compressed for the client; none if the response is not to be
    /// compressed.
    fn acceptable(&self, exchange: &Exchange, response: &Response) -> CodingSet {
        let is_eligible = response.status == StatusCode::OK
            && exchange.request.version >= Version::Http11
            && *exchange.original_method() != h2o_http::Method::Head
            && response.headers.get(Known::ContentEncoding).is_none();
        if !is_eligible {
            return CodingSet::default();
        }
        let accepted = CodingSet::accepted_by(&exchange.request);
        match response.compress_hint {
            CompressHint::Never => CodingSet::default(),
            CompressHint::Always => accepted,
            CompressHint::Brotli => accepted.only(Coding::Brotli),
            CompressHint::Zstd => accepted.only(Coding::Zstd),
            CompressHint::Gzip => accepted.only(Coding::Gzip),
            CompressHint::Auto if self.is_worth_it(exchange, response) => accepted,
            CompressHint::Auto => CodingSet::default(),
        }
    }

    /// Whether the response is long enough and of a type that compresses well.
    fn is_worth_it(&self, exchange: &Exchange, response: &Response) -> bool {
        if response.length.is_some_and(|len| len < self.0.minimum) {
            return false;
        }
        if let Some(mime) = exchange.mime {
            return mime.compressible;
        }
        let map = exchange.site.path(exchange.route).settings.get::<MimeMap>();
        let content_type = response.headers.get(Known::ContentType);
        let attributes = content_type.and_then(|content_type| map.attributes(content_type));
        attributes.is_some_and(|attributes| attributes.compressible)
    }
}

/// Adds `accept-encoding` to the `vary` field of the response.
fn add_vary(headers: &mut Headers) {
    const ELEMENT: &[u8] = b"accept-encoding";
    let names_it = |vary| escape::list_contains(vary, ELEMENT);
    if headers.get_all(Known::Vary).any(names_it) {
        return;
    }
    match headers.get(Known::Vary) {
        None => headers.push(Known::Vary, ELEMENT),
        Some(vary) => {
            let extended = [vary, b", ", ELEMENT].concat();
            headers.replace(Known::Vary, &extended);
        }
    }
}
