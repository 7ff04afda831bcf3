//! The requests and the response that the benchmarks of HTTP/2 and HTTP/3 use.

use h2o_http::Known;

pub(crate) type Fields = [(Known, &'static str)];

pub(crate) const H2LOAD: &Fields = &[(Known::UserAgent, "h2load nghttp2/1.52.0")];

pub(crate) const BROWSER: &Fields = &[
    (
        Known::UserAgent,
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0.0.0 \
         Safari/537.36",
    ),
    (Known::Accept, "text/css,*/*;q=0.1"),
    (Known::SecFetchSite, "same-origin"),
    (Known::SecFetchMode, "no-cors"),
    (Known::SecFetchDest, "style"),
    (Known::Referer, "https://www.example.com/"),
    (Known::AcceptEncoding, "gzip, deflate, br, zstd"),
    (Known::AcceptLanguage, "en-GB,en;q=0.9"),
    (
        Known::Cookie,
        "session=0123456789abcdef0123456789abcdef; theme=dark",
    ),
];

pub(crate) const RESPONSE: &Fields = &[
    (Known::Server, "h2o"),
    (Known::Date, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (Known::ContentType, "text/plain"),
    (Known::LastModified, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (Known::Etag, "\"2ebc9b71-400\""),
    (Known::AcceptRanges, "bytes"),
];
