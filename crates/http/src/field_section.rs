//! The field sections of HTTP/2 and HTTP/3: how their fields become the heads of messages, what makes a message malformed, and
//! which fields are sent (RFC 9113 §8.2 and §8.3, RFC 9114 §4.2 and §4.3).
//!
//! To receive, the engine decodes a section (HPACK, QPACK) and hands each [`DecodedField`] to [`RequestFields`] or
//! [`ResponseFields`]. Their errors name the fault of the peer. The engine decides its reach: a [`FieldError`] ends the
//! connection over HTTP/2 and the stream over HTTP/3. To send, the engine encodes the output of [`encode_request_pseudo`]
//! and [`encode_fields`].
//!
//! ```
//! use h2o_http::field_section::{DecodedField, FieldError, FieldName, Flaws, Pseudo, RequestFields};
//! use h2o_http::{Method, RequestHead};
//!
//! let pseudo = |name, value| DecodedField {
//!     name: FieldName::Pseudo(name),
//!     value,
//!     flaws: Flaws::NONE,
//!     never_indexed: false,
//! };
//! let mut head = RequestHead::default();
//! let mut fields = RequestFields::of_request(&mut head, 12);
//! fields.field(&pseudo(Pseudo::Method, b"POST"))?;
//! fields.field(&pseudo(Pseudo::Scheme, b"https"))?;
//! fields.field(&pseudo(Pseudo::Path, b"/form"))?;
//! assert_eq!(
//!     fields.field(&pseudo(Pseudo::Path, b"/again")),
//!     Err(FieldError::PseudoField),
//! );
//! let section = fields.finish(false).expect("it has what a request needs");
//! assert_eq!(section.refusal, None);
//! assert_eq!(head.method, Method::Post);
//! assert_eq!(head.target(), b"/form");
//! # Ok::<(), FieldError>(())
//! ```

mod field;
mod hash;
mod memo;
mod request;
mod response;
mod send;

pub use field::{DecodedField, FieldName, Flaws, NameKind, Pseudo};
pub use hash::{field_hash, pseudo_hash};
pub use memo::{RequestMemo, ResponseMemo};
pub use request::{Refusal, RequestFields, RequestSection, set_path};
pub use response::{ResponseFields, SectionKind};
pub use send::{connect_protocol, encode_fields, encode_request_pseudo, forwardable};

/// Fields kept per section (H2O has the same limit). Requests with more are answered with 400.
pub const MAX_FIELDS: u32 = 100;
/// A section with more fields is an attack (H2O has the same limit). Cookie crumbs count: they cost little to send and much
/// to keep (CVE-2019-9516 and similar attacks).
pub const MAX_DECODED_FIELDS: u32 = 1000;
/// Limit of the bytes of names and values per section, in addition to twice its length on the wire: Huffman decoding at
/// most nearly doubles a text, and table references can add the size of one dynamic table. Only a section that refers to
/// the same entry again and again ("HPACK bomb") is larger.
pub const MAX_TABLE_TEXT: usize = 6 * 1024;

/// A field that makes its message malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// More than [`MAX_DECODED_FIELDS`] fields.
    Flood,
    /// An upper-case letter in a field name (RFC 9113 §8.2.1).
    UpperCaseName,
    /// A field that only HTTP/1 has (RFC 9113 §8.2.2).
    ConnectionSpecific,
    /// `content-length` is not a number, or is two that differ (RFC 9110 §8.6).
    ContentLength,
    /// A pseudo field of a request that is repeated, behind a regular field, in trailers, or an empty `:path` (RFC 9113 §8.3).
    PseudoField,
    /// A pseudo field that requests do not have (RFC 9113 §8.3).
    UnknownPseudoField,
    /// A pseudo field of a response that is not its one valid `:status` in front (RFC 9113 §8.3.2), or is in trailers (§8.1).
    ResponsePseudoField,
}

/// A section that is malformed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError {
    /// A method that is not a token (RFC 9113 §8.3.1).
    Method,
    /// A required pseudo field is missing, or one is not allowed for the method (RFC 9113 §8.3.1, §8.5, RFC 8441 §4).
    PseudoFields,
    /// `content-length` announces content, and none follows (RFC 9113 §8.1.1).
    ContentLength,
    /// A response without `:status` (RFC 9113 §8.3.2).
    StatusMissing,
    /// A response or trailers with too many fields or too much text, or with a field whose name or value is invalid.
    Fields,
}
