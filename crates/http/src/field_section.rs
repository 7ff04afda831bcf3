//! The field sections of HTTP/2 and HTTP/3: how their fields become the heads of messages, what makes a message malformed, and
//! which fields are sent (RFC 9113 §8.2 and §8.3, RFC 9114 §4.2 and §4.3).
//!
//! To receive, the engine decodes a section (HPACK, QPACK) and hands each [`DecodedField`] to [`RequestFields`] or
//! [`ResponseFields`]. Their errors name the fault of the peer. What an error ends depends on the engine: a [`FieldError`]
//! ends the connection over HTTP/2 and the stream over HTTP/3. To send, the engine encodes the output of
//! [`encode_request_pseudo`] and [`encode_fields`].
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
//! let section = fields.finish(false).expect("the pseudo-header fields are complete");
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
pub use send::{
    connect_protocol, encode_fields, encode_request_fields, encode_request_pseudo, forwardable,
};

/// Maximum number of fields that are kept of a section (H2O has the same limit). A request with more is answered with 400.
pub const MAX_FIELDS: u32 = 100;
/// Maximum number of decoded fields per section. A section with more is an attack and ends the connection or stream (H2O
/// has the same limit). Each crumb of `cookie` counts: a crumb costs a client little to send and a server much to keep
/// (CVE-2019-9516 and similar attacks).
pub const MAX_DECODED_FIELDS: u32 = 1000;
/// A section may decode to this many bytes of names and values plus twice its length on the wire: Huffman decoding at most
/// nearly doubles a text, and references to a dynamic table can add the size of one such table. Only a section that refers
/// to the same entry again and again ("HPACK bomb") is larger.
pub const MAX_TABLE_TEXT: usize = 6 * 1024;

/// A fault of one field that makes its message malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// The section has more than [`MAX_DECODED_FIELDS`] fields.
    Flood,
    /// A field name has an upper-case letter (RFC 9113 §8.2.1).
    UpperCaseName,
    /// The field is one that only HTTP/1 has, such as `connection` (RFC 9113 §8.2.2).
    ConnectionSpecific,
    /// `content-length` is not a number, or occurs twice with different numbers (RFC 9110 §8.6).
    ContentLength,
    /// A pseudo-header field of a request is repeated, follows a regular field or is in trailers, or `:path` is empty (RFC
    /// 9113 §8.3).
    PseudoField,
    /// A request has a pseudo-header field that is not defined for requests (RFC 9113 §8.3).
    UnknownPseudoField,
    /// A response has a pseudo-header field other than one valid `:status` before all other fields (RFC 9113 §8.3.2), or
    /// has one in trailers (§8.1).
    ResponsePseudoField,
}

/// A fault of a field section as a whole that makes its message malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError {
    /// The method is not a token (RFC 9113 §8.3.1).
    Method,
    /// A required pseudo-header field is missing, or one is present that the method does not allow (RFC 9113 §8.3.1, §8.5,
    /// RFC 8441 §4).
    PseudoFields,
    /// `content-length` announces content, but the section ends the stream (RFC 9113 §8.1.1).
    ContentLength,
    /// A response has no `:status` (RFC 9113 §8.3.2).
    StatusMissing,
    /// A response's head or trailers have too many fields or too much text, or a field whose name or value is invalid.
    Fields,
}
