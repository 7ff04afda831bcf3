//! HPACK (RFC 7541), the compression of field sections in HTTP/2.
//!
//! Each direction of a connection has a [`Decoder`] at its receiver and an [`Encoder`] at its sender. Both allocate nothing
//! before the first field enters the dynamic table.
//!
//! ```
//! use h2o_http::{Known, Name};
//! use h2o_http2::hpack::{Decoder, Encoder, FieldName, HpackError, Pseudo};
//!
//! let mut block = Vec::new();
//! let mut encoder = Encoder::new();
//! encoder.begin(&mut block);
//! encoder.pseudo(Pseudo::Path, b"/", &mut block);
//! encoder.field(Name::Known(Known::Accept), b"*/*", &mut block);
//!
//! let mut names = Vec::new();
//! let mut decoder = Decoder::new(4096);
//! decoder.decode(&block, |field| {
//!     assert!(field.flaws.is_none());
//!     names.push(field.name.as_bytes().to_vec());
//!     Ok::<(), HpackError>(())
//! })?;
//! assert_eq!(names, [&b":path"[..], b"accept"]);
//! # Ok::<(), HpackError>(())
//! ```

mod decoder;
mod encoder;
mod static_table;

use std::fmt;

use h2o_http::huffman::HuffmanError;
use h2o_http::prefixed::PrefixedError;
use h2o_http::string_literal::StringError;

pub use decoder::Decoder;
pub(crate) use decoder::path_string;
pub use encoder::Encoder;
pub use h2o_http::field_section::{DecodedField, FieldName, Flaws, Pseudo, field_hash};

/// Why a field block cannot be decoded. Each of these errors ends the connection with `COMPRESSION_ERROR` (RFC 9113 §4.3),
/// since the dynamic tables of the two sides may differ afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Incomplete,
    /// An integer needs more than 32 bits (RFC 7541 §5.1).
    IntegerTooLarge,
    /// An index is 0 or beyond the dynamic table (RFC 7541 §2.3.3, §6.1).
    IndexInvalid,
    /// A string is not valid Huffman code (RFC 7541 §5.2).
    Huffman(HuffmanError),
    /// A size update exceeds the limit that this side has announced (RFC 7541 §6.3).
    TableTooLarge,
    /// A size update follows a field (RFC 7541 §4.2).
    SizeUpdateLate,
}

impl From<PrefixedError> for HpackError {
    fn from(error: PrefixedError) -> Self {
        match error {
            PrefixedError::Incomplete => Self::Incomplete,
            PrefixedError::TooLarge => Self::IntegerTooLarge,
        }
    }
}

impl From<HuffmanError> for HpackError {
    fn from(error: HuffmanError) -> Self {
        Self::Huffman(error)
    }
}

impl From<StringError> for HpackError {
    fn from(error: StringError) -> Self {
        match error {
            StringError::Length(error) => error.into(),
            StringError::Huffman(error) => error.into(),
        }
    }
}

impl fmt::Display for HpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incomplete => "field block ends within a field",
            Self::IntegerTooLarge => "integer above 32 bits in a field block",
            Self::IndexInvalid => "index outside of the HPACK tables",
            Self::Huffman(_) => "invalid Huffman code in a field block",
            Self::TableTooLarge => "HPACK table above the announced size",
            Self::SizeUpdateLate => "HPACK size update after a field",
        })
    }
}

impl std::error::Error for HpackError {}

#[cfg(test)]
mod tests;
