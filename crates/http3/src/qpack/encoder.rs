//! Encoding field sections (RFC 9204 §2.1, §4.5).

use h2o_http::field_section::{NameKind, Pseudo};
use h2o_http::{Known, Name, StatusCode, prefixed, string_literal};

use super::{QpackError, static_table};

/// Shorter cookies are kept out of tables, for an attacker could find them out by trial (RFC 9204 §7.1.3).
const MIN_INDEXED_COOKIE: usize = 20;

/// The sending side of one direction of a connection.
#[derive(Debug, Default)]
pub struct Encoder {}

impl Encoder {
    /// An encoder without a dynamic table. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {}
    }

    /// Begins a field section: to be called before its first field.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0, 0]);
    }

    /// Appends `:status`.
    #[inline]
    pub fn status(&mut self, status: StatusCode, out: &mut Vec<u8>) {
        let index = match status.as_u16() {
            100 => 63,
            103 => 24,
            200 => 25,
            204 => 64,
            206 => 65,
            302 => 66,
            304 => 26,
            400 => 67,
            403 => 68,
            404 => 27,
            421 => 69,
            425 => 70,
            500 => 71,
            503 => 28,
            _ => return self.pseudo(Pseudo::Status, &status.digits(), out),
        };
        prefixed::encode(0xc0, 6, index, out);
    }

    /// Appends a pseudo-header field, which is not [`Pseudo::Unknown`].
    pub fn pseudo(&mut self, pseudo: Pseudo, value: &[u8], out: &mut Vec<u8>) {
        debug_assert!(pseudo != Pseudo::Unknown);
        self.text(
            NameKind::Pseudo(pseudo),
            pseudo.as_str().as_bytes(),
            value,
            out,
        );
    }

    /// Appends a field.
    #[inline]
    pub fn field(&mut self, name: Name<'_>, value: &[u8], out: &mut Vec<u8>) {
        let (kind, text) = kind_of(name);
        self.text(kind, text, value, out);
    }

    /// Appends a field that is not in the dynamic table.
    #[inline(never)]
    fn text(&mut self, name: NameKind, text: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let run = static_table::run_of(name, text);
        if let Some(index) = static_table::exact_match(run, value) {
            prefixed::encode(0xc0, 6, usize::from(index), out);
            return;
        }
        let never_indexed = matches!(
            name,
            NameKind::Known(Known::Cookie | Known::SetCookie) if value.len() < MIN_INDEXED_COOKIE
        );
        if run.is_empty() {
            let flags = if never_indexed { 0x30 } else { 0x20 };
            string_literal::encode(flags, 3, text, out);
        } else {
            let flags = if never_indexed { 0x70 } else { 0x50 };
            prefixed::encode(flags, 4, usize::from(run.first), out);
        }
        if never_indexed {
            // Nor is it compressed: the length of the Huffman code depends on the text.
            string_literal::encode_plain(0, 7, value, out);
        } else {
            string_literal::encode(0, 7, value, out);
        }
    }

    /// Reads the peer's acknowledgements, which may be cut anywhere.
    ///
    /// # Errors
    /// [`QpackError::DecoderStream`]: there is nothing to acknowledge.
    pub fn receive(&mut self, input: &[u8]) -> Result<(), QpackError> {
        match input.first() {
            // Cancellations are no errors: the peer need not know that there is no table.
            None | Some(0x40..0x80) => Ok(()),
            Some(_) => Err(QpackError::DecoderStream),
        }
    }

    /// Bytes of memory held, for accounting.
    #[must_use]
    pub const fn retained(&self) -> usize {
        0
    }
}

#[inline]
fn kind_of(name: Name<'_>) -> (NameKind, &[u8]) {
    match name {
        Name::Known(known) => (NameKind::Known(known), known.as_str().as_bytes()),
        Name::Other(text) => (NameKind::Other, text.as_bytes()),
    }
}
