//! QPACK (RFC 9204), the compression of field sections in HTTP/3.
//!
//! Each direction of a connection has a [`Decoder`] at its receiver and an [`Encoder`] at its sender. Encoded sections are
//! sent on the streams of their messages; instructions and acknowledgements for the tables are sent on two streams of their
//! own.

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

/// A mistake of the peer in QPACK. Each of these ends the connection (RFC 9204 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpackError {
    /// A field section is cut off, or refers to entries that are not in the tables: `QPACK_DECOMPRESSION_FAILED`.
    Section,
    /// An instruction for the decoder's table cannot be executed: `QPACK_ENCODER_STREAM_ERROR`.
    EncoderStream,
    /// An acknowledgement does not match what the encoder has sent: `QPACK_DECODER_STREAM_ERROR`.
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

/// An invalid integer or string within a field section.
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

/// Size in bytes of the smallest possible entry. The capacity of a table divided by it is the maximum number of its entries
/// (RFC 9204 §4.5.1.1).
const MIN_ENTRY: u32 = 32;

#[cfg(test)]
mod tests;
