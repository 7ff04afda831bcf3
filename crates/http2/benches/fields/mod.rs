//! The requests and the response of the benchmarks, as field blocks.

use h2o_http::{Known, Name, huffman};
use h2o_http2::hpack::{Encoder, Pseudo};

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

/// The block of a GET request. The path is never in a table, as clients have it.
pub(crate) fn request(encoder: &mut Encoder, path: &str, fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out);
    encoder.pseudo(Pseudo::Method, b"GET", &mut out);
    let len = u8::try_from(huffman::encoded_len(path.as_bytes())).expect("a short path");
    assert!(len < 127, "a longer length has more bytes");
    // A literal without indexing, with the name of entry 4 of the static table, `:path` (RFC 7541 §6.2.2).
    out.extend_from_slice(&[0x04, 0x80 | len]);
    huffman::encode(path.as_bytes(), &mut out);
    encoder.pseudo(Pseudo::Scheme, b"https", &mut out);
    encoder.pseudo(Pseudo::Authority, b"www.example.com", &mut out);
    for &(name, value) in fields {
        encoder.field(Name::Known(name), value.as_bytes(), &mut out);
    }
    out
}
