//! Style sheets, scripts and icons of the pages that the server generates. They are separate files, because a
//! `content-security-policy` of the site, such as `default-src 'self'`, forbids inline styles and scripts, and a second
//! policy cannot allow them again.

use bytes::Bytes;
use h2o_exchange::{Body, Exchange, Response};
use h2o_http::{Known, Method, StatusCode};

/// A file that is compiled into the program.
pub(crate) struct Asset {
    pub(crate) name: &'static str,
    content_type: &'static str,
    content: &'static [u8],
    /// A hash of the file's content, for its URL.
    pub(crate) hash: u64,
}

impl Asset {
    pub(crate) const fn new(
        name: &'static str,
        content_type: &'static str,
        content: &'static [u8],
    ) -> Self {
        Self {
            name,
            content_type,
            content,
            hash: hash(content),
        }
    }

    /// The response with the file. Clients may cache it for ever if the URL has its hash.
    pub(crate) fn respond(&self, exchange: &mut Exchange, has_hash: bool) -> Response {
        if !is_read(exchange) {
            return method_not_allowed();
        }
        let mut headers = exchange.headers();
        headers.push(Known::Date, &exchange.worker.clock.date());
        headers.push(Known::ContentType, self.content_type.as_bytes());
        let lifetime: &[u8] = if has_hash {
            b"max-age=31536000, immutable"
        } else {
            b"no-cache"
        };
        headers.push(Known::CacheControl, lifetime);
        let body = Body::Bytes(Bytes::from_static(self.content));
        Response::new(StatusCode::OK, headers, body)
    }
}

/// Whether the method of the request is GET or HEAD.
pub(crate) fn is_read(exchange: &Exchange) -> bool {
    matches!(exchange.request.method, Method::Get | Method::Head)
}

/// The response 405 to requests with other methods than GET and HEAD.
pub(crate) fn method_not_allowed() -> Response {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    let mut response = Response::error(status, "Method Not Allowed", "method not allowed");
    response.headers.push(Known::Allow, b"GET, HEAD");
    response
}

/// The contrast ratio of two colours as WCAG defines it. The colours are written as `#fff` or `#1b2430`.
#[cfg(test)]
pub(crate) fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |colour: &str| {
        let digits: Vec<u32> = colour[1..]
            .chars()
            .map(|c| c.to_digit(16).unwrap())
            .collect();
        let channels: Vec<u32> = match digits.len() {
            3 => digits.iter().map(|digit| digit * 17).collect(),
            _ => digits
                .chunks(2)
                .map(|pair| pair[0] * 16 + pair[1])
                .collect(),
        };
        let linear = channels.iter().map(|&channel| {
            let part = f64::from(channel) / 255.0;
            if part <= 0.04045 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        });
        let weights = [0.2126, 0.7152, 0.0722];
        linear
            .zip(weights)
            .map(|(part, weight)| part * weight)
            .sum::<f64>()
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// The two values of a colour variable in a style sheet: that of light pages, then that of dark pages.
#[cfg(test)]
pub(crate) fn colours<'a>(style: &'a str, name: &str) -> [&'a str; 2] {
    let mark = format!("--{name}:");
    let mut found = style.match_indices(&mark).map(|(at, mark)| {
        let value = style[at + mark.len()..].trim_start();
        let end = value.find([';', '}']).unwrap();
        value[..end].trim_end()
    });
    [found.next().unwrap(), found.next().unwrap()]
}

/// The FNV-1a hash of a file's content.
pub(crate) const fn hash(content: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < content.len() {
        hash = (hash ^ content[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
}
