//! QPACK (RFC 9204): field sections of HTTP/3.
//!
//! A [`Decoder`] is one direction of a connection as its receiver sees it, an [`Encoder`] as its sender does. Sections go over the
//! streams of the messages; what changes the tables goes over two streams of their own.

mod decoder;
mod encoder;
mod static_table;

use std::fmt;

use h2o_http::prefixed::PrefixedError;
use h2o_http::string_literal::StringError;

pub(crate) use decoder::encode_number;
pub use decoder::path_string;
pub use decoder::{Decoded, Decoder};
pub use encoder::{Encoder, References, SectionWriter};
pub use h2o_http::field_section::{DecodedField, FieldName, Flaws, Pseudo};

/// Where the peer is wrong. All of these are connection errors (RFC 9204 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpackError {
    /// A field section is cut off, or refers to what is not in the tables: `QPACK_DECOMPRESSION_FAILED`.
    Section,
    /// An instruction for the decoder's table cannot be followed: `QPACK_ENCODER_STREAM_ERROR`.
    EncoderStream,
    /// An acknowledgement that the encoder cannot explain: `QPACK_DECODER_STREAM_ERROR`.
    DecoderStream,
}

impl fmt::Display for QpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Section => "field section that cannot be decoded",
            Self::EncoderStream => "invalid instruction for the QPACK table",
            Self::DecoderStream => "invalid QPACK acknowledgement",
        })
    }
}

impl std::error::Error for QpackError {}

/// Integers and strings are wrong where a section is decoded.
impl From<PrefixedError> for QpackError {
    fn from(_: PrefixedError) -> Self {
        Self::Section
    }
}

impl From<StringError> for QpackError {
    fn from(_: StringError) -> Self {
        Self::Section
    }
}

/// Bytes of the entry with the least text, by which the capacity of a table limits the number of its entries (RFC 9204 §4.5.1.1).
const MIN_ENTRY: u32 = 32;

#[cfg(test)]
mod tests;
