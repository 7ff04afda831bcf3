//! Fields as both roles write them.

use h2o_http::{Field, Headers, Known, Name, has_break};

use crate::hpack::Encoder;

/// Writes the fields, except those by which HTTP/1 frames messages (RFC 9113 §8.2.2).
#[inline]
pub(crate) fn encode_fields(encoder: &mut Encoder, headers: &Headers, out: &mut Vec<u8>) {
    if headers.wire().is_some() {
        // Nothing in there frames messages, and no value has a line end.
        for field in headers.iter() {
            if !is_connection_specific(field.name) {
                encoder.field(field.name, field.value, out);
            }
        }
    } else {
        for field in headers.iter() {
            encode_field(encoder, &field, out);
        }
    }
}

fn encode_field(encoder: &mut Encoder, field: &Field<'_>, out: &mut Vec<u8>) {
    if is_connection_specific(field.name) {
        return;
    }
    if has_break(field.value) {
        // A line end or NUL would be a field or a message of somebody else's making further on (RFC 9113 §8.2.1).
        let value: Vec<u8> = field
            .value
            .iter()
            .map(|octet| match octet {
                b'\r' | b'\n' | 0 => b' ',
                octet => *octet,
            })
            .collect();
        encoder.field(field.name, value.trim_ascii(), out);
    } else {
        encoder.field(field.name, field.value, out);
    }
}

/// Fields that HTTP/2 does not have, and `content-length`, which the engine writes.
#[inline]
const fn is_connection_specific(name: Name<'_>) -> bool {
    matches!(
        name,
        Name::Known(
            Known::Connection
                | Known::ContentLength
                | Known::Http2Settings
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::TransferEncoding
                | Known::Upgrade
        )
    )
}

/// Writes `content-length`.
pub(crate) fn encode_length(encoder: &mut Encoder, length: u64, out: &mut Vec<u8>) {
    let mut digits = Decimal::default();
    encoder.field(
        Name::Known(Known::ContentLength),
        digits.format(length),
        out,
    );
}

/// A number as text.
#[derive(Default)]
struct Decimal {
    digits: [u8; 20],
}

impl Decimal {
    fn format(&mut self, mut number: u64) -> &[u8] {
        let mut at = self.digits.len();
        loop {
            at -= 1;
            self.digits[at] = b'0' + u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
            if number == 0 {
                return &self.digits[at..];
            }
        }
    }
}
