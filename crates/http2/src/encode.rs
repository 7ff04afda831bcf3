//! Writing of fields with HPACK, for both roles.

use h2o_http::{Headers, Known, Name, field_section};

use crate::hpack::Encoder;

/// Writes the fields of a head with HPACK, except those that frame messages in HTTP/1 (`connection`, `transfer-encoding` and
/// the like).
#[inline]
pub(crate) fn encode_fields(encoder: &mut Encoder, headers: &Headers, out: &mut Vec<u8>) {
    field_section::encode_fields(headers, |name, value| encoder.field(name, value, out));
}

/// Appends the fields of a request, encoded.
pub(crate) fn encode_request_fields(encoder: &mut Encoder, headers: &Headers, out: &mut Vec<u8>) {
    field_section::encode_request_fields(headers, |name, value| encoder.field(name, value, out));
}

/// Writes the field `content-length` with HPACK.
pub(crate) fn encode_length(encoder: &mut Encoder, length: u64, out: &mut Vec<u8>) {
    let name = Name::Known(Known::ContentLength);
    encoder.field(name, itoa::Buffer::new().format(length).as_bytes(), out);
}
