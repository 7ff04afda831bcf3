//! The requests and the response that the benchmarks of HTTP/2 use, as field blocks.

use h2o_http::{Name, huffman};
use h2o_http2::hpack::{Encoder, Pseudo};

#[path = "../../../../bench/micro/heads.rs"]
mod heads;

pub(crate) use heads::{BROWSER, Fields, H2LOAD, RESPONSE};

/// The field block of a GET request. As with real clients, the path differs from request to request, so that it is in no
/// HPACK table.
pub(crate) fn request(encoder: &mut Encoder, path: &str, fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out);
    encoder.pseudo(Pseudo::Method, b"GET", &mut out);
    let len = u8::try_from(huffman::encoded_len(path.as_bytes()))
        .expect("the path is shorter than 256 bytes");
    assert!(len < 127, "a length below 127 is encoded in one byte");
    // A literal field without indexing, whose name is that of entry 4 of the static table, `:path` (RFC 7541 §6.2.2).
    out.extend_from_slice(&[0x04, 0x80 | len]);
    huffman::encode(path.as_bytes(), &mut out);
    encoder.pseudo(Pseudo::Scheme, b"https", &mut out);
    encoder.pseudo(Pseudo::Authority, b"www.example.com", &mut out);
    for &(name, value) in fields {
        encoder.field(Name::Known(name), value.as_bytes(), &mut out);
    }
    out
}
